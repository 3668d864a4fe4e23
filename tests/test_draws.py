"""Draws of counts against their laws."""

import math

import numpy as np
import pytest
import torch
from laws import generator
from scipy import stats

from torchdp import randomness
from torchdp.draws import Simulated
from torchdp.shuffle.count_laws import logarithmic, scattered_negative_binomial, scattered_poisson

ALPHA = 1e-6


def agrees(sample, law):
    """Chi-square p-value of integers against a scipy law, in cells of at least ten expected."""
    sample = np.asarray(sample)
    # twenty expected in each cell, forty cells at most
    cells = min(40, len(sample) // 20)
    inner = np.linspace(0, 1, cells + 1)[1:-1]
    cuts = np.unique(law.ppf(inner))
    levels = np.concatenate(
        [
            [0],
            law.cdf(cuts),
            [1],
        ]
    )
    expected = np.diff(levels) * len(sample)
    # a cell holds its upper end
    edges = np.concatenate(
        [
            [-np.inf],
            np.nextafter(cuts, np.inf),
            [np.inf],
        ]
    )
    seen = np.histogram(sample, edges)[0]
    possible = expected > 0
    assert seen[~possible].sum() == 0
    if possible.sum() < 2:
        return 1.0
    squares = (seen - expected)[possible] ** 2
    statistic = (squares / expected[possible]).sum()
    return stats.chi2.sf(statistic, possible.sum() - 1)


@pytest.mark.parametrize("rate", [0.001, 0.7, 12.0, 49.0, 51.0, 70.0, 5000.0, 3e6])
def test_poisson_counts_of_any_rate_have_their_law(rate):
    # 40,000 draws: cells of a twentieth hold 2000
    drawn = Simulated(generator(1)).poisson(torch.full((40_000,), rate, dtype=torch.float64))
    assert drawn.dtype == torch.int64
    assert agrees(drawn, stats.poisson(rate)) > ALPHA
    # a small shift shows
    assert agrees(drawn + round(0.1 * math.sqrt(rate) + 0.5), stats.poisson(rate)) < ALPHA


def test_poisson_counts_stay_whole_numbers_far_above_single_precision():
    rate = 1e13
    drawn = Simulated(generator(1)).poisson(torch.full((20_000,), rate, dtype=torch.float64))
    z = (drawn.double() - rate) / math.sqrt(rate)
    assert stats.kstest(z.numpy(), "norm").pvalue > ALPHA
    # the last bit is not lost to rounding
    assert 0.4 < (drawn % 2).double().mean() < 0.6


def test_poisson_rates_of_different_size_do_not_disturb_each_other():
    rates = torch.tensor([[0.0, 3.0, 1e5], [2e3, 1.0, 50.0]], dtype=torch.float64)
    drawn = Simulated(generator(2)).poisson(rates.expand(20_000, 2, 3))
    assert drawn.shape == (20_000, 2, 3)
    for i in range(2):
        for j in range(3):
            assert agrees(drawn[:, i, j], stats.poisson(float(rates[i, j]))) > ALPHA
    assert Simulated(generator()).poisson(torch.tensor(7.0)).shape == ()


@pytest.mark.parametrize(
    ("shape", "ratio"),
    [
        (1e-3, 0.9),
        (0.5, 0.2),
        (1.0, 0.999),
        (1.0, 1e-3),
        (40.0, 0.8),
    ],
)
def test_negative_binomial_counts_have_their_law(shape, ratio):
    drawn = Simulated(generator(3)).negative_binomial(
        torch.full((40_000,), shape, dtype=torch.float64), ratio
    )
    assert agrees(drawn, stats.nbinom(shape, 1 - ratio)) > ALPHA
    assert (
        agrees(drawn, stats.nbinom(shape * 1.3 + 0.05, 1 - ratio)) < ALPHA or shape * ratio < 2e-3
    )


@pytest.mark.parametrize("ratio", [1e-12, 0.01, 0.5, 0.99, 0.99999])
def test_logarithmic_counts_have_their_law(ratio):
    drawn = logarithmic(40_000, ratio, Simulated(generator(4)))
    assert int(drawn.min()) >= 1
    assert agrees(drawn, stats.logser(ratio)) > ALPHA
    if ratio > 0.1:
        # negative control: another ratio
        assert agrees(drawn, stats.logser(ratio * 0.9)) < ALPHA


@pytest.mark.parametrize("size", [0, 1, 3, 10**9])
@pytest.mark.parametrize("probability", [1e-9, 0.2, 0.9])
def test_binomial_counts_have_their_law(size, probability):
    drawn = Simulated(generator(5)).binomial(torch.full((20_000,), size), probability)
    assert agrees(drawn, stats.binom(size, probability)) > ALPHA


@pytest.mark.parametrize("ratio", [0.2, 0.9])
@pytest.mark.parametrize("users", [1, 2, 1000])
def test_scattered_messages_of_one_user_have_the_user_s_law(users, ratio):
    """One cell at each place: the counts at the places are independent NB(r/n, p), for r = 4."""
    places = 30_000
    where = scattered_negative_binomial(
        1,
        places,
        4 / users,
        ratio,
        Simulated(generator(6)),
    )
    assert where.dtype == torch.int32
    counts = torch.bincount(where.long(), minlength=places)
    assert len(counts) == places
    assert agrees(counts, stats.nbinom(4 / users, 1 - ratio)) > ALPHA
    halves = np.corrcoef(counts[0::2], counts[1::2])[0, 1]
    assert abs(halves) * math.sqrt(places / 2) < 5


@pytest.mark.parametrize("mean", [1e-3, 0.4, 6.0])
def test_scattered_poisson_messages_have_their_law(mean):
    places = 30_000
    counts = torch.bincount(
        scattered_poisson(3, places, mean, Simulated(generator(7))).long(), minlength=places
    )
    assert agrees(counts, stats.poisson(3 * mean)) > ALPHA
    # negative control: twice the mean
    assert agrees(counts, stats.poisson(6 * mean)) < ALPHA


def test_nothing_is_drawn_where_nobody_is():
    assert len(scattered_negative_binomial(5, 3, 1e-300, 0.5, Simulated(generator()))) == 0
    assert len(logarithmic(0, 0.5, Simulated(generator()))) == 0


def draw(generator):
    return torch.randint(2**62, (4,), generator=generator).tolist()


def test_manual_seed_keeps_32_bits_and_keyed_generators_do_not():
    short = [draw(torch.Generator().manual_seed(seed)) for seed in (1, 1 + 2**32)]
    # why this module exists
    assert short[0] == short[1]
    keys = [b"", b"\x00", b"\x00\x00", (1).to_bytes(8, "big"), (1 + 2**32).to_bytes(8, "big")]
    assert len({tuple(draw(randomness.keyed_generator(key))) for key in keys}) == len(keys)


def test_every_state_word_comes_from_the_key():
    import hashlib

    state = randomness.keyed_generator(b"key").get_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64)
    material = hashlib.shake_256(b"key").digest(4 * 624)
    assert words.tolist() == [
        int.from_bytes(material[4 * i : 4 * i + 4], "little") for i in range(624)
    ]


def test_global_generator_is_untouched():
    before = torch.random.get_rng_state()
    draw(randomness.keyed_generator(b"a"))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.gpu
def test_keyed_generators_on_a_gpu_take_64_bits():
    first = randomness.keyed_generator(b"a", "cuda")
    second = randomness.keyed_generator(b"b", "cuda")
    assert first.initial_seed() != second.initial_seed()
