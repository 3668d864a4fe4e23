"""The Gram route: its guarantee from explicit neighbours, its noise, and the central mechanism it
equals in law.
"""

import math
from typing import ClassVar

import pytest
import torch
from contract import MessageContract
from laws import generator, normal, sampled, uniform
from products import gaussian_delta, products, rows

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.regression import (
    FrequencyMoments,
    GramRelease,
    SecondMoments,
    SecureHistogram,
)

EPSILON = 0.5
DELTA = 1e-5


def neighbours(release):
    """Two clients at the largest distance, and many others: rows and, with labels, a last
    column.
    """
    d = release.columns
    B = release.bound
    C = release.label_bound
    A = B * torch.nn.functional.normalize(normal(400, d, seed=1), dim=1)
    # a third of the rows lie inside of the ball
    A[::3] *= uniform(134, 1, seed=2)
    A[:2] = 0
    A[0, 0] = B
    if C is None:
        A[1, -1] = B if d > 1 else 0
        return A
    labels = C * (2 * uniform(400, 1, seed=3) - 1)
    # the angle at which two labelled rows of opposite labels are farthest apart
    cosine = 0.5 if d > 1 else 1.0
    A[1, 0] = B * cosine
    A[1, -1] = B * (math.sqrt(0.75) if d > 1 else 1.0)
    labels[:2] = torch.tensor([[C], [-C]])
    return torch.cat([A, labels], 1)


class TestGramRelease(MessageContract):
    """Data and noise of one size."""

    alike = True
    repeats = 4000
    protocol = GramRelease(
        30,
        2,
        0.4,
        8.0,
        0.1,
        label_bound=3.0,
        corrupt=5,
        absent=10,
    )
    x = torch.cat([rows(24, 2, bound=0.4), 3 * rows(24, 1, seed=1, bound=1.0)], 1)
    bad: ClassVar = [x[:, :2], x[0], x * math.nan, torch.zeros(31, 3)]

    def loss(self, protocol):
        """delta of the two neighbours, by the noise of the 15 honest clients who are there."""
        shown = protocol.client_input(neighbours(protocol))
        noise = float((15 * protocol.client.variance).sqrt())
        distance = float((shown[0] - shown[1]).norm())
        return gaussian_delta(distance / noise, self.protocol.epsilon)

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        return products(self.x[:, :2], self.x[:, 2])


class TestGramWithoutLabels(TestGramRelease):
    protocol = GramRelease(30, 2, 0.4, 8.0, 0.1, corrupt=5, absent=10)
    # longer than the bound, most of them
    x = 3 * rows(24, 2, bound=0.4)
    bad: ClassVar = [torch.zeros(24, 3)]

    def truth(self):
        within = (0.4 / self.x.norm(dim=1, keepdim=True)).clamp_max(1)
        return products(self.x * within)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("label_bound", [None, 0.2, 9.0])
@pytest.mark.parametrize("corrupt", [0, 60])
def test_guarantee_gram_release_spends_epsilon_delta(d, label_bound, corrupt):
    release = GramRelease(
        100,
        d,
        1.5,
        EPSILON,
        DELTA,
        label_bound=label_bound,
        corrupt=corrupt,
    )
    shown = release.client_input(neighbours(release))
    distance = float(torch.linalg.vector_norm(shown[0] - shown[1]))
    # never exceeded
    assert float(torch.pdist(shown).max()) <= distance * (1 + 1e-12)
    # standard deviation of what honest clients add
    left = float(release.client.sigma) * math.sqrt(100 - corrupt)
    # reached
    assert gaussian_delta(distance / left, EPSILON) == pytest.approx(DELTA, rel=1e-6)
    # less noise fails
    assert gaussian_delta(distance / left / 0.99, EPSILON) > 1.01 * DELTA
    guarantee = release.guarantee
    assert guarantee.epsilon == EPSILON
    assert guarantee.delta == DELTA
    assert guarantee.exact is False
    assert guarantee.model == Model.LINEAR_TRANSFORM
    assert guarantee.neighbours == Neighbours.REPLACE_ONE


def test_the_central_model_is_the_same_law_draw_by_draw():
    moments = SecondMoments.of(rows(30, 4), rows(30, 4)[:, 1])
    both = [
        GramRelease(30, 4, 1.5, 1.0, DELTA, label_bound=1.5, model=model).sample_estimate(
            moments, generator=generator(3)
        )
        for model in (Model.LINEAR_TRANSFORM, Model.CENTRAL)
    ]
    assert torch.equal(both[0].value, both[1].value)
    central = GramRelease(
        30,
        4,
        1.5,
        1.0,
        DELTA,
        label_bound=1.5,
        model=Model.CENTRAL,
    )
    assert central.guarantee.model is Model.CENTRAL


def test_noise_is_isotropic_on_symmetric_matrices_and_cross_has_its_own_unit():
    moments = SecondMoments.of(rows(30, 3), 5 * rows(30, 3)[:, 1])
    release = GramRelease(30, 3, 1.5, 1.0, DELTA, label_bound=7.5)
    noisy = release.sample_estimate(moments, **sampled(20000, 4))
    noise = noisy.gram - moments.gram
    assert torch.equal(noise, noise.mT)
    rotation = torch.linalg.qr(normal(3, 3, seed=5)).Q
    variance = (rotation @ noise @ rotation.mT).var(0) / release.gram_sigma**2
    both = torch.ones(3, 3) + torch.eye(3)
    expected = both.double() / 2
    z = (variance / expected - 1) * math.sqrt(20000 / 2)
    assert float(z.abs().max()) < 5
    assert release.cross_sigma == pytest.approx(release.gram_sigma * 5)


@pytest.mark.parametrize(
    ("release", "x"),
    [
        (
            GramRelease(
                40,
                2,
                1.5,
                1.0,
                DELTA,
                label_bound=2.0,
                corrupt=5,
                absent=3,
            ),
            2 * rows(40, 3),
        ),
        (
            FrequencyMoments(40, 2.0, (1.0, 2.0), 1.0, DELTA),
            3 * rows(40, 1)[:, 0],
        ),
        (SecureHistogram(40, 4, 1.0, DELTA), torch.arange(40) % 4),
        (
            FrequencyMoments(40, 2.0, (1.0, 2.0), 1.0, corrupt=3),
            3 * rows(40, 1)[:, 0],
        ),
        (SecureHistogram(40, 4, 1.0, absent=2), torch.arange(40) % 4),
    ],
)
def test_guarantee_servers_add_up_the_same_integers(release, x):
    """Messages to one process or to servers: bit for bit one release from one source; one process,
    and parts.
    """
    servers = release.secure_sum(3)
    once = release.estimate(x, noise=SeededNoise(1))
    sent = release.analyse(release.tally(release.randomize(x, noise=SeededNoise(1))))
    words = servers.tally(servers.randomize(release.rows(x), noise=SeededNoise(1)))
    found = release.released(servers.analyse(words))
    assert torch.equal(found.value, sent.value)
    assert torch.equal(found.standard_error, once.standard_error)
    together = release.released(servers.estimate(release.rows(x), noise=SeededNoise(1)))
    assert torch.equal(together.value, once.value)
    assert servers.grid_factor == pytest.approx(1, rel=1e-6)
    assert servers.guarantee == release.guarantee
    parts = [
        release.randomize(x[k : k + 10], first=k, noise=SeededNoise(k)) for k in range(0, 40, 10)
    ]
    apart = release.analyse(release.add(*map(release.tally, parts)))
    for noisy in (once, apart):
        exact = release.exact(release.summary(x))
        # the noise that is left, of one release and of servers that add up
        off = (noisy.value - exact).abs()
        assert bool((off < 7 * noisy.standard_error).all())
        assert bool(off.any())
    assert not torch.equal(apart.value, once.value)


@pytest.mark.gpu
def test_gram_release_on_a_gpu():
    release = GramRelease(1000, 3, 1.5, 1.0, DELTA, label_bound=1.5)
    x = rows(1000, 4).cuda()
    summary = release.summary(x)
    for noisy in (
        release.estimate(x),
        release.sample_estimate(summary, generator=torch.Generator("cuda")),
    ):
        assert noisy.gram.is_cuda
        assert noisy.cross.is_cuda
        assert float((noisy.gram - summary.gram).abs().max()) < 6 * release.gram_sigma
