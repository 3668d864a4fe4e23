"""Composition: Gaussian noise in closed form, mixtures against laws written out, and what
dp_accounting makes of it.
"""

import dataclasses
import math

import mpmath
import pytest
from laws import hockey_stick, product_pair, worst_pair

from torchdp import factorization, queries, randomizers, regression, secure, sketching, workloads
from torchdp.privacy import (
    Arithmetic,
    Budget,
    Guarantee,
    Model,
    Neighbours,
    compose,
    gaussian_guarantee,
)
from torchdp.privacy.gaussian import gaussian_epsilon

MODEL = (Model.CENTRAL, Neighbours.REPLACE_ONE)


def pure(epsilon, delta=0.0, neighbours=Neighbours.REPLACE_ONE):
    return Guarantee(epsilon, delta, Model.CENTRAL, neighbours, True, "source")


def normal(mu, delta=1e-7, neighbours=Neighbours.REPLACE_ONE):
    return gaussian_guarantee(1.0, delta, mu, Model.CENTRAL, neighbours)


def gaussian_delta(mu, epsilon):
    """For any epsilon, negative ones too."""
    with mpmath.workdps(40):
        mu = mpmath.mpf(mu)
        epsilon = mpmath.mpf(epsilon)
        low = mpmath.ncdf(-mu / 2 - epsilon / mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * low


@pytest.mark.parametrize(
    "mus",
    [
        (0.5, 0.5),
        (0.3, 1.2, 0.4),
        (1e-3, 4.0),
        (0.05,) * 400,
    ],
)
def test_guarantee_gaussian_noise_composes_to_gaussian_noise(mus):
    parts = [normal(mu, 1e-6 / len(mus)) for mu in mus]
    total = compose(parts)
    mu = math.sqrt(math.fsum(m * m for m in mus))
    # a root of a sum of squares
    assert total.mu == pytest.approx(mu, rel=1e-14)
    assert total.delta == pytest.approx(1e-6, rel=1e-12)
    assert (
        gaussian_delta(mu, total.epsilon)
        <= total.delta
        < gaussian_delta(mu, total.epsilon * (1 - 1e-6))
    )
    # more than adding up
    assert total.epsilon < 0.9 * math.fsum(g.epsilon for g in parts) or min(mus) < 0.01
    assert compose(parts, 1e-9).epsilon == pytest.approx(normal(mu, 1e-9).epsilon, rel=1e-9)
    with pytest.raises(ValueError, match="delta"):
        compose(parts, 1.0)


def test_gaussian_noise_beside_others_counts_once():
    parts = [
        normal(0.5),
        pure(0.7, 1e-6),
        normal(0.5),
        pure(0.2),
    ]
    total = compose(parts)
    together = compose([parts[0], parts[2]])
    assert total.epsilon == pytest.approx(together.epsilon + 0.9, rel=1e-14)
    assert total.mu is None
    assert total.delta == pytest.approx(1.2e-6, rel=1e-12)
    assert not total.exact


@pytest.mark.parametrize("delta", [1e-8, 1e-3])
@pytest.mark.parametrize(
    ("each", "mu", "times"),
    [
        (0.5, 0.6, 1),
        (0.1, 0.2, 20),
        (2.0, 0.05, 3),
        (0.01, 3.0, 4),
    ],
)
def test_guarantee_mixtures_keep_delta_and_waste_little(each, mu, times, delta):
    likely = 1 / (1 + math.exp(-each))

    # randomized responses lose (2 j - times) each
    def truth(epsilon):
        terms = []
        for j in range(times + 1):
            chance = math.comb(times, j) * likely**j * (1 - likely) ** (times - j)
            delta = gaussian_delta(mu, epsilon - (2 * j - times) * each)
            terms.append(chance * float(delta))
        return math.fsum(terms)

    responses = [pure(each)] * times
    epsilon = compose([normal(mu), *responses], delta).epsilon
    # one per cent less epsilon is not enough
    assert truth(epsilon) <= delta < truth(0.99 * epsilon)
    assert epsilon <= compose([normal(mu, delta), *responses]).epsilon


@pytest.mark.parametrize(
    "kinds", [[(0.3, 1e-3)] * 5, [(1.0, 1e-4), (0.2, 1e-3), (0.5, 0.0), (0.5, 0.0)]]
)
def test_guarantee_worst_pairs_written_out(kinds):
    p, q = product_pair([worst_pair(*kind) for kind in kinds])
    spent = [pure(*kind) for kind in kinds]
    total = compose(spent, 0.02)
    # three per cent less epsilon is not enough
    assert hockey_stick(p, q, total.epsilon) <= 0.02 < hockey_stick(p, q, 0.97 * total.epsilon)
    assert total.delta == 0.02
    with pytest.raises(ValueError, match="no epsilon"):
        compose(spent, math.fsum(delta for _, delta in kinds) / 2)


def test_ends():
    # below what transforms resolve: added up
    assert compose([pure(0.5)] * 3, 1e-15).epsilon == 1.5
    assert compose([pure(math.inf), pure(1.0)], 1e-6).epsilon == math.inf
    assert compose([pure(800.0), pure(1.0)], 1e-6).epsilon == 801.0
    assert compose([pure(0.0)] * 2, 1e-6).epsilon == 0
    # too large for a curve of both: added up
    large = normal(999.0), normal(50.0)
    assert compose(large).epsilon == large[0].epsilon + large[1].epsilon > 5e5
    assert compose([normal(1e-9, 0.1)] * 4, 0.3).epsilon == 0


def rounded(mu, variation, delta=1e-6):
    return gaussian_guarantee(1.0, delta, mu, *MODEL, variation)


@pytest.mark.parametrize("variation", [1e-30, 1e-21])
def test_guarantee_composed_integers_pay_for_all_their_tables(variation):
    parts = [rounded(0.2, variation)] * 12
    likely = 1 / (1 + math.exp(-0.3))
    for total, each in (
        (compose(parts), 0.0),
        (compose(parts, 3e-6), 0.0),
        (compose([*parts, pure(0.3)], 3e-6), 0.3),
    ):
        with mpmath.workdps(60):
            epsilon = mpmath.mpf(total.epsilon)
            mu = 0.2 * math.sqrt(12)
            up = gaussian_delta(mu, epsilon - each)
            down = gaussian_delta(mu, epsilon + each)
            paid = 12 * variation * (1 + mpmath.exp(epsilon))
            spent = likely * up + (1 - likely) * down + paid
        # delta is spent to a hundredth, and no more
        assert 0.99 * total.delta < spent <= total.delta
    assert compose(parts).arithmetic is Arithmetic.ROUNDED
    assert compose(parts).variation == 12 * variation
    assert gaussian_epsilon(0.2, 1e-6, 1e-18) == math.inf


def test_tables_that_cost_more_than_delta_keeps_for_them_are_added_up():
    parts = [rounded(0.2, 1e-19)] * 12
    # 1 + e^epsilon has grown too much
    assert compose(parts).epsilon == pytest.approx(12 * parts[0].epsilon)
    assert compose(parts[:2]).epsilon < 2 * parts[0].epsilon
    with pytest.raises(ValueError, match="no epsilon"):
        compose(parts, 1e-8)
    mixed = compose([*parts, pure(0.3)], 1e-4)
    assert mixed.epsilon < 3
    assert compose([*parts, pure(0.3)], 1.2e-5).epsilon == pytest.approx(
        12 * parts[0].epsilon + 0.3
    )


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_guarantee_event_means_the_same_to_dp_accounting(neighbours):
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant

    relation = {
        Neighbours.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
        Neighbours.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    }[neighbours]
    parts = [
        normal(0.4, neighbours=neighbours),
        normal(0.3, neighbours=neighbours),
        pure(0.0, 0.0, neighbours),
    ]
    if neighbours is Neighbours.REPLACE_ONE:
        parts += [pure(0.2), pure(0.5)]

    def epsilon(events):
        accountant = PLDAccountant(relation)
        accountant.compose(dp_event.ComposedDpEvent(events))
        return accountant.get_epsilon(1e-5)

    mine = compose(parts, 1e-5).epsilon
    # their accountant works on a grid
    assert epsilon([g.event() for g in parts]) == pytest.approx(mine, rel=2e-3)
    twice = [normal(0.8, neighbours=neighbours), *parts[1:]]
    # a factor of 2 is seen
    assert epsilon([g.event() for g in twice]) > 1.2 * mine


def test_events_at_the_ends():
    from dp_accounting import dp_event

    assert pure(0.0).event() == dp_event.NoOpDpEvent()
    for none in (math.inf, 701.0):
        assert pure(none).event() == dp_event.NonPrivateDpEvent()


def test_guarantee_pure_but_for_its_variation_is_spent_as_pure():
    """Messages on a lattice: their delta is arithmetic's alone; events and budgets take them for
    what they are near.
    """
    from dp_accounting import dp_event

    one = randomizers.PrivUnit(4, 0.5).guarantee
    assert one.delta > 0
    assert one.pure
    assert one.event() == pure(0.5).event()
    both = compose([one, one])
    assert both.pure
    assert both.variation == 2 * one.variation
    assert isinstance(both.event(), dp_event.RandomizedResponseDpEvent)
    assert not pure(1.0, 1e-6).pure
    assert not compose([one, dataclasses.replace(one, delta=1e-6)]).pure
    limit = gaussian_guarantee(
        1.0,
        1e-6,
        1.0,
        Model.LOCAL,
        Neighbours.REPLACE_ONE,
    )
    left = Budget(limit).spend(one)
    assert left.mu is not None
    assert 0 < left.mu < limit.mu


def carriers():
    W = workloads.prefix(4)
    factored = queries.FactoredQueries.of(W, factorization.factorize(W))
    yield queries.CentralFactorization(factored, 0.7, 1e-5)
    yield randomizers.GaussianVector(3, 0.7, 2.5, delta=1e-5)
    yield secure.SecureSketch(
        sketching.ones(5),
        2,
        1.5,
        0.7,
        1e-5,
    )
    yield regression.SecureHistogram(5, 3, 0.7, 1e-5, corrupt=1)
    yield regression.LocalRows(2, 1.5, 0.7, 1e-5)


@pytest.mark.parametrize("protocol", list(carriers()), ids=lambda each: type(each).__name__)
def test_guarantee_a_stated_mu_has_the_stated_epsilon(protocol):
    promised = protocol.guarantee
    assert promised.epsilon == pytest.approx(0.7, rel=1e-9)
    assert promised.delta == 1e-5
    assert gaussian_delta(promised.mu, 0.7) == pytest.approx(1e-5, rel=1e-6)
