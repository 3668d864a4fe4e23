"""The secure sketch without delta: the law of its noise written out, modulo the ring; one part less
is too little.
"""

import decimal
import itertools
import math
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
import torch
from contract import MessageContract
from laws import float64, normal

from torchdp import discrete_laplace
from torchdp.noise import SeededNoise
from torchdp.secure import PureSecureSketch
from torchdp.sketching import AdaptiveCoalition, Sketch, ones

MODULUS = 256


def polya(part, rate, modulus=MODULUS):
    """NB(part, a) - NB(part, a) modulo the ring, a = e^-rate, by the recursion of its chances."""
    a = math.exp(-rate)
    length = 40 * modulus
    chances = np.empty(length)
    chances[0] = (1 - a) ** part
    for k in range(1, length):
        chances[k] = chances[k - 1] * a * (k - 1 + part) / k
    one = chances.reshape(-1, modulus).sum(0)
    return circular(one, np.roll(one[::-1], 1))


def circular(one, two):
    """Of a sum modulo the length; positive numbers, so that each entry is right to a few ulp."""
    reverse = two[::-1]
    return np.array([one @ np.roll(reverse, k + 1) for k in range(len(one))])


def sum_of(law, times):
    total = np.eye(1, len(law))[0]
    for _ in range(times):
        total = circular(total, law)
    return total


def loss(law, most):
    """The largest log ratio of a law and its moves by 1, ..., most."""
    ratios = [law / np.roll(law, shift) for shift in range(1, most + 1)]
    return max(float(np.log(each).max()) for each in ratios)


def rows(n, d, seed=5):
    """Rows of l_1 norm at most 1, every third on the boundary."""
    x = normal(n, d, seed=seed)
    x /= x.abs().sum(1, keepdim=True)
    x[::3] *= 0.999
    return x


CLIENTS = torch.arange(24)
# row 3 is empty
ROWS = torch.stack([CLIENTS % 3, 4 + CLIENTS % 2])
NEGATIVE = torch.stack([CLIENTS % 5 % 2, CLIENTS % 7 % 2])
UNEVEN = Sketch(ROWS, 1 - 2 * NEGATIVE, 6)


class TestPureSecureSketch(MessageContract):
    repeats = 4000
    runs = 100
    protocol = PureSecureSketch(
        UNEVEN,
        2,
        1.0,
        1.0,
        servers=3,
        coalition=AdaptiveCoalition(2, absent=1),
        fraction_bits=4,
    )
    x = rows(24, 2)
    bad: ClassVar = [
        rows(24, 3),
        1.1 * rows(24, 2),
        rows(24, 2) * math.nan,
        rows(24, 2)[None],
        torch.zeros(25, 2),
    ]

    def loss(self, protocol):
        """Two rows move by 2^5 units each, with five parts in the noise of the emptier one, of
        eight pairs.
        """
        law = sum_of(polya(protocol.part, protocol.rate, 2**10), 5)
        moved = np.roll(law, 2 * 2**4)
        return 2 * float(np.log(law / moved).max())

    def truth(self):
        S = torch.zeros(6, 24, dtype=torch.float64)
        for c, i in itertools.product(range(2), range(24)):
            S[UNEVEN.rows[c, i], i] += float(UNEVEN.signs[c, i]) / math.sqrt(2)
        units = (self.x * 2**4).trunc()
        return S @ (units / 2**4)

    # a thousand sums: with the slow tests
    test_no_event_of_the_bits_that_leave_tells_more = None

    @pytest.mark.slow
    def test_no_event_of_ten_million_tells_more(self):
        MessageContract.test_no_event_of_the_bits_that_leave_tells_more(self)


@pytest.mark.parametrize("honest", [1, 2, 5])
def test_guarantee_honest_shares_make_a_discrete_laplace_variable_and_one_less_does_not(honest):
    for epsilon, most in ((0.5, 4), (2.0, 3)):
        rate = epsilon / most
        law = sum_of(polya(1 / honest, rate), honest)
        z = np.arange(MODULUS)
        a = math.exp(-rate)
        wrapped = (1 - a) / (1 + a) * (a**z + a ** (MODULUS - z)) / (1 - a**MODULUS)
        assert np.abs(law / wrapped - 1).max() < 1e-10
        assert epsilon * (1 - 1e-6) < loss(law, most) <= epsilon * (1 + 1e-9)
        for surplus in (1, 3):
            assert loss(sum_of(polya(1 / honest, rate), honest + surplus), most) <= epsilon * (
                1 + 1e-9
            )
        if honest > 1:
            assert loss(sum_of(polya(1 / honest, rate), honest - 1), most) > 1.1 * epsilon


@pytest.mark.filterwarnings("ignore:a grid of")
def test_guarantee_of_the_calibrated_noise_in_both_rings():
    """The integers of two rows at the largest distance, in one column and in several, under the
    shares' exact law.
    """
    for bits, columns, sensitivity, f in (
        (32, 1, None, 2),
        (64, 3, None, 1),
        (32, 2, 0.3, 3),
    ):
        p = PureSecureSketch(
            ones(6), columns, 1.0, 0.7, bits=bits, fraction_bits=f, sensitivity=sensitivity,
            coalition=AdaptiveCoalition(2, absent=1),
        )  # fmt: skip
        # the shares of six clients but two corrupt ones and one absent
        law = sum_of(polya(p.part, p.rate), 3)
        x = candidates(columns)
        words = p.ring.to_words(x).double()
        moved = torch.cdist(words, words, p=1)
        near = torch.cdist(x, x, p=1) <= (sensitivity or 2.0)
        most = int(moved[near].max())
        assert 0 < most <= p.distance(p.ring)
        assert loss(law, p.distance(p.ring)) <= 0.7 * (1 + 1e-9)
        assert sensitivity or (most == p.distance(p.ring) and loss(law, most) > 0.7 * (1 - 1e-6))


def candidates(columns):
    """Rows of l_1 norm at most 1, in steps of 1/20, and a few fixed ones."""
    steps = float64(list(itertools.product(range(-20, 21, 5), repeat=columns))) / 20
    near = torch.cat([steps, steps + 0.049, steps - 0.049])
    size = near.abs().sum(1)
    return near[size <= 1]


def test_guarantee_distances_beyond_the_integers_of_floats_round_no_epsilon_up():
    sketch = Sketch(
        torch.zeros(1, 4, dtype=torch.int64),
        torch.ones(1, 4, dtype=torch.int64),
        1,
    )
    epsilon = 626.945
    protocol = PureSecureSketch(sketch, 1, 2.0455, epsilon)
    distance = protocol.distance(protocol.ring)
    assert distance > 2**53
    assert Fraction(protocol.rate) * distance <= Fraction(epsilon)


def test_the_noise_of_one_client_has_the_law_of_a_share():
    part = 1 / 3
    rate = 0.4
    size = 2**17
    found = discrete_laplace.add_shares(
        torch.zeros(size, dtype=torch.int64), part, rate, SeededNoise(1)
    )
    law = polya(part, rate)
    assert_law(torch.bincount(found % MODULUS, minlength=MODULUS).numpy(), law)


@pytest.mark.parametrize("rate", [50.0, 3.0, 0.7, 0.5, 2.0**-50])
def test_clusters_are_never_fewer_than_the_law_asks_for(rate):
    with decimal.localcontext(decimal.Context(prec=60)):
        ratio = (-decimal.Decimal(rate)).exp()
        exact = -2 * (1 - ratio).ln() / 3
        found = decimal.Decimal(discrete_laplace.mean_clusters(1 / 3, rate)) / exact
        assert 1 <= found < 1 + decimal.Decimal(2) ** -49


def assert_law(counts, law):
    """Pearson's statistic of the cells that expect 20 or more is not beyond five of its
    deviations.
    """
    kept = law * counts.sum() > 20
    expected = np.append(law[kept], law[~kept].sum())
    expected *= counts.sum()
    seen = np.append(counts[kept], counts[~kept].sum())
    statistic = ((seen - expected) ** 2 / expected).sum()
    cells = len(expected) - 1
    assert abs(statistic - cells) < 5 * math.sqrt(2 * cells)


@pytest.mark.parametrize("at_once", [2**16, 40])
@pytest.mark.parametrize("rate", [3.0, 0.3, 1e-3, 2.0**-50])
def test_sizes_of_clusters_have_their_law_on_every_grid(rate, at_once):
    """By octave: sums of e^(-rate k)/k, or what they tend to on a fine grid; of few, by tries."""
    noise = SeededNoise(2)
    found = torch.cat(
        [discrete_laplace.sizes(at_once, rate, noise) for _ in range(2**16 // at_once)]
    )
    # larger clusters have a chance below e^-160
    octaves = max(1, math.ceil(math.log2(160 / rate)))
    assert int(found.min()) >= 1
    assert int(found.max()) < 2**octaves
    masses = np.zeros(octaves)
    for j in range(octaves):
        if j < 12:
            k = np.arange(2**j, 2 ** (j + 1), dtype=float)
            mass = np.exp(-rate * (k - 1)) / k
            masses[j] = mass.sum()
        else:
            # k/2^j, the midpoint rule
            x = (np.arange(4096) + 0.5) / 4096 + 1
            mass = np.exp(-rate * 2.0**j * x) / x
            masses[j] = mass.mean()
    logs = found.double().log2().floor()
    counts = torch.bincount(logs.long(), minlength=octaves)
    assert_law(counts.numpy(), masses / masses.sum())


def test_what_floats_do_not_decide_is_decided_by_bits():
    rate = 0.3
    octave = 2
    k = 5
    chance = 4 / 5 * math.exp(-1.2)
    first = math.floor(chance * 2**63)
    assert discrete_laplace.exactly([first - 2**12, 0, 0, 0], octave, k, rate)
    assert not discrete_laplace.exactly([first + 2**12, 0, 0, 0], octave, k, rate)
    octaves = torch.arange(30)
    words = SeededNoise(4).integers((30,))
    sizes = (1 << octaves) + (1 << octaves) // 3
    kept = discrete_laplace._kept(words, octaves, sizes, 1e-6, SeededNoise(5)).tolist()
    for w, j, size, found in zip(
        words.tolist(),
        octaves.tolist(),
        sizes.tolist(),
        kept,
        strict=True,
    ):
        assert discrete_laplace.exactly([w, 0, 0, 0], j, size, 1e-6) == found
    assert 5 < sum(kept) < 25


def test_no_sum_wraps_around_but_with_the_stated_chance():
    rate = 0.05
    for shares in (1, 2, 5):
        law = sum_of(polya(1.0, rate, 2048), shares)
        z = np.minimum(np.arange(2048), 2048 - np.arange(2048))
        for exponent in (2.0, 8.0):
            far = float(discrete_laplace.tail(torch.tensor([shares]), rate, exponent))
            assert law[z >= far].sum() <= 2 * math.exp(-exponent)
            # and it is not far off
            assert law[z >= 0.3 * far].sum() > math.exp(-exponent)
    for bits in (32, 64):
        p = PureSecureSketch(ones(300), 2, 1.0, 0.5, bits=bits)
        tail = discrete_laplace.tail(torch.tensor([300 * p.part]), p.rate, 52.7)
        far = 300 + float(tail) / p.ring.scale
        assert far * p.ring.scale < 2 ** (bits - 1)
        with pytest.raises(ValueError, match="fraction_bits must be at most"):
            PureSecureSketch(
                ones(300),
                2,
                1.0,
                0.5,
                bits=bits,
                fraction_bits=p.ring.fraction_bits + 1,
            )


@pytest.mark.filterwarnings("ignore:a grid of")
def test_integers_longer_than_the_noise_hides_are_refused():
    p = PureSecureSketch(ones(3), 2, 1.0, 1.0, fraction_bits=3)
    with pytest.raises(ValueError, match="l_1 norm above bound"):
        p.rows(torch.tensor([[0.75, 0.375]] * 3))
    assert p.distance(p.ring) == 16
    assert PureSecureSketch(ones(3), 2, 0.99, 1.0, fraction_bits=3).distance(p.ring) == 14
    near = PureSecureSketch(
        ones(3),
        2,
        1.0,
        1.0,
        fraction_bits=3,
        sensitivity=0.25,
    )
    assert near.distance(near.ring) == 4
    assert "apart in l_1" in near.guarantee.source
    with pytest.raises(ValueError, match="more than sensitivity"):
        near.estimate(torch.tensor([[0.5, 0.0], [0.0, 0.5], [0.5, 0.0]]))
