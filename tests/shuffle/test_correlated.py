"""Correlated noise: the two counts of a few users written out from what each of them sends."""

import functools

import numpy as np
import pytest
from laws import hockey_sticks
from scipy import stats
from scipy.signal import convolve2d

from torchdp.shuffle import CorrelatedSum

EPSILONS = np.linspace(-2, 2, 41)
SIZE = 72
SETTINGS = [(0.4, 2.0, 0.5), (0.6, 0.7, 0.6), (0.2, 6.0, 0.4)]


@functools.cache
def user_law(protocol, bit):
    """Pr[(u, v)] of the numbers of "+1" and "-1" that one user sends."""
    n, counts = protocol.users, np.arange(SIZE)
    noise = stats.nbinom(1 / n, 1 - protocol.ratio).pmf(counts)
    flood = stats.nbinom(protocol.flood_shape / n, 1 - protocol.flood_ratio).pmf(counts)
    law = np.zeros((SIZE, SIZE))
    for z in range(SIZE - bit):
        law[z + bit :, z:] += flood[z] * np.outer(noise[: SIZE - z - bit], noise[: SIZE - z])
    return law


@functools.cache
def view(protocol, bits):
    law = user_law(protocol, bits[0])
    for bit in bits[1:]:
        law = convolve2d(law, user_law(protocol, bit))[:SIZE, :SIZE]
    return law


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("others", [(), (0,), (1,)])
def test_guarantee_the_profiles_are_the_pairs_of_neighbours(setting, others):
    protocol = CorrelatedSum(1 + len(others), *setting)
    zero, one = (view(protocol, (bit, *others)) for bit in (0, 1))
    assert zero.sum() > 1 - 1e-9
    for profile, truth in zip(
        protocol.profiles(), (hockey_sticks(one, zero, EPSILONS), hockey_sticks(zero, one, EPSILONS)), strict=True
    ):
        bound = profile(EPSILONS)
        assert (bound >= truth - 1e-9).all() and (bound <= truth + 1e-8).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_guarantee_absent_users_are_covered(setting):
    protocol = CorrelatedSum(3, *setting)
    for present in ((), (1,)):
        zero, one = (view(protocol, (bit, *present)) for bit in (0, 1))
        bounds = [profile(EPSILONS) for profile in protocol.profiles(absent=2 - len(present))]
        truth = hockey_sticks(one, zero, EPSILONS), hockey_sticks(zero, one, EPSILONS)
        assert (bounds[0] >= truth[0] - 1e-9).all() and (bounds[1] >= truth[1] - 1e-9).all()
        full = [profile(EPSILONS) for profile in protocol.profiles()]  # does not cover them
        assert any((curve < true - 1e-3).any() for curve, true in zip(full, truth, strict=True))
