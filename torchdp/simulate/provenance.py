"""What made a store or a table: command, place, time, versions."""

import os
import platform
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchdp.simulate.code import package
from torchdp.simulate.store import Start


def start(more: Mapping[str, Any]) -> Start:
    """A new number for a sweep that starts now, with the facts of this process beside those given."""
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
    """Of the repository around the working folder, with a + where files differ from it; "" where there is none."""
    asked = ("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno")
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10, "check": True}
    try:
        name, changed = (subprocess.run(["git", *each], **how).stdout.strip() for each in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return name + "+" * bool(changed)
