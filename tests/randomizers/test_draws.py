"""Exact draws from finite laws: bits, counts of bits, splits of crowds, subsets of crowds."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torchdp.draws import Simulated
from torchdp.randomizers import draws

ALPHA = 1e-6


def seeded(seed):
    return Simulated(torch.Generator().manual_seed(seed))


class Digits(Simulated):
    """Words that are put in by hand, one after the other."""

    def __init__(self, *digits):
        super().__init__(torch.Generator())
        self.digits = iter(digits)

    def fill(self, words):
        words.fill_(next(self.digits))


@pytest.mark.parametrize("numerator", [0, 1, 3, 5, 7, 8])
def test_bernoulli_bits_compare_a_uniform_number_with_the_probability_digit_by_digit(numerator):
    """Deterministic: all eight triples of digits stand in eight lanes; ``numerator`` of them are below it."""
    digits = Digits(0b00001111, 0b00110011, 0b01010101)
    word = int(draws.bernoulli_words((1,), numerator / 8, digits)) & 255
    assert bin(word).count("1") == numerator


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 64, 1000])
def test_column_counts_add_up_the_bits(rows):
    words = seeded(4).words((rows, 3))
    assert torch.equal(draws.column_counts(words), draws.unpack(words).sum(0))
    assert torch.equal(draws.popcount(words), draws.unpack(words).unflatten(-1, (3, 64)).sum(-1))
    every = torch.full((rows, 1), -1)
    assert (draws.column_counts(every) == rows).all()


def test_multinomial_splits_every_crowd_by_its_own_law():
    laws = torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 0.1, 0.2, 0.7], [0.2] * 5], dtype=torch.float64)
    counts = torch.tensor([[100, 0, 0], [0, 50, 0], [10**12, 10**12, 10**12]])
    drawn = draws.multinomial(counts.expand(2000, 3, 3), laws, seeded(5))
    assert torch.equal(drawn.sum(-1), counts.sum(-1).expand(2000, 3))
    assert not drawn[:, 0, 2:].any() and not drawn[:, 1, :2].any()
    held = counts.double()
    mean = held @ laws
    variance = held @ (laws * (1 - laws))
    z = (drawn.double().mean(0) - mean) / (variance / 2000).sqrt().clamp_min(1e-9)
    assert float(z.abs().max()) < stats.norm.isf(ALPHA / 30)
    ratio = drawn.double().var(0)[2] / variance[2]
    assert float((ratio - 1).abs().max()) < 6 * math.sqrt(2 / 2000)


def test_halves_of_crowds_are_binomial():
    counts = torch.tensor([0, 1, 2, 62, 63, 64, 1000, 10**13])
    drawn = draws.halved(counts.expand(20_000, 8), seeded(3))
    assert (drawn >= 0).all() and (drawn <= counts).all()
    for i in (1, 2, 3, 4, 5):
        n = int(counts[i])
        expected = 20_000 * stats.binom(n, 0.5).pmf(np.arange(n + 1))
        seen = np.bincount(drawn[:, i].numpy(), minlength=n + 1)
        often = expected > 8
        seen = np.append(seen[often], seen[~often].sum() + 9)
        expected = np.append(expected[often], expected[~often].sum() + 9)
        assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > ALPHA
    z = (drawn[:, 6:] - counts[6:].double() / 2) / (counts[6:].double() / 4).sqrt()
    assert float(z.mean(0).abs().max()) < 5.2 / math.sqrt(20_000)
    assert float((z.var(0) - 1).abs().max()) < 6 * math.sqrt(2 / 20_000)


@pytest.mark.parametrize("crowds", [[5, 3, 0, 2], [400, 100, 1, 7], [30_000, 1, 20_000, 9]])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_picks_without_replacement_are_hypergeometric(crowds, share):
    total, repeats = sum(crowds), 4000
    size = round(share * total)
    crowds = torch.tensor(crowds).expand(repeats, 4)
    picked = draws.without_replacement(crowds, torch.full((repeats,), size), seeded(7))
    assert (picked >= 0).all() and (picked <= crowds).all() and (picked.sum(-1) == size).all()
    for i in (0, 1, 3):
        law = stats.hypergeom(total, int(crowds[0, i]), size)
        low, high = int(law.ppf(1e-9)), int(law.ppf(1 - 1e-9))
        edges = np.unique(np.linspace(low - 1, high, 20).astype(int))
        if len(edges) < 3:
            continue
        expected = repeats * np.diff(law.cdf(edges))
        counts = np.histogram(picked[:, i].numpy(), edges + 0.5)[0]
        keep = expected > 10
        if keep.sum() > 1:
            rest = [[counts[~keep].sum() + 5], [expected[~keep].sum() + 5]]
            observed, wanted = np.r_[counts[keep], rest[0]], np.r_[expected[keep], rest[1]]
            assert stats.chisquare(observed, wanted / wanted.sum() * observed.sum()).pvalue > ALPHA
    if 0 < share < 1 and total > 100:  # with replacement the spread would be larger
        law = stats.hypergeom(total, int(crowds[0, 0]), size)
        ratio = float(picked[:, 0].double().var()) / law.var()
        assert abs(ratio - 1) < 6 * math.sqrt(2 / repeats)
        assert share < 0.5 or abs(ratio / (1 - share) - 1) > 6 * math.sqrt(2 / repeats)
