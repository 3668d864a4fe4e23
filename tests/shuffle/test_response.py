"""Randomized response behind a shuffler, all bits of a few users enumerated."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from laws import hockey_sticks

from torchdp.shuffle import BitSums, RandomizedResponseSum

EPSILONS = np.linspace(-1.5, 1.5, 61)
FLIPS = [0.01, 0.2, 0.45]


def count_law(bits, flip):
    """Pr[Y = y] of the number of ones among the messages."""
    law = np.ones(1)
    for bit in bits:
        one = 1 - flip if bit else flip
        law = np.convolve(law, [1 - one, one])
    return law


def worst(users, flip):
    """The largest curve over all neighbours."""
    curves = []
    for others in itertools.product([0, 1], repeat=users - 1):
        zero = count_law((0, *others), flip)
        one = count_law((1, *others), flip)
        curves += [
            hockey_sticks(zero, one, EPSILONS),
            hockey_sticks(one, zero, EPSILONS),
        ]
    return np.max(curves, axis=0)


@pytest.mark.parametrize("users", [1, 2, 3, 6])
@pytest.mark.parametrize("flip", FLIPS)
def test_guarantee_the_profile_is_the_worst_pair_of_neighbours(users, flip):
    truth = worst(users, flip)
    (profile,) = RandomizedResponseSum(users, flip).profiles()
    bound = profile(EPSILONS)
    assert (bound >= truth - 1e-15).all()
    assert (bound <= truth + 1e-9).all()
    # claims too much
    (noisier,) = RandomizedResponseSum(users, flip * 1.05).profiles()
    assert (noisier(EPSILONS) < truth - 1e-6).any()


def test_guarantee_absent_users_leave_the_protocol_of_those_present():
    truth = worst(3, 0.2)
    (profile,) = RandomizedResponseSum(5, 0.2).profiles(absent=2)
    assert np.allclose(profile(EPSILONS), truth, atol=1e-9)
    assert (profile(EPSILONS) >= truth - 1e-15).all()
    (everyone,) = RandomizedResponseSum(5, 0.2).profiles()
    assert (everyone(EPSILONS) < truth - 1e-4).any()


def drawn(flip):
    """The epsilon of one bit that is flipped with chance ceil(flip 2^63)/2^63, as it is drawn."""
    chance = Fraction(math.ceil(Fraction(flip) * 2**63), 2**63)
    with mpmath.workdps(60):
        return mpmath.log(mpmath.mpf((1 - chance).numerator) / chance.numerator)


@pytest.mark.parametrize("epsilon", [1e-9, 3e-7, 0.0123, 0.7, 3.3, 21.0])
@pytest.mark.parametrize("instances", [1, 3])
def test_guarantee_pure_epsilon_is_that_of_the_bits_that_are_drawn(epsilon, instances):
    protocol = BitSums.calibrated(
        RandomizedResponseSum,
        9,
        epsilon,
        0.0,
        instances,
    )
    truth = instances * drawn(protocol.law.flip)
    assert epsilon * (1 - 1e-6) <= truth <= protocol.guarantee.epsilon <= epsilon
    # log((1 - flip)/flip) loses its digits here
    near = 0.49999999975
    assert (
        math.log((1 - near) / near) < drawn(near) <= RandomizedResponseSum(9, near).pure_epsilon()
    )
