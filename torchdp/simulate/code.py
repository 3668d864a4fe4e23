"""What made a number: the script that defines its trial, and the command, place and versions of a
run.
"""

import functools
import hashlib
import inspect
import marshal
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchdp.simulate.store import Start

_ROOT = Path(__file__).resolve().parents[1]
_NAME = __name__.partition(".")[0]


def code_of(make_trial: Any) -> str:
    """What made the numbers of a trial, in words: its script, torchdp, torch and Python.

    The first part is a digest of the text of the file that defines ``make_trial``
    (in a notebook, of the function), as it lies on the disk, and of the values that it is bound to,
    as they print: a partial's arguments, a closure's variables, an object's attributes. So a
    comment makes another code. Other files that the script imports or reads are not covered.
    ``__wrapped__`` stands for an object that has it.
    """
    made = inspect.unwrap(make_trial)
    bound: list[object] = []
    while isinstance(made, functools.partial):
        bound += [made.args, made.keywords]
        made = inspect.unwrap(made.func)
    bound += [cell.cell_contents for cell in getattr(made, "__closure__", None) or ()]
    # a function or an object; that of a method
    for owner in (made, getattr(made, "__self__", None)):
        bound += [owner, getattr(owner, "__dict__", None)]
    values = re.sub(" at 0x[0-9a-f]+", "", repr(bound))  # where an object lies says nothing
    text = _text(made if inspect.isroutine(made) else type(made).__call__)
    trial = hashlib.sha256(f"{text}\0{values}".encode()).hexdigest()
    python = f"python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"trial {trial[:16]}, {package()}, torch {torch.__version__}, {python}"


def _text(made: Any) -> str:
    """Of the file; without one of the function; typed at a prompt that keeps no text, what Python
    made of it.
    """
    try:
        return Path(inspect.getsourcefile(made) or "").read_text("utf-8", "replace")
    except (OSError, TypeError):
        pass
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        return marshal.dumps(getattr(made, "__code__", None)).hex()


@functools.cache
def package() -> str:
    """torchdp's version, and a digest of its source files as they lie on the disk."""
    hashed = hashlib.sha256()
    found = [Path(at, name) for at, _, names in os.walk(_ROOT, followlinks=True) for name in names]
    for path in sorted(path for path in found if path.suffix == ".py"):
        hashed.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{_NAME} {sys.modules[_NAME].__version__} ({hashed.hexdigest()[:12]})"


def start(more: Mapping[str, Any]) -> Start:
    """A new number for a sweep that starts now, with the facts of this process beside those
    given.
    """
    return Start(uuid.uuid4().hex[:12], {**facts(), **more})


def facts() -> dict[str, Any]:
    """Of this process, now."""
    return {
        "at": time.time(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else "",
        "cpu": platform.processor() or platform.machine(),
        "git": _revision(),
        "host": platform.node(),
        "package": package(),
        "process": os.getpid(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _revision() -> str:
    """Of the repository around the working folder, with a + where files differ from it; "" where
    there is none.
    """
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
