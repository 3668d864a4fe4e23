"""Accounting of randomly rounded vectors: against exact composition, with negative
controls.
"""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from torchdp.privacy import Model, gaussian_sigma
from torchdp.privacy.accounting import composed_delta
from torchdp.shuffle import (
    CentralGaussianSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
    Sensitivity,
    delta_of,
)
from torchdp.shuffle.count_laws import pair_profile
from torchdp.shuffle.sums import promise


def laws(mean, width=400):
    """D and 1 + D on 0..width."""
    y = np.arange(width)
    return stats.poisson.pmf(y, mean), stats.poisson.pmf(y - 1, mean)


def rounded(mean, q):
    a, b = laws(mean)
    return (1 - q) * a + q * b


def profile(mean, q, other):
    """The curve of one coordinate, exactly."""
    P = rounded(mean, q)
    Q = rounded(mean, other)
    both = (P > 1e-200) & (Q > 1e-200)
    loss = np.log(P[both] / Q[both])
    return pair_profile(P[both], loss, float(P[~both].sum()))


def worst_composition(mean, changes, instances, epsilon):
    """Largest exact delta over equal changes of all coordinates, at both ends, both directions."""
    t = math.sqrt(changes / instances)
    pairs = [(0, t), (t, 0), (1, 1 - t), (1 - t, 1)]
    return max(composed_delta([profile(mean, q, other)], instances, epsilon) for q, other in pairs)


@functools.cache
def calibrated(epsilon, change):
    return PoissonSum.calibrated(1000, epsilon, 1e-5, Sensitivity(256, change=change))


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
    """However the change is spread over the coordinates; 85 % of the noise variance are not
    enough.
    """
    delta = 1e-5
    protocol = calibrated(epsilon, change)
    assert delta_of(protocol, epsilon, Sensitivity(256, change=change)) <= delta
    assert worst_composition(protocol.mean, change, instances, epsilon) <= delta
    assert (
        worst_composition(
            0.85 * protocol.mean,
            change,
            256 if epsilon > 2 else 4,
            epsilon,
        )
        > delta
    )


@pytest.mark.parametrize("epsilon", [1.0, 4.5])
def test_noise_is_near_the_central_gaussian_and_below_that_of_flips(epsilon):
    """The central mechanism's l_2 sensitivity is sqrt(change)."""
    protocol = PoissonSum.calibrated(10_000, epsilon, 1e-6, Sensitivity(768, change=48))
    central = gaussian_sigma(epsilon, 1e-6, math.sqrt(48))
    assert 1 < protocol.rmse / central < 1.11
    assert protocol.rmse < gaussian_sigma(epsilon, 1e-6, math.sqrt(768)) / 3.5


@pytest.mark.parametrize("epsilon", [0.3, pytest.param(6.0, marks=pytest.mark.slow)])
def test_guarantee_is_what_was_calibrated(epsilon):
    protocol = PoissonSum.calibrated(100, epsilon, 1e-5, Sensitivity(64, change=8))
    promised = promise(protocol, 1e-5, Sensitivity(64, change=8))
    assert promised.epsilon <= epsilon * (1 + 3e-4)
    # there Pr[D = 0] asks for the noise
    assert promised.epsilon > epsilon * (1 - 3e-4) or epsilon == 6.0
    assert promised.delta == 1e-5
    assert promised.exact is False
    assert promised.model == Model.SHUFFLE
    assert delta_of(protocol, promised.epsilon, Sensitivity(64, change=8)) <= 1e-5
    assert promise(protocol, 1e-5, Sensitivity(64, change=8), epsilon=epsilon).epsilon == epsilon
    with pytest.raises(ValueError, match="not certified"):
        promise(
            PoissonSum(100, 0.7 * protocol.mean),
            1e-5,
            Sensitivity(64, change=8),
            epsilon=epsilon,
        )


def test_a_curator_counts_movement_too_and_others_count_flips():
    moves = Sensitivity(8, change=1.0)
    protocol = CentralGaussianSum.calibrated(500, 1.0, 1e-5, moves)
    assert delta_of(protocol, 1.0, moves) <= 1e-5 < delta_of(protocol, 1.0, 8)
    assert protocol.sigma == pytest.approx(gaussian_sigma(1.0, 1e-5), rel=3e-4)
    for law in (
        RandomizedResponseSum(20, 0.3),
        CorrelatedSum(20, 0.5, 9.0, 0.5),
    ):
        assert delta_of(law, 1.0, Sensitivity(4, change=2.0)) == delta_of(law, 1.0, 4)
    # where only so many bits can flip, the better of both
    few = PoissonSum(500, 60.0)
    assert delta_of(few, 1.0, Sensitivity(32, flips=1, change=2.0)) <= delta_of(few, 1.0, 1)


def test_absent_users_are_made_up_for():
    full, fewer = (
        PoissonSum.calibrated(1000, 1.0, 1e-5, Sensitivity(64, 8.0), a) for a in (0, 100)
    )
    assert fewer.mean == pytest.approx(full.mean / 0.9)
    assert (
        delta_of(fewer, 1.0, Sensitivity(64, 8.0), 100)
        <= 1e-5
        < delta_of(full, 1.0, Sensitivity(64, 8.0), 100)
    )


def test_too_little_noise_is_no_privacy():
    assert delta_of(PoissonSum(5, 1e-3), 1.0, Sensitivity(8, change=8.0)) == 1.0
