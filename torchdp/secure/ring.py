"""Fixed-point numbers in the integers modulo 2^32 or 2^64, and their additive shares."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape
from torchdp.noise import Noise, source

# Signed, since torch adds these modulo 2^bits and has few operations for unsigned integers.
WORDS = {32: torch.int32, 64: torch.int64}
# standard deviations of noise for which there is room: beyond it lies 1.5e-23 of the mass
TAIL = 10.0


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2^bits, in two's complement; the number x is the integer x 2^fraction_bits.

    Sums are exact, so their order does not matter.

    Args:
        bits: 32 or 64, torch's int32 and int64, whose sums and differences wrap around.
        fraction_bits: f in [0, bits - 2]; one unit of the integers is 2^-f.

    Raises ValueError.
    """

    bits: int
    fraction_bits: int

    def __post_init__(self) -> None:
        if self.bits not in WORDS:
            raise ValueError(f"bits must be 32 or 64, not {self.bits!r}")
        checks.integer("fraction_bits", self.fraction_bits, 0, self.bits - 2)

    @property
    def dtype(self) -> torch.dtype:
        """int32 or int64."""
        return WORDS[self.bits]

    @property
    def scale(self) -> float:
        """2^f, a float without error."""
        return 2.0**self.fraction_bits

    def to_words(self, values: Tensor) -> Tensor:
        """trunc(x 2^f), toward zero: no entry and no norm grows, |q|_2 <= |x|_2 2^f; any shape.

        Raises ValueError for entries that are not finite or do not fit, TypeError.
        """
        # A power of two scales a float without error: truncation is the only rounding.
        scaled = checks.real("values", values).double() * self.scale
        largest = 2.0 ** (self.bits - 1)
        # NaN is not
        if not (scaled.detach().abs() < largest).all():
            raise ValueError(
                f"values must be finite and fit {self.bits} bits with {self.fraction_bits} "
                f"fraction bits: below 2^{self.bits - 1 - self.fraction_bits} in size; "
                "remove NaN, or use fewer fraction bits"
            )
        return scaled.long().to(self.dtype)  # toward zero

    def to_reals(self, words: Tensor) -> Tensor:
        """The numbers that these words stand for: float64, any shape. Raises TypeError."""
        return self.checked("words", words).double() / self.scale

    def checked(self, name: str, value: Tensor) -> Tensor:
        """``value`` if it is a tensor of this ring's integers. Raises TypeError."""
        return checks.typed(name, value, self.dtype, note=f" (the ring has {self.bits} bits)")


def farthest_sum(count: int, entry: float, sigma: float, unit: float = 0.0) -> float:
    """How far from 0 a sum gets: c (entry + unit/2) + 10 sqrt(c) sigma.

    Args:
        count: c, numbers added up.
        entry: the largest |number|.
        sigma: standard deviation of the Gaussian noise in each.
        unit: the grid on which noise is rounded, 2^-f.
    """
    return count * (entry + unit / 2) + TAIL * math.sqrt(count) * sigma


def share(words: Tensor, servers: int, *, noise: Noise | None = None) -> Tensor:
    """Words as sums of one share for each server: (*shape) int32 or int64 -> (servers, *shape).

    shares[0], ..., shares[S - 2] are masks, uniform words from ``noise``; shares[S - 1] = words -
    the others, modulo 2^bits. Raises ValueError, TypeError.

    Guarantees: any S - 1 shares are uniform and independent of the words (perfectly with perfect
    masks: whichever share
        is left out, the words move it by a translation of the group, and the other S - 1 are a
        bijection of the masks), to anybody who can not tell ``Noise`` from random.
    Source: Shamir (1979) for the notion; Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section
    4.3.
    """
    checks.typed("words", words, *WORDS.values(), note=", as Ring.to_words returns it")
    checks.fits("the shares", checks.integer("servers", servers, 2), words.numel())
    shares = words.new_empty((servers, *words.shape))
    shares[:-1] = masks(shares[:-1].shape, words.dtype, source(noise, words.device))
    # in place, without a copy of the words
    torch.sub(words, shares[0], out=shares[-1])
    for other in shares[1:-1]:
        shares[-1] -= other
    return shares


def masks(shape: Shape, dtype: torch.dtype, draws: Draws) -> Tensor:
    """Words uniform on all 2^bits, int32 or int64; two of 32 bits from each of 64."""
    count = math.prod(shape)
    # of 64 bits, rounded up
    drawn = (count * dtype.itemsize + 7) // 8
    words = draws.words((drawn,))
    return words.view(dtype)[:count].view(shape)


def reconstruct(shares: Tensor) -> Tensor:
    """The sum of all servers' shares modulo 2^bits: (servers, *shape) -> (*shape).

    Raises ValueError, TypeError.
    """
    if checks.typed("shares", shares, *WORDS.values()).ndim == 0 or len(shares) < 2:
        raise ValueError(
            f"shares must have shape (servers, ...) with servers >= 2, not {tuple(shares.shape)}"
        )
    # Without the type torch adds int32 in int64, which would not wrap around at 2^31.
    return shares.sum(0, dtype=shares.dtype)
