"""Lifted PrivUnitG messages from explicit random inputs, and sums of many of them from a counter."""

from torch import Tensor

from torchdp.kernels.dispatch import fuses
from torchdp.kernels.privunitg import reference
from torchdp.kernels.privunitg.reference import message, messages, tilted_normal

__all__ = ["message", "messages", "sums", "tilted_normal"]


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
    for this key: parts with their own ``first`` add up to the whole. Memory on a CUDA device: O(m d), whatever n.
    """
    law = {"threshold": threshold, "upper": upper, "survival": survival}
    if fuses(points.device):
        from torchdp.kernels.privunitg import fused

        return fused.sums(points, counts, key, first, radius=radius, **law)
    return reference.sums(points, counts, key, first, radius=radius, **law)
