"""Randomizers of the ball: privacy in closed form, predicted errors, single precision, points at
the edge.
"""

import math

import numpy as np
import pytest
import torch
from laws import float64, generator
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.protocol import Crowd
from torchdp.randomizers import (
    DuchiJordanWainwright,
    GaussianVector,
    PrivUnit,
)

# not 1, so that a missing factor is seen
RADIUS = 2.5
MAKE = {
    "PrivUnit": PrivUnit,
    "Gaussian": lambda dim, epsilon, radius=1.0: GaussianVector(dim, epsilon, radius, delta=1e-6),
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
SIZES = float64([1.0, 0.7, 0.2, 0.0])


def said(randomizer, x, noise):
    """The unbiased vectors of these users' messages."""
    return randomizer.randomize_unchecked(x, noise)


def at(norm, dim, radius=RADIUS):
    signs = float64([1.0, -1.0]).repeat(dim)[:dim]
    x = torch.arange(1, dim + 1).double() * signs
    return x / x.norm() * norm * radius


@every
def test_float32_messages_are_those_of_float64_to_their_digits(make):
    x = at(0.6, 3, 1.0).float().expand(2000, 3)
    randomizer = make(3, 2.5)
    single = said(randomizer, x, SeededNoise(4))
    double = said(randomizer, x.double(), SeededNoise(4))
    assert double.dtype == torch.float64
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0)


@every
def test_points_a_rounding_outside_are_taken_as_on_the_sphere(make):
    randomizer = make(50, 1.0)
    x = torch.nn.functional.normalize(torch.randn(500, 50, generator=generator(13)), dim=-1)
    assert (x.double().norm(dim=-1) > 1).any()
    near = said(randomizer, x * (1 + 4e-07), SeededNoise(14))
    same = said(randomizer, x, SeededNoise(14))
    torch.testing.assert_close(
        near,
        same,
        rtol=3e-3,
        atol=3e-3 + 2 * getattr(randomizer, "step", 0.0),
    )
    ulp = float64([[1 + 2**-52], [1.0], [1 - 2**-53]])
    assert make(1, 1.0).randomize_unchecked(ulp, SeededNoise(15)).isfinite().all()
    with pytest.raises(ValueError, match="x holds points outside"):
        randomizer.randomize(1.0001 * x, noise=SeededNoise(14))


@every
def test_predicted_mse_is_the_mean_of_the_users_covariances(make):
    randomizer = make(2, 1.0, 2.0)
    points = float64([[2.0, 0.0], [0.6, -1.0], [0.0, 0.0]])
    counts = torch.tensor([3, 1, 6])
    covariances = [randomizer.moments.covariance(point) for point in points]
    each = torch.stack(covariances).diagonal(dim1=-2, dim2=-1)
    predicted = randomizer.predicted_mse(Crowd(points, counts))
    torch.testing.assert_close(predicted, counts.double() @ each / 10**2, rtol=1e-12, atol=0)


def delta(sigma, distance, epsilon):
    """The mass by which N(distance, sigma^2) exceeds e^epsilon N(0, sigma^2): where their log ratio
    exceeds epsilon.
    """
    # where the log ratio of the two densities is epsilon
    edge = epsilon * sigma**2 / distance + distance / 2
    nodes, weights = np.polynomial.legendre.leggauss(60)
    # beyond 15 deviations nothing is left
    t = edge + 15 * sigma * (nodes + 1) / 2
    shifted = stats.norm.pdf(t, distance, sigma)
    excess = shifted - np.exp(epsilon + stats.norm.logpdf(t, 0, sigma))
    return 7.5 * sigma * float(weights @ excess)


@pytest.mark.parametrize("radius", [1.0, 2.5])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4, 20])
def test_guarantee_gaussian_vector_epsilon_delta_ldp(epsilon, radius):
    randomizer = GaussianVector(7, epsilon, radius, delta=1e-6)
    assert delta(randomizer.sigma, 2 * radius, epsilon) == pytest.approx(1e-6, rel=1e-6)
    # closer points are safer
    assert delta(randomizer.sigma, 1.9 * radius, epsilon) < 0.99e-6
    # and less noise is not enough
    assert delta(0.999 * randomizer.sigma, 2 * radius, epsilon) > 1.001e-6
    guarantee = randomizer.guarantee
    assert guarantee.epsilon == epsilon
    assert guarantee.delta == 1e-6
    assert guarantee.exact is False
    assert guarantee.model == Model.LOCAL
    assert guarantee.neighbours == Neighbours.REPLACE_ONE


def test_published_sigmas():
    for epsilon, sigma in {
        0.5: 16.1152,
        1: 8.44936,
        4: 2.38704,
        8: 1.30587,
    }.items():
        assert GaussianVector(3, epsilon, delta=1e-6).sigma == pytest.approx(sigma, rel=5e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1, 4, 8, 20, 50])
def test_guarantee_sign_rounding_exactly_epsilon_ldp(epsilon):
    lost = DuchiJordanWainwright(1, epsilon).disagreement(SIZES)
    # all that a point can give
    chances = torch.cat([lost, 1 - lost])
    assert float((chances[:, None] / chances).log().abs().max()) == pytest.approx(
        epsilon, rel=1e-12
    )
    # at the centre the sign says nothing
    assert lost[-1] == 0.5
    assert (lost.diff() > 0).all()
    # control: 1 % more epsilon would break the claim; 50 is the largest that is taken
    bolder = DuchiJordanWainwright(1, min(50, 1.01 * epsilon))
    wrong = float(bolder.disagreement(SIZES)[0])
    assert epsilon == 50 or math.log((1 - wrong) / wrong) > epsilon * (1 + 1e-3)
    guarantee = DuchiJordanWainwright(1, epsilon).guarantee
    assert guarantee.epsilon == epsilon
    assert guarantee.delta == 0
    assert guarantee.exact is True
    assert guarantee.model == Model.LOCAL
    assert guarantee.neighbours == Neighbours.REPLACE_ONE


@pytest.mark.parametrize("epsilon", [0.1, 4, 20])
def test_guarantee_sign_rounding_exactly_epsilon_ldp_in_the_sampler(planted, epsilon):
    """Deterministic: the sign is the other one exactly where the uniform number is below
    P(Y x < 0).
    """
    randomizer = DuchiJordanWainwright(1, epsilon, 2.0)
    for x in (2.0, -0.8):
        edge = float(randomizer.disagreement(float64(abs(x) / 2)))
        # just below and just above the edge, and the ends of the integers
        edges = [
            0,
            int(edge * (1 - 1e-9) * 2**63),
            int(edge * (1 + 1e-9) * 2**63),
            2**62 + 2**61,
            2**63 - 1,
        ]
        users = torch.full((5, 1), x, dtype=torch.float64)
        y = randomizer.randomize_unchecked(users, planted(integers=torch.tensor(edges)))
        assert (y.abs() == randomizer.entry_limit).all()
        assert (y * x < 0)[:, 0].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("epsilon", [0.01, 1.044, 4, 20])
def test_moments_are_those_of_the_coin(epsilon):
    randomizer = DuchiJordanWainwright(1, epsilon, 1.5)
    moments = randomizer.moments
    size = 1.5 / math.tanh(epsilon / 2)
    for x in (0.0, 0.3, -0.9, 1.5):
        other = float(randomizer.disagreement(float64(abs(x) / 1.5)))
        p = float64([1 - other, other])
        y = math.copysign(size, x) * float64([1.0, -1.0])
        assert float(p @ y) == pytest.approx(x, abs=1e-12 * size)
        z = y - x
        variance = float(p @ z**2)
        assert variance == pytest.approx(moments.variance + moments.outer * x**2, rel=1e-7)
        crowd = Crowd(float64([[x]]), torch.tensor([4]))
        assert 4 * float(randomizer.predicted_mse(crowd)) == pytest.approx(variance, rel=1e-7)
    # at the end of the interval
    z = z / float(p @ z**2) ** 0.5
    assert (moments.third, moments.fourth) == pytest.approx(
        [float(p @ z**3), float(p @ z**4)], rel=1e-6
    )
