"""Gaussian noise: privacy against 60-digit arithmetic and direct integration; calibration tight on
the safe side.
"""

import math
from itertools import product

import mpmath
import pytest
import torch

from torchdp.privacy import (
    Arithmetic,
    Model,
    Neighbours,
    gaussian_epsilon,
    gaussian_guarantee,
    gaussian_log_delta,
    gaussian_sigma,
)

LOCAL = (Model.LOCAL, Neighbours.REPLACE_ONE)
EPSILONS = [1e-9, 1e-6, 1e-3, 0.01, 0.1, 0.5, 1, 2, 4, 8, 15, 30]
DELTAS = [1e-30, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.9999]


def exact_log_delta(sigma, epsilon, sensitivity=1.0):
    with mpmath.workdps(60):
        ratio = mpmath.mpf(sensitivity) / mpmath.mpf(sigma)
        epsilon = mpmath.mpf(epsilon)
        below = mpmath.ncdf(ratio / 2 - epsilon / ratio)
        above = mpmath.ncdf(-ratio / 2 - epsilon / ratio)
        return mpmath.log(below - mpmath.exp(epsilon) * above)


@pytest.mark.parametrize("epsilon", [*EPSILONS, 100.0])
def test_guarantee_gaussian_log_delta_is_exact(epsilon):
    checked = 0
    for ratio in (10 ** (i / 5) for i in range(-50, 11)):
        exact = exact_log_delta(1 / ratio, epsilon)
        if -690 < exact < -1e-6:
            assert abs(gaussian_log_delta(1 / ratio, epsilon) - exact) < 1e-12
            # 1 % more noise is seen
            assert gaussian_log_delta(1.01 / ratio, epsilon) < exact - 1e-10
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize(("epsilon", "delta"), [*product(EPSILONS, DELTAS)])
def test_guarantee_gaussian_sigma_is_private_and_tight(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta)
    with mpmath.workdps(60):
        assert exact_log_delta(sigma, epsilon) <= mpmath.log(delta)
        assert exact_log_delta(sigma * (1 - 1e-8), epsilon) > mpmath.log(delta)
    assert gaussian_sigma(epsilon, delta, 3.0) == pytest.approx(3 * sigma, rel=1e-14)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [*product([1e-3, 0.1, 1.0, 8.0, 30.0], [1e-15, 1e-6, 0.1])]
)
def test_guarantee_gaussian_guarantee_is_exact(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta, 2.0)
    guarantee = gaussian_guarantee(sigma, delta, 2.0, *LOCAL)
    # inverts the calibration
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-7)
    assert (guarantee.delta, guarantee.model, guarantee.neighbours, guarantee.exact) == (
        delta,
        *LOCAL,
        True,
    )
    assert exact_log_delta(sigma, guarantee.epsilon, 2.0) <= math.log(delta)
    assert exact_log_delta(sigma, guarantee.epsilon * (1 - 1e-6), 2.0) > math.log(delta)
    # 1 % less noise
    assert gaussian_guarantee(0.99 * sigma, delta, 2.0, *LOCAL).epsilon > 1.001 * epsilon


@pytest.mark.parametrize("mu", [1e-3, 0.01, 0.3, 0.7, 3.0])
def test_guarantee_noise_that_hides_everything_at_this_delta_has_an_epsilon_of_0(mu):
    # the total variation distance
    exact = math.erf(mu / math.sqrt(8))
    assert gaussian_log_delta(1.0, 0.0, mu) == pytest.approx(math.log(exact), abs=1e-12)
    hidden = gaussian_guarantee(1.0, exact * 1.001, mu, *LOCAL)
    assert (hidden.epsilon, hidden.delta, hidden.exact, hidden.mu) == (
        0.0,
        exact * 1.001,
        False,
        mu,
    )
    seen = gaussian_guarantee(1.0, exact * 0.999, mu, *LOCAL)
    assert 0 < seen.epsilon < 0.02
    assert seen.exact


def test_limits_stay_finite_or_vanish():
    assert gaussian_log_delta(1e-200, 1.0) == 0
    assert gaussian_log_delta(1e300, 1e300) == -math.inf
    assert gaussian_log_delta(1e5, 1000.0) == pytest.approx(-0.5e16, rel=1e-9)


def test_rounded_guarantee_pays_for_its_tables():
    """delta holds the real mechanism's and (1 + e^epsilon) times the tables' distance; refused
    where it can not.
    """
    kind = (Model.CENTRAL, Neighbours.REPLACE_ONE)
    real = gaussian_guarantee(4.0, 1e-6, 1.0, *kind)
    whole = gaussian_guarantee(4.0, 1e-6, 1.0, *kind, 1e-30)
    assert whole.arithmetic is Arithmetic.ROUNDED
    assert not whole.exact
    assert whole.delta == 1e-6
    assert whole.mu == real.mu
    assert real.epsilon < whole.epsilon < real.epsilon * (1 + 1e-11)
    room = 1e-6 - math.exp(gaussian_log_delta(4.0, whole.epsilon))
    assert (1 + math.exp(whole.epsilon)) * 1e-30 < room < 1e-6 * 1.1e-10
    assert real.rounded(1e-30, 2e-6).delta == 2e-6


GRID = [0.001, 0.03, 0.4, 1.0, 3.0, 9.0, 25.0, 50.0]
TAILS = [1e-30, 1e-21, 1e-13, 1e-8, 1e-5, 1e-2, 0.3, 0.8, 0.99, 1 - 1e-9]


def of_batch(function, *values):
    """The same of a batch of one, which is computed by tensors."""
    return float(function(*(torch.tensor([value], dtype=torch.float64) for value in values)))


@pytest.mark.parametrize("epsilon", GRID)
def test_one_number_is_the_batch_of_one_and_on_the_safe_side(epsilon):
    """The formula over floats, against that over tensors."""
    for delta in TAILS:
        # Beyond, a last digit of log delta moves the root by more than the tolerance 2^-38 of its
        # search.
        near = 1e-12 if delta < 0.9 else 1e-11
        sigma = gaussian_sigma(epsilon, delta)
        assert sigma == pytest.approx(of_batch(gaussian_sigma, epsilon, delta), rel=near, abs=0)
        found = gaussian_epsilon(1 / sigma, delta)
        batched = of_batch(gaussian_epsilon, 1 / sigma, delta)
        assert found == pytest.approx(batched, rel=near, abs=1e-9 * (near > 1e-12))
        with mpmath.workdps(60):
            assert exact_log_delta(sigma, found) <= mpmath.log(delta)
        log = gaussian_log_delta(sigma, epsilon)
        assert found <= epsilon
        assert log == pytest.approx(
            of_batch(gaussian_log_delta, sigma, epsilon), rel=1e-12, abs=1e-12
        )


def test_the_ends_of_one_number_are_those_of_a_batch():
    epsilons = [
        (0.0, 1e-6),
        (1e3, 1e-6),
        (2e3, 1e-6),
        (1e-300, 0.5),
        (1.0, 1e-6, 1e-20),
        (1.0, 1e-6, 1e-3),
    ]
    logs = [
        (1e-3, 0.0),
        (1e9, 0.0),
        (1.0, 1e6),
        (1e160, 1e3),
        (1e-160, 1.0),
    ]
    sigmas = [
        (1e-9, 1e-300),
        (1e6, 1e-6),
        (1e-6, 1 - 1e-12),
        (1.0, 1e-6, 1e140),
    ]
    ends = {gaussian_epsilon: epsilons, gaussian_log_delta: logs, gaussian_sigma: sigmas}
    for function, rows in ends.items():
        for row in rows:
            assert function(*row) == pytest.approx(of_batch(function, *row), rel=1e-12, abs=0)
