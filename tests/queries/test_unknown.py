"""Categories that nobody listed: by enumeration of small counts, and by the recursion that no
mechanism passes.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

from torchdp.kernels.inversion import truncated_laplace
from torchdp.noise import SeededNoise
from torchdp.queries import UnknownCategories


def chances(rate, reach):
    """P(X = j), exactly as the table draws it."""
    table = truncated_laplace((rate, reach))
    words = table.words[:, : table.length].tolist()
    above = [sum(word << shift for word, shift in zip(each, (96, 64, 32, 0), strict=True))
             for each in zip(*words, strict=True)]  # fmt: skip
    tails = [2**128, *above, 0]
    pairs = itertools.pairwise(tails)
    return {table.first + j: Fraction(one - two, 2**128) for j, (one, two) in enumerate(pairs)}


def released(n, noise, reach):
    """What is seen of a category of n users: None, or a count."""
    seen = {}
    for x, chance in noise.items():
        key = n + x if n and n + x > reach else None
        seen[key] = seen.get(key, 0) + chance
    return seen


def delta_of(epsilon, noise, reach):
    """The largest delta of two counts beside each other, either way."""
    bound = Fraction(math.exp(epsilon))
    most = Fraction(0)
    for n in range(3 * reach + 3):
        one, two = released(n, noise, reach), released(n + 1, noise, reach)
        for a, b in ((one, two), (two, one)):
            most = max(
                most, sum(max(p - bound * b.get(key, 0), Fraction(0)) for key, p in a.items())
            )
    return float(most)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (0.3, 1e-2), (2.0, 1e-6), (3.0, 0.4)])
def test_guarantee_unknown_categories_of_small_counts(epsilon, delta):
    found = UnknownCategories(epsilon, delta)
    reach = found.reach
    assert delta_of(epsilon, chances(found.rate, reach), reach) <= delta
    # the next smaller reach does not keep it, and where little is left neither does a faster fall
    if reach > 1:
        assert delta_of(epsilon, chances(found.rate, reach - 1), reach - 1) > delta
    if delta < 0.1:
        assert delta_of(epsilon, chances(1.2 * found.rate, reach), reach) > delta


def test_no_mechanism_names_a_category_more_often():
    """p_(n + 1) <= min(e^eps p_n + d, 1 - e^-eps (1 - p_n - d), 1) of every mechanism; p_0 = 0."""
    found = UnknownCategories(0.7, 1e-4)
    named = found.chance(torch.arange(60)).tolist()
    # the delta that its reach spends
    d = named[1]
    assert named[0] == 0 and d <= 1e-4
    p = 0.0
    for chance in named[1:]:
        p = min(math.exp(0.7) * p + d, 1 - math.exp(-0.7) * (1 - p - d), 1.0)
        assert chance == pytest.approx(p, rel=1e-9)


def test_counts_are_told_with_the_error_that_is_said():
    found = UnknownCategories(1.0, 1e-3)
    n = found.reach  # named half of the time
    words = ["often"] * 500 + ["rare"] * n + ["one"]
    seen = [found.estimate(words, noise=SeededNoise(seed)) for seed in range(400)]
    often = pd.DataFrame([each.loc["often"] for each in seen])
    squares = (often["value"] - 500) ** 2 / often["standard_error"] ** 2
    assert abs(squares.mean() - 1) < 5 * math.sqrt(5 / 400)
    assert ((often["low"] <= 500) & (500 <= often["high"])).mean() > 0.93
    rare = np.mean(["rare" in each.index for each in seen])
    assert abs(rare - float(found.chance(torch.tensor(n)))) < 5 * 0.5 / 20


def test_guarantee_no_user_counts_in_more_categories_than_stated():
    users = np.repeat(np.arange(300), 6)
    words = np.tile(list("abcdef"), 300)
    found = UnknownCategories(50.0, 0.1, contributions=2)
    # each of two categories has half of epsilon, and keeps half of delta
    assert found.rate <= 25.0
    assert delta_of(25.0, chances(found.rate, found.reach), found.reach) <= 0.05
    total = found.estimate(words, users)["value"].sum()
    assert abs(total - 600) <= 6 * found.reach
    assert found.guarantee.epsilon == 50.0
    with pytest.raises(ValueError, match="users must be given"):
        found.estimate(words)


def test_neither_order_nor_missing_rows_are_seen():
    found = UnknownCategories(1.0, 1e-3)
    rows = ["b"] * 60 + ["a"] * 60 + [None] * 90 + [1] * 60 + ["1"] * 60
    one = found.estimate(rows, noise=SeededNoise(0))
    two = found.estimate(rows[::-1], noise=SeededNoise(0))
    assert one.equals(two)
    assert len(one) == 4
    assert found.estimate([]).empty
    with pytest.raises(ValueError, match="reach of the noise"):
        UnknownCategories(1e-4, 1e-9)
