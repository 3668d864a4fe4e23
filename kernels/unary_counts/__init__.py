"""How many users set each bit of their unary encodings; the messages are not kept."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.unary_counts import reference

__all__ = ["tally"]

TALLY = Kernel(__name__, "tally", reference.tally, examples.unary_counts)


def tally(x: Tensor, k: int, lost: float, off: float, key: int, first: int = 0) -> Tensor:
    """Arguments and result of reference.tally, the same integers on every device."""
    return TALLY(x.device, x, k, lost, off, key, first)
