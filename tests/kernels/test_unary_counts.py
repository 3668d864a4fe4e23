"""Counted unary encodings against the messages written out, their digits compared as exact
fractions.
"""

import math
from fractions import Fraction

import pytest
import torch

from torchdp.kernels import philox, unary_counts
from torchdp.kernels.unary_counts import reference

PROBABILITIES = [
    0.5,
    0.25,
    1 / (math.e + 1),
    1 - 1 / (math.e + 1),
    2.0**-70,
    math.exp(-40),
    1 - 2.0**-53,
]


def digits_of(key, user, column, count):
    """The first binary digits of the uniform number behind one bit, as integer."""
    number = 0
    for stream in range(-(-count // 4)):
        for word in philox.words(
            key,
            torch.tensor(user // 32),
            torch.tensor(column),
            stream,
        ):
            number = 2 * number + 1 - (int(word) >> user % 32 & 1)
    return number >> -count % 4


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_a_bit_is_one_exactly_where_the_uniform_number_is_below_the_probability(probability):
    """Truncated to the digits of the probability, which decide: exact fractions, and the smallest
    number above.
    """
    count = Fraction(probability).denominator.bit_length() - 1
    group = torch.arange(2)[:, None]
    column = torch.arange(3)
    words = reference.words(5, group, column, probability)
    for user in (0, 1, 31, 32, 63):
        for v in range(3):
            uniform = Fraction(digits_of(5, user, v, count), 2**count)
            assert int(words[user // 32, v]) >> user % 32 & 1 == (uniform < Fraction(probability))


@pytest.mark.parametrize("first", [0, 1, 31, 2**33 + 5])
@pytest.mark.parametrize("n", [0, 1, 33, 70])
def test_tallies_are_sums_of_messages_and_add_up(first, n, monkeypatch):
    k = 5
    lost = 0.4
    off = 0.27
    monkeypatch.setattr(reference, "BITS_AT_ONCE", 100)
    x = torch.arange(n) ** 2 % k
    messages = reference.messages(
        x,
        k,
        lost,
        off,
        3,
        first,
    )
    assert messages.shape == (n, k)
    for i in range(n):
        assert torch.equal(
            messages[i : i + 1],
            reference.messages(
                x[i : i + 1],
                k,
                lost,
                off,
                3,
                first + i,
            ),
        )
    total = unary_counts.tally(
        x,
        k,
        lost,
        off,
        3,
        first,
    )
    assert total.tolist() == [*messages.sum(0).tolist(), n]
    for cut in (0, 1, n // 2):
        one = unary_counts.tally(
            x[:cut],
            k,
            lost,
            off,
            3,
            first,
        )
        two = unary_counts.tally(
            x[cut:],
            k,
            lost,
            off,
            3,
            first + cut,
        )
        assert torch.equal(one + two, total)


def test_an_own_bit_is_lost_exactly_where_its_uniform_number_is_below_the_chance():
    """The chance of a zero is what is drawn: that of a one may have no float64 but 1."""
    n = 64
    k = 2
    lost = 0.3
    own = reference.messages(torch.zeros(n, dtype=torch.int64), k, lost, 0.0, 5, 0)[:, 0]
    below = [Fraction(digits_of(5, user, k, 60), 2**60) < Fraction(lost) for user in range(n)]
    assert own.tolist() == [int(not b) for b in below]
    assert 0 < sum(below) < n
