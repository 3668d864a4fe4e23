"""Fixed waves on a box and the choice of a density: proved bounds, movement, deltas by enumeration,
predictions.
"""

import math

import numpy as np
import pytest
import torch
from laws import generator, hockey_stick
from scipy import stats
from scipy.optimize import minimize

from torchdp.density import (
    ExponentialKernel,
    Gaussian,
    GaussianOrthogonal,
    InnerProduct,
    InnerProductRotated,
    Laplacian,
    ShuffledClasses,
    ShuffledKDE,
    Waves,
    choose,
)
from torchdp.density.density import moved
from torchdp.density.waves import ProductKernel
from torchdp.privacy import gaussian_sigma
from torchdp.protocol import Objective
from torchdp.shuffle import PoissonSum

KERNELS = [Gaussian, Laplacian, ExponentialKernel]
EACH = pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: kind.__name__)
DIMENSIONS = pytest.mark.parametrize(("d", "count"), [(1, 16), (2, 64), (3, 128)])
SPACE = torch.float64


def box(d):
    return torch.tensor([[-1.0, 0.5, 3.0][:d], [1.0, 2.0, 5.0][:d]], dtype=SPACE)


def inside(n, d, seed):
    low, high = box(d)
    return low + (high - low) * torch.rand(n, d, dtype=SPACE, generator=generator(seed))


def summed(features, x, y):
    return features.left(x) @ features.right(y).mT / features.repetitions + features.constant


@EACH
@DIMENSIONS
@pytest.mark.parametrize("scale", [0.2, 1.1])
def test_errors_are_below_the_proved_bounds(kind, d, count, scale):
    """Of users inside and at corners: at any query, and in the mean over a grid of midpoints."""
    family = Waves(kind(scale), box(d))
    features = family.features(count)
    corners = torch.stack([box(d)[0], box(d)[1], box(d).mean(0)])
    users = torch.cat([corners, inside(30, d, 1)])
    queries = torch.cat([corners, inside(2000, d, 2)])
    # what finitely many waves miss of the kernel, at any pair
    off = summed(features, users, queries) - family.kernel(users, queries)
    assert off.abs().max() <= features.worst + 1e-12
    ends = zip(*box(d).tolist(), strict=True)
    # midpoints, fewer a side in more dimensions
    m = {1: 4000, 2: 150, 3: 36}[d]
    midpoints = (torch.arange(m) + 0.5) / m
    line = [low + (high - low) * midpoints for low, high in ends]
    grid = torch.cartesian_prod(*line).view(-1, d).double()
    off = summed(features, users[:6], grid) - family.kernel(users[:6], grid)
    found = off.square().mean(1).sqrt()
    assert found.max() <= features.average * (1.0 if d == 1 else 1.08) + 1e-9


@EACH
@DIMENSIONS
def test_movement_is_below_the_proved_bound(kind, d, count):
    """Descents from several starts, for steps in proportion to the roots of the weights and for
    equal ones.
    """
    features = Waves(kind(0.3), box(d)).features(count)
    waves = features.frequencies.numpy()
    draw = np.random.default_rng(d)
    for steps in (
        features.weights.abs().sqrt(),
        torch.full((count,), 0.7, dtype=SPACE),
    ):
        gamma = features.gamma(steps.repeat_interleave(2))
        squares = steps.square().numpy()

        def found(z, squares=squares):
            sines = np.sin(z @ waves / 2)
            return -float(squares @ sines**2)

        starts = draw.uniform(-2, 2, (4, d))
        options = {"maxiter": 200}
        descents = [minimize(found, z, method="Nelder-Mead", options=options) for z in starts]
        most = max(-descent.fun for descent in descents)
        assert 0.3 * gamma < most <= gamma * (1 + 1e-9)
        x = inside(200, d, 3)
        share = features.share(x) * steps.repeat_interleave(2) / 2
        assert torch.cdist(share, share).square().max() <= gamma * (1 + 1e-9)


def mass_of(u, mean, top):
    """Of floor u + Bernoulli(u - floor u) + Poisson(mean) on 0, ..., top - 1."""
    low = math.floor(u)
    theta = u - low
    noise = stats.poisson.pmf(np.arange(-1 - low, top - low), mean)
    return (1 - theta) * noise[1:] + theta * noise[:-1]


def worst_delta(step, epsilon, mean, seed=1):
    """Of one wave, whose two sums are enumerated, over pairs of angles."""
    # twelve deviations: what lies beyond is below any delta asked for
    top = int(mean + 12 * mean**0.5 + 30)
    draws = np.random.default_rng(seed).uniform(0, 2 * math.pi, 12)
    quarters = [math.pi / 4 * i for i in (0, 1, 2, 4, 5)]

    def mass(angle):
        cosine = (1 + math.cos(angle)) / 2
        sine = (1 + math.sin(angle)) / 2
        masses = (
            mass_of(step * cosine, mean, top),
            mass_of(step * sine, mean, top),
        )
        return np.multiply.outer(*masses).ravel()

    # The farthest pairs of points of the circle.
    angles = [*quarters, *draws]
    return max(hockey_stick(mass(a), mass(a + math.pi), epsilon) for a in angles)


@pytest.mark.parametrize(
    ("step", "epsilon", "delta"),
    [
        (0.3, 0.5, 1e-3),
        (1.0, 0.5, 1e-3),
        (2.5, 0.5, 1e-3),
        (0.7, 3.0, 1e-4),
        (1.6, 3.0, 1e-4),
    ],
)
def test_guarantee_one_wave_with_a_real_step_by_enumeration(step, epsilon, delta):
    features = Waves(Gaussian(2.0), box(1)).features(1)
    kde = ShuffledKDE.calibrated(
        features,
        PoissonSum,
        1,
        epsilon,
        delta,
        steps=step,
    )
    assert worst_delta(step, epsilon, kde.law.mean) <= delta


def test_half_the_movement_fails_the_enumeration(monkeypatch):
    """As above with a Gamma that is a half."""
    features = Waves(Gaussian(2.0), box(1)).features(1)
    gamma = type(features).gamma
    monkeypatch.setattr(
        type(features),
        "gamma",
        lambda self, steps: gamma(self, steps) / 2,
    )
    kde = ShuffledKDE.calibrated(features, PoissonSum, 1, 0.5, 1e-3, steps=2.5)
    assert worst_delta(2.5, 0.5, kde.law.mean) > 1e-3


@pytest.mark.parametrize(("scale", "epsilon", "most"), [(0.5, 1.0, 12), (0.8, 3.0, 30)])
def test_guarantee_all_sums_together_by_convolved_losses(scale, epsilon, most):
    """The whole release for pairs of points: the losses of all sums, rounded down, convolved."""
    kde = choose(
        Gaussian(scale),
        n=2000,
        epsilon=epsilon,
        delta=1e-4,
        box=box(1),
        most_messages=most,
    ).best
    assert isinstance(kde.law, PoissonSum)
    x = torch.tensor([[-1.0], [0.0], [1.0], [-0.4]], dtype=SPACE)
    shares = (1 + kde.features.share(x)) / 2
    numbers = (shares * kde.steps).numpy()
    width = 1e-3
    top = int(kde.law.mean + 10 * kde.law.mean**0.5 + 20)
    for i, j in ((0, 1), (1, 0), (0, 2), (2, 0), (3, 2)):
        total = np.ones(1)
        first = 0
        for u, v in zip(numbers[i], numbers[j], strict=True):
            P = mass_of(u, kde.law.mean, top)
            Q = mass_of(v, kde.law.mean, top)
            both = (P > 1e-25) & (Q > 1e-25)
            losses = np.log(P[both] / Q[both]) / width
            loss = np.floor(losses).astype(int)
            total = np.convolve(total, np.bincount(loss - loss.min(), weights=P[both]))
            first += int(loss.min())
        losses = (np.arange(len(total)) + first) * width
        assert float(total @ np.clip(-np.expm1(epsilon - losses), 0, None)) <= 1e-4


@pytest.mark.parametrize(
    ("kernel", "d", "epsilon", "most"),
    [
        (Gaussian(0.3), 1, 1.0, 20),
        (Laplacian(0.6), 2, 1.0, 60),
        (Gaussian(0.8), 3, 2.0, 400),
        # the bound is five times the error of these users
        (Laplacian(0.3), 3, 1.0, 300),
    ],
)
def test_predicted_errors_are_those_of_the_users(kernel, d, epsilon, most):
    """Rounding and noise within 1 % of what these users have; the messages that are said."""
    choice = choose(
        kernel,
        n=3000,
        epsilon=epsilon,
        delta=1e-5,
        box=box(d),
        most_messages=most,
    )
    (candidate,) = choice.candidates
    kde = choice.best
    x = inside(3000, d, 4)
    y = inside(400, d, 5)
    noise = math.sqrt(candidate.error**2 - kde.features.average**2)
    exact = kde.density_mse(kde.summary(x), y)
    assert float((exact.rounding + exact.privacy).mean().sqrt()) == pytest.approx(noise, rel=0.01)
    # of users and queries that are uniform in the box, as these are, but for few of them
    assert float(exact.total.mean().sqrt()) == pytest.approx(candidate.flat, rel=0.1)
    assert candidate.flat <= candidate.error
    assert kde.guarantee.epsilon == epsilon
    assert kde.guarantee.delta == 1e-5
    shares = (1 + kde.features.share(x)) / 2
    numbers = (shares * kde.steps).sum(1).max()
    added = kde.instances * kde.law.noise_mean / 3000
    assert float(numbers) + added <= kde.messages_per_user * (1 + 1e-9)
    assert kde.messages_per_user <= most


def test_absent_users_cost_noise_and_other_objectives_more_waves():
    asked = {
        "n": 500,
        "epsilon": 1.0,
        "delta": 1e-5,
        "box": box(1),
        "most_messages": 50,
    }
    kde = choose(Gaussian(0.4), absent=250, **asked).best
    gamma = moved(kde.features, kde.steps).change
    assert kde.law.noise_variance / 2 >= gaussian_sigma(1.0, 1e-5) ** 2 * gamma
    assert kde.guarantee.epsilon == 1.0
    assert kde.absent == 250
    worst = choose(Laplacian(0.4), objective=Objective.WORST, **asked).best
    mean = choose(Laplacian(0.4), **asked).best
    assert worst.features.worst <= mean.features.worst


def test_classes_of_unequal_sizes_take_the_noise_of_the_smallest():
    counts = torch.tensor([60, 75, 200, 900])
    found = choose(
        InnerProduct(8),
        epsilon=2.0,
        delta=1e-5,
        classes=counts,
        absent=6,
        most_messages=100,
    ).best
    assert isinstance(found, ShuffledClasses)
    assert found.guarantee.epsilon == 2.0
    assert [kde.law.users for kde in found.kdes] == counts.tolist()
    assert all(kde.absent == 6 for kde in found.kdes)
    present = [kde.law.noise_variance * (1 - 6 / kde.law.users) for kde in found.kdes]
    assert max(present) <= 1.01 * min(present)


def test_choices_beyond_the_box_are_of_random_waves():
    choice = choose(
        Gaussian(1.0),
        n=5000,
        epsilon=1.0,
        delta=1e-6,
        dimension=6,
        most_messages=200,
    )
    kde = choice.best
    assert isinstance(kde.features.family, GaussianOrthogonal)
    assert kde.messages_per_user <= 200
    products = choose(InnerProduct(4), n=500, epsilon=1.0, delta=1e-6).best
    assert isinstance(products.features.family, InnerProductRotated)


def test_a_kernel_whose_transform_is_negative_somewhere_is_refused():
    """The bound of the movement, and so the guarantee, needs coefficients of one sign."""

    class TopHat(ProductKernel):
        def one(self, z):
            return (z.abs() <= self.scale).double()

        def transform_of_one(self, w):
            return 2 * self.scale * torch.sinc(w * self.scale / math.pi)

        def energy_of_one(self, period):
            return 2 * self.scale / period

    with pytest.raises(
        ValueError,
        match="the transform of TopHat must be nowhere negative",
    ):
        Waves(TopHat(0.3), box(1)).features(16)
