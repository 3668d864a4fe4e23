"""Fixed-point numbers modulo 2^32 and 2^64."""

import math

import pytest
import torch
from laws import float64, normal

from torchdp.secure.ring import Ring, farthest_sum

RINGS = [Ring(32, 0), Ring(32, 13), Ring(64, 0), Ring(64, 40)]


@pytest.mark.parametrize("ring", RINGS)
def test_encoding_goes_toward_zero_and_no_norm_grows(ring):
    x = normal(2000, 5) * 3
    q = ring.to_words(x)
    assert q.dtype == ring.dtype
    assert (q.double().abs() <= x.abs() * ring.scale).all()
    assert (q.double() - x * ring.scale).abs().max() < 1
    assert (q.double().norm(dim=1) <= x.norm(dim=1) * ring.scale).all()
    assert torch.equal(ring.to_words(-x), -q)


@pytest.mark.parametrize("ring", RINGS)
def test_decoding_inverts_and_sums_wrap_around(ring):
    info = torch.iinfo(ring.dtype)
    q = torch.tensor([0, 1, -1, 12345], dtype=ring.dtype)
    assert torch.equal(ring.to_words(ring.to_reals(q)), q)
    assert torch.tensor([info.max], dtype=ring.dtype) + 1 == info.min
    assert torch.full((3,), info.max, dtype=ring.dtype).sum(dtype=ring.dtype) == info.max - 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**22, -(2.0**22)])
def test_entries_that_do_not_fit_are_refused(bad):
    ring = Ring(32, 10)
    with pytest.raises(ValueError, match="finite and fit 32 bits"):
        ring.to_words(float64([0.0, bad]))
    assert ring.to_words(torch.tensor([2.0**21 - 1])) == 2**31 - 2**10


def test_the_farthest_sum_is_of_the_largest_entries_and_the_widest_noise():
    assert farthest_sum(4, 2.0, 50.0, 0.5) == 4 * 2.25 + 1000
    assert farthest_sum(100, 2.0, 1.0, 0.5) == 100 * 2.25 + 100
