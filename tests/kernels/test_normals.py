"""Normals from a counter: their law, their tails, and that each is a function of its key, number and column."""

import math

import pytest
import torch
from scipy import stats

from torchdp.kernels import normals, philox
from torchdp.kernels.normals import reference

ALPHA = 1e-6
TYPES = [torch.float32, torch.float64]


def draws(key=1, size=40_000, width=6, dtype=torch.float32, first=0, stream=0):
    return normals.normals(key, torch.arange(first, first + size), width, dtype, stream=stream)


@pytest.mark.parametrize("dtype", TYPES)
def test_each_column_is_standard_normal_and_columns_are_independent(dtype):
    sample = draws(dtype=dtype)
    assert sample.dtype == dtype and sample.shape == (40_000, 6)
    for column in sample.double().numpy().T:
        assert stats.kstest(column, "norm").pvalue > ALPHA
        assert stats.kstest(1.1 * column, "norm").pvalue < ALPHA
    for power in (1, 2):
        correlations = torch.corrcoef(sample.double().pow(power).T) * math.sqrt(len(sample))
        assert float((correlations - correlations.diagonal().diag()).abs().max()) < stats.norm.isf(ALPHA / 30)


@pytest.mark.parametrize("dtype", TYPES)
def test_squares_of_a_pair_are_exponential_far_into_the_tail(dtype):
    """r^2/2 = -log u, where a coarse conversion of words would show first."""
    sample = draws(2, 200_000, 2, dtype).double()
    uniform = (-sample.square().sum(-1) / 2).exp()
    small = uniform[uniform < 1e-3] * 1e3
    assert stats.kstest(small.numpy(), "uniform").pvalue > ALPHA and 120 < len(small) < 280


@pytest.mark.parametrize("dtype", TYPES)
def test_a_number_depends_on_key_number_column_and_stream_alone(dtype):
    whole = draws(-3, 100, 9, dtype, first=5)
    assert torch.equal(draws(-3, 7, 9, dtype, first=45), whole[40:47])
    assert torch.equal(draws(-3, 100, 5, dtype, first=5), whole[:, :5])
    assert torch.equal(normals.normals(-3, torch.tensor([50, 7]), 9, dtype), whole[[45, 2]])
    for other in (draws(-4, 100, 9, dtype, first=5), draws(-3, 100, 9, dtype, first=5, stream=1)):
        assert (other != whole).all()
    assert draws(1, 0, 3, dtype).shape == (0, 3)


def test_the_turn_is_exact_at_quarters_and_within_rounding_elsewhere():
    ends = torch.tensor([0, 1, 2**32 - 1, 2**31, 2**30, 3 * 2**30])
    words = torch.cat(
        [ends, (ends + 2**29) % 2**32, ends + 2**29 - 1 & philox.reference.MASK, torch.arange(0, 2**32, 99991)]
    )
    cosine, sine = reference.short_turn(words)
    assert (cosine.dtype, sine.dtype) == (torch.float32, torch.float32)
    angle = words.double() * (2 * math.pi / 2**32)
    assert float((cosine - angle.cos()).abs().max()) < 2 * 2**-24
    assert float((sine - angle.sin()).abs().max()) < 2 * 2**-24
    assert [float(cosine[k]) for k in (0, 3, 4, 5)] == [1, -1, 0, 0]
    v = (torch.arange(0, 2**20, dtype=torch.float64) + 0.5) / 2**20
    cosine, sine = reference.turn(v)
    exact = torch.special.sinc(2 * v) * 2 * math.pi * v  # sin(2 pi v)
    assert float((sine - exact).abs().max()) < 2e-15
    assert float((cosine.square() + sine.square() - 1).abs().max()) < 1e-15


def test_tails_end_where_the_words_do():
    largest = float(reference.short_radius(torch.tensor(0)))
    assert largest == pytest.approx(math.sqrt(66 * math.log(2)), rel=1e-6) and largest < 6.77
    assert float(reference.short_radius(torch.tensor(2**32 - 1))) == 0
    finest = float((-2 * philox.unit(torch.tensor(0), torch.tensor(0)).log()).sqrt())
    assert finest == pytest.approx(math.sqrt(106 * math.log(2))) and finest < 8.58
