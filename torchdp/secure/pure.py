"""A secure sketch without delta: integers whose sums carry discrete Laplace noise.

Notation: f: fraction bits; q: a client's integers; h: the fewest honest pairs in a used row; s:
copies; D: the largest l_1 distance of two clients' integers; a = e^(-epsilon/(s D)).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Draws, Shape
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.protocol.interval import laplace_stretch
from torchdp.secure.ring import Ring
from torchdp.secure.sums import SLACK, SecureSums, Words

# there is space for noise but for 2 e^-52.7 = 2.6e-23 of the mass
EXPONENT = 52.7
# e^epsilon is a float
MOST_EPSILON = 700.0
# of a delta, above what rounding in its formula takes away
ROUNDED_UP = 1e-6


@dataclass(frozen=True, eq=False)
class PureSecureSketch(SecureSums):
    """Y = s^-1/2 (S A + discrete Laplace noise): :class:`SecureSketch` with delta = 0.

    Client i adds to its integers q = trunc(a_i 2^f), for each copy, fresh noise NB(1/h, a) -
    NB(1/h, a) in each column, a = e^(-epsilon/(s D)), D the largest l_1 distance of two clients'
    integers: h of them make P(z) = (1 - a)/ (1 + a) a^|z|. Rows with more than h honest pairs have
    more noise. Sums are modulo 2^bits.

    Args:
        sketch: as in ``SecureSketch``, and all that is not named here. One copy is best: noise
            grows with s.
        columns: d.
        bound: B_1, the largest l_1 norm of a row; D is then 2 floor(B_1 2^f).
        epsilon: at most 700.
        sensitivity: the largest l_1 distance of two rows that clients may hold, 2 B_1 where None;
            truncation adds less than a unit in each column.

    Raises ValueError, TypeError before anything is drawn.

    Guarantees: epsilon-DP, one client's row replaced by any other within the bounds, against the
    same coalitions as
        ``SecureSketch``; its delta is what the tables' 128 bits cost, ``Guarantee.pure``. With one
        honest client of a row less than the coalition allows epsilon is larger: that noise has a
        peak at 0.
    Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), Theorem 4.8, with one Laplace
    variable in an entry in
        place of Corollary 4.10's m; Ghosh, Roughgarden, Sundararajan (2012); Goryczka, Xiong (2017)
        for the shares. Replacing a row moves s rows of integers by D together in l_1; the honest
        noise of each is a discrete Laplace variable and more of the same kind, independent, whose
        chances fall by at most a factor a a unit; truncation comes before the noise, and what
        follows it, reduction modulo 2^bits too, is post-processing.
    """

    NORM: ClassVar[int] = 1

    def __post_init__(self) -> None:
        checks.within("epsilon", self.epsilon, 0, MOST_EPSILON, ": nothing would be hidden")
        super().__post_init__()

    @property
    def rate(self) -> float:
        """log(1/a) for a unit of the ring."""
        return self._rate(self.ring)

    @cached_property
    def part(self) -> float:
        """1/h, the part of a discrete Laplace variable in each word; rounded up."""
        # The row with the fewest pairs decides for all: a larger part only adds noise elsewhere.
        h = self._used[0] - self.coalition.missing
        return math.nextafter(1 / h, 1.0)

    def distance(self, ring: Ring) -> int:
        """D, the largest l_1 distance of rows that ``rows`` lets pass, in units; at least 1."""
        # By the triangle inequality: truncation toward 0 lengthens no row.
        D = 2 * self._longest(ring)
        if self.sensitivity is not None:
            stated = Fraction(self.sensitivity) * Fraction(1 + 2 * SLACK) * 2**ring.fraction_bits
            # truncation moves each column by less than a unit
            D = min(D, math.ceil(stated + self.columns) - 1)
        # D = 0, where all rows are truncated to 0, would divide by zero in the rate.
        return max(1, D)

    @property
    def variance(self) -> Tensor:
        """4^-f/(2 h sinh^2(rate/2)), the same in all rows."""
        variance = laplace.variance(self.rate) * self.part / self.ring.scale**2
        return torch.full(
            (self.sketch.height,), variance, dtype=torch.float64, device=self.sketch.device
        )

    def stretch(self, level: float) -> float:
        return laplace_stretch(level)

    @property
    def grid_factor(self) -> float:
        # Laplace noise on real numbers has scale s D/epsilon and variance 2 scale^2.
        scale = self.sketch.copies * self._apart / self.epsilon
        return laplace.variance(self.rate) / (2 * (scale * self.ring.scale) ** 2)

    @property
    def variation(self) -> float:
        """Above the total variation distance of all clients' noise from its distribution."""
        pairs = self.sketch.clients * self.sketch.copies * self.columns
        clusters = pairs * laplace.mean_clusters(self.part, self.rate)
        return laplace.variation(self.sketch.clients, clusters)

    @property
    def guarantee(self) -> Guarantee:
        theorem = "Theorem 4.8; Ghosh, Roughgarden, Sundararajan (2012)"
        pure = Guarantee(
            self.epsilon,
            0.0,
            Model.LINEAR_TRANSFORM,
            Neighbours.REPLACE_ONE,
            False,
            self._source(theorem, "apart in l_1"),
        )
        cost = (1 + math.exp(self.epsilon)) * self.variation
        # half of the mass and more is no guarantee
        return pure.rounded(self.variation, cost * (1 + ROUNDED_UP)) if cost < 0.5 else pure

    def randomize_unchecked(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        ring = self.ring
        shape = (self.sketch.copies, len(x), self.columns)
        # In 64 bits to the end: the reduction to 32 is a homomorphism, so it may come last.
        noise = x.new_zeros(math.prod(shape), dtype=torch.int64)
        words = laplace.add_shares(noise, self.part, self.rate, draws).view(shape)
        words += ring.to_words(x).long()
        signs = self.sketch.signs[:, first : first + len(x)].to(x.device)
        return Words(first, words.mul_(signs[..., None]).to(ring.dtype))

    def noise_of(self, words: Tensor, shape: Shape, draws: Draws) -> Tensor:
        shares = words.to(draws.device).double() * self.part
        return laplace.sample_sums(shares[..., None].expand(shape), self.rate, draws)

    def _longest(self, ring: Ring) -> int:
        """The largest l_1 norm of a client's integers."""
        return math.floor(Fraction(self.bound) * Fraction(1 + SLACK) * 2**ring.fraction_bits)

    def _check_rows(self, rows: Tensor, one: Tensor) -> None:
        super()._check_rows(rows, one)
        # exact, where float norms are rounded
        norms = self.ring.to_words(rows).long().abs().sum(1)
        if (norms > self._longest(self.ring)).any():
            raise ValueError(
                f"x holds a row of l_1 norm above bound = {self.bound}; clip rows, in float64"
            )

    def _rate(self, ring: Ring) -> float:
        """log(1/a) = epsilon/(s D), rounded down: more noise."""
        # One rounding of an exact quotient, and a float down: never above the true rate.
        exact = Fraction(self.epsilon) / (self.sketch.copies * self.distance(ring))
        return math.nextafter(float(exact), 0.0)

    def _farthest(self, ring: Ring) -> float:
        rate = self._rate(ring)
        # Sizes of clusters are drawn below 2^62 only down to this rate: the grid is too fine.
        if rate < laplace.LEAST_RATE:
            return math.inf
        counts = torch.tensor(self._used, dtype=torch.float64)
        noise = laplace.tail(counts * self.part, rate, EXPONENT) / ring.scale
        return float((counts * self._largest + noise).max())
