"""Composition of curves: against products written out, Gaussian noise, and transforms that lose
nothing.
"""

import math
import sys

import numpy as np
import pytest
from laws import hockey_stick, product_pair
from scipy.optimize import brentq

from torchdp.privacy import composed_delta, composed_epsilon, gaussian_log_delta
from torchdp.privacy.accounting import loss_distributions, rounding
from torchdp.privacy.composition import gaussian_profile, pure_profile
from torchdp.shuffle.count_laws import one_type_profiles, pair_profile, poisson_law

UNEVEN = (np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.35, 0.45]))


def profile_of(p, q):
    return pair_profile(p, np.log(p / q), 0.0)


def mixture(there, back, epsilon):
    """delta of so many pairs one way round and so many the other, written out."""
    p, q = UNEVEN
    pairs = [(p, q)] * there + [(q, p)] * back
    return hockey_stick(*product_pair(pairs), epsilon)


@pytest.mark.parametrize("instances", [1, 2, 5, 8])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.0])
def test_guarantee_composed_delta_is_never_below_products_written_out(instances, epsilon):
    p, q = UNEVEN
    truth = mixture(instances, 0, epsilon)
    found = composed_delta([profile_of(p, q)], instances, epsilon)
    # never below the truth, and above it by the grid of losses alone
    assert truth <= found <= truth * 1.001 + 2e-5
    if truth > 1e-3:
        # one more is seen
        assert composed_delta([profile_of(p, q)], instances + 1, epsilon) > found


@pytest.mark.parametrize("instances", [1, 2, 5, 8])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_guarantee_both_directions_cover_every_mixture(instances, epsilon):
    p, q = UNEVEN
    mixtures = [mixture(j, instances - j, epsilon) for j in range(instances + 1)]
    found = composed_delta([profile_of(p, q), profile_of(q, p)], instances, epsilon)
    # each direction is rounded up on the grid of losses
    assert max(mixtures) <= found <= 1.03 * max(mixtures) + 2e-5


def test_one_direction_alone_is_not_enough():
    p, q = UNEVEN
    truth = mixture(0, 5, 2.0), mixture(5, 0, 2.0)
    assert composed_delta([profile_of(q, p)], 5, 2.0) < truth[1] - 1e-3
    # both directions cover
    assert composed_delta([profile_of(p, q)], 5, 2.0) >= max(truth)


@pytest.mark.parametrize("instances", [2, 16, 768, 6144])
def test_guarantee_gaussian_noise_composes_to_gaussian_noise(instances):
    sigma = 2.5 * math.sqrt(instances)
    for epsilon in (0.5, 1.0, 2.0):
        truth = math.exp(gaussian_log_delta(sigma, epsilon, math.sqrt(instances)))
        found = composed_delta([gaussian_profile(sigma)], instances, epsilon)
        # what is added for transforms, and the grid's half per cent
        assert truth <= found <= 1.005 * truth + 2 * rounding(instances)
        # one per cent less noise is seen
        assert composed_delta([gaussian_profile(0.99 * sigma)], instances, epsilon) > found


def test_guarantee_pure_privacy_composes_to_the_optimal_bound():
    # Kairouz, Oh, Viswanath 2015, Theorem 3.3: binomial losses
    instances = 30
    each = 0.1
    likely = 1 / (1 + math.exp(-each))
    for epsilon in (0.2, 1.0, 2.0):
        ones = range(instances + 1)
        law = [math.comb(instances, j) * likely**j * (1 - likely) ** (instances - j) for j in ones]
        excess = [max(0, 1 - math.exp(epsilon - (2 * j - instances) * each)) for j in ones]
        truth = math.fsum(m * more for m, more in zip(law, excess, strict=True))
        found = composed_delta([pure_profile(each)], instances, epsilon)
        # never below the optimal bound, three per cent above it at most
        assert truth <= found <= truth * 1.03 + 1e-8
    assert composed_delta([pure_profile(each)], instances, each * instances) <= 1e-10


@pytest.mark.parametrize("instances", [1, 3, 200])
@pytest.mark.parametrize("delta", [1e-9, 0.1])
def test_guarantee_composed_epsilon_inverts_composed_delta(instances, delta):
    profiles = one_type_profiles(poisson_law(40.0 * instances))
    epsilon = composed_epsilon(profiles, instances, delta)
    # the inverse to one per cent, on the side that is safe
    assert composed_delta(profiles, instances, epsilon) <= delta * 1.01
    # and not much more epsilon than needed
    assert composed_delta(profiles, instances, 0.98 * epsilon) > delta or epsilon == 0


def test_epsilon_has_both_ends():
    assert composed_epsilon([gaussian_profile(1e6)], 1, 0.1) == 0
    assert composed_epsilon([gaussian_profile(1e6)], 4, 0.1) == 0
    leaking = pair_profile(np.array([0.9]), np.array([-0.01]), 0.1)
    assert composed_epsilon([leaking], 1, 0.05) == composed_epsilon([leaking], 3, 0.05) == math.inf


def tilted_delta(pmf, instances, epsilon):
    """The composition of one loss distribution under a tilt that centres it at epsilon: no digits
    are lost.
    """
    pmf = pmf.to_dense_pmf()
    p = pmf._probs
    step = pmf._discretization
    first = pmf._lower_loss
    losses = (first + np.arange(len(p))) * step
    index = np.arange(len(p))

    def law(tilt):
        weights = p * np.exp(tilt * (losses - losses[-1]))
        return weights / weights.sum(), math.log(weights.sum()) + tilt * losses[-1]

    # where the tilted mean is epsilon; e^700 is nearly the largest float
    steepest = 700 / np.ptp(losses)
    tilt = brentq(
        lambda t: instances * law(t)[0] @ losses - epsilon,
        -steepest,
        steepest,
    )
    q, log = law(tilt)
    mean = q @ index
    deviation = math.sqrt(instances * (q @ index**2 - mean**2))
    # eighty deviations: what wraps round is nothing
    size = 1 << math.ceil(math.log2(max(80 * deviation, 2 * len(p))))
    composed = np.fft.irfft(np.fft.rfft(q, size) ** instances, size)
    start = round(instances * mean) - size // 2
    total = (instances * first + start + np.arange(size)) * step
    composed = np.roll(composed, -start)
    above = total > epsilon
    weights = np.exp(instances * log - tilt * total[above])
    kept = composed[above] * weights * -np.expm1(epsilon - total[above])
    infinite = -math.expm1(instances * math.log1p(-pmf._infinity_mass))
    return float(kept.sum()) + infinite


@pytest.mark.parametrize("instances", [16, 768, 20_000])
def test_what_transforms_lose_is_added(instances):
    profiles = [gaussian_profile(3 * math.sqrt(instances))]
    (one,) = loss_distributions(profiles, instances)
    for epsilon in (0.5, 1.0, 1.5, 2.0, 3.0):
        exact = tilted_delta(one, instances, epsilon)
        assert (
            exact <= composed_delta(profiles, instances, epsilon) <= exact + 2 * rounding(instances)
        )


def test_one_instance_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert composed_delta([gaussian_profile(10.0)], 1, 1.0) < 1


def test_next_to_no_noise_is_next_to_no_privacy():
    assert composed_delta([gaussian_profile(1e-3)] * 2, 3, 1.0) == 1
    assert composed_epsilon([gaussian_profile(1e-3)] * 2, 3, 1e-3) == math.inf
    # the losses span many scales
    rare = pair_profile(
        np.array([1e-5, 1 - 1e-5]),
        np.array([600.0, -1e-5]),
        0.0,
    )
    # a rare loss is added up, not drowned in what transforms lose
    assert 1e-5 <= composed_delta([rare], 10, 1.0) <= 1.1e-4


def test_rounding_of_the_transforms_is_in_every_composed_delta():
    """Beyond the largest loss of four responses nothing is left of their curve, but for the
    allowance.
    """
    assert composed_delta([pure_profile(0.1)], 4, 0.5) >= rounding(4)
