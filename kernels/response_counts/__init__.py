"""How many users report each value by k-ary randomized response; the reports are not kept."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.response_counts import reference

__all__ = ["counts"]

COUNTS = Kernel(__name__, "counts", reference.counts, examples.response_counts)


def counts(x: Tensor, k: int, step: int, key: int, first: int = 0) -> Tensor:
    """Arguments and result of reference.counts, the same integers on every device."""
    return COUNTS(x.device, x, k, step, key, first)
