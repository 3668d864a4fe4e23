"""Integers by inversion: thresholds against exact arithmetic, rare events exactly."""

import functools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import pytest
from laws import thresholds

from torchdp.kernels import inversion

WHOLE = 2**128


def make_exact_laws():
    """Tables, with masses to 90 digits that add up to 1."""
    with localcontext() as context:
        context.prec = 90
        # the longest starts above 0
        for mean, length in (
            (1e-9, 9),
            (0.75, 60),
            (110.0, 400),
        ):
            masses = [(-Decimal(mean)).exp()]
            for k in range(1, length):
                masses.append(masses[-1] * Decimal(mean) / k)
            yield inversion.poisson(mean), [Fraction(mass) for mass in masses]
        for ratio, length in (
            (1e-6, 12),
            (0.5, 150),
            (0.7, 300),
        ):
            p = Decimal(ratio)
            whole = -(1 - p).ln()
            masses = [p**k / (k * whole) for k in range(1, length)]
            yield inversion.logarithmic(ratio), [Fraction(mass) for mass in masses]


@functools.cache
def exact_laws():
    return tuple(make_exact_laws())


def test_thresholds_are_the_tails_to_the_nearest_unit():
    for table, masses in exact_laws():
        tail = 1 - sum(masses)
        tails = {}
        for k in range(len(masses) - 1, 0, -1):
            tail += masses[k]
            tails[k] = tail
        for j, threshold in enumerate(thresholds(table), table.first + 1):
            assert abs(threshold - WHOLE * tails[j]) <= Fraction(501, 1000)
        assert table.first == 0 or 1 - tails[table.first] < Fraction(1, 2 * WHOLE)
        beyond = table.first + table.length + 1
        assert tails.get(beyond, 0) < Fraction(502, 1000) / WHOLE
        assert table.words.shape[1] == 1 << table.length.bit_length()


def distance(table, steps, masses):
    """Total variation between what steps of 2^128 make and the exact masses."""
    drawn = [Fraction(a - b, WHOLE) for a, b in pairwise(steps)]
    assert all(mass >= 0 for mass in drawn)
    drawn = dict(enumerate(drawn, table.first))
    return sum(abs(drawn.get(k, 0) - mass) for k, mass in enumerate(masses)) / 2


def test_guarantee_the_total_variation_distance_is_at_most_what_the_table_says():
    for table, masses in exact_laws():
        steps = [WHOLE, *thresholds(table), 0]
        promised = Fraction(table.variation)
        assert distance(table, steps, masses) <= promised < Fraction(1, 2**115)
        # thresholds of 64 bits: a wrong table
        coarse = [(step >> 64) << 64 for step in steps]
        assert distance(table, coarse, masses) > promised


def test_large_means_keep_a_short_table_around_the_mean():
    table = inversion.poisson(1e6)
    assert table.first > 980_000
    assert table.length < 30_000
    tails = [threshold / WHOLE for threshold in thresholds(table)]
    mean = table.first + math.fsum(tails)
    squares = [(2 * j - 1) * tail for j, tail in enumerate(tails, 1)]
    variance = math.fsum(squares) - math.fsum(tails) ** 2
    # the table's own mean; what is cut off is far below
    assert mean == pytest.approx(1e6, rel=1e-12)
    assert variance == pytest.approx(1e6, rel=1e-6)
