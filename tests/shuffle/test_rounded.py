"""Accounting of randomly rounded vectors: against enumeration and exact composition, with negative controls."""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from torchdp.privacy import Model, gaussian_sigma
from torchdp.privacy.accounting import composed_delta
from torchdp.shuffle import CentralGaussianSum, NegativeBinomialSum, PoissonSum, RandomizedResponseSum, delta_of
from torchdp.shuffle.accounting import promise
from torchdp.shuffle.count_laws import poisson_law
from torchdp.shuffle.dominating import pair_profile
from torchdp.shuffle.moments import _Base


def laws(mean, width=400):
    """D and 1 + D on 0..width."""
    y = np.arange(width)
    return stats.poisson.pmf(y, mean), stats.poisson.pmf(y - 1, mean)


def rounded(mean, q):
    a, b = laws(mean)
    return (1 - q) * a + q * b


def hockey_stick(P, Q, epsilon):
    return float(np.maximum(P - math.exp(epsilon) * Q, 0).sum())


def profile(mean, q, other):
    """The curve of one coordinate, exactly."""
    P, Q = rounded(mean, q), rounded(mean, other)
    both = (P > 1e-200) & (Q > 1e-200)
    return pair_profile(P[both], np.log(P[both] / Q[both]), float(P[~both].sum()))


def worst_composition(mean, changes, instances, epsilon):
    """Largest exact delta over equal changes of all coordinates, at both ends, both directions."""
    t = math.sqrt(changes / instances)
    pairs = [(0, t), (t, 0), (1, 1 - t), (1 - t, 1)]
    return max(composed_delta([profile(mean, q, other)], instances, epsilon) for q, other in pairs)


@functools.cache
def calibrated(epsilon, change):
    return PoissonSum.calibrated(1000, epsilon, 1e-5, 256, change=change)


@pytest.mark.parametrize(
    ("epsilon", "instances", "change"),
    [
        (1.0, 4, 4.0),
        (1.0, 16, 4.0),
        (1.0, 64, 4.0),
        (1.0, 256, 4.0),
        (4.0, 16, 4.0),
        (4.0, 256, 4.0),
        (4.0, 64, 16.0),
    ],
)
def test_guarantee_rounded_vectors_are_private_by_exact_composition(instances, change, epsilon):
    """However the change is spread over the coordinates; six tenths of the noise variance are not enough."""
    delta = 1e-5
    protocol = calibrated(epsilon, change)
    assert delta_of(protocol, epsilon, 256, change=change) <= delta
    assert worst_composition(protocol.mean, change, instances, epsilon) <= delta
    assert worst_composition(0.6 * protocol.mean, change, instances, epsilon) > delta


@pytest.mark.parametrize("seed", range(6))
def test_guarantee_rounded_delta_covers_unequal_changes_by_enumeration(seed):
    """Two coordinates, every pair of outcomes."""
    rng, mean, epsilon = np.random.default_rng(seed), 9.0, 0.7
    q, other = rng.random((2, 2))
    certified = delta_of(PoissonSum(50, mean), epsilon, 2, change=float(((q - other) ** 2).sum()))
    P = np.multiply.outer(*(rounded(mean, x)[:80] for x in q))
    Q = np.multiply.outer(*(rounded(mean, x)[:80] for x in other))
    assert hockey_stick(P, Q, epsilon) <= certified


@pytest.mark.parametrize(
    ("mean", "epsilon", "change"), [(400.0, 1.0, 48.0), (200.0, 2.0, 48.0), (3000.0, 0.5, 48.0)]
)
def test_delta_is_what_the_proof_says_and_a_tenth_less_noise_or_more_movement_is_noticed(mean, epsilon, change):
    """The supremum over t and the least over alpha, written out on grids; what the chords lose is below 3 %."""
    a, b = (law[1:] for law in laws(mean, int(mean + 50 * math.sqrt(mean))))
    kept, t, least = (a > 1e-60) & (b > 1e-60), np.geomspace(5e-3, 1, 200)[:, None], math.inf
    for alpha in np.geomspace(5, 50, 80):
        rates = []
        for base, other in ((a[kept], b[kept]), (b[kept], a[kept])):
            w = np.log1p(t * np.maximum(other / base - 1, -1 + 1e-15))
            rates += [np.log(np.exp(power * w) @ base) / t[:, 0] ** 2 for power in (alpha, 1 - alpha)]
        moments = change * float(np.max(rates)) - (alpha - 1) * epsilon
        least = min(least, moments + alpha * math.log1p(-1 / alpha) - math.log(alpha - 1))
    found, noise, movement = (
        math.log(PoissonSum(50, scale * mean).moved_delta(epsilon, 64, more * change))
        for scale, more in ((1, 1), (0.9, 1), (1, 1.1))
    )
    assert least - 1e-3 <= found <= least + 0.03
    assert min(noise, movement) > found + 0.3


def test_moments_are_largest_where_one_of_the_laws_is_at_an_end():
    rng, mean, alpha = np.random.default_rng(0), 6.0, 3.7

    def moment(q, other):
        P, Q = rounded(mean, q)[1:60], rounded(mean, other)[1:60]
        return float((P**alpha * Q ** (1 - alpha)).sum())

    inside = 0
    for q, other in rng.random((200, 2)):
        t = abs(q - other)
        ends = [moment(*pair) for pair in [(0, t), (t, 0), (1, 1 - t), (1 - t, 1)]]
        assert moment(q, other) <= max(ends) * (1 + 1e-12)
        inside += moment(q, other) < min(ends)
    assert inside > 3  # not even all ends


@pytest.mark.parametrize("mean", [4.0, 30.0, 900.0])
@pytest.mark.parametrize("power", [3.0, 12.0, -2.0, -11.0])
def test_the_rate_is_nowhere_below_the_moments(mean, power):
    law = poisson_law(mean)
    for base, excess in ((law.mass[1:], np.expm1(-law.step)), (law.mass[:-1], np.expm1(law.step))):
        rate = _Base(base, excess).rate(power, 0.0, 1e-3)
        t = np.concatenate([np.geomspace(1e-3, 1, 3001)[:-1], 1 - np.geomspace(1e-6, 1e-2, 50)])
        moments = np.exp(power * np.log1p(t[:, None] * excess)) @ base
        slope = abs(power * float(base @ excess)) * t
        assert (np.log(moments) <= rate * t**2 + slope + 1e-12).all()
        if rate < 0.3:  # and not far above
            assert (np.log(moments) / t**2).max() >= 0.998 * rate - 1e-9


@pytest.mark.parametrize("epsilon", [1.0, 4.5])
def test_noise_is_near_the_central_gaussian_and_below_that_of_flips(epsilon):
    """The central mechanism's l_2 sensitivity is sqrt(change)."""
    protocol = PoissonSum.calibrated(10_000, epsilon, 1e-6, 768, change=48)
    central = gaussian_sigma(epsilon, 1e-6, math.sqrt(48))
    assert 1 < protocol.rmse / central < 1.11
    assert protocol.rmse < gaussian_sigma(epsilon, 1e-6, math.sqrt(768)) / 3.5


@pytest.mark.parametrize("epsilon", [0.3, 6.0])
def test_guarantee_is_what_was_calibrated(epsilon):
    protocol = PoissonSum.calibrated(100, epsilon, 1e-5, 64, change=8)
    promised = promise(protocol, 1e-5, 64, change=8)
    assert promised.epsilon <= epsilon * (1 + 3e-4)
    assert promised.epsilon > epsilon * (1 - 3e-4) or epsilon == 6.0  # there Pr[D = 0] asks for the noise
    assert (promised.delta, promised.exact, promised.model) == (1e-5, False, Model.SHUFFLE)
    assert delta_of(protocol, promised.epsilon, 64, change=8) <= 1e-5
    assert promise(protocol, 1e-5, 64, change=8, epsilon=epsilon).epsilon == epsilon
    with pytest.raises(ValueError, match="not certified"):
        promise(PoissonSum(100, 0.7 * protocol.mean), 1e-5, 64, change=8, epsilon=epsilon)


def test_negative_binomial_noise_and_a_curator_s_count_movement_too_and_others_count_flips():
    for kind in (NegativeBinomialSum, CentralGaussianSum):
        protocol = kind.calibrated(500, 1.0, 1e-5, 8, change=1.0)
        assert delta_of(protocol, 1.0, 8, change=1.0) <= 1e-5 < delta_of(protocol, 1.0, 8)
    assert protocol.sigma == pytest.approx(gaussian_sigma(1.0, 1e-5), rel=3e-4)
    response = RandomizedResponseSum(20, 0.3)
    assert delta_of(response, 1.0, 4, change=2.0) == delta_of(response, 1.0, 4)
    few = PoissonSum(500, 60.0)  # where only so many bits can flip, the better of both
    assert delta_of(few, 1.0, 32, flips=1, change=2.0) <= delta_of(few, 1.0, 1)
    with pytest.raises(ValueError, match="flips"):
        delta_of(few, 1.0, 32, flips=33, change=2.0)


def test_absent_users_are_made_up_for():
    full, fewer = (PoissonSum.calibrated(1000, 1.0, 1e-5, 64, absent=a, change=8) for a in (0, 100))
    assert fewer.mean == pytest.approx(full.mean / 0.9)
    assert delta_of(fewer, 1.0, 64, absent=100, change=8) <= 1e-5 < delta_of(full, 1.0, 64, absent=100, change=8)


def test_bad_arguments_are_named():
    protocol = PoissonSum(10, 30.0)
    for change in (0, -1, 65, math.nan):
        with pytest.raises(ValueError, match="change"):
            delta_of(protocol, 1.0, 64, change=change)
    with pytest.raises(ValueError, match="delta"):
        PoissonSum.calibrated(10, 1.0, 0.0, 64, change=8)
    with pytest.raises(ValueError, match="absent"):
        PoissonSum.calibrated(10, 1.0, 1e-5, 64, absent=10, change=8)
    with pytest.raises(ValueError, match="instances"):
        PoissonSum.calibrated(10, 1.0, 1e-5, 0, change=8)


def test_too_little_noise_is_no_privacy():
    assert delta_of(PoissonSum(5, 1e-3), 1.0, 8, change=8.0) == 1.0
    with pytest.raises(ValueError, match="not reached"):
        promise(PoissonSum(5, 1e-3), 1e-6, 8, change=8.0)
