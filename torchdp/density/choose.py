"""The density of least predicted error for what a user may send: features, their number, steps,
noise.

A plan is what a density may be chosen from: features, and the shape of their steps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import Features
from torchdp.density.gaussian import GaussianOrthogonal
from torchdp.density.inner_product import InnerProductFamily, InnerProductRotated
from torchdp.density.kde import MOST_STEPS, ShuffledKDE
from torchdp.density.learning import ShuffledClasses, sizes_of
from torchdp.density.waves import MOST_DIMENSIONS, Gaussian, StationaryKernel, Waves, lattices
from torchdp.privacy import gaussian_sigma
from torchdp.protocol import Choice, Objective
from torchdp.protocol.choice import Candidate
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BoundedSum, PoissonSum
from torchdp.threads import one_thread

Kernel = StationaryKernel | InnerProductFamily
MOST_MESSAGES = 2048.0
SCALES = torch.logspace(-1.5, 2, 90, dtype=torch.float64, device="cpu")  # of steps
NEAR = 1.01  # of the least error: fewest messages win among those below
FINE = 0.01  # of the variance of noise: steps whose rounding is below are fine enough
# how often a prediction is corrected, and how much more error is no reason to
AGAIN, CLOSE = 3, 1.02
Law = type[PoissonSum] | type[BoundedSum]
# The others that torchdp.shuffle has take bits alone, or have more noise: a test says so of each.
LAWS: tuple[Law, ...] = (PoissonSum, BoundedSum)
COUNTS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of waves
ORTHOGONAL = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
ENOUGH = 0.05  # of a curator's error: waves whose bound is below need no more of them
CROWD = 1024  # users, spread over the box, by whom rounding is judged


@dataclass(frozen=True, eq=False)
class Plan:
    """Features with steps scale * shape, as a choice sees them.

    feature: their own squared error, of the mean or the worst query. gain: of R^2 g_j^2/I^2,
    (instances,). gamma: at scale 1. shares: f/R of a typical user. crowd: points of users by whom
    rounding is judged at last; None: ``shares``.
    """

    name: str
    features: Features
    feature: float
    gain: Tensor
    shape: Tensor
    gamma: float
    shares: Tensor
    crowd: Tensor | None = None


def plans(
    kernel: StationaryKernel | InnerProductFamily,
    box: Tensor | None,
    dimension: int | None,
    limit: float,
    mean: bool,
    generator: torch.Generator,
) -> Iterator[Plan]:
    """With ever more features; limit: a curator's error, about. Raises TypeError, ValueError."""
    checks.instance("kernel", kernel, (StationaryKernel, InnerProductFamily))
    if isinstance(kernel, InnerProductFamily):
        yield _products(kernel, generator)
        return
    if box is not None:
        corners = torch.as_tensor(box, dtype=torch.float64)
        dimension = corners.shape[-1] if corners.ndim == 2 else 1  # Waves refuses the rest
        if dimension <= MOST_DIMENSIONS:
            yield from _waves(Waves(kernel, corners), limit, mean, generator.device)
            return
    if dimension is None or not isinstance(kernel, Gaussian):
        raise ValueError(
            "box must be given, (2, d) public corners with d <= 3, or for a Gaussian kernel the dimension; of other "
            "kernels in more dimensions take a family, such as LaplacianSigns, and ShuffledKDE.calibrated"
        )
    family = GaussianOrthogonal(checks.integer("dimension", dimension, 1), kernel.scale)
    yield from _orthogonal(family, generator)


def _waves(family: Waves, limit: float, mean: bool, device: torch.device) -> Iterator[Plan]:
    low, high = torch.as_tensor(family.box, dtype=torch.float64, device=device)
    points = (
        torch.quasirandom.SobolEngine(family.dimension).draw(CROWD, dtype=torch.float64).to(device)
    )
    crowd = low + (high - low) * points
    for count in COUNTS:
        bounds = [one.average if mean else one.worst for one in lattices(family)]
        pairs = zip(lattices(family), bounds, strict=True)
        tried = ((one, float(each[min(count, len(each)) - 1])) for one, each in pairs)
        lattice, bound = min(tried, key=lambda pair: pair[1])
        features = lattice.features(family, count, device)
        weights = features.weights.cpu().repeat_interleave(2)
        shape = weights.abs().sqrt()
        yield Plan(
            f"{features.repetitions} waves", features, bound**2, weights.square() / 2, shape,
            features.gamma(shape), arc(), crowd,
        )  # fmt: skip
        if bound < ENOUGH * limit or features.repetitions < count:
            return


def _orthogonal(family: GaussianOrthogonal, generator: torch.Generator) -> Iterator[Plan]:
    """Feature term: that of independent waves, 1/(2 I) at far points, where near ones have less."""
    for count in ORTHOGONAL:
        features = family.draw(count, generator=generator)
        even = torch.full((2 * count,), 1.0, dtype=torch.float64)
        gain = even / (2 * float(count) ** 2)
        yield Plan(
            f"{count} orthogonal waves", features, 1 / (2 * count), gain, even, float(count), arc()
        )


def _products(kernel: InnerProductFamily, generator: torch.Generator) -> Plan:
    """Coordinates that a rotation makes nearly normal, of deviation R/width."""
    family = (
        kernel if isinstance(kernel, InnerProductRotated) else InnerProductRotated(kernel.dimension)
    )
    features = family.draw(1, generator=generator)
    even = torch.ones(features.instances, dtype=torch.float64)
    normal = torch.special.ndtri((torch.arange(64, dtype=torch.float64) + 0.5) / 64)
    shares = (normal / (family.bound * math.sqrt(family.coordinates))).clamp(-1, 1)
    gain = even * family.bound**2 / len(even)
    name = f"{features.instances} rotated coordinates"
    return Plan(name, features, family.bias**2, gain, even, features.gamma(even), shares)


def arc() -> Tensor:
    """Cosines of uniform angles."""
    return ((torch.arange(64, dtype=torch.float64) + 0.5) * (math.pi / 64)).cos()


@dataclass(frozen=True, eq=False)
class Found:
    """A plan at one scale and noise: predicted variances and messages of a user, in the mean and at
    most.
    """

    plan: Plan
    law: Law
    scale: float
    parts: tuple[float, float, float, float, float]

    @property
    def error(self) -> float:
        return math.sqrt(sum(self.parts[:3]))


@dataclass(frozen=True)
class Question:
    """What is asked: n users of whom so many are absent, (epsilon, delta), messages of a user at
    most.
    """

    n: int
    epsilon: float
    delta: float
    absent: int
    most: float

    @property
    def sigma(self) -> float:
        """A curator's at distance 1."""
        return gaussian_sigma(self.epsilon, self.delta)

    def variance(self, law: Law, gamma: Tensor, sums: int) -> Tensor:
        """Of the noise of one sum, about: fitted to certified mechanisms of epsilon 0.1 to 8, 64 to
        256 sums.

        Mostly within a tenth; what is chosen is certified.
        """
        normal = self.sigma**2 * gamma
        if law is BoundedSum:
            found = 1.006 * normal + 0.8 * normal.sqrt() + 0.5
        else:
            floor = (
                (sums * gamma).sqrt().clamp_min(1) / self.delta
            ).log()  # equal shares: P(D = 0) >= e^-variance
            found = 1.003 * normal + (4.8 * normal + floor.square()).sqrt()
        return found * (self.n / (self.n - self.absent))

    def sent(self, law: Law, variance: Tensor) -> Tensor:
        """Messages of noise of one user in one sum."""
        own = variance / self.n
        if law is PoissonSum:
            return own
        return (((1 + 12 * own).sqrt() - 1) / 2).floor().clamp_min(0) + 1

    def parts(self, plan: Plan, law: Law, scales: Tensor, variance: Tensor) -> Tensor:
        """(scales, 5), as in ``Found``; variance: of the noise of one sum, (scales,)."""
        sums, steps = len(plan.shape), scales[:, None] * plan.shape
        gain = plan.gain / steps.square()
        if plan.crowd is None or len(scales) > 1:
            rest = rounded(plan.shares, steps)
        else:
            rest = ((1 + plan.features.share(plan.crowd).cpu()) * steps / 2).frac()
            rest = (rest * (1 - rest)).mean(0)
        rounding = (gain * 4 * rest).sum(1) / self.n
        noise = gain.sum(1) * 4 * variance / float(self.n) ** 2
        feature, extra = torch.full_like(scales, plan.feature), sums * self.sent(law, variance)
        most = plan.features.most(plan.shape) * scales
        return torch.stack([feature, rounding, noise, steps.sum(1) / 2 + extra, most + extra], 1)

    def candidates(self, plan: Plan, factors: dict[type, float]) -> Iterator[Found]:
        """All scales and noises within the messages, no accounting run; factors: of each one's
        predicted variance.
        """
        scales = SCALES[SCALES * plan.shape.max() <= MOST_STEPS]
        for law in LAWS:
            variance = factors.get(law, 1.0) * self.variance(
                law, plan.gamma * scales.square(), len(plan.shape)
            )
            parts = self.parts(plan, law, scales, variance)
            coarse = parts[:, 1] > FINE * parts[:, 2]
            coarse[1:] = coarse[:-1].clone()  # and the first that is fine
            coarse[0] = True
            for i in (coarse & (parts[:, 4] <= self.most)).nonzero()[:, 0].tolist():
                yield Found(plan, law, float(scales[i]), tuple(parts[i].tolist()))


class Options(TypedDict, total=False):
    """The rest of ``choose``'s."""

    box: Tensor | None
    dimension: int | None
    absent: int
    most_messages: float
    objective: Objective
    generator: torch.Generator | None


@overload
def choose(
    kernel: Kernel,
    *,
    epsilon: float,
    delta: float,
    n: int,
    classes: None = ...,
    **more: Unpack[Options],
) -> Choice[ShuffledKDE]: ...


@overload
def choose(
    kernel: Kernel,
    *,
    epsilon: float,
    delta: float,
    n: int | None = ...,
    classes: Tensor,
    **more: Unpack[Options],
) -> Choice[ShuffledClasses]: ...


@one_thread
def choose(
    kernel: Kernel,
    *,
    epsilon: float,
    delta: float,
    n: int | None = None,
    box: Tensor | None = None,
    dimension: int | None = None,
    absent: int = 0,
    most_messages: float = MOST_MESSAGES,
    objective: Objective = Objective.MEAN,
    classes: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Choice[ShuffledKDE] | Choice[ShuffledClasses]:
    """The shuffled density of least predicted error: ``best`` sends the fewest messages of those
    within 1 % of it.

    On a public box of up to three dimensions fixed waves with a step for each; of other Gaussian
    kernels orthogonal waves, of inner products rotated coordinates, with equal steps. How many,
    their steps, Poisson noise or bounded shares: by predicted error, feature term included. What is
    chosen is certified, and the prediction corrected by it three times at most. The error is the
    root of the mean square over uniform queries in the box, the largest over users' data but for
    rounding, which is that of users uniform in the box; of inner products, at queries of norm 1.

    Args:
        kernel: ``Gaussian(0.25)``, ``Laplacian``, ``ExponentialKernel`` with a box, or an inner
            product such as ``InnerProduct(64)``.
        epsilon: > 0.
        delta: in (0, 1).
        n: users; with ``classes`` their sum, and needs not be said.
        box: (2, d) public corners that hold users and queries; without it a Gaussian kernel needs
            ``dimension``.
        dimension: of points without a box.
        absent: users, of each class, who may send nothing, or collude.
        most_messages: of a user in the mean, for the worst vector.
        objective: of the features' error over queries: ``MEAN``, or ``WORST``, for all pairs of
            points in the box.
        classes: (classes,) how many users each has, as from ``class_counts``: ``best`` is a
            ``ShuffledClasses`` then, and the error that of the smallest class.
        generator: of what is drawn in public; its device is the features'. None: the same draws
            always.

    Raises TypeError; ValueError, also where ``most_messages`` leaves nothing.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, of what is returned:
    ``ShuffledKDE``'s.
    """
    sizes = None if classes is None else sizes_of(classes)
    if sizes is not None and n not in (None, sum(sizes)):
        raise ValueError(f"n must be the sum of classes, {sum(sizes)}, or left out, not {n}")
    users = min(sizes) if sizes is not None else checks.integer("n", -1 if n is None else n, 1)
    absent, most = checks.integer("absent", absent, 0, users - 1), float(most_messages)
    if not most > 0:
        raise ValueError(f"most_messages must be positive, not {most}")
    asked = Question(
        users, checks.positive("epsilon", epsilon), checks.fraction("delta", delta), absent, most
    )
    mean = checks.instance("objective", objective, Objective) is Objective.MEAN
    generator = _same() if generator is None else generator
    limit = math.sqrt(2) * asked.sigma / users
    with torch.device("cpu"):  # what is new is small; features are where the generator is
        tried = list(plans(kernel, box, dimension, limit, mean, checks.random_source(generator)))
        found, kde = _certified(tried, asked)
    parts = [math.sqrt(part) for part in found.parts[:3]]
    note = "feature {:.3g}, rounding {:.3g}, noise {:.3g}; ".format(*parts) + (
        f"messages {found.parts[3]:.4g} in the mean, {found.parts[4]:.4g} at most"
    )
    name = f"{found.plan.name}, {found.law.__name__}"
    if classes is None:
        return Choice((Candidate(name, kde, found.error, note),))
    return Choice((Candidate(name, ShuffledClasses.like(kde, classes), found.error, note),))


def _same() -> torch.Generator:
    return keyed_generator(b"density")


def _certified(tried: list[Plan], asked: Question) -> tuple[Found, ShuffledKDE]:
    """The best by prediction, with the noise that is certified for it. Raises ValueError."""
    factors: dict[type, float] = {}
    kept: list[tuple[Found, ShuffledKDE]] = []
    for _ in range(AGAIN + 1):
        every = [found for plan in tried for found in asked.candidates(plan, factors)]
        if not every:
            break
        least = min(found.error for found in every)
        best = min(
            (found for found in every if found.error <= NEAR * least),
            key=lambda found: found.parts[4],
        )
        steps = best.scale * best.plan.shape
        try:
            kde = ShuffledKDE.calibrated(
                best.plan.features,
                best.law,
                asked.n,
                asked.epsilon,
                asked.delta,
                asked.absent,
                steps=steps,
            )
        except ValueError:  # so much noise is not followed
            factors[best.law] = math.inf
            continue
        variance = kde.law.variance(torch.zeros(1))
        scale = torch.tensor([best.scale], dtype=torch.float64)
        parts = asked.parts(best.plan, best.law, scale, variance)[0].tolist()
        real = Found(best.plan, best.law, best.scale, tuple(parts))
        if parts[4] <= asked.most:
            kept.append((real, kde))
            if real.error <= CLOSE * best.error:
                break
        said = asked.variance(best.law, best.plan.gamma * scale.square(), len(steps))
        factors[best.law] = 1.002 * float(variance / said)
    if not kept:
        raise ValueError(
            f"most_messages = {asked.most:g} leaves no density of {asked.n} users at epsilon = {asked.epsilon:g}; "
            "allow more of them, or ask for a larger epsilon or delta"
        )
    return min(kept, key=lambda pair: pair[0].error)


def rounded(shares: Tensor, steps: Tensor) -> Tensor:
    """The mean of theta (1 - theta), theta = frac(steps (1 + share)/2), from a table: the shape of
    ``steps``.
    """
    grid = torch.logspace(-5, math.log10(MOST_STEPS) + 0.01, 800, dtype=torch.float64)
    rest = (grid[:, None] * (1 + shares) / 2).frac()
    table = (rest * (1 - rest)).mean(1)
    at = torch.searchsorted(grid, steps.clamp(1e-5, MOST_STEPS)).clamp(1, len(grid) - 1)
    left, right = grid[at - 1], grid[at]
    part = (steps - left) / (right - left)
    return table[at - 1] + part.clamp(0, 1) * (table[at] - table[at - 1])
