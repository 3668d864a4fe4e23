"""What made a number: its trial's script, and the command, place and versions of a run."""

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
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torchdp.simulate.store import Start

# Every source of the package counts: any of them may change a number.
_ROOT = Path(__file__).resolve().parents[1]
_NAME = __name__.partition(".")[0]  # of the package


def code_of(make_trial: Any) -> str:
    """What made the numbers of a trial, in words: its script, torchdp, torch and Python.

    The first part is a digest of the text of the file that defines ``make_trial``
    (in a notebook, of the function), as it lies on the disk, and of the values that it is bound to,
    as they print: a partial's arguments, a closure's variables, an object's attributes. So a
    comment makes another code. Other files that the script imports or reads are not covered.
    ``__wrapped__`` stands for an object that has it.
    """
    function = inspect.unwrap(make_trial)
    bound: list[object] = []
    while isinstance(function, functools.partial):
        bound += [function.args, function.keywords]
        function = inspect.unwrap(function.func)
    closure = getattr(function, "__closure__", None) or ()
    # What a function is bound to changes its numbers as its text does.
    bound += [cell.cell_contents for cell in closure]
    # a function or an object; that of a method
    for owner in (function, getattr(function, "__self__", None)):
        bound += [owner, getattr(owner, "__dict__", None)]
    # Where an object lies differs from run to run and says nothing.
    values = re.sub(" at 0x[0-9a-f]+", "", repr(bound))
    text = _text(function if inspect.isroutine(function) else type(function).__call__)
    # NUL, which no source text holds, parts text and values.
    trial = hashlib.sha256(f"{text}\0{values}".encode()).hexdigest()
    python = f"python {sys.version_info[0]}.{sys.version_info[1]}"
    return f"trial {trial[:16]}, {package()}, torch {torch.__version__}, {python}"


def _text(function: Any) -> str:
    """Of its file; else its own; where a prompt keeps none, its compiled code."""
    with suppress(OSError, TypeError):
        return Path(inspect.getsourcefile(function) or "").read_text("utf-8", "replace")
    with suppress(OSError, TypeError):
        return inspect.getsource(function)
    return marshal.dumps(getattr(function, "__code__", None)).hex()


# Once a process, which does not follow later edits of what it has imported.
@functools.cache
def package() -> str:
    """torchdp's version, and a digest of its source files as they lie on the disk."""
    sources = []
    # The kernels are installed through a link, which os.walk follows only if told.
    for folder, _, names in os.walk(_ROOT, followlinks=True):
        sources += [Path(folder, name) for name in names if name.endswith(".py")]
    hashed = hashlib.sha256()
    # The file system's order of a folder must not enter.
    for path in sorted(sources):
        for part in (str(path.relative_to(_ROOT)).encode(), path.read_bytes()):
            hashed.update(part + b"\0")  # the end of each, so that no text moves between them
    version = sys.modules[_NAME].__version__
    return f"{_NAME} {version} ({hashed.hexdigest()[:12]})"


def start(more: Mapping[str, Any]) -> Start:
    """A new number for a sweep that starts now, with the facts of this process and those given."""
    return Start(uuid.uuid4().hex[:12], {**facts(), **more})


def facts() -> dict[str, Any]:
    """Of this process, now."""
    script, *arguments = sys.argv or [""]
    return {
        "at": time.time(),
        "command": shlex.join([Path(script).name, *arguments]),
        "cpu": platform.processor() or platform.machine(),
        "git": _revision(),
        "host": platform.node(),
        "package": package(),
        "process": os.getpid(),
        "python": platform.python_version(),
        # Decompositions depend on their number in the last bits.
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _revision() -> str:
    """Of the repository around the working folder, + where files differ; "" without one."""
    # Without any tag, which can move: always the commit.
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        # Without git, without a repository, on a disk that hangs: a run goes on without its name.
        return ""
    return revision.stdout.strip()
