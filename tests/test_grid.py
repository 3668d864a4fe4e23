"""Rounded Gaussian noise, judged by its exact law: what the grid costs, and that nothing less would
do.
"""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from laws import shift_delta
from scipy.special import ndtr

from torchdp.grid import grid_sensitivity, grid_sigma, grid_variation, row_cost
from torchdp.noise import SeededNoise
from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.secure import SecureSketch
from torchdp.secure.ring import Ring
from torchdp.sketching import ones


def rounded_normal(sigma):
    """The law of round(N(0, sigma^2)), from -K to K; what is left out is below 1e-20."""
    k = np.arange(math.ceil(10 * sigma) + 2)
    upper = ndtr(-(k - 0.5) / sigma) - ndtr(-(k + 0.5) / sigma)
    return np.concatenate([upper[:0:-1], upper])


def sum_of(law, h):
    """The law of a sum of h, by convolution of non-negative numbers: every entry to a few ulp,
    relative.
    """
    total = np.ones(1)
    for _ in range(h):
        total = np.convolve(total, law)
    return total


def gaussian_delta(epsilon, mu):
    return math.exp(gaussian_log_delta(1.0, epsilon, mu))


def spread(shift, h):
    """Squares of an integer spread over h integers as evenly as can be."""
    whole, rest = divmod(abs(shift), h)
    return (h - rest) * whole**2 + rest * (whole + 1) ** 2


def test_guarantee_a_sum_of_rounded_normals_is_never_easier_to_tell_apart_than_the_proof_says():
    for sigma, h, shift, epsilon in itertools.product(
        (0.3, 0.7, 1.5), (1, 2, 3, 7), (1, 2, 5), (0.1, 1.0, 4.0)
    ):
        mu = math.sqrt(spread(shift, h)) / sigma
        exact = shift_delta(sum_of(rounded_normal(sigma), h), (shift,), epsilon)
        # the proof's curve, up to rounding
        assert exact <= gaussian_delta(epsilon, mu) * (1 + 1e-9) + 1e-15


def test_without_the_price_of_the_grid_the_claim_is_false():
    sigma = 0.3
    h = 7
    shift = 1
    epsilon = 0.5
    without = gaussian_delta(epsilon, shift / (math.sqrt(h) * sigma))
    # negative control: without what rounding adds
    assert shift_delta(sum_of(rounded_normal(sigma), h), (shift,), epsilon) > 1.1 * without


def test_guarantee_calibrated_noise_keeps_its_delta_on_every_grid():
    epsilon = 1.0
    delta = 1e-3
    for f, h, distance in (
        (0, 1, 2.0),
        (0, 6, 2.0),
        (0, 60, 2.0),
        (1, 25, 3.0),
        (2, 60, 1.0),
    ):
        with warnings.catch_warnings():
            # of what a coarse grid costs
            warnings.simplefilter("ignore")
            p = SecureSketch(
                ones(h),
                1,
                distance / 2,
                epsilon,
                delta,
                bits=32,
                fraction_bits=f,
            )
        sigma = float(p.sigma[0]) * 2**f
        law = sum_of(rounded_normal(sigma), h)
        for shift in range(1, int(distance * 2**f) + 1):
            assert shift_delta(law, (shift,), epsilon) <= delta
        words = p.randomize(torch.zeros(h, 1), noise=SeededNoise(1)).values
        # and is what clients draw
        assert h < 25 or 0.6 < float(words.double().std()) / sigma < 1.5


def test_guarantee_two_columns_and_two_copies():
    epsilon = 1.0
    delta = 1e-3
    step = 0.5
    distance = 2.0
    mu = 1 / gaussian_sigma(epsilon, delta)
    shifts = [
        w
        for w in itertools.product(range(5), repeat=2)
        if 0 < w[0] ** 2 + w[1] ** 2 <= (2 * distance) ** 2
    ]
    # one copy, two columns
    sigma = grid_sigma(9, 1, 2, step, distance, mu) / step
    column = sum_of(rounded_normal(sigma), 9)
    for shift in shifts:
        assert shift_delta(np.multiply.outer(column, column), shift, epsilon) <= delta
    # two copies in different rows, one column
    rows = [
        sum_of(rounded_normal(grid_sigma(h, 2, 1, step, distance, mu) / step), h) for h in (3, 9)
    ]
    for w in range(1, 5):
        assert shift_delta(np.multiply.outer(*rows), (w, -w), epsilon) <= delta


def test_the_cost_is_the_least_over_how_many_clients_are_used():
    for f, distance, columns in itertools.product(
        (0, 2, 5),
        (0.5, 1.0, 7.3),
        (1, 10),
    ):
        honest = [1, 2, 9, 50, 3000]
        step = 2.0**-f
        cost = [row_cost(h, step, columns, distance) for h in honest]
        # more honest clients never hurt
        assert cost == sorted(cost, reverse=True)
        for h, value in zip(honest, cost, strict=True):
            k = torch.arange(1, h + 1).double()
            variances = distance**2 / k + columns * k * step**2 / 4
            least = float(variances.min())
            assert least <= value * (1 + 1e-12)
            # the bound loses a fifth at most
            assert value <= least * 1.2


def with_uniforms(sigma, h, k):
    """P(round(h^{1/2} sigma g + U) = k), U a sum of h - 1 uniforms, by its transform: to 1e-15."""
    deviation = sigma * math.sqrt(h)
    t = np.linspace(-14 / deviation, 14 / deviation, 4001)
    normals = np.exp(-h * sigma**2 * t**2 / 2)
    transform = normals * np.sinc(t / (2 * math.pi)) ** h
    waves = np.cos(np.outer(k, t))
    return (waves @ transform) * (t[1] - t[0]) / (2 * math.pi)


@pytest.mark.parametrize("sigma", [0.6, 0.8, 1.0, 1.2])
@pytest.mark.parametrize("h", [2, 3, 5, 12, 40])
def test_guarantee_sums_of_rounded_normals_are_within_their_variation(sigma, h):
    law = sum_of(rounded_normal(sigma), h)
    k = np.arange(len(law)) - len(law) // 2
    difference = law - with_uniforms(sigma, h, k)
    apart = np.abs(difference).sum() / 2
    # the transform is good to 1e-15
    assert apart <= grid_variation(h, sigma) + 1e-13
    if sigma < 1 and h < 12:
        # and something is there to be bounded
        assert apart > 1e-6


@pytest.mark.parametrize("h", [2, 5, 30])
def test_guarantee_a_client_of_many_units_is_hidden_in_sums_on_a_grid_coarser_than_its_share(h):
    """A move of few units, less than one for each honest client: delta that of real numbers, and
    the variation.
    """
    sigma = 1.6
    epsilon = 0.5
    law = sum_of(rounded_normal(sigma), h)
    for shift in (1, 2, 7):
        real = gaussian_delta(epsilon, shift / (math.sqrt(h) * sigma))
        extra = grid_variation(h, sigma)
        assert shift_delta(law, (shift,), epsilon) <= real + (1 + math.exp(epsilon)) * extra
        # nothing is given away
        assert shift_delta(law, (shift,), epsilon) > 0.6 * real


def test_truncation_and_the_sensitivity():
    assert grid_sensitivity(0.125, 1.5, 4) == 3.0
    assert grid_sensitivity(0.125, 1.5, 4, 1.0) == 1.0 + 2 / 8
    assert grid_sensitivity(0.125, 1.5, 4, 2.9) == 3.0
    ring = Ring(32, 2)
    options = dict(dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = torch.nn.functional.normalize(torch.randn(20_000, 3, **options), dim=1)
    step = torch.nn.functional.normalize(torch.randn(20_000, 3, **options), dim=1)
    b = a + 0.3 * step
    words = (ring.to_words(a) - ring.to_words(b)).double()
    moved = words.norm(dim=1) / ring.scale
    # the rows differ by .3 before they are rounded
    assert 0.3 < moved.max() <= grid_sensitivity(0.25, 1.3, 3, 0.3)
