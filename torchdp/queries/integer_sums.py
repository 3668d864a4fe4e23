"""Sums of vectors of whole numbers, by a trusted curator: counts, histograms, quantised sums."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Estimate, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.records import farthest
from torchdp.protocol.users import tensor_of
from torchdp.rounded import RoundedNormal

LONGEST = 2**20  # of a user's vector


@dataclass(frozen=True)
class IntegerSums(CuratorProtocol[Crowd]):
    """sum_u x_u + R, x_u whole numbers of l2 norm ``bound`` at most, R rounded normals: whole numbers leave.

    The error of each sum is sigma^2 + step^2/12, whatever the data. x: (n, dim), integers.

    Args:
        dim: numbers of a user.
        bound: largest l2 norm of a user's vector, up to 2^20; 1 for a histogram. The root of a whole number is rounded
            up, so that its square is no less.
        sigma: of the normals, from 1/16 to 2^28 steps. ``calibrated`` finds it.
        delta: in (0, 1), where the guarantee is stated.
        signed: whether users may hold negative numbers; histograms and counts do not, and need less noise.
        step: a power of two up to 1: the sums leave as its multiples. 1: as integers, int64.

    Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's vector, n public, of what leaves; the
        tables' distance from the distribution is in delta.
    Source: Balle, Wang (2018), Theorem 8: sum + R is the Gaussian mechanism, rounded.
    """

    dim: int
    bound: float
    sigma: float
    delta: float
    signed: bool = True
    step: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.integer("dim", self.dim, 1, 2**31 - 1))
        checks.keep(self, bound=_whole_square, delta=checks.fraction)
        checks.instance("signed", self.signed, bool)
        if not 1 <= self.bound <= LONGEST:
            raise ValueError(f"bound must be from 1 to {LONGEST}, not {self.bound:g}; count in other units")
        if checks.positive("step", self.step) > 1:
            raise ValueError(f"step must be at most 1, not {self.step:g}: sums of integers are no multiples of it")
        object.__setattr__(self, "sigma", self.noise.sigma)

    @staticmethod
    def calibrated(
        dim: int, bound: float, *, epsilon: float, delta: float, signed: bool = True, step: float = 1.0
    ) -> "IntegerSums":
        """With the least noise for (epsilon, delta). Raises ValueError, TypeError."""
        kept = checks.fraction("delta", delta) * ROUNDED
        sigma = gaussian_sigma(epsilon, kept, _diameter(_whole_square("bound", bound), dim, signed))
        return IntegerSums(dim, bound, sigma, delta, signed, step)

    @cached_property
    def noise(self) -> RoundedNormal:
        """Of each sum."""
        return RoundedNormal(self.sigma, self.step)

    @property
    def sensitivity(self) -> float:
        """Largest l2 distance of two users' vectors: they are opposite, or orthogonal, or one number is 0."""
        return _diameter(self.bound, self.dim, self.signed)

    @cached_property
    def guarantee(self) -> Guarantee:
        """At delta. Raises ValueError where epsilon is so large that the tables' distance is more than delta allows."""
        variation = self.dim * self.noise.variation
        kind = (Model.CENTRAL, Neighbours.REPLACE_ONE)
        return gaussian_guarantee(self.sigma, self.delta, self.sensitivity, *kind, variation)

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.dim,), torch.int64 if self.step == 1 else torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        noise = farthest(math.sqrt(self.noise.variance))
        return {"sum": Limits(-n * self.bound * self.signed - noise, n * self.bound + noise)}

    @property
    def held(self) -> tuple[int]:
        return (self.dim,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, dim), integers, n >= 1, of norm ``bound`` at most. Raises TypeError, ValueError."""
        x = checks.shaped("x", checks.integers("x", x), "n", *self.held, note=" with n >= 1")
        low, high = (float(end) for end in x.aminmax())
        if low < -self.bound or high > self.bound or (low < 0 and not self.signed):
            least = f"-{self.bound:g}" if self.signed else "0"
            raise ValueError(f"x must lie from {least} to {self.bound:g}; some of it does not")
        x = x.to(torch.int64)
        if int(x.square().sum(1).max()) > math.floor(Fraction(self.bound) ** 2):
            raise ValueError(
                f"x must have rows of l2 norm at most bound = {self.bound:g}; shorten those that are longer"
            )
        return x

    def validate_summary(self, summary: Crowd) -> Crowd:
        """summary, of fewer than 2^53/bound users. Raises TypeError, ValueError."""
        crowd = super().validate_summary(summary)
        many = tensor_of(crowd.n) > checks.MOST / self.bound
        if bool(many.any()):
            raise ValueError(
                f"summary must count at most 2^53/bound users{checks.at(many)}: the sums would not be exact"
            )
        return crowd

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        return Tally(summary.n, {"sum": self.noise.added(_total(summary), draws, shape)})

    def analyse(self, tally: Tally) -> Estimate:
        value = self.check(tally)["sum"].double()
        return Estimate(value, torch.full_like(value, math.sqrt(self.noise.variance)), tally.n)

    def exact(self, summary: Crowd) -> Tensor:
        return _total(self.validate_summary(summary)).double()

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """The same for all data."""
        return torch.full_like(self.exact(summary), self.noise.variance)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        checks.instance("objective", objective, Objective)
        users = tensor_of(checks.people("n", n, 1))
        return torch.full_like(users, self.noise.variance, dtype=torch.float64)


def _whole_square(name: str, bound: float) -> float:
    """``bound``, or the next float whose square is at least the whole number whose root it was rounded from."""
    bound = checks.positive(name, bound)
    whole = round(Fraction(bound) ** 2)
    if Fraction(bound) ** 2 < whole <= Fraction(math.nextafter(bound, math.inf)) ** 2:
        return math.nextafter(bound, math.inf)
    return bound


def _diameter(bound: float, dim: int, signed: bool) -> float:
    if signed:
        return 2 * bound
    return math.sqrt(2) * bound if dim > 1 else bound


def _total(crowd: Crowd) -> Tensor:
    """(*batch, dim), int64: no sum of products of so many users and such numbers overflows."""
    return (crowd.counts[..., None] * crowd.values).sum(-2)
