"""Counted randomized response against the reports written out, one user at a time and in exact
integers.
"""

import math
from fractions import Fraction

import pytest
import torch

from torchdp.kernels import philox, response_counts
from torchdp.kernels.response_counts import reference

# numbers that a user may draw
WORDS = 2**63
CASES = [
    (2, 0.1),
    (3, 1.0),
    (5, 8.0),
    (8, 20.0),
    (3, 700.0),
    (1000, 0.5),
]


def exact_step(k, epsilon):
    """Numbers that each other value may own at most: floor(2^63 q), q = 1/(e^epsilon + k - 1) to
    float64.
    """
    chance = 1 / (math.exp(epsilon) + k - 1)
    return math.floor(Fraction(chance) * WORDS)


def owned(report, k, step, x):
    """How many of the 2^63 numbers lead to each report, from the edges of the intervals that share
    one.
    """
    edges = sorted({min(value * step, WORDS) for value in range(k + 1)} | {WORDS})
    total = [0] * k
    for low, high in zip([0, *edges], edges, strict=False):
        if low < high:
            reports = {
                int(report(torch.tensor([number]), torch.tensor([x]), k, step))
                for number in (low, high - 1)
            }
            # floor(number / step) grows with the number: so has all between
            assert len(reports) == 1
            total[reports.pop()] += high - low
    return total


@pytest.mark.parametrize(("k", "epsilon"), CASES)
def test_every_value_owns_exactly_step_numbers_and_the_own_value_the_rest(k, epsilon):
    step = exact_step(k, epsilon) + 1
    for x in {0, k // 2, k - 1}:
        total = owned(reference.report, k, step, x)
        assert sum(total) == WORDS
        assert all(count == step for value, count in enumerate(total) if value != x)
        # a step that is one too small loses k - 1 numbers of the others to x
        smaller = owned(reference.report, k, step - 1, x) if step > 1 else None
        assert smaller is None or smaller[x] == total[x] + k - 1


@pytest.mark.parametrize("first", [0, 1, 10, 2**33 + 3])
@pytest.mark.parametrize("n", [0, 1, 2, 63])
def test_numbers_are_the_high_63_bits_of_two_words_of_each_users_own(n, first):
    drawn = reference.numbers(77, first, n)
    for i in range(n):
        user = first + i
        four = [int(word) for word in philox.words(77, torch.tensor(user // 2))]
        high, low = four[2:] if user % 2 else four[:2]
        assert int(drawn[i]) == (high * 2**32 + low) // 2
    assert drawn.shape == (n,)


def test_counts_are_those_of_single_reports_and_add_up(monkeypatch):
    monkeypatch.setattr(reference, "USERS_AT_ONCE", 37)
    k = 5
    step = 2**60
    n = 100
    first = 7
    x = torch.arange(n) ** 2 % k
    reports = [
        int(reference.report(reference.numbers(3, first + i, 1), x[i], k, step)) for i in range(n)
    ]
    total = response_counts.counts(x, k, step, 3, first)
    assert total.tolist() == [reports.count(value) for value in range(k)]
    for cut in (0, 1, 36, 99):
        parts = (
            response_counts.counts(x[:cut], k, step, 3, first),
            response_counts.counts(x[cut:], k, step, 3, first + cut),
        )
        assert torch.equal(parts[0] + parts[1], total)
    assert not torch.equal(response_counts.counts(x, k, step, 4, first), total)
