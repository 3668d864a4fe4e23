"""How many users report each value by k-ary randomized response; the reports are not kept."""

from torch import Tensor

from torchdp.kernels.dispatch import fuses
from torchdp.kernels.response_counts import reference


def counts(x: Tensor, k: int, step: int, key: int, first: int = 0) -> Tensor:
    """Arguments and result of reference.counts, the same integers on every device."""
    if fuses(x.device):
        from torchdp.kernels.response_counts import fused

        return fused.counts(x, k, step, key, first)
    return reference.counts(x, k, step, key, first)


__all__ = ["counts"]
