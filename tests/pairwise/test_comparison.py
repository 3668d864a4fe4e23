"""Two groups: the difference's interval covers, its p-value is uniform where there is none, users
are not shared.
"""

import pytest
import torch
from laws import counts_of, coverage, uniform
from scipy.stats import kstest

from pairwise.common import mse, responses, twice, vectors
from torchdp import pairwise
from torchdp.collection import Collection, difference
from torchdp.protocol import Tally
from torchdp.randomness import keyed_generator

STATISTIC = pairwise.unequal(6)
FIRST = torch.tensor([900, 500, 400, 100, 50, 50])
SECOND = torch.tensor([2400, 1200, 1000, 900, 500, 0])
# a coverage of .95 is known to .0034: the test's ends are four deviations away
TRIALS = 4_000
# each of whose estimates takes a linear program
POPULATIONS = 150


def estimate(protocol, counts, key):
    return protocol.sample_estimate(
        counts,
        generator=keyed_generator(key),
        sample_shape=(TRIALS,),
    )


@pytest.mark.parametrize("kind", [vectors, twice, responses])
def test_intervals_of_differences_cover_whatever_the_two_budgets(kind):
    one = kind(STATISTIC, 2.0)
    two = vectors(STATISTIC, 3.0)
    found = difference(estimate(one, FIRST, b"first"), estimate(two, SECOND, b"second"))
    truth = STATISTIC.exact(FIRST) - STATISTIC.exact(SECOND)
    predicted = mse(one, FIRST, 2000) + mse(two, SECOND, 6000)
    assert 0.935 < coverage(found.interval(), truth) < 0.965
    square = (found.value - truth).square()
    assert float(square.mean()) == pytest.approx(predicted, rel=0.1)
    assert float(found.standard_error.square().mean()) == pytest.approx(predicted, rel=0.1)


def in_population(protocol, counts, key):
    """Of users who are drawn anew each time."""
    generator = keyed_generator(b"users" + key)
    shares = (counts / counts.sum()).expand(POPULATIONS, -1)
    users = torch.multinomial(
        shares,
        int(counts.sum()),
        replacement=True,
        generator=generator,
    )
    drawn = torch.zeros(POPULATIONS, len(counts), dtype=torch.int64)
    drawn.scatter_add_(1, users, torch.ones_like(users))
    return protocol.sample_estimate(drawn, generator=generator).of_population()


def test_p_values_are_uniform_without_a_difference_and_small_with_one():
    protocol = vectors(STATISTIC, 2.0)
    one = in_population(protocol, FIRST, b"first")
    two = in_population(protocol, FIRST, b"second")
    same = difference(one, two)
    assert kstest(same.p_value.numpy(), "uniform").pvalue > 1e-4
    other = difference(one, in_population(protocol, SECOND, b"third"))
    assert kstest(other.p_value.numpy(), "uniform").pvalue < 1e-6
    assert float(other.p_value.median()) < 0.05
    torch.testing.assert_close(difference(two, one).value, -same.value)
    torch.testing.assert_close(difference(two, one).p_value, same.p_value)


@pytest.mark.parametrize(
    "statistic",
    [STATISTIC, pairwise.auc(3)],
    ids=lambda each: each.name,
)
def test_a_population_interval_covers_the_population_and_a_users_interval_does_not(statistic):
    shares = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05]).double()
    n = 2000
    trials = 60
    protocol = vectors(statistic, 12.0)
    generator = keyed_generator(b"p2")
    truth = float(statistic.exact(shares * 1e9))
    drawn = []
    for _ in range(trials):
        counts = torch.bincount(
            torch.multinomial(shares, n, True, generator=generator),
            minlength=6,
        )
        tally = protocol.sample_tally(counts, generator=generator)
        found = protocol.analyse(tally).of_population()
        low, high = found.interval()
        drawn.append(
            (
                tally["sum"],
                low <= truth <= high,
                found.standard_error**2,
                (found.value - truth) ** 2,
            )
        )
    sums, held, stated, actual = map(torch.stack, zip(*drawn, strict=True))
    low, high = protocol.analyse(Tally(n, {"sum": sums})).interval()
    assert held.double().mean() >= 0.9
    users = (low <= truth) & (truth <= high)
    # control: this one speaks of the users, whose own mean is off
    assert users.double().mean() < 0.9
    # the bound by the kernel's range was 4 times too wide and more
    assert 0.65 < float(stated.mean() / actual.mean()) < 1.6


@pytest.mark.parametrize(
    "statistic",
    [
        STATISTIC,
        pairwise.absolute_difference(6),
        pairwise.kendall(2, 3),
    ],
)
def test_the_sampling_variance_is_at_least_the_exact_one_and_near_it_where_points_tell_histograms_apart(
    statistic,
):
    # messages almost without noise: what is left is the users' own U-statistic
    f = statistic.kernel(statistic.form)
    n = 10_000
    for index in range(20):
        shares = uniform(6, name=bytes([index])) ** (index % 7)
        counts = counts_of(shares, n)
        shares = counts.double() / counts.sum()
        # counts are rounded: not n users, but nearly
        m = int(counts.sum())
        mean = shares @ f @ shares
        first = shares @ (f @ shares - mean).square()
        second = shares @ (f - mean).square() @ shares
        # Hoeffding's decomposition of the variance of a mean over pairs
        exact = (4 * (m - 2) * first + 2 * second) / (m * (m - 1))
        tally = Tally(m, {"sum": counts.double() @ statistic.points})
        heard = Collection.of(vectors(statistic, 50.0)).add("all", tally)
        found = heard.estimate()
        total = found.of_population().standard_error.square()
        own = float(total - found.standard_error.square())
        assert own >= float(exact) * (1 - 1e-3)
        if statistic.name != "kendall":
            # a Kendall kernel's points do not tell all histograms apart
            reach = float(f.max() - f.min())
            assert own <= float(exact) * 1.3 + 2 * reach**2 / m**2
