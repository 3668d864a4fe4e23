"""What the benches share: median times, and the memory that one statement needs."""

import subprocess
import sys
from collections.abc import Callable

from torch.utils.benchmark import Timer

CHILD = """
import torch
torch.set_num_threads(1)
{setup}
def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))
try:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest mark starts again from what is held now
except OSError:
    pass
before = status("VmRSS")
{statement}
print(max(0, status("VmHWM") - before))
"""


def seconds(work: Callable[[], object], least: float = 1.0) -> float:
    """Median seconds of ``work()`` on one thread, over at least this many seconds of runs."""
    timer = Timer("work()", globals={"work": work}, num_threads=1)
    return timer.blocked_autorange(min_run_time=least).median


def peak_bytes(setup: str, statement: str) -> int:
    """By how many bytes memory grows, at its highest, while a fresh process runs ``statement`` after ``setup``.

    Linux only. Where the highest mark cannot be started again, what ``setup`` held and gave back counts too.
    """
    code = CHILD.format(setup=setup, statement=statement)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(child.stderr)
    return int(child.stdout.split()[-1])
