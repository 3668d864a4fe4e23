"""Vectors on a lattice, derived once more from the words by arithmetic that shares nothing with the
library's.

As the docstrings tell it: V = b g + a x', N = V/h + W rounded, from h, the threshold or the cap's
share, the coin.
"""

import functools
import math
import random

import pytest
import torch
from laws import float64
from mpmath import MPContext
from scipy.special import betaincinv

from torchdp.noise import Noise
from torchdp.randomizers import GaussianVector, PrivUnit

mp = MPContext()
mp.dps = 60
# words at the ends of what 64 bits hold, and around the sign
ENDS = (
    0,
    1,
    2**14,
    2**31,
    2**52,
    2**61,
    2**62 - 1,
    2**63 - 2**11,
    2**63 - 1,
    -1,
    -(2**62),
    -(2**63),
)


class Given(Noise):
    """Words of our own, kept; in one place of one block, if told so, a word of our choice."""

    def __init__(self, seed, block=None, place=0, word=0):
        super().__init__()
        self.random = random.Random(seed)
        self.put = (block, place, word)
        self.kept = []

    def fill(self, words):
        own = [self.random.getrandbits(64) - 2**63 for _ in range(len(words))]
        block, place, word = self.put
        if block == len(self.kept) and own:
            own[place % len(own)] = word
        self.kept.append(own)
        words.copy_(torch.tensor(own, dtype=torch.int64))


def long(words):
    """(unsigned number, bits)"""
    return functools.reduce(lambda n, word: n * 2**64 + word % 2**64, words, 0), 64 * len(words)


def pair(radius, angle):
    number, bits = long(radius)
    signed = number - (number >= 2 ** (bits - 1)) * 2**bits
    size = abs(2 * signed + 1)
    uniform = mp.mpf(size) / 2**bits
    r = mp.sqrt(-2 * mp.log(uniform))
    number, bits = long(angle)
    phi = mp.pi * (2 * number + 1) / 2**bits
    return r * mp.cos(phi), r * mp.sin(phi)


def cap(dim, share):
    """The angle within which a random point of the sphere in R^dim lies with this chance: a
    hypergeometric series.
    """
    small = min(share, 1 - share)
    n = dim - 1
    total = mp.beta(mp.mpf(n) / 2, mp.mpf(1) / 2)
    # Newton's method from scipy's 16 digits: its steps double them past the 60 that are kept
    start = betaincinv(n / 2, 0.5, float(2 * small))
    angle = mp.mpf(math.asin(math.sqrt(start)))
    half = mp.mpf(n) / 2
    for _ in range(6):
        cosine = mp.cos(angle)
        sine = mp.sin(angle)
        if cosine < 0.7:
            series = mp.hyp2f1(0.5, mp.mpf(3 - dim) / 2, 1.5, cosine**2)
            held = mp.mpf(1) / 2 - cosine * series / total
        else:
            series = mp.hyp2f1(0.5, half, half + 1, sine**2)
            held = sine**n / (n * total) * series
        angle -= (held - small) * total / sine ** (n - 1)
    return angle if small == share else mp.pi - angle


def sent(protocol, x, kept):
    """N of one message, whole numbers, from its words; the fifth block, where there is one,
    continues the others.
    """
    dim = protocol.dim
    # Box-Muller makes two normals at once, dim + 1 of which are used
    pairs = protocol.dim // 2 + 1
    ours = [[word] for block in (kept[0], kept[1], kept[3]) for word in block]
    more = kept[4] if len(kept) > 4 else []
    for place, word in enumerate(more):
        ours[place // 3].append(word)
    radii = ours[:pairs]
    angles = ours[pairs : 2 * pairs]
    made = [pair(*words) for words in zip(radii, angles, strict=True)]
    G = ([cosine for cosine, _ in made] + [sine for _, sine in made])[: dim + 1]
    point = [round(each * (2.0**26 / protocol.radius)) for each in x]
    square = sum(each**2 for each in point)
    if square > 2**52:
        shrink = 2.0**26 / math.sqrt(square) * (1 - 2.0**-50)
        point = [math.trunc(each * shrink) for each in point]
        square = sum(each**2 for each in point)
    u = [mp.mpf(each) / 2**26 for each in point]
    u.append(mp.sqrt(2**52 - square) / 2**26)
    if isinstance(protocol, GaussianVector):
        ratio = mp.mpf(protocol.radius / protocol.sigma)
        V = [g + ratio * each for g, each in zip(G, u, strict=True)]
    else:
        law = protocol.cap
        coin = ours[-2][0]
        number, bits = long(ours[-1])
        low = number % 2 ** (bits - 1)
        near = mp.mpf(2 * low + 1) / 2 ** (bits + 1)
        outer = near if coin < 0 else 1 - near
        beyond = coin % 2**63 < law.chance
        # the part of G along the point is taken away
        dot = mp.fsum(a * b for a, b in zip(G, u, strict=True))
        across = [g - dot * each for g, each in zip(G, u, strict=True)]
        side = 1 if beyond else -1
        part = law.survival if beyond else 1 - mp.mpf(law.survival)
        angle = cap(dim + 1, outer * part)
        along = side * mp.sqrt(dim + 1) * mp.cos(angle)
        stretch = mp.sqrt(dim + 1) * mp.sin(angle)
        stretch /= mp.sqrt(mp.fsum(each**2 for each in across))
        V = [along * each + stretch * w for each, w in zip(u, across, strict=True)]
    bytes_ = b"".join((word % 2**64).to_bytes(8, "little") for word in kept[2])
    pieces = [bytes_[2 * i : 2 * i + 2] for i in range(dim)]
    half = mp.mpf(1) / 2
    W = [int.from_bytes(piece, "little", signed=True) + half for piece in pieces]
    exact = [v / protocol.grid + w / 2**16 for v, w in zip(V, W, strict=False)]
    whole = [int(mp.nint(each)) for each in exact]
    ends = 2 ** (protocol.bits_per_user // dim - 1)
    return [max(-ends, min(ends - 1, each)) for each in whole]


def points(dim, radius):
    """Centre, on the sphere, a breath beyond it, near it, small, less than small, halfway between
    lattice points.
    """
    sizes = (
        0,
        1,
        -1,
        1 + 2**-52,
        1 - 2**-53,
        2**-26,
        1.5 * 2**-26,
        5e-324,
        0.5 + 2**-27,
    )
    for size in sizes:
        yield [radius * size * (place == dim // 2) for place in range(dim)]
    diagonal = radius / math.sqrt(dim)
    yield [diagonal] * dim
    yield [-0.3 * diagonal] * dim


KINDS = {
    "PrivUnit": PrivUnit,
    "Gaussian": functools.partial(GaussianVector, delta=1e-6),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dim", "epsilon"),
    [
        (1, 30.0),
        (2, 0.01),
        (3, 30.0),
        (7, 3.0),
    ],
)
def test_what_is_sent_is_the_mechanism_of_real_numbers_rounded(kind, dim, epsilon):
    protocol = KINDS[kind](
        dim,
        epsilon if kind == "Gaussian" else min(50.0, 1.7 * epsilon),
        2.5,
    )
    doubt = 0
    others = 0
    for number, x in enumerate(points(dim, 2.5)):
        for block, place, word in (
            (None, 0, 0),
            (number % 4, number, ENDS[number]),
            (3, 0, ENDS[-number]),
        ):
            noise = Given(100 * dim + number, block, place, word)
            message = protocol.randomize(float64([x]), noise=noise)
            got = [round(each / protocol.step) for each in message[0].tolist()]
            kept = noise.kept
            assert got == sent(protocol, x, kept)
            doubt += len(kept) > 4
            kept[2] = [word ^ 0x7FFF for word in kept[2]]
            # the coins of the rounding are other ones
            others += got != sent(protocol, x, kept)
    assert doubt >= 1
    assert others >= 3
