"""The curator that shuffled densities are measured against: nothing rounded, noise for what the
features move by.
"""

import math

import pytest
import torch
from buckets import LaplacianBuckets
from laws import generator, normal

from torchdp.density import (
    CentralKDE,
    GaussianFourier,
    GaussianOrthogonal,
    InnerProduct,
    InnerProductRotated,
    LaplacianSigns,
    SecureKDE,
    ShuffledKDE,
    kernel_means,
)
from torchdp.noise import SeededNoise
from torchdp.privacy import Model, gaussian_log_delta
from torchdp.shuffle import CentralGaussianSum, PoissonSum

D = 8
FAMILIES = [
    (GaussianFourier(D), 6),
    (GaussianOrthogonal(D), 6),
    (InnerProduct(D), 2),
    (InnerProductRotated(D, 2.0), 2),
    (LaplacianSigns(D), 6),
    (LaplacianBuckets(D, 1.0, 4), 6),
]
IDS = [type(family).__name__ for family, _ in FAMILIES]


def points(n, seed=1):
    return torch.nn.functional.normalize(normal(n, D, seed=seed), dim=1)


def test_the_curator_s_noise_is_that_of_the_movement():
    features = InnerProductRotated(64).draw(1, generator=generator())
    curator = CentralKDE.calibrated(features, 3000, 1, 1e-5)
    poisson = ShuffledKDE.calibrated(features, PoissonSum, 3000, 1, 1e-5)
    assert curator.law.rmse == pytest.approx(7.46, abs=0.01)
    assert poisson.law.rmse == pytest.approx(8.19, abs=0.01)
    # what counting flips alone would ask for
    flips = CentralGaussianSum.calibrated(3000, 1, 1e-5, 64)
    assert flips.rmse == pytest.approx(29.85, abs=0.01)
    assert curator.guarantee.epsilon == pytest.approx(1)
    assert curator.guarantee.model is Model.CENTRAL


@pytest.mark.parametrize(("family", "repetitions"), FAMILIES, ids=IDS)
def test_guarantee_of_the_curator_covers_what_vectors_move_and_half_the_noise_does_not(
    family, repetitions
):
    """The Gaussian mechanism on the released numbers: its delta at their largest distance found."""
    features = family.draw(repetitions, generator=generator())
    # every point and its opposite
    x = torch.cat([points(300), -points(300)])
    numbers = (1 + features.left(x) / features.bound) / 2
    moved = float(torch.cdist(numbers, numbers).max())
    sigma = CentralKDE.calibrated(features, 500, 1.0, 1e-5).law.sigma
    assert gaussian_log_delta(sigma, 1.0, moved) <= math.log(1e-5)
    assert gaussian_log_delta(0.5 * sigma, 1.0, moved) > math.log(1e-5)
    servers = SecureKDE(features, 500, 1.0, 1e-5)
    shown = servers.client_input(x)
    most = servers.shown
    assert float(torch.pdist(shown).max()) <= most.l2 * (1 + 1e-12)
    assert float(torch.pdist(shown, 1).max()) <= most.l1 * (1 + 1e-12)
    assert float(shown.norm(dim=1).max()) <= most.norm * (1 + 1e-12)
    assert float(shown.abs().max()) <= most.entry


def test_a_curator_adds_up_the_features_themselves():
    x = points(40)
    y = points(5, seed=3)
    for family, repetitions in FAMILIES:
        features = family.draw(repetitions, generator=generator())
        # without noise: what is left is the features' own error
        exact = CentralKDE(features, CentralGaussianSum(40, 0.0), 1e-5)
        crowd = exact.summary(x)
        for density in (
            exact.estimate(x),
            exact.sample_estimate(crowd, generator=generator()),
        ):
            torch.testing.assert_close(density.value, features.left(x).mean(0))
            assert not density.standard_error_at(y).any()
            assert density.guarantee.epsilon == math.inf
        predicted = exact.density_mse(crowd, y)
        assert not predicted.rounding.any()
        assert not predicted.privacy.any()
        off = (density.evaluate(y) - kernel_means(family, x, y)).square()
        torch.testing.assert_close(off, predicted.feature, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", [InnerProduct(1), InnerProduct(3)], ids=str)
def test_guarantee_a_norm_that_rounding_made_longer_than_1_moves_no_sum_further_than_stated(
    family,
):
    x = torch.zeros(1, family.dimension, dtype=torch.float64)
    # admitted
    x[0, 0] = 1 + 0.99e-6
    curator = CentralKDE.calibrated(family.draw(3, generator=generator()), 1, 1.0, 1e-5)
    seen = []
    # as far apart as two points can be
    for each in (x, -x):
        # the same noise, whole steps
        tally = curator.collect(each, noise=SeededNoise(1))
        seen.append(tally["total"])
    assert float((seen[0] - seen[1]).norm()) <= curator.sums.sensitivity
