"""How a script is run: in this process with its smoke configuration, or as a command."""

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # where tests and children find scripts.py and forked.py

from scripts import FOLDER, Found, loaded


@pytest.fixture
def smoke(tmp_path, brief):
    """Runs a script's smoke configuration, with these fields changed, in this process."""

    def smoke(name, **changes):
        with loaded(name) as module, contextlib.redirect_stdout(io.StringIO()) as printed:
            torch.set_num_threads(1)  # small tensors: on a busy machine five times as fast
            experiment = module.EXPERIMENT
            tables = experiment.run(replace(experiment.smoke, **changes), tmp_path)
        return Found(tables, printed.getvalue(), tmp_path)

    return smoke


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
def command(run):
    """What a script under experiments/ prints with --smoke and these arguments, as its own process."""

    def command(script, *arguments):
        return run(FOLDER / script, "--smoke", *arguments)

    return command
