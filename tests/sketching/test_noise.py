"""The clients' noise and its sum: one law, the stated one, at the stated variance."""

import math

import numpy as np
import pytest
import torch
from laws import generator
from scipy import signal, stats

from torchdp.noise import SeededNoise
from torchdp.sketching import (
    GaussianNoise,
    LaplaceNoise,
    PolyaNoise,
    Sketch,
    balanced_count_sketch,
    ones,
    osnap,
    rademacher,
)

ALPHA = 1e-6


def rows_of(*counts):
    """One copy, with so many clients in each row."""
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[None]
    return Sketch(rows, 2 * (torch.arange(rows.numel())[None] % 2) - 1, len(counts))


FEW = rows_of(0, 1, 3, 40)
PARTS = torch.tensor([1.0, 1.0, 2.0, 30.0])
NOISES = [
    GaussianNoise(torch.tensor([1.0, 0.3, 2.0, 0.5])),
    GaussianNoise(0.7),
    LaplaceNoise(1.5, PARTS),
    PolyaNoise(0.6, PARTS),
    PolyaNoise(0.999, PARTS),
]


def repeated(noise, sketch, columns, seed):
    """Sums of the clients' own noise, many columns."""
    return noise.collect(sketch, torch.zeros(sketch.clients, columns, dtype=torch.int64), noise=SeededNoise(seed))


def same_law(first, second):
    if first.dtype == torch.int64 and int(first.max() - first.min()) < 200:
        low = int(min(first.min(), second.min()))
        table = np.stack([torch.bincount(x - low, minlength=400).numpy() for x in (first, second)])
        table = table[:, table.sum(0) >= 20]
        return stats.chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0
    return stats.ks_2samp(first, second).pvalue


@pytest.mark.parametrize("noise", NOISES)
def test_sums_drawn_at_once_have_the_law_of_the_clients_noise(noise):
    """Rows of 0, 1, 3 and 40 clients; noise larger by a fifth is noticed."""
    columns = 12_000
    single = repeated(noise, FEW, columns, 1)
    together = noise.sample_sum(FEW, columns, generator=generator(2))
    assert single.shape == together.shape == (4, columns) and single.dtype == together.dtype
    assert not single[0].any() and not together[0].any()
    for j in (1, 2, 3):
        assert same_law(single[j], together[j]) > ALPHA
        assert same_law(single[j].double() * 1.2 + 1e-9, together[j].double() + 1e-9) < ALPHA


@pytest.mark.parametrize("noise", NOISES)
def test_the_variance_of_the_release_is_the_stated_one(noise):
    columns = 100_000
    sums = noise.sample_sum(FEW, columns, generator=generator(3)).double()
    for j in (1, 2, 3):
        spread = math.sqrt((stats.kurtosis(sums[j]) + 2) / columns)
        assert abs(float(sums[j].var() / noise.variance(FEW)[j]) - 1) < 6 * spread
        assert abs(float(sums[j].var() / noise.variance(FEW)[j]) - 1.2) > 4 * spread


@pytest.mark.parametrize("noise", [GaussianNoise(0.7), LaplaceNoise(1.0, torch.full((5,), 8.0))])
def test_rows_of_several_copies_have_the_stated_covariance(noise):
    """Independent copies: a diagonal."""
    sketch, columns = osnap(30, 5, 3, generator=generator(4)), 15_000
    covariance = noise.variance(sketch).diag()
    for sums in (repeated(noise, sketch, columns, 5), noise.sample_sum(sketch, columns, generator=generator(6))):
        measured = sums @ sums.mT / columns / sketch.copies
        spread = math.sqrt(6 / columns) * float(covariance.diagonal().max())
        assert float((measured - covariance).abs().max()) < 6 * spread


@pytest.mark.parametrize("noise", [*NOISES[:4], PolyaNoise(0.6, PARTS)])
def test_the_release_is_the_sketch_and_its_noise(noise):
    """What is collected is centred at S A, on one scale with it."""
    sketch = osnap(44, 4, 3, generator=generator(7)) if isinstance(noise, GaussianNoise) else FEW
    A = torch.arange(sketch.clients)[:, None].expand(-1, 20_000)
    collected = noise.collect(sketch, A, noise=SeededNoise(9)) / math.sqrt(sketch.copies)
    error = (collected - sketch.apply(A.double())).mean(1)
    assert (error.abs() <= 5.5 * (noise.variance(sketch) / 20_000).sqrt()).all()


def test_parts_of_the_clients_add_up_to_all(monkeypatch):
    sketch, noise = osnap(1000, 10, 2, generator=generator()), GaussianNoise(1.0)
    A = torch.randn(1000, 400, dtype=torch.float64, generator=generator(1))
    monkeypatch.setattr("torchdp.memory.NUMBERS_AT_ONCE", 30_000)
    error = noise.collect(sketch, A, noise=SeededNoise(2)) - sketch.sums(A)
    assert stats.kstest((error / sketch.counts()[:, None].sqrt()).flatten(), "norm").pvalue > ALPHA


@pytest.mark.parametrize("h", [1, 3, 7])
def test_gamma_parts_make_a_laplace_and_polya_parts_a_discrete_laplace(h):
    """By characteristic functions, and by convolving the exact probabilities h times."""
    t, b = np.linspace(-20, 20, 401), 1.5
    part = (1 - 1j * b * t) ** (-1 / h) * (1 + 1j * b * t) ** (-1 / h)  # of Gamma(1/h, b) - Gamma(1/h, b)
    np.testing.assert_allclose(part**h, 1 / (1 + b**2 * t**2), rtol=1e-12)
    a, size = 0.6, 200
    half = stats.nbinom.pmf(np.arange(size), 1 / h, 1 - a)
    part = signal.convolve(half, half[::-1], method="direct")  # of the difference, at -(size - 1) .. size - 1
    total = np.ones(1)
    for _ in range(h):
        total = signal.convolve(total, part, method="direct")
    z = np.abs(np.arange(len(total)) - len(total) // 2)
    near = z < 40
    np.testing.assert_allclose(total[near], ((1 - a) / (1 + a) * a**z)[near], rtol=1e-9)


@pytest.mark.parametrize("h", [1, 5, 2000])
def test_drawn_parts_of_pure_noise_follow_laplace_and_discrete_laplace(h):
    sketch, columns = rows_of(h), 1_000_000 // max(h, 100)
    laplace = repeated(LaplaceNoise(2.0, torch.tensor([float(h)])), sketch, columns, 10)[0]
    assert stats.kstest(laplace, stats.laplace(scale=2).cdf).pvalue > ALPHA
    assert stats.kstest(laplace, stats.laplace(scale=5).cdf).pvalue < ALPHA
    polya = repeated(PolyaNoise(math.exp(-0.5), torch.tensor([float(h)])), sketch, columns, 11)[0]
    held = np.array([int((polya == z).sum()) for z in range(-9, 10)])
    law = stats.dlaplace(0.5).pmf(np.arange(-9, 10))
    assert stats.chisquare([*held, columns - held.sum()], columns * np.array([*law, 1 - law.sum()])).pvalue > ALPHA
    wrong = stats.dlaplace(0.9).pmf(np.arange(-9, 10))
    wrong = columns * np.array([*wrong, 1 - wrong.sum()])
    assert stats.chisquare([*held, columns - held.sum()], wrong).pvalue < ALPHA


def test_polya_noise_on_the_finest_grid_is_a_discrete_laplace():
    """ratio = 1 - 1e-9: on its scale the law of z (1 - ratio) is Laplace to 1e-9."""
    noise = PolyaNoise(1 - 1e-9, torch.tensor([3.0]))
    drawn = repeated(noise, rows_of(3), 500, 12)[0].double() * 1e-9
    assert stats.kstest(drawn, stats.laplace.cdf).pvalue > ALPHA


def test_repetitions_are_independent_and_shaped_as_asked():
    for noise in NOISES:
        sums = noise.sample_sum(FEW, 3, generator=generator(), sample_shape=(2, 5))
        assert sums.shape == (2, 5, 4, 3) and not torch.equal(sums[0], sums[1])
        assert noise.sample_sum(FEW, 3, generator=generator(), sample_shape=(0,)).shape == (0, 4, 3)


def test_one_client_adds_the_whole_noise():
    drawn = repeated(GaussianNoise(2.0), ones(1), 50_000, 13)[0]
    assert stats.kstest(drawn / 2, "norm").pvalue > ALPHA


def test_dense_copies_of_laplace_noise_share_a_row():
    sketch = rademacher(60, 3, generator=generator())
    noise = LaplaceNoise(1.0, sketch.counts())
    sums = noise.sample_sum(sketch, 50_000, generator=generator())
    assert stats.kstest(sums[1], stats.laplace.cdf).pvalue > ALPHA


@pytest.mark.gpu
def test_noise_on_a_gpu():
    sketch = balanced_count_sketch(20_000, 10, generator=generator(1, "cuda"))
    parts = torch.full((10,), 2000.0)
    gaussian = GaussianNoise(torch.full((10,), 0.5))
    for noise in (gaussian, LaplaceNoise(1.0, parts), PolyaNoise(0.999, parts)):
        zeros = torch.zeros(20_000, 50, device="cuda")
        single = noise.collect(sketch, zeros, noise=SeededNoise(2, "cuda"))
        together = noise.sample_sum(sketch, 50, generator=generator(3, "cuda"))
        assert single.is_cuda and together.is_cuda
        assert stats.ks_2samp(single.flatten().cpu(), together.flatten().cpu()).pvalue > ALPHA
