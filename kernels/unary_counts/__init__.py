"""How many users set each bit of their unary encodings; the messages are not kept."""

from torch import Tensor

from torchdp.kernels.dispatch import fuses
from torchdp.kernels.unary_counts import reference


def tally(x: Tensor, k: int, lost: float, off: float, key: int, first: int = 0) -> Tensor:
    """Arguments and result of reference.tally, the same integers on every device."""
    if fuses(x.device):
        from torchdp.kernels.unary_counts import fused

        return fused.tally(x, k, lost, off, key, first)
    return reference.tally(x, k, lost, off, key, first)


__all__ = ["tally"]
