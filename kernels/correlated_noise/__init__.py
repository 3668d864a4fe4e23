"""The noise of one step of a matrix mechanism: its state is read and written once."""

from torch import Tensor

from torchdp.kernels.correlated_noise import reference
from torchdp.kernels.correlated_noise.reference import STEPS, normals
from torchdp.kernels.correlated_noise.step import Step
from torchdp.kernels.dispatch import Kernel, contiguous, examples

__all__ = ["STEPS", "Step", "add", "normals"]


def add(
    changed: tuple[Tensor, Tensor], total: Tensor, now: Step, key: Tensor, step: int, first: int
) -> None:
    """out = total + w and the state after it, in place of changed = (out, state).

    u = sum_m feeds_m z_m, w = (u + sum_a gains_a state_a) / scale, z_m the standard normals of
    step - lags_m. Then the running rows state_a += decays_a state_a + u, and w and u take their
    slots. Number i of the whole vector, from ``first`` on, has the z of its own (key, step, i),
    whoever draws it.

    Args:
        changed: (size,), which may be total, and (memory, size), of contiguous rows.
        total: (size,), of the state's dtype, float32 or float64.
        now: the step's numbers.
        key: (8,) int32.
        step: in [0, 2^32), as all of those that are drawn.
        first: the first number's place in the whole vector.

    Raises ValueError for tensors that are not contiguous.
    """
    tables = {"gains": now.gains, "decays": now.decays, "numbers": now.numbers, "lags": now.lags}
    contiguous(out=changed[0], state=changed[1][:1], total=total, key=key, **tables)
    ADD(total.device, changed, total, now, key, step, first)


ADD = Kernel(__name__, "add", reference.add, examples.correlated_noise, tolerance=1e-6)
