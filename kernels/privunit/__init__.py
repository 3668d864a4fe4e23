"""Lifted PrivUnit messages from explicit random inputs, and sums of many of them from a counter."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.privunit import reference
from torchdp.kernels.privunit.reference import message, messages, total

__all__ = ["LARGEST_DIM", "message", "messages", "sums", "total"]

SUMS = Kernel(__name__, "sums", reference.sums, examples.privunit, tolerance=1e-4)
LARGEST_DIM = 4096  # of the fused path: what the registers of a program hold


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
    """The sum of all users' messages: users first, first + 1, ..., counts[0] at points[0], then
    counts[1] at points[1].

    points: (m, d), float32 or float64; counts: (m,) int64; lift, along, across: (n,), three draws
    of each user (see ``message``), whose d normals come from the counter. Returns (d,), float64.
    The same messages as ``messages`` for this key: parts with their own ``first`` add up to the
    whole. Memory: O(n + m d).
    """
    arguments = (points, counts, lift, along, across, key, first)
    if points.shape[1] > LARGEST_DIM:
        return reference.sums(*arguments, radius=radius, mean=mean)
    return SUMS(points.device, *arguments, radius=radius, mean=mean)
