"""Rounded normals: thresholds against 60 digits, draws against Python's integers, delta against the
Gaussian's.
"""

import functools
import math
from fractions import Fraction
from itertools import pairwise

import laws
import mpmath
import numpy as np
import pytest
import torch
from laws import Given
from scipy import stats

from torchdp import rounded
from torchdp.kernels.inversion import discrete_normal, rounded_normal
from torchdp.noise import Noise, SeededNoise
from torchdp.privacy import gaussian_log_delta
from torchdp.rounded import RoundedNormal

WHOLE = 2**128
MASK = 2**64 - 1
SIGMAS = (1 / 16, 0.3, 1.0, 4.0, 16.3)


@functools.cache
def thresholds(sigma, kind=rounded_normal):
    """T_1, T_2, ... as integers, and what is drawn above the first of them."""
    table = kind(sigma)
    return laws.thresholds(table), table.first


def drawn(sigma, numbers):
    """What a curator adds for these 128-bit numbers W: words of the first bits, of the others, of
    the lowest 64.
    """
    bits = 16 if len(thresholds(sigma)[0]) <= rounded.MANY else 32
    noise = RoundedNormal(sigma)
    zero = torch.zeros(1, dtype=torch.int64)
    unused = 2**bits - 1 & 0x55555555
    words = []
    for n in numbers:
        # the first bits, those after them to the 64th, and the lowest 64
        rest = n >> 64 - bits & MASK << bits
        words.append(
            (
                n >> 128 - bits,
                rest & MASK | unused,
                n & MASK,
            )
        )
    return [int(noise.added(zero, Given(each), ())) for each in words]


def by_hand(sigma, number):
    every, first = thresholds(sigma)
    return first + sum(number < threshold for threshold in every)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_every_threshold_is_the_tail_to_the_nearest_unit(sigma):
    every, first = thresholds(sigma)
    with mpmath.workdps(60):
        root = mpmath.sqrt(2) * mpmath.mpf(sigma)
        edges = [first + j - mpmath.mpf("0.5") for j in range(len(every) + 2)]
        tails = [mpmath.erfc(edge / root) / 2 * WHOLE for edge in edges]
    pairs = zip(tails[1:], every, strict=False)
    # to the nearest unit: half, and the working precision
    assert all(abs(tail - threshold) < 0.501 for tail, threshold in pairs)
    # what is left out at both ends
    assert WHOLE - tails[0] < 0.501
    assert tails[-1] < 0.501
    # the next float is seen
    wrong = thresholds(math.nextafter(sigma, 1e3))[0]
    pairs = zip(tails[1:], wrong, strict=False)
    assert max(abs(tail - threshold) for tail, threshold in pairs) > 1e6


@pytest.mark.parametrize("sigma", [*SIGMAS, 200.0])
def test_words_put_in_by_hand(sigma):
    """The least and the largest words, and each threshold, whose first bits are equal, from below
    and above.
    """
    every = thresholds(sigma)[0]
    numbers = [0, 1, WHOLE - 1, WHOLE - 2, WHOLE // 2, 2**64 - 1, 2**64]
    # some sixty of the thresholds
    some = every[:: max(1, len(every) // 60)]
    around = [t + step for t in some for step in (-1, 0, 1)]
    numbers += [number for number in around if 0 <= number < WHOLE]
    assert drawn(sigma, numbers) == [by_hand(sigma, number) for number in numbers]


def test_variance_and_variation_are_those_of_the_table():
    for sigma in (*SIGMAS, 300.0):
        every, first = thresholds(sigma)
        falling = pairwise([WHOLE, *every, 0])
        squares = [(first + j) ** 2 * (high - low) for j, (high, low) in enumerate(falling)]
        exact = sum(squares) / WHOLE
        normal = RoundedNormal(sigma)
        # a sum of the table in floats
        assert normal.variance == pytest.approx(exact, rel=1e-13)
        # the first wave of Poisson's summation formula
        wave = math.exp(-2 * (math.pi * sigma) ** 2)
        close = 4 * (sigma**2 + 1) * wave
        assert abs(normal.variance - sigma**2 - 1 / 12) <= close + 1e-12 * exact
        assert normal.variation == (len(every) + 3) * 2.0**-129


@pytest.mark.parametrize("sigma", [4.0, 200.0])
def test_equal_words_give_equal_integers(sigma, monkeypatch):
    """For other blocks, numbers of threads, and shapes."""
    normal = RoundedNormal(sigma)
    threads = torch.get_num_threads()
    whole = normal.draw((100_001,), SeededNoise(2))
    try:
        for parts, count in (
            (64, 1),
            (4096, 2),
            (2**20, 3),
        ):
            monkeypatch.setattr(rounded, "AT_ONCE", parts)
            torch.set_num_threads(count)
            assert torch.equal(normal.draw((1, 100_001), SeededNoise(2))[0], whole)
    finally:
        torch.set_num_threads(threads)
    assert normal.draw((0, 3), Noise()).shape == (0, 3)
    assert normal.draw((), Noise()).shape == ()


@pytest.mark.parametrize("sigma", [0.5, 11.0])
def test_thresholds_of_discrete_normals(sigma):
    every, first = thresholds(sigma, discrete_normal)
    with mpmath.workdps(60):
        twice = 2 * mpmath.mpf(sigma) ** 2
        law = [mpmath.exp(-(mpmath.mpf(j) ** 2) / twice) for j in range(-200, 201)]
        unit = WHOLE / mpmath.fsum(law)
        starts = range(201 + first, 201 + first + len(every))
        tails = [mpmath.fsum(law[start:]) * unit for start in starts]
        pairs = zip(tails, every, strict=True)
        assert all(abs(tail - threshold) < 0.501 for tail, threshold in pairs)


def integers(sigma, kind):
    """2^128 P(X = j), from what is drawn, by j."""
    every, first = thresholds(sigma, kind)
    falling = pairwise([WHOLE, *every, 0])
    return {first + j: high - low for j, (high, low) in enumerate(falling)}


def apart(fine, coarse, z):
    """Total variation distance of round(s g) + z K from the rounded normal of their variances'
    sum.
    """
    found = {}
    for k, many in integers(coarse, discrete_normal).items():
        for j, some in integers(fine, rounded_normal).items():
            found[j + z * k] = found.get(j + z * k, 0) + many * some
    with mpmath.workdps(60):
        variance = mpmath.mpf(fine) ** 2 + z * z * mpmath.mpf(coarse) ** 2
        root = mpmath.sqrt(2 * variance)
        ends = range(min(found), max(found) + 2)
        # the smaller of both tails: neither loses digits; what is cut off counts
        half = mpmath.mpf("0.5")
        tails = [mpmath.erfc(abs(j - half) / root) / 2 for j in ends]
        masses = [
            abs(a - b) if (j - 0.5) * (j + 0.5) > 0 else 1 - a - b
            for j, (a, b) in zip(ends, pairwise(tails), strict=False)
        ]
        held = [mpmath.mpf(found.get(j, 0)) / WHOLE**2 for j in ends]
        off = mpmath.fsum(abs(a - b) for a, b in zip(masses, held, strict=False))
        return float((off + tails[0] + tails[-1]) / 2)


def test_two_pieces_make_one_wide_normal():
    """Against 60 digits at every value; and with a fine piece that is too narrow the bumps are
    seen.
    """
    length = sum(
        len(integers(sigma, kind))
        for sigma, kind in ((6.75, rounded_normal), (11.0, discrete_normal))
    )
    assert apart(6.75, 11.0, 3) < (length + 6) * 2.0**-129 + rounded.BUMPS
    # negative control: the fine part is too narrow
    assert apart(3.0, 11.0, 3) > 1e-12


@pytest.mark.parametrize("sigma", [2048.5, 3000.0, 57_599.9, 1e6 / 3, 2.0**20])
def test_wide_normals_are_split(sigma):
    z, fine, coarse = rounded.split(sigma)
    square = Fraction(fine) ** 2 + z**2 * Fraction(coarse) ** 2
    assert Fraction(sigma) ** 2 <= square < Fraction(sigma) ** 2 * (1 + Fraction(1e-14))
    least = 1 / math.sqrt(1 / coarse**2 + (z / fine) ** 2)
    assert 2.0001 * math.exp(-2 * (math.pi * least) ** 2) < rounded.BUMPS / 2
    assert max(fine, coarse) <= 2048
    assert rounded.SMOOTH * z == fine


@pytest.mark.parametrize(
    "sigma",
    [
        2.0**20 + 1,
        2.0**26,
        2.0**28,
    ],
)
def test_very_wide_normals_are_split_again_and_again(sigma):
    """The variance is the wanted one, each piece smooths the next, and the law has no lattice."""
    normal = RoundedNormal(sigma)
    pieces = normal._pieces("cpu")
    assert sigma**2 <= normal.variance * (1 + 1e-12)
    assert normal.variance == pytest.approx(sigma**2, rel=1e-12)
    assert all(later[0] % one[0] == 0 for one, later in pairwise(pieces))
    assert normal.variation < 2.0**-112
    for (apart, guide), (further, _) in pairwise(pieces):
        assert math.sqrt(guide.variance) >= (1 - 1e-9) * rounded.SMOOTH * further / apart
    found = normal.draw((10**5,), SeededNoise(1))
    assert stats.kstest((found.double() / sigma).numpy(), "norm").pvalue > 1e-4
    for further, _ in pieces[1:]:
        assert stats.chisquare(torch.bincount(found % further * 4 // further).numpy()).pvalue > 1e-4


def test_wide_draws_have_the_law(monkeypatch):
    normal = RoundedNormal(3000.0)
    found = normal.draw((10**6,), SeededNoise(1))
    assert normal.variance == pytest.approx(3000.0**2 + 1 / 12, rel=1e-13)
    assert stats.kstest((found.double() / 3000).numpy(), "norm").pvalue > 1e-4
    # negative control: two per cent too wide
    assert stats.kstest((found.double() / 3060).numpy(), "norm").pvalue < 1e-4
    # no lattice of the coarse piece is left
    last = torch.bincount(found % normal._pieces("cpu")[1][0])
    assert stats.chisquare(last.numpy()).pvalue > 1e-4
    monkeypatch.setattr(rounded, "AT_ONCE", 4096)
    assert torch.equal(normal.draw((1000, 1000), SeededNoise(1)).flatten(), found)
    assert (
        normal.variation
        == sum(guide.variation for _, guide in normal._pieces("cpu")) + rounded.BUMPS
        < 2.0**-115
    )


def table_law(sigma, largest):
    """What is drawn, from the thresholds: (2 largest + 1,)."""
    every, first = thresholds(sigma)
    falling = [WHOLE, *every, 0]
    law = {first + j: (high - low) / WHOLE for j, (high, low) in enumerate(pairwise(falling))}
    return np.array([law.get(j, 0.0) for j in range(-largest, largest + 1)])


def worst(law, sigma, shifts):
    """Largest delta over the analytic Gaussian's, where that is 1e-12 or more."""
    ratios = []
    for shift in shifts:
        distance = math.hypot(*shift)
        for epsilon in torch.linspace(0.0, 8.0, 41).tolist():
            log_delta = gaussian_log_delta(sigma, epsilon, distance)
            if log_delta > math.log(1e-12):
                ratios.append(laws.shift_delta(law, shift, epsilon) / math.exp(log_delta))
    return max(ratios)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_rounded_spends_no_more_than_the_gaussian(sigma):
    """Delta at every epsilon, integer shifts along a line and in a plane; what is drawn, not what
    is wanted.
    """
    line = table_law(sigma, math.ceil(9 * sigma) + 8)
    # the stated shifts are private, up to rounding
    assert worst(line, sigma, [(1,), (2,), (3,), (4,), (8,)]) < 1 + 1e-9
    one = table_law(sigma, math.ceil(8 * sigma) + 5)
    assert worst(one[:, None] * one, sigma, [(1, 1), (3, 4), (2, -1)]) < 1 + 1e-9
    # too little noise
    law = table_law(0.98 * sigma, math.ceil(9 * sigma) + 8)
    assert worst(law, sigma, [(1,), (2,)]) > 1


@pytest.mark.parametrize("step", [1.0, 2.0**-3])
def test_what_is_added_is_what_is_drawn(step):
    normal = RoundedNormal(5 * step, step)
    total = torch.tensor([3, -2, 0], dtype=torch.int64)
    drawn = normal.draw((4, 3), SeededNoise(1))
    added = normal.added(total, SeededNoise(1), (4,))
    assert torch.equal(added.double(), total + step * drawn)
    assert added.dtype == (torch.int64 if step == 1 else torch.float64)
