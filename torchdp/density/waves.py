"""Fixed Fourier waves of a kernel on a public box, in up to three dimensions: weights, proved
errors, proved movement.

Points of the box differ by |z_i| <= D_i. With periods L_i > D_i Poisson's summation formula is
exact: sum_m c_m e^(2 pi i <m, z/L>) = k~(z), the kernel and its images. c_0 and the pairs +-m of
largest |c_m| are kept; C_m = 2 c_m stands for a pair. For every pair of points of the box
    |kept(z) - k(z)| <= images + tail,   tail = sum of |C_m| left out = sum over all |c_m| less
    those kept.
In the mean over uniform queries of the box, whatever users hold, by Parseval on the torus, of which
the box is the part prod D/L,
    rms <= (prod L/D sum_{left out} C_m^2/2)^(1/2) + images,   sum_m c_m^2 = mean of k~^2 over a
    period.

Movement. A point of the circle that moves by the angle a is moved by |2 sin(a/2)|: with steps s_m
for both numbers of a wave, Gamma = sup_z sum_m s_m^2 sin^2(pi <m, z/L>). Let s_m^2 <= lambda |C_m|.
No c_m is negative, so sum_kept C_m sin^2 <= sum_{m != 0} c_m sin^2 = (k~(0) - k~(z))/2 <= k~(0)/2,
as k~ >= 0, and Gamma <= lambda k~(0)/2, however many waves are kept.
Nothing of this asks that x lies in the box: points out of it cost error, not privacy.

Source: the argument above; noise of a kernel's covariance: Hall, Rinaldo, Wasserman (2013).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import SLACK, Family, drawn
from torchdp.density.gaussian import CircleFeatures
from torchdp.protocol import Objective

MOST_WAVES, MOST_DIMENSIONS = 1024, 3
REACH = {1: 1024, 2: 96, 3: 20}  # of the lattice that waves are taken from, each way
FARTHEST, TRIED = 16.0, 24  # periods that are tried: up to so many scales beyond the side
WIDEST = 1e4  # scales that a box may be wide
CANCELLED = 1e-14  # of a sum, by floats that cancel
FAR = 50.0  # scales beyond which images of kernels with tails are below every rounding
MARGIN = 1e-13  # of a sum over images, relative: for what lies beyond, and for floats


@dataclass(frozen=True)
class StationaryKernel(ABC):
    """k(x, y) = k(z), z = x - y in R^d for any d: 0 <= k <= k(0) = 1, and k does not rise in
    any |z_i|.

    With a period L_i in each coordinate let k~(z) = sum_j k(z + j L), and c_m its Fourier
    coefficients, of which Poisson's summation formula says c_m = transform(2 pi m/L)/prod L.
    scale: > 0, in units of the data. ValueError.
    """

    scale: float
    nearest: ClassVar[float] = 0.3  # scales between a box and its images, at least

    def __post_init__(self) -> None:
        checks.keep(self, scale=checks.positive)

    @abstractmethod
    def k(self, z: Tensor) -> Tensor:
        """(..., d) -> (...)."""

    @abstractmethod
    def transform(self, w: Tensor) -> Tensor:
        """int k(z) cos<w, z> dz >= 0: (..., d) -> (...)."""

    @abstractmethod
    def images(self, sides: list[float], periods: list[float]) -> float:
        """An upper bound of k~(z) - k(z) over |z_i| <= sides_i < periods_i; exact to floats where
        sides are 0.
        """

    @abstractmethod
    def energy(self, periods: list[float]) -> float:
        """The mean of k~^2 over a period, sum_m c_m^2, to floats."""


class ProductKernel(StationaryKernel):
    """A product over the coordinates."""

    @abstractmethod
    def one(self, z: Tensor) -> Tensor:
        """The factor of one coordinate."""

    @abstractmethod
    def transform_of_one(self, w: Tensor) -> Tensor:
        """Its transform."""

    @abstractmethod
    def energy_of_one(self, period: float) -> float:
        """The mean of the squared sum of its images over a period."""

    def k(self, z: Tensor) -> Tensor:
        return self.one(z).prod(-1)

    def transform(self, w: Tensor) -> Tensor:
        return self.transform_of_one(w).prod(-1)

    def images(self, sides: list[float], periods: list[float]) -> float:
        """prod (f_i + r_i) - prod f_i <= prod (1 + r_i) - 1; r_i: near images as if z_i = side,
        others as if 0.
        """
        total = 1.0
        for side, period in zip(sides, periods, strict=True):
            far = period * multiples(FAR * self.scale, period)
            total *= 1 + float(self.one(far[1:] - side).sum() + self.one(far[1:]).sum()) * (
                1 + MARGIN
            )
        return total - 1

    def energy(self, periods: list[float]) -> float:
        return math.prod(self.energy_of_one(period) for period in periods) * (1 + MARGIN)


class Gaussian(ProductKernel):
    """k(z) = exp(-||z||^2/scale^2)."""

    def one(self, z: Tensor) -> Tensor:
        return (-(z / self.scale).square()).exp()

    def transform_of_one(self, w: Tensor) -> Tensor:
        return math.sqrt(math.pi) * self.scale * (-(w * self.scale / 2).square()).exp()

    def energy_of_one(self, period: float) -> float:
        """By the autocorrelation, a Gaussian of twice the variance, at the multiples of the
        period.
        """
        far = multiples(FAR * self.scale, period) * period
        return (
            math.sqrt(math.pi / 2)
            * self.scale
            / period
            * (2 * float(self.one(far / math.sqrt(2)).sum()) - 1)
        )


class Laplacian(ProductKernel):
    """k(z) = exp(-||z||_1/scale)."""

    def one(self, z: Tensor) -> Tensor:
        return (-z.abs() / self.scale).exp()

    def transform_of_one(self, w: Tensor) -> Tensor:
        return 2 * self.scale / (1 + (w * self.scale).square())

    def energy_of_one(self, period: float) -> float:
        """By the autocorrelation (scale + |t|) e^(-|t|/scale)."""
        far = multiples(FAR * self.scale, period) * period
        return (2 * float(((self.scale + far) * self.one(far)).sum()) - self.scale) / period


class ExponentialKernel(StationaryKernel):
    """k(z) = exp(-||z||/scale), in up to three dimensions."""

    nearest: ClassVar[float] = 2.0

    def k(self, z: Tensor) -> Tensor:
        return (-torch.linalg.vector_norm(z, dim=-1) / self.scale).exp()

    def transform(self, w: Tensor) -> Tensor:
        d = w.shape[-1]
        whole = 2**d * math.pi ** ((d - 1) / 2) * math.gamma((d + 1) / 2) * self.scale**d
        return whole / (1 + (w * self.scale).square().sum(-1)) ** ((d + 1) / 2)

    def images(self, sides: list[float], periods: list[float]) -> float:
        near = [
            (period * multiples(FAR * self.scale + side, period, both=True).abs() - side).clamp_min(
                0
            )
            for side, period in zip(sides, periods, strict=True)
        ]
        return float(self.k(torch.cartesian_prod(*near).view(-1, len(near))).sum() - 1) * (
            1 + MARGIN
        )

    def energy(self, periods: list[float]) -> float:
        """By the autocorrelation, int k^2 times Matern's function of smoothness d/2 + 1."""
        d = len(periods)
        far = [period * multiples(FAR * self.scale, period, both=True) for period in periods]
        r = torch.linalg.vector_norm(torch.cartesian_prod(*far).view(-1, d), dim=-1) / self.scale
        if d == 2:
            t = r.clamp_min(1e-9)
            bessel = torch.special.modified_bessel_k0(t) + 2 / t * torch.special.modified_bessel_k1(
                t
            )
            shape, whole = torch.where(r > 0, t.square() * bessel / 2, 1.0), math.pi / 2
        else:
            shape, whole = (1 + r + (d == 3) * r.square() / 3) * (-r).exp(), {1: 1.0, 3: math.pi}[d]
        return whole * self.scale**d / math.prod(periods) * float(shape.sum()) * (1 + MARGIN)


def multiples(reach: float, period: float, both: bool = False) -> Tensor:
    """0, 1, ... up to the first beyond ``reach`` in periods; both: negative ones too."""
    count = math.ceil(reach / period) + 1
    return torch.arange(-count if both else 0, count + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Waves(Family):
    """The kernel on the box, by ``repetitions`` waves of largest weight: Q = S = 2, R = 1; nothing
    is random.

    stationary: such as ``Gaussian(0.25)``. box: (2, d) public corners, d <= 3, low and high; users
    and queries out of it are refused. The features' ``average`` and ``worst`` are proved bounds of
    their error. Raises TypeError, ValueError.
    Source: the module's argument.
    """

    bounded: ClassVar[bool] = True

    dimension: int = field(init=False)
    stationary: StationaryKernel
    box: Sequence[Sequence[float]] | Tensor

    def __post_init__(self) -> None:
        checks.instance("stationary", self.stationary, StationaryKernel)
        box = torch.as_tensor(self.box, dtype=torch.float64)
        if box.ndim != 2 or len(box) != 2 or not 1 <= box.shape[1] <= MOST_DIMENSIONS:
            raise ValueError(
                f"box must have shape (2, d), low and high corners, d = 1, 2 or 3, not {tuple(box.shape)}; "
                "take GaussianOrthogonal beyond"
            )
        if not (box.isfinite().all() and (box[1] > box[0]).all()):
            raise ValueError(
                "box must hold finite corners, the low one below the high one in every coordinate"
            )
        if float((box[1] - box[0]).max()) > WIDEST * self.stationary.scale:
            raise ValueError(
                f"box must be at most {WIDEST:g} scales of the kernel wide; take a larger scale"
            )
        object.__setattr__(self, "box", tuple(map(tuple, box.tolist())))
        object.__setattr__(self, "dimension", box.shape[1])
        super().__post_init__()

    coordinates = 2

    @property
    def movement(self) -> float:
        """A point of the circle moves by 2 at most; that of the features is less."""
        return 1.0

    @property
    def sides(self) -> list[float]:
        """D: with room for points that floats moved out of the box."""
        return [(high - low) * (1 + 2 * SLACK) for low, high in zip(*self.box, strict=True)]

    def inside(self, name: str, points: Tensor) -> Tensor:
        low, high = torch.as_tensor(self.box, dtype=torch.float64, device=points.device)
        room, exact = SLACK * (high - low), points.detach().double()
        if len(points) and not ((exact >= low - room) & (exact <= high + room)).all():
            raise ValueError(
                f"{name} must lie in the box {self.box}; clamp points to it, or state a larger public box"
            )
        return points

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "WaveFeatures":
        """Nothing is drawn: ``features`` on the generator's device."""
        repetitions, generator = drawn(repetitions, generator)
        return self.features(repetitions, device=generator.device)

    def features(
        self, count: int, objective: Objective = Objective.MEAN, device: torch.device | str = "cpu"
    ) -> "WaveFeatures":
        """So many waves, at the periods of the least bound of the mean or the worst query. Raises
        ValueError.
        """
        count = checks.integer("count", count, 1, MOST_WAVES)
        mean = checks.instance("objective", objective, Objective) is Objective.MEAN
        found = min(
            lattices(self),
            key=lambda one: (one.average if mean else one.worst)[min(count, len(one)) - 1],
        )
        return found.features(self, count, device)

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return self.stationary.k(x[..., :, None, :] - y[..., None, :, :])


@dataclass(frozen=True, eq=False)
class WaveFeatures(CircleFeatures):
    """weights: C_m, (repetitions,). average, worst: bounds of |sum - k|, root mean square and at
    any pair of points.

    whole: k~(0), the sum over all c_m.
    """

    family: Waves
    places: Tensor  # m, (repetitions, d) int64
    weights: Tensor
    first: float  # c_0
    average: float
    worst: float
    whole: float

    @property
    def constant(self) -> float:
        return self.first

    @cached_property
    def movement(self) -> float:
        return self.gamma(torch.ones(self.instances, dtype=torch.float64))

    def gamma(self, steps: Tensor) -> float:
        squares = steps.cpu().view(-1, 2).amax(1).square()
        least = float(squares.sum())
        return min(least, float((squares / self.weights.cpu().abs()).max()) * self.whole / 2)

    def share(self, x: Tensor) -> Tensor:
        return self.f(x.double())  # angles are right to 2^-40

    def f(self, x: Tensor) -> Tensor:
        low = torch.as_tensor(self.family.box[0], dtype=torch.float64, device=x.device)
        return super().f(x.double() - low)

    def g(self, y: Tensor) -> Tensor:
        return self.f(y) * (self.repetitions * self.weights.to(y.device)).repeat_interleave(2)


@dataclass(frozen=True, eq=False)
class Lattice:
    """Waves of one period, the largest |C| first, and the bounds of the first 1, 2, ... of them,
    (waves,) each.
    """

    places: Tensor
    weights: Tensor
    constant: float
    periods: tuple[float, ...]
    average: Tensor
    worst: Tensor
    whole: float

    def __len__(self) -> int:
        return len(self.weights)

    def features(
        self, family: Waves, count: int, device: torch.device | str = "cpu"
    ) -> WaveFeatures:
        """The first ``count`` of them, as a family's features."""
        count = min(count, len(self))
        frequencies = (
            self.places[:count] * (2 * math.pi / torch.tensor(self.periods, dtype=torch.float64))
        ).mT
        bounds = float(self.average[count - 1]), float(self.worst[count - 1])
        return WaveFeatures(
            family,
            count,
            frequencies.to(device),
            self.places[:count].to(device),
            self.weights[:count].to(device),
            self.constant,
            *bounds,
            self.whole,
        )


@lru_cache(maxsize=64)
def lattices(family: Waves) -> tuple[Lattice, ...]:
    """Of all periods that are tried."""
    kernel, sides = family.stationary, family.sides
    first, last = math.log10(kernel.nearest), math.log10(FARTHEST)
    extras = torch.logspace(first, last, TRIED, dtype=torch.float64) * kernel.scale
    return tuple(lattice(family, [side + extra for side in sides]) for extra in extras.tolist())


def lattice(family: Waves, periods: list[float]) -> Lattice:
    """The module's bounds, of every number of waves."""
    kernel, d, sides = family.stationary, family.dimension, family.sides
    line = torch.arange(-REACH[d], REACH[d] + 1)
    places = torch.cartesian_prod(*[line] * d).view(-1, d)
    places = places[len(places) // 2 :]  # one of each pair, 0 first
    volume = math.prod(periods)
    c = (
        kernel.transform(places * (2 * math.pi / torch.tensor(periods, dtype=torch.float64)))
        / volume
    )
    if bool((c < 0).any()):  # the movement's bound needs it
        raise ValueError(f"the transform of {type(kernel).__name__} must be nowhere negative")
    constant, C = float(c[0]), 2 * c[1:]
    order = C.abs().argsort(descending=True, stable=True)[:MOST_WAVES]
    order = order[C[order].abs() > 1e-300]
    C, places = C[order], places[1:][order]
    images = kernel.images(sides, periods)
    whole = 1 + kernel.images([0.0] * d, periods)  # k~(0)
    energy = kernel.energy(periods)
    left = (energy - constant**2 - C.square().cumsum(0) / 2).clamp_min(0) + CANCELLED * energy
    tail = (whole - abs(constant) - C.abs().cumsum(0)).clamp_min(0) + CANCELLED * whole
    average = (volume / math.prod(sides) * left).sqrt() + images
    return Lattice(places, C, constant, tuple(periods), average, tail + images, whole)
