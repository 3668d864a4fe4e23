"""The published parameters of bit sums, and the pure protocol with every output enumerated for a
few users.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from laws import shifted
from scipy import stats
from scipy.signal import convolve2d
from scripts import loaded

from torchdp.draws import Simulated
from torchdp.randomness import keyed_generator
from torchdp.shuffle import RandomizedResponseSum, delta_of, epsilon_of

with loaded("density/bitsums.py") as bitsums:
    Pure = bitsums.Pure

DELTA = 1e-6
SIZE = 36  # outputs with up to so many messages of each kind; their probabilities need no others
SETTINGS = [(1.0, 0.3, 0.05), (0.3, 0.5, 0.3), (2.0, 0.2, 0.01), (1.0, 0.9, 0.02)]


@pytest.mark.parametrize("total", [0.01, 1.0, 7.0])
def test_guarantee_the_split_spends_the_budget_and_no_more(total):
    each, delta = bitsums.split(total, DELTA, 768)
    spent = bitsums.composition(each, delta, 768, DELTA / 2)
    assert spent[0] <= total and spent[0] == pytest.approx(total, rel=1e-9)
    assert spent[1] == pytest.approx(DELTA, rel=1e-12)
    assert bitsums.composition(1.001 * each, delta, 768, DELTA / 2)[0] > total


@pytest.mark.parametrize("users", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_guarantee_the_papers_composed_response_is_private_and_85_times_more_than_it_says(users):
    nominal = 2.0
    protocol = bitsums.published_response(users, *bitsums.split(nominal, DELTA, 768))
    assert delta_of(protocol, nominal, 768) <= 1e-10
    assert 83 < nominal / epsilon_of(protocol, DELTA, 768) < 90
    exact = RandomizedResponseSum.calibrated(users, nominal, DELTA, 768)
    assert 60 < protocol.rmse / exact.rmse < 65
    assert protocol.rmse == pytest.approx(3920, rel=2e-3)


@pytest.mark.parametrize("users", [100, 1000, 100_000])
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-4])
def test_guarantee_the_papers_response_holds_up_to_epsilon_1(users, epsilon, delta):
    assert delta_of(bitsums.published_response(users, epsilon, delta), epsilon, 1) <= delta


def test_guarantee_the_papers_response_of_one_instance_is_private_as_its_theorem_3_1_composes_it():
    one, delta = bitsums.split(7.0, DELTA, 1)
    assert one == pytest.approx(0.989258, abs=1e-6) and delta == DELTA / 2
    assert delta_of(bitsums.published_response(100_000, one, delta), 7.0, 1) <= 1e-300
    # outside its range, at epsilon = 7 in one bit, which the paper never does, the form fails
    assert delta_of(bitsums.published_response(100_000, 7.0, DELTA), 7.0, 1) > 40 * DELTA


@pytest.mark.parametrize("make", [bitsums.published_correlated, bitsums.published_flood_of_one])
@pytest.mark.parametrize(("epsilon", "delta", "gamma"), [(0.9, 1e-3, 0.2), (0.5, 1e-6, 0.3)])
def test_guarantee_the_papers_correlated_noise_is_private(make, epsilon, delta, gamma):
    protocol = make(50, epsilon, delta, gamma)
    assert delta_of(protocol, epsilon, 1) <= delta
    assert protocol.ratio == pytest.approx(math.exp(-(1 - gamma) * epsilon))
    # no more than the noise that stays
    assert delta_of(protocol, 0.7 * (1 - gamma) * epsilon, 1) > delta


def test_the_papers_pure_parameters():
    protocol = bitsums.published_pure(100_000, 2.0)
    assert protocol.ratio == pytest.approx(math.exp(-1.995))
    assert 1e5 * protocol.drop == pytest.approx(0.1 / (math.exp(2) * (1 - math.exp(-2)) ** 2))
    # a third of the bits are dropped
    assert 0.3 < bitsums.published_pure(40_000, 2.0 / 768).drop < 0.4
    # never more than half
    assert bitsums.published_pure(125, 1.0 / 64).drop == pytest.approx(0.5)


def test_guarantee_pure_noise_composes_to_what_is_asked():
    exact = Pure.calibrated(1000, 1.0, DELTA, 64)
    assert 0.99 * DELTA < delta_of(exact, 1.0, 64) <= DELTA
    # as everybody's, so that of those present
    fewer = Pure.calibrated(1000, 1.0, DELTA, 64, absent=10)
    assert fewer.epsilon == pytest.approx(exact.epsilon - math.log(1000 / 990))
    assert fewer.pure_epsilon(10) == pytest.approx(exact.epsilon)
    basic = bitsums.published_pure(1000, 1.0 / 64)
    assert epsilon_of(basic, 0.0, 64) == pytest.approx(1.0)


def test_pure_messages_and_totals_are_drawn_from_their_distribution():
    """Two users, one of whom holds a one: 40,000 instances beside what is enumerated."""
    protocol = Pure(2, 1.0, 0.3, 0.05)
    flood = flood_law(protocol)
    views = convolve2d(user_law(protocol, 0, flood), user_law(protocol, 1, flood))
    instances = 40_000
    bits = torch.tensor([[False], [True]]).expand(2, instances)
    draws = Simulated(keyed_generator(b"pure messages"))
    sent = protocol.randomize_unchecked(bits, draws)
    u, v = (torch.bincount(sent.instance[sent.content == c], minlength=instances) for c in (1, -1))
    seen = torch.bincount(SIZE * u + v, minlength=SIZE**2)[: SIZE**2].view(SIZE, SIZE).numpy()
    assert same_law(seen, instances * views[:SIZE, :SIZE])
    assert len(sent) / instances / 2 == pytest.approx(protocol.messages_per_user - 0.475, rel=0.01)
    totals = protocol.noised(torch.ones(instances, dtype=torch.int64), draws)
    difference = np.array([np.trace(views, k) for k in range(-20, 21)])
    assert same_law(torch.bincount(20 - totals, minlength=41).numpy()[:41], instances * difference)
    variance = float(protocol.variance(torch.tensor(1)))
    value = protocol.decode(totals, 2)
    assert float(value.var()) == pytest.approx(variance, rel=0.05)
    assert float(value.mean()) == pytest.approx(1.0, abs=4 * math.sqrt(variance / instances))


def same_law(seen, expected):
    """By chi-squared, of the cells in which ten or more are expected."""
    many = expected >= 10
    return (
        stats.chisquare(seen[many], expected[many] * seen[many].sum() / expected[many].sum())[1]
        > 1e-4
    )


def flood_law(protocol):
    """Pr[F = 0], ..., Pr[F = s]."""
    weights = np.exp(protocol.share * protocol.epsilon * np.arange(-protocol.flood, 1))
    return weights / weights.sum()


def user_law(protocol, bit, flood):
    """Pr[(u, v)] of one user's numbers of "+1" and "-1", from the definition."""
    noise = stats.nbinom(1 / protocol.users, 1 - protocol.ratio).pmf(np.arange(SIZE))
    silent = np.outer(noise, noise)
    law = protocol.drop * silent
    for f, chance in enumerate(flood[:SIZE]):
        if bit + f < SIZE:
            law = law + (1 - protocol.drop) * chance * shifted(silent, bit + f, f)
    return law


def worst_log_ratio(protocol, present, flood):
    """Of a user who holds 1 to one who holds 0, over all bits of the others present and all
    views.
    """
    one = [user_law(protocol, bit, flood) for bit in (0, 1)]
    worst = 0.0
    for others in range(present):  # so many of the others hold a one
        both = one
        for other in [1] * others + [0] * (present - 1 - others):
            both = [convolve2d(law, one[other])[:SIZE, :SIZE] for law in both]
        worst = max(worst, float(np.abs(np.log(both[1]) - np.log(both[0])).max()))
    return worst


@pytest.mark.parametrize(("users", "absent"), [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_guarantee_pure_differential_privacy_by_enumeration(users, absent, setting):
    protocol = Pure(users, *setting)
    flood = flood_law(protocol)
    worst = worst_log_ratio(protocol, users - absent, flood)
    assert worst <= protocol.epsilon + math.log(users / (users - absent)) + 1e-9
    # epsilon is not far above the truth, and those who are absent cost something
    assert worst > (protocol.epsilon if absent else 0.75 * protocol.epsilon)
    if users == 1:  # one copy less breaks it
        fewer = flood[:-1] / flood[:-1].sum()
        assert worst_log_ratio(protocol, 1, fewer) > protocol.epsilon


@pytest.mark.parametrize(
    ("users", "epsilon", "slack"),
    list(itertools.product([1, 100, 10**6], [0.006, 1.0, 4.0], [0.02, 0.3])),
)
def test_tuning_meets_its_slack_with_few_messages(users, epsilon, slack):
    protocol = Pure.tuned(users, epsilon, slack)
    budget = (1 + slack) * math.sqrt(2 * math.exp(-epsilon)) / -math.expm1(-epsilon)
    assert protocol.rmse == pytest.approx(budget, rel=1e-6)
    for share in np.geomspace(1e-3, 0.9, 25):
        for drop in np.geomspace(1e-12, 0.9, 30):
            other = Pure(users, epsilon, share, drop)
            if other.rmse <= budget:
                assert protocol.messages_per_user <= other.messages_per_user * 1.02
