"""The inner product kernel on the unit ball, randomised Hadamard rotations, and projections by them.

Notation: D, a power of two, rows of Sylvester's matrix H; s random signs; z = H diag(s) x/sqrt(D);
m the numbers that a projection keeps.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.linalg import hadamard
from torch import Tensor

from torchdp import checks
from torchdp.density.family import SLACK, Family, Features, drawn, in_ball
from torchdp.density.gaussian import GaussianFourier, GaussianSquareWave
from torchdp.draws import Draws, Shape, Simulated


def power_of_two(size: int) -> int:
    """The least power of two that is at least ``size``."""
    return 1 << (size - 1).bit_length()


def rotate(x: Tensor, signs: Tensor) -> Tensor:
    """H diag(signs) x / sqrt(D), x padded with zeros: (..., d), (D,) -> (..., D), an isometry.

    H is the Kronecker product of two matrices of about sqrt(D) rows: O(D^{3/2}), by matrix
    products.
    """
    d = x.shape[-1]
    size = signs.shape[-1]
    rows = 1 << ((size - 1).bit_length() // 2)
    columns = size // rows
    # H of D rows is the product of that of ``rows`` and that of ``columns``, by which a matrix is
    # multiplied on either side.
    signed = x * signs[..., :d].to(x)
    padded = torch.nn.functional.pad(signed, (0, size - d))
    matrix = padded.unflatten(-1, (rows, columns))
    left = _sylvester(rows).to(x)
    right = _sylvester(columns).to(x)
    return (left @ matrix @ right).flatten(-2)


def random_signs(shape: Shape, generator: torch.Generator) -> Tensor:
    """Fair signs +-1, float64."""
    bits = torch.randint(0, 2, shape, device=generator.device, generator=generator)
    return 2 * bits.double() - 1


@cache
def _sylvester(size: int) -> Tensor:
    """H/sqrt(D)."""
    return torch.from_numpy(hadamard(size, np.float64) / math.sqrt(size))


@dataclass(frozen=True)
class Projected(Family):
    """A Gaussian family on m = ``family.dimension`` numbers of a longer vector: sqrt(D/m) z_rows.

    D >= dimension, m of the rows chosen at random:
    O(D^{3/2}) for a vector and then O(m repetitions), in the place of O(dimension repetitions). One
    projection serves all repetitions.

    With t the squared distance after the projection and t0 = ||x - y||^2/bandwidth^2 before, E t =
    t0 and E (t - t0)^2 <= t0^2 v, v = (2/m)(D - m)/(D - 1). By Taylor's formula 0 <= E e^-t -
    e^-t0 = E (t - t0)^2 int_0^1 (1 - u) e^{-t0 - u (t - t0)} du <= v t0^2 int_0^1 (1 - u)
    e^{-t0 (1 - u)} du <= v, by t >= 0: the bias is at most v.

    dimension >= family.dimension. Raises ValueError, TypeError.
    Guarantees: 0 <= E <f(x), g(y)> - k(x, y) <= bias.
    Source: Ailon, Chazelle (2009); Tropp (2011); Wagner (2025), Theorem 3.2's proof; the bias as
    above.
    """

    family: GaussianFourier | GaussianSquareWave

    def __post_init__(self) -> None:
        super().__post_init__()
        # Others bound norms first.
        if not isinstance(self.family, GaussianFourier | GaussianSquareWave):
            kind = type(self.family).__name__
            raise TypeError(f"family must be a GaussianFourier or a GaussianSquareWave, not {kind}")
        checks.integer("dimension", self.dimension, self.family.dimension)

    @property
    def bound(self) -> float:
        return self.family.bound

    @property
    def bias(self) -> float:
        D = power_of_two(self.dimension)
        m = self.family.dimension
        # At D = 1 nothing is left out.
        return 2 / m * (D - m) / max(1, D - 1)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "ProjectedFeatures":
        inner = self.family.draw(repetitions, generator=generator)
        size = power_of_two(self.dimension)
        signs = random_signs((size,), generator)
        order = torch.randperm(size, device=generator.device, generator=generator)
        rows = order[: self.family.dimension]
        return ProjectedFeatures(self, repetitions, inner, signs, rows)

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return self.family.k(x, y)


@dataclass(frozen=True, eq=False)
class ProjectedFeatures(Features):
    """inner: features of the projected vectors; signs: (D,); rows: (m,) of D."""

    inner: Features
    signs: Tensor
    rows: Tensor

    @property
    def rounding(self) -> float:
        return self.inner.rounding

    @property
    def numbers(self) -> int:
        return max(self.inner.numbers, len(self.signs))

    def project(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, m)."""
        scale = math.sqrt(len(self.signs) / len(self.rows))
        return rotate(x, self.signs)[:, self.rows] * scale

    def f(self, x: Tensor) -> Tensor:
        return self.inner.f(self.project(x))

    def g(self, y: Tensor) -> Tensor:
        return self.inner.g(self.project(y))

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        return self.inner.bits(self.project(x), draws)

    def ones(self, x: Tensor, draws: Simulated, shape: Shape) -> Tensor:
        total = x.new_zeros(*shape, self.instances, dtype=torch.int64)
        for part in self.parts(x):
            total += self.inner.ones(self.project(part), draws, shape)
        return total


@dataclass(frozen=True)
class InnerProductFamily(Family):
    """k(x, y) = <x, y> for users' vectors of norm at most 1; its mean is <mean of x, y>."""

    @property
    def movement(self) -> float:
        """Unit vectors change by 2 in norm at most: sum_j (f_j - f_j')^2/(4 R^2) <= 1/R^2."""
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
        repetitions, generator = drawn(repetitions, generator)
        return IdentityFeatures(self, repetitions)


@dataclass(frozen=True, eq=False)
class IdentityFeatures(Features):
    """The coordinates themselves, ``repetitions`` times."""

    def f(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.repetitions)


@dataclass(frozen=True)
class InnerProductRotated(InnerProductFamily):
    """f(x) = z clipped to [-R, R], g(y) unclipped: Q = S = D >= d, R = width/sqrt(D).

    A coordinate of z
    has a variance of at most 1/D, so that a small range is enough, and the rounding noise shrinks
    with it: R is 1 for the plain coordinates. What is clipped of one coordinate has a second moment
    of at most int_R^inf 2 (t - R) 2 e^{-D t^2/2} dt (Hoeffding), and by Cauchy and Schwarz
    for ||y|| <= 1

        bias^2 <= 4 (e^{-w^2/2} - w int_w^inf e^{-t^2/2} dt),  w = width.

    R is 1, and nothing is clipped, where width >= sqrt(D). dimension >= 1; width > 0. Raises
    ValueError.

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
        # No coordinate is beyond 1: a rotation keeps the norm.
        return min(1.0, self.width / math.sqrt(self.coordinates))

    @property
    def bias(self) -> float:
        if self.bound == 1:
            return 0.0
        # The integral of e^{-t^2/2} from w on.
        tail = math.sqrt(math.pi / 2) * math.erfc(self.width / math.sqrt(2))
        square = math.exp(-(self.width**2) / 2) - self.width * tail
        return 2 * math.sqrt(square)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "RotatedFeatures":
        repetitions, generator = drawn(repetitions, generator)
        signs = random_signs((repetitions, self.coordinates), generator)
        return RotatedFeatures(self, repetitions, signs)


@dataclass(frozen=True, eq=False)
class RotatedFeatures(Features):
    """signs: (repetitions, D)."""

    signs: Tensor

    def share(self, x: Tensor) -> Tensor:
        # Chances are sums of products: in float64 their errors do not count.
        return super().share(x.double())

    def most(self, steps: Tensor) -> float:
        """By Cauchy and Schwarz in each repetition, whose f has norm 1 at most."""
        lengths = steps.view(self.repetitions, -1).norm(dim=1)
        # Vectors are admitted up to a norm of 1 + SLACK.
        largest = lengths.sum() * (1 + SLACK) / self.bound
        return min(float(steps.sum()), float(steps.sum() + largest) / 2)

    def f(self, x: Tensor) -> Tensor:
        return self.g(x).clamp_(-self.bound, self.bound)

    def g(self, y: Tensor) -> Tensor:
        return rotate(y[:, None], self.signs).flatten(1)
