"""Reports about the type in quadratic forms: exact variances, one law of two paths, guarantees."""

import math
from itertools import product

import pytest
import torch
from pairs import from_factors

from pairwise.common import mse, responses
from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import PairReports
from torchdp.pairwise.variance import pairs_variance
from torchdp.protocol import Tally
from torchdp.randomizers import (
    OptimizedUnaryEncoding,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.draws import unpack
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

ORACLES = [SubsetSelection, OptimizedUnaryEncoding, SymmetricUnaryEncoding]
VARIED = from_factors(  # its diagonal f(x, x) is 1, 4, -2
    torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, -3.0]]), torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
)
STATISTICS = [pairwise.absolute_difference(2), pairwise.absolute_difference(5), pairwise.unequal(3), VARIED]


def response(k, epsilon):
    """Randomized response as a strategy matrix."""
    matrix = torch.ones(k, k, dtype=torch.float64).fill_diagonal_(math.exp(epsilon))
    return StrategyMatrix(matrix / matrix.sum(0))


def uneven(k, epsilon):
    """A strategy of 2k outputs without any symmetry."""
    logits = torch.rand(2 * k, k, dtype=torch.float64, generator=keyed_generator(b"uneven"))
    matrix = (logits * epsilon / 2).exp()
    return StrategyMatrix(matrix / matrix.sum(0), torch.arange(1.0, k + 1).double())


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("kind", [RandomizedResponse, *ORACLES])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: f"{each.name}{each.types}")
def test_symmetric_variance_is_the_general_one(statistic, kind, epsilon):
    k = statistic.types
    protocol = (
        responses(statistic, epsilon) if kind is RandomizedResponse else PairReports(statistic, epsilon, kind)
    )
    project = torch.eye(k, dtype=torch.float64) - 1 / k
    side = project @ statistic.points
    covariances = torch.stack([side.mT @ protocol.client.covariance(x) @ side for x in range(k)])
    counts = torch.arange(k).double() + 1.5
    want = pairs_variance(statistic.points, covariances, counts, statistic.form.weights)
    torch.testing.assert_close(protocol.mean_variance(counts, statistic.form), want, rtol=1e-10, atol=0)


@pytest.mark.parametrize("counts", [[1, 1, 0], [0, 3, 0], [1, 1, 1]])
@pytest.mark.parametrize("statistic", [pairwise.absolute_difference(3), VARIED], ids=lambda each: each.name)
def test_strategy_by_enumeration_of_all_outputs(statistic, counts):
    protocol, counts = PairReports(statistic, 1.1, uneven(3, 1.0)), torch.tensor(counts)
    Q, n = protocol.client.matrix, int(counts.sum())
    users = torch.arange(3).repeat_interleave(counts)
    outputs = torch.tensor(list(product(range(len(Q)), repeat=n)))
    chance = Q[outputs, users].prod(1)
    values = protocol.mean(
        Tally(n, {"reports": torch.nn.functional.one_hot(outputs, len(Q)).sum(1)}), statistic.form
    )
    mean = chance @ values
    assert float(mean) == pytest.approx(float(statistic.exact(counts)), rel=1e-9, abs=1e-9)
    got = protocol.mean_variance(counts.double(), statistic.form)
    assert float(got) == pytest.approx(float(chance @ (values - mean).square()), rel=1e-9)


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("counts", [[1, 1, 0], [0, 2, 1]])
def test_subsets_by_enumeration_of_all_messages(kind, counts):
    protocol, counts = PairReports(VARIED, 1.5, kind), torch.tensor(counts)
    oracle, n = protocol.client, int(counts.sum())
    masks = torch.arange(8)
    bits = ((masks[:, None] >> torch.arange(3)) & 1).double()
    p, q = torch.tensor([oracle.on, oracle.off], dtype=torch.float64)
    if kind is SubsetSelection:
        w = oracle.subset
        alike = torch.where(bits == 1, p / math.comb(2, w - 1), (1 - p) / math.comb(2, w))
        law = torch.where(bits.sum(1, keepdim=True) == w, alike, 0.0)
    else:
        off = torch.where(bits == 1, q, 1 - q)
        law = torch.where(bits == 1, p, 1 - p) / off * off.prod(1, keepdim=True)
    torch.testing.assert_close(law.sum(0), torch.ones(3, dtype=torch.float64))
    users = torch.arange(3).repeat_interleave(counts)
    sent = torch.tensor(list(product(range(8), repeat=n)))
    chance = law[sent, users].prod(1)
    sent, chance = sent[chance > 0], chance[chance > 0]
    tallies = [protocol.tally(masks[:, None][each]) for each in sent]
    parts = {name: torch.stack([each[name] for each in tallies]) for name in protocol.layout}
    values = protocol.mean(Tally(n, parts), VARIED.form)
    mean = chance @ values
    assert float(mean) == pytest.approx(float(VARIED.exact(counts)), rel=1e-9, abs=1e-9)
    got = protocol.mean_variance(counts.double(), VARIED.form)
    assert float(got) == pytest.approx(float(chance @ (values - mean).square()), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_guarantee_strategy_reports(brief, epsilon):
    statistic = pairwise.absolute_difference(4)
    protocol = PairReports(statistic, epsilon, response(4, epsilon))
    Q = protocol.client.matrix
    assert math.log(float((Q.amax(1) / Q.amin(1)).max())) <= epsilon * (1 + 1e-9)
    assert protocol.guarantee.epsilon == pytest.approx(epsilon) and protocol.guarantee.delta == 0
    assert protocol.bits_per_user == 2
    with pytest.raises(ValueError, match="epsilon must be at least"):  # control: a matrix that spends more
        PairReports(statistic, epsilon, response(4, epsilon * 1.01))
    found = PairReports.tuned(statistic, 100, epsilon, generator=keyed_generator(b"g"), steps=2)
    Q = found.client.matrix
    assert math.log(float((Q.amax(1) / Q.amin(1)).max())) <= epsilon * (1 + 1e-12)
    # what users send is the strategy's output, of their own type
    types = torch.tensor([0, 3, 3, 1])
    tally = protocol.collect(types, noise=SeededNoise(1))
    sent = protocol.client.randomize(types, noise=SeededNoise(1))
    assert torch.equal(tally["reports"], torch.bincount(sent, minlength=4))


@pytest.mark.parametrize("kind", ORACLES)
def test_guarantee_subset_pairs(kind):
    protocol = PairReports(pairwise.unequal(4), 1.2, kind)
    oracle = protocol.client
    assert protocol.guarantee.epsilon == oracle.epsilon == 1.2 and protocol.guarantee.exact
    assert protocol.bits_per_user == oracle.bits_per_user
    p, q = oracle.on, oracle.off
    if kind is SubsetSelection:  # a set is uniform given whether it holds x: P(S | x in S) / P(S | x not in S)
        sizes = math.comb(3, oracle.subset - 1), math.comb(3, oracle.subset)
        assert math.log(p / sizes[0] / ((1 - p) / sizes[1])) == pytest.approx(1.2)
    else:  # two bits of a message can tell two types apart
        assert math.log(p * (1 - q) / (q * (1 - p))) == pytest.approx(1.2)
    types = torch.tensor([0, 3, 3, 1])
    tally = protocol.collect(types, noise=SeededNoise(1))
    sent = oracle.randomize(types, noise=SeededNoise(1))
    assert torch.equal(tally["reports"], oracle.tally(sent)["reports"])
    centred = protocol.statistic.points - protocol.statistic.points.mean(0)
    vectors = unpack(sent)[:, :4].double() @ centred / oracle.gap + protocol.statistic.points.mean(0)
    torch.testing.assert_close(tally["squares"], vectors.square().sum(0))


def test_an_optimised_strategy_beats_the_messages_on_abs_difference(brief):
    statistic, n = pairwise.absolute_difference(6, spacing=1 / 5), 10_000
    h = 1 / torch.arange(1, 7, dtype=torch.float64)
    found = PairReports.tuned(statistic, n, 1.0, prior=h, generator=keyed_generator(b"best"), steps=30)
    best = mse(pairwise.OneMessage(statistic, 1.0), h, n)
    assert mse(found, h, n) < 0.8 * best
    worst = PairReports.tuned(statistic, n, 1.0, generator=keyed_generator(b"best"), steps=30)

    def largest(protocol):
        return max(mse(protocol, each, n) for each in torch.eye(6))

    assert largest(worst) < largest(found)


def test_merged_bins_are_unbiased_but_for_the_bias_they_state(brief):
    """Eight types in three bins: what is missed on average is what merging does to the kernel, no more and no less."""
    statistic, h = pairwise.absolute_difference(8), torch.tensor([5.0, 1, 1, 3, 2, 0, 1, 7])
    found = PairReports.merged(statistic, 2_000, 1.0, 3, prior=h, generator=keyed_generator(b"bins"))
    counts = (h * 100).long()
    answer = found.sample_estimate(counts, generator=keyed_generator(b"merged"), sample_shape=(20_000,))
    error = Moments.of(answer.value - statistic.exact(counts))
    assert abs(error.z_score(found.bias(counts.double()))) < 5 and abs(error.z_score(0.0)) > 5
    squared = Moments.of((answer.value - statistic.exact(counts)).square())
    assert abs(squared.z_score(mse(found, counts, 2_000))) < 5
    assert found.client.epsilon <= 1.0
    low, high = answer.interval()  # its width allows for the bias
    assert float(((low <= statistic.exact(counts)) & (statistic.exact(counts) <= high)).double().mean()) > 0.97
    assert abs(found.bias(counts.double())) < float(answer.bias.mean()) < 0.7 * found.distortion
    decoded = found.decoded(found.tally(found.client.randomize(torch.arange(8))))
    assert int((decoded.diff().abs() > 1e-9).sum()) == 2  # evenly over the types of a bin


def test_the_auc_of_many_scores_on_bins(brief):
    """A ratio: the form comes near, the classes' sizes stay as they are; bins across classes are refused."""
    k, counts = 12, torch.tensor([9, 8, 7, 6, 5, 4, 3, 2, 2, 1, 1, 1, 1, 1, 2, 2, 3, 4, 5, 5, 6, 6, 4, 3]) * 3_000
    statistic, n = pairwise.auc(k), int(counts.sum())
    prior = pairwise.class_histograms(k, 0.4)
    found = PairReports.merged(statistic, n, 2.0, 6, prior=prior, generator=keyed_generator(b"auc bins"))
    answer = found.sample_estimate(counts, generator=keyed_generator(b"merged auc"), sample_shape=(4_000,))
    error = answer.value - statistic.exact(counts)
    assert abs(Moments.of(error).z_score(found.bias(counts.double()))) < 5
    assert Moments.of(error.square()).mean == pytest.approx(mse(found, counts, n), rel=0.1)
    low, high = answer.interval()
    assert bool((low <= statistic.exact(counts)).all()) and float((high - low).mean()) < 0.5


def test_intervals_of_strategies_hold_their_level_for_few_users(brief):
    """The variance at decoded counts cut off at 0, as a histogram, is far too small here."""
    n, counts = 1_000, (1_000 / torch.arange(1, 11) / 2.929).round().long()
    counts[0] += n - counts.sum()
    statistic = pairwise.absolute_difference(10)
    protocol = PairReports.tuned(
        statistic, n, 1.0, prior=pairwise.histograms(statistic), generator=keyed_generator(b"level"), steps=60
    )
    tally = protocol.sample_tally(counts, generator=keyed_generator(b"few"), sample_shape=(2_000,))
    found, truth = protocol.analyse(tally), statistic.exact(counts)
    low, high = found.interval()
    assert 0.925 < float(((low <= truth) & (truth <= high)).double().mean()) < 0.975
    cut = protocol.decoded(tally).clamp_min(0)
    naive = protocol.mean_variance(cut * n / cut.sum(-1, keepdim=True), statistic.form).sqrt()
    assert float(((found.value - truth).abs() <= 1.96 * naive).double().mean()) < 0.92


@pytest.mark.parametrize("types", [2, 5, 16])
def test_standard_errors_of_the_reports_to_be_expected_are_the_predicted_ones(types):
    """Of so many users that the second order is 1e-6 of the first: a constant 1 % off would be seen."""
    protocol = pairwise.PairReports(pairwise.absolute_difference(types), 1.0, RandomizedResponse)
    counts = 10**9 * torch.arange(1, types + 1)
    n = int(counts.sum())
    client = protocol.client
    reports = (client.q * n + (client.p - client.q) * counts.double()).round().long()
    reports[0] += n - reports.sum()
    found = protocol.analyse(Tally(n, {"reports": reports}))
    torch.testing.assert_close(found.standard_error.square(), protocol.predicted_mse(counts), rtol=1e-5, atol=0)
