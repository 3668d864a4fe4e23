"""Frequency moments and histograms: guarantees, their batteries, errors that do not grow with n."""

import math
from typing import ClassVar

import pytest
import torch
from contract import MessageContract
from laws import coverage, float64, sampled
from products import gaussian_delta
from scipy import stats

from torchdp.privacy import (
    Arithmetic,
    Model,
    Neighbours,
    gaussian_sigma,
)
from torchdp.protocol import Tally
from torchdp.regression import (
    FrequencyMoments,
    GramRelease,
    SecureHistogram,
)

# level of each statistical test
ALPHA = 1e-6
EPSILON = 0.5
DELTA = 1e-5
NUMBERS = torch.linspace(-2, 2.5, 30, dtype=torch.float64)
TYPES = torch.arange(4).repeat_interleave(torch.tensor([0, 1, 3, 26]))


class TestFrequencyMoments(MessageContract):
    alike = True
    """One Gaussian pair at the distance of 0 and D; or, far out, Laplace noise in every moment."""

    repeats = 4000
    protocol = FrequencyMoments(
        40,
        2.0,
        (1.0, 2.5),
        2.0,
        0.1,
        corrupt=5,
        absent=10,
    )
    x = NUMBERS
    bad: ClassVar = [NUMBERS[None], NUMBERS * math.nan, torch.zeros(41)]

    def loss(self, protocol):
        shown = protocol.client_input(torch.tensor([0.0, 2.0]))
        distance = (shown[0] - shown[1]).norm()
        mu = float(distance / protocol.client.variance.sqrt()) / math.sqrt(25)
        return gaussian_delta(mu, self.protocol.epsilon)

    def bound(self, protocol):
        return protocol.guarantee.delta

    def truth(self):
        x = self.x.abs().clamp(max=2)
        return torch.stack([x.sum(), x.pow(2.5).sum()])


class TestFrequencyMomentsWithLaplaceNoise(TestFrequencyMoments):
    stacked = False
    protocol = FrequencyMoments(40, 2.0, (1.0, 2.5), 2.0, corrupt=5, absent=10)

    def loss(self, protocol):
        shown = protocol.client_input(torch.tensor([0.0, 2.0]))
        # of the Laplace that 25 clients make: 2 b^2
        variance = 25 * float(protocol.client.variance)
        distance = (shown[0] - shown[1]).abs().sum()
        return float(distance) / math.sqrt(variance / 2)

    def bound(self, protocol):
        return self.protocol.epsilon


class TestSecureHistogram(MessageContract):
    alike = True
    repeats = 4000
    protocol = SecureHistogram(40, 4, 2.0, 0.1, corrupt=5, absent=10)
    x = TYPES
    bad: ClassVar = [
        TYPES[None],
        torch.tensor([4]),
        torch.tensor([0.5]),
        torch.zeros(41, dtype=torch.int64),
    ]

    def loss(self, protocol):
        deviation = float(protocol.client.variance) ** 0.5
        return gaussian_delta(math.sqrt(2) / deviation / 5, self.protocol.epsilon)

    def bound(self, protocol):
        return protocol.delta

    def truth(self):
        return float64([0.0, 1.0, 3.0, 26.0])


def check(release, encoded, delta):
    """The largest distance among these encodings is the sensitivity, and the noise spends all the
    budget on it.
    """
    distances = torch.pdist(encoded.double(), p=2 if delta else 1)
    distance = float(distances.max())
    client = release.client
    assert distance == pytest.approx(release.shown.l2 if delta else release.shown.l1, rel=1e-9)
    if delta:
        # of 100 clients
        whole = 10 * float(client.sigma)
        assert gaussian_delta(distance / whole, EPSILON) == pytest.approx(DELTA, rel=1e-6)
        assert gaussian_delta(distance / whole / 0.99, EPSILON) > 1.01 * DELTA
    else:
        # log ratio of two chances of a discrete Laplace variable
        assert distance * client.rate * client.ring.scale == pytest.approx(EPSILON, rel=1e-9)
    told = release.guarantee
    assert told.epsilon == EPSILON
    assert told.exact is False
    assert told.arithmetic == Arithmetic.ROUNDED
    assert told.delta == DELTA if delta else told.pure
    assert told.model == Model.LINEAR_TRANSFORM
    assert told.neighbours == Neighbours.REPLACE_ONE


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("bound", [0.3, 2.0])
@pytest.mark.parametrize("orders", [(2.0,), (1.0, 2.0, 3.5)])
def test_guarantee_frequency_moments_spend_epsilon_delta(delta, bound, orders):
    release = FrequencyMoments(100, bound, orders, EPSILON, delta)
    x = torch.cat(
        [
            torch.linspace(-bound, bound, 200),
            torch.tensor([0.0, 9.0, -9.0]),
        ]
    )
    check(release, release.client_input(x), delta)


@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_guarantee_secure_histogram_spends_epsilon_delta(delta):
    check(SecureHistogram(100, 4, EPSILON, delta), torch.eye(4), delta)


@pytest.mark.parametrize("heard", [80, 79, 12])
def test_sums_of_fewer_clients_than_the_noise_allows_are_refused(heard):
    gone = {"corrupt": 10, "absent": 20}
    release = GramRelease(100, 3, 1.0, 1.0, 1e-6, **gone)
    laplace = SecureHistogram(100, 6, 1.0, **gone)
    tally = Tally(heard, {"words": torch.zeros(1, 6, dtype=torch.int64)})
    if heard >= 80:
        # standard deviation of a client's noise
        one = gaussian_sigma(1.0, 1e-6, math.sqrt(2)) / math.sqrt(70)
        assert float(release.analyse(tally).gram_sigma) == pytest.approx(
            one * math.sqrt(heard), rel=1e-6
        )
        assert laplace.analyse(tally).standard_error.square().sum() == pytest.approx(
            5 * 8 * heard / 70, rel=1e-6
        )
        return
    for other in (release, laplace):
        with pytest.raises(
            ValueError,
            match=f"tally is of {heard} clients.* absent = 20 may drop out",
        ):
            other.analyse(tally)


def test_the_error_does_not_depend_on_n_and_histograms_add_up():
    for delta in (0.0, DELTA):
        few, many = (
            FrequencyMoments(n, 2.0, (1.0, 3.0), 1.0, delta).worst_mse(n) for n in (1, 10**9)
        )
        torch.testing.assert_close(few, many, rtol=1e-5, atol=0)
        histogram = SecureHistogram(30, 4, 1.0, delta, corrupt=20)
        assert float(histogram.estimate(TYPES).value.sum()) == pytest.approx(30)
        assert float(histogram.worst_mse(30)) == pytest.approx(0.75 * histogram.level**2)


@pytest.mark.parametrize(
    ("protocol", "x"),
    [
        (
            FrequencyMoments(40, 2.0, (1.0, 2.5), 1.0),
            NUMBERS.repeat(2)[:40],
        ),
        (SecureHistogram(40, 4, 1.0), TYPES.repeat(2)[:40]),
        (SecureHistogram(40, 4, 1.0).secure_sum(servers=2), None),
    ],
)
def test_intervals_of_laplace_noise_cover(protocol, x):
    """Everybody is heard and nobody may be corrupt: the noise of a sum is one Laplace variable."""
    data = torch.zeros(40, 4).double() if x is None else x
    summary = protocol.summary(data)
    found = protocol.sample_estimate(summary, **sampled(20_000, b"covered"))
    truth = protocol.exact(summary)
    # all intervals of all runs
    at_once = 20_000 * found.value[0].numel()
    for level in (0.95, 0.99, 0.999):
        low, high = found.interval(level)
        outside = 1 - coverage((low, high), truth)
        assert outside < (1 - level) + 5 * math.sqrt((1 - level) / at_once)
    # control: a normal quantile is too small for the tails of the noise
    reach = stats.norm.ppf(0.9995) * found.standard_error
    normal = float(((found.value - truth).abs() > reach).double().mean())
    # the control: normal ends are passed five times as often
    assert normal > 0.003
