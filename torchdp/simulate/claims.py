"""Who works on which block: several sweeps on one store share the work."""

import fcntl
import hashlib
import os
from contextlib import suppress


class Claims:
    """A lock on one byte of a file beside the store for each block in work; the system frees a dead process's locks.

    Where the file system has no locks, every claim is granted: blocks may then be run twice, to the same bits.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(os.path.realpath(store) + ".claims", os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, name: str) -> bool:
        """Whether the block is ours now, or was: False where another process works on it."""
        if self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                pass
        return True

    def free(self, name: str) -> None:
        if self._file is not None:
            with suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(name))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _place(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
