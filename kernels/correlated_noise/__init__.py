"""The noise of one step of a matrix mechanism, made where it is added: its past is read and written once."""

from torch import Tensor

from torchdp.kernels.correlated_noise import reference
from torchdp.kernels.correlated_noise.reference import STEPS, normals
from torchdp.kernels.dispatch import Kernel, cases

__all__ = ["STEPS", "add", "normals"]


def add(
    changed: tuple[Tensor, Tensor],
    total: Tensor,
    gains: Tensor,
    decays: Tensor,
    numbers: Tensor,
    key: Tensor,
    *,
    slot: int | None,
    step: int,
    first: int,
    back: int = 0,
) -> None:
    """out = total + w and the past after it, in place of changed = (out, past): (size,), (memory, size).

    u = sum_m feeds_m z_m, w = (u + sum_a gains_a past_a) / scale, z_m the standard normals of step - m back. With
    ``slot`` w takes that row's place (the last w of a strategy with bands); for None past_a += decays_a past_a + u (the
    running numbers of buffers). numbers: (scale, feeds_0, feeds_1, ...), float64. gains, decays: (memory,), in the
    dtype of all but numbers, float32 or float64. Rows of past are contiguous, other tensors too; out may be total. key:
    (8,) int32. Number i of the whole vector, from ``first`` on, has the z of its own (key, step, i), whoever draws it;
    0 <= step < 2^32, all of those that are drawn.
    """
    ADD(total.device, changed, total, gains, decays, numbers, key, slot, step, first, back)


ADD = Kernel(__name__, "add", reference.add, cases.CORRELATED_NOISE)
