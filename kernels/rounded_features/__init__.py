"""How many users round a random wave of their vector to a one: the features never reach memory."""

from torch import Tensor

from torchdp.kernels.dispatch import Kernel, examples
from torchdp.kernels.rounded_features import reference

__all__ = ["positive_counts", "rounded_counts"]

SLIPS = 2  # of 38,400 bits: one in a million lies within the rounding of its cosine
ROUNDED = Kernel(
    __name__, "rounded_counts", reference.rounded_counts, examples.rounded, slips=SLIPS
)
POSITIVE = Kernel(
    __name__, "positive_counts", reference.positive_counts, examples.positive, slips=SLIPS
)


def rounded_counts(
    x: Tensor,
    frequencies: Tensor,
    phases: Tensor,
    *,
    key: int,
    first: int = 0,
    repeats: int = 1,
) -> Tensor:
    """Ones among bits that are one with probability (1 + cos 2 pi t)/2, t = <w_i, x> + b_wi turns.

    x: (n, d) float32; frequencies w, in turns for each unit of length: (d, I); phases b, in turns:
    (waves, I), as many waves of each frequency. Returns (repeats, I waves) int64, number i waves +
    w in the last place. A bit is a function of (key, first + the user's row, its number, its
    repeat) and of t, so that parts of the users add up. The chance of a one has error below 2^-32,
    given the float32 cosine.
    """
    return ROUNDED(x.device, x, frequencies, phases, key, first, repeats)


def positive_counts(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """How many users have cos 2 pi t > 0: arguments as above -> (I waves,) int64."""
    return POSITIVE(x.device, x, frequencies, phases)
