"""Identical messages: the view of a few users written out from what each of them sends."""

import numpy as np
import pytest
from laws import hockey_sticks
from scipy import stats

from torchdp.shuffle import PoissonSum

EPSILONS = np.linspace(-2, 2, 81)
SIZE = 400


def share(protocol):
    """The distribution of the noise messages of one user."""
    return stats.poisson(protocol.mean / protocol.users).pmf(np.arange(SIZE))


def view(protocol, bits):
    """Pr[count] where these users are present."""
    law = np.eye(1, SIZE)[0]
    for bit in bits:
        one = np.roll(share(protocol), bit) * (np.arange(SIZE) >= bit)
        law = np.convolve(law, one)[:SIZE]
    return law


@pytest.mark.parametrize("mean", [0.5, 20.0])
@pytest.mark.parametrize(("users", "absent"), [(1, 0), (2, 0), (3, 0), (3, 1), (4, 3)])
def test_guarantee_the_profiles_are_the_pairs_of_neighbours(mean, users, absent):
    protocol = PoissonSum(users, mean)
    present = users - absent
    rise, fall = protocol.profiles(absent)
    # among the others
    for ones in range(present):
        others = (1,) * ones + (0,) * (present - 1 - ones)
        zero = view(protocol, (0, *others))
        one = view(protocol, (1, *others))
        for profile, truth in (
            (rise, hockey_sticks(one, zero, EPSILONS)),
            (fall, hockey_sticks(zero, one, EPSILONS)),
        ):
            bound = profile(EPSILONS)
            assert (bound >= truth - 1e-12).all()
            assert (bound <= truth + 1e-9).all()
