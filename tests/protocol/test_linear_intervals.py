"""Intervals of linear answers: exact coverage of few users of two types, score ends, lattices,
possible answers.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import generator
from scipy.stats import binom

from torchdp.protocol import Tally
from torchdp.protocol.interval import ErrorParts
from torchdp.queries import CentralLaplace, FactoredQueries, LocalOracle
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
)

# of the level .95, two-sided
Z = 1.959964
LEAST = 0.945


def ends(protocol, n, tied=True):
    """Of the first share, for all n + 1 tallies of reports of two types; tied: half a step is
    added.
    """
    ones = torch.arange(n + 1)
    reports = torch.stack([ones, n - ones], -1)
    found = protocol.analyse(Tally(torch.full((n + 1,), n), {"reports": reports}))
    if not tied:
        # control: without the step of whole numbers
        smooth = replace(found.parts, step=0 * found.parts.step)
        found = replace(found, error=smooth)
    low, high = found.interval()
    return low[:, 0].numpy(), high[:, 0].numpy()


def covered(protocol, n, own, tied=True):
    """The exact coverage where so many of n users are of the first type."""
    # the chance of telling the truth
    kept = math.exp(protocol.epsilon) / (1 + math.exp(protocol.epsilon))
    first = binom.pmf(np.arange(own + 1), own, kept)
    others = binom.pmf(np.arange(n - own + 1), n - own, 1 - kept)
    low, high = ends(protocol, n, tied)
    holds = (low <= own / n + 1e-12) & (own / n <= high + 1e-12)
    chances = np.convolve(first, others)
    return float(chances[holds].sum())


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 6.0, 8.0])
def test_every_share_of_few_users_is_covered(epsilon):
    protocol = RandomizedResponse(2, epsilon)
    for n in (1, 2, 3, 7, 30, 60):
        assert min(covered(protocol, n, own) for own in range(n + 1)) > LEAST


def test_without_half_a_step_it_is_not():
    protocol = RandomizedResponse(2, 6.0)
    assert covered(protocol, 100, 50, tied=False) < 0.8 < LEAST < covered(protocol, 100, 50)


@pytest.mark.parametrize(
    "kind",
    [
        RandomizedResponse,
        SubsetSelection,
        OptimizedUnaryEncoding,
        HadamardResponse,
    ],
)
def test_an_end_is_where_the_value_is_z_deviations_and_half_a_step_away(kind):
    """The deviation is that of users of the share at the end, as the oracle itself tells it."""
    oracle = kind(16, 4.0)
    n = 200
    counts = torch.tensor([60] + [140 // 15] * 14 + [140 - 14 * (140 // 15)])
    found = oracle.sample_estimate(counts, generator=generator(1))
    low, high = found.interval()
    half = float(found.parts.step[0, 0])
    for end in (float(low[0]), float(high[0])):
        assert 0 < end < 1
        # all other users spread evenly over the other types
        others = (1 - end) / 15 * n
        users = torch.tensor([end * n] + [others] * 15)
        predicted = oracle.predicted_mse(users)[0]
        deviation = float(predicted.sqrt())
        assert abs(float(found.value[0]) - end) == pytest.approx(Z * deviation + half, rel=1e-6)


@pytest.mark.parametrize("step", [0.0, 0.1])
@pytest.mark.parametrize("curvature", [0.0, -0.3])
def test_margins_solve_their_equation(step, curvature):
    numbers = torch.tensor([0.5, 0.8, curvature, step]).double()
    parts = ErrorParts(*(number[None] for number in numbers))
    for sign, margin in zip((-1, 1), parts.margins(2.0), strict=True):
        u = sign * float(margin)
        variance = 0.5 + 0.8 * u + curvature * u**2
        assert abs(u) - step == pytest.approx(2 * math.sqrt(variance))


def test_no_interval_leaves_what_answers_can_be():
    W = torch.tensor([[1.0, 0, 0], [-1, 2, 5], [3, 3, 3]]).double()
    # one user at an epsilon that says nothing: values far outside
    few = Tally(1, {"reports": torch.tensor([0, 1, 0])})
    local = LocalOracle(W, RandomizedResponse(3, 0.001)).analyse(few)
    central = CentralLaplace(FactoredQueries.spanned(W), 0.001)
    curator = central.sample_estimate(torch.tensor([1, 1, 1]), generator=generator(2))
    for found in (
        local,
        local.of_population(),
        curator,
        curator.of_population(),
    ):
        for low, high in (found.interval(), found.together()):
            assert bool((low >= W.amin(1)).all())
            assert bool((high <= W.amax(1)).all())
            assert bool((low <= high).all())


@pytest.mark.parametrize("n", [1, 5, 40])
def test_a_sample_of_two_types_is_covered_exactly(n):
    """Of the population: whatever its share, reports are binomial."""
    oracle = RandomizedResponse(2, 3.0)
    ones = torch.arange(n + 1)
    reports = torch.stack([ones, n - ones], -1)
    tally = Tally(torch.full((n + 1,), n), {"reports": reports})
    found = oracle.analyse(tally).of_population()
    low, high = (end[:, 0].numpy() for end in found.interval())
    kept = math.exp(3) / (1 + math.exp(3))
    for share in np.linspace(0, 1, 101):
        # of this many reports of the first type, whatever the sample
        chance = binom.pmf(ones.numpy(), n, share * kept + (1 - share) * (1 - kept))
        assert chance[(low <= share + 1e-12) & (share <= high + 1e-12)].sum() > LEAST
