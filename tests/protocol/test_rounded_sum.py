"""Whole steps of a curator's sums: how far one user moves them, by exact arithmetic, and what is
drawn.
"""

import math
from fractions import Fraction

import pytest
import torch
from laws import float64, normal

from torchdp.noise import SeededNoise
from torchdp.privacy import Arithmetic
from torchdp.protocol import rounded_sum
from torchdp.protocol.rounded_sum import (
    BLOCK,
    RoundedSum,
    in_blocks,
    released_guarantee,
)
from torchdp.rounded import RoundedNormal


def whole(sums, vectors):
    counts = torch.ones(len(vectors), dtype=torch.int64)
    return sums.blocks(
        (each @ some for some, each in in_blocks(vectors, counts)),
        len(vectors),
    )


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("users", [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_guarantee_one_user_moves_whole_steps_by_the_sensitivity_at_most(size, users):
    """Sums that lie next to halves of a step, where a user turns them either way; other users
    cancel or add up.
    """
    sums = RoundedSum.least(4.2, 2.0, 1.0, size)
    for seed in range(4):
        vectors = torch.nn.functional.normalize(normal(users, size, seed=seed), dim=1)
        # of one sign they add up, of both they cancel
        if seed % 2:
            vectors = vectors.abs()
        # just inside of the ball of radius 1
        vectors *= 1 - 1e-13
        place = users // 2
        for other in (
            -vectors[place],
            vectors[place] * (1 - 3 * sums.step),
            torch.zeros(size).double(),
        ):
            changed = vectors.clone()
            changed[place] = other
            apart = whole(sums, vectors) - whole(sums, changed)
            moved = apart.double().norm() * sums.step
            apart = (vectors[place] - other).norm()
            assert moved <= sums.sensitivity
            assert moved <= apart + sums.sensitivity - sums.distance


def test_guarantee_floats_add_a_block_up_within_what_is_stated():
    """Against fractions: the worst sums that k terms have here are far inside, and the bound is k^2
    2^-53.
    """
    assert rounded_sum.ADDED >= 2 * BLOCK**2 * 1.01 * 2.0**-53
    for vectors in (
        torch.full((BLOCK, 1), 1 / 3).double(),
        normal(BLOCK, 1).clamp(-1, 1),
    ):
        exact = sum(map(Fraction, vectors[:, 0].tolist()))
        for found in (
            vectors.sum(0),
            torch.ones(BLOCK).double() @ vectors,
            vectors.cumsum(0)[-1],
        ):
            assert abs(Fraction(float(found)) - exact) <= Fraction(rounded_sum.ADDED) / 2


def test_a_step_for_each_number_is_needed():
    """A user moves sums by more than its distance where rounding turns every number."""
    sums = RoundedSum.least(4.2, 2.0, 1.0, 100)
    # all numbers next to the middle of a step
    half = torch.full((100,), 0.5 * sums.step, dtype=torch.float64)
    still = half * (1 - 1e-9)
    moved = half * (1 + 1e-9)
    apart = whole(sums, moved[None]) - whole(sums, still[None])
    apart = apart.double().norm() * sums.step
    assert apart == sums.step * math.sqrt(100) > 1e8 * (moved - still).norm()


@pytest.mark.parametrize(
    ("multiplier", "distance", "size"),
    [(0.1, 2.0, 1), (4.2, 1e-9, 3), (300.0, 7e5, 1000)],
)
def test_sigma_is_the_multiplier_of_the_sensitivity_and_hardly_more(multiplier, distance, size):
    sums = RoundedSum.least(multiplier, distance, distance, size)
    assert 1 <= sums.sigma / (multiplier * sums.sensitivity) < 1 + 1e-3
    assert sums.sigma / (multiplier * distance) < 1 + 1e-3
    assert 2.0**25 <= sums.sigma / sums.step <= 2.0**26
    assert math.frexp(sums.step)[0] == 0.5


def test_variation_covers_the_tables():
    for sigma in (2.0**25, 1.37 * 2.0**25, 2.0**26):
        assert RoundedNormal(sigma).variation < rounded_sum.VARIATION


def test_what_leaves_are_whole_steps_with_the_noise_that_is_stated():
    sums = RoundedSum.least(2.0, 1.0, 1.0, 3)
    total = float64([0.3, -0.2, 1e6])
    found = sums.released(sums.blocks([total], 10**7), SeededNoise(1), (20_000,))
    assert bool((found / sums.step == (found / sums.step).round()).all())
    assert torch.allclose(
        (found - total).square().mean(0),
        torch.tensor(sums.sigma**2).double(),
        rtol=0.05,
    )
    bias = (found - total).mean(0)
    assert bool((bias.abs() < 5 * sums.sigma / math.sqrt(20_000)).all())
    # nothing to hide
    single = RoundedSum.least(2.0, 0.0, 1.0, 3)
    again = single.released(single.blocks([total / 1e6], 1), SeededNoise(1), (2,))
    assert torch.allclose(again, (total / 1e6).expand(2, 3), atol=2.0**-26)


@pytest.mark.parametrize("unit", [1e-300, 1e300])
def test_units_near_the_ends_of_floats(unit):
    sums = RoundedSum.least(2.0, unit, unit, 3)
    total = float64([0.3, -0.2, 1e3]) * unit
    found = sums.released(sums.blocks([total], 1000), SeededNoise(1)) / unit
    assert bool(((found - total / unit).abs() < 7 * sums.sigma / unit).all())
    columns = float64([[unit, -unit / 3]])
    step = sums.step
    assert (
        abs(int(rounded_sum.exact_sums(columns, torch.tensor([9, 3]), step)) - 8 * unit / step) <= 1
    )


def test_guarantee_pays_for_the_tables_or_speaks_of_real_numbers():
    few = released_guarantee(1.0, 1e-6, 1)
    many = released_guarantee(1.0, 1e-6, 1000)
    assert few.arithmetic is many.arithmetic is Arithmetic.ROUNDED
    assert many.variation == 1000 * few.variation
    assert many.delta == few.delta == 1e-6
    assert released_guarantee(0.05, 1e-6, 10).arithmetic is Arithmetic.REAL
