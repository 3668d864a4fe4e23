"""Exact draws from finite laws: bits and counts of bits."""

import pytest
import torch

from torchdp.draws import Simulated
from torchdp.randomizers import draws


def seeded(seed):
    return Simulated(torch.Generator().manual_seed(seed))


class Digits(Simulated):
    """Words that are put in by hand, one after the other."""

    def __init__(self, *digits):
        super().__init__(torch.Generator())
        self.digits = iter(digits)

    def fill(self, words):
        words.fill_(next(self.digits))


@pytest.mark.parametrize("numerator", [0, 1, 3, 5, 7, 8])
def test_bernoulli_bits_compare_a_uniform_number_with_the_probability_digit_by_digit(numerator):
    """Deterministic: all eight triples of digits stand in eight lanes; ``numerator`` of them are
    below it.
    """
    digits = Digits(0b00001111, 0b00110011, 0b01010101)
    word = int(draws.bernoulli_words((1,), numerator / 8, digits)) & 255
    assert bin(word).count("1") == numerator


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 64, 1000])
def test_column_counts_add_up_the_bits(rows):
    words = seeded(4).words((rows, 3))
    assert torch.equal(draws.column_counts(words), draws.unpack(words).sum(0))
    assert torch.equal(
        draws.popcount(words),
        draws.unpack(words).unflatten(-1, (3, 64)).sum(-1),
    )
    every = torch.full((rows, 1), -1)
    assert (draws.column_counts(every) == rows).all()
