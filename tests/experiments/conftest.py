"""How a script is run: in this process, with its smoke configuration."""

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

# where tests and children find scripts.py
sys.path.insert(0, str(Path(__file__).parent))

from scripts import Found, loaded


@pytest.fixture
def smoke(tmp_path, brief):
    """Runs a script's smoke configuration, with these fields changed, in this process."""

    def smoke(name, **changes):
        with loaded(name) as module, contextlib.redirect_stdout(io.StringIO()) as printed:
            # small tensors: on a busy machine five times as fast
            torch.set_num_threads(1)
            experiment = module.EXPERIMENT
            tables = experiment.run(replace(experiment.smoke, **changes), tmp_path)
        return Found(tables, printed.getvalue(), tmp_path)

    return smoke
