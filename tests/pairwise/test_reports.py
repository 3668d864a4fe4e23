"""Reports about the type in quadratic forms: guarantees, strategies, bins, standard errors."""

import math

import pytest
import torch
from laws import counts_of, coverage, log_ratio, sampled
from responses import channel as messages
from responses import spent_by

from pairwise.common import mse, responses, vectors
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.protocol import Tally
from torchdp.queries import LocalOracle
from torchdp.randomizers import (
    OptimizedUnaryEncoding,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

ORACLES = [
    SubsetSelection,
    OptimizedUnaryEncoding,
    SymmetricUnaryEncoding,
]


def response(k, epsilon):
    """Randomized response as a strategy matrix."""
    matrix = torch.ones(k, k, dtype=torch.float64).fill_diagonal_(math.exp(epsilon))
    return StrategyMatrix(matrix / matrix.sum(0))


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_guarantee_strategy_reports(brief, epsilon):
    statistic = pairwise.absolute_difference(4)
    protocol = LocalOracle.of(statistic, response(4, epsilon))
    assert protocol.guarantee.epsilon == pytest.approx(epsilon)
    assert protocol.guarantee.delta == 0
    assert spent(protocol) <= protocol.guarantee.epsilon * (1 + 1e-9)
    assert protocol.bits_per_user == 2
    # control
    assert (
        spent(LocalOracle.of(statistic, response(4, epsilon * 1.01))) > protocol.guarantee.epsilon
    )
    found = LocalOracle.tuned(
        statistic,
        100,
        epsilon,
        generator=keyed_generator(b"g"),
        steps=2,
    )
    bins = pairwise.merged(
        statistic,
        100,
        epsilon,
        2,
        generator=keyed_generator(b"g"),
    )
    assert max(spent(found), spent(bins)) <= epsilon * (1 + 1e-12)
    said_is_sent(protocol)


@pytest.mark.parametrize("kind", ORACLES)
def test_guarantee_subset_pairs(kind):
    protocol = LocalOracle.of(pairwise.unequal(4), kind(4, 1.2))
    oracle = protocol.channel.client
    assert protocol.guarantee == oracle.guarantee
    assert protocol.guarantee.exact
    assert protocol.bits_per_user == oracle.bits_per_user
    assert spent_by(messages(oracle)) == pytest.approx(1.2)
    said_is_sent(protocol)


def spent(protocol):
    Q = protocol.channel.client.matrix
    return log_ratio(Q)


def said_is_sent(protocol):
    """What is heard are the oracle's reports of the users' types, and nothing else is kept of
    them.
    """
    types = torch.tensor([0, 3, 3, 1])
    oracle = protocol.channel.client
    tally = protocol.collect(types, noise=SeededNoise(1))
    sent = oracle.collect(types, noise=SeededNoise(1))
    assert set(tally.parts) == {"reports"}
    assert torch.equal(tally["reports"], sent["reports"])


def test_an_optimised_strategy_beats_the_messages_on_abs_difference(brief):
    statistic = pairwise.absolute_difference(6, spacing=1 / 5)
    n = 10_000
    h = 1 / torch.arange(1, 7, dtype=torch.float64)
    found = LocalOracle.tuned(
        statistic,
        n,
        1.0,
        prior=h,
        generator=keyed_generator(b"best"),
        steps=30,
    )
    best = mse(vectors(statistic, 1.0), h, n)
    assert mse(found, h, n) < 0.8 * best
    worst = LocalOracle.tuned(
        statistic,
        n,
        1.0,
        generator=keyed_generator(b"best"),
        steps=30,
    )

    def largest(protocol):
        return max(mse(protocol, each, n) for each in torch.eye(6))

    assert largest(worst) < largest(found)


def test_merged_bins_are_unbiased_but_for_the_bias_they_state(brief):
    """Eight types in three bins: what is missed on average is what merging does to the kernel, no
    more and no less.
    """
    statistic = pairwise.absolute_difference(8)
    h = torch.tensor([5.0, 1, 1, 3, 2, 0, 1, 7])
    found = pairwise.merged(
        statistic,
        2_000,
        1.0,
        3,
        prior=h,
        generator=keyed_generator(b"bins"),
    )
    counts = (h * 100).long()
    answer = found.sample_estimate(counts, **sampled(20_000, b"merged"))
    truth = statistic.exact(counts)
    error = Moments.of(answer.value - truth)
    assert abs(error.z_score(found.analyst.bias(counts.double()))) < 5
    assert abs(error.z_score(0.0)) > 5
    squared = Moments.of((answer.value - truth).square())
    assert abs(squared.z_score(mse(found, counts, 2_000))) < 5
    assert found.channel.client.epsilon <= 1.0
    few = found.sample_estimate(counts, **sampled(2_000, b"merged ends"))
    # its width allows for the bias
    assert coverage(few.interval(), truth) > 0.97
    bias = abs(found.analyst.bias(counts.double()))
    assert bias < float(answer.bias.mean()) < 0.7 * found.question.distortion
    reports = found.channel.client.randomize(torch.arange(8))
    decoded = found.channel.shares(found.tally(reports))
    # evenly over the types of a bin: two steps between three bins
    assert int((decoded.diff().abs() > 1e-9).sum()) == 2


def test_the_auc_of_many_scores_on_bins(brief):
    """A ratio: the form comes near, the classes' sizes stay as they are; bins across classes are
    refused.
    """
    k = 12
    counts = (
        torch.tensor(
            [
                9,
                8,
                7,
                6,
                5,
                4,
                3,
                2,
                2,
                1,
                1,
                1,
                1,
                1,
                2,
                2,
                3,
                4,
                5,
                5,
                6,
                6,
                4,
                3,
            ]
        )
        * 3_000
    )
    statistic = pairwise.auc(k)
    n = int(counts.sum())
    prior = pairwise.class_histograms(k, 0.4)
    found = pairwise.merged(
        statistic,
        n,
        2.0,
        6,
        prior=prior,
        generator=keyed_generator(b"auc bins"),
    )
    answer = found.sample_estimate(counts, **sampled(4_000, b"merged auc"))
    error = answer.value - statistic.exact(counts)
    assert abs(Moments.of(error).z_score(found.analyst.bias(counts.double()))) < 5
    assert Moments.of(error.square()).mean == pytest.approx(mse(found, counts, n), rel=0.1)
    low, high = answer.interval()
    assert bool((low <= statistic.exact(counts)).all())
    assert float((high - low).mean()) < 0.5


def test_intervals_of_strategies_hold_their_level_for_few_users(brief):
    """The variance at decoded counts cut off at 0, as a histogram, is far too small here."""
    n = 1_000
    counts = counts_of(1 / torch.arange(1, 11), n)
    counts[0] += n - counts.sum()
    statistic = pairwise.absolute_difference(10)
    protocol = LocalOracle.tuned(
        statistic,
        n,
        1.0,
        prior=statistic.histograms,
        generator=keyed_generator(b"level"),
        steps=60,
    )
    tally = protocol.sample_tally(counts, **sampled(2_000, b"few"))
    found = protocol.analyse(tally)
    truth = statistic.exact(counts)
    covered = coverage(found.interval(), truth)
    error = (found.value - truth).abs()
    assert 0.925 < covered < 0.975
    # control: the variance of a histogram, cut off at 0 and scaled
    cut = protocol.channel.shares(tally).clamp_min(0)
    cut = cut * n / cut.sum(-1, keepdim=True)
    naive = protocol.analyst.mean_variance(cut, statistic.form).sqrt()
    control = float((error <= 1.96 * naive).double().mean())
    assert control < covered - 0.02


@pytest.mark.parametrize("types", [2, 5, 16])
def test_standard_errors_of_the_reports_to_be_expected_are_the_predicted_ones(types):
    """Of so many users that the second order is 1e-6 of the first: a constant 1 % off would be
    seen.
    """
    protocol = responses(pairwise.absolute_difference(types), 1.0)
    counts = 10**9 * torch.arange(1, types + 1)
    n = int(counts.sum())
    client = protocol.channel.client
    expected = client.q * n + (client.p - client.q) * counts.double()
    reports = expected.round().long()
    reports[0] += n - reports.sum()
    found = protocol.analyse(Tally(n, {"reports": reports}))
    torch.testing.assert_close(
        found.standard_error.square(),
        protocol.predicted_mse(counts),
        rtol=1e-5,
        atol=0,
    )
