"""Shuffled noise as it is drawn: from whole numbers, at least what is accounted for, as near its
law as is said.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from laws import generator

from torchdp.draws import Simulated
from torchdp.kernels import inversion
from torchdp.privacy import Arithmetic
from torchdp.shuffle import (
    BitSums,
    BoundedSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
)
from torchdp.shuffle import count_laws as drawing


class Planted(Simulated):
    """Whole numbers put in by hand."""

    def __init__(self, number):
        super().__init__(generator())
        self.number = number

    def integers(self, shape):
        return torch.full(shape, self.number)


@pytest.mark.parametrize(
    "table",
    [
        inversion.poisson(drawing.MOST_RATE),
        inversion.logarithmic(drawing.MOST_RATIO),
    ],
)
def test_guarantee_no_table_is_further_from_its_law_than_is_said(table):
    assert table.variation < drawing.OF_A_DRAW
    assert table.first + table.length < 2**15


@pytest.mark.parametrize("ratio", [1e-3, 0.5, 0.9])
def test_guarantee_thresholds_of_cluster_sizes_are_the_law_s_to_the_last_bit(ratio):
    table = inversion.logarithmic(ratio)
    words = table.words[:, : table.length]
    words = words.tolist()
    with mpmath.workdps(60):
        p = mpmath.mpf(ratio)
        # until terms are far below 2^-128
        masses = [-(p**k) / (k * mpmath.log1p(-p)) for k in range(1, 6000 if ratio > 0.5 else 400)]
        for j in range(table.length):
            found = sum(
                part[j] << shift for part, shift in zip(words, (96, 64, 32, 0), strict=True)
            )
            assert abs(found - mpmath.fsum(masses[table.first + j + 1 :]) * 2**128) <= 1


@pytest.mark.parametrize(
    ("cells", "places", "mean"),
    [(1, 1, 1e-9), (3, 7, 0.1), (999, 64, 0.3), (10**6, 768, 1 / 3)],
)
def test_guarantee_rates_are_no_less_than_the_accounted_ones(cells, places, mean, monkeypatch):
    asked = []

    def counted(size, law, parameter, draws):
        asked.append(size * Fraction(parameter))
        return torch.zeros(size, dtype=torch.int64)

    monkeypatch.setattr(drawing, "tabulated", counted)
    drawing.scattered_poisson(cells, places, mean, Simulated(generator()))
    wanted = cells * places * Fraction(mean)
    assert wanted <= asked[0] <= wanted * (1 + Fraction(1, 2**49))


@pytest.mark.parametrize("flip", [1e-12, 0.1, 1 / 3, 0.49])
def test_guarantee_no_fewer_bits_are_flipped_than_is_accounted_for(flip):
    law = RandomizedResponseSum(4, flip)
    bits = torch.tensor([[True]])
    edge = math.ceil(Fraction(flip) * 2**63)
    assert edge >= Fraction(flip) * 2**63 > edge - 1
    assert law.randomize_unchecked(bits, Planted(edge - 1)).content.tolist() == [0]
    assert law.randomize_unchecked(bits, Planted(edge)).content.tolist() == [1]


@pytest.mark.parametrize("deviation", [0.1, 1.0, 7.7])
def test_guarantee_bounded_shares_have_the_accounted_chances(deviation):
    law = BoundedSum(9, deviation)
    q = Fraction(law.share)
    c = law.half_width
    assert (q * 2**53).denominator == 1
    assert 0 <= q <= 1
    for value, chance in enumerate(law.chances.tolist()):
        inside = 0 < value < 2 * c + 2
        wanted = q / (2 * c + 3) + (1 - q) / (2 * c + 1) * inside
        assert chance == pytest.approx(float(wanted), rel=1e-15)
    scattered = law.scattered(200_000, 1, Simulated(generator(3)))
    drawn = torch.bincount(scattered.long())
    assert int(drawn) == pytest.approx(
        200_000 * (c + 1), abs=5 * math.sqrt(200_000 / 9) * deviation
    )


LAWS = [
    PoissonSum(1000, 200.0),
    BoundedSum(1000, 7.0),
    RandomizedResponseSum(1000, 0.2),
    CorrelatedSum(1000, 0.4, 40.0, 0.9),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_guarantee_messages_of_whole_numbers_speak_of_what_is_sent(law):
    protocol = BitSums(law, 3, 1e-6)
    promise = protocol.guarantee
    assert promise.arithmetic is Arithmetic.ROUNDED
    assert promise.delta == 1e-6
    assert promise.variation == 3 * law.variation
    assert promise.variation < 1e-20
    real = law.flipped_delta(promise.epsilon, 3)
    assert real + (1 + math.exp(promise.epsilon)) * promise.variation <= 1e-6


def test_floats_that_decide_are_said():
    wide = BitSums(CorrelatedSum(1000, 0.5, 40.0, 0.998), 1, 1e-6)
    assert wide.guarantee.arithmetic is Arithmetic.REAL
