"""Chances as they are drawn, in rational arithmetic of its own: no channel spends more than it
says.
"""

import itertools
import math
import sys
from decimal import Context, Decimal
from fractions import Fraction

import pytest
import torch
from laws import float64, normal
from responses import others, response

from torchdp.randomizers import (
    HadamardResponse,
    LearnedStrategy,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.alphabet import chances

EXACT = Context(prec=80, Emax=10**6, Emin=-(10**6))
# the samplers compare one integer below this with the chances' integers
TOTAL = 2**63


def power(epsilon):
    """e^epsilon to 80 digits."""
    return Fraction(Decimal(epsilon).exp(EXACT))


def table(k, rows, seed, spread=1.0):
    Q = (spread * normal(rows, k, name=b"%d" % seed)).exp()
    return Q / Q.sum(0)


def faint(weight):
    """An output of this chance, half or three halves of it."""
    Q = float64([[0.3, 0.5], [0.7, 0.5]])
    shares = weight * float64([0.5, 1.5])
    return torch.cat([Q * (1 - shares), shares[None]])


def pair(epsilon):
    q = math.exp(-epsilon)
    return float64([[1 - q, q], [q, 1 - q]])


TABLES = {
    "random": table(5, 9, 1),
    "wide": table(4, 33, 2, 4.0),
    "many types": table(40, 3, 3, 0.1),
    "response 64, 30": response(64, 30),
    "response 8, 36": response(8, 36),
    "response 2, 40": pair(40.0),
    "faint 1e-12": faint(1e-12),
    "faint 1e-14": faint(1e-14),
    "faint 1e-25": faint(1e-25),
    "response 100, 1e-3": response(100, 1e-3),
    "learned": LearnedStrategy(response(6, 12.0), 13.0)().detach(),
}


def spent(columns):
    """The largest ratio within an output of columns of integers; infinite where an output is
    missing from some.
    """
    rows = list(zip(*columns, strict=True))
    if any(min(row) == 0 < max(row) for row in rows):
        return math.inf
    return max(Fraction(max(row), min(row)) for row in rows if max(row))


def kept(columns, epsilon, total=TOTAL):
    """Whether these integers are a channel that spends at most epsilon."""
    return all(sum(column) == total for column in columns) and spent(columns) <= power(epsilon)


@pytest.mark.parametrize("name", TABLES)
def test_guarantee_tables_spend_no_more_than_they_say_and_than_the_matrix(name):
    Q = TABLES[name]
    strategy = StrategyMatrix(Q)
    columns = strategy.table.mT.tolist()
    assert kept(columns, strategy.epsilon)
    # it says no more than is spent, either
    assert spent(columns) > power(strategy.epsilon * (1 - 1e-12) - 1e-15)
    # rounding to integers adds nothing to what the floats spend
    rescaled = (Q / Q.sum(0)).tolist()
    assert spent(columns) <= max(Fraction(max(row)) / Fraction(min(row)) for row in rescaled)
    assert strategy.guarantee.epsilon == strategy.epsilon
    exact = [[Fraction(n, TOTAL) for n in column] for column in columns]
    assert all(
        float(a) == b
        for c, d in zip(exact, strategy.matrix.mT.tolist(), strict=True)
        for a, b in zip(c, d, strict=True)
    )
    wanted = Q / Q.sum(0)
    moved = (strategy.matrix / wanted - 1).abs().max()
    assert float(moved) <= 1e-11 + 2.0**-62 / float(Q.min())


def test_what_the_tables_cost():
    """Epsilon as it was claimed of real numbers, and as it is drawn."""
    found = {name: StrategyMatrix(TABLES[name]).epsilon for name in TABLES}
    assert 30 - 1e-6 < found["response 64, 30"] < 30
    assert 36 - 1e-3 < found["response 8, 36"] < 36
    assert 39.97 < found["response 2, 40"] < 40


@pytest.mark.parametrize("name", ["random", "wide", "response 2, 40", "faint 1e-14"])
def test_the_sampler_gives_each_output_its_integers(planted, name):
    """The first and the last number of each output, and the numbers beside them."""
    strategy = StrategyMatrix(TABLES[name])
    for x in range(strategy.k):
        sizes = strategy.table[:, x].tolist()
        ends = list(itertools.accumulate(sizes))
        beside = [number for end in ends for number in (end - 1, end)]
        numbers = [
            0,
            *(number for number in beside if number < TOTAL),
            TOTAL - 1,
        ]
        wanted = [next(y for y, end in enumerate(ends) if number < end) for number in numbers]
        users = torch.full((len(numbers),), x)
        drawn = strategy.randomize_unchecked(users, planted(integers=torch.tensor(numbers)))
        assert drawn.tolist() == wanted


UNARY = [OptimizedUnaryEncoding, SymmetricUnaryEncoding]
KINDS = [RandomizedResponse, HadamardResponse, SubsetSelection, *UNARY]


def ratio(oracle):
    """The largest ratio of a message's chances between two types, from the numbers that its sampler
    draws with.
    """
    k = oracle.k
    if isinstance(oracle, RandomizedResponse):
        other = others(oracle)
        return Fraction(TOTAL - (k - 1) * other, other)
    lost = Fraction(oracle.lost)
    off = Fraction(getattr(oracle, "off", 0.5))
    # the K/2 indices of one sign are equally likely
    if isinstance(oracle, HadamardResponse):
        return (1 - lost) / lost
    if isinstance(oracle, SubsetSelection):
        w = oracle.subset
        with_x = (1 - lost) / math.comb(k - 1, w - 1)
        return with_x * math.comb(k - 1, w) / lost
    # both bits of the two types
    return (1 - lost) * (1 - off) / (lost * off)


@pytest.mark.parametrize("kind", KINDS)
def test_guarantee_oracles_spend_no_more_than_they_say(kind):
    """From 1e-6 to 700: what is stated is what was asked for, to 1e-9, or what is drawn."""
    largest = 0.0
    for epsilon, k in itertools.product(
        [1e-6, 1e-3, 0.1, 1.0, 7.3, 36.5, 40.0, 60.0, 700.0],
        [2, 3, 1000],
    ):
        try:
            oracle = kind(k, epsilon)
        except ValueError as error:
            assert "is too small" in str(error)
            assert epsilon < 2 * k * k * 2.0**-43
            continue
        said = oracle.guarantee.epsilon
        truth = ratio(oracle)
        assert said <= epsilon
        assert truth <= power(said)
        excess = Decimal(truth.numerator) / Decimal(truth.denominator) - 1
        largest = max(largest, float(excess) / math.expm1(said))
        assert said > epsilon * (1 - 1e-9) or kind is RandomizedResponse
    assert 0.99 < largest <= 1 + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_constant_is_seen_and_stated(monkeypatch, kind):
    """Twice the ratio: the channel spends log 2 more, or twice that, and the guarantee is
    measured.
    """
    room = sys.modules[kind.__module__]
    monkeypatch.setattr(
        room,
        "exponential",
        lambda epsilon: 2 * chances.exponential(epsilon),
    )
    monkeypatch.setattr(room, "told_apart", lambda *_: None)
    oracle = kind(3, 20.0)
    assert ratio(oracle) > power(20.6)
    assert ratio(oracle) <= power(oracle.guarantee.epsilon)


def test_a_million_types():
    assert 0.0999 < RandomizedResponse(10**6, 0.1).guarantee.epsilon < 0.1
    assert SubsetSelection(10**6, 12.0).subset == 6


def test_rounding_of_exponentials_and_logarithms():
    for epsilon in (1e-300, 1e-9, 0.1, 1.0, 43.0, 700.0):
        found = chances.exponential(epsilon)
        assert 1 <= found <= max(1, power(epsilon))
        assert found >= power(epsilon) * (1 - Fraction(1, 10**55))
        said = chances.logarithm(found)
        assert power(said) >= found
        assert said <= epsilon or epsilon < 1e-50
    for chance in (
        Fraction(1, 3),
        Fraction(2, 7),
        Fraction(1, 2**60 + 1),
        Fraction(1, 4),
    ):
        found = Fraction(chances.at_least(chance))
        assert chance <= found <= chance * (1 + Fraction(1, 2**52))
