"""The Gaussian kernel: random Fourier features, their square waves, and orthogonal frequencies with
cosine and sine.
"""

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
from torchdp.draws import Simulated
from torchdp.root import between

POINTS, CLOSER = 16, 4  # multipliers that are tried at once, and how often, ever closer to the best
FARTHEST = 1e100  # radians; further out nothing is gained, and squares end


@dataclass(frozen=True)
class GaussianKernel(Family):
    """k(x, y) = exp(-||x - y||^2 / bandwidth^2), from normal frequencies w ~ N(0, 2/bandwidth^2 I):
    no bias.
    """

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
        shape = (self.dimension, repetitions)
        normal = torch.randn(
            shape, dtype=torch.float64, device=generator.device, generator=generator
        )
        turns = torch.rand(
            repetitions, dtype=torch.float64, device=generator.device, generator=generator
        )
        return normal * (math.sqrt(2) / self.bandwidth), turns * (2 * math.pi)


@dataclass(frozen=True)
class GaussianFourier(GaussianKernel):
    """f(x) = g(x) = sqrt(2) cos(<w, x> + b), b uniform on [0, 2 pi): Q = S = 1, R = sqrt(2), no
    bias.

    exp(-||x - y||^2 / bandwidth^2); dimension >= 1, bandwidth > 0. Raises ValueError.
    Source: Rahimi, Recht (2007); Wagner (2025), section 2.3.
    """

    @property
    def bound(self) -> float:
        return math.sqrt(2)

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "FourierFeatures":
        return FourierFeatures(self, repetitions, *self._waves(repetitions, generator))


@dataclass(frozen=True, eq=False)
class FourierFeatures(Features):
    """frequencies: (d, repetitions); phases: (repetitions,)."""

    frequencies: Tensor
    phases: Tensor

    def f(self, x: Tensor) -> Tensor:
        return self.share(x).mul_(self.bound)

    def share(self, x: Tensor) -> Tensor:
        return waves(x, self.frequencies, self.phases)

    def ones(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        if not fused(x):
            return super().ones(x, draws, shape)
        return fused_ones(x, self.frequencies, self.phases[None], draws, shape)


@dataclass(frozen=True)
class GaussianSquareWave(GaussianKernel):
    """f(x) = sign cos(<w, x> + b), g(y) = (pi/2) cos(<w, y> + b), b uniform on [0, 2 pi): Q = S =
    R = 1, no bias.

    The square wave is (4/pi)(cos t - cos(3t)/3 + cos(5t)/5 - ...), and over the phase b all its
    terms but the first are orthogonal to g: E f(x) g(y) = (pi/2)(4/pi)(1/2) E cos <w, x - y> =
    k(x, y). Only f needs a bound; among all f in [-1, 1] the square wave has the largest first
    coefficient, so E g^2 = pi^2/8 is the least that cosines allow. A sign is one bit already:
    against GaussianFourier nothing is rounded, and the variance of the privacy noise is pi^2/16 =
    0.62 times.

    exp(-||x - y||^2 / bandwidth^2); dimension >= 1, bandwidth > 0. Raises ValueError.
    Source: Schellekens, Jacques (2020), asymmetric random periodic features.
    """

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "SquareWaveFeatures":
        return SquareWaveFeatures(self, repetitions, *self._waves(repetitions, generator))


@dataclass(frozen=True, eq=False)
class SquareWaveFeatures(SignFeatures):
    """frequencies: (d, repetitions); phases: (repetitions,)."""

    frequencies: Tensor
    phases: Tensor

    def positive(self, x: Tensor) -> Tensor:
        frequencies, phases = (each.to(x) / TURN for each in (self.frequencies, self.phases))
        turns = torch.addmm(phases, x, frequencies)
        return turns.sub_(turns.round()).abs_() < 0.25  # where the cosine is positive, without one

    def ones(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        if not fused(x):
            return super().ones(x, draws, shape)
        return fused_positive(x, self.frequencies, self.phases[None]).expand(*shape, self.instances)

    def g(self, y: Tensor) -> Tensor:
        return waves(y, self.frequencies, self.phases).mul_(math.pi / 2)


def waves(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """cos(<w_i, x> + b_i): (n, d) -> (n, repetitions). An angle that overflows counts as 0."""
    return torch.addmm(phases.to(x), x, frequencies.to(x)).nan_to_num_(0.0, 0.0, 0.0).cos_()


@dataclass(frozen=True)
class GaussianOrthogonal(GaussianKernel):
    """f(x) = g(x) = (cos <w, x>, sin <w, x>): Q = S = 2, R = 1, no bias; frequencies of one draw
    are orthogonal.

    <f(x), g(y)> = cos <w, x - y>, and E cos <w, x - y> = exp(-||x - y||^2/bandwidth^2) for w =
    (sqrt(2)/bandwidth) r u, r^2 chi-squared of d degrees, u uniform on the sphere: a normal
    frequency. The u of up to d repetitions are the columns of one Haar orthogonal matrix, so sum_i
    <u_i, x - y>^2 is nearly fixed and the mean over the repetitions varies much less than that of
    independent frequencies; beyond d repetitions, further matrices. Against GaussianFourier at the
    same number of bits: no random phase, which adds variance, and errors of the frequencies that
    cancel. What is known in closed form is each repetition's moments, not those of the mean.

    dimension >= 1; bandwidth > 0; radius > 0: users' vectors have norms up to it, others are
    refused; where it is below about one bandwidth they move less, and less noise hides them
    (``movement`` of the features). Raises ValueError.
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
        """A point of the circle moves by 2 at most: (f - f')^2/4 adds up to 1, not 2, in each
        repetition.
        """
        return 1.0

    def inside(self, name: str, points: Tensor) -> Tensor:
        return in_ball(name, points, self.radius, "the radius; scale them, or state a larger one")

    def draw(self, repetitions: int, *, generator: torch.Generator) -> "OrthogonalFeatures":
        repetitions, generator = drawn(repetitions, generator)
        d, blocks = self.dimension, -(-repetitions // self.dimension)
        normal = torch.randn(
            blocks, d, d, dtype=torch.float64, device=generator.device, generator=generator
        )
        q, r = torch.linalg.qr(normal)
        directions = (
            (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None])
            .transpose(0, 1)
            .flatten(1)[:, :repetitions]
        )
        squares = 2 * torch._standard_gamma(
            normal.new_full((repetitions,), d / 2), generator=generator
        )
        frequencies = directions * squares.sqrt() * (math.sqrt(2) / self.bandwidth)
        return OrthogonalFeatures(self, repetitions, frequencies)


@dataclass(frozen=True, eq=False)
class CircleFeatures(Features):
    """frequencies: (d, repetitions). Numbers 2 i and 2 i + 1 are the cosine and the sine of
    repetition i.
    """

    frequencies: Tensor

    def f(self, x: Tensor) -> Tensor:
        # overflow too must stay on the circle
        angles = (x @ self.frequencies.to(x)).nan_to_num_(0.0, 0.0, 0.0)
        return torch.stack([angles.cos(), angles.sin()], -1).flatten(-2)

    def gamma(self, steps: Tensor) -> float:
        """(cos a - cos b)^2 + (sin a - sin b)^2 = 4 sin^2((a - b)/2): at most the larger step of
        each pair, squared.
        """
        pairs = steps.view(-1, 2).amax(1)
        return min(float(pairs.max()) ** 2 * self.movement, float(pairs.square().sum()))

    def most(self, steps: Tensor) -> float:
        """By s cos a + t sin a <= (s^2 + t^2)^{1/2}."""
        return float(steps.sum() + steps.view(-1, 2).norm(dim=1).sum()) / 2


@dataclass(frozen=True, eq=False)
class OrthogonalFeatures(CircleFeatures):
    """Of ``GaussianOrthogonal``."""

    family: GaussianOrthogonal

    @cached_property
    def movement(self) -> float:
        """sup sum_i sin^2(<w_i, x - x'>/2) over the ball, repetitions at most; exact for up to d
        orthogonal w_i.

        Of d frequencies at a time, lengths l_i, directions U: a_i = <w_i, x - x'> has sum
        a_i^2/l_i^2 <= ||U||_2^2 (2 radius)^2 = B, which orthogonal ones attain. So for each
        multiplier m >= 0 the sum is at most m B + sum_i max_a (sin^2(a/2) - m a^2/l_i^2): concave
        in a^2 on [0, pi^2], greatest where sin(a)/a = 4 m/l_i^2. The least over a grid of m counts;
        angles are computed in float64, and room for that is added.

        Guarantees: an upper bound over all x, x' of norm at most ``radius``.
        """
        radius, waves = self.family.radius * (1 + SLACK), self.frequencies.double()
        if not radius * float(waves.norm(dim=0).max()) < FARTHEST:
            return float(self.repetitions)
        most = float(_most(waves, self.family.dimension, 2 * radius).sum())
        room = (
            (len(waves) + 8)
            * 2.0**-52
            * radius
            * float(waves.norm(dim=0).max())
            * math.sqrt(self.repetitions)
        )
        return min(float(self.repetitions), (math.sqrt(most) + room) ** 2)

    def share(self, x: Tensor) -> Tensor:
        """In float64 where angles bound the movement."""
        return self.f(x if math.isinf(self.family.radius) else x.double())

    def ones(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        if not fused(x):
            return super().ones(x, draws, shape)
        phases = self.frequencies.new_tensor([[0.0], [-math.pi / 2]]).expand(2, self.repetitions)
        return fused_ones(x, self.frequencies, phases, draws, shape)


def _most(waves: Tensor, size: int, distance: float) -> Tensor:
    """Upper bounds of sum_i sin^2(<w_i, z>/2) over ||z|| <= distance, of each ``size`` waves: by
    weak duality.

    The bound is convex in the multiplier: the best of a grid lies next to the best of all.
    """
    # by zeros, which gain nothing
    padded = torch.nn.functional.pad(waves, (0, -waves.shape[1] % size))
    blocks = padded.unflatten(1, (-1, size)).transpose(0, 1)  # (blocks, d, size)
    lengths = blocks.norm(dim=1)
    held, longest = lengths > 0, lengths.amax(1, keepdim=True).clamp_min(1e-300)
    lengths = torch.where(held, lengths, longest)
    stretch = torch.linalg.matrix_norm(blocks / lengths[:, None], ord=2) * (1 + 1e-9)
    steps = torch.linspace(0, 1, POINTS, dtype=torch.float64, device=waves.device)
    # angles of the longest, in half turns
    start, end = torch.zeros_like(stretch), torch.ones_like(stretch)
    best = held.sum(1).double()
    for _ in range(CLOSER):
        angles = start[:, None] + (end - start)[:, None] * steps
        multiplier = longest.square() / 4 * torch.sinc(angles).clamp_min(0)  # (blocks, POINTS)
        # sin(a)/a at the best a, 0 from 1 on
        slope = 4 * multiplier[..., None] / lengths[:, None].square()
        a = between(lambda a: torch.sinc(a / math.pi) - slope, torch.zeros_like(slope), math.pi)  # noqa: B023
        gained = (((a / 2).sin().square() - slope / 4 * a.square()) * held[:, None]).sum(2)
        bound, at = (multiplier * (stretch * distance).square()[:, None] + gained).min(1)
        best = torch.minimum(best, bound * (1 + 1e-9))
        near = torch.stack([(at - 1).clamp_min(0), (at + 1).clamp_max(POINTS - 1)], 1)
        start, end = angles.gather(1, near).unbind(1)
    return best
