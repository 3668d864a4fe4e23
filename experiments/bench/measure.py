"""What the benches share: median times, and the memory that one statement needs."""

import subprocess
import sys
from collections.abc import Callable

from torch.utils.benchmark import Timer

CHILD = """
import resource, torch
torch.set_num_threads(1)
{setup}
def highest():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def now():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before = now()
{statement}
print(max(0, highest() - before))
"""


def seconds(work: Callable[[], object], least: float = 1.0) -> float:
    """Median seconds of ``work()`` on one thread, over at least this many seconds of runs."""
    timer = Timer("work()", globals={"work": work}, num_threads=1)
    return timer.blocked_autorange(min_run_time=least).median


def peak_bytes(setup: str, statement: str) -> int:
    """By how many bytes memory grows, at its highest, while a fresh process runs ``statement`` after ``setup``.

    Linux only. What ``setup`` once held and gave back is not counted unless the statement passes it.
    """
    code = CHILD.format(setup=setup, statement=statement)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(child.stderr)
    return int(child.stdout.split()[-1])
