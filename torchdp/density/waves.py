"""Fixed Fourier waves of a kernel on a public box: weights, proved errors, proved movement.

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

MOST_WAVES = 1024
MOST_DIMENSIONS = 3

# Each way, of the lattice that waves are taken from; by dimension.
REACH = {1: 1024, 2: 96, 3: 20}

# Periods that are tried: up to so many scales beyond the side.
FARTHEST = 16.0
TRIED = 24

# Scales that a box may be wide.
WIDEST = 1e4

# Of a sum, by floats that cancel.
CANCELLED = 1e-14

# Scales beyond which images of kernels with tails are below every rounding.
FAR = 50.0

# Of a sum over images, relative: for what lies beyond, and for floats.
MARGIN = 1e-13

# Smaller weights are left out.
LEAST_WEIGHT = 1e-300


@dataclass(frozen=True)
class StationaryKernel(ABC):
    """k(x, y) = k(z), z = x - y: 0 <= k <= k(0) = 1, and k does not rise in any |z_i|.

    With a period L_i in each coordinate let k~(z) = sum_j k(z + j L), and c_m its Fourier
    coefficients, of which Poisson's summation formula says c_m = transform(2 pi m/L)/prod L.
    scale: > 0, in units of the data. ValueError.
    """

    scale: float

    # Scales between a box and its images, at least.
    nearest: ClassVar[float] = 0.3

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
        """A bound of k~(z) - k(z) over |z_i| <= sides_i < periods_i; exact where sides are 0."""

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
        """prod (f_i + r_i) - prod f_i <= prod (1 + r_i) - 1, f_i the factors, r_i their images."""
        total = 1.0
        for side, period in zip(sides, periods, strict=True):
            far = period * multiples(FAR * self.scale, period)[1:]
            # Images on one side as if z_i = side, on the other as if z_i = 0.
            from_side = self.one(far - side).sum()
            images = float(from_side + self.one(far).sum())
            total *= 1 + images * (1 + MARGIN)
        return total - 1

    def energy(self, periods: list[float]) -> float:
        return math.prod(self.energy_of_one(period) for period in periods) * (1 + MARGIN)


class Gaussian(ProductKernel):
    """k(z) = exp(-||z||^2/scale^2)."""

    def one(self, z: Tensor) -> Tensor:
        return (-(z / self.scale).square()).exp()

    def transform_of_one(self, w: Tensor) -> Tensor:
        half = w * self.scale / 2
        return math.sqrt(math.pi) * self.scale * (-half.square()).exp()

    def energy_of_one(self, period: float) -> float:
        """By the autocorrelation, a Gaussian of twice the variance, at multiples of the period."""
        far = multiples(FAR * self.scale, period) * period
        autocorrelation = self.one(far / math.sqrt(2))
        half = float(autocorrelation.sum())
        # int k^2 over the period; ``half`` holds the multiple 0 and those of one side.
        without_images = math.sqrt(math.pi / 2) * self.scale / period
        return without_images * (2 * half - 1)


class Laplacian(ProductKernel):
    """k(z) = exp(-||z||_1/scale)."""

    def one(self, z: Tensor) -> Tensor:
        return (-z.abs() / self.scale).exp()

    def transform_of_one(self, w: Tensor) -> Tensor:
        return 2 * self.scale / (1 + (w * self.scale).square())

    def energy_of_one(self, period: float) -> float:
        """By the autocorrelation (scale + |t|) e^(-|t|/scale)."""
        far = multiples(FAR * self.scale, period) * period
        autocorrelation = (self.scale + far) * self.one(far)
        half = float(autocorrelation.sum())
        return (2 * half - self.scale) / period


class ExponentialKernel(StationaryKernel):
    """k(z) = exp(-||z||/scale), in up to three dimensions."""

    nearest: ClassVar[float] = 2.0

    def k(self, z: Tensor) -> Tensor:
        distance = torch.linalg.vector_norm(z, dim=-1)
        return (-distance / self.scale).exp()

    def transform(self, w: Tensor) -> Tensor:
        d = w.shape[-1]
        power = (d + 1) / 2
        of_scale_1 = 2**d * math.pi ** ((d - 1) / 2) * math.gamma(power)
        at_0 = of_scale_1 * self.scale**d
        squares = (w * self.scale).square().sum(-1)
        return at_0 / (1 + squares) ** power

    def images(self, sides: list[float], periods: list[float]) -> float:
        near = []
        for side, period in zip(sides, periods, strict=True):
            far = period * multiples(FAR * self.scale + side, period, both=True)
            near.append((far.abs() - side).clamp_min(0))
        nearest = torch.cartesian_prod(*near).view(-1, len(near))
        # All but the kernel itself, 1 where z = 0.
        images = self.k(nearest).sum() - 1
        return float(images) * (1 + MARGIN)

    def energy(self, periods: list[float]) -> float:
        """By the autocorrelation, int k^2 times Matern's function of smoothness d/2 + 1."""
        d = len(periods)
        far = [period * multiples(FAR * self.scale, period, both=True) for period in periods]
        points = torch.cartesian_prod(*far).view(-1, d)
        r = torch.linalg.vector_norm(points, dim=-1) / self.scale
        # int k^2 of scale 1, and Matern's function of r.
        if d == 1:
            square = 1.0
            matern = (1 + r) * (-r).exp()
        elif d == 2:
            square = math.pi / 2
            t = r.clamp_min(1e-9)
            k0 = torch.special.modified_bessel_k0(t)
            k1 = torch.special.modified_bessel_k1(t)
            # r^2 K_2(r)/2, which tends to 1 at 0
            bessel = t.square() * (k0 + 2 / t * k1) / 2
            matern = torch.where(r > 0, bessel, 1.0)
        else:
            square = math.pi
            matern = (1 + r + r.square() / 3) * (-r).exp()
        mean = square * self.scale**d / math.prod(periods)
        return mean * float(matern.sum()) * (1 + MARGIN)


def multiples(reach: float, period: float, both: bool = False) -> Tensor:
    """0, 1, ... up to the first beyond ``reach`` in periods; both: negative ones too."""
    count = math.ceil(reach / period) + 1
    return torch.arange(-count if both else 0, count + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Waves(Family):
    """The kernel on the box, by ``repetitions`` waves of largest weight: Q = S = 2, R = 1.

    Args:
        stationary: such as ``Gaussian(0.25)``.
        box: (2, d) public corners, d <= 3, low and high; users and queries out of it are refused.

    Nothing is random. The features' ``average`` and ``worst`` are proved bounds of their error.
    Raises TypeError, ValueError.
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
                "box must have shape (2, d), low and high corners, d = 1, 2 or 3, not "
                f"{tuple(box.shape)}; take GaussianOrthogonal beyond"
            )
        low, high = box
        if not (box.isfinite().all() and (high > low).all()):
            raise ValueError(
                "box must hold finite corners, the low one below the high one in every coordinate"
            )
        if float((high - low).max()) > WIDEST * self.stationary.scale:
            raise ValueError(
                f"box must be at most {WIDEST:g} scales of the kernel wide; take a larger scale"
            )
        object.__setattr__(self, "box", tuple(map(tuple, box.tolist())))
        object.__setattr__(self, "dimension", box.shape[1])
        super().__post_init__()

    coordinates = 2

    @property
    def movement(self) -> float:
        """A point of the circle moves by 2 at most; features move less."""
        return 1.0

    @property
    def sides(self) -> list[float]:
        """D: with room for points that floats moved out of the box."""
        return [(high - low) * (1 + 2 * SLACK) for low, high in zip(*self.box, strict=True)]

    def inside(self, name: str, points: Tensor) -> Tensor:
        low, high = torch.as_tensor(self.box, dtype=torch.float64, device=points.device)
        slack = SLACK * (high - low)
        exact = points.detach().double()
        inside = (exact >= low - slack) & (exact <= high + slack)
        if not inside.all():
            raise ValueError(
                f"{name} must lie in the box {self.box}; clamp points to it, or state a larger "
                "public box"
            )
        return points

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "WaveFeatures":
        """Nothing is drawn: ``features`` on the generator's device."""
        repetitions, generator = drawn(repetitions, generator)
        return self.features(repetitions, device=generator.device)

    def features(
        self, count: int, objective: Objective = Objective.MEAN, device: torch.device | str = "cpu"
    ) -> "WaveFeatures":
        """So many waves, at the periods of least bound of the mean or the worst query's error.

        Raises ValueError.
        """
        count = checks.integer("count", count, 1, MOST_WAVES)
        mean = checks.instance("objective", objective, Objective) is Objective.MEAN
        best = min(lattices(self), key=lambda lattice: lattice.bound(count, mean))
        return best.features(self, count, device)

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        return self.stationary.k(x[..., :, None, :] - y[..., None, :, :])


@dataclass(frozen=True, eq=False)
class WaveFeatures(CircleFeatures):
    """Waves of a family.

    Args:
        places: m, (repetitions, d) int64.
        weights: C_m, (repetitions,).
        first: c_0.
        average: bound of the root mean square of |sum - k| over queries.
        worst: bound of |sum - k| at any pair of points.
        whole: k~(0), the sum over all c_m.
    """

    family: Waves
    places: Tensor
    weights: Tensor
    first: float
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
        # A wave's cosine and sine move by at most the larger of their steps.
        larger = steps.cpu().view(-1, 2).amax(1)
        squares = larger.square()
        ratios = squares / self.weights.cpu()
        scale = float(ratios.max())  # lambda
        return min(float(squares.sum()), scale * self.whole / 2)

    def f(self, x: Tensor) -> Tensor:
        low = torch.as_tensor(self.family.box[0], dtype=torch.float64, device=x.device)
        return super().f(x.double() - low)  # angles are right to 2^-40

    def g(self, y: Tensor) -> Tensor:
        weights = self.repetitions * self.weights.to(y.device)
        return self.f(y) * weights.repeat_interleave(2)


@dataclass(frozen=True, eq=False)
class Lattice:
    """Waves of one period, the largest |C| first.

    Args:
        places: m, (waves, d) int64.
        weights: C_m, (waves,).
        constant: c_0.
        periods: L, d of them.
        average, worst: bounds of the errors of the first 1, 2, ... waves, (waves,).
        whole: k~(0).
    """

    places: Tensor
    weights: Tensor
    constant: float
    periods: tuple[float, ...]
    average: Tensor
    worst: Tensor
    whole: float

    def bound(self, count: int, mean: bool) -> float:
        """Of the error of ``count`` waves, or of all, in the mean or at worst."""
        bounds = self.average if mean else self.worst
        return float(bounds[min(count, len(bounds)) - 1])

    def features(
        self, family: Waves, count: int, device: torch.device | str = "cpu"
    ) -> WaveFeatures:
        """The first ``count`` of them, as a family's features."""
        count = min(count, len(self.weights))
        places = self.places[:count]
        angles = places * (2 * math.pi / torch.tensor(self.periods, dtype=torch.float64))
        return WaveFeatures(
            family,
            count,
            angles.mT.to(device),
            places.to(device),
            self.weights[:count].to(device),
            self.constant,
            self.bound(count, mean=True),
            self.bound(count, mean=False),
            self.whole,
        )


@lru_cache(maxsize=64)
def lattices(family: Waves) -> tuple[Lattice, ...]:
    """Of all periods that are tried."""
    kernel = family.stationary
    nearest = math.log10(kernel.nearest)
    extras = torch.logspace(nearest, math.log10(FARTHEST), TRIED, dtype=torch.float64)
    extras *= kernel.scale
    return tuple(
        lattice(family, [side + extra for side in family.sides]) for extra in extras.tolist()
    )


def lattice(family: Waves, periods: list[float]) -> Lattice:
    """The module's bounds, of every number of waves. Raises ValueError."""
    kernel = family.stationary
    d = family.dimension
    sides = family.sides
    line = torch.arange(-REACH[d], REACH[d] + 1)
    places = torch.cartesian_prod(*[line] * d).view(-1, d)
    places = places[len(places) // 2 :]  # one of each pair, 0 first
    volume = math.prod(periods)
    frequencies = places * (2 * math.pi / torch.tensor(periods, dtype=torch.float64))
    c = kernel.transform(frequencies) / volume
    if (c < 0).any():  # the movement's bound needs it
        raise ValueError(f"the transform of {type(kernel).__name__} must be nowhere negative")
    constant = float(c[0])
    C = 2 * c[1:]
    order = C.argsort(descending=True, stable=True)[:MOST_WAVES]
    order = order[C[order] > LEAST_WEIGHT]
    C = C[order]
    images = kernel.images(sides, periods)
    whole = 1 + kernel.images([0.0] * d, periods)  # k~(0)
    energy = kernel.energy(periods)
    # What is left out, by subtraction from sums over all m, and what floats lose by that.
    kept = C.square().cumsum(0) / 2
    energy_left = (energy - constant**2 - kept).clamp_min(0)
    energy_left += CANCELLED * energy
    tail = (whole - constant - C.cumsum(0)).clamp_min(0)
    tail += CANCELLED * whole
    average = (volume / math.prod(sides) * energy_left).sqrt() + images
    return Lattice(places[1:][order], C, constant, tuple(periods), average, tail + images, whole)
