"""Integers by inversion: thresholds against exact arithmetic, draws against Python's integers, rare events exactly."""

import functools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from scipy import stats

from torchdp.kernels import inversion
from torchdp.kernels.inversion import reference
from torchdp.kernels.inversion.tables import Table

MASK, WHOLE = 2**32 - 1, 2**128


def thresholds(table):
    """The table's T_1, T_2, ... as integers, its filling left out."""
    return [a << 96 | b << 64 | c << 32 | d for a, b, c, d in table.words.T.tolist()][: table.length]


def philox(key, counter):
    """Philox 4x32-10 in Python's integers."""
    (a, b, c, d), k, m = counter, key & MASK, (key >> 32) & MASK
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = q >> 32 ^ b ^ k, q & MASK, p >> 32 ^ d ^ m, p & MASK
        k, m = (k + 0x9E3779B9) & MASK, (m + 0xBB67AE85) & MASK
    return a, b, c, d


def word_of(key, user, column, stream=0):
    """The four 32-bit words of a cell."""
    place = (user & MASK, user >> 32)
    return philox(key, (*place, column // 4, stream))[column % 4], *philox(key, (*place, column, stream + 2**30))[
        :3
    ]


def by_hand(table, key, user, column, stream=0):
    """The draw of one cell."""
    a, b, c, d = word_of(key, user, column, stream)
    return table.first + sum((a << 96 | b << 64 | c << 32 | d) < threshold for threshold in thresholds(table))


def make_exact_laws():
    """Tables, with masses in exact arithmetic (for Poisson and real shapes to 90 digits) that add up to 1."""
    third = 0.3
    p = Fraction(third)
    yield inversion.binomial(10, third), [math.comb(10, k) * p**k * (1 - p) ** (10 - k) for k in range(11)]
    yield (
        inversion.binomial(3, 1e-9),
        [math.comb(3, k) * Fraction(1e-9) ** k * (1 - Fraction(1e-9)) ** (3 - k) for k in range(4)],
    )
    yield inversion.negative_binomial(2, third), [(k + 1) * (1 - p) ** 2 * p**k for k in range(120)]
    with localcontext() as context:
        context.prec = 90
        for mean, length in ((1e-9, 9), (0.75, 60), (110.0, 400)):  # the longest starts above 0
            masses = [(-Decimal(mean)).exp()]
            for k in range(1, length):
                masses.append(masses[-1] * Decimal(mean) / k)
            yield inversion.poisson(mean), [Fraction(mass) for mass in masses]
        for shape, ratio, length in ((1e-6, 0.5, 150), (0.3, 0.7, 300), (40.5, 0.25, 150)):
            masses = [(Decimal(shape) * (1 - Decimal(ratio)).ln()).exp()]
            for k in range(1, length):
                masses.append(masses[-1] * Decimal(ratio) * (Decimal(shape) + k - 1) / k)
            yield inversion.negative_binomial(shape, ratio), [Fraction(mass) for mass in masses]


@functools.cache
def exact_laws():
    return tuple(make_exact_laws())


def test_thresholds_are_the_tails_to_the_nearest_unit():
    for table, masses in exact_laws():
        tail, tails = 1 - sum(masses), {}
        for k in range(len(masses) - 1, 0, -1):
            tail += masses[k]
            tails[k] = tail
        for j, threshold in enumerate(thresholds(table), table.first + 1):
            assert abs(threshold - WHOLE * tails[j]) <= Fraction(501, 1000)
        assert table.first == 0 or 1 - tails[table.first] < Fraction(1, 2 * WHOLE)
        beyond = table.first + table.length + 1
        assert tails.get(beyond, 0) < Fraction(502, 1000) / WHOLE
        assert table.words.shape[1] == 1 << table.length.bit_length()


def test_guarantee_the_total_variation_distance_is_at_most_what_the_table_says():
    for table, masses in exact_laws():
        steps = [WHOLE, *thresholds(table), 0]
        drawn = {table.first + i: Fraction(a - b, WHOLE) for i, (a, b) in enumerate(pairwise(steps))}
        assert all(mass >= 0 for mass in drawn.values())
        distance = sum(abs(drawn.get(k, 0) - mass) for k, mass in enumerate(masses)) / 2
        assert distance <= Fraction(table.variation) < Fraction(1, 2**115)
        coarse = [(step >> 64) << 64 for step in steps]  # thresholds of 64 bits: a wrong table
        wrong = {table.first + i: Fraction(a - b, WHOLE) for i, (a, b) in enumerate(pairwise(coarse))}
        assert sum(abs(wrong.get(k, 0) - mass) for k, mass in enumerate(masses)) / 2 > Fraction(table.variation)


def test_an_event_of_probability_1e_9_is_exact_to_29_digits_and_coarse_uniforms_miss_it():
    wanted = Fraction(1e-9)
    table = inversion.binomial(1, 1e-9)
    words = thresholds(table)[0]  # so many of the 2^128 words give a one
    assert abs(Fraction(words, WHOLE) / wanted - 1) < Fraction(1, 10**29)
    assert abs(Fraction(round(2**32 * wanted), 2**32) / wanted - 1) > Fraction(6, 100)  # a table of 32 bits
    single = sum(torch.arange(64) * 2.0**-24 < 1e-9).item()  # float32 uniforms are multiples of 2^-24
    assert Fraction(single, 2**24) / wanted > 50


@pytest.mark.parametrize("table", [inversion.poisson(0.7), inversion.negative_binomial(0.2, 0.8)], ids=["p", "nb"])
@pytest.mark.parametrize(
    ("key", "first", "stream"), [(0, 0, 0), (-1, 2**32 - 3, 1), (2**63 - 25, 2**61, 2**30 - 1)]
)
def test_draws_are_those_of_pythons_integers(table, key, first, stream):
    cells = inversion.draws(table, key, 7, 5, first=first, stream=stream)
    assert cells.tolist() == [[by_hand(table, key, first + u, c, stream) for c in range(5)] for u in range(7)]


def test_known_answers():
    poisson, shares = inversion.poisson(3.5), inversion.negative_binomial(0.5, 0.9)
    assert inversion.draws(poisson, 42, 3, 6).tolist() == [
        [3, 3, 6, 4, 8, 6],
        [0, 4, 3, 4, 6, 0],
        [2, 3, 3, 2, 5, 6],
    ]
    assert inversion.draws(shares, 42, 3, 6, first=10**12, stream=7).tolist() == [
        [1, 0, 5, 9, 0, 1],
        [9, 3, 0, 0, 19, 2],
        [13, 6, 36, 3, 4, 0],
    ]
    assert inversion.column_sums(poisson, 42, 100_000, 4).tolist() == [349104, 351195, 350512, 349643]


def crafted(key):
    """A table with thresholds that share the first 32, 64, 96 bits of the word of user 3, column 2, and its draw."""
    a, b, c, d = word_of(key, 3, 2)
    falling = [
        (a + 1, 0, 0, 0),
        (a, b + 1, 0, 0),
        (a, b, c + 1, 0),
        (a, b, c, d + 1),
        (a, b, c, d),
        (a, b, c - 1, MASK),
    ]
    return Table(10, torch.tensor([*falling, (a - 1, MASK, 0, 0), (0, 0, 0, 0)]).T.contiguous(), 7), 14


@pytest.mark.parametrize("key", [1, 77])
def test_words_that_meet_a_threshold_are_decided_by_their_other_bits(key):
    table, drawn = crafted(key)
    cells = inversion.draws(table, key, 5, 3)
    assert int(cells[3, 2]) == drawn == by_hand(table, key, 3, 2)
    assert cells.tolist() == [[by_hand(table, key, u, c) for c in range(3)] for u in range(5)]


@pytest.mark.parametrize("at_once", [3, 64, 1 << 13])
@pytest.mark.parametrize(("users", "columns"), [(0, 3), (1, 1), (63, 5), (20, 33), (3, 0)])
def test_sums_are_those_of_the_draws_however_they_are_split(users, columns, at_once, monkeypatch):
    table = inversion.poisson(1.5)
    whole = inversion.draws(table, 9, users, columns, first=4)
    monkeypatch.setattr(reference, "GROUPS_AT_ONCE", at_once)
    assert torch.equal(inversion.draws(table, 9, users, columns, first=4), whole)
    assert torch.equal(inversion.column_sums(table, 9, users, columns, first=4), whole.sum(0))
    cut = users // 3
    parts = [(cut, 4), (users - cut, 4 + cut)]
    sums = [inversion.column_sums(table, 9, size, columns, first=first) for size, first in parts]
    assert torch.equal(sums[0] + sums[1], whole.sum(0))
    assert torch.equal(inversion.draws(table, 9, users, columns + 3, first=4)[:, :columns], whole)


def fits(counts, masses, draws):
    """p-value of a chi-square test; cells of few are put together with the last."""
    expected = torch.tensor(masses, dtype=torch.float64) * draws
    keep = int((expected >= 8).nonzero().max()) + 1
    counts, expected = counts.double(), expected
    observed = torch.cat([counts[:keep], counts[keep:].sum()[None]])
    wanted = torch.cat([expected[:keep], (draws - expected[:keep].sum())[None]])
    return stats.chisquare(observed.numpy(), wanted.numpy()).pvalue


def test_draws_have_the_law_of_the_table():
    for law, table in (
        (stats.poisson(1.3), inversion.poisson(1.3)),
        (stats.nbinom(0.3, 0.4), inversion.negative_binomial(0.3, 0.6)),  # SciPy's ratio is that of failures
        (stats.binom(9, 0.2), inversion.binomial(9, 0.2)),
    ):
        cells = inversion.draws(table, 5, 400, 500).flatten()
        assert fits(torch.bincount(cells, minlength=100), law.pmf(range(100)), len(cells)) > 1e-3
    assert fits(torch.bincount(cells, minlength=100), stats.binom(9, 0.21).pmf(range(100)), len(cells)) < 1e-6


def test_shares_of_users_add_up_to_a_geometric_variable():
    users, columns, ratio = 20, 20_000, 0.7
    sums = inversion.column_sums(inversion.negative_binomial(1 / users, ratio), 8, users, columns)
    masses = [(1 - ratio) * ratio**k for k in range(200)]
    assert fits(torch.bincount(sums, minlength=200), masses, columns) > 1e-3


def test_a_law_that_is_zero_to_128_bits_has_an_empty_table():
    table = inversion.poisson(1e-60)
    assert (table.length, table.first, table.words.tolist()) == (0, 0, [[0]] * 4)
    assert inversion.column_sums(table, 3, 50, 5).tolist() == [0] * 5


def test_large_means_keep_a_short_table_around_the_mean():
    table = inversion.poisson(1e6)
    assert table.first > 980_000 and table.length < 30_000
    cells = inversion.draws(table, 1, 100, 100).double()
    assert abs(float(cells.mean()) - 1e6) < 4 * 1e3 / 100 and abs(float(cells.var()) / 1e6 - 1) < 4 * 0.0142
