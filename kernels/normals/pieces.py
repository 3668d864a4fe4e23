"""How fused sums over users divide their work: pieces of consecutive users of one type."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# about as many, besides one for each type
PIECES = 2**13
# in partial sums
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Pieces:
    """Users start, ..., stop - 1 all hold ``type``: three int64 tensors (pieces,).

    rows: a tile's users, a power of 2. A tile is never more than twice as long as the mean type, so
    idle lanes cost at most twice the users' own work.
    """

    type: Tensor
    start: Tensor
    stop: Tensor
    rows: int

    def split(self, width: int) -> Iterator["Pieces"]:
        """Some pieces at a time, whose partial sums of ``width`` numbers take little memory."""
        # even, so that each part is aligned as the first one
        at_once = max(2, NUMBERS_AT_ONCE // width // 2 * 2)
        for first in range(0, len(self.type), at_once):
            some = slice(first, first + at_once)
            yield Pieces(self.type[some], self.start[some], self.stop[some], self.rows)


def pieces(counts: Tensor, first: int, most_rows: int, shortest: int) -> Pieces:
    """Pieces of users first, first + 1, ...

    Args:
        counts: (m,) int64; the first counts[0] users hold type 0, the next counts[1] type 1, ...
        first: the first user's number.
        most_rows: of a tile.
        shortest: users of a piece at least, a power of two, but for the last one of a type.
    """
    users = int(counts.sum())
    longest = max(shortest, power_of_two(_rounded_up(users, PIECES)))
    parts = (counts + longest - 1).div(longest, rounding_mode="floor")
    kind = torch.arange(len(counts), device=counts.device).repeat_interleave(parts)
    part = torch.arange(len(kind), device=counts.device) - (parts.cumsum(0) - parts)[kind]
    ends = first + counts.cumsum(0)
    start = (ends - counts)[kind] + part * longest
    stop = torch.minimum(start + longest, ends[kind])
    return Pieces(kind, start, stop, tile(counts, most_rows))


def tile(counts: Tensor, most_rows: int) -> int:
    """Users of a tile: as many as hold a type, in the mean, but not more than ``most_rows``."""
    held = max(1, int((counts > 0).sum()))
    return min(most_rows, power_of_two(_rounded_up(int(counts.sum()), held)))


def portions(counts: Tensor, at_once: int) -> Iterator[tuple[int, int, Tensor]]:
    """(first, last, counts) of at most ``at_once`` users at a time, in the order of their types.

    counts: (m,) int64.
    """
    ends = counts.cumsum(0)
    starts = ends - counts
    users = int(counts.sum())
    for first in range(0, users, at_once):
        last = min(first + at_once, users)
        yield first, last, ends.clamp(first, last) - starts.clamp(first, last)


def _rounded_up(number: int, divisor: int) -> int:
    return (number + divisor - 1) // divisor


def power_of_two(number: int) -> int:
    """The least power of two >= number, 1 for 0."""
    return 1 << max(0, number - 1).bit_length()
