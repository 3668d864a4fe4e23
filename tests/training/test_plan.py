"""Plans: sampled steps against an attack on all of them, batches, and runs that cannot be put together wrongly."""

import contextlib
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from frameworks import squares
from torch import nn

from torchdp.factorization import BandedStrategy
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.noise import SeededNoise
from torchdp.training import (
    CyclicPoisson,
    Epochs,
    Iterates,
    SampledBatches,
    choose,
    clip_and_sum,
    sensitivity,
    standard_errors,
)
from torchdp.training.noise import noise_guarantee


def losses(C, chances, sigma, groups, user, count=100_000):
    """Likelihood ratios of the outputs C G + Z of a user of group 0, worth 1 in each of the steps that take them."""
    rng, n = np.random.default_rng(7), len(C)
    steps = np.arange(0, n, groups)
    y = sigma * rng.standard_normal((count, n))
    if user:
        y += (rng.random((count, len(steps))) < chances) @ C[:, steps].T
    total = np.zeros(count)
    for taken in itertools.product((0, 1), repeat=len(steps)):
        mean = C[:, steps] @ np.array(taken)
        weight = math.prod(chances if t else 1 - chances for t in taken)
        total += weight * np.exp((y @ mean - mean @ mean / 2) / sigma**2)
    return np.log(total)


def lost(epsilon, loss):
    part = -np.expm1(np.minimum(epsilon - loss, 0))
    return part.mean(), part.std() / len(part) ** 0.5


BANDED = np.linalg.cholesky(0.6 * np.eye(6) + 0.3 * (np.eye(6, k=1) + np.eye(6, k=-1)) + 0.1 * np.eye(6))
BANDED = BANDED[::-1, ::-1].T / np.linalg.norm(BANDED[::-1, ::-1].T, axis=0)


def test_guarantee_an_attack_on_all_steps_attains_it_and_no_more():
    assert not np.triu(BANDED, 1).any() and not np.tril(BANDED, -2).any()
    sampling, sigma, delta = CyclicPoisson(2, 0.3), 0.9, 0.01
    found = sampling.guarantee(torch.from_numpy(BANDED.copy()), sigma, 1.0, delta)
    with_user = losses(BANDED, 0.3, sigma, 2, True)
    removed = lost(found.epsilon, with_user)
    added = lost(found.epsilon, -losses(BANDED, 0.3, sigma, 2, False))
    worst = max(removed, added)
    assert worst[0] <= delta + 4 * worst[1] and worst[0] >= 0.97 * delta - 4 * worst[1]
    # another's clipping
    half = CyclicPoisson(2, 0.3).guarantee(torch.from_numpy(BANDED.copy()), sigma, 0.5, delta)
    assert lost(half.epsilon, with_user)[0] > 1.5 * delta


def test_a_band_too_many_is_refused_since_it_would_cost_more():
    C = np.tril(np.ones((6, 6)))
    C /= np.linalg.norm(C, axis=0)
    promised = CyclicPoisson(2, 0.3).guarantee(torch.from_numpy(np.eye(6)), 0.9, 1.0, 0.01)
    assert lost(promised.epsilon, losses(C, 0.3, 0.9, 2, True))[0] > 0.012
    with pytest.raises(ValueError, match="at most 2 bands"):
        CyclicPoisson(2, 0.3).guarantee(torch.from_numpy(C), 0.9, 1.0, 0.01)
    with pytest.raises(ValueError, match="chance"):
        CyclicPoisson(2, 1.5)


def test_sampled_batches_are_their_groups_independently_at_their_chance():
    batches = SampledBatches(CyclicPoisson(4, 0.25), 4000, 400, noise=SeededNoise(1))
    seen = torch.zeros(400, 4000)
    for step, batch in enumerate(batches):
        seen[step, batch] = 1
    groups = [set(seen[i::4].sum(0).nonzero()[:, 0].tolist()) for i in range(4)]
    assert sorted(map(len, groups)) == [1000] * 4 and len(set.union(*groups)) == 4000
    members = torch.stack([seen[i::4][:, sorted(groups[i])] for i in range(4)])  # (4, 100, 1000)
    assert abs(float(members.mean()) - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 400_000)
    pairs = members[:, 1:] * members[:, :-1]  # a step tells nothing of the next
    assert abs(float(pairs.mean()) - 0.0625) < 6 * math.sqrt(0.0625 / 396_000)
    assert float(members.sum(2).var()) == pytest.approx(187.5, rel=0.35)
    with pytest.raises(RuntimeError, match="all 400"):
        iter(batches).__next__()
    assert sorted(next(iter(SampledBatches(CyclicPoisson(1, 1.0), 9, 2)))) == list(range(9))


@pytest.mark.parametrize("chance", [1e-9, 0.1, 1 / 3, 1 - 2**-53])
def test_guarantee_a_chance_is_rounded_down_and_by_no_more_than_a_word(monkeypatch, chance):
    """floor(2^63 chance) of the 2^63 words take part: the last that does, and the first that does not."""
    batches, words = SampledBatches(CyclicPoisson(1, chance), 2, 1), math.floor(Fraction(chance) * 2**63)
    monkeypatch.setattr(SeededNoise, "integers", lambda draws, shape: torch.tensor([words - 1, words]))
    assert next(iter(batches)) == [0] and 0 <= chance - Fraction(words, 2**63) < Fraction(1, 2**63)


@pytest.mark.parametrize(
    ("epsilon", "p"),
    [
        (0.5, 2.0),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0.5, math.inf), (8.0, 2.0), (8.0, math.inf))),
    ],
)
def test_nothing_chosen_is_behind_independent_noise(epsilon, p):
    choice = choose(Iterates(24, momentum=0.5), 240, 20, epsilon=epsilon, delta=1e-5, p=p)
    named = {one.name: one for one in choice.candidates}
    assert set(named) == {
        "Poisson, independent noise", *(f"cyclic Poisson, {g} bands" for g in (2, 4, 8)), "fixed order",
    }  # fmt: skip
    assert choice.candidates[0].error <= named["Poisson, independent noise"].error
    for one in choice.candidates:
        plan, W = one.protocol, Iterates(24, momentum=0.5).dense()
        assert 0.999 * epsilon < plan.guarantee.epsilon <= epsilon and plan.guarantee.delta == 1e-5
        errors = plan.sigma * standard_errors(W, plan.strategy)
        torch.testing.assert_close(plan.standard_errors, errors)
        assert one.error == pytest.approx(float(errors.max() if p == math.inf else errors.square().mean().sqrt()))
        if isinstance(plan.sampling, CyclicPoisson):
            assert plan.sampling.chance * 240 == 20 * plan.sampling.groups
            again = plan.sampling.guarantee(plan.strategy, plan.sigma, plan.bound, 1e-5)
            assert again.epsilon == plan.guarantee.epsilon
        else:
            assert sensitivity(plan.strategy, Epochs(12)).exact


def test_guarantee_first_steps_spend_no_more_than_all():
    """Where entries of C cancel, the sums of sizes of seven steps are larger than those of eight."""
    choice = choose(Iterates(8), 60, 30, epsilon=8.0, delta=1e-6, p=math.inf)
    plan = next(one.protocol for one in choice.candidates if one.name == "fixed order")
    spent = [plan.spent(steps).epsilon for steps in range(9)]
    assert max(spent) <= plan.guarantee.epsilon and spent[0] == 0
    assert not plan.spent(7).exact and plan.guarantee.exact
    with pytest.raises(ValueError, match="steps"):
        plan.spent(9)


def test_a_fixed_order_is_exact_where_its_sensitivity_is():
    """Three vectors of one user whose products are negative in pairs: no signs turn all of them positive."""
    C = torch.tensor([[1.0, 0, 0], [-0.5, 1, 0], [-0.5, -0.5, 1]], dtype=torch.float64)
    assert not noise_guarantee(C, 1.0, 1.0, 1e-5, Epochs(1)).exact
    assert noise_guarantee(C.abs(), 1.0, 1.0, 1e-5, Epochs(1)).exact
    assert not noise_guarantee(C.abs(), 1e3, 1.0, 0.1, Epochs(1)).exact  # a smaller delta holds too


def test_known_errors_of_120_steps():
    """50 of 1,500 users a step, epsilon = 2: correlation and sampling together beat either."""
    choice = choose(Iterates(120), 1500, 50, epsilon=2.0, delta=1e-5)
    errors = {one.name: one.error for one in choice.candidates}
    assert choice.candidates[0].name == "cyclic Poisson, 4 bands"
    assert errors["cyclic Poisson, 4 bands"] == pytest.approx(7.707, rel=1e-3)
    assert errors["Poisson, independent noise"] == pytest.approx(8.675, rel=1e-3)
    assert errors["fixed order"] == pytest.approx(9.510, rel=1e-3)


def test_a_banded_strategy_has_a_positive_diagonal():
    """Momentum .9 over 96 steps: the search ends at rows of the other sign, which have the same law."""
    W = Iterates(96, 0.9).dense()
    C = banded_strategy(W / W.abs().max(), 96, 1, 2.0, 100, 8)
    assert (C.diagonal() > 0).all() and BandedStrategy.of(C.tril()).bands == 8


def test_long_runs_have_strategies_of_one_row():
    choice = choose(Iterates(600), 6000, 600, epsilon=4.0, delta=1e-5)
    for one in choice.candidates:
        assert one.protocol.strategy.recurrence.even == (one.name != "fixed order")  # whose columns are scaled
    errors = {c.name: c.error for c in choice.candidates}
    independent = errors["Poisson, independent noise"]
    assert min(errors.values()) < independent
    if min(errors.values()) * 1.01 > independent:  # a gain of less than one per cent changes no mechanism
        assert choice.candidates[0].name == "Poisson, independent noise"
    with pytest.raises(ValueError, match="4096"):
        choose(torch.eye(4097, dtype=torch.float64), 10, 1, epsilon=1.0, delta=1e-5)


@pytest.fixture
def task():
    x = torch.linspace(-1, 1, 60)[:, None]
    return nn.Linear(1, 1), x, 2 * x


@pytest.mark.parametrize("place", [0, -1])
def test_a_run_adds_the_plans_noise_to_what_is_clipped(task, place):
    model, x, y = task
    choice = choose(Iterates(6), 60, 20, epsilon=1.0, delta=1e-4)
    plan = sorted(choice.candidates, key=lambda one: one.name)[place].protocol
    run, steps, changes = plan.start(model, squares, noise=SeededNoise(3)), 0, []
    assert str(plan).startswith("central differential privacy") and len(run) == 6
    for users in run:
        total = clip_and_sum(model, squares, x[users], y[users], plan.bound)
        run.backward(x[users], y[users])
        private = torch.cat([p.grad.flatten() for p in model.parameters()])
        changes.append(private * plan.batch - total)
        steps += 1
    noise = torch.stack(changes).double()
    assert steps == run.step == 6 and run.guarantee is plan.guarantee
    assert run.noise.sigma == plan.sigma
    white = plan.strategy.dense() @ noise / plan.sigma  # C C^{-1} Z
    assert 0.3 < float(white.square().mean()) < 3  # 12 numbers
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(x, y)


def test_a_run_refuses_what_does_not_fit(task):
    model, x, y = task
    plan = choose(Iterates(6), 60, 20, epsilon=1.0, delta=1e-4).best
    run = plan.start(model, squares)
    batches = iter(run)
    users = next(batches)
    with pytest.raises(ValueError, match="batch's"):
        run.backward(x, y)
    assert run.step == 0
    with pytest.raises(RuntimeError, match="was not used"):
        next(batches)
    run = plan.start(model, squares)
    users = next(iter(run))
    run.backward(x[users], y[users])
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(x[users], y[users])
    with pytest.raises(RuntimeError, match="was not used"):
        for _ in plan.start(model, squares):
            pass


@pytest.mark.parametrize(
    ("change", "name"),
    [({"batch": 0}, "batch"), ({"users": 10**11}, "batch"), ({"batch": 61}, "batch"), ({"epsilon": 0}, "epsilon"),
     ({"delta": 1.0}, "delta"), ({"bound": -1.0}, "bound"), ({"p": 1.0}, "p"),
     ({"W": torch.ones(3, 3)}, "W"), ({"users": 0}, "users")],
)  # fmt: skip
def test_bad_input_is_named(change, name):
    arguments = {"W": Iterates(4).dense(), "users": 60, "batch": 20, "epsilon": 1.0, "delta": 1e-5} | change
    with pytest.raises(ValueError, match=name):
        choose(arguments.pop("W"), arguments.pop("users"), arguments.pop("batch"), **arguments)


def test_guarantee_a_user_s_steps_are_rounded_up_and_one_band_too_many_is_refused():
    sampling, eye = CyclicPoisson(2, 0.3), torch.eye(5, dtype=torch.float64)
    assert [sampling.times(steps) for steps in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]  # of who is in the first group
    found = sampling.guarantee(eye, 1.0, 1.0, 1e-3).epsilon
    assert found == pytest.approx(CyclicPoisson(1, 0.3).guarantee(eye[:3, :3], 1.0, 1.0, 1e-3).epsilon, rel=1e-9)
    for bands in (1, 2, 3, 4):
        C = eye + 0.1 * torch.ones(5, 5).double().tril(1 - bands).triu(1 - bands) * (bands > 1)
        with pytest.raises(ValueError, match="at most 2 bands") if bands > 2 else contextlib.nullcontext():
            sampling.guarantee(C, 1.0, 1.0, 1e-3)
