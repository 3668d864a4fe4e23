"""Intervals that may be read at all times: the chance that any misses, without sampling, and where
their ends lie.
"""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from laws import generator
from scipy.special import ndtri

from torchdp.collection import Collection, Journal
from torchdp.domains import Box
from torchdp.mean import LocalMean
from torchdp.protocol import Tally
from torchdp.queries import (
    FactoredQueries,
    LocalFactorization,
    LocalOracle,
)
from torchdp.randomizers import (
    HadamardResponse,
    PrivUnit,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
)
from torchdp.workloads import prefix

# users, after each of whom the interval is read
LOOKS = 400
# the number of users at which it is to be shortest
BEST = 60


def collected(protocol, tally):
    return Collection.of(protocol).add("all", tally)


def chance_of_a_miss(epsilon, types, half_widths):
    """That some n-th mean of decoded bits lies farther from the truth than half_widths[n]; users
    hold these types.

    The exact chance by recursion over the number of users who sent 1, among those whose intervals
    all held.
    """
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    alive = torch.ones(1, dtype=torch.float64)
    ones = 0
    for n, held in enumerate(types, 1):
        ones += held
        chance = p if held else 1 - p
        of_zero = torch.nn.functional.pad(alive * (1 - chance), (0, 1))
        alive = of_zero + torch.nn.functional.pad(alive * chance, (1, 0))
        shares = torch.arange(n + 1).double() / n
        value = (shares - (1 - p)) / (2 * p - 1)
        covered = (value - ones / n).abs() <= half_widths[n]
        alive = alive * covered
    return 1 - float(alive.sum())


class Unlimited(RandomizedResponse):
    """Its intervals go beyond what shares can be."""

    def analyse(self, tally):
        return replace(super().analyse(tally), limits=(-math.inf, math.inf))


@cache
def half_widths(epsilon, level):
    protocol = Unlimited(2, epsilon)
    widths = {}
    for n in range(1, LOOKS + 1):
        tally = Tally(n, {"reports": torch.tensor([n, 0])})
        low, high = collected(protocol, tally).sequence(level, best=BEST)
        widths[n] = float(high[0] - low[0]) / 2
    return widths


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_guarantee_all_intervals_hold_at_once_by_recursion(epsilon, share):
    uniforms = torch.rand(LOOKS, generator=generator(3))
    types = (uniforms < share).int().tolist()
    widths = half_widths(epsilon, 0.95)
    missed = chance_of_a_miss(epsilon, types, widths)
    # one bit's two shares miss together: half of the union bound's .05
    assert missed <= 0.025
    assert chance_of_a_miss(
        epsilon, types, {n: 0.7 * each for n, each in widths.items()}
    ) > 0.06 * (epsilon < 2)
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    # of one decoded bit
    deviation = math.sqrt(p * (1 - p)) / (2 * p - 1)
    fixed = {n: float(ndtri(0.975)) * deviation / math.sqrt(n) for n in widths}
    # control: read at all times these miss
    assert chance_of_a_miss(epsilon, types, fixed) > 0.3


# so many that no end is beyond what answers can be
TYPES = torch.arange(6_000)
MATRIX = (torch.ones(4, 3) + 2 * torch.eye(4, 3)).double()
FACTORS = FactoredQueries.plain(prefix(4))
ONES = torch.ones(2).double()
UNIT = Box(-ONES, ONES)
CASES = {
    "reports": (SubsetSelection(5, 1.0), TYPES % 5),
    "bits": (HadamardResponse(5, 2.0), TYPES % 5),
    "matrix": (StrategyMatrix(MATRIX / MATRIX.sum(0)), TYPES % 3),
    "queries of reports": (
        LocalOracle(prefix(5), RandomizedResponse(5, 1.0)),
        TYPES % 5,
    ),
    "queries of vectors": (
        LocalFactorization.calibrated(FACTORS, epsilon=1.0),
        TYPES % 4,
    ),
    "vectors": (PrivUnit(3, 1.0), torch.eye(3).double().repeat(20, 1)),
    "a mean": (
        LocalMean.tuned(UNIT, epsilon=1.0),
        UNIT.spanning().repeat(20, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ends_are_those_of_the_mixture_for_every_protocol_and_journals_agree(name, tmp_path):
    protocol, x = CASES[name]
    found = collected(protocol, protocol.collect(x))
    n = len(x)
    estimate = found.estimate()
    proxy = protocol.variance_proxy
    assert proxy.shape == estimate.value.shape
    assert (proxy >= protocol.predicted_mse(protocol.summary(x)) * n).all()
    low, high = found.sequence(0.9, best=50)
    # a union bound over the answers
    a = 0.1 / len(proxy)
    log = math.log(a)
    r = 50 / (math.log(1 - 2 * log) - 2 * log)
    # the mean of exp(t S - t^2 v n/2) over t of variance 1/(v r), at its end
    S = (high - estimate.value) * n
    exponents = S.square() / (2 * proxy * (n + r))
    mixture = math.sqrt(r / (n + r)) * exponents.exp()
    # the last prefix sum is that of all users
    unknown = high > low
    torch.testing.assert_close(
        mixture[unknown],
        torch.full_like(mixture, 1 / a)[unknown],
        rtol=1e-9,
        atol=0,
    )
    assert unknown.sum() >= len(proxy) - 1
    torch.testing.assert_close(
        (high - estimate.value)[unknown],
        (estimate.value - low)[unknown],
    )
    journal = Journal(tmp_path / "journal", protocol)
    journal.merge(found)
    for mine, kept in zip((low, high), journal.sequence(0.9, best=50), strict=True):
        torch.testing.assert_close(mine, kept)
