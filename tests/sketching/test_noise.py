"""The sum of the clients' noise: the stated law at the stated variance."""

import math

import pytest
import torch
from laws import generator
from scipy import stats

from torchdp.sketching import (
    GaussianNoise,
    LaplaceNoise,
    Sketch,
    balanced_count_sketch,
    ones,
    rademacher,
)

ALPHA = 1e-6


def rows_of(*counts):
    """One copy, with so many clients in each row."""
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[None]
    alternating = torch.arange(rows.numel())[None] % 2
    return Sketch(rows, 2 * alternating - 1, len(counts))


FEW = rows_of(0, 1, 3, 40)
PARTS = torch.tensor([1.0, 1.0, 2.0, 30.0])
NOISES = [
    GaussianNoise(torch.tensor([1.0, 0.3, 2.0, 0.5])),
    GaussianNoise(0.7),
    LaplaceNoise(1.5, PARTS),
]


@pytest.mark.parametrize("noise", NOISES)
def test_the_variance_of_the_release_is_the_stated_one(noise):
    """Rows of 0, 1, 3 and 40 clients."""
    columns = 100_000
    sums = noise.sample_sum(FEW, columns, generator=generator(3))
    assert not sums[0].any()
    for j in (1, 2, 3):
        spread = math.sqrt((stats.kurtosis(sums[j]) + 2) / columns)
        ratio = float(sums[j].var() / noise.variance(FEW)[j])
        assert abs(ratio - 1) < 6 * spread
        # a fifth more is seen
        assert abs(ratio - 1.2) > 4 * spread


@pytest.mark.parametrize(
    ("noise", "sketch", "law"),
    [
        (
            LaplaceNoise(2.0, torch.tensor([5.0])),
            rows_of(5),
            stats.laplace(scale=2),
        ),
        (
            LaplaceNoise(1.0, torch.full((3,), 60.0)),
            rademacher(60, 3, generator=generator()),
            stats.laplace,
        ),
        (
            GaussianNoise(2.0),
            ones(1),
            stats.norm(scale=2),
        ),
    ],
)
def test_sums_follow_their_law(noise, sketch, law):
    """All shares of a Laplace variable, also where dense copies share a row; one client's normal
    noise.
    """
    drawn = noise.sample_sum(sketch, 10_000, generator=generator(10))[-1]
    assert stats.kstest(drawn, law.cdf).pvalue > ALPHA
    assert stats.kstest(2.5 * drawn, law.cdf).pvalue < ALPHA


@pytest.mark.gpu
def test_noise_on_a_gpu():
    sketch = balanced_count_sketch(20_000, 10, generator=generator(1, "cuda"))
    parts = torch.full((10,), 2000.0)
    for noise in (GaussianNoise(torch.full((10,), 0.5)), LaplaceNoise(1.0, parts)):
        sums = noise.sample_sum(sketch, 5000, generator=generator(3, "cuda"))
        assert sums.is_cuda
        assert abs(float(sums.var() / noise.variance(sketch)[0]) - 1) < 0.05
