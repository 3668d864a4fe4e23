"""Draws from a table of integers by a guide: the first bits of each decide nearly all of them."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, contiguous, examples
from torchdp.kernels.guided_draws import reference
from torchdp.kernels.guided_draws.reference import OPEN

__all__ = ["OPEN", "fill"]

FILL = Kernel(__name__, "fill", reference.fill, examples.guided_draws)


def fill(out: Tensor, parts: Tensor, cells: Tensor, times: int = 0) -> Tensor:
    """Arguments and result of reference.fill, the same integers on every device. Raises
    ValueError.
    """
    contiguous(out=out, parts=parts, cells=cells)
    return FILL(out.device, out, parts, cells, times)
