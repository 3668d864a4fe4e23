"""Frequency oracles as query mechanisms, and the choice by predicted error."""

import functools
import importlib
import inspect
import math

import pytest
import torch
from laws import float64, normal, sampled

from torchdp import memory, pairwise, randomizers, shuffle, workloads
from torchdp.factorization import factorize
from torchdp.privacy import Model
from torchdp.protocol import Objective
from torchdp.queries import (
    CentralFactorization,
    FactoredQueries,
    FittedOracle,
    choose,
)
from torchdp.queries.oracle import KINDS
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomness import keyed_generator
from torchdp.shuffle.laws import MessageLaw

pytestmark = pytest.mark.usefixtures("brief")
W = workloads.all_ranges(4).dense()
# its name is the function's
density_choice = importlib.import_module("torchdp.density.choose")


@functools.cache
def once(k, n, objective):
    return choose(workloads.prefix(k), n, 1.0, objective=objective)


def average():
    return once(8, 100_000, Objective.MEAN)


@pytest.mark.parametrize(
    ("k", "n", "objective"),
    [(3, 500, Objective.WORST), (8, 100_000, Objective.MEAN)],
)
def test_the_best_candidate_has_the_least_predicted_error(k, n, objective):
    choice = once(k, n, objective)
    errors = [candidate.error for candidate in choice.candidates]
    # by their error on skewed data too
    near = sum(error <= min(errors) * 1.005 for error in errors)
    assert errors[near:] == sorted(errors[near:])
    assert max(errors[:near]) <= min(errors) * 1.005
    assert len(errors) >= 10
    for candidate in choice.candidates:
        assert candidate.error**2 == pytest.approx(
            float(candidate.protocol.worst_mse(n, objective)), rel=1e-12
        )
    assert choice.best is choice.candidates[0].protocol
    assert choice.best.guarantee.epsilon <= 1.0
    assert str(choice).splitlines()[1].startswith(choice.candidates[0].name)
    assert len(repr(choice)) <= 200 < len(str(choice))


def test_those_near_the_best_come_by_their_errors_on_the_worst_and_on_skewed_data(monkeypatch):
    monkeypatch.setattr("torchdp.queries.choose_local.NEAR", 1.0)
    near = choose(workloads.identity(16), 10_000, 4.0)
    zipf = 1 / torch.arange(1, 17, dtype=torch.float64)
    # Zipf's shares in both orders
    skewed = 10_000 / zipf.sum() * torch.stack([zipf, zipf.flip(0)])
    noted = [one for one in near.candidates if one.note]
    on_skewed = [one.protocol.predicted_mse(skewed) for one in noted]
    products = [
        one.error * float(mse.max()) ** 0.5 for one, mse in zip(noted, on_skewed, strict=True)
    ]
    assert len(noted) > 5
    assert products == pytest.approx(sorted(products), rel=2e-3)
    assert noted[0].note.endswith("on skewed data")
    public = choose(workloads.identity(4), 100, 1.0, prior=torch.ones(4))
    # on the prior nothing else is judged
    assert not any(one.note for one in public.candidates)


def test_an_optimised_strategy_beats_everything_else_on_thresholds():
    named = {candidate.name: candidate.error for candidate in average().candidates}
    others = min(error for name, error in named.items() if name != "optimised strategy")
    assert average().candidates[0].name == "optimised strategy"
    assert named["optimised strategy"] < 0.95 * others


def test_one_parity_a_user_where_queries_are_few_parities():
    """Its variance in closed form, beside Cormode, Kulkarni, Srivastava (2018); at small epsilon it
    is the best.
    """
    parities = workloads.parities(3, 1).dense()
    choice = choose(parities, 1_000, 0.5, objective=Objective.MEAN)
    assert choice.candidates[0].name == "one parity a user"
    assert choice.best.guarantee.epsilon <= 0.5
    square = 1 / math.tanh(0.25) ** 2
    exact = (3 * square - 1) * torch.ones(3, 8).double()
    torch.testing.assert_close(choice.best.variance[1:], exact, rtol=1e-4, atol=0)
    # the parity of no bit is public
    assert float(choice.best.variance[0].abs().max()) < 1e-9
    # all parities of the bits are needed
    assert "parity" not in str(average())


def test_many_types_get_shifts_and_very_many_no_strategy(monkeypatch):
    usual = average().candidates[0].error
    room = importlib.import_module("torchdp.queries.choose_local")
    monkeypatch.setattr(room, "CAREFUL_STRATEGY", 7)

    def found():
        choice = choose(
            workloads.prefix(8),
            100_000,
            1.0,
            objective=Objective.MEAN,
        )
        return {one.name: one.error for one in choice.candidates}

    assert found()["optimised strategy"] == usual
    monkeypatch.setattr(room, "POLISHED_STRATEGY", 7)
    monkeypatch.setattr(room, "CLOSE", 1.0)
    assert {"shift strategy", "optimised strategy"} <= set(found())
    monkeypatch.setattr(room, "CLOSE", 9.0)
    assert found()["shift strategy"] < 1.4 * usual
    assert "optimised strategy" not in found()
    monkeypatch.setattr(room, "SHIFTED_STRATEGY", 7)
    assert "shift strategy" not in found()


def test_those_who_trust_a_curator_may_trust_a_shuffler_too():
    choice = choose(workloads.prefix(4), 300, 1.0, 1e-6, trust="curator")
    named = {one.name: one.error for one in choice.candidates}
    assert choice.candidates[0].name == "sums, discrete Laplace"
    assert choice.best.guarantee.model is Model.CENTRAL
    assert (
        named["gamma_2"]
        < named["gamma_F"]
        < named["plain"]
        < named["binary tree"]
        < named["identity"]
    )
    # many messages for one
    assert named["sums, BoundedSum"] < 0.7 * named["RandomizedResponse"]
    for one in choice.candidates:
        assert float(one.protocol.worst_mse(300)) ** 0.5 == one.error
        assert one.protocol.guarantee.epsilon <= 1.0
        assert one.note.startswith("a curator") == (one.protocol.guarantee.model is Model.CENTRAL)


def test_of_little_epsilon_one_message_through_a_shuffler_is_enough():
    # bounded shares do not follow this
    choice = choose(torch.eye(3), 50, 1e-3, 1e-6, trust="shuffle")
    # at many messages; of the others one is enough
    assert choice.candidates[0].name == "sums, CorrelatedSum"
    others = [one for one in choice.candidates if "CorrelatedSum" not in one.name]
    assert others[0].name == "RandomizedResponse"
    assert others[0].protocol.guarantee.epsilon == 1e-3
    assert {one.protocol.guarantee.model for one in choice.candidates} == {Model.SHUFFLE}
    named = {one.name: one.protocol for one in choice.candidates}
    assert "sums, PoissonSum" in named


@pytest.mark.parametrize(
    "workload",
    [
        torch.ones(2, 3),
        torch.eye(1),
        torch.tensor([[1.0, -1.0]]),
    ],
)
def test_degenerate_workloads_are_answered(workload):
    choice = choose(workload, 100, 1.0)
    assert math.isfinite(choice.candidates[0].error)
    counts = torch.zeros(workload.shape[1], dtype=torch.int64)
    counts[0] = 100
    assert (
        choice.best.sample_estimate(counts, generator=keyed_generator(b"d")).value.isfinite().all()
    )


def test_types_that_no_query_tells_apart_are_one():
    """600 types in three groups: as for three, by every optimised strategy, though beyond 256
    types.
    """
    few = float64([[0.0, 1.0, 3.0], [1.0, 0.0, 0.0]])
    small = choose(few, 100, 1.0, objective=Objective.MEAN)
    large = choose(
        few.repeat_interleave(200, 1),
        100,
        1.0,
        objective=Objective.MEAN,
    )
    assert large.candidates[0].error == pytest.approx(small.candidates[0].error, rel=1e-6)
    assert large.bound == pytest.approx(small.bound, rel=1e-9)


def test_fitted_answers_have_reports_of_their_own():
    k = 8
    n = 2_000
    # a bell around the fourth type
    exponents = -(((torch.arange(k) - 3) / 2.0) ** 2)
    prior = torch.softmax(exponents, 0).double()
    made = [
        choose(
            workloads.prefix(k),
            n,
            1.0,
            objective=Objective.MEAN,
            unbiased=False,
            prior=one,
        )
        for one in (None, prior)
    ]
    for choice in made:
        assert {"square wave", "shift strategy for fits"} <= {one.name for one in choice.candidates}
        assert choice.best.guarantee.epsilon <= 1.0
        assert isinstance(choice.best, FittedOracle)
        plain = choice.best.unbiased
        plain = plain.worst_mse(n, Objective.MEAN).sqrt()
        assert choice.candidates[0].error < 0.85 * plain
        assert choice.bound < plain
    best = made[1].best
    counts = (n * prior).round().long()
    drawn = best.sample_estimate(counts, **sampled(100, b"fitted"))
    squares = (drawn.value - best.exact(counts)).square()
    error = float(squares.mean().sqrt())
    assert error == pytest.approx(made[1].candidates[0].error, rel=0.2)
    unordered = choose(torch.eye(3), n, 1.0, unbiased=False, ordered=False)
    assert unordered.best.ordered is False
    assert "square wave" not in {one.name for one in unordered.candidates}
    assert choose(torch.eye(1), n, 1.0, unbiased=False).candidates[0].error == 0


def test_a_prior_is_optimised_for():
    """Most users of one type: a strategy for such data errs less on them than one for the worst
    type.
    """
    prefix = workloads.prefix(16).dense()
    prior = torch.full((16,), 0.02)
    # three quarters of the users hold this type
    prior[5] = 1.0
    choice = choose(prefix, 1_000, 4.0, objective=Objective.MEAN, prior=prior)
    by_name = {one.name: one.error for one in choice.candidates}
    assert choice.candidates[0].name == "optimised strategy, prior"
    assert choice.bound < choice.candidates[0].error < 0.95 * by_name["optimised strategy"]


@pytest.mark.slow
@pytest.mark.parametrize("k", [1024, 4096])
def test_many_types_take_the_shift_strategy(k):
    choice = choose(workloads.prefix(k), 10**6, 1.0, objective=Objective.MEAN)
    assert choice.candidates[0].name == "shift strategy"
    if k == 1024:
        assert choice.bound < choice.candidates[0].error < 1.08 * choice.bound


def exported(package, base):
    """The classes of this kind that a package has, by their names."""
    every = {name: getattr(package, name) for name in package.__all__}
    kinds = {
        name: each
        for name, each in every.items()
        if isinstance(each, type) and issubclass(each, base)
    }
    return {name: each for name, each in kinds.items() if not inspect.isabstract(each)}


def exported_laws():
    """Those for messages, made with a delta, whose error is the same whatever the bits."""
    found = {}
    for name, kind in exported(shuffle, MessageLaw).items():
        law = kind.calibrated(1000, 1.0, 1e-6, 1)
        least, most = law.variance(torch.tensor([0, 1000])).tolist()
        if least == most and shuffle.delta_of(law, 1.0, 1) <= 1e-6:
            found[name] = law.rmse / 1000
    return found


def test_what_a_choice_does_not_try_of_the_library_has_a_reason():
    # strategies, which a choice optimises for its queries
    searched = {"ShiftStrategy", "StrategyMatrix"}
    assert (
        exported(randomizers, FrequencyOracle).keys()
        == {kind.__name__ for kind in KINDS} | searched
    )
    tried = {law.__name__ for law in density_choice.LAWS}
    others = exported(shuffle, MessageLaw).keys() - tried
    assert others == {"CorrelatedSum", "RandomizedResponseSum"}
    noise = {}
    # of sums as a density has: the others have more noise than both
    for name in others | tried:
        moves = shuffle.Sensitivity(32, change=16.0, flips=32)
        noise[name] = getattr(shuffle, name).calibrated(2000, 1.0, 1e-6, moves).rmse
    assert min(noise[name] for name in others) > max(noise[name] for name in tried)


def test_every_law_with_a_delta_is_a_candidate():
    choice = choose(
        torch.tensor([[0.0, 1.0]]),
        1000,
        1.0,
        1e-6,
        trust="shuffle",
    )
    named = {one.name: one.error for one in choice.candidates}
    laws = exported_laws()
    assert {"CorrelatedSum", "PoissonSum", "BoundedSum"} <= set(laws)
    for name, error in laws.items():
        assert named[f"sums of the answers, {name}"] == pytest.approx(error, rel=1e-3)
    assert choice.candidates[0].name == "sums of the answers, CorrelatedSum"
    assert choice.candidates[0].error < 0.4 * named["sums of the answers, BoundedSum"]


def test_who_trusts_a_curator_gets_one_unless_a_shuffler_has_clearly_less_error(monkeypatch):
    """Without discrete Laplace: of 16 types bounded sums have 3 % less error than a curator's
    Gaussian noise.
    """
    module = importlib.import_module("torchdp.queries.choose")
    choice = choose(workloads.identity(16), 10_000, 1.0, 1e-6, trust="curator")
    errors = {one.name: one.error for one in choice.candidates}
    assert choice.best.guarantee.model is Model.CENTRAL
    assert "discrete Laplace" in choice.candidates[0].name
    assert (
        errors["sums, discrete Laplace"] < errors["sums, CorrelatedSum"] < 0.55 * errors["gamma_2"]
    )
    monkeypatch.setattr(module, "LAWS", (shuffle.BoundedSum,))
    monkeypatch.setattr(
        module,
        "CentralLaplace",
        lambda queries, epsilon: CentralFactorization(queries, epsilon, 1e-6),
    )
    close = module.choose(
        workloads.identity(16),
        10_000,
        1.0,
        1e-6,
        trust="curator",
    )
    errors = [one.error for one in close.candidates]
    assert close.best.guarantee.model is Model.CENTRAL
    assert min(errors) < errors[0] <= min(errors) * 1.05


def test_even_factors_are_least():
    """As found by the solver, and below the identity's by the mean; None where norms differ."""
    W = workloads.identity(6).dense()
    even = FactoredQueries.even(W)
    found = factorize(W, math.inf, shift=True, tol=1e-4)
    rows = even.left.norm(dim=1)
    columns = even.right.norm(dim=0)
    product = float(rows.max() * columns.max())
    assert product == pytest.approx(5 / 6)
    assert product <= float(found.certificate.upper) * (1 + 1e-9)
    assert float(even.bias.abs().max()) < 1e-12
    assert FactoredQueries.even(workloads.prefix(6)) is None
    assert FactoredQueries.even(torch.ones(2, 3)) is None


def test_both_columns_are_printed_where_they_disagree_on_the_best():
    """SUE is best on the worst data, at 2.05 times the error of others on flat data."""
    choice = choose(workloads.identity(16), 10_000, 4.0)
    head, first, *_ = str(choice).splitlines()
    named = {one.name: one for one in choice.candidates}
    # as many users as the choice is for
    flat = torch.full((16,), 625)
    for one in choice.candidates:
        assert one.flat**2 == pytest.approx(
            float(one.protocol.predicted_mse(flat).max()), rel=1e-12
        )
    assert head.endswith("on flat data")
    assert f"{choice.candidates[0].flat:.6g}" in first
    assert "on flat data" in choice._repr_html_()
    assert choice.candidates[0].flat > 2 * named["SubsetSelection"].flat
    public = choose(workloads.identity(4), 100, 1.0, prior=torch.ones(4))
    # nothing else is judged
    assert "flat" not in str(public)
    assert "flat" not in public._repr_html_()


@pytest.mark.parametrize("k", [3, 40])
def test_diameters_are_no_less_than_the_largest_distance(k):
    """By differences, of columns that have a large part in common."""
    # far from 0: norms are a thousand times the distances
    R = normal(5, k, name=b"diameter") + 1e3
    queries = FactoredQueries(torch.ones(1, k), torch.ones(1, 5), R, torch.zeros(1))
    differences = queries.right[:, :, None] - queries.right[:, None]
    apart = differences.norm(dim=0).max()
    assert 1 <= queries.diameter / float(apart) < 1 + 1e-13


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        (
            lambda: choose(workloads.identity(20_000), 1000, 1.0),
            "HadamardResponse",
        ),
        (
            lambda: choose(workloads.prefix(20_000), 1000, 1.0),
            "RunningSums",
        ),
        (
            lambda: choose(
                workloads.marginals(20, 2),
                1000,
                1.0,
                1e-6,
                trust="curator",
            ),
            "CentralMarginals",
        ),
        (
            lambda: choose(
                workloads.marginal_tables(20, 2),
                1000,
                1.0,
                1e-6,
                trust="curator",
            ),
            "CentralMarginals",
        ),
        (
            lambda: choose(torch.ones(1, 1).expand(20_000, 20_000), 1000, 1.0),
            "merge types",
        ),
    ],
)
def test_what_the_free_memory_has_no_room_for_is_refused_with_a_remedy(asked, remedy, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**32)
    with pytest.raises(ValueError, match=rf"would hold .* numbers.*, over .*{remedy}"):
        asked()


def test_of_near_errors_that_comes_first_which_has_less_on_most_data():
    """Hadamard response has 3 % less error over the histograms, by those of one frequent type."""
    choice = choose(pairwise.unequal(16), 100_000, 2.0, search=False)
    first, second = choice.candidates[:2]
    assert first.name == "SymmetricUnaryEncoding"
    assert second.name == "HadamardResponse"
    assert second.error < first.error < 1.05 * second.error
    falling = 1 / (torch.arange(16, dtype=torch.float64) + 1)
    counts = 100_000 * falling / falling.sum()
    assert first.protocol.predicted_mse(counts) < 0.6 * second.protocol.predicted_mse(counts)
    # told of one frequent type, it takes what has less error there
    frequent = torch.full((16,), 0.02 / 15)
    frequent[3] = 0.98
    told = choose(
        pairwise.unequal(16),
        100_000,
        2.0,
        search=False,
        prior=frequent,
    )
    assert told.candidates[0].name == "HadamardResponse"
