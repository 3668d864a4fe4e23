"""How much is held in memory at a time, whatever the number of users, and how much is free."""

import os
from pathlib import Path

# 32 MB of float64
NUMBERS_AT_ONCE = 2**22
# bytes of float64
NUMBER = 8
# Of what is free, for one tensor and its copies: others use the machine too.
SHARE = 0.25
# bytes that are taken to be free where the system does not say
UNKNOWN = 2**34


def rows_at_once(width: int) -> int:
    """Rows of so many numbers to take at a time, at least 1."""
    return max(1, NUMBERS_AT_ONCE // max(1, width))


def numbers_that_fit(copies: int = 1) -> int:
    """The most float64 numbers of a tensor whose copies, as many, fit in free memory."""
    return int(SHARE * free_bytes() / (NUMBER * copies))


def free_bytes() -> int:
    """Bytes that this process may still ask for: of the machine, and below ``ulimit -v``."""
    free = UNKNOWN
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                free = int(line.split()[1]) * 1024
        import resource  # of Unix alone

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        held = pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ImportError, ValueError):
        return free
    return free if limit == resource.RLIM_INFINITY else min(free, max(0, limit - held))
