"""ProjUnit: the law of the decoded message against the definition with a real projection, its exact moments."""

import math

import numpy as np
import pytest
import torch
from laws import generator
from scipy import stats

from torchdp.draws import Simulated
from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import PrivUnit, ProjUnit
from torchdp.randomizers.ball.sphere import CapLaw


def by_definition(randomizer, x, number, seed):
    """P from the QR decomposition of a Gaussian matrix, PrivUnit of P u/||P u|| by rotation, P^T Z/c, a row dropped."""
    rng, k, dim = np.random.default_rng(seed), randomizer.k, randomizer.dim + 1
    u = np.append(x, math.sqrt(max(0.0, 1 - x @ x)))
    q, r = np.linalg.qr(rng.standard_normal((number, dim, k)))
    q *= np.sign(np.einsum("nii->ni", r))[:, None]  # Haar, not merely orthogonal
    image = np.einsum("nik,i->nk", q, u)
    direction = image / np.linalg.norm(image, axis=-1, keepdims=True)
    t, across = (
        part.numpy() for part in CapLaw(k, randomizer.epsilon).draw((number,), Simulated(generator(seed)))
    )
    g = rng.standard_normal((number, k))
    g -= (g * direction).sum(-1, keepdims=True) * direction
    z = t[:, None] * direction + across[:, None] * g / np.linalg.norm(g, axis=-1, keepdims=True)
    y = np.einsum("nik,nk->ni", q, z) / CapLaw(k, randomizer.epsilon).threshold
    c = math.exp(math.lgamma((k + 1) / 2) + math.lgamma(dim / 2) - math.lgamma(k / 2) - math.lgamma((dim + 1) / 2))
    return y[:, :-1] / c


@pytest.mark.parametrize(("dim", "k"), [(2, 2), (5, 2), (7, 4)])
@pytest.mark.parametrize("norm", [0.0, 0.7, 1.0])
def test_messages_have_the_law_of_the_definition(dim, k, norm):
    x = np.arange(1.0, dim + 1)
    x *= norm / np.linalg.norm(x)
    randomizer = ProjUnit(dim, 4.0, k=k)
    slow = by_definition(randomizer, x, 20_000, 1)
    fast, off = (
        each.vectors(each.randomize_unchecked(torch.from_numpy(x).expand(20_000, dim), SeededNoise(2))).numpy()
        for each in (randomizer, PrivUnit(dim, 4.0))
    )
    views = [lambda y: y[:, 0], lambda y: y[:, -1], lambda y: y.sum(-1), lambda y: np.square(y - x).sum(-1)]
    assert min(stats.ks_2samp(view(slow), view(fast)).pvalue for view in views) > 1e-6
    assert min(stats.ks_2samp(view(slow), view(off)).pvalue for view in views) < 1e-6


@pytest.mark.parametrize("epsilon", [0.01, 1, 8, 20])
@pytest.mark.parametrize(("dim", "k"), [(2, 2), (15, 4), (31, 8), (255, 64), (4095, 256)])
def test_moments_from_those_of_the_length_and_the_coordinate(dim, k, epsilon):
    """E R^2 = k/D, E R^4 = k (k + 2)/(D (D + 2)), and PrivUnit's own moments give a, b and the fourth."""
    randomizer, cap, lifted = ProjUnit(dim, epsilon, 2.0, k=k), CapLaw(k, epsilon), dim + 1
    c = math.exp(
        math.lgamma((k + 1) / 2) + math.lgamma(lifted / 2) - math.lgamma(k / 2) - math.lgamma((lifted + 1) / 2)
    )
    assert randomizer.mean_length == pytest.approx(c, rel=1e-10)
    g, c, m = cap.threshold, randomizer.mean_length, randomizer.moments
    t2 = (1 + (k - 1) * g * g) / k
    t3 = g * ((k - 1) * g * g + 2) / (k + 1)
    t4 = ((k - 1) * g**4 + 3 * t2) / (k + 2)
    r2, r3, r4 = k / lifted, c * (k + 1) / (lifted + 1), k * (k + 2) / (lifted * (lifted + 2))
    raw = [1, 1, r2 * t2 / (c * g) ** 2, r3 * t3 / (c * g) ** 3, r4 * t4 / (c * g) ** 4]
    second, third, fourth = (
        sum(math.comb(n, i) * raw[i] * (-1) ** (n - i) for i in range(n + 1)) for n in (2, 3, 4)
    )
    along, across = second, (1 - r2 * t2) / ((lifted - 1) * (c * g) ** 2)
    assert m.variance == pytest.approx(4 * across, rel=1e-9)
    assert m.outer == pytest.approx(along - across, rel=1e-7, abs=1e-9 * across)
    assert m.third == pytest.approx(third / second**1.5, rel=1e-6, abs=1e-6)
    assert m.fourth == pytest.approx(fourth / second**2, rel=1e-6)
    assert m.variance != pytest.approx(4 * 1.001 * across, rel=1e-5)


def test_published_variances():
    """E ||Y - u||^2 on the sphere of R^16 with 4 rows at epsilon = 1, of R^32 with 8 at 8, without the lift."""
    for dim, k, epsilon, total in ((15, 4, 1, 99.5270), (31, 8, 8, 5.6888)):
        m = ProjUnit(dim, epsilon, k=k).moments
        assert (dim + 1) * m.variance + m.outer == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.1, 1, 8, 20])
@pytest.mark.parametrize(("dim", "k"), [(2, 2), (64, 8)])
def test_guarantee_projunit_exactly_epsilon_ldp(dim, k, epsilon):
    """Given P the message is PrivUnit's on the sphere of R^k; opposite points have opposite images under P."""
    randomizer, rng = ProjUnit(dim, epsilon, k=k), np.random.default_rng(0)
    cap = randomizer.cap
    assert (cap.dim, cap.epsilon) == (k, epsilon)
    points = rng.standard_normal((200, dim + 1))
    images = np.linalg.qr(rng.standard_normal((dim + 1, k)))[0].T @ points.T
    images /= np.linalg.norm(images, axis=0)
    outputs = np.stack([images, -images, np.roll(images, 1, 1)])
    worst = []
    for scale in (1.0, 1.01):
        high, low = math.log(scale * cap.high_density), math.log(cap.low_density)
        one, other = (np.where((outputs * sign * images).sum(1) >= cap.threshold, high, low) for sign in (1, -1))
        worst.append(np.abs(one - other).max())
    assert worst[0] == pytest.approx(epsilon, rel=1e-12) and worst[1] > epsilon + 5e-3
    guarantee = randomizer.guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.exact) == (epsilon, 0, True)
    assert (guarantee.model, guarantee.neighbours) == (Model.LOCAL, Neighbours.REPLACE_ONE)


def test_a_message_is_a_seed_and_k_numbers():
    """What is sent says where P is from and nothing else of x: another seed's unit vector is a message as well."""
    randomizer, x = ProjUnit(40, 2.0, k=4), torch.nn.functional.normalize(torch.ones(7, 40).double(), dim=1)
    sent = randomizer.randomize(x, noise=SeededNoise(1))
    assert sent.shape == (7, 5) and randomizer.bits_per_user == 64 * 5 and len(randomizer.encode(sent)) == 7 * 40
    assert len(set(sent[:, 0].tolist())) == 7
    projections = randomizer._projections(sent[:, 0].long())
    torch.testing.assert_close(projections.mT @ projections, torch.eye(4).double().expand(7, 4, 4))
    alone = randomizer._projections(sent[3:4, 0].long())  # a function of the seed alone
    torch.testing.assert_close(projections[3:4], alone, rtol=1e-12, atol=1e-12)
    wrong = [sent + 0.5, -sent, 2 * sent, sent[:, 1:], sent[0]]
    for each in wrong:
        with pytest.raises(ValueError, match="messages must"):
            randomizer.tally(each)


def test_subspaces_are_uniform():
    """The squared length of a fixed unit vector's projection is Beta(k/2, (D - k)/2), by every axis and a mixture."""
    randomizer = ProjUnit(5, 1.0, k=2)
    projections = randomizer._projections(torch.arange(20_000)).numpy()  # (n, 6, 2)
    for u in (np.eye(6)[0], np.eye(6)[5], np.ones(6) / math.sqrt(6)):
        squares = np.square(np.einsum("nik,i->nk", projections, u)).sum(-1)
        assert stats.kstest(squares, stats.beta(1, 2).cdf).pvalue > 1e-6
        assert stats.kstest(squares, stats.beta(1, 2.2).cdf).pvalue < 1e-6


def test_user_and_analyst_take_the_same_basis_whatever_the_signs_of_their_libraries(monkeypatch):
    """A message is coordinates: a decomposition with other signs on the analyst's machine would turn it over."""
    randomizer, qr = ProjUnit(5, 1.0, k=2), torch.linalg.qr
    messages = randomizer.randomize(torch.full((20, 5), 0.3, dtype=torch.float64), noise=SeededNoise(1))
    before, signs = randomizer.vectors(messages), torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def turned(matrices):
        columns, triangle = qr(matrices)
        return columns * signs, signs[:, None] * triangle

    monkeypatch.setattr(torch.linalg, "qr", turned)
    torch.testing.assert_close(randomizer.vectors(messages), before)
