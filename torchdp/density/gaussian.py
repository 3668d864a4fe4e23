"""The Gaussian kernel: random Fourier features, their square waves, and orthogonal frequencies."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import (
    SLACK,
    TURN,
    Family,
    Features,
    SignFeatures,
    drawn,
    fused,
    fused_ones,
    fused_positive,
    in_ball,
)
from torchdp.draws import Shape, Simulated
from torchdp.root import between

# Multipliers that are tried at once, and how often, ever closer to the best.
POINTS = 16
CLOSER = 4

# Radians; further out nothing is gained, and squares overflow.
FARTHEST = 1e100

# Relative: what floats may lose of a bound.
ROUNDING = 1e-9

# The least length of a wave: 0 has no inverse.
LEAST_LENGTH = 1e-300


@dataclass(frozen=True)
class GaussianKernel(Family):
    """k(x, y) = exp(-||x - y||^2 / bandwidth^2), from frequencies w ~ N(0, 2/bandwidth^2 I)."""

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, bandwidth=checks.positive)

    def k(self, x: Tensor, y: Tensor) -> Tensor:
        squares = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
        return torch.exp(-squares / self.bandwidth**2)

    def _waves(self, repetitions: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Independent frequencies (d, repetitions) and phases (repetitions,)."""
        repetitions, generator = drawn(repetitions, generator)
        device = generator.device
        shape = (self.dimension, repetitions)
        normal = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        turns = torch.rand(repetitions, dtype=torch.float64, device=device, generator=generator)
        return normal * (math.sqrt(2) / self.bandwidth), turns * TURN


@dataclass(frozen=True)
class GaussianFourier(GaussianKernel):
    """f(x) = g(x) = sqrt(2) cos(<w, x> + b), b uniform on [0, 2 pi): Q = S = 1, R = sqrt(2).

    No bias. dimension >= 1, bandwidth > 0. Raises ValueError.
    Source: Rahimi, Recht (2007); Wagner (2025), section 2.3.
    """

    @property
    def bound(self) -> float:
        return math.sqrt(2)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "FourierFeatures":
        frequencies, phases = self._waves(repetitions, generator)
        return FourierFeatures(self, repetitions, frequencies, phases)


@dataclass(frozen=True, eq=False)
class FourierFeatures(Features):
    """frequencies: (d, repetitions); phases: (repetitions,)."""

    frequencies: Tensor
    phases: Tensor

    def f(self, x: Tensor) -> Tensor:
        return self.share(x).mul_(self.bound)

    def share(self, x: Tensor) -> Tensor:
        return waves(x, self.frequencies, self.phases)

    def ones(self, x: Tensor, draws: Simulated, shape: Shape) -> Tensor:
        if not fused(x):
            return super().ones(x, draws, shape)
        return fused_ones(x, self.frequencies, self.phases[None], draws, shape)


@dataclass(frozen=True)
class GaussianSquareWave(GaussianKernel):
    """f(x) = sign cos(<w, x> + b), g(y) = (pi/2) cos(<w, y> + b), b uniform on [0, 2 pi).

    Q = S = R = 1, no bias. The square wave is (4/pi)(cos t - cos(3t)/3 + cos(5t)/5 - ...), and over the phase b all its
    terms but the first are orthogonal to g: E f(x) g(y) = (pi/2)(4/pi)(1/2) E cos <w, x - y> =
    k(x, y). Only f needs a bound; among all f in [-1, 1] the square wave has the largest first
    coefficient, so E g^2 = pi^2/8 is the least that cosines allow. A sign is one bit already:
    against GaussianFourier nothing is rounded, and the variance of the privacy noise is pi^2/16 =
    0.62 times.

    dimension >= 1, bandwidth > 0. Raises ValueError.
    Source: Schellekens, Jacques (2020), asymmetric random periodic features.
    """

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "SquareWaveFeatures":
        frequencies, phases = self._waves(repetitions, generator)
        return SquareWaveFeatures(self, repetitions, frequencies, phases)


@dataclass(frozen=True, eq=False)
class SquareWaveFeatures(SignFeatures):
    """frequencies: (d, repetitions); phases: (repetitions,)."""

    frequencies: Tensor
    phases: Tensor

    def positive(self, x: Tensor) -> Tensor:
        frequencies = self.frequencies.to(x) / TURN
        phases = self.phases.to(x) / TURN
        turns = torch.addmm(phases, x, frequencies)
        # The cosine is positive within a quarter of a turn from a whole one.
        return turns.sub_(turns.round()).abs_() < 0.25

    def ones(self, x: Tensor, draws: Simulated, shape: Shape) -> Tensor:
        if not fused(x):
            return super().ones(x, draws, shape)
        count = fused_positive(x, self.frequencies, self.phases[None])
        return count.expand(*shape, self.instances)

    def g(self, y: Tensor) -> Tensor:
        return waves(y, self.frequencies, self.phases).mul_(math.pi / 2)


def waves(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """cos(<w_i, x> + b_i): (n, d) -> (n, repetitions). An angle that overflows counts as 0."""
    angles = torch.addmm(phases.to(x), x, frequencies.to(x))
    return angles.nan_to_num_(0.0, 0.0, 0.0).cos_()


@dataclass(frozen=True)
class GaussianOrthogonal(GaussianKernel):
    """f(x) = g(x) = (cos <w, x>, sin <w, x>), with orthogonal w: Q = S = 2, R = 1, no bias.

    <f(x), g(y)> = cos <w, x - y>, and E cos <w, x - y> = exp(-||x - y||^2/bandwidth^2) for w =
    (sqrt(2)/bandwidth) r u, r^2 chi-squared of d degrees, u uniform on the sphere: a normal
    frequency. The u of up to d repetitions are the columns of one Haar orthogonal matrix, so sum_i
    <u_i, x - y>^2 is nearly fixed and the mean over the repetitions varies much less than that of
    independent frequencies; beyond d repetitions, further matrices. Against GaussianFourier at the
    same number of bits: no random phase, which adds variance, and errors of the frequencies that
    cancel. What is known in closed form is each repetition's moments, not those of the mean.

    Args:
        dimension: d >= 1.
        bandwidth: > 0.
        radius: > 0: users' vectors have norms up to it, others are refused; where it is below about
            one bandwidth they move less, and less noise hides them (``movement`` of the features).

    Raises ValueError.
    Source: Yu, Suresh, Choromanski, Holtmann-Rice, Kumar (2016), orthogonal random features.
    """

    radius: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius != math.inf:
            checks.keep(self, radius=checks.positive)

    coordinates = 2
    support = 2

    @property
    def movement(self) -> float:
        """Points of the circle move by 2 at most: (f - f')^2/4 adds up to 1, not 2."""
        return 1.0

    def inside(self, name: str, points: Tensor) -> Tensor:
        return in_ball(name, points, self.radius, "the radius; scale them, or state a larger one")

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "OrthogonalFeatures":
        repetitions, generator = drawn(repetitions, generator)
        d = self.dimension
        shape = (-(-repetitions // d), d, d)
        normal = torch.randn(
            shape, dtype=torch.float64, device=generator.device, generator=generator
        )
        q, r = torch.linalg.qr(normal)
        # The signs make q Haar distributed.
        signs = torch.linalg.diagonal(r).sign()
        haar = q * signs[:, None]
        directions = haar.transpose(0, 1).flatten(1)[:, :repetitions]
        halves = normal.new_full((repetitions,), d / 2)
        squares = 2 * torch._standard_gamma(halves, generator=generator)
        frequencies = directions * squares.sqrt() * (math.sqrt(2) / self.bandwidth)
        return OrthogonalFeatures(self, repetitions, frequencies)


@dataclass(frozen=True, eq=False)
class CircleFeatures(Features):
    """Numbers 2 i and 2 i + 1 are cosine and sine of repetition i; frequencies: (d, repetitions)."""

    frequencies: Tensor

    def f(self, x: Tensor) -> Tensor:
        # Overflow too must stay on the circle.
        angles = x @ self.frequencies.to(x)
        angles.nan_to_num_(0.0, 0.0, 0.0)
        return torch.stack([angles.cos(), angles.sin()], -1).flatten(-2)

    def gamma(self, steps: Tensor) -> float:
        """At most the larger step of each pair, squared, times that of the points."""
        # (cos a - cos b)^2 + (sin a - sin b)^2 = 4 sin^2((a - b)/2)
        larger = steps.view(-1, 2).amax(1)
        return min(float(larger.max()) ** 2 * self.movement, float(larger.square().sum()))

    def most(self, steps: Tensor) -> float:
        """By s cos a + t sin a <= (s^2 + t^2)^{1/2}."""
        lengths = steps.view(-1, 2).norm(dim=1)
        return float(steps.sum() + lengths.sum()) / 2


@dataclass(frozen=True, eq=False)
class OrthogonalFeatures(CircleFeatures):
    """Of ``GaussianOrthogonal``."""

    family: GaussianOrthogonal

    @cached_property
    def movement(self) -> float:
        """sup sum_i sin^2(<w_i, x - x'>/2) over the ball; exact for up to d orthogonal w_i.

        Of d frequencies at a time, lengths l_i, directions U: a_i = <w_i, x - x'> has sum
        a_i^2/l_i^2 <= ||U||_2^2 (2 radius)^2 = B, which orthogonal ones attain. So for each
        multiplier m >= 0 the sum is at most m B + sum_i max_a (sin^2(a/2) - m a^2/l_i^2): concave
        in a^2 on [0, pi^2], greatest where sin(a)/a = 4 m/l_i^2. The least over a grid of m counts;
        angles are computed in float64, and slack for that is added.

        Guarantees: an upper bound over all x, x' of norm at most ``radius``.
        """
        radius = self.family.radius * (1 + SLACK)
        waves = self.frequencies.double()
        longest = float(waves.norm(dim=0).max())
        if not radius * longest < FARTHEST:
            return float(self.repetitions)
        most = float(_most(waves, self.family.dimension, 2 * radius).sum())
        rounding = (len(waves) + 8) * 2.0**-52 * radius * longest  # of an angle
        slack = rounding * math.sqrt(self.repetitions)
        return min(float(self.repetitions), (math.sqrt(most) + slack) ** 2)

    def share(self, x: Tensor) -> Tensor:
        """In float64 where angles bound the movement."""
        return self.f(x if math.isinf(self.family.radius) else x.double())

    def ones(self, x: Tensor, draws: Simulated, shape: Shape) -> Tensor:
        if not fused(x):
            return super().ones(x, draws, shape)
        # sin t = cos(t - pi/2)
        phases = self.frequencies.new_tensor([[0.0], [-math.pi / 2]])
        phases = phases.expand(2, self.repetitions)
        return fused_ones(x, self.frequencies, phases, draws, shape)


def _most(waves: Tensor, size: int, distance: float) -> Tensor:
    """Upper bounds of sum_i sin^2(<w_i, z>/2) over ||z|| <= distance, of each ``size`` waves.

    By weak duality: see ``movement``. The bound is convex in the multiplier: the best of a grid
    lies next to the best of all.

    Args:
        waves: w_i, (d, repetitions).
        size: waves of a block.
        distance: largest ||z||.
    """
    # Waves of length 0 fill the last block: they gain nothing.
    padded = torch.nn.functional.pad(waves, (0, -waves.shape[1] % size))
    blocks = padded.unflatten(1, (-1, size)).transpose(0, 1)  # (blocks, d, size)
    lengths = blocks.norm(dim=1)
    real = lengths > 0
    longest = lengths.amax(1, keepdim=True).clamp_min(LEAST_LENGTH)
    lengths = torch.where(real, lengths, longest)
    directions = blocks / lengths[:, None]
    stretch = torch.linalg.matrix_norm(directions, ord=2) * (1 + ROUNDING)  # ||U||_2
    B = (stretch * distance).square()[:, None]
    fractions = torch.linspace(0, 1, POINTS, dtype=torch.float64, device=waves.device)
    # Best angles of the longest wave of each block stand for multipliers, in half turns.
    start = torch.zeros_like(stretch)
    end = torch.ones_like(stretch)
    best = real.sum(1).double()
    for _ in range(CLOSER):
        angles = start[:, None] + (end - start)[:, None] * fractions
        multiplier = longest.square() / 4 * torch.sinc(angles).clamp_min(0)  # (blocks, POINTS)
        # 4 m/l^2, which is sin(a)/a at the best a, 0 from 1 on.
        slope = 4 * multiplier[..., None] / lengths[:, None].square()
        a = _best_angles(slope)
        sines = (a / 2).sin()
        gains = sines.square() - slope / 4 * a.square()
        gained = (gains * real[:, None]).sum(2)
        bound, at = (multiplier * B + gained).min(1)
        best = torch.minimum(best, bound * (1 + ROUNDING))
        near = torch.stack([(at - 1).clamp_min(0), (at + 1).clamp_max(POINTS - 1)], 1)
        start, end = angles.gather(1, near).unbind(1)
    return best


def _best_angles(slope: Tensor) -> Tensor:
    """a in [0, pi] with sin(a)/a = slope, 0 where there is none."""
    zero = torch.zeros_like(slope)
    return between(lambda a: torch.sinc(a / math.pi) - slope, zero, math.pi)
