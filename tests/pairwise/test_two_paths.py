"""Two paths, one law: each user's own messages, and the sums drawn from the histogram."""

import pytest
import torch
from scipy.stats import ks_2samp

from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, RandomizedResponsePlugIn, TwoMessage
from torchdp.randomness import keyed_generator

KINDS = [TwoMessage, OneMessage, RandomizedResponsePlugIn]
STATISTIC = pairwise.absolute_difference(4)
COUNTS, OTHER = torch.tensor([0, 1, 3, 20]), torch.tensor([10, 1, 3, 10])
TYPES = torch.arange(4).repeat_interleave(COUNTS)
ALPHA = 1e-6


def same_law(a, b):
    a, b = a.double().numpy(), b.double().numpy()
    size = max(abs(a).max(), abs(b).max())
    return ks_2samp((a / size).round(9), (b / size).round(9)).pvalue > ALPHA  # atoms may differ by rounding


@pytest.mark.parametrize("epsilon", [1.0, 6.0])
@pytest.mark.parametrize("kind", KINDS)
def test_estimates(kind, epsilon):
    protocol, generator = kind(STATISTIC, epsilon), keyed_generator(b"estimates")
    users = [protocol.estimate(TYPES, noise=SeededNoise.of(generator)) for _ in range(300)]
    sums = protocol.estimate_histogram(COUNTS, generator=generator, sample_shape=(10_000,))
    assert same_law(torch.stack([each.value for each in users]), sums.value)
    assert same_law(torch.stack([each.standard_error for each in users]), sums.standard_error)
    assert {each.n for each in users} == {sums.n} == {24}
    if epsilon == 6:
        other = protocol.estimate_histogram(OTHER, generator=generator, sample_shape=(10_000,))
        assert not same_law(torch.stack([each.value for each in users]), other.value)


@pytest.mark.parametrize("kind", [TwoMessage, OneMessage])
def test_sums_of_messages(kind):
    protocol, generator, trials = kind(STATISTIC, 2.0), keyed_generator(b"sums"), 10_000
    users = STATISTIC.points[TYPES].expand(trials, -1, -1)
    drawn = protocol.collect_histogram(COUNTS, generator=generator, sample_shape=(trials,))
    other = protocol.collect_histogram(OTHER, generator=generator, sample_shape=(trials,))
    messages = [protocol.randomizer.sample(users, noise=SeededNoise.of(generator)).sum(1) for _ in drawn]
    directions = torch.randn(STATISTIC.dim, 3, dtype=torch.float64, generator=generator)
    for one, two, wrong in zip(messages, drawn, other, strict=True):
        assert one.shape == two.shape == (trials, STATISTIC.dim)
        for index in range(3):
            assert same_law((one @ directions)[:, index], (two @ directions)[:, index])
        assert same_law(one.square().sum(1), two.square().sum(1))
        assert not same_law(one[:, 0], wrong[:, 0])
    if kind is TwoMessage:  # the two messages of a user have independent noise
        for first, second in (messages, drawn):
            correlation = torch.corrcoef(torch.cat([first, second], 1).mT)[: STATISTIC.dim, STATISTIC.dim :]
            assert float(correlation.abs().max()) < 5 / trials**0.5


def test_sums_of_randomized_responses():
    protocol, generator, trials = RandomizedResponsePlugIn(STATISTIC, 1.0), keyed_generator(b"reports"), 1_500
    users = torch.stack([protocol.collect(TYPES, noise=SeededNoise.of(generator))[0] for _ in range(trials)])
    (drawn,) = protocol.collect_histogram(COUNTS, generator=generator, sample_shape=(trials,))
    (other,) = protocol.collect_histogram(OTHER, generator=generator, sample_shape=(trials,))
    assert bool((users.sum(1) == 24).all()) and bool((drawn.sum(1) == 24).all())
    for x in range(4):
        assert same_law(users[:, x], drawn[:, x])
    assert same_law(users @ torch.tensor([1, -2, 3, 5]), drawn @ torch.tensor([1, -2, 3, 5]))
    assert not same_law(users[:, 3], other[:, 3])


@pytest.mark.parametrize("at_once", [1, 10, 69])
def test_per_user_path_in_small_parts(monkeypatch, at_once):
    # the parts only change which random number goes where: means over repetitions stay
    monkeypatch.setattr("torchdp.pairwise.messages.NUMBERS_AT_ONCE", at_once)
    protocol, generator = OneMessage(STATISTIC, 8.0), keyed_generator(b"parts")
    total = torch.stack([protocol.collect(TYPES, noise=SeededNoise.of(generator))[0] for _ in range(200)])
    want = STATISTIC.points[TYPES].sum(0)
    error = (24 * protocol.randomizer.moments.variance / 200) ** 0.5
    assert float((total.mean(0) - want).abs().max()) < 5 * error
    assert float(total.var(0).mean()) == pytest.approx(24 * protocol.randomizer.moments.variance, rel=0.3)
