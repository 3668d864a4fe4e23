"""The specification of counts of rounded waves: the law of its bits, and what it counts."""

import math

import pytest
import torch

from torchdp.kernels import rounded_features
from torchdp.kernels.rounded_features import reference


def inputs(n, waves=1, scale=1.0):
    """(x, frequencies, phases)."""
    generator = torch.Generator().manual_seed(0)
    d = 5
    features = 7
    x = scale * torch.randn(n, d, generator=generator)
    frequencies = torch.randn(d, features, generator=generator) / 4
    phases = torch.rand(waves, features, generator=generator)
    return x, frequencies, phases


def test_turns_are_those_of_the_angle_even_where_it_is_large():
    x, frequencies, phases = inputs(200, waves=2, scale=50.0)
    t = reference.turns(x, frequencies, phases)
    exact = (x.double() @ frequencies.double())[..., None] + phases.double().mT
    apart = t.double() - exact.flatten(1)
    products = x.double().abs() @ frequencies.double().abs()
    size = products[..., None].expand(-1, -1, 2).flatten(1)
    assert exact.abs().max() > 50
    assert t.abs().max() <= 0.5
    missed = (apart - apart.round()).abs()
    # one rounding of a turn, and six of each product
    assert (missed <= 2**-23 + 6 * 2**-24 * size).all()


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3, 0.5])
def test_bits_are_one_as_often_as_the_cosine_says_in_every_wave_and_repeat(shift):
    # a bit's chance to 1 / 280
    n = 20_000
    features = 6
    x = torch.zeros(n, 1)
    frequencies = torch.zeros(1, features)
    phases = torch.tensor([[shift], [shift + 0.05]]).repeat(1, features)
    counts = rounded_features.rounded_counts(
        x,
        frequencies,
        phases,
        key=5,
        repeats=2,
    )
    cosine = torch.cos(2 * math.pi * phases.double())
    chance = (1 + cosine).mT.flatten() / 2
    variance = n * chance * (1 - chance)
    scores = (counts - n * chance) / variance.sqrt().clamp_min(1e-9)
    # the largest of some hundred deviations
    assert scores.abs().max() < 4.5
    # no two share their words
    assert len(set(counts.flatten().tolist())) > (18 if 0 < shift < 0.45 else 5)


def test_bits_belong_to_users_and_parts_add_up():
    x, frequencies, phases = inputs(101, waves=2)
    whole = rounded_features.rounded_counts(
        x,
        frequencies,
        phases,
        key=9,
        repeats=2,
    )
    some = [
        rounded_features.rounded_counts(x[part], frequencies, phases, key=9, first=start, repeats=2)
        for part, start in ((slice(0, 40), 0), (slice(40, 101), 40))
    ]
    assert torch.equal(whole, some[0] + some[1])
    again = rounded_features.rounded_counts(
        x[40:],
        frequencies,
        phases,
        key=9,
        first=0,
        repeats=2,
    )
    assert not torch.equal(again, some[1])
    assert torch.equal(
        whole[0].sum(), reference.rounded_bits(x, frequencies, phases, 9, 0, 0).sum()
    )


def test_counts_of_signs():
    x, frequencies, phases = inputs(60)
    bits = reference.positive_bits(x, frequencies, phases)
    assert torch.equal(bits, torch.cos(2 * math.pi * (x @ frequencies + phases)) > 0)
    counts = rounded_features.positive_counts(x, frequencies, phases)
    assert torch.equal(counts, bits.sum(0))
