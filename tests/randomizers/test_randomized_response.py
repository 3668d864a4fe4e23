"""Randomized response: the exact channel, decoded moments by enumeration, both paths against the channel."""

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from laws import generator
from scipy import stats

from torchdp.noise import SeededNoise
from torchdp.randomizers import RandomizedResponse

ALPHA = 1e-6


def channel(randomizer):
    """(k, k): row x is the law of the report of a user who holds x."""
    p, q = randomizer.p, randomizer.q
    return torch.full((randomizer.k,) * 2, q, dtype=torch.float64).fill_diagonal_(p)


def plausible(observed, expected, variance):
    z = (observed - expected) / np.sqrt(variance)
    return float(np.abs(z).max()) < stats.norm.isf(ALPHA / 2 / np.size(z))


@pytest.mark.parametrize("k", [2, 3, 1000, 2**16, 2**20])
def test_guarantee_of_the_least_epsilon_that_the_integers_can_express(k):
    """From 1e-17 on: what is not refused keeps the ratio of the chances drawn, in exact integers."""
    for exponent in torch.arange(-17, 0, 0.05).tolist():
        epsilon = 10.0**exponent
        try:
            step = RandomizedResponse(k, epsilon)._step
        except ValueError as error:
            assert str(error).startswith("epsilon") and epsilon < 2 * k * k * 2.0**-43
            continue
        own = 2**63 - (k - 1) * step
        assert 0 < Fraction(own, step) <= Fraction(Decimal(epsilon).exp(Context(prec=60)))
        assert abs(Fraction(own - step, 2**63) / (Fraction(math.expm1(epsilon)) / k) - 1) < 2**-19 + epsilon


@pytest.mark.parametrize(("k", "epsilon"), [(2, 0.1), (3, 1.0), (5, 8.0), (8, 20.0), (3, 700.0), (1000, 0.5)])
def test_guarantee_randomized_response_exactly_epsilon_ldp_in_the_sampler(planted, k, epsilon):
    """How many of the 2^63 integers that a user may draw lead to each report: found by bisection, compared exactly."""
    randomizer = RandomizedResponse(k, epsilon)

    def report(number, x):
        return int(randomizer.randomize_unchecked(torch.tensor([x]), planted(integers=torch.tensor(number)))[0])

    def first(condition):  # least integer in [0, 2^63] with the condition, which stays true once it is
        low, high = 0, 2**63
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if condition(middle) else (middle + 1, high)
        return low

    x = k - 1  # the reports below x come first, each on an interval
    edges = [first(lambda number, y=y: report(number, x) >= y) for y in (0, 1, k - 1)]
    other, others = edges[1], edges[2]
    assert edges[0] == 0 and others == (k - 1) * other  # every other report has as many
    kept = 2**63 - others
    assert {report(number, x) for number in (others, others + other, 2**63 - 1)} == {x}
    ratio = Fraction(kept, other)
    assert ratio <= Fraction(math.exp(epsilon)) * (1 + Fraction(1, 10**14))
    if epsilon < 30:
        assert ratio >= Fraction(math.exp(epsilon)) * (1 - Fraction(1, 10**6))
    for y in {0, k // 2, k - 1}:  # the same integers for every type
        assert [report(number, y) for number in (0, other - 1, other)] == [0, 0, 1]
        assert report(k * other, y) == y


def test_reports_do_not_favour_small_values():
    """32 random bits reduced modulo k would give values below 2^26 here 5 % more than their share."""
    k = 3 * 2**26
    reports = RandomizedResponse(k, 19.0).randomize_unchecked(
        torch.zeros(400_000, dtype=torch.int64), SeededNoise(2)
    )
    thirds = torch.bincount(reports[reports != 0] // 2**26, minlength=3).numpy()
    assert stats.chisquare(thirds).pvalue > ALPHA
    biased = torch.randint(2**32, (400_000,), generator=generator(2)) % k // 2**26
    assert stats.chisquare(torch.bincount(biased, minlength=3).numpy()).pvalue < ALPHA


def test_tiny_probabilities_of_another_value_are_not_rounded_away():
    """p - q is 1 - 1.7e-16 here, which float64 rounds by a third of the difference."""
    randomizer, n, repeats = RandomizedResponse(2, 37.0), 10**14, 200_000
    reports = randomizer.sample_tally(torch.tensor([n, 0]), generator=generator(3), sample_shape=(repeats,))[
        "reports"
    ]
    expected = n * randomizer.q * repeats
    assert abs(float(reports[:, 1].sum()) - expected) < 5 * math.sqrt(expected)
    assert expected > 1000


@pytest.mark.parametrize("k", [2, 3, 13, 100])
@pytest.mark.parametrize("users", [10**6, 10**9, 10**12, 9 * 10**13])
def test_cells_of_very_many_users_have_exact_means_and_covariances(k, users):
    randomizer, repeats = RandomizedResponse(k, 2.0), 4000
    counts = torch.zeros(k, dtype=torch.int64)
    counts[0], counts[k - 1] = users, users // 9
    reports = randomizer.sample_tally(counts, generator=generator(6), sample_shape=(repeats,))["reports"]
    assert (reports.sum(-1) == counts.sum()).all()
    law, weights = channel(randomizer), counts.double()
    covariance = torch.diag(weights @ law) - law.mT @ (weights[:, None] * law)
    error = (reports - weights @ law).numpy()
    deviation = covariance.diagonal().sqrt().numpy()
    assert plausible(error.mean(0), 0.0, deviation**2 / repeats)
    z = error / deviation
    correlation = covariance[0].numpy() / deviation[0] / deviation
    assert plausible((z[:, :1] * z).mean(0)[1:], correlation[1:], 2 / repeats)
    assert plausible((z**2).mean(0), 1.0, 2 / repeats)
    assert not plausible((z**2).mean(0), 1.2, 2 / repeats)
    # A wrong epsilon shows at once in so many users.
    wrong = (weights @ channel(RandomizedResponse(k, 2.02)) - weights @ law).numpy()
    assert not plausible(error.mean(0), wrong, deviation**2 / repeats)


@pytest.mark.parametrize("n", [5, 30, 200, 10**5])
@pytest.mark.parametrize("p", [1e-3, 0.3, 0.7])
def test_torch_binomial_has_the_law_it_is_used_for(n, p):
    shape, repeats = (400_000,), 400_000
    options = {"dtype": torch.float64}
    drawn = torch.binomial(
        torch.full(shape, n, **options), torch.full(shape, p, **options), generator=generator(8)
    )
    center, reach = n * p, 5 * math.sqrt(n * p * (1 - p)) + 5
    edges = np.unique(np.round(np.linspace(max(-1, center - reach), min(n, center + reach), 60))) + 0.5
    expected = repeats * np.diff(stats.binom.cdf(np.r_[-1, edges, n], n, p))
    counts = np.histogram(drawn.numpy(), np.r_[-1, edges, n + 1])[0]
    keep = expected > 10
    assert (
        stats.chisquare(
            np.r_[counts[keep], counts[~keep].sum() + 10], np.r_[expected[keep], expected[~keep].sum() + 10]
        ).pvalue
        > ALPHA
    )
    wrong = repeats * np.diff(stats.binom.cdf(np.r_[-1, edges, n], n, 1.03 * p))[keep]
    assert ((counts[keep] - wrong) ** 2 / wrong).sum() > stats.chi2.isf(ALPHA, keep.sum()) or n * p < 1
