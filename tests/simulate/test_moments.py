"""Moments: against numpy in float64, merging, edge cases, coverage of the interval."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.simulate import Moments
from torchdp.simulate.moments import merge


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [2, 3, 1000, 1023, 1024, 1025, 70_000])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_direct_moments_match_numpy(count, offset):
    x = torch.randn(count, generator=generator(count), dtype=torch.float64) + offset
    moments = Moments.of(x)
    exact = x.numpy().astype(np.longdouble)
    assert (moments.count, moments.minimum, moments.maximum) == (count, float(x.min()), float(x.max()))
    assert moments.mean == pytest.approx(float(exact.mean()), rel=1e-14, abs=1e-15)
    assert moments.variance == pytest.approx(float(exact.var(ddof=1)), rel=1e-7 if offset else 1e-12)
    assert moments.standard_error == pytest.approx(float(stats.sem(exact.astype(float))), rel=1e-7)


@pytest.mark.parametrize("sizes", [(1, 1), (0, 5), (5, 0), (1, 999), (700, 300)])
def test_merge_equals_direct_moments(sizes):
    x = torch.rand(sum(sizes), generator=generator(1), dtype=torch.float64) * 1e3
    merged = merge(*(Moments.of(part) for part in x.split(sizes)))
    direct = Moments.of(x)
    assert (merged.count, merged.minimum, merged.maximum) == (direct.count, direct.minimum, direct.maximum)
    assert merged.mean == pytest.approx(direct.mean, rel=1e-14)
    assert merged.m2 == pytest.approx(direct.m2, rel=1e-12)


def test_known_answer():
    moments = Moments.of(torch.tensor([1, 2, 3, 4]))
    assert moments == Moments(4, 2.5, 5.0, 1.0, 4.0)
    assert moments.variance == 5 / 3
    half = 1.959963984540054 * math.sqrt(5 / 12)
    assert moments.interval() == pytest.approx((2.5 - half, 2.5 + half), rel=1e-15)
    assert moments.relative_half_width(0.95) == pytest.approx(half / 2.5, rel=1e-15)
    assert moments.z_score(2.0) == pytest.approx(0.5 / math.sqrt(5 / 12))


def test_count_zero_and_one():
    empty, one = Moments.of(torch.empty(0)), Moments.of(torch.tensor([3.0]))
    assert (empty.count, empty.m2, math.isnan(empty.mean)) == (0, 0.0, True)
    assert one == Moments(1, 3.0, 0.0, 3.0, 3.0)
    for moments in (empty, one):
        assert math.isnan(moments.variance) and math.isnan(moments.z_score(0.0))
        assert moments.standard_error == math.inf
        assert moments.interval() == (-math.inf, math.inf)
        assert moments.relative_half_width() == math.inf
    assert merge(empty, one) == one == merge(one, empty)


def test_constant_and_zero_samples():
    constant, zero = Moments.of(torch.full((5000,), 0.1, dtype=torch.float64)), Moments.of(torch.zeros(10))
    assert constant.relative_half_width() < 1e-15
    assert zero.relative_half_width() == math.inf  # no relative precision of a mean of 0
    assert (zero.z_score(0.0), zero.z_score(1.0), zero.z_score(-1.0)) == (0.0, -math.inf, math.inf)


def test_low_precision_samples_are_summed_in_float64():
    ones = Moments.of(torch.ones(2**17, dtype=torch.float16))
    assert (ones.mean, ones.m2) == (1.0, 0.0)


def test_threads_do_not_change_a_bit():
    x = torch.randn(300_001, generator=generator(2), dtype=torch.float64)
    threads = torch.get_num_threads()
    try:
        found = set()
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.add(Moments.of(x))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_samples_are_refused(bad):
    with pytest.raises(ValueError, match="NaN or infinite"):
        Moments.of(torch.tensor([1.0, bad]))


@pytest.mark.parametrize("big", [1e200, 1e308])
def test_overflow_is_refused(big):
    with pytest.raises(ValueError, match="overflow"):
        Moments.of(torch.tensor([big, big, -big, 1.0], dtype=torch.float64))


def test_bad_level_is_refused():
    with pytest.raises(ValueError, match="level"):
        Moments.of(torch.rand(3)).interval(95)


def test_interval_covers_at_its_level_and_the_check_has_power():
    repetitions = 2000
    samples = torch.rand(repetitions, 100, generator=generator(3), dtype=torch.float64)
    moments = [Moments.of(row) for row in samples]

    def p_value(level: float) -> float:
        inside = sum(low <= 0.5 <= high for low, high in (m.interval(level) for m in moments))
        return float(stats.binomtest(inside, repetitions, 0.95).pvalue)

    assert p_value(0.95) > 1e-4
    assert p_value(0.90) < 1e-6  # negative control: a narrower interval must be caught
    assert p_value(0.98) < 1e-6


@pytest.mark.parametrize(("hits", "count"), [(0, 5), (5, 5), (1, 40), (190, 200), (99_000, 100_000)])
def test_a_share_has_the_exact_binomial_interval(hits, count):
    """Whatever the blocks; the chance of as many hits or more is half of the rest at the lower end."""
    drawn = torch.arange(count) < hits
    moments = merge(*(Moments.of(part) for part in drawn.split([2, count - 2])))
    assert moments.share and not merge(moments, Moments.of(torch.rand(3))).share
    assert (moments.mean, moments.count) == (pytest.approx(hits / count), count)
    for level in (0.5, 0.95):
        exact = stats.binomtest(hits, count).proportion_ci(level, method="exact")
        assert moments.interval(level) == pytest.approx((exact.low, exact.high), rel=1e-9)
    assert Moments.of(drawn[:0]).interval() == (0, 1)


def test_merging_something_else_is_refused():
    with pytest.raises(TypeError, match="b must be a Moments, not float"):
        merge(Moments(), 1.0)
