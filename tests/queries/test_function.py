"""Smooth functions of shares: exact values by scipy and by loops, errors and intervals by
sampling.
"""

import itertools
import math
import warnings

import pytest
import torch
from laws import counts_of, coverage, float64
from scipy import stats

from torchdp import queries
from torchdp.protocol import Tally
from torchdp.queries import (
    Correlation,
    EnergyDistance,
    KendallB,
    LocalOracle,
    MeanDiscrepancy,
    Spearman,
)
from torchdp.randomizers import (
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
)
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

pytestmark = pytest.mark.usefixtures("brief")
TYPES = torch.randint(20, (70,), generator=keyed_generator(b"types"))
SHARES = torch.bincount(TYPES, minlength=20).double() / 70


@pytest.mark.parametrize(
    ("kind", "truth"),
    [
        (Spearman, stats.spearmanr),
        (KendallB, stats.kendalltau),
        (Correlation, stats.pearsonr),
    ],
)
def test_two_columns_with_ties_as_scipy_says(kind, truth):
    want = truth(TYPES.numpy() // 5, TYPES.numpy() % 5).statistic
    assert float(kind(4, 5)(SHARES)) == pytest.approx(want, rel=1e-10)


def test_distances_of_two_groups():
    first = TYPES[TYPES // 10 == 0] % 10
    second = TYPES[TYPES // 10 == 1] % 10
    want = stats.energy_distance(first.numpy() * 0.5, second.numpy() * 0.5) ** 2
    assert float(EnergyDistance(10, spacing=0.5)(SHARES)) == pytest.approx(want, rel=1e-10)

    def mean(one, two):
        pairs = itertools.product(one.tolist(), two.tolist())
        each = [math.exp(-((a - b) ** 2) / 8) for a, b in pairs]
        return math.fsum(each) / len(each)

    want = mean(first, first) + mean(second, second) - 2 * mean(first, second)
    assert float(MeanDiscrepancy(10, width=2.0)(SHARES)) == pytest.approx(want, rel=1e-9)


DIFFERENT = torch.tensor([4.0, 3, 2, 1, 0.5, 1, 1.5, 2])
SAME = torch.tensor([4.0, 3, 2, 1, 2, 1.5, 1, 0.5])
# A normal interval holds 0.83 of the truths.
NEAR = torch.tensor([4.3, 3, 2, 0.7, 2, 1.5, 1, 0.5])
TABLE = torch.tensor([[4.0, 2, 1], [2, 4, 2], [1, 2, 6]]).flatten()
CASES = {
    "spearman": (Spearman(3, 3), TABLE),
    "tau-b": (KendallB(3, 3), TABLE),
    "correlation": (Correlation(3, 3), TABLE),
    "energy": (EnergyDistance(4), DIFFERENT),
    "energy of one distribution": (EnergyDistance(4), SAME),
    "energy of nearly one": (EnergyDistance(4), NEAR),
    "discrepancy": (MeanDiscrepancy(4), DIFFERENT),
    "discrepancy of one distribution": (MeanDiscrepancy(4), SAME),
}
CLIENTS = {
    "randomized": RandomizedResponse,
    "subsets": SubsetSelection,
    "bits": OptimizedUnaryEncoding,
    "tuned": None,
}
# Every function, and every client with a statistic of pairs and with a distance of two groups: a
# client enters by the covariance of its shares alone.
CELLS = [
    ("spearman", "tuned"),
    ("tau-b", "subsets"),
    ("correlation", "bits"),
    ("energy", "tuned"),
    ("energy of one distribution", "bits"),
    ("energy of nearly one", "randomized"),
    ("discrepancy", "randomized"),
    ("discrepancy of one distribution", "subsets"),
]
# a coverage of .95 is known to .005
DRAWS = 2_000


def protocol_of(function, client):
    if client != "tuned":
        return LocalOracle.of(function, CLIENTS[client](function.types, 1.5))
    generator = keyed_generator(b"strategy")
    return LocalOracle.tuned(
        function,
        20_000,
        1.5,
        prior=function.histograms,
        generator=generator,
        steps=20,
    )


@pytest.mark.parametrize(("name", "client"), CELLS)
def test_errors_are_the_predicted_ones_and_intervals_cover(name, client):
    """The second order counts: without it the value at one distribution has a bias.

    And its error would be predicted as 0.
    """
    function, shares = CASES[name]
    counts = counts_of(shares, 20_000)
    protocol = protocol_of(function, client)
    found = protocol.sample_estimate(
        counts,
        generator=keyed_generator(name.encode()),
        sample_shape=(DRAWS,),
    )
    truth = function(counts.double() / counts.sum())
    predicted = float(protocol.predicted_mse(counts))
    error = found.value - truth
    squared = Moments.of(error.square())
    assert abs(squared.mean / predicted - 1) < 0.08 + 4 * squared.standard_error / predicted
    assert abs(float(error.mean())) < 0.05 * predicted**0.5 + 4 * (predicted / DRAWS) ** 0.5
    low, high = found.interval()
    covered = coverage(found.interval(), truth)
    at_its_least = "one distribution" in name
    assert 0.93 < covered <= (1.0 if at_its_least or "nearly" in name else 0.97)
    assert float(low.min()) >= function.limits[0]
    assert float(high.max()) <= function.limits[1]
    stated = found.standard_error.square()
    own = float(stated.mean()) / predicted
    # Near 0 it is never taken to be less than the noise.
    assert 0.9 < own < (3.5 if at_its_least or "nearly" in name else 1.15)


def test_intervals_of_the_population_cover():
    """Users drawn anew each time: those of these users alone are too short."""
    function, shares = CASES["energy"]
    shares = (shares / shares.sum()).double()
    generator = keyed_generator(b"population")
    protocol = LocalOracle.of(function, RandomizedResponse(function.types, 6.0))
    truth = function(shares)
    reports = []
    for _ in range(400):
        drawn = torch.multinomial(
            shares,
            1_500,
            replacement=True,
            generator=generator,
        )
        counts = drawn.bincount(minlength=len(shares))
        reports.append(protocol.sample_tally(counts, generator=generator)["reports"])
    users = protocol.analyse(Tally(1_500, {"reports": torch.stack(reports)}))

    def covered(estimate):
        return coverage(estimate.interval(), truth)

    assert 0.91 < covered(users.of_population()) < 0.985
    assert covered(users) < 0.85


def test_the_choice_is_the_least_predicted_error():
    choice = queries.choose(KendallB(3, 3), 5_000, 1.0)
    assert choice.candidates[0].name == "optimised strategy"
    named = {each.name: each.error for each in choice.candidates}
    assert named["optimised strategy"] < 0.8 * min(
        error for name, error in named.items() if "opt" not in name
    )
    family = KendallB(3, 3).histograms
    assert family.shape == (11, 9)
    assert torch.allclose(family.sum(1), torch.ones(11).double())
    for each in choice.candidates:
        errors = [float(each.protocol.predicted_mse(5_000 * shares)) for shares in family]
        assert each.error == pytest.approx((sum(errors) / 11) ** 0.5)
    assert len(queries.choose(KendallB(3, 3), 5_000, 1.0, search=False).candidates) == 6


def skew(n):
    """Nearly all users in one row and one column: ranks vary less than the noise."""
    # nine in ten in one row and one column
    h = float64([0.9, 0.04, 0.03, 0.03])
    types = torch.outer(h, h).flatten()
    counts = (types * n).long()
    counts[0] += n - counts.sum()
    return counts


def test_where_the_function_is_not_defined_it_says_so_and_answers_all_that_it_can_be():
    protocol = LocalOracle.of(Spearman(4, 4), RandomizedResponse(16, 1.0))
    counts = skew(1_000)
    tally = protocol.sample_tally(
        counts,
        generator=keyed_generator(b"skew"),
        sample_shape=(200,),
    )
    with pytest.warns(UserWarning, match="not defined at the decoded shares"):
        found = protocol.analyse(tally)
    unknown = found.standard_error.isinf()
    # The case occurs, and is not all there is.
    assert 0.03 < float(unknown.double().mean()) < 0.9
    low, high = found.interval()
    assert bool((low[unknown] == -1).all())
    assert bool((high[unknown] == 1).all())
    for values in (found.value, low, high):
        assert bool(values.isfinite().all())
    assert bool((found.value[unknown].abs() <= 1).all())
    truth = protocol.exact(counts)
    assert coverage((low, high), truth) > 0.93
    # From 0, which every interval without end holds.
    distance = found.parts.distance(found.value)
    assert not bool(distance.isnan().any())
    assert not bool(distance[unknown].any())


def test_a_value_that_the_function_can_not_have_warns():
    protocol = LocalOracle.of(Spearman(3, 3), RandomizedResponse(9, 1.0))
    counts = torch.tensor([200, 5, 5, 40, 200, 30, 10, 10, 500])

    def sampled(counts):
        protocol.sample_estimate(
            counts,
            generator=keyed_generator(b"close"),
            sample_shape=(50,),
        )

    with pytest.warns(UserWarning, match=r"outside of \[-1, 1\]"):
        sampled(counts)
    # control: many users
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampled(10**4 * counts)
