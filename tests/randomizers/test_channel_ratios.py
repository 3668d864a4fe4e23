"""Every randomizer that says it is exactly epsilon-LDP, by brute force: the largest ratio of truth
to claim.

Finite channels: all messages of a small alphabet, enumerated in rational numbers from the words
that the sampler reads.
Vectors: densities over the real numbers from the integers that are drawn and from textbook areas
and quadratures.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from laws import float64
from responses import channel, signs, spent, spent_by, two_densities
from scipy import stats

from torchdp.randomizers import (
    DuchiJordanWainwright,
    GaussianVector,
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    ShiftStrategy,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.ball.sphere import tilted
from torchdp.randomness import keyed_generator

# what a claim may be exceeded by: rounding of the claim itself
LARGEST = 1 + 1e-9
EPSILONS = [1e-6, 0.01, 1.0, 6.0, 20.0, 36.0, 50.0]
PATTERNS = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]).bool()
UNARY = [OptimizedUnaryEncoding, SymmetricUnaryEncoding]


def matrices():
    """Twelve strategies, even ones and uneven ones."""
    for seed in range(12):
        generator = keyed_generator(b"strategy %d" % seed)
        normals = torch.randn(
            3 + seed,
            2 + seed % 4,
            dtype=torch.float64,
            generator=generator,
        )
        Q = (normals * (1 + seed)).exp()
        yield StrategyMatrix(Q / Q.sum(0))


def finite():
    kinds = [
        RandomizedResponse,
        HadamardResponse,
        SubsetSelection,
        *UNARY,
    ]
    for kind, k, epsilon in itertools.product(kinds, (2, 3, 5), EPSILONS):
        yield kind(k, epsilon)
    for epsilon in EPSILONS[1:]:
        yield ShiftStrategy(PATTERNS, torch.tensor([0.3, 0.6, 1e-4]), 4, epsilon)
    yield from matrices()


def vectors():
    for epsilon in EPSILONS:
        for dim in (1, 3):
            yield PrivUnit(dim, epsilon), two_densities
        yield DuchiJordanWainwright(1, epsilon), signs


def test_guarantee_no_channel_spends_more_than_it_says():
    """``pytest -s`` prints how many there are and the largest ratio."""
    found = {}
    for oracle in finite():
        found.setdefault(type(oracle).__name__, []).append(
            spent_by(channel(oracle)) / oracle.guarantee.epsilon
        )
    for randomizer, truth in vectors():
        found.setdefault(type(randomizer).__name__, []).append(
            truth(randomizer) / randomizer.guarantee.epsilon
        )
    for name, ratios in found.items():
        print(f"{name}: {len(ratios)} channels, truth over claim at most {max(ratios)!r}")
        assert max(ratios) <= LARGEST
        # and what is claimed is spent
        assert max(ratios) > 0.999
    assert len(found) == 9


def test_a_channel_that_spends_more_is_seen():
    """Planted: a chance halved, an output that a type never sends, a row of floats on 2^-53."""
    # planted: half of the rarest message's chance is moved to another
    laws = channel(OptimizedUnaryEncoding(3, 6.0))
    claimed = OptimizedUnaryEncoding(3, 6.0).guarantee.epsilon
    least = min(range(len(laws[0])), key=laws[0].__getitem__)
    laws[0][least], laws[0][least - 1] = (
        laws[0][least] / 2,
        laws[0][least - 1] + laws[0][least] / 2,
    )
    assert spent_by(laws) > claimed * LARGEST
    laws[0][least], laws[0][least - 1] = (
        Fraction(0),
        laws[0][least - 1] + laws[0][least],
    )
    with pytest.raises(ZeroDivisionError):
        spent_by(laws)
    q = math.exp(-30) / (1 + 63 * math.exp(-30))
    # a row of floats on a grid of 2^-53
    coarse = Fraction(math.floor(q * 2**53), 2**53)
    assert spent((1 - 63 * coarse) / coarse) > 30.001


def test_what_normals_that_end_would_tell():
    """The mass that one point's messages put where another's never are: refused where floats alone
    draw them.
    """
    with pytest.raises(ValueError, match="delta = 1e-55 leaves"):
        GaussianVector(1000, 1.0, delta=1e-55)
    assert PrivUnit(10**6, 50.0).guarantee.delta < 2**-110


def test_low_order_bits_of_signs_are_the_same_for_all_points(planted):
    """Two messages alone, bit for bit, whatever the point."""
    points = float64([1.0, 0.0, -0.6, 1e-300])
    sent = DuchiJordanWainwright(1, 0.5).randomize_unchecked(
        points.repeat(500)[:, None], planted(7)
    )
    assert len(sent.abs().unique()) == 1


def test_the_ends_of_the_normal_behind_a_cap(planted):
    """The rarest words of either part: no tail ends before 12, none stops short of the
    threshold.
    """
    cap = PrivUnit(1, 50.0).cap
    k = cap.normal_threshold
    law = (k, cap.chance, cap.survival)
    # above from infinity, from the threshold; below the same
    words = torch.tensor([0, -(2**63), 2**63 - 1, -1])
    rare = planted(words=words, exponential=float64(87.0))
    from_k, far, up_to_k, low = tilted((4,), rare, *law).tolist()
    assert far > 14
    assert k <= from_k < k * (1 + 1e-15)
    assert k * (1 - 1e-15) < up_to_k <= k
    assert low < -12.9
    # the middle of each part
    usual = planted(words=words, exponential=float64(0.0))
    middle = tilted((4,), usual, *law)
    above = stats.norm.isf(cap.survival / 2)
    below = stats.norm.ppf((1 - cap.survival) / 2)
    wanted = [above, above, below, below]
    np.testing.assert_allclose(middle.numpy(), wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("radius", [1e-140, 1e140])
def test_the_extreme_radii_are_drawn(radius):
    randomizer = PrivUnit(2, 1.0, radius)
    assert randomizer.randomize(float64([[radius, 0.0]])).isfinite().all()
    assert 0 < randomizer.moments.variance < math.inf
    with pytest.raises(ValueError, match="outside the ball"):
        randomizer.randomize(float64([[1e200, 0.0]]))
