"""Attacks on the bits of a curator's noise find no event that tells more; on floats they do
(``test_attacks``).

An adversary sees one coordinate, whose data are 0 or 1 (``moved``), a million times. Source of the
events: Mironov (2012), Haney, Desfontaines, Hartman, Shrestha, Hay (2022): low-order bits, holes of
the support, tails.
"""

import math

import pytest
import torch
from attacks import strongest

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.rounded import RoundedNormal

# so many releases that what delta allows is one of them
TIMES = 2**20
SIGMA = 4.0
DELTA = 1e-6
# of one coordinate
ONE = gaussian_guarantee(
    SIGMA,
    DELTA,
    1.0,
    Model.CENTRAL,
    Neighbours.REPLACE_ONE,
)


def released(moved, seed, step=1.0):
    counts = torch.full((TIMES,), moved)
    sums = RoundedNormal(SIGMA, step).added(counts, SeededNoise(seed), ())
    return (sums / step).long()


def best_set(one, two):
    """The best set of values on one half of the outputs, judged on the other:
    (delta it spends, its deviation).
    """
    shift = int(min(one.min(), two.min()))
    size = int(max(one.max(), two.max())) - shift + 1

    def shares(each, part):
        return torch.bincount(each[part::2] - shift, minlength=size).double() * (2 / TIMES)

    halves = [[shares(each, part) for each in (one, two)] for part in (0, 1)]
    grown = math.exp(ONE.epsilon)
    chosen = halves[0][0] > grown * halves[0][1]
    p, q = (float(each[chosen].sum()) for each in halves[1])
    variance = (p + grown**2 * q) * 2 / TIMES
    return p - grown * q, math.sqrt(variance)


@pytest.mark.parametrize("step", [1.0, 2.0**-6])
def test_low_order_bits_of_what_is_released_do_not(step):
    one = released(0, 1, step)
    two = released(1, 2, step)
    assert strongest(one, two, DELTA) <= ONE.epsilon
    # a hole of the support is seen
    assert strongest(released(0, 3, step), 2 * released(0, 4, step)) > ONE.epsilon


def test_no_set_of_values_spends_more_than_delta():
    spent, deviation = best_set(released(0, 5), released(1, 6))
    assert spent < DELTA + 5 * deviation
    # four times as far: the attack finds it
    spent, deviation = best_set(released(0, 7), released(4, 8))
    assert spent > DELTA + 5 * deviation


def test_the_support_has_no_holes_within_reach():
    """Every value from -4 to 5 deviations leaves from either data set."""
    for moved in (0, 1):
        values = torch.unique(released(moved, 9 + moved)).tolist()
        assert set(range(-16, 18)) <= set(values)
