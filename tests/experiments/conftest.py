"""How a script is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def smoke():
    """What a script under experiments/ prints with --smoke and these arguments."""

    def run(script, *arguments):
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(FOLDER / script), "--smoke", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
