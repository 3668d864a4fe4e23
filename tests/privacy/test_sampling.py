"""Sampled sums: against the curve of one, an attack on many, the package's Renyi accountant, and
all users in each.
"""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from torchdp.privacy import gaussian_sigma, sampled_guarantee, sampled_multiplier, sampling

CASES = [
    (0.05, 1, 1.0),
    (0.3, 1, 0.5),
    (0.02, 40, 0.8),
    (0.5, 6, 2.0),
]


def curve(chance, multiplier, epsilon):
    """delta of one sum: the larger of the two directions, each a set of outcomes beyond one
    threshold.
    """
    s = multiplier
    q = chance

    # y at which the density with the user is ``ratio`` times that without
    def edge(ratio):
        return s * s * math.log((ratio - 1 + q) / q) + 0.5 if ratio > 1 - q else -math.inf

    e = math.exp(epsilon)
    y = edge(e)
    removed = (1 - q - e) * norm.sf(y / s) + q * norm.sf((y - 1) / s)
    y = edge(math.exp(-epsilon))
    added = 0.0
    if y > -math.inf:
        with_user = (1 - q) * norm.cdf(y / s) + q * norm.cdf((y - 1) / s)
        added = norm.cdf(y / s) - e * with_user
    return max(removed, added)


@pytest.mark.parametrize(
    ("chance", "delta", "multiplier"),
    [
        (0.05, 1e-3, 0.7),
        (0.3, 1e-6, 0.7),
        (0.9, 1e-5, 0.7),
        (1e-3, 1e-5, 0.7),
        (0.05, 1e-6, 400.0),
    ],
)
def test_guarantee_one_sum_has_its_curve(chance, delta, multiplier):
    """Also where the loss is far below a thousandth."""
    found = sampled_guarantee(multiplier, chance, 1, delta)
    assert curve(chance, multiplier, found.epsilon) <= delta * (1 + 1e-9)
    assert curve(chance, multiplier, found.epsilon * 0.99) > delta
    assert not found.exact
    assert found.neighbours.name == "ADD_REMOVE"


def losses(chance, times, multiplier, user, seed):
    """The logarithms of the likelihood ratio (user there over not) of drawn outcomes."""
    rng = np.random.default_rng(seed)
    y = multiplier * rng.standard_normal((200_000, times))
    if user:
        y += rng.random(y.shape) < chance
    losses = (y - 0.5) / multiplier**2
    return np.log1p(chance * np.expm1(losses)).sum(1)


@pytest.mark.parametrize(("chance", "times", "multiplier"), CASES)
def test_guarantee_an_attack_attains_what_is_promised_and_no_more(chance, times, multiplier):
    delta = 0.005
    epsilon = sampled_guarantee(multiplier, chance, times, delta).epsilon
    with_user = losses(chance, times, multiplier, True, 1)
    without = losses(chance, times, multiplier, False, 1)
    removed = -np.expm1(np.minimum(epsilon - with_user, 0))
    added = -np.expm1(np.minimum(epsilon + without, 0))
    found = max((x.mean(), x.std() / len(x) ** 0.5) for x in (removed, added))
    assert found[0] <= delta + 4 * found[1]
    assert found[0] >= 0.98 * delta - 4 * found[1]
    # noise that is not there
    control = sampled_guarantee(1.2 * multiplier, chance, times, delta).epsilon
    assert -np.expm1(np.minimum(control - with_user, 0)).mean() > 1.1 * delta


@pytest.mark.parametrize(("chance", "times", "multiplier"), CASES)
def test_no_larger_than_by_renyi_divergences_nor_than_sums_over_all(chance, times, multiplier):
    epsilon = sampled_guarantee(multiplier, chance, times, 1e-5).epsilon
    renyi = dp_accounting.rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(chance, dp_accounting.GaussianDpEvent(multiplier))
    assert epsilon <= renyi.compose(event, times).get_epsilon(1e-5)
    assert epsilon <= sampled_guarantee(multiplier, 1, times, 1e-5).epsilon


@pytest.mark.parametrize(
    ("part", "chance", "times"),
    [
        (0.05, 1e-3, 100),
        (0.05, 0.2, 7),
        (0.05, 0.999999, 3),
        (0.05, 1.0, 4),
        pytest.param(10.0, 1e-3, 100, marks=pytest.mark.slow),
        (10.0, 0.2, 7),
        pytest.param(10.0, 0.999999, 3, marks=pytest.mark.slow),
        (10.0, 1.0, 4),
    ],
)
def test_the_least_multiplier(part, chance, times):
    # a large epsilon of many sums asks for a large grid
    epsilon = part * (0.2 if times == 100 else 2.0)
    found = sampled_multiplier(epsilon, 1e-6, chance, times)
    assert sampled_guarantee(found, chance, times, 1e-6).epsilon <= epsilon
    assert sampled_guarantee(found * (1 - 3e-4), chance, times, 1e-6).epsilon > epsilon
    assert found <= gaussian_sigma(epsilon, 1e-6, math.sqrt(times)) * (1 + 1e-8)


def test_known_values_are_found_in_few_steps(monkeypatch):
    """Noise for 120 steps of 50 of 1,500 users at epsilon = 2, delta = 1e-5, in 1 to 16 groups."""
    composed, steps = privacy_loss_distribution.from_gaussian_mechanism, []
    monkeypatch.setattr(
        privacy_loss_distribution,
        "from_gaussian_mechanism",
        lambda *given, **more: steps.append(given) or composed(*given, **more),
    )
    found = [sampled_multiplier(2.0, 1e-5, 50 * g / 1500, -(-120 // g)) for g in (1, 4, 16)]
    assert found == pytest.approx([1.1155, 1.8282, 3.2964], rel=1e-3)
    # 24 from a bracket that knows nothing of sampling
    assert len(steps) <= 20


def test_where_delta_allows_everything_the_search_ends(monkeypatch):
    monkeypatch.setattr(sampling, "MOST", 2_000)
    assert 0 < sampled_multiplier(1.0, 0.9, 0.5, 2) < 0.05
    least = gaussian_sigma(1.0, 1e-300, math.sqrt(2))
    assert sampled_multiplier(1.0, 1e-300, 0.5, 2) == pytest.approx(least, rel=1e-5)


def test_guarantee_delta_pays_for_the_transforms_and_below_that_chance_counts_nothing():
    for delta in (1e-15, 1e-13):
        found = sampled_guarantee(1.2, 0.03, 120, delta)
        assert found.epsilon == sampled_guarantee(1.2, 1.0, 120, delta).epsilon
    some = sampled_guarantee(1.2, 0.03, 120, 1e-11).epsilon
    assert some < 0.5 * sampled_guarantee(1.2, 1.0, 120, 1e-11).epsilon
    assert some > sampled_guarantee(1.2, 0.03, 120, 1.2e-11).epsilon
    # one sum needs no transform
    once = sampled_guarantee(1.2, 0.03, 1, 1e-15)
    assert curve(0.03, 1.2, once.epsilon) <= 1e-15 * (1 + 1e-6)


def test_sums_whose_noise_would_not_hide_all_users_are_followed():
    """A million sums at noise 1: all users in each would lose 1000 deviations, one in a thousand
    loses 1.3.
    """
    found = sampled_guarantee(1.0, 1e-3, 1_100_000, 1e-6).epsilon
    assert sampled_guarantee(1.0, 1e-3, 900_000, 1e-6).epsilon < found < 7.5


@pytest.mark.parametrize(
    ("chance", "times"),
    [
        (0.01, 1000),
        (50 / 1500, 120),
        (1024 / 1e6, 2929),
        (0.001, 5000),
    ],
)
def test_at_small_epsilon_noise_is_within_a_thousandth_of_a_fine_grid_s(chance, times):
    """A thousandth less noise has epsilon above .1 by dp_accounting at a twentieth of the grid."""
    found = sampled_multiplier(0.1, 1e-5, chance, times)
    less = privacy_loss_distribution.from_gaussian_mechanism(
        found / 1.001, sampling_prob=chance, value_discretization_interval=0.01 * chance / found
    )
    assert less.self_compose(times).get_epsilon_for_delta(1e-5) > 0.1
