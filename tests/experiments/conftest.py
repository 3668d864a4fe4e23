"""How a script is run: in this process with its smoke configuration, or as a command."""

import contextlib
import importlib.util
import io
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "experiments"
sys.path.insert(0, str(HERE))  # where children find forked.py


@dataclass
class Found:
    """What a script left: its tables as they were written, what it printed, its folder."""

    tables: dict
    printed: str
    folder: Path

    def drew(self, name):
        return (self.folder / name).read_bytes().startswith(b"\x89PNG")


@contextlib.contextmanager
def loaded(name):
    """The script as a module; its folder is searched for what it imports, and forgotten afterwards."""
    path = FOLDER / name
    before, threads = set(sys.modules), torch.get_num_threads()
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(path.parent))
        torch.set_num_threads(threads)
        for each in set(sys.modules) - before:
            if str(getattr(sys.modules[each], "__file__", "")).startswith(str(FOLDER)):
                del sys.modules[each]


@pytest.fixture
def smoke(tmp_path):
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
