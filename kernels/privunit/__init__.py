"""Lifted PrivUnit messages from explicit random inputs, and sums of many of them from a counter."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.privunit import reference
from torchdp.kernels.privunit.reference import message, messages

__all__ = ["LARGEST_DIM", "message", "messages", "sums"]

SUMS = Kernel(__name__, "sums", reference.sums, examples.privunit, tolerance=1e-4)
# of the fused path: what the registers of a program hold
LARGEST_DIM = 4096


def sums(
    points: Tensor,
    counts: Tensor,
    lift: Tensor,
    along: Tensor,
    across: Tensor,
    key: int,
    first: int = 0,
    *,
    radius: float,
    mean: float,
) -> Tensor:
    """The sum of all users' messages: (d,), float64, d <= ``LARGEST_DIM``.

    The same messages as ``messages`` for this key: parts with their own ``first`` add up to the
    whole. The d normals of a user come from the counter. Memory: O(n + m d).

    Args:
        points: (m, d), float32 or float64.
        counts: (m,) int64; the first counts[0] users hold points[0], the next counts[1] points[1].
        lift: (n,), a draw of each user; see ``message``.
        along: (n,).
        across: (n,).
        key: 64 bits.
        first: the first user's number.
        radius: C.
        mean: of T.
    """
    arguments = (points, counts, lift, along, across, key, first)
    return SUMS(points.device, *arguments, radius=radius, mean=mean)
