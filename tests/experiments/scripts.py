"""A script under experiments/ as a module of this process."""

import contextlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDER = Path(__file__).parents[2] / "experiments"


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
    """The script as a module; its folder is searched for what it imports, and forgotten
    afterwards.
    """
    path = FOLDER / name
    before = set(sys.modules)
    threads = torch.get_num_threads()
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
