"""The inner product kernel on the unit ball."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import SLACK, Family, Features, drawn, in_ball
from torchdp.density.projection import power_of_two, random_signs, rotate


@dataclass(frozen=True)
class InnerProductFamily(Family):
    """k(x, y) = <x, y> for users' vectors of norm at most 1: the mean over users is <mean of x, y>."""

    @property
    def movement(self) -> float:
        """Coordinates of unit vectors change by 2 in norm at most: sum_j (f_j - f_j')^2/(4 R^2) <= 1/R^2."""
        return min(float(self.support), ((1 + SLACK) / self.bound) ** 2)

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y.mT

    def inside(self, name: str, points: Tensor) -> Tensor:
        return in_ball(name, points, 1.0, "divide each by its norm, or all by a public bound")


@dataclass(frozen=True)
class InnerProduct(InnerProductFamily):
    """f(x) = x, g(y) = y: Q = S = d, R = 1, no bias and no randomness. Raises ValueError.

    Source: Wagner (2025), section 4, the trivial family.
    """

    @property
    def coordinates(self) -> int:
        return self.dimension

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "IdentityFeatures":
        """The generator is not used; repetitions round the same coordinates anew."""
        return IdentityFeatures(self, drawn(repetitions, generator)[0])


@dataclass(frozen=True, eq=False)
class IdentityFeatures(Features):
    """The coordinates themselves, ``repetitions`` times."""

    def f(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.repetitions)

    def g(self, y: Tensor) -> Tensor:
        return y.repeat(1, self.repetitions)


@dataclass(frozen=True, eq=False)
class LinearFeatures(Features):
    """Sums of products with x: chances are computed in float64, where their errors do not count."""

    def share(self, x: Tensor) -> Tensor:
        return super().share(x.double())


@dataclass(frozen=True)
class InnerProductRotated(InnerProductFamily):
    """f(x) = z clipped to [-R, R], g(y) unclipped, z = H diag(s) x/sqrt(D): Q = S = D, R = width/sqrt(D).

    s are random signs, H is Sylvester's matrix of D >= d rows, a power of two. A coordinate of z has a variance of at
    most 1/D, so that a small range is enough, and the rounding noise shrinks with it: R is 1 for the plain coordinates.
    What is clipped of one coordinate has a second moment of at most int_R^inf 2 (t - R) 2 e^{-D t^2/2} dt (Hoeffding),
    and by Cauchy and Schwarz for ||y|| <= 1

        bias^2 <= 4 (e^{-w^2/2} - w int_w^inf e^{-t^2/2} dt),  w = width.

    R is 1, and nothing is clipped, where width >= sqrt(D). dimension >= 1; width > 0. Raises ValueError.

    Guarantees: |E <f(x), g(y)> - <x, y>| <= bias ||y||.
    Source: Ailon, Chazelle (2009), the rotation; the range and its bias: the argument above.
    """

    width: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, width=checks.positive)

    @property
    def coordinates(self) -> int:
        return power_of_two(self.dimension)

    @property
    def bound(self) -> float:
        return min(1.0, self.width / math.sqrt(self.coordinates))

    @property
    def bias(self) -> float:
        if self.bound == 1:
            return 0.0
        tail = math.sqrt(math.pi / 2) * math.erfc(self.width / math.sqrt(2))
        return 2 * math.sqrt(math.exp(-(self.width**2) / 2) - self.width * tail)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "RotatedFeatures":
        repetitions, generator = drawn(repetitions, generator)
        return RotatedFeatures(self, repetitions, random_signs((repetitions, self.coordinates), generator))


@dataclass(frozen=True, eq=False)
class RotatedFeatures(LinearFeatures):
    """signs: (repetitions, D)."""

    signs: Tensor

    def most(self, steps: Tensor) -> float:
        """By Cauchy and Schwarz in each repetition, whose f has norm 1 at most."""
        lengths = steps.view(self.repetitions, -1).norm(dim=1)
        return min(float(steps.sum()), float(steps.sum() + lengths.sum() * (1 + SLACK) / self.bound) / 2)

    def f(self, x: Tensor) -> Tensor:
        return self.g(x).clamp_(-self.bound, self.bound)

    def g(self, y: Tensor) -> Tensor:
        return rotate(y[:, None], self.signs).flatten(1)
