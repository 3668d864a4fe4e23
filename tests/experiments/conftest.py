"""How a script is run."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "experiments"
sys.path.insert(0, str(HERE))  # where children find forked.py


@pytest.fixture
def run(tmp_path_factory):
    """What ``python *arguments`` prints, for a script or for -m and a module."""
    import forked

    def run(*arguments):
        folder = tmp_path_factory.mktemp("printed")
        output, errors = folder / "output", folder / "errors"
        code = forked.run([str(argument) for argument in arguments], output, errors)
        assert code == 0, errors.read_text()
        return output.read_text()

    return run


@pytest.fixture
def smoke(run):
    """What a script under experiments/ prints with --smoke and these arguments."""

    def smoke(script, *arguments):
        return run(FOLDER / script, "--smoke", *arguments)

    return smoke
