"""Sums of every user's own message: those of ``sample`` for the same draws, and in law those drawn
at once.
"""

import pytest
import torch
from laws import float64, normal

from torchdp.noise import SeededNoise
from torchdp.randomizers import GaussianVector, PrivUnit
from torchdp.randomizers.ball import ball

COUNTS = torch.tensor([0, 1, 3, 17, 0, 40])
KINDS = [
    lambda dim: PrivUnit(dim, 4.0, 1.5),
    lambda dim: GaussianVector(dim, 4.0, 1.5, delta=1e-6),
]


def points(dim, dtype=torch.float64):
    """Six points: the centre, inside, on the sphere."""
    x = normal(6, dim, seed=9)
    norms = float64([[1.5], [1.5], [0], [0.4], [1], [1.5]])
    # just inside of the sphere, so that float32 does not round a point out of it
    directions = x / x.norm(dim=1, keepdim=True)
    return (directions * norms * (1 - 1e-6)).to(dtype)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [2**21, 200])
def test_collect_is_the_sum_of_the_messages_that_sample_makes_of_the_same_draws(
    make, dtype, block, monkeypatch
):
    """In one block and in many, whose edges cut through types."""
    monkeypatch.setattr(ball, "CPU_BLOCK", block)
    randomizer = make(5)
    x = points(5, dtype)
    users = x.repeat_interleave(COUNTS, 0)
    messages = randomizer.randomize_unchecked(users, SeededNoise(1))
    total = randomizer.collect_crowd(x, COUNTS, SeededNoise(1))["sum"]
    assert total.dtype == torch.float64
    assert total.shape == (5,)
    size = float(messages.abs().sum())
    rounding = 100 * torch.finfo(dtype).eps * size
    torch.testing.assert_close(total, messages.double().sum(0), rtol=0, atol=rounding)
    other = randomizer.collect_crowd(x, COUNTS, SeededNoise(2))["sum"]
    assert not torch.allclose(other, total, rtol=0, atol=rounding)
