"""The curator that shuffled densities are measured against: nothing rounded, noise for what the features move by."""

import math
from itertools import pairwise

import pytest
import torch

from torchdp.density import (
    GaussianFourier,
    GaussianOrthogonal,
    InnerProduct,
    InnerProductRotated,
    InnerProductSigns,
    LaplacianBuckets,
    LaplacianSigns,
    ShuffledClasses,
    ShuffledKDE,
    calibrated_classes,
    calibrated_kde,
    kernel_means,
)
from torchdp.noise import SeededNoise
from torchdp.privacy import Model, gaussian_log_delta, gaussian_sigma
from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    ExactSum,
    NegativeBinomialSum,
    PoissonSum,
    RandomizedResponseSum,
    calibrate,
)

D = 8
FAMILIES = [
    (GaussianFourier(D), 6),
    (GaussianOrthogonal(D), 6),
    (InnerProduct(D), 2),
    (InnerProductRotated(D, 2.0), 2),
    (InnerProductSigns(D), 12),
    (LaplacianSigns(D), 6),
    (LaplacianBuckets(D, 1.0, 4), 6),
]
IDS = [type(family).__name__ for family, _ in FAMILIES]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def points(n, seed=1):
    return torch.nn.functional.normalize(torch.randn(n, D, dtype=torch.float64, generator=generator(seed)), dim=1)


def test_the_curator_s_noise_is_that_of_the_movement():
    features = InnerProductRotated(64).draw(1, generator=generator())
    curator, poisson = (calibrated_kde(features, kind, 3000, 1, 1e-5) for kind in (CentralGaussianSum, PoissonSum))
    assert curator.protocol.rmse == pytest.approx(7.46, abs=0.01)
    assert poisson.protocol.rmse == pytest.approx(8.89, abs=0.01)
    flips = calibrate(CentralGaussianSum, 3000, 1, 1e-5, 64)  # what counting flips alone would ask for
    assert flips.rmse == pytest.approx(29.85, abs=0.01)
    assert curator.guarantee.epsilon == 1 and curator.guarantee.model is Model.CENTRAL


@pytest.mark.parametrize(("family", "repetitions"), FAMILIES, ids=IDS)
def test_no_shuffled_protocol_beats_the_curator(family, repetitions):
    """At the same guarantee and features; and none needs more than flips of all its bits ask for."""
    features = family.draw(repetitions, generator=generator())
    curator = calibrated_kde(features, CentralGaussianSum, 500, 1.0, 1e-5)
    expected = gaussian_sigma(1.0, 1e-5, math.sqrt(features.movement))
    assert curator.protocol.sigma == pytest.approx(expected, rel=1e-5)
    rotated = isinstance(family, InnerProductRotated)
    for kind in (PoissonSum, NegativeBinomialSum, RandomizedResponseSum) if rotated else (PoissonSum,):
        shuffled = calibrated_kde(features, kind, 500, 1.0, 1e-5)
        assert shuffled.protocol.rmse > curator.protocol.rmse
        assert shuffled.protocol.rmse <= calibrate(kind, 500, 1.0, 1e-5, features.composed).rmse * (1 + 1e-12)


@pytest.mark.parametrize(("family", "repetitions"), FAMILIES, ids=IDS)
def test_guarantee_of_the_curator_covers_what_vectors_move_and_half_the_noise_does_not(family, repetitions):
    """The Gaussian mechanism on the released numbers: its delta at their largest distance found."""
    features = family.draw(repetitions, generator=generator())
    x = torch.cat([points(300), -points(300)])
    numbers = (1 + features.left(x) / features.bound) / 2
    moved = float(torch.cdist(numbers, numbers).max())
    sigma = calibrated_kde(features, CentralGaussianSum, 500, 1.0, 1e-5).protocol.sigma
    assert gaussian_log_delta(sigma, 1.0, moved) <= math.log(1e-5)
    assert gaussian_log_delta(0.5 * sigma, 1.0, moved) > math.log(1e-5)


@pytest.mark.parametrize("path", ["collect", "sample"])
def test_a_curator_adds_up_the_features_themselves(path):
    x, y = points(40), points(5, seed=3)
    for family, repetitions in FAMILIES:
        features = family.draw(repetitions, generator=generator())
        exact = ShuffledKDE(features, ExactSum(40), 1e-5)
        drawing = {"noise": SeededNoise(1)} if path == "collect" else {"generator": generator()}
        density = getattr(exact, path)(x, **drawing)
        torch.testing.assert_close(density.sums, features.left(x).sum(0))
        assert not density.standard_error(y).any()
        predicted = exact.predicted_mse(x, y)
        assert not predicted.rounding.any() and not predicted.privacy.any()
        off = (density.evaluate(y) - kernel_means(family, x, y)).square()
        torch.testing.assert_close(off, predicted.feature, rtol=1e-9, atol=1e-12)


def test_the_curator_s_error_is_the_one_it_states_and_its_two_paths_have_one_law():
    x, y = points(40), points(3, seed=3)
    features = InnerProductRotated(D, 2.0).draw(50, generator=generator())
    kde = ShuffledKDE(features, CentralGaussianSum(40, 3.0), 1e-5)
    exact = features.left(x).sum(0)
    many = kde.sample(x, generator=generator(1), sample_shape=(200,))
    for sums in (many.sums, kde.collect(x, noise=SeededNoise(1)).sums):
        spread = float((sums - exact).square().mean()) / (2 * features.bound * 3.0) ** 2
        assert abs(spread - 1) < 5 * math.sqrt(2 / sums.numel())
    predicted = kde.predicted_mse(x, y)
    torch.testing.assert_close(many.standard_error(y)[0].square(), predicted.privacy)
    assert not predicted.rounding.any()


def test_classes_may_be_summed_by_a_curator():
    x, labels = points(90), torch.arange(90) % 3
    features = InnerProduct(D).draw(1, generator=generator())
    made = calibrated_classes(features, CentralGaussianSum, torch.bincount(labels), 1.0, 1e-5)
    mixed = ShuffledClasses((*made.kdes[:2], ShuffledKDE(features, ExactSum(30), 1e-5)))
    for classes in (made, mixed):
        sums = classes.sample(x, labels, generator=generator(), sample_shape=(4,)).sums
        assert sums.shape == (4, 3, D)
        off = sums - torch.stack([x[labels == c].sum(0) for c in range(3)])
        sigma = made.kdes[0].protocol.sigma
        assert off[:, :2].abs().max() < 2 * 6 * sigma
        assert (off[:, 2].abs().max() < 1e-9) == (classes is mixed)


def test_the_order_of_the_references():
    """Error at one guarantee: no privacy, a curator, the best shuffled noise, the same noise calibrated to flips."""
    x, y = points(400), points(20, seed=3)
    features = InnerProductRotated(D, 2.0).draw(1, generator=generator())
    flips = calibrate(PoissonSum, 400, 1.0, 1e-5, features.composed)
    protocols = [ExactSum(400)]
    protocols += [
        calibrated_kde(features, kind, 400, 1.0, 1e-5).protocol for kind in (CentralGaussianSum, PoissonSum)
    ]
    errors = [
        float(ShuffledKDE(features, protocol, 1e-5).predicted_mse(x, y).total.mean())
        for protocol in (*protocols, flips, CorrelatedSum(400, 0.999, 1e6, 0.9))
    ]
    assert all(better < worse for better, worse in pairwise(errors))
