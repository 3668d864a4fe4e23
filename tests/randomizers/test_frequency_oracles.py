"""Frequency oracles against their laws written out: privacy, moments, and both ways of drawing
reports.
"""

import itertools
import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from laws import normal, sampled
from scipy import stats
from scipy.linalg import hadamard

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.alphabet import subset_selection
from torchdp.randomizers.alphabet.subset_selection import subset_error
from torchdp.randomizers.draws import unpack

# level of each statistical test
ALPHA = 1e-6
EPSILONS = [0.01, 1, 4, 8]
ORACLES = [
    RandomizedResponse,
    OptimizedUnaryEncoding,
    SymmetricUnaryEncoding,
    SubsetSelection,
    HadamardResponse,
]


def packed(sets, k):
    """One message of one word for each set of values (k <= 8)."""
    words = [[[sum(1 << v for v in members)]] for members in sets]
    return torch.tensor(words)


def written_out(kind, k, epsilon):
    """All messages, and the probability of each for each type, (k, messages), from the
    definitions.
    """
    e = math.exp(epsilon)
    if kind is RandomizedResponse:
        law = np.full((k, k), 1.0)
        np.fill_diagonal(law, e)
        law /= e + k - 1
        return torch.arange(k)[:, None], law
    if kind is HadamardResponse:
        size = 2 ** math.ceil(math.log2(k + 1))
        weights = np.where(hadamard(size)[1 : k + 1] > 0, e, 1.0)
        return torch.arange(size)[:, None], weights * 2 / size / (e + 1)
    if kind is SubsetSelection:
        w = kind(k, epsilon).subset
        sets = list(itertools.combinations(range(k), w))
        likely = w * e / (w * e + k - w) / math.comb(k - 1, w - 1)
        other = (k - w) / (w * e + k - w) / math.comb(k - 1, w)
        law = [[likely if x in s else other for s in sets] for x in range(k)]
        return packed(sets, k), np.array(law)
    if kind is OptimizedUnaryEncoding:
        p = 0.5
        q = 1 / (e + 1)
    else:
        q = 1 / (e**0.5 + 1)
        p = 1 - q
    sets = [s for r in range(k + 1) for s in itertools.combinations(range(k), r)]

    def chance(x, members):
        one = [p if v == x else q for v in range(k)]
        return math.prod(one[v] if v in members else 1 - one[v] for v in range(k))

    law = [[chance(x, s) for s in sets] for x in range(k)]
    return packed(sets, k), np.array(law)


def odds(p):
    return p / (1 - p)


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("k", [2, 3, 8])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_guarantee_oracles_are_exactly_epsilon_ldp(kind, k, epsilon):
    _, law = written_out(kind, k, epsilon)
    np.testing.assert_allclose(law.sum(1), 1, rtol=1e-12)
    ratios = law.max(0) / law.min(0)
    largest = math.log(ratios.max())
    assert largest == pytest.approx(epsilon, rel=1e-12, abs=1e-12)
    # control: 1 % more epsilon in the probabilities is seen
    wrong = written_out(kind, k, 1.01 * epsilon)[1]
    ratios = wrong.max(0) / wrong.min(0)
    assert math.log(ratios.max()) > epsilon * 1.009
    oracle = kind(k, epsilon)
    near = {"rel": 1e-12, "abs": 1e-14}
    guarantee = oracle.guarantee
    assert guarantee.epsilon == epsilon
    assert guarantee.delta == 0
    assert guarantee.exact is True
    assert guarantee.model == Model.LOCAL
    assert guarantee.neighbours == Neighbours.REPLACE_ONE
    if kind in (OptimizedUnaryEncoding, SymmetricUnaryEncoding):
        assert math.log(odds(oracle.on) / odds(oracle.off)) == pytest.approx(epsilon, **near)
    # by the ratio of a set with the own value to one without it
    if kind is SubsetSelection:
        w = oracle.subset
        p = oracle.on
        a = oracle._bound
        with_x = p / math.comb(k - 1, w - 1)
        without_x = (1 - p) / math.comb(k - 1, w)
        assert math.log(with_x / without_x) == pytest.approx(epsilon, **near)
        # The sweep's two branches, uniform over all sets and over those that hold x, have the same
        # ratio.
        own = a / math.comb(k - 1, w - 1)
        even = (1 - a) / math.comb(k, w)
        assert math.log(1 + own / even) == pytest.approx(epsilon, **near)


@pytest.mark.parametrize(
    ("k", "epsilon", "n"),
    [
        (37, 0.5, 5000),
        (50, 1.0, 10**9),
        (40, 3.0, 3),
    ],
)
def test_tables_of_subsets_taken_in_parts_keep_mean_and_covariance(monkeypatch, k, epsilon, n):
    # so few cells at once that 1,000 tables are drawn in several parts
    monkeypatch.setattr(subset_selection, "CELLS", 20_000)
    oracle = SubsetSelection(k, epsilon)
    repeats = 1000
    counts = torch.zeros(k, dtype=torch.int64)
    counts[0] = n // 2
    counts[-1] = n - n // 2
    tally = oracle.sample_tally(counts, **sampled(repeats, 32))
    drawn = tally["reports"].double()
    assert bool((drawn.sum(1) == n * oracle.subset).all())
    covariance = oracle.gap**2 * (
        counts[0] * oracle.covariance(0) + counts[-1] * oracle.covariance(k - 1)
    )
    spread = covariance.diag().sqrt()
    mean = n * oracle.off + oracle.gap * counts
    z = (drawn.mean(0) - mean) / spread * math.sqrt(repeats)
    assert float(z.abs().max()) < 5.5
    apart = (drawn.mT.cov() - covariance) / (spread[:, None] * spread)
    # of three users: long tails
    assert float(apart.abs().max()) * math.sqrt(repeats) < (8 if n > 3 else 12)


def law_of_the_tally(kind, k, epsilon, x):
    """The chance of each tally of users who hold x, from the definitions: user after user, message
    after message.
    """
    messages, table = written_out(kind, k, epsilon)
    oracle = kind(k, epsilon)
    counted = [oracle._counted(message) for message in messages]
    reports = [tuple(report.tolist()) for report in counted]
    law = {(0,) * len(reports[0]): 1.0}
    for held in x:
        longer = {}
        for total, chance in law.items():
            for report, own in zip(reports, table[held], strict=True):
                more = tuple(a + b for a, b in zip(total, report, strict=True))
                longer[more] = longer.get(more, 0.0) + chance * own
        law = longer
    return law


@pytest.mark.parametrize(
    ("kind", "k", "epsilon", "x"),
    [
        (HadamardResponse, 2, 1.0, [0, 0, 1]),
        (HadamardResponse, 6, 0.5, [0, 3, 3]),
        (SubsetSelection, 4, 0.1, [0, 1, 1, 3]),
        (SubsetSelection, 5, 0.3, [2, 2, 4]),
        (SubsetSelection, 7, 0.7, [1, 6]),
        (SubsetSelection, 6, 4.0, [0, 5, 5]),
    ],
)
def test_the_tally_that_is_sampled_has_the_joint_law_of_the_messages(kind, k, epsilon, x):
    law = law_of_the_tally(kind, k, epsilon, x)
    repeats = 20_000
    counts = torch.bincount(torch.tensor(x), minlength=k)
    oracle = kind(k, epsilon)
    tally = oracle.sample_tally(counts, **sampled(repeats, 31))
    values, times = tally["reports"].unique(dim=0, return_counts=True)
    seen = dict(zip(map(tuple, values.tolist()), times.tolist(), strict=True))
    assert set(seen) <= set(law)
    # chi-square's approximation wants several expected draws in a cell: the rare ones are one cell
    often = [tally for tally, chance in law.items() if chance * repeats > 8]
    expected = np.array([law[tally] * repeats for tally in often])
    observed = np.array([seen.get(tally, 0) for tally in often])
    # what is rarer is one cell; five more, so that it is never empty
    expected = np.append(expected, repeats - expected.sum() + 5)
    observed = np.append(observed, repeats - observed.sum() + 5)
    expected *= observed.sum() / expected.sum()
    assert stats.chisquare(observed, expected).pvalue > ALPHA


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("k", [2, 3, 5, 8])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_decoded_moments_by_enumeration(kind, k, epsilon):
    oracle = kind(k, epsilon)
    messages, law = written_out(kind, k, epsilon)
    law = torch.from_numpy(law)
    decoded = torch.stack([oracle.totals(oracle.tally(message)) for message in messages])
    # at small epsilon one message is decoded to thousands
    scale = float(decoded.abs().max())
    identity = torch.eye(k).double()
    torch.testing.assert_close(law @ decoded, identity, rtol=0, atol=1e-12 * scale)
    W = normal(3, k)
    stated = oracle.workload_variance(W)
    for x in range(k):
        centred = decoded - identity[x]
        covariance = centred.mT @ (law[x][:, None] * centred)
        torch.testing.assert_close(
            oracle.covariance(x),
            covariance,
            rtol=1e-11,
            atol=1e-14 * scale**2,
        )
        torch.testing.assert_close(
            stated[:, x],
            ((W @ covariance) * W).sum(1),
            rtol=1e-10,
            atol=1e-14 * scale**2,
        )
        # control: an epsilon 1 per cent off
        wrong = kind(k, 1.01 * epsilon).covariance(x)
        assert float(wrong[x, x]) != pytest.approx(float(covariance[x, x]), rel=1e-4)


def largest_rate(decoded, law, W):
    """The largest 2 log E exp(t (<W_i, Y> - W_ix))/t^2 over a grid of t and all types,
    (queries,).
    """
    answers = W @ decoded.mT
    rates = torch.logspace(-3, 2, 400)
    t = torch.cat([rates, -rates]).double()
    t = t[:, None] / answers.abs().amax(1)  # (rates, queries)
    rates = []
    for x in range(len(law)):
        centred = answers - W[:, x, None]
        exponent = t[:, :, None] * centred + law[x].clamp_min(1e-300).log()
        rates.append(2 * exponent.logsumexp(-1) / t.square())
    return torch.stack(rates).amax((0, 1))


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.3), (3, 4.0), (5, 1.0), (8, 2.5)])
def test_guarantee_variance_proxies_bound_the_moments_of_every_type(kind, k, epsilon):
    oracle = kind(k, epsilon)
    messages, law = written_out(kind, k, epsilon)
    decoded = torch.stack([oracle.totals(oracle.tally(m)) for m in messages])
    law = torch.from_numpy(law)
    W = normal(6, k)
    for queries, proxies in (
        (W, oracle.workload_proxy(W)),
        (torch.eye(k).double(), oracle.variance_proxy),
    ):
        assert proxies.shape == (len(queries),)
        assert (largest_rate(decoded, law, queries) <= proxies * (1 + 1e-8)).all()
        assert (oracle.workload_variance(queries).amax(1) <= proxies * (1 + 1e-8)).all()
    # one bit of a message has two values, and no smaller number will do; of two types less than
    # Hoeffding's serves
    rates = largest_rate(decoded, law, torch.eye(k).double())
    assert (rates > oracle.variance_proxy * 0.995).all()
    width = decoded.amax(0) - decoded.amin(0)
    assert (oracle.variance_proxy <= width.square() / 4 * (1 + 1e-12)).all()


def test_subset_selection_takes_the_size_of_least_error():
    for k, epsilon in (
        (8, 0.5),
        (20, 1.0),
        (64, 2.0),
        (64, 4.0),
        (5, 8.0),
    ):
        oracle = SubsetSelection(k, epsilon)
        errors = [subset_error(k, w, epsilon) for w in range(1, k)]
        assert oracle.subset == 1 + int(np.argmin(errors))
        exact = float(oracle.covariance(0).trace())
        assert errors[oracle.subset - 1] == pytest.approx(exact, rel=1e-10)
    assert (
        SubsetSelection(64, 8.0).covariance(3).allclose(RandomizedResponse(64, 8.0).covariance(3))
    )


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("epsilon", [0.4, 3])
def test_messages_follow_the_law(kind, epsilon):
    k = 4
    n = 400_000
    messages, law = written_out(kind, k, epsilon)
    oracle = kind(k, epsilon)
    users = torch.full((n,), 2)
    drawn = oracle.randomize_unchecked(users, SeededNoise(1)).reshape(n, -1)[:, 0]
    counts = [int((drawn == message).sum()) for message in messages]
    counts = np.array(counts)
    assert counts.sum() == n
    assert stats.chisquare(counts, n * law[2] / law[2].sum()).pvalue > ALPHA
    # controls: the chances of another type, and those of 1.1 epsilon, are rejected
    wrong = law[1]
    assert stats.chisquare(counts, n * wrong / wrong.sum()).pvalue < ALPHA
    wrong = written_out(kind, k, 1.1 * epsilon)[1][2]
    assert len(wrong) == len(counts)
    assert stats.chisquare(counts, n * wrong / wrong.sum()).pvalue < ALPHA


def make(kind, epsilon):
    if kind is StrategyMatrix:
        likely = (normal(9, 5, seed=3) > 0).double()
        rows = 1 + math.expm1(epsilon) * likely
        # with each output its mirror image: the columns have one sum
        total = 1 + math.exp(epsilon)
        return StrategyMatrix(torch.cat([rows, total - rows]) / (9 * total))
    return kind(5, epsilon)


@pytest.mark.parametrize("kind", [*ORACLES, StrategyMatrix])
@pytest.mark.parametrize("users", [20, 10**12])
def test_sums_have_the_stated_mean_and_covariance_at_any_number_of_users(kind, users):
    oracle = make(kind, 1.0)
    repeats = 20_000
    held = torch.tensor([0, users // 3, 0, 0, users + 7])
    sums = oracle.totals(oracle.sample_tally(held, **sampled(repeats, 7)))
    covariance = sum(held[x] * oracle.covariance(x) for x in range(5))
    deviation = covariance.diagonal().sqrt()
    error = (sums - held) / deviation
    # of some forty comparisons at once
    critical = stats.norm.isf(ALPHA / 40)
    assert float(error.mean(0).abs().max()) * math.sqrt(repeats) < critical
    correlation = covariance / torch.outer(deviation, deviation)
    # of normal variables, and 15 % for the kurtosis of a few dozen bits
    spread = 1.15 * ((1 + correlation**2) / repeats).sqrt()
    measured = error.mT @ error / repeats
    assert float(((measured - correlation) / spread).abs().max()) < critical
    assert float(((measured - 1.1 * correlation) / spread).abs().max()) > critical


@pytest.mark.parametrize("at_once", [0, 32])
def test_large_subsets_have_their_size_and_no_favourites(monkeypatch, at_once):
    """Values added many at a time and one by one: the size, the own value's rate, and each other
    value's and pair's.
    """
    monkeypatch.setattr("torchdp.randomizers.alphabet.subset_selection.AT_ONCE", at_once)
    oracle = SubsetSelection(70, 0.3)
    n = 20_000
    x = 66
    bits = unpack(oracle.randomize_unchecked(torch.full((n,), x), SeededNoise(3)))
    assert (bits.sum(1) == oracle.subset).all()
    assert not bits[:, 70:].any()
    values = bits[:, :70].double()
    rates = values.mean(0)
    chance = torch.full((70,), oracle.off, dtype=torch.float64)
    chance[x] = oracle.on
    deviation = (chance * (1 - chance) / n).sqrt()
    assert float(((rates - chance) / deviation).abs().max()) < 5.5
    # v and v + 35 for thirty v, none of them x
    pairs = (values[:, :30] * values[:, 35:65]).mean(0)
    # the chance that two values other than the own are in a set together
    r = oracle._pair
    deviation = math.sqrt(r * (1 - r) / n)
    assert float((pairs - r).abs().max()) < 5.5 * deviation
    # not independent bits
    deviation = math.sqrt(r * (1 - r) / n)
    assert abs(float(pairs.mean()) - oracle.off**2) > 3 * deviation / math.sqrt(30)


@pytest.mark.parametrize("k", [2, 3, 1000, 2**16, 2**20])
def test_guarantee_of_the_least_epsilon_that_the_integers_can_express(k):
    """From 1e-17 on: what is not refused keeps the ratio of the chances drawn, in exact
    integers.
    """
    # in twentieths of a power of ten
    for exponent in torch.arange(-17, 0, 0.05).tolist():
        epsilon = 10.0**exponent
        try:
            step = RandomizedResponse(k, epsilon)._step
        except ValueError as error:
            assert str(error).startswith("epsilon")
            assert epsilon < 2 * k * k * 2.0**-43
            continue
        own = 2**63 - (k - 1) * step
        assert 0 < Fraction(own, step) <= Fraction(Decimal(epsilon).exp(Context(prec=60)))
        gap = Fraction(own - step, 2**63)
        wanted = Fraction(math.expm1(epsilon)) / k
        assert abs(gap / wanted - 1) < 2**-19 + epsilon


@pytest.mark.parametrize(
    ("k", "epsilon"),
    [(2, 0.1), (3, 1.0), (5, 8.0), (8, 20.0), (3, 700.0), (1000, 0.5)],
)
def test_guarantee_randomized_response_exactly_epsilon_ldp_in_the_sampler(planted, k, epsilon):
    """How many of the 2^63 integers that a user may draw lead to each report: found by bisection,
    compared exactly.
    """
    randomizer = RandomizedResponse(k, epsilon)

    def report(number, x):
        integers = planted(integers=torch.tensor(number))
        return int(randomizer.randomize_unchecked(torch.tensor([x]), integers)[0])

    # least integer in [0, 2^63] with the condition, which stays true once it is
    def first(condition):
        low = 0
        high = 2**63
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if condition(middle) else (middle + 1, high)
        return low

    # the reports below x come first, each on an interval
    x = k - 1
    edges = [first(lambda number, y=y: report(number, x) >= y) for y in (0, 1, k - 1)]
    other = edges[1]
    others = edges[2]
    assert edges[0] == 0
    # every other report has as many
    assert others == (k - 1) * other
    kept = 2**63 - others
    assert {report(number, x) for number in (others, others + other, 2**63 - 1)} == {x}
    ratio = Fraction(kept, other)
    assert ratio <= Fraction(math.exp(epsilon)) * (1 + Fraction(1, 10**14))
    if epsilon < 30:
        assert ratio >= Fraction(math.exp(epsilon)) * (1 - Fraction(1, 10**6))
    # the same integers for every type
    for y in {0, k // 2, k - 1}:
        assert [report(number, y) for number in (0, other - 1, other)] == [0, 0, 1]
        assert report(k * other, y) == y


def test_tiny_probabilities_of_another_value_are_not_rounded_away():
    """p - q is 1 - 1.7e-16 here, which float64 rounds by a third of the difference."""
    randomizer = RandomizedResponse(2, 37.0)
    n = 10**14
    repeats = 200_000
    counts = torch.tensor([n, 0])
    tally = randomizer.sample_tally(counts, **sampled(repeats, 3))
    reports = tally["reports"]
    expected = n * randomizer.q * repeats
    assert abs(float(reports[:, 1].sum()) - expected) < 5 * math.sqrt(expected)
    assert expected > 1000


@pytest.mark.parametrize(
    "kind",
    [OptimizedUnaryEncoding, SymmetricUnaryEncoding, SubsetSelection],
)
@pytest.mark.parametrize("epsilon", [30.0, 40.0, 60.0, 80.0, 600.0])
def test_guarantee_holds_at_large_epsilon_where_p_rounds_to_one(kind, epsilon):
    """Exact ratios of the chances that are drawn; of p's own float64 they are wrong by 1e-4 or
    infinite.
    """
    oracle = kind(8, epsilon)
    lost = oracle.lost
    off = oracle.off
    if kind is SubsetSelection:
        assert oracle.subset == 1
        largest = math.log1p(-lost) - math.log(lost) + math.log(7)
    else:
        largest = math.log1p(-lost) - math.log(lost) + math.log1p(-off) - math.log(off)
    assert largest == pytest.approx(epsilon, rel=1e-12)
    assert kind is OptimizedUnaryEncoding or epsilon < 80 or oracle.on == 1
