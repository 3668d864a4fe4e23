"""Normals from a counter: their law, their tails, and that each is a function of its key, number
and column.
"""

import math

import pytest
import torch
from scipy import stats

from torchdp.kernels import normals

ALPHA = 1e-6
TYPES = [torch.float32, torch.float64]


def draws(
    key=1,
    size=40_000,
    width=6,
    dtype=torch.float32,
    first=0,
    stream=0,
):
    return normals.normals(
        key,
        torch.arange(first, first + size),
        width,
        dtype,
        stream=stream,
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_each_column_is_standard_normal_and_columns_are_independent(dtype):
    sample = draws(dtype=dtype)
    assert sample.dtype == dtype
    assert sample.shape == (40_000, 6)
    for column in sample.double().numpy().T:
        assert stats.kstest(column, "norm").pvalue > ALPHA
        # negative control: a tenth too wide
        assert stats.kstest(1.1 * column, "norm").pvalue < ALPHA
    for power in (1, 2):
        powers = sample.double().pow(power)
        correlations = torch.corrcoef(powers.T) * math.sqrt(len(sample))
        off = correlations - correlations.diagonal().diag()
        # thirty pairs of columns at this level together
        assert off.abs().max() < stats.norm.isf(ALPHA / 30)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_number_depends_on_key_number_column_and_stream_alone(dtype):
    whole = draws(-3, 100, 9, dtype, first=5)
    assert torch.equal(draws(-3, 7, 9, dtype, first=45), whole[40:47])
    assert torch.equal(draws(-3, 100, 5, dtype, first=5), whole[:, :5])
    assert torch.equal(normals.normals(-3, torch.tensor([50, 7]), 9, dtype), whole[[45, 2]])
    for other in (draws(-4, 100, 9, dtype, first=5), draws(-3, 100, 9, dtype, first=5, stream=1)):
        assert (other != whole).all()
    assert draws(1, 0, 3, dtype).shape == (0, 3)
