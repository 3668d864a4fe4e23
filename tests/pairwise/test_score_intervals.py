"""Intervals with the variance that belongs to each end, and plug-in variances that few users do not bias."""

import pytest
import torch

from torchdp import pairwise
from torchdp.pairwise import OneMessage, OneMessagePairs, RandomizedResponsePlugIn, TwoMessage
from torchdp.pairwise.protocol import score_interval
from torchdp.randomness import keyed_generator

STATISTICS = [pairwise.unequal(16), pairwise.absolute_difference(16)]
ZIPF = 1 / torch.arange(1, 17).double()
FEW_TYPES = torch.tensor([1.0] * 2 + [0.02] * 14).double()


def counts_of(weights, n):
    return (weights / weights.sum() * n).round().long()


def coverage(interval, truth):
    low, high = interval
    return float(((low <= truth) & (truth <= high)).double().mean())


@pytest.mark.parametrize("n", [300, 3000])
@pytest.mark.parametrize("kind", [OneMessage, TwoMessage])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
def test_they_cover_with_a_few_hundred_users(statistic, kind, n):
    counts = counts_of(ZIPF, n)
    answer = kind(statistic, 1.0).estimate_histogram(
        counts, generator=keyed_generator(b"few"), sample_shape=(8_000,)
    )
    assert 0.94 < coverage(answer.interval(), statistic.exact(counts)) < 0.975


def test_the_normal_interval_would_not():
    statistic, counts = STATISTICS[0], counts_of(ZIPF, 1000)
    answer = OneMessage(statistic, 1.0).estimate_histogram(
        counts, generator=keyed_generator(b"few"), sample_shape=(8_000,)
    )
    truth = statistic.exact(counts)
    assert 0.94 < coverage(answer.interval(), truth) < 0.965
    assert coverage(score_interval(answer.value, answer.standard_error, 0.0, 0.95), truth) < 0.93


def test_its_ends_have_their_own_variance():
    value, error, slope = (torch.tensor(each).double() for each in (0.3, 0.2, -0.1))
    for end in score_interval(value, error, slope, 0.9):
        assert float((value - end).square()) == pytest.approx(
            1.6448536**2 * float(error.square() + slope * (end - value)), rel=1e-6
        )


@pytest.mark.parametrize("kind", [OneMessage, TwoMessage, OneMessagePairs])
@pytest.mark.parametrize("pairs", list(pairwise.Pairs))
def test_the_slope_is_how_the_exact_variance_follows_the_value(kind, pairs):
    # many users, so that terms of order 1/n of the variance are out of sight
    for statistic in (pairwise.absolute_difference(5, spacing=0.3), pairwise.unequal(5)):
        statistic = pairwise.PairwiseStatistic(
            statistic.name, statistic.points, statistic.form, statistic.denominator, pairs=pairs
        )
        protocol, n = kind(statistic, 1.0), 10**7
        histograms = torch.tensor([[3.0, 1, 1, 1, 4], [1, 1, 5, 1, 1]]).double() / 10
        variances = [protocol.predicted_mse(each, n) for each in histograms]
        values = [float(statistic.exact(each * n)) for each in histograms]
        m = float(n)
        slope = float(protocol.variance_slope(m, statistic.form))
        assert slope < 0
        assert slope == pytest.approx((variances[1] - variances[0]) / (values[1] - values[0]), rel=1e-4)
    indefinite = pairwise.kendall(2, 3)
    assert float(kind(indefinite, 1.0).variance_slope(100.0, indefinite.form)) == 0


@pytest.mark.parametrize("weights", [ZIPF, FEW_TYPES, torch.ones(16).double()])
@pytest.mark.parametrize("statistic", [*STATISTICS, pairwise.kendall(4, 4)], ids=lambda each: each.name)
def test_randomized_response_knows_its_error_with_a_thousand_users(statistic, weights):
    counts = counts_of(weights, 3000)
    n, protocol = int(counts.sum()), RandomizedResponsePlugIn(statistic, 1.0)
    answer = protocol.estimate_histogram(counts, generator=keyed_generator(b"rr"), sample_shape=(8_000,))
    ratio = float(answer.standard_error.square().mean()) / protocol.predicted_mse(counts, n)
    degenerate = statistic.name == "unequal" and bool((weights == 1).all())  # no first-order term: cut off at 0
    assert 0.97 < ratio < (1.35 if degenerate else 1.06)
    # control: at the decoded histogram cut off at 0, it is off by a third where few types are held
    decoded = protocol.randomizer.decode_counts(
        protocol.collect_histogram(counts, generator=keyed_generator(b"rr"), sample_shape=(500,))[0]
    ).clamp_min(0)
    cut = protocol.mean_variance(decoded * (n / decoded.sum(-1, keepdim=True)), statistic.form).mean()
    if weights is FEW_TYPES:
        assert float(cut) < 0.85 * protocol.predicted_mse(counts, n)
