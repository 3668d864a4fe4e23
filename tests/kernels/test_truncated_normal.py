"""Normals on a half line: against SciPy's quantiles, far in both tails, and the same numbers on both paths."""

import math

import pytest
import torch
from scipy import special

from torchdp.kernels import philox, privunitg, truncated_normal
from torchdp.kernels.truncated_normal import reference

THRESHOLDS = [-40.0, -8.0, -1.0, -1e-3, 0.0, 0.7, 2.0, 8.0, 20.0, 38.0, 40.0]


def tails():
    """Uniforms from 2^-53 to 1 - 2^-53, thick at both ends."""
    small = 2.0 ** -torch.linspace(1, 53, 800, dtype=torch.float64)
    return torch.cat([small, 1 - small, torch.linspace(0.001, 0.999, 999, dtype=torch.float64)])


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_probability_beyond_each_number_is_its_uniform_on_both_sides(threshold):
    """A last place of x moves log P(N > x) by x^2 of them, and as much again is lost in checking."""
    u = tails()
    x = truncated_normal.above(u, threshold)
    k = torch.tensor(threshold, dtype=torch.float64)
    wanted = u.log() + special.log_ndtr(-threshold)
    beyond = torch.from_numpy(special.log_ndtr(-x.numpy()))
    unit = 2.0**-52 * (1 if threshold < 38 else 8)
    assert ((beyond - wanted).abs() <= 8 * unit * (1 + x.square() + wanted.abs())).all()
    if threshold <= -8:  # P(N < k) does not hide what lies between k and x
        between = torch.from_numpy(special.ndtr(x.numpy())) - special.ndtr(threshold)
        far = (1 - u) > 1e3 * special.ndtr(threshold)
        assert far.any() and ((between / (1 - u) - 1).abs() <= 8 * unit * (1 + x.square()))[far].all()
    assert (x >= k).all() and (x[u.argsort()].diff() <= 1e-12).all()


@pytest.mark.parametrize("threshold", [threshold for threshold in THRESHOLDS if threshold >= 0])
def test_numbers_in_the_tail_are_scipys_quantiles(threshold):
    u = tails()
    truth = -torch.from_numpy(special.ndtri_exp(u.log().numpy() + special.log_ndtr(-threshold)))
    error = (truncated_normal.above(u, threshold) - truth).abs() / truth.clamp_min(0.1)  # near 0 SciPy's cancels
    assert error.max() < (2e-15 if threshold < 38 else 1e-14)


def test_an_event_of_probability_1e_9_has_it_to_eleven_digits_and_half_precision_has_none():
    """The numbers fall with the uniform, so P(X > x) is where they cross x."""
    for threshold in (0.0, 1.5, 10.0):
        log_p = math.log(1e-9) + special.log_ndtr(-threshold)
        x = -special.ndtri_exp(log_p)
        around = torch.tensor([1e-9 * (1 - 1e-11), 1e-9 * (1 + 1e-11)], dtype=torch.float64)
        inside, outside = truncated_normal.above(around, threshold)
        assert inside > x > outside
    coarse = truncated_normal.above(
        torch.tensor([2.0**-24], dtype=torch.float64), 0.0
    )  # a float32 uniform's least
    assert coarse < -special.ndtri_exp(math.log(1e-9) + special.log_ndtr(0.0))


@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.0, 8.0])
def test_both_branches_agree_with_the_tilted_normal(threshold):
    u = tails()
    options = {"threshold": threshold, "upper": 0.5, "survival": float(special.ndtr(-threshold))}
    upper = privunitg.tilted_normal(torch.zeros_like(u), u, **options)
    torch.testing.assert_close(truncated_normal.above(u, threshold), upper, rtol=2e-15, atol=2e-15)
    lower = privunitg.tilted_normal(torch.ones_like(u), u, **options)
    near_median = lower.abs() < 1  # beyond, the tilted normal's 1 - p cancels
    mine = -truncated_normal.above(u, -threshold)
    torch.testing.assert_close(mine[near_median], lower[near_median], rtol=1e-14, atol=1e-15)


def test_known_answers():
    x = truncated_normal.draws(2024, 4, 3.0, first=2**40)
    expected = [3.121195733283394, 3.293781326199774, 3.1514846702327564, 3.1016400462116835]
    assert x.tolist() == pytest.approx(expected, rel=4e-15, abs=0)


def test_draws_are_the_quantiles_of_the_keys_words_and_parts_make_the_whole():
    whole = truncated_normal.draws(-7, 1000, 1.5, first=5, stream=2)
    uniforms = philox.unit(*philox.words(-7, torch.arange(5, 1005), 0, 2)[:2])
    assert torch.equal(whole, truncated_normal.above(uniforms, 1.5))
    parts = [
        truncated_normal.draws(-7, size, 1.5, first=first, stream=2) for first, size in ((5, 0), (5, 1), (6, 999))
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(truncated_normal.draws(-7, 1000, 1.5, first=5, stream=3), whole)


def test_the_mean_and_variance_are_those_of_the_half_line():
    k, n = 1.5, 200_000
    x = truncated_normal.draws(3, n, k)
    hazard = math.exp(-k * k / 2) / math.sqrt(2 * math.pi) / special.ndtr(-k)
    variance = 1 + k * hazard - hazard**2
    assert abs(float(x.mean()) - hazard) < 4 * math.sqrt(variance / n)
    assert abs(float(x.var()) / variance - 1) < 4 * math.sqrt(8 / n)


def test_the_formula_needs_the_logarithm_beyond_the_range_of_float64():
    """P(N >= 40) is 0 in float64; a quantile of it would be infinite."""
    assert special.ndtr(-40.0) == 0.0
    assert torch.isfinite(truncated_normal.above(tails(), 40.0)).all()
    assert not torch.isfinite(
        reference.lower_quantile(torch.zeros(1).double(), torch.zeros(1).double().log())
    ).any()
