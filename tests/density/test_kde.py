"""The shuffled density by the battery, its predicted error, what is saved, and what is refused."""

import dataclasses
import math
from functools import reduce
from typing import ClassVar

import numpy as np
import pytest
import torch
from buckets import LaplacianBuckets
from contract import Contract, MessageContract, Unbiased
from laws import (
    ball,
    bits_law,
    float64,
    generator,
    hockey_stick,
    z_scores,
)
from scipy import stats

from torchdp.density import (
    CentralKDE,
    Density,
    Exponential,
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
    InnerProduct,
    InnerProductRotated,
    LaplacianSigns,
    Projected,
    SecureKDE,
    ShuffledKDE,
    kernel_means,
)
from torchdp.density.density import crowd_counted
from torchdp.draws import Simulated
from torchdp.noise import SeededNoise
from torchdp.protocol import Crowd
from torchdp.shuffle import (
    CentralGaussianSum,
    PoissonSum,
    RandomizedResponseSum,
)

# where epsilon is not tested it is one that is certified at once
D = 5
DELTA = 1e-6
EASY = 25.0
OFFERED = [
    GaussianFourier(D, 1.3),
    GaussianSquareWave(D, 1.3),
    InnerProduct(D),
    InnerProductRotated(D, 1.5),
    LaplacianSigns(D, 2.0),
    Exponential(D, 0.7, 1.0),
    Projected(D, GaussianSquareWave(3, 1.3)),
]
FAMILIES = [*OFFERED, LaplacianBuckets(D, 2.0, 4)]
EACH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)


def shuffled(features, law):
    kind = CentralKDE if isinstance(law, CentralGaussianSum) else ShuffledKDE
    return kind(features, law, DELTA, *(() if kind is CentralKDE else (EASY,)))


N = 12
CIRCLE = torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)[:-1]


class KDEContract:
    """Neighbours: one user's vector of the plane replaced by its opposite, in every direction."""

    alike = True
    # a law of less noise
    less: ClassVar
    x = ball(N, 2).float().double()
    bad: ClassVar = [
        ball(N, D),
        ball(N, 2)[0],
        3 + ball(N, 2),
        ball(N, 2) * math.nan,
        ball(N, 2).half(),
        ball(N + 1, 2),
    ]

    def chances(self, features, vectors):
        """Of ones: (n, instances), from the definition."""
        return (1 + vectors.numpy()) / 2

    def view(self, features, law, vectors):
        raise NotImplementedError

    def loss(self, protocol):
        epsilon = self.protocol.guarantee.epsilon
        worst = 0.0
        for angle in CIRCLE.tolist():
            views = []
            for turn in (0, math.pi):
                # a user at this angle, and at the opposite one
                one = float64(
                    [
                        [
                            math.cos(angle + turn),
                            math.sin(angle + turn),
                        ]
                    ]
                )
                x = torch.cat([one, self.x[1:]])
                views.append(self.view(protocol.features, protocol.law, x))
            worst = max(worst, hockey_stick(*views, epsilon))
        return worst

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        columns = zip(*self.x.tolist(), strict=True)
        return torch.tensor([sum(column) / N for column in columns]).double()

    def test_a_wrong_constant_breaks_the_guarantee(self):
        assert self.loss(dataclasses.replace(self.protocol, law=self.less)) > self.bound(
            self.protocol
        )


class TestInnerProduct(KDEContract, Unbiased, MessageContract):
    stacked = False
    protocol = ShuffledKDE(
        InnerProduct(2).draw(1, generator=generator()),
        PoissonSum(N, 60.0),
        1e-3,
    )
    less = PoissonSum(N, 30.0)

    def view(self, features, law, vectors):
        noise = stats.poisson(law.mean).pmf(np.arange(150))
        sums = [
            np.convolve(bits_law(column), noise) for column in self.chances(features, vectors).T
        ]
        return np.outer(*sums)


class TestSquareWave(KDEContract, Unbiased, MessageContract):
    protocol = ShuffledKDE(
        GaussianSquareWave(2, 0.5).draw(3, generator=generator(4)),
        RandomizedResponseSum(N, 0.25),
        1e-2,
    )
    less = RandomizedResponseSum(N, 0.15)
    bad: ClassVar = [
        ball(N, D),
        ball(N, 2)[0],
        ball(N, 2) * math.nan,
        ball(N, 2).half(),
        ball(N + 1, 2),
    ]

    def signs(self, features, vectors):
        angles = vectors.numpy() @ features.frequencies.numpy() + features.phases.numpy()
        return np.where(np.cos(angles) > 0, 1.0, -1.0)

    def view(self, features, law, vectors):
        ones = (1 + self.signs(features, vectors)) / 2
        arrive = ones * (1 - 2 * law.flip) + law.flip
        laws = [bits_law(column) for column in arrive.T]
        return reduce(np.multiply.outer, laws).ravel()

    def truth(self):
        signs = self.signs(self.protocol.features, self.x)
        return torch.from_numpy(signs.mean(0))


class TestCentral(KDEContract, Unbiased, Contract):
    protocol = CentralKDE(
        InnerProduct(2).draw(1, generator=generator()),
        CentralGaussianSum(N, 2.0),
        1e-3,
    )
    less = CentralGaussianSum(N, 1.95)
    bad: ClassVar = [*KDEContract.bad, ball(N - 1, 2)]

    def loss(self, protocol):
        """Sums of (1 + x)/2 of opposite unit vectors are at distance 1."""
        epsilon = self.protocol.guarantee.epsilon
        m = 1 / protocol.law.sigma
        return stats.norm.sf(epsilon / m - m / 2) - math.exp(epsilon) * stats.norm.sf(
            epsilon / m + m / 2
        )

    def test_guarantee_is_what_the_law_says(self):
        """Room of 4e-6 for float32 coordinates: exact but for that."""
        assert 0.9999 * self.protocol.delta <= self.loss(self.protocol) <= self.protocol.delta


class TestSecure(Unbiased, MessageContract):
    alike = True
    repeats = 4000
    protocol = SecureKDE(
        InnerProduct(2).draw(1, generator=generator()),
        N + 4,
        1.0,
        1e-3,
        corrupt=3,
        absent=5,
    )
    x = KDEContract.x
    bad: ClassVar = [*KDEContract.bad[:5], ball(N + 5, 2)]
    truth = KDEContract.truth

    def loss(self, protocol):
        """Opposite unit vectors are at distance 2; eight honest clients are there."""
        shown = protocol.client_input(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
        distance = (shown[0] - shown[1]).norm()
        mu = float(distance / (8 * protocol.client.variance).sqrt())
        epsilon = self.protocol.epsilon
        return stats.norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon) * stats.norm.sf(
            epsilon / mu + mu / 2
        )

    def bound(self, protocol):
        return protocol.guarantee.delta

    def test_its_error_is_a_curators(self, summary):
        alone = SecureKDE(self.protocol.features, N, 1.0, 1e-3)
        curator = CentralKDE.calibrated(alone.features, N, 1.0, 1e-3)
        torch.testing.assert_close(
            alone.predicted_mse(summary),
            curator.predicted_mse(summary),
            rtol=1e-5,
            atol=0,
        )
        y = ball(3, 2)
        found = alone.estimate(self.x, noise=SeededNoise(1))
        predicted = alone.density_mse(summary, y).total
        torch.testing.assert_close(predicted.sqrt(), found.standard_error_at(y))


def test_crowds_of_equal_vectors_have_the_law_of_their_members():
    values = ball(4, D)
    counts = torch.tensor([3, 1, 9, 2])
    members = values.repeat_interleave(counts, 0)
    for family in FAMILIES:
        features = family.draw(2, generator=generator(2))
        crowd = Crowd(values, counts)
        draws = Simulated(generator(3))
        few, all_ = (
            crowd_counted(features, some, None, draws, (4000,)).double()
            for some in (crowd, Crowd.of(members))
        )
        assert z_scores(few, all_.mean(0)).abs().max() < 6.5
        spread = few.var(0), all_.var(0)
        assert ((spread[0] - spread[1]).abs() <= 0.15 * spread[1] + 1e-9).all()
        kde = CentralKDE(features, CentralGaussianSum(15, 0.0), DELTA)
        torch.testing.assert_close(kde.exact(crowd), kde.exact(Crowd.of(members)))
        released = kde.sample_estimate(crowd, generator=generator(4))
        torch.testing.assert_close(released.value, kde.exact(crowd))
        y = ball(3, D, seed=5)
        torch.testing.assert_close(
            kde.density_mse(crowd, y).total,
            kde.density_mse(Crowd.of(members), y).total,
        )


@EACH
def test_predicted_error_of_given_features_is_the_measured_one(family):
    x = ball(7, D)
    y = ball(4, D, seed=5)
    kde = shuffled(
        family.draw(3, generator=generator(2)),
        RandomizedResponseSum(7, 0.2),
    )
    crowd = kde.summary(x)
    predicted = kde.density_mse(crowd, y)
    density = kde.sample_estimate(
        crowd,
        generator=generator(3),
        sample_shape=(10_000,),
    )
    off = density.evaluate(y) - kernel_means(family, x, y)
    measured = off.square()
    assert z_scores(measured, predicted.total).abs().max() < 4.5
    assert (
        (off.mean(0).abs() - predicted.feature.sqrt()).abs() < 4.5 * off.std(0) / math.sqrt(10_000)
    ).all()
    for part in ("rounding", "privacy"):
        less = predicted.total - getattr(predicted, part)
        assert float(getattr(predicted, part).max()) == 0 or z_scores(measured, less).max() > 6
    assert (
        density.standard_error_at(y)[0]
        >= (predicted.rounding + predicted.privacy).sqrt() * (1 - 1e-12)
    ).all()


SAVED = [*OFFERED, GaussianOrthogonal(D)]


@pytest.mark.parametrize("family", SAVED, ids=lambda family: type(family).__name__)
def test_guarantee_a_saved_release_answers_the_same_and_holds_nothing_else(family, tmp_path):
    x = ball(8, D)
    y = ball(4, D, seed=5)
    kde = shuffled(family.draw(3, generator=generator()), PoissonSum(8, 30.0))
    density = kde.sample_estimate(
        kde.summary(x),
        generator=generator(1),
        sample_shape=(2,),
    )
    density.save(tmp_path / "density.pt")
    loaded = Density.load(tmp_path / "density.pt")
    torch.testing.assert_close(loaded.evaluate(y), density.evaluate(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        loaded.standard_error_at(y),
        density.standard_error_at(y),
        rtol=1e-12,
        atol=0,
    )
    assert loaded.guarantee == density.guarantee
    assert loaded.features.family == family
    assert loaded.stretch is None
    assert loaded.population is loaded.covariance is None
    assert not loaded.sampled
    fields = (
        "features value n standard_error bias error limits stretch guarantee"
        " sampled covariance population"
    )
    assert set(vars(loaded)) == set(fields.split())
    # nothing but the means depends on the data
    other = kde.sample_estimate(kde.summary(ball(8, D, seed=77)), generator=generator(1))
    assert torch.equal(other.standard_error, density.standard_error[0])
    assert other.n == density.n


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "other.pt"
    torch.save({"sums": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="holds no Density"):
        Density.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="holds no Density"):
        Density.load(path)
    path.write_text('{"made": "torchdp.collection.journal:Journal", "of": {"path": "planted"}}')
    with pytest.raises(ValueError, match="holds no Density"):
        Density.load(path)
    with pytest.raises(OSError):
        Density.load(tmp_path / "absent.pt")


class Silent(SeededNoise):
    """Nothing may be drawn from it."""

    def fill(self, words):
        raise AssertionError("drawn")


def test_what_is_wrong_is_refused_before_anything_is_drawn():
    kde = shuffled(
        InnerProductRotated(D).draw(3, generator=generator()),
        PoissonSum(8, 30.0),
    )
    x = ball(8, D)
    source = generator(1)
    before = source.get_state()
    with pytest.raises(ValueError, match="1 to 8, not 9"):
        kde.collect(ball(9, D), noise=Silent(1))
    with pytest.raises(ValueError, match="tally must be of 8 users"):
        kde.estimate(x[:7])
    for wrong, match in (
        (x[:7], "of 8 users, as calibrated, not 7"),
        (3 * x, "norm at most 1"),
    ):
        with pytest.raises(ValueError, match=match):
            kde.sample_estimate(Crowd.of(wrong), generator=source)
    assert torch.equal(source.get_state(), before)
    # unit up to rounding
    kde.estimate(x * (1 + 1e-7) / x.norm(dim=1, keepdim=True))
