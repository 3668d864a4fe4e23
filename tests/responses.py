"""Laws of messages written out by hand: what privacy losses are brute-forced from. Nothing here
draws.
"""

import itertools
import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from laws import Given
from scipy import integrate, stats

from torchdp.randomizers import (
    HadamardResponse,
    RandomizedResponse,
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
)

EXACT = Context(prec=60)


def spent(ratio):
    """log of a rational number, to 60 digits before it is rounded."""
    if ratio == 1:
        return 0.0
    return float((Decimal(ratio.numerator) / Decimal(ratio.denominator)).ln(EXACT))


def spent_by(laws):
    """The largest log ratio of a message's chances, from one list of chances for each type."""
    assert all(sum(law) == 1 for law in laws)
    ratios = [max(chances) / min(chances) for chances in zip(*laws, strict=True)]
    return spent(max(ratios))


def counted(said, n):
    """For n users the number of words W in [0, 2^63) of which ``said`` is true, those below it: by
    asking 63 times.
    """
    low = [0] * n
    high = [2**63] * n
    for _ in range(63):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        below = said(middle).tolist()
        low = [m if yes else a for m, a, yes in zip(middle, low, below, strict=True)]
        high = [b if yes else m for m, b, yes in zip(middle, high, below, strict=True)]
    return high


def response(k, epsilon):
    """The strategy matrix of randomized response."""
    e = math.exp(epsilon)
    rows = torch.ones(k, k).double() + (e - 1) * torch.eye(k).double()
    return rows / (e + k - 1)


def others(oracle):
    """Of 2^63 words those for which a user who holds another type says 0, of randomized
    response.
    """
    k = oracle.k
    x = torch.arange(1, k)
    (found,) = set(counted(lambda words: oracle.randomize(x, noise=Given(words)) == 0, len(x)))
    # the words on both sides of each edge, and what they must say
    inner = [(y * found + step, y + step) for y in range(1, k) for step in (-1, 0)]
    ends = [
        (0, 0),
        (found - 1, 0),
        *inner,
        (k * found - 1, k - 1),
    ]
    words, expected = map(list, zip(*ends, strict=True))
    zeros = torch.zeros(len(ends), dtype=torch.int64)
    assert oracle.randomize(zeros, noise=Given(words)).tolist() == expected
    # what is left of 2^63 says the truth
    last = [k * found, 2**63 - 1] if k * found < 2**63 else []
    ones = torch.ones(len(last), dtype=torch.int64)
    assert oracle.randomize(ones, noise=Given(last)).tolist() == ones.tolist()
    return found


def channel(oracle):
    """The law of all messages for each type, in rational numbers."""
    k = oracle.k
    if isinstance(oracle, RandomizedResponse):
        other = Fraction(others(oracle), 2**63)
        return [[1 - (k - 1) * other if y == x else other for y in range(k)] for x in range(k)]
    if isinstance(oracle, StrategyMatrix):
        columns = oracle.table.mT.tolist()
        return [[Fraction(n, 2**63) for n in column] for column in columns]
    if isinstance(oracle, ShiftStrategy):
        inside, outside = oracle.table.view(2, -1).tolist()
        found = []
        for x in range(k) if oracle.place is None else oracle.place.tolist():
            law = []
            for pattern, *numbers in zip(oracle.patterns.tolist(), inside, outside, strict=True):
                many = [sum(pattern), len(pattern) - sum(pattern)]
                each = [
                    Fraction(number, 2**63 * size)
                    for number, size in zip(numbers, many, strict=True)
                ]
                places = [(x - s) % len(pattern) for s in range(len(pattern))]
                law += [each[not pattern[place]] for place in places]
            found.append(law)
        return found
    if isinstance(oracle, HadamardResponse):
        size = oracle.outputs
        low = Fraction(oracle.lost)
        odd = [[bin((x + 1) & y).count("1") % 2 for y in range(size)] for x in range(k)]
        chances = [(1 - low) * 2 / size, low * 2 / size]
        return [[chances[each] for each in row] for row in odd]
    lost = Fraction(oracle.lost)
    off = Fraction(oracle.off)
    if isinstance(oracle, SubsetSelection):
        sets = list(itertools.combinations(range(k), oracle.subset))
        holding = math.comb(k - 1, oracle.subset - 1)
        inside = (1 - lost) / holding
        outside = lost / (len(sets) - holding)
        return [[inside if x in s else outside for s in sets] for x in range(k)]
    sets = list(itertools.product((0, 1), repeat=k))

    def chance(x, bits):
        one = [1 - lost if v == x else off for v in range(k)]
        return math.prod(p if bit else 1 - p for p, bit in zip(one, bits, strict=True))

    return [[chance(x, bits) for bits in sets] for x in range(k)]


def area(randomizer):
    """The share of the cap beyond the threshold, by quadrature."""
    # acos(threshold)
    power = randomizer.cap.dim - 2
    edge = 2 * math.atan(math.exp(-randomizer.cap.rapidity))

    def up_to(end):
        return integrate.quad(lambda a: math.sin(a) ** power, 0, end, epsabs=0, epsrel=1e-13)[0]

    return up_to(edge) / up_to(math.pi)


def two_densities(randomizer):
    """The log ratio of the densities on the favoured set and off it, from the integers and the
    set's share.
    """
    law = randomizer.cap
    chance = Fraction(law.chance, 2**63)
    share = Fraction(law.survival)
    truth = spent(chance / share / ((1 - chance) / (1 - share)))
    # the share is the one of this threshold
    assert float(share) == pytest.approx(area(randomizer), rel=1e-9)
    return truth


def signs(randomizer):
    """The sign of x is lost with a chance that depends on |x| alone: all pairs of sizes and
    signs.
    """
    x = randomizer.radius * torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]

    def behind_zero(words):
        return randomizer.randomize(x, noise=Given(words))[:, 0] < 0

    behind = counted(behind_zero, 101)
    densities = [Fraction(each, 2**63) for n in behind for each in (n, 2**63 - n)]
    return spent(max(densities) / min(densities))


def hockey_stick(randomizer):
    """The delta of two normals 2 radius apart at the stated epsilon, by quadrature of their
    densities.
    """
    epsilon = randomizer.epsilon
    shift = 2 * randomizer.radius / randomizer.sigma
    # beyond it the first density is e^epsilon times the second
    edge = epsilon / shift + shift / 2

    def excess(t):
        return stats.norm.pdf(t - shift) - math.exp(epsilon) * stats.norm.pdf(t)

    # thirty deviations beyond the edge nothing is left
    return integrate.quad(excess, edge, edge + 30, epsabs=0, epsrel=1e-12)[0]


def lifted(x):
    """x' in the ball of R^d -> u on the sphere of R^{d+1}."""
    squares = np.square(x).sum(-1, keepdims=True)
    return np.concatenate([x, np.sqrt(np.maximum(0, 1 - squares))], -1)


def random_ball(rng, count, dim):
    directions = rng.standard_normal((count, dim))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    return directions * rng.random((count, 1)) ** rng.choice([0, 1 / dim, 3], (count, 1))


def nested(k, epsilon):
    """A strategy matrix that says whether a type is at most y or above it, less what rounding adds
    to epsilon.
    """
    below = torch.ones(k, k).double().triu()
    rows = torch.cat([below, 1 - below])
    chances = torch.exp((1 - 1e-6) * epsilon * rows)
    return StrategyMatrix(chances / chances.sum(0))
