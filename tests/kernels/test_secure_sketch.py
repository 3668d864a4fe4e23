"""The keyed secure sketch: words computed one by one, the law of its normals, sums of rows."""

import itertools
import math

import mpmath
import pytest
import torch
from laws import keyed_normals as normals

from torchdp.kernels import chacha, secure_sketch
from torchdp.kernels.secure_sketch import reference
from torchdp.noise import SeededNoise

DTYPES = {32: torch.int32, 64: torch.int64}


def problem(
    n,
    s,
    d,
    m,
    seed=0,
    unit=2.0**20,
):
    """values, rows, signs, units."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.rand(m, n, generator=g).argsort(0)[:s]
    bits = torch.randint(2, (s, n), generator=g)
    signs = (2 * bits - 1).to(torch.int8)
    units = unit * (1 + torch.arange(m, dtype=torch.float64) / m)
    return torch.randn(n, d, dtype=torch.float64, generator=g), rows, signs, units


def new_key(seed=0):
    return SeededNoise(seed).words((4,)).view(torch.int32)


def signed(value, bits):
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("first", [0, 5])
def test_words_are_those_computed_one_by_one(bits, first):
    n = 7
    s = 2
    d = 3
    m = 5
    scale = 2.0**10
    A, rows, signs, units = problem(n, s, d, m)
    key = new_key()
    G = normals(key, first * s * d, n * s * d).view(n, s, d).tolist()
    found = secure_sketch.words(
        A,
        rows,
        signs,
        units,
        key,
        first,
        scale,
        DTYPES[bits],
    )
    for i, c, ell in itertools.product(range(n), range(s), range(d)):
        noise = round(float(units[rows[c, i]]) * G[i][c][ell])
        value = math.trunc(float(A[i, ell]) * scale)
        word = int(signs[c, i]) * (value + noise)
        assert int(found[i, c, ell]) == signed(word, bits)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize(
    ("count", "m", "d"),
    [
        (0, 3, 2),
        (1, 1, 1),
        (2, 5, 3),
        (500, 7, 10),
        (64, 64, 1),
    ],
)
def test_rows_add_up_modulo_the_ring_as_index_add_does(dtype, count, m, d):
    g = torch.Generator().manual_seed(count)
    info = torch.iinfo(dtype)
    places = torch.randint(m, (count,), generator=g)
    words = torch.empty(d, count, dtype=dtype).random_(info.min, None, generator=g).T
    table = torch.full((m, d), info.max, dtype=dtype)
    expected = table.clone().index_add_(0, places, words)
    secure_sketch.add_rows(table, places, words)
    assert torch.equal(table, expected)


def words64(key, block, group, nonce):
    words = chacha.keystream(key, block, 1, group, nonce).view(torch.int64)
    return [word % 2**64 for word in words.tolist()]


def by_hand(key, entry, unit):
    """unit G by mpmath, from the words of the stream and the further ones, read off here once
    more.
    """
    place = entry % 8 // 2 * 2
    one, two = words64(key, entry // 8, 0, 0)[place : place + 2]
    further = words64(key, entry // 2, 0, 2)
    radius = (one >> 12) * 2**24 + (one % 2**12) * 2**12 + two % 2**12
    angle = two >> 12
    with mpmath.workdps(90):
        # 192 further bits of each: far more than 90 digits can tell
        scales = [mpmath.mpf(2) ** (-64 * k) for k in (1, 2, 3)]
        first = mpmath.fdot(further[:3], scales)
        second = mpmath.fdot(further[3:6], scales)
        chance = (radius + first) / mpmath.mpf(2) ** 76
        r = mpmath.sqrt(-2 * mpmath.log(chance))
        turn = 2 * mpmath.pi * (angle + second) / mpmath.mpf(2) ** 52
        return r * (mpmath.sin(turn) if entry % 2 else mpmath.cos(turn)) * unit


@pytest.mark.parametrize(
    "unit", [2.0**-4, 1.0, 1000.3, reference.SURE, 2.0**38, reference.FARTHEST]
)
def test_guarantee_noise_is_rounded_without_error(unit, monkeypatch):
    """Floats that decide, and every entry in doubt, against arithmetic of 90 digits; the bound
    holds with a margin.
    """
    key = new_key(5)
    n = 400
    units = torch.full((n,), unit, dtype=torch.float64)
    decided = reference.rounded_normals(key, 3, units)
    exact = [by_hand(key, 3 + e, unit) for e in range(n)]
    assert decided.tolist() == [int(mpmath.nint(x)) for x in exact]
    radius = reference._polar(key, 3, n)[0].repeat_interleave(2)
    radius = radius[1:][:n]
    floats = normals(key, 3, n).tolist()
    off = [abs(x - mpmath.mpf(g) * unit) for x, g in zip(exact, floats, strict=True)]
    room = (reference._error(radius, radius) * unit).tolist()
    # a quarter of the error that is allowed for
    assert max(float(o) / r for o, r in zip(off, room, strict=True)) < 0.25
    monkeypatch.setattr(reference, "ROUNDINGS", 1e30)
    assert torch.equal(reference.rounded_normals(key, 3, units), decided)


def test_extreme_words_are_in_doubt_and_decided(monkeypatch):
    """The least and the largest radius and angle: floats can not tell, further bits do."""
    key = new_key(6)
    asked = []
    integers = reference.integers

    def given(key, first, count, dtype, group, stream):
        found = integers(key, first, count, dtype, group, stream)
        if stream == reference.NOISE:
            words = torch.tensor([0, 0, -1, -1, 4095, 4095, -4096, 0], dtype=torch.int64)
            return words.repeat(1 + (first + count) // 8)[first:][:count]
        asked.append(first)
        return found

    monkeypatch.setattr(reference, "integers", given)
    units = torch.full((8,), 2.0**28, dtype=torch.float64)
    found = reference.rounded_normals(key, 0, units).tolist()
    # all four pairs: U = 2^-77, 1 - 2^-77, 2^-52 and 1 - 2^-52, or nearly
    assert set(asked) == {0, 8, 16, 24}
    assert abs(found[0]) > 10.3 * 2**28
    assert abs(found[2]) <= 1
    assert abs(found[0]) < 24 * 2**28


def test_few_entries_are_in_doubt(monkeypatch):
    """A few in 10^5, as the page says: 200,000 entries ask for further bits so often."""
    asked, exactly = [], reference.exactly
    monkeypatch.setattr(reference, "exactly", lambda *each: asked.append(each) or exactly(*each))
    reference.rounded_normals(
        new_key(8), 0, torch.full((200_000,), reference.SURE, dtype=torch.float64)
    )
    assert 1 <= len(asked) <= 20
