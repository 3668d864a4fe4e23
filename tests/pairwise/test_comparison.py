"""Two groups: the difference's interval covers, its p-value is uniform where there is none, users are not shared."""

import dataclasses

import pytest
import torch
from scipy.stats import kstest

from torchdp import pairwise
from torchdp.pairwise import (
    Collection,
    OneMessage,
    OneMessagePairs,
    PairwiseEstimate,
    RandomizedResponsePlugIn,
    TwoMessage,
    compare,
    difference,
    of_population,
)
from torchdp.randomness import keyed_generator

STATISTIC = pairwise.unequal(6)
FIRST, SECOND = torch.tensor([900, 500, 400, 100, 50, 50]), torch.tensor([2400, 1200, 1000, 900, 500, 0])
TRIALS = 4_000


def estimate(protocol, counts, key):
    return protocol.estimate_histogram(counts, generator=keyed_generator(key), sample_shape=(TRIALS,))


@pytest.mark.parametrize("kind", [OneMessage, TwoMessage, RandomizedResponsePlugIn])
def test_intervals_of_differences_cover_whatever_the_two_budgets(kind):
    one, two = kind(STATISTIC, 2.0), OneMessage(STATISTIC, 3.0)
    found = difference(estimate(one, FIRST, b"first"), estimate(two, SECOND, b"second"))
    truth = STATISTIC.exact(FIRST) - STATISTIC.exact(SECOND)
    low, high = found.interval()
    assert 0.935 < float(((low <= truth) & (truth <= high)).double().mean()) < 0.965
    predicted = one.predicted_mse(FIRST, 2000) + two.predicted_mse(SECOND, 6000)
    assert float((found.value - truth).square().mean()) == pytest.approx(predicted, rel=0.1)
    assert float(found.standard_error.square().mean()) == pytest.approx(predicted, rel=0.1)


def test_p_values_are_uniform_without_a_difference_and_small_with_one():
    protocol = OneMessage(STATISTIC, 2.0)
    one, two = (estimate(protocol, FIRST, key) for key in (b"first", b"second"))
    same = difference(one, two)
    assert kstest(same.p_value.numpy(), "uniform").pvalue > 1e-4
    other = difference(one, estimate(protocol, SECOND, b"third"))
    assert kstest(other.p_value.numpy(), "uniform").pvalue < 1e-6 and float(other.p_value.median()) < 0.05
    torch.testing.assert_close(difference(two, one).value, -same.value)
    torch.testing.assert_close(difference(two, one).p_value, same.p_value)


def test_the_interval_at_level_one_minus_p_ends_at_zero():
    found = difference(*(estimate(OneMessage(STATISTIC, 2.0), FIRST, key) for key in (b"first", b"second")))
    for index in range(5):
        one = pairwise.Difference(found.value[index], found.standard_error[index], found.slope[index])
        low, high = one.interval(1 - float(one.p_value))
        assert min(abs(float(low)), abs(float(high))) < 1e-9 < float(one.standard_error)


def collection(protocol, types, name="batch"):
    sums = protocol.collect(types, generator=keyed_generator(name.encode()))
    return Collection.empty(protocol).add(name, sums, len(types))


def test_collections_are_compared_and_shared_users_refused():
    types = torch.arange(300) % 6
    one = collection(OneMessage(STATISTIC, 2.0), types, "women")
    two = collection(OneMessagePairs(STATISTIC, 4.0), types[:100], "men")
    found, wanted = compare(one, two), difference(one.estimate(), two.estimate())
    assert (found.value, found.p_value, found.slope) == (wanted.value, wanted.p_value, wanted.slope)
    both = collection(one.protocol, types[:50], "others").merge(one)
    with pytest.raises(ValueError, match=r"share 1 batches, such as 'women'.*paired data need"):
        compare(one, both)
    for other in (pairwise.unequal(7), dataclasses.replace(STATISTIC, pairs=pairwise.Pairs.ALL)):
        with pytest.raises(ValueError, match="must estimate the same statistic"):
            compare(one, collection(OneMessage(other, 2.0), types))
    with pytest.raises(TypeError, match="second must be a Collection"):
        compare(one, two.estimate())
    with pytest.raises(TypeError, match="first must be a PairwiseEstimate"):
        difference(one, two.estimate())


def test_a_population_interval_covers_the_population_and_a_users_interval_does_not():
    shares, n, trials = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05]).double(), 400, 250
    for statistic, epsilon in ((STATISTIC, 12.0), (pairwise.auc(3), 12.0)):
        protocol, generator = OneMessage(statistic, epsilon), keyed_generator(b"population")
        truth = float(statistic.exact(shares * 1e9))
        hits = torch.zeros(2)
        for _ in range(trials):
            counts = torch.bincount(torch.multinomial(shares, n, True, generator=generator), minlength=6)
            sums = protocol.collect_histogram(counts, generator=generator)
            whole = Collection.empty(protocol).add("all", sums, n)
            for index, each in enumerate((of_population(whole), whole.estimate())):
                low, high = each.interval()
                hits[index] += bool(low <= truth <= high)
        assert hits[0] / trials >= 0.94
        assert hits[1] / trials < 0.9  # control: this one speaks of the users, whose own mean is off


@pytest.mark.parametrize("statistic", [STATISTIC, pairwise.absolute_difference(6), pairwise.kendall(2, 3)])
def test_the_bound_on_sampling_is_at_least_the_exact_variance(statistic):
    f = statistic.kernel(statistic.form)
    for index in range(200):
        shares = torch.rand(6, dtype=torch.float64, generator=keyed_generator(bytes([index]))) ** (index % 7)
        shares = shares / shares.sum()
        mean, n = shares @ f @ shares, 7
        first = shares @ (f @ shares - mean).square()
        second = shares @ (f - mean).square() @ shares
        exact = 2 * (2 * (n - 2) * first + second) / (n * (n - 1))
        assert float(exact) <= float(2 * (f.max() - mean) * (mean - f.min()) / n) * (1 + 1e-9)


def test_population_of_all_pairs_is_refused_and_the_slope_is_of_the_noise_alone():
    every = dataclasses.replace(STATISTIC, pairs=pairwise.Pairs.ALL)
    with pytest.raises(ValueError, match="only that mean does not depend on n"):
        of_population(collection(OneMessage(every, 2.0), torch.arange(12) % 6))
    whole = collection(OneMessage(STATISTIC, 2.0), torch.arange(1200) % 6)
    users, population = whole.estimate(), of_population(whole)
    assert population.value == users.value and population.standard_error > users.standard_error
    share = (users.standard_error / population.standard_error) ** 2
    assert float(population.slope) == pytest.approx(float(users.slope * share))


def test_estimates_without_a_slope_give_the_normal_interval():
    one = PairwiseEstimate(torch.tensor(0.5).double(), torch.tensor(0.03).double(), 10)
    two = PairwiseEstimate(torch.tensor(0.4).double(), torch.tensor(0.04).double(), 20)
    found = difference(one, two)
    low, high = found.interval()
    assert float(found.standard_error) == pytest.approx(0.05)
    assert (float(low), float(high)) == pytest.approx((0.1 - 1.959964 * 0.05, 0.1 + 1.959964 * 0.05), abs=1e-7)
    assert float(found.p_value) == pytest.approx(0.0455002639)
