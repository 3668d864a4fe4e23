"""Intervals that hold all truths at once: coverage by integration and simulation, edges, batches,
refusals.
"""

import math
from dataclasses import replace

import pytest
import torch
from laws import UNLIKELY, generator, normal, sampled
from scipy import stats
from scipy.integrate import quad
from scipy.special import ndtr, ndtri

from torchdp import queries, workloads
from torchdp.protocol import Estimate
from torchdp.protocol.interval import laplace_stretch
from torchdp.protocol.quadratic import QuadraticError
from torchdp.protocol.simultaneous import (
    DRAWS,
    MISSED,
    MOST_CORRELATED,
    _order,
    largest_deviate,
    sidak,
)
from torchdp.randomizers import DuchiJordanWainwright
from torchdp.shuffle import CorrelatedSum

F64 = torch.float64
# of the level .95, two-sided, to all digits
SINGLE = 1.959963984540054
# of the level at .95: twice 4.75 standard deviations of the draws
EXCESS = 0.009


def alike(m, correlation):
    """m errors, each pair of which has this correlation."""
    own = (1 - correlation) * torch.eye(m, dtype=F64)
    return correlation * torch.ones(m, m, dtype=F64) + own


def estimate(covariance, value=None, **more):
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    value = torch.zeros_like(deviation) if value is None else value
    return Estimate(
        value,
        deviation.expand_as(value),
        100,
        covariance=lambda: covariance,
        **more,
    )


def deviate(found, level=0.95):
    """z of the first entry, of an estimate whose errors are normal."""
    low, high = found.together(level)
    return ((high - low) / 2 / found.standard_error)[..., 0]


def held_by(z, m, correlation):
    """P(max_i |Z_i| <= z) of equally correlated normals, by integration over what they share."""
    # given what they share, the entries are independent
    shared = math.sqrt(correlation)
    own = math.sqrt(1 - correlation)

    def integrand(t):
        inside = ndtr((z - shared * t) / own) - ndtr((-z - shared * t) / own)
        density = math.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
        return inside**m * density

    return quad(integrand, -9, 9, limit=200, epsabs=1e-9)[0]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("m", [2, 5, 20])
def test_the_level_is_held_and_not_much_more(m, level):
    for correlation in (0.0, 0.3, 0.7, 0.97):
        z = float(deviate(estimate(alike(m, correlation)), level))
        excess = (level * (1 - level) / 0.0475) ** 0.5
        most = level + EXCESS * excess
        assert level - 1e-7 < held_by(z, m, correlation) < most
        # the integral tells a smaller z
        assert held_by(z - 0.1, m, correlation) < level


def covariances(m):
    """Some that are singular, some with negative correlations, of different scales."""
    # half as many columns as rows
    factor = normal(m, max(1, m // 2), seed=m)
    # twelve orders of magnitude
    scale = torch.logspace(-6, 6, m, dtype=F64)
    walk = torch.ones(m, m, dtype=F64).tril()
    found = {
        "any": normal(m, m, seed=1) @ normal(m, m, seed=1).mT,
        "of low rank": factor @ factor.mT,
        "negative": alike(m, -1 / (m - 1)),
        "of many scales": scale[:, None] * alike(m, 0.5) * scale,
        "a walk": walk @ walk.mT,
    }
    return found


def share_held(interval):
    """Share of the repetitions whose errors, estimates of 0, are all inside."""
    low, high = interval
    held = ((low <= 0) & (0 <= high)).all(-1)
    return float(held.double().mean())


@pytest.mark.parametrize("m", [5, 20])
def test_simulated_errors_are_all_inside_as_often_as_is_said(m):
    for place, covariance in enumerate(covariances(m).values()):
        scale = covariance.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(covariance / scale[:, None] / scale)
        # a root by eigenvectors: the covariance may be singular
        root = scale[:, None] * vectors * values.clamp_min(0).sqrt()
        errors = normal(40_000, m, seed=100 * m + place) @ root.mT
        found = estimate(covariance, errors)
        deviation = math.sqrt(0.95 * 0.05 / len(errors))
        held = share_held(found.together())
        assert (held - 0.95) / deviation > -4.9
        assert (held - 0.95 - EXCESS) / deviation < 4.9
        # each at .95 alone does not do
        assert (share_held(found.interval()) - 0.95) / deviation < -10


def test_guarantee_no_end_lies_inside_of_that_of_one_entry_or_outside_of_sidaks():
    for m in (2, 20):
        for covariance in covariances(m).values():
            found = estimate(
                covariance,
                normal(m, seed=1),
                bias=0.1,
                limits=(-1e6, 1e6),
            )
            for level in (0.01, 0.5, 0.95, 0.999, 0.99999):
                single = found.interval(level)
                joint = found.together(level)
                widest = found.interval(level ** (1 / m))
                for sign, one, two, three in zip((-1, 1), single, joint, widest, strict=True):
                    # ends of one size are compared, up to 1e6
                    rounding = 1e-9 * (1 + three.abs())
                    assert bool((sign * (two - one) > -rounding).all())
                    assert bool((sign * (three - two) > -rounding).all())


def test_guarantee_the_order_of_the_draws_is_the_least_that_misses_seldom():
    for level in (0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9997):
        order = _order(level)
        missed = stats.beta.cdf(level, order, DRAWS + 1 - order)
        assert missed <= MISSED < stats.beta.cdf(level, order - 1, DRAWS + 2 - order)
    assert _order(0.9999) == DRAWS + 1


def test_guarantee_one_entry_has_its_interval():
    for shape in ((), (1,), (3, 1)):
        found = Estimate(
            torch.full(shape, 0.7, dtype=F64),
            torch.ones(shape, dtype=F64),
            10,
        )
        for one, other in zip(found.together(0.9), found.interval(0.9), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    nothing = Estimate(torch.zeros(2, 0), torch.zeros(2, 0), 10)
    assert nothing.together()[0].shape == (2, 0)


FACTOR = torch.tensor([1.0, -1.0, 1e-5, 3e6, -0.1] * 4, dtype=F64)
INDEPENDENT = torch.eye(50, dtype=F64)
# an estimate, and the level of each entry where all are held at 0.95
EACH = {
    "one error but for a factor": (
        estimate(FACTOR[:, None] * FACTOR),
        0.95,
    ),
    "no covariance: Sidak's": (
        Estimate(normal(4, 7, seed=1), normal(4, 7, seed=2).abs(), 10),
        0.95 ** (1 / 7),
    ),
    "too many to be drawn: Sidak's": (
        estimate(alike(MOST_CORRELATED + 1, 0.9)),
        0.95 ** (1 / (MOST_CORRELATED + 1)),
    ),
    "far from normal: Bonferroni's": (
        estimate(INDEPENDENT, stretch=laplace_stretch),
        1 - 0.05 / len(INDEPENDENT),
    ),
}


@pytest.mark.parametrize("name", EACH)
def test_each_entry_has_the_interval_of_its_level(name):
    found, level = EACH[name]
    for one, other in zip(found.together(), found.interval(level), strict=True):
        torch.testing.assert_close(one, other)


def test_far_from_normal_errors_are_held():
    """Independent Laplace errors as often as is said; by a normal deviate they are not."""

    def held(z):
        tail = math.exp(-math.sqrt(2) * z)
        return (1 - tail) ** len(INDEPENDENT)

    found, _ = EACH["far from normal: Bonferroni's"]
    assert 0.95 < held(float(deviate(found))) < 0.952
    # control: the deviate of normal errors
    assert held(float(deviate(estimate(INDEPENDENT)))) < 0.7


def test_skewed_intervals_stay_skewed():
    curved = torch.tensor([[0.3, 0.1], [0.2, 0.4]], dtype=F64)
    linear = torch.tensor([[0.5, 0.1], [0.15, 0.75]], dtype=F64)
    zero = torch.zeros(2, dtype=F64)
    error = QuadraticError(curved, linear, curved[..., :0], zero, zero)
    covariance = error.total.diag_embed() + 0.1 * (1 - torch.eye(2, dtype=F64))
    found = Estimate(
        zero,
        error.total.sqrt(),
        10,
        error=error,
        covariance=lambda: covariance,
    )
    z = float(largest_deviate(covariance, 0.95))
    for one, other in zip(
        found.together(),
        found.interval(float(2 * ndtr(z) - 1)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    low, high = found.together()
    assert float((high + low).abs().amin()) > 0.3


def test_limits_and_bias_are_kept():
    covariance = 0.01 * alike(3, 0.5)
    value = torch.tensor([0.0, 0.5, 1.0], dtype=F64)
    bias = torch.tensor([0.0, 0.1, 0.2], dtype=F64)
    z = float(deviate(estimate(covariance)))
    low, high = estimate(covariance, value, bias=bias, limits=(0.0, 1.0)).together()
    reach = 0.1 * z + bias
    torch.testing.assert_close(low, (value - reach).clamp_min(0))
    torch.testing.assert_close(high, (value + reach).clamp_max(1))


def test_a_batch_is_its_entries():
    roots = normal(3, 40, 4, 4, seed=1)
    covariance = roots @ roots.mT
    found = estimate(covariance, normal(5, 3, 40, 4, seed=2))
    low, high = found.together()
    for i, j in ((0, 0), (1, 7), (2, 39)):
        one = estimate(covariance[i, j], found.value[:, i, j])
        for whole, own in zip((low, high), one.together(), strict=True):
            torch.testing.assert_close(whole[:, i, j], own)
    # one noise, other numbers of users
    shared = covariance[:1, :1] * normal(3, 40, 1, 1, seed=3).square()
    alone = largest_deviate(shared[0, :1], 0.9)
    torch.testing.assert_close(largest_deviate(shared, 0.9), alone.expand(3, 40))


def test_entries_without_noise_count_for_nothing_and_those_with_little_for_one():
    covariance = alike(4, 0.5)
    # the second entry is known
    covariance[1] = 0.0
    covariance[:, 1] = 0.0
    kept = [0, 2, 3]
    low, high = estimate(covariance).together()
    assert float(high[1]) == float(low[1]) == 0
    # the same entries, those without noise left out
    without = float(deviate(estimate(covariance[kept][:, kept])))
    assert float(deviate(estimate(covariance))) == pytest.approx(without, rel=0.01)
    nothing = largest_deviate(torch.zeros(2, 2, dtype=F64), 0.95)
    assert float(nothing) == pytest.approx(SINGLE)
    little = torch.diag(torch.tensor([1.0, 1e-280, 1e200], dtype=F64))
    assert float(largest_deviate(little, 0.95)) == pytest.approx(
        float(sidak(0.95, torch.tensor(3))), rel=0.01
    )


def test_a_covariance_that_is_not_finite_counts_as_unknown_in_its_place_alone():
    covariance = alike(3, 0.9).repeat(4, 1, 1)
    covariance[:3, 1, 1] = torch.tensor([math.nan, math.inf, -1.0], dtype=F64)
    z = largest_deviate(covariance, 0.95)
    unknown = float(sidak(0.95, torch.tensor(3)))
    assert z[:3].tolist() == pytest.approx([unknown] * 3)
    assert float(z[3]) == pytest.approx(float(largest_deviate(alike(3, 0.9), 0.95)))


def test_levels_that_are_none_and_whose_share_is_no_float_are_refused():
    found = estimate(torch.eye(1000, dtype=F64), stretch=laplace_stretch)
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
            found.together(level)
    with pytest.raises(ValueError, match="for m entries"):
        found.together(1 - 1e-14)
    plain = Estimate(torch.zeros(1000).double(), torch.ones(1000).double(), 9)
    assert float(deviate(plain, 1 - 1e-14)) > 8


PREFIX = workloads.prefix(4).dense()
COUNTS = torch.tensor([50, 20, 20, 10])
IDENTITY = queries.FactoredQueries.identity(PREFIX)
FACTORED = {
    "local": lambda: queries.LocalFactorization.calibrated(IDENTITY, epsilon=2.0),
    "central": lambda: queries.CentralFactorization(IDENTITY, 1.0, 1e-5),
    "central Laplace": lambda: queries.CentralLaplace(queries.FactoredQueries.spanned(PREFIX), 1.0),
    "shuffled": lambda: queries.ShuffledQueries.calibrated(PREFIX, CorrelatedSum, 100, 1.0, 1e-4),
}


@pytest.mark.parametrize("name", FACTORED)
def test_factored_queries_tell_the_covariance_of_their_answers(name):
    protocol = FACTORED[name]()
    counts = torch.stack([COUNTS, COUNTS.flip(0)])
    found = protocol.sample_estimate(counts, **sampled(20_000, 3))
    told = found.covariance()
    assert told.shape == (2, 4, 4)
    stated = told.diagonal(dim1=-2, dim2=-1).sqrt()
    torch.testing.assert_close(stated.expand_as(found.value), found.standard_error)
    # Of products of normal errors with their own means: Var(xy) = v_x v_y + c^2, some more where
    # tails are heavier.
    errors = found.value - protocol.exact(counts)
    products = errors[..., :, None] * errors[..., None, :]
    deviation = products.std(0) / math.sqrt(len(products))
    z = (products.mean(0) - told) / deviation.clamp_min(1e-12)
    assert float(z.abs().amax()) < -ndtri(UNLIKELY / 100)


def test_the_population_has_the_covariance_of_both_errors():
    protocol = FACTORED["central"]()
    found = protocol.sample_estimate(COUNTS, generator=generator(5)).of_population()
    own = found.covariance().diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(own.sqrt(), found.standard_error)


def test_noise_that_depends_on_the_data_has_no_covariance():
    ranks = torch.arange(4, dtype=F64)[None]
    left = torch.tensor([[1.0], [2.0]], dtype=F64)
    factors = queries.FactoredQueries(left @ ranks, left, ranks, torch.zeros(2, dtype=F64))
    protocol = queries.LocalFactorization(factors, DuchiJordanWainwright(1, 1.0, 3.0))
    found = protocol.sample_estimate(COUNTS, generator=generator(6))
    assert found.covariance is None
    found = replace(found, limits=(-math.inf, math.inf))
    assert float(deviate(found)) == pytest.approx(float(sidak(0.95, torch.tensor(2))))
