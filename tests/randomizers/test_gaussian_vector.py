"""The Gaussian reference: its guarantee by the hockey-stick integral, its moments, its sum."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import GaussianVector


def delta(sigma, distance, epsilon):
    """The mass by which N(distance, sigma^2) exceeds e^epsilon N(0, sigma^2): where their log ratio exceeds epsilon."""
    edge = epsilon * sigma**2 / distance + distance / 2
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t = edge + 15 * sigma * (nodes + 1) / 2
    excess = norm.pdf(t, distance, sigma) - np.exp(epsilon + norm.logpdf(t, 0, sigma))
    return 7.5 * sigma * float(weights @ excess)


@pytest.mark.parametrize("radius", [1.0, 2.5])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4, 20])
def test_guarantee_gaussian_vector_epsilon_delta_ldp(epsilon, radius):
    randomizer = GaussianVector(7, epsilon, radius, delta=1e-6)
    assert delta(randomizer.sigma, 2 * radius, epsilon) == pytest.approx(1e-6, rel=1e-6)
    assert delta(randomizer.sigma, 1.9 * radius, epsilon) < 0.99e-6  # closer points are safer
    assert delta(0.999 * randomizer.sigma, 2 * radius, epsilon) > 1.001e-6  # and less noise is not enough
    guarantee = randomizer.guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.exact) == (epsilon, 1e-6, False)
    assert (guarantee.model, guarantee.neighbours) == (Model.LOCAL, Neighbours.REPLACE_ONE)


def test_published_sigmas():
    for epsilon, sigma in {0.5: 16.1152, 1: 8.44936, 4: 2.38704, 8: 1.30587}.items():
        assert GaussianVector(3, epsilon, delta=1e-6).sigma == pytest.approx(sigma, rel=5e-6)


def test_moments():
    randomizer = GaussianVector(3, 1.0, 2.0, delta=1e-5)
    m = randomizer.moments
    assert (m.variance, m.outer, m.third, m.fourth) == (
        randomizer.sigma**2 + randomizer.step**2 / 6,
        0.0,
        0.0,
        3.0,
    )
    assert randomizer.step == randomizer.sigma / 256 and randomizer.bits_per_user == 48


def test_points_outside_by_rounding_are_projected():
    """Two points a little more than 2 radius apart would spend more than was paid for."""
    randomizer = GaussianVector(50, 1.0, delta=1e-6)
    x = torch.nn.functional.normalize(torch.ones(1, 50), dim=-1) * (1 + 5e-7)
    far, same = (
        randomizer.randomize_unchecked(points, SeededNoise.of(torch.Generator().manual_seed(0))).double()
        for points in (x, x / x.norm())
    )
    assert float((far - same).abs().max()) < 1e-6
