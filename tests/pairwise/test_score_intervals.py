"""Intervals with the variance that belongs to each end, and plug-in variances that few users do not
bias.
"""

import dataclasses
import warnings

import pytest
import torch
from laws import counts_of, coverage, sampled
from responses import nested

from pairwise.common import mse, responses, twice, vectors
from torchdp import pairwise
from torchdp.protocol.interval import ErrorParts, ends, quantile
from torchdp.queries import LocalOracle, choose
from torchdp.randomizers import RandomizedResponse, SubsetSelection
from torchdp.randomness import keyed_generator

STATISTICS = [pairwise.unequal(16), pairwise.absolute_difference(16)]
# a few frequent types and many rare ones
ZIPF = 1 / torch.arange(1, 17).double()


@pytest.mark.parametrize("n", [300, 3000])
@pytest.mark.parametrize("kind", [vectors, twice])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
def test_they_cover_with_a_few_hundred_users(statistic, kind, n):
    counts = counts_of(ZIPF, n)
    answer = kind(statistic, 1.0).sample_estimate(counts, **sampled(1_500, b"few"))
    assert 0.93 < coverage(answer.interval(), statistic.exact(counts)) < 0.98


def square_root(k):
    x = torch.arange(k).double()
    distance = (x[:, None] - x).abs()
    return pairwise.from_kernel(distance.sqrt())


@pytest.mark.parametrize("kind", [vectors, twice])
@pytest.mark.parametrize("n", [300, 1000])
def test_mixed_signatures_cover_too(kind, n):
    # one weight +1, four of -1
    statistic = square_root(5)
    answer = kind(statistic, 1.0).sample_estimate(
        counts_of(torch.ones(5), n), **sampled(2_000, b"mixed")
    )
    truth = statistic.exact(counts_of(torch.ones(5), n))
    assert coverage(answer.interval(), truth) > 0.94
    # control: one normal part is not enough
    if (kind, n) == (vectors, 1000):
        normal = ErrorParts.normal(answer.standard_error.square())
        assert coverage(ends(answer.value, normal, quantile(0.95)), truth) < 0.92


STATIONARY = [[1.0, -2.0], [-2.0, 0.3]]
TILTED = [[0.0, 1.0], [1.0, 0.5]]


@pytest.mark.parametrize(
    ("kernel", "epsilon", "n", "share"),
    [
        (STATIONARY, 0.5, 3000, 0.5),
        (STATIONARY, 2.0, 3000, 0.45),
        (STATIONARY, 1.0, 30_000, 0.45),
        (TILTED, 0.5, 3000, 0.4),
    ],
)
def test_intervals_of_what_is_chosen_hold_near_a_forms_stationary_point(
    brief, kernel, epsilon, n, share
):
    kernel = torch.tensor(kernel).double()
    protocol = choose(pairwise.from_kernel(kernel), n, epsilon).best
    counts = torch.tensor([int(share * n), n - int(share * n)])
    found = protocol.sample_estimate(counts, **sampled(1_500, b"near"))
    assert 0.935 < coverage(found.interval(), protocol.exact(counts)) < 0.965
    normal = ErrorParts.normal(found.standard_error.square())
    # control
    by_normal = ends(found.value, normal, quantile(0.95))
    assert coverage(by_normal, protocol.exact(counts)) < 0.89


def test_intervals_of_ratios_hold_there_too():
    """Fieller's, of the plug-in variance, held 0.79 of the truths."""
    kernels = (torch.tensor(each).double() for each in (STATIONARY, [[1.0, 0.9], [0.9, 1.0]]))
    protocol = responses(pairwise.ratio(*map(pairwise.from_kernel, kernels)), 1.0)
    counts = torch.tensor([1200, 1800])
    found = protocol.sample_estimate(counts, **sampled(800, b"ratio"))
    assert 0.94 < coverage(found.interval(), protocol.exact(counts)) < 0.99
    # control
    of_first = ends(found.value, found.parts.first, quantile(0.95))
    assert coverage(of_first, protocol.exact(counts)) < 0.89


@pytest.mark.parametrize(
    "client",
    [
        None,
        RandomizedResponse(2, 2.0),
        SubsetSelection(2, 2.0),
        nested(2, 2.0),
    ],
)
def test_a_truth_at_the_least_value_of_a_form_is_not_missed(client):
    """The linear error is 0 and the value of distinct pairs may lie below all that the form
    can be.
    """
    kernel = torch.tensor([[0.0, 1], [1, 2 / 3]])
    statistic = pairwise.from_kernel(kernel.double())
    counts = torch.tensor([75, 225])
    if client is None:
        statistic = dataclasses.replace(statistic, pairs=pairwise.Pairs.ALL)
    protocol = vectors(statistic, 2.0) if client is None else LocalOracle.of(statistic, client)
    found = protocol.sample_estimate(counts, **sampled(400, b"least"))
    assert coverage(found.interval(), protocol.exact(counts)) > 0.93


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the denominator")
@pytest.mark.parametrize(("n", "whole"), [(10**6, 0.2), (10**8, 0.0)])
def test_a_rare_class_warns_and_its_interval_stays_in_the_unit_interval_and_covers(n, whole):
    statistic = pairwise.auc(8)
    common = 99 * ZIPF[:8] / ZIPF[:8].sum()
    counts = counts_of(torch.cat([common, torch.ones(8) / 8]), n)
    protocol = vectors(statistic, 1.0)
    draw = {
        "generator": keyed_generator(b"rare"),
        "sample_shape": (500,),
    }
    truth = statistic.exact(counts)
    if not whole:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = protocol.sample_estimate(counts, **draw)
            mse(protocol, counts, n)
    else:
        with pytest.warns(
            UserWarning,
            match="denominator is less than four standard errors from 0",
        ):
            answer = protocol.sample_estimate(counts, **draw)
        with pytest.warns(
            UserWarning,
            match="denominator is less than four standard errors from 0",
        ):
            mse(protocol, counts, n)
        # the values do leave it
        outside = (answer.value < 0) | (answer.value > 1)
        assert float(outside.double().mean()) > 0.05
    low, high = answer.interval()
    assert float(low.min()) >= 0
    assert float(high.max()) <= 1
    assert 0.93 < coverage((low, high), truth) < 0.985
    share = ((low == 0) & (high == 1)).double().mean()
    assert abs(float(share) - whole) < 0.1


def test_intervals_of_ratios_are_the_smallest_that_hold_fiellers_set():
    """By a grid of what the ratio may be, for random forms with denominators near 0: no wider, and
    not the gap.
    """
    generator = keyed_generator(b"gap")
    t = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    kinds = {"whole": 0, "to the gap": 0, "ordinary": 0}
    for _ in range(300):
        variance, correlation, curvature, value = torch.rand(
            4, generator=generator, dtype=torch.float64
        )
        curvature = 0.6 * curvature
        value = 3 * value - 1
        # within what a covariance allows
        slope = 2 * (2 * correlation - 1) * (variance * curvature).sqrt() * 0.99
        part = ErrorParts(
            variance[None],
            slope[None],
            curvature[None],
            0 * slope[None],
        )
        u = t - value
        square = 1.959964**2
        deviation = variance + slope * u + curvature * u.square()
        held = t[u.square() <= square * deviation]
        low, high = ends(value, part, quantile(0.95), (0.0, 1.0))
        if not len(held):
            # the gap is the whole range, or the set lies beyond
            continue
        assert float(low) == pytest.approx(float(held[0]), abs=2e-5)
        assert float(high) == pytest.approx(float(held[-1]), abs=2e-5)
        bounded = square * float(curvature) < 1
        kinds["ordinary" if bounded else "whole" if high - low == 1 else "to the gap"] += 1
    # all three cases were met
    assert min(kinds.values()) >= 20


def test_intervals_of_many_curved_directions_are_no_wider_than_their_level():
    """0.959 here; 0.986 where the length of the estimated gradient still holds its noise."""
    kernel = torch.randn(8, 8, generator=keyed_generator(b"random"), dtype=torch.float64)
    protocol = responses(pairwise.from_kernel(kernel + kernel.mT), 0.5)
    counts = torch.full((8,), 375)
    found = protocol.sample_estimate(counts, **sampled(2000, b"m"))
    truth = protocol.exact(counts)
    assert 0.94 < coverage(found.interval(0.95), truth) < 0.975
