"""All marginal tables of many bits by a curator, from one release that is never a matrix.

Notation: d bits; l, the order; T, a set of at most l bits, chi_T(x) = (-1)^(sum_{j in T} x_j);
R_T(x) and L as of ``factorization.MarginalFactorization``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Shape
from torchdp.factorization import MarginalFactorization
from torchdp.memory import rows_at_once
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Estimate, Layout, Limits, Objective, Tally
from torchdp.protocol.records import Users, broadcast_users, tensor_of, weighted_sum
from torchdp.protocol.rounded_sum import RoundedSum, in_blocks, released_guarantee

# Rounding of norms that are computed in float64 is less than this, relatively.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class CentralMarginals(CuratorProtocol[Crowd]):
    """The curator answers every table of ``order`` of d bits, C(d, order) 2^order shares.

    Of the users' R_T(x), 0 < |T| <= order, the sums leave under Gaussian noise of one deviation
    sigma, calibrated to the largest distance of two users: where they differ in h bits, its square
    is 4 sum_k sigma_k odd_k(h), odd_k(h) the sets of k bits that hold an odd number of the h. The
    tables are L times these, and 2^-order; tables that share bits agree on them. Every cell's
    variance is (sigma row_norm / n)^2, whatever the data.

    Args:
        d: bits of a user; x is (n, d) of zeros and ones, booleans or such columns of a table.
        order: of the tables, from 1 to min(d, 16).
        epsilon: > 0.
        delta: in (0, 1).

    An answer is (tables, 2^order): table i is of the bits ``sets[i]``, whose place j is bit j of a
    cell's number. Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's bits, n public.
    Source: Barak et al. (2007), for tables from parities; Nikolov, Tang (2023), Theorem 65; Balle,
    Wang (2018), Theorem 8, for sigma.
    """

    d: int
    order: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        checks.keep(self, epsilon=checks.positive, delta=checks.fraction)
        checks.validated(self, "factors")
        checks.fits("tables", math.comb(self.d, self.order), 2**self.order, copies=4)

    @cached_property
    def factors(self) -> MarginalFactorization:
        """R of the sets T, and L of the tables."""
        return MarginalFactorization(self.d, self.order, shift=True)

    @cached_property
    def sets(self) -> Tensor:
        """The bits of each table, (tables, order), rising."""
        return torch.combinations(torch.arange(self.d), self.order)

    @cached_property
    def codes(self) -> Tensor:
        """Of the sets T, as ``MarginalFactorization.subsets`` names them."""
        return self.factors.subsets(self.sets)[0]

    @property
    def held(self) -> tuple[int]:
        return (self.d,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) zeros and ones, n >= 1, as float64. Raises TypeError, ValueError."""
        bits = super().validate(x).double()
        if not ((bits == 0) | (bits == 1)).all():
            raise ValueError("x must hold zeros and ones; a category of more values is several")
        return bits

    @property
    def distance(self) -> float:
        """The largest of two users' encodings."""
        squares = []
        for h in range(1, self.d + 1):
            square = 0.0
            for k, scale in enumerate(self.factors.scales.tolist()):
                odd = range(1, k + 1, 2)
                sets = sum(math.comb(h, j) * math.comb(self.d - h, k - j) for j in odd)
                square += (2 * scale) ** 2 * sets
            squares.append(square)
        return math.sqrt(max(squares)) * (1 + ROUNDING)

    @cached_property
    def sums(self) -> RoundedSum:
        """Of the users' encodings, and its noise."""
        norm = self.factors.sensitivity * (1 + ROUNDING)
        # The rest of delta pays for the tables of the draws.
        multiplier = gaussian_sigma(self.epsilon, self.delta * ROUNDED)
        return RoundedSum.least(multiplier, self.distance, norm, len(self.codes))

    @cached_property
    def guarantee(self) -> Guarantee:
        multiplier = self.sums.sigma / self.sums.sensitivity
        return released_guarantee(multiplier, self.delta, self.sums.size)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.sums.size,), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"sum": self.sums.limits(n)}

    def _blocks(self, summary: Crowd) -> Iterator[Tensor]:
        """Sums of the users' encodings, (*batch, parities), block by block."""
        for rows, counts in in_blocks(summary.rows, summary.counts, rows_at_once(self.sums.size)):
            yield weighted_sum(counts, self.factors.encode(self.codes, rows))

    def release(self, summary: Crowd, draws: Draws, shape: Shape) -> Tally:
        whole = self.sums.blocks(self._blocks(summary), summary.n)
        return Tally(summary.n, {"sum": self.sums.released(whole, draws, shape)})

    def _tables(self, sums: Tensor, n: Users) -> Tensor:
        means = sums / broadcast_users(n, 1)
        return self.factors.decode(self.sets.to(means.device), means) + 2.0**-self.order

    def analyse(self, tally: Tally) -> Estimate:
        value = self._tables(self.check(tally)["sum"], tally.n)
        error = self._mse(tally.n).sqrt().to(value.device).expand_as(value)
        return Estimate(value, error, tally.n, limits=(0.0, 1.0))

    def _mse(self, n: Users) -> Tensor:
        """Of every cell's share, (*batch, tables, cells)."""
        deviation = self.sums.sigma * self.factors.row_norm / tensor_of(n).double()
        cells = (len(self.sets), 2**self.order)
        return deviation.square()[..., None, None].expand(*deviation.shape, *cells)

    def exact(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        return self._tables(reduce(torch.add, self._blocks(crowd)), crowd.n)

    def predicted_mse(self, summary: Crowd) -> Tensor:
        crowd = self.validate_summary(summary)
        return self._mse(crowd.n).to(crowd.counts.device)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """The same for all data and cells."""
        return self._mse(n)[..., 0, 0]
