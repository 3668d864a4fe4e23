"""The density of least predicted error for what a user may send: features, steps and noise.

A plan is what a density may be chosen from, features and the shape of their steps; a design is a
plan with a scale of the steps and noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import density_mse
from torchdp.density.family import Features
from torchdp.density.gaussian import GaussianOrthogonal
from torchdp.density.inner_product import InnerProductFamily, InnerProductRotated
from torchdp.density.kde import MOST_STEPS, ShuffledKDE
from torchdp.density.learning import ShuffledClasses, sizes_of
from torchdp.density.waves import MOST_DIMENSIONS, Gaussian, StationaryKernel, Waves, lattices
from torchdp.privacy import gaussian_sigma
from torchdp.protocol import Choice, Crowd, Objective
from torchdp.protocol.choice import Candidate
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BoundedSum, PoissonSum
from torchdp.threads import one_thread

Kernel = StationaryKernel | InnerProductFamily
MOST_MESSAGES = 2048.0

# Scales of steps that are tried.
SCALES = torch.logspace(-1.5, 2, 90, dtype=torch.float64, device="cpu")

# Of the least error: fewest messages win among those below.
NEAR = 1.01

# Of the variance of noise: steps whose rounding is below are fine enough.
FINE = 0.01

# How often a prediction is corrected, and how much more error is no reason to.
AGAIN = 3
CLOSE = 1.02

# A correction lets the next search find a little more noise than the last.
MORE = 1.002

# The other laws that torchdp.shuffle has take bits alone, or have more noise: a test says so of
# each.
Law = type[PoissonSum] | type[BoundedSum]
LAWS: tuple[Law, ...] = (PoissonSum, BoundedSum)

# Numbers of waves that are tried.
COUNTS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
ORTHOGONAL = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)

# Of a curator's error: waves whose bound is below need no more of them.
ENOUGH = 0.05

# Users, spread over the box, by whom rounding is judged.
CROWD = 1024

# Points of a distribution of shares, and of the table of their rounding, from this step on.
QUANTILES = 64
TABLE = 800
LEAST_STEP = 1e-5


@dataclass(frozen=True, eq=False)
class Plan:
    """Features with steps scale * shape.

    Args:
        name: what is said of it.
        features: public.
        feature: their own squared error, of the mean or the worst query, whatever users hold.
        even: the same for users and queries that are uniform in the box; without one ``feature``.
        gain: of R^2 g_j^2/I^2, (instances,).
        shape: (instances,).
        gamma: at scale 1.
        shares: f/R of a typical user.
        crowd: points of users by whom rounding is judged at last; None: ``shares``.
    """

    name: str
    features: Features
    feature: float
    even: float
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
    """Plans of ever more features. Raises TypeError, ValueError.

    limit: a curator's error, about. The rest as of ``choose``.
    """
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
            "box must be given, (2, d) public corners with d <= 3, or for a Gaussian kernel the "
            "dimension; of other kernels in more dimensions take a family, such as LaplacianSigns, "
            "and ShuffledKDE.calibrated"
        )
    family = GaussianOrthogonal(checks.integer("dimension", dimension, 1), kernel.scale)
    yield from _orthogonal(family, generator)


def _waves(family: Waves, limit: float, mean: bool, device: torch.device) -> Iterator[Plan]:
    low, high = torch.as_tensor(family.box, dtype=torch.float64, device=device)
    sobol = torch.quasirandom.SobolEngine(family.dimension)
    points = sobol.draw(CROWD, dtype=torch.float64).to(device)
    crowd = low + (high - low) * points
    queries = low + (high - low) * sobol.draw(CROWD, dtype=torch.float64).to(device)
    for count in COUNTS:
        lattice = min(lattices(family), key=lambda lattice: lattice.bound(count, mean))
        bound = lattice.bound(count, mean)
        features = lattice.features(family, count, device)
        weights = features.weights.cpu().repeat_interleave(2)
        # Steps in proportion to |C|^{1/2}: the movement's bound is attained by all waves.
        shape = weights.sqrt()
        yield Plan(
            name=f"{features.repetitions} waves",
            features=features,
            feature=bound**2,
            even=_missed(features, crowd, queries),
            gain=weights.square() / 2,
            shape=shape,
            gamma=features.gamma(shape),
            shares=arc(),
            crowd=crowd,
        )
        if bound < ENOUGH * limit or features.repetitions < count:
            return


def _missed(features: Features, x: Tensor, y: Tensor) -> float:
    """The mean over queries of the features' squared error for these users."""
    none = torch.zeros(features.instances, dtype=torch.float64, device=x.device)
    return float(density_mse(features, Crowd.of(x), y, none, none).feature.mean())


def _orthogonal(family: GaussianOrthogonal, generator: torch.Generator) -> Iterator[Plan]:
    """Feature term: that of independent waves, 1/(2 I) at far points, where near ones have less."""
    for count in ORTHOGONAL:
        even = torch.ones(2 * count, dtype=torch.float64)
        yield Plan(
            name=f"{count} orthogonal waves",
            features=family.draw(count, generator=generator),
            feature=1 / (2 * count),
            even=1 / (2 * count),
            gain=even / (2 * float(count) ** 2),
            shape=even,
            gamma=float(count),
            shares=arc(),
        )


def _products(kernel: InnerProductFamily, generator: torch.Generator) -> Plan:
    """Coordinates that a rotation makes nearly normal, of deviation R/width."""
    if isinstance(kernel, InnerProductRotated):
        family = kernel
    else:
        family = InnerProductRotated(kernel.dimension)
    features = family.draw(1, generator=generator)
    instances = features.instances
    even = torch.ones(instances, dtype=torch.float64)
    normal = torch.special.ndtri(quantiles())
    width = family.bound * math.sqrt(family.coordinates)
    return Plan(
        name=f"{instances} rotated coordinates",
        features=features,
        feature=family.bias**2,
        even=family.bias**2,
        gain=even * family.bound**2 / instances,
        shape=even,
        gamma=features.gamma(even),
        shares=(normal / width).clamp(-1, 1),
    )


def quantiles() -> Tensor:
    """Levels in the middle of as many equal parts of [0, 1]."""
    return (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES


def arc() -> Tensor:
    """Cosines of uniform angles."""
    return (quantiles() * math.pi).cos()


@dataclass(frozen=True, eq=False)
class Design:
    """A plan at one scale and noise, with what is predicted of it.

    Args:
        plan: features and the shape of their steps.
        law: kind of noise.
        scale: of the steps.
        feature, rounding, noise: parts of the squared error.
        messages: of a user in the mean.
        most: of a user at most.
    """

    plan: Plan
    law: Law
    scale: float
    feature: float
    rounding: float
    noise: float
    messages: float
    most: float

    @property
    def error(self) -> float:
        """Whatever users hold."""
        return math.sqrt(self.feature + self.rounding + self.noise)

    @property
    def even(self) -> float:
        """For users that are uniform in the box."""
        return math.sqrt(self.plan.even + self.rounding + self.noise)


@dataclass(frozen=True)
class Question:
    """What a density is chosen for.

    Args:
        n: users.
        epsilon: > 0.
        delta: in (0, 1).
        absent: users who may send nothing.
        most: messages of a user.
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
        """Of the noise of one sum, about; what is chosen is certified.

        Fitted to certified mechanisms of epsilon 0.1 to 8, 64 to 256 sums: mostly within a tenth.
        """
        normal = self.sigma**2 * gamma
        if law is BoundedSum:
            variance = 1.006 * normal + 0.8 * normal.sqrt() + 0.5
        else:
            # Equal shares of an infinitely divisible D: P(D = 0) >= e^-variance.
            distance = (sums * gamma).sqrt().clamp_min(1)
            floor = (distance / self.delta).log()
            variance = 1.003 * normal + (4.8 * normal + floor.square()).sqrt()
        return variance * (self.n / (self.n - self.absent))

    def sent(self, law: Law, variance: Tensor) -> Tensor:
        """Messages of noise of one user in one sum."""
        own = variance / self.n
        if law is PoissonSum:
            return own
        # c + 1 of a bounded share, c (c + 1)/3 <= own
        root = ((1 + 12 * own).sqrt() - 1) / 2
        return root.floor().clamp_min(0) + 1

    def predicted(self, plan: Plan, law: Law, scales: Tensor, variance: Tensor) -> Tensor:
        """The numbers of ``Design``, (scales, 5); variance: of the noise of one sum, (scales,)."""
        steps = scales[:, None] * plan.shape
        gain = plan.gain / steps.square()
        if plan.crowd is None or len(scales) > 1:
            rest = rounded(plan.shares, steps)
        else:
            shares = plan.features.share(plan.crowd).cpu()
            theta = ((1 + shares) * steps / 2).frac()
            rest = (theta * (1 - theta)).mean(0)
        feature = torch.full_like(scales, plan.feature)
        rounding = (gain * 4 * rest).sum(1) / self.n
        noise = gain.sum(1) * 4 * variance / float(self.n) ** 2
        extra = len(plan.shape) * self.sent(law, variance)
        messages = steps.sum(1) / 2 + extra
        most = plan.features.most(plan.shape) * scales + extra
        return torch.stack([feature, rounding, noise, messages, most], 1)

    def designs(self, plan: Plan, factors: dict[type, float]) -> Iterator[Design]:
        """All scales and noises within the messages, no accounting run.

        factors: of each kind's predicted variance.
        """
        scales = SCALES[SCALES * plan.shape.max() <= MOST_STEPS]
        for law in LAWS:
            gamma = plan.gamma * scales.square()
            variance = factors.get(law, 1.0) * self.variance(law, gamma, len(plan.shape))
            predicted = self.predicted(plan, law, scales, variance)
            _, rounding, noise, _, most = predicted.unbind(1)
            coarse = rounding > FINE * noise
            # And the first that is fine.
            coarse[1:] = coarse[:-1].clone()
            coarse[0] = True
            for i in (coarse & (most <= self.most)).nonzero()[:, 0].tolist():
                yield Design(plan, law, float(scales[i]), *predicted[i].tolist())


class Options(TypedDict, total=False):
    """The rest of what ``choose`` takes."""

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
    """The shuffled density of least predicted error, of fewest messages within 1 % of it.

    On a public box of up to three dimensions fixed waves with a step for each; of other Gaussian
    kernels orthogonal waves, of inner products rotated coordinates, with equal steps. How many,
    their steps, Poisson noise or bounded shares: by predicted error, feature term included. What is
    chosen is certified, and the prediction corrected by it three times at most. The error is the
    root of the mean square over uniform queries in the box, the largest over users' data but for
    rounding, which is that of users uniform in the box; of inner products, at queries of norm 1.
    ``flat`` of the candidate is the error for users uniform in the box: less, where the features'
    bound is far above what they miss of such users. The choice is by the bound, because a choice by
    ``flat`` would take few features, whose error for users in one place is large.

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
    if classes is None:
        users = checks.integer("n", -1 if n is None else n, 1)
    else:
        sizes = sizes_of(classes)
        if n not in (None, sum(sizes)):
            raise ValueError(f"n must be the sum of classes, {sum(sizes)}, or left out, not {n}")
        users = min(sizes)
    absent = checks.integer("absent", absent, 0, users - 1)
    most = float(most_messages)
    if not most > 0:
        raise ValueError(f"most_messages must be positive, not {most}")
    epsilon = checks.positive("epsilon", epsilon)
    delta = checks.fraction("delta", delta)
    question = Question(users, epsilon, delta, absent, most)
    mean = checks.instance("objective", objective, Objective) is Objective.MEAN
    generator = checks.random_source(_same() if generator is None else generator)
    limit = math.sqrt(2) * question.sigma / users
    with torch.device("cpu"):  # what is new is small; features are where the generator is
        tried = list(plans(kernel, box, dimension, limit, mean, generator))
        design, kde = _certified(tried, question)
    feature = math.sqrt(design.feature)
    rounding = math.sqrt(design.rounding)
    noise = math.sqrt(design.noise)
    note = (
        f"feature {feature:.3g}, rounding {rounding:.3g}, noise {noise:.3g}; "
        f"messages {design.messages:.4g} in the mean, {design.most:.4g} at most"
    )
    if design.plan.crowd is not None:
        note += f"; error {design.even:.3g} for users uniform in the box"
    name = f"{design.plan.name}, {design.law.__name__}"
    if classes is None:
        return Choice((Candidate(name, kde, design.error, note, design.even),))
    return Choice(
        (Candidate(name, ShuffledClasses.like(kde, classes), design.error, note, design.even),)
    )


def _same() -> torch.Generator:
    return keyed_generator(b"density")


def _certified(tried: list[Plan], question: Question) -> tuple[Design, ShuffledKDE]:
    """The best by prediction, with the noise that is certified for it. Raises ValueError."""
    factors: dict[type, float] = {}
    kept: list[tuple[Design, ShuffledKDE]] = []
    for _ in range(AGAIN + 1):
        designs = [design for plan in tried for design in question.designs(plan, factors)]
        if not designs:
            break
        least = min(design.error for design in designs)
        near = [design for design in designs if design.error <= NEAR * least]
        best = min(near, key=lambda design: design.most)
        plan = best.plan
        try:
            kde = ShuffledKDE.calibrated(
                plan.features,
                best.law,
                question.n,
                question.epsilon,
                question.delta,
                question.absent,
                steps=best.scale * plan.shape,
            )
        except ValueError:  # so much noise is not followed
            factors[best.law] = math.inf
            continue
        variance = kde.law.variance(torch.zeros(1))
        scale = torch.tensor([best.scale], dtype=torch.float64)
        predicted = question.predicted(plan, best.law, scale, variance)[0]
        real = Design(plan, best.law, best.scale, *predicted.tolist())
        if real.most <= question.most:
            kept.append((real, kde))
            if real.error <= CLOSE * best.error:
                break
        fitted = question.variance(best.law, plan.gamma * scale.square(), len(plan.shape))
        factors[best.law] = MORE * float(variance / fitted)
    if not kept:
        raise ValueError(
            f"most_messages = {question.most:g} leaves no density of {question.n} users at epsilon "
            f"= {question.epsilon:g}; allow more of them, or ask for a larger epsilon or delta"
        )
    return min(kept, key=lambda pair: pair[0].error)


def rounded(shares: Tensor, steps: Tensor) -> Tensor:
    """The mean of theta (1 - theta), theta = frac(steps (1 + share)/2), from a table.

    shares: of a typical user. Returns the shape of ``steps``.
    """
    grid = torch.logspace(-5, math.log10(MOST_STEPS) + 0.01, TABLE, dtype=torch.float64)
    theta = (grid[:, None] * (1 + shares) / 2).frac()
    table = (theta * (1 - theta)).mean(1)
    right = torch.searchsorted(grid, steps.clamp(LEAST_STEP, MOST_STEPS)).clamp(1, len(grid) - 1)
    left = right - 1
    part = (steps - grid[left]) / (grid[right] - grid[left])
    return table[left] + part.clamp(0, 1) * (table[right] - table[left])
