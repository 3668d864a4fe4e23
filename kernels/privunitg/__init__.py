"""Lifted PrivUnitG messages from explicit random inputs, and sums of many of them from a counter."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.privunitg import reference
from torchdp.kernels.privunitg.reference import message, messages, tilted_normal

__all__ = ["message", "messages", "sums", "tilted_normal"]

SUMS = Kernel(__name__, "sums", reference.sums, examples.privunitg, tolerance=1e-4)


def sums(
    points: Tensor,
    counts: Tensor,
    key: int,
    first: int = 0,
    *,
    radius: float,
    threshold: float,
    upper: float,
    survival: float,
) -> Tensor:
    """The sum of all users' messages: users first, first + 1, ..., counts[0] at points[0], then counts[1] at points[1].

    points: (m, d), float32 or float64; counts: (m,) int64. Returns (d,), float64. The same messages as ``messages``
    for this key: parts with their own ``first`` add up to the whole. Memory: O(m d), whatever n.
    """
    law = {"threshold": threshold, "upper": upper, "survival": survival}
    return SUMS(points.device, points, counts, key, first, radius=radius, **law)
