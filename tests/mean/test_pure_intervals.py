"""Intervals of pure noise: Laplace numbers and their kin lie outside as often as the level says, at every level."""

import math
from dataclasses import replace

import pytest
import torch

from torchdp.domains import Box, lp_ball, noise_shape
from torchdp.mean import PureMean
from torchdp.mean.pure import Block
from torchdp.protocol import Estimate
from torchdp.protocol.interval import laplace_stretch, quantile
from torchdp.randomness import keyed_generator


def box(*widths):
    return Box(-torch.tensor(widths) / 2, torch.tensor(widths) / 2)


BOX = box(2.0, 2.0, 2.0)
ROUND = noise_shape(lp_ball(5, 2.0), 2.0)
CASES = [
    PureMean.tuned(box(2.0), epsilon=1.0),
    PureMean.tuned(BOX, epsilon=1.0),
    PureMean.tuned(lp_ball(4, 1.0), epsilon=1.0),
    PureMean(lp_ball(5, 2.0), ROUND, 1.0, (Block(5, 2.0, 1.0),)),
    PureMean(BOX, noise_shape(BOX, 2.0), 1.0, (Block(1, 1.0, 0.5), Block(2, math.inf, 0.5))),
]


@pytest.mark.parametrize("protocol", CASES, ids=range(len(CASES)))
def test_intervals_cover_at_every_level(protocol):
    n, runs = 50, 40_000
    x = protocol.domain.spanning().mean(0).expand(n, -1)
    summary, generator = protocol.summary(x), keyed_generator(b"covered")
    found, truth = protocol.sample_estimate(summary, generator=generator, sample_shape=(runs,)), x[0]
    for level in (0.5, 0.9, 0.95, 0.999):
        low, high = found.interval(level)
        covered = ((low <= truth) & (truth <= high)).double().mean(0)
        assert ((covered - level).abs() < 4.5 * math.sqrt(level * (1 - level) / runs) + 1e-4).all()
    low, high = Estimate(found.value, found.standard_error, n).interval(0.999)
    normal = ((low <= truth) & (truth <= high)).double().mean(0)
    assert (normal < 0.9975).all()  # the control: normal ends are too near


def test_a_laplace_number_alone_and_its_sums():
    assert laplace_stretch(0.95) * quantile(0.95) == pytest.approx(math.log(20) / math.sqrt(2))
    assert laplace_stretch(1e-18) == 1.0 and (CASES[1].stretch(1e-18) == 1.0).all()
    assert laplace_stretch(0.5) == 1.0  # a sum of several is further than one there
    shape = noise_shape(box(2.0, 4.0), 2.0)
    turned = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    mixed = PureMean(box(2.0, 4.0), replace(shape, root=shape.root @ turned), 1.0, (Block(2, 1.0, 1.0),))
    assert (mixed.stretch(0.5) == 1.0).all() and (mixed.stretch(0.99) > 1.2).all()


def test_sums_of_numbers_of_one_cube_have_its_length_in_common():
    turned, runs, level = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64), 200_000, 0.999
    square = box(2.0, 2.0)
    shape = noise_shape(square, 2.0)
    mixed = PureMean(square, replace(shape, root=shape.root @ turned), 1.0, (Block(2, math.inf, 1.0),))
    summary = mixed.summary(torch.zeros(50, 2).double())
    found = mixed.sample_estimate(summary, generator=keyed_generator(b"mixed"), sample_shape=(runs,))
    low, high = found.interval(level)
    assert (((low <= 0) & (high >= 0)).double().mean(0) > level - 4 * math.sqrt(level * (1 - level) / runs)).all()
