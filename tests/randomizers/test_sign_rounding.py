"""The hemisphere: exact privacy, moments from the density, and the published constant."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import DuchiJordanWainwright

EPSILONS = [1e-3, 0.1, 1, 4, 8, 20, 50]


def norms(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [1, 2, 64])
def test_guarantee_sign_rounding_exactly_epsilon_ldp(epsilon, dim):
    """At y the density over that of V is 2 P(s = +-1), the sign that of <y, x>: 1 +- ||x|| tanh(epsilon/2)."""
    randomizer, rng = DuchiJordanWainwright(dim, epsilon), np.random.default_rng(dim)
    lost = randomizer.disagreement(norms(1.0, 0.7, 0.2, 0.0)).numpy()
    assert math.log((1 - lost[0]) / lost[0]) == pytest.approx(epsilon, rel=1e-12)
    densities = np.concatenate([2 * lost, 2 * (1 - lost)])  # all a point of the ball can give
    assert np.abs(np.log(densities[:, None] / densities)).max() == pytest.approx(epsilon, rel=1e-12)
    assert lost[-1] == 0.5 and (np.diff(lost) > 0).all()
    # The tie to the density: x and y of any norm and direction.
    x, other, y = rng.standard_normal((3, 300, dim))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    other /= 1.3 * np.linalg.norm(other, axis=-1, keepdims=True)
    other[::3], y[::3] = -x[::3], x[::3]

    def density(x):
        p = randomizer.disagreement(torch.from_numpy(np.linalg.norm(x, axis=-1))).numpy()
        return np.where((x * y).sum(-1) > 0, 2 * (1 - p), 2 * p)

    ratio = np.log(density(x) / density(other))
    assert np.abs(ratio).max() == pytest.approx(epsilon, rel=1e-12)
    wrong = DuchiJordanWainwright(dim, min(50, 1.01 * epsilon)).disagreement(norms(1.0))
    assert epsilon == 50 or math.log((1 - wrong) / wrong) > epsilon * (1 + 1e-3)
    guarantee = randomizer.guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.exact) == (epsilon, 0, True)
    assert (guarantee.model, guarantee.neighbours) == (Model.LOCAL, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("epsilon", [0.1, 4, 20])
@pytest.mark.parametrize("dim", [1, 3])
def test_guarantee_sign_rounding_exactly_epsilon_ldp_in_the_sampler(planted, epsilon, dim):
    """Deterministic: the message lies behind x exactly where the uniform number is below P(<Y, x> < 0)."""
    randomizer = DuchiJordanWainwright(dim, epsilon, 2.0)
    for norm in (1.0, 0.4):
        x = torch.zeros(5, dim, dtype=torch.float64)
        x[:, 0] = 2.0 * norm
        edge = float(randomizer.disagreement(norms(norm)))
        edges = [0, int(edge * (1 - 1e-9) * 2**63), int(edge * (1 + 1e-9) * 2**63), 2**62 + 2**61, 2**63 - 1]
        integers = torch.tensor(edges)
        for seed in range(20):
            y = randomizer.randomize_unchecked(x, planted(seed, integers=integers))
            assert (y[:, 0] < 0).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("epsilon", [0.01, 1, 4, 20])
@pytest.mark.parametrize("x", [0.0, 0.3, -0.9, 1.0])
def test_mean_and_covariance_from_the_density(epsilon, x):
    """In polar coordinates the density is (1 +- |x| tanh)/(2 pi) over angle; radii enter by their moments."""
    randomizer = DuchiJordanWainwright(2, epsilon, 1.5)
    size = 2 / math.pi  # E |T|
    nodes, weights = np.polynomial.legendre.leggauss(30)
    u = np.array([0.6, 0.8])
    lost = float(randomizer.disagreement(norms(abs(x))))
    for keep, close in ((1 - lost, True), (min(1, 1.02 * (1 - lost)), False)):
        first, second = np.zeros(2), np.zeros((2, 2))
        for start, p in ((-math.pi / 2, keep), (math.pi / 2, 1 - keep)):
            angles = start + math.pi / 2 * (nodes + 1)
            along, across = np.cos(angles), np.sin(angles)
            v = (along[:, None] * u + across[:, None] * np.array([-0.8, 0.6])) * math.copysign(1, x)
            mass = p * weights / 2
            first += mass @ v
            second += np.einsum("a,ai,aj->ij", mass, v, v)
        # E of the length is that of V's coordinate over 2/pi; E of its square is the second entry.
        scale = randomizer.radius / (math.tanh(epsilon / 2) * size)
        mean = scale * size * math.pi / 2 * first
        covariance = scale**2 * second - np.outer(mean, mean)
        point = randomizer.radius * x * u
        assert (np.abs(mean - point).max() < 1e-9 / epsilon) == close or (x == 0 and not close)
        if close:
            wanted = randomizer.moments.covariance(torch.from_numpy(point)).numpy()
            assert np.abs(covariance / wanted.max() - wanted / wanted.max()).max() < 1e-12


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 4096])
def test_messages_of_the_hemisphere_have_one_length_and_the_published_constant(dim):
    randomizer = DuchiJordanWainwright(dim, 1.0, 2.0)
    y = randomizer.randomize_unchecked(torch.zeros(50, dim, dtype=torch.float64), SeededNoise(0))
    half = (
        math.lgamma((dim - 1) / 2 + 1) - math.lgamma(dim / 2 + 1) if dim > 1 else math.log(2 / math.sqrt(math.pi))
    )
    # Duchi, Jordan, Wainwright (2018)
    length = 2.0 / math.tanh(0.5) * math.sqrt(math.pi) / 2 * dim * math.exp(half)
    torch.testing.assert_close(y.norm(dim=-1), torch.full((50,), length, dtype=torch.float64), rtol=1e-10, atol=0)
    assert dim * randomizer.moments.variance == pytest.approx(length**2, rel=1e-10)
    if dim == 1:  # a biased coin with two ends
        assert set(y.abs().flatten().tolist()) == {2.0 / math.tanh(0.5)}


def test_the_side_of_the_message_is_the_stated_coin():
    x = torch.tensor([0.3, -0.4, 0.0], dtype=torch.float64)
    y = DuchiJordanWainwright(3, 2.0, 1.0).randomize_unchecked(x.expand(200_000, 3), SeededNoise(1))
    behind = int((y @ x < 0).sum())
    expected = float(DuchiJordanWainwright(3, 2.0).disagreement(norms(0.5)))
    assert stats.binomtest(behind, 200_000, expected).pvalue > 1e-6
    assert stats.binomtest(behind, 200_000, 1.03 * expected).pvalue < 1e-6


def test_tail_of_the_coin_at_large_epsilon_keeps_its_digits():
    for epsilon in (20, 40, 50):
        assert float(DuchiJordanWainwright(2, epsilon).disagreement(norms(1.0))) == pytest.approx(
            math.exp(-epsilon), rel=1e-8
        )


def test_zero_normals_give_the_first_axis(planted):
    y = DuchiJordanWainwright(3, 1.0).randomize_unchecked(torch.zeros(5, 3), planted(normal=norms(0.0)))
    assert y.isfinite().all() and (y[:, 1:] == 0).all() and (y[:, 0] != 0).all()
