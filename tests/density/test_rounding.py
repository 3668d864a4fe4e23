"""How shares become bits: the law, exactly; the fused counts of waves against the plain ones."""

import math

import pytest
import torch
from laws import generator

from torchdp.density import (
    GaussianFourier,
    GaussianOrthogonal,
    GaussianSquareWave,
)
from torchdp.density.density import moved
from torchdp.density.family import rounded
from torchdp.draws import Simulated
from torchdp.noise import SeededNoise

D = 5
FAMILIES = [
    GaussianFourier(D, 1.3),
    GaussianSquareWave(D, 1.3),
    GaussianOrthogonal(D, 1.3),
]


class Words:
    """Stands for the noise: all bytes once for each share, and given uniforms where they tie."""

    def __init__(self, monkeypatch, shares, uniform):
        # every byte in turn: all that a word can say
        levels = torch.arange(-128, 128, dtype=torch.int8)
        byte = levels[:, None].expand(256, shares)
        monkeypatch.setattr(
            "torchdp.density.family._bytes",
            lambda sizes, source: byte.contiguous(),
        )
        monkeypatch.setattr(
            SeededNoise,
            "uniform",
            lambda self, size: torch.full(size, uniform, dtype=torch.float64),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_and_ties_add_up_to_the_chance_to_the_last_bit(dtype, monkeypatch):
    """Of 256 bytes k + 128 lie below the level k, and one ties, for which the uniform has to be
    below the rest.
    """
    shares = 2 * torch.rand(400, dtype=dtype, generator=generator()) - 1
    ends = [
        -1.0,
        1.0,
        0.0,
        -0.0,
        127 / 128,
        -127 / 128,
        1 - 2**-24,
        -1 + 2**-24,
        2**-40,
        -(2**-40),
        0.5,
    ]
    shares = torch.cat([shares, torch.tensor(ends, dtype=dtype)])
    for uniform in (0.0, 0.25, 0.75):
        Words(monkeypatch, len(shares), uniform)
        ones = rounded(shares, (256,), SeededNoise(0)).sum(0)
        exact = 128 * (1 + shares.double())
        assert torch.equal(
            ones,
            torch.ceil(exact - uniform).clamp_min(0).to(ones.dtype),
        )


def test_neighbouring_bits_are_independent():
    """Eight come from one word."""
    n = 1 << 15
    bits = rounded(torch.zeros(n, 8), (), SeededNoise(1))
    bits = bits.double() - 0.5
    products = (bits.mT @ bits) / (0.25 * math.sqrt(n))
    assert products.fill_diagonal_(0).abs().max() < 4.5


def test_shares_outside_count_as_the_nearest_end():
    shares = torch.tensor([1 + 1e-6, 1.5, -1 - 1e-6, -1.5])
    bits = rounded(shares, (2000,), SeededNoise(0))
    assert bits[:, :2].all()
    assert not bits[:, 2:].any()


def by_kernel(monkeypatch, features):
    """As on a CUDA device, with the kernel's reference in its place."""
    monkeypatch.setattr(f"{type(features).__module__}.fused", lambda x: True)


def ball(n, seed=1):
    points = torch.randn(n, D, generator=generator(seed))
    return points / points.norm(dim=1, keepdim=True).clamp_min(1)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_fused_counts_have_the_law_of_the_plain_ones(family, monkeypatch):
    """The dispatch to counts from Philox words, here by their reference: sums of all repeats, by a
    two-sample test.
    """
    x = ball(40)
    features = family.draw(6, generator=generator())
    shape = (300,)
    plain = features.ones(x, Simulated(generator(1)), shape)
    by_kernel(monkeypatch, features)
    counted = features.ones(x, Simulated(generator(2)), shape)
    assert counted.shape == plain.shape == (300, features.instances)
    assert counted.dtype == torch.int64
    if family.bound == 1 and features.rounding == 0:
        assert torch.equal(counted, plain)
        return
    shares = features.left(x).double() / features.bound
    chances = (1 + shares) / 2
    mean = chances.sum(0)
    variance = (chances * (1 - chances)).sum(0)
    spread = variance.sqrt()
    for each in (plain, counted):
        z = (each.double().mean(0) - mean) / spread
        assert z.abs().max() < 4.5 / math.sqrt(300)
        squares = (each.double() - mean).square()
        scaled = squares.mean(0) / variance
        assert (scaled - 1).abs().max() < 4.5 * math.sqrt(2 / 300)
    assert not torch.equal(counted[0], counted[1])
    again = features.ones(x, Simulated(generator(2)), shape)
    assert torch.equal(again, counted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_guarantee_holds_where_an_angle_overflows(dtype):
    """A cosine and a sine that are no numbers would be no point of the circle."""
    features = GaussianOrthogonal(D, 1e-3).draw(6, generator=generator())
    largest = torch.finfo(dtype).max
    x = torch.tensor([[1.0] * D, [-1.0] * D, [1, -1, 1, -1, 1]], dtype=dtype) * largest
    waves = features.left(x).unflatten(1, (6, 2))
    circle = waves.square().sum(-1)
    assert (circle - 1).abs().max() < 1e-6
    # all cosines are 1
    assert int(features.ones(x, Simulated(generator()), ())[::2].sum()) == 3 * 6


def test_guarantee_of_rounded_bits_leaves_room_for_float32():
    """Chances of cosine and sine from float32 angles move by no more than is accounted for."""
    features = GaussianOrthogonal(1, 1.3).draw(1, generator=generator())
    half = math.pi / float(features.frequencies.abs())
    x = torch.linspace(-50, 50, 20_001)[:, None]
    apart = features.share(x).double() - features.share(x + half).double()
    assert (
        float(apart.square().sum(1).max() / 4)
        <= moved(features).change
        < features.movement * (1 + 5e-6)
    )
    assert moved(features).change > features.movement
