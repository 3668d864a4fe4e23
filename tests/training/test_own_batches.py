"""Batches of a loader of one's own, held to the rule that the plan's noise is calibrated for."""

from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.training import ONCE, Epochs, Iterates, Plan, Separated, choose

STEPS, USERS, RULE = 8, 30, Separated(3, 2)
X = torch.linspace(-1, 1, USERS)[:, None]
BATCHES = [[i, i + 10, i + 20] for i in (0, 1, 2, 3, 0, 1, 2, 4)]  # three or more steps apart, twice at most


@pytest.fixture(scope="module")
def choice():
    return choose(Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4, participation=RULE)


def started(plan, **options):
    torch.manual_seed(0)
    return plan.start(nn.Linear(1, 1), nn.functional.mse_loss, noise=SeededNoise(1), **options)


def train(run, batches):
    for users in batches:
        mine = run.admit(users)
        assert mine.tolist() == list(users)
        run.backward(X[mine], 2 * X[mine])
        yield torch.cat([p.grad.flatten() for p in run.module.parameters()])


@pytest.mark.parametrize("rule", [RULE, ONCE, Epochs(3), Separated(20, 1)])
def test_guarantee_no_user_of_the_rule_moves_further_than_the_noise_is_made_for(rule):
    """Every permitted set of steps, by enumeration, with all signs alike and in turns: what C makes of it."""
    for one in choose(Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4, participation=rule).candidates:
        plan, C, worst = one.protocol, one.protocol.strategy.dense(), 0.0
        for size in range(1, STEPS + 1):
            for chosen in combinations(range(STEPS), size):
                apart = all(b - a >= getattr(rule, "gap", STEPS) for a, b in pairwise(chosen))
                if isinstance(rule, Epochs):
                    apart = len({t % 3 for t in chosen}) == 1
                if apart and size <= getattr(rule, "times", STEPS):
                    signs = torch.tensor([[1.0] * size, [(-1.0) ** i for i in range(size)]], dtype=torch.float64)
                    worst = max(worst, float((signs @ C[:, list(chosen)].mT).norm(dim=1).max()))
        moved = gaussian_guarantee(plan.sigma, 1e-4, plan.bound * worst, Model.CENTRAL, Neighbours.ADD_REMOVE)
        assert 0.99 < moved.epsilon <= plan.guarantee.epsilon
        assert plan.guarantee.epsilon <= 1.0 and plan.spent(STEPS).epsilon == plan.guarantee.epsilon
        assert plan.spent(1).epsilon < plan.guarantee.epsilon or rule.most(STEPS) == 1
        torch.testing.assert_close(
            plan.standard_errors, plan.sigma * torch.linalg.inv(C).cumsum(0).norm(dim=1), rtol=1e-6, atol=0
        )


def test_less_error_than_independent_noise_and_the_certified_one_has_the_least(choice):
    errors = {one.name: one.error for one in choice.candidates}
    assert set(errors) == {"independent noise", "2 bands", "certified"}
    assert errors["certified"] == min(errors.values()) < 0.9 * errors["independent noise"]


def test_guarantee_who_comes_too_soon_or_too_often_is_refused_also_after_a_kill(choice, tmp_path):
    plan, path = choice.best, tmp_path / "ledger"
    run = started(plan, ledger=path)
    begun = list(train(run, BATCHES[:5]))
    torch.save(run.secret_state(), tmp_path / "secret")
    secret = torch.load(tmp_path / "secret")
    torch.manual_seed(0)
    again = plan.resume(nn.Linear(1, 1), nn.functional.mse_loss, secret, ledger=path)
    for wrong, named in (
        ([2, 4], None),
        ([3], "may not participate"),
        ([0], "may not participate"),
        ([5, 5], "once"),
    ):
        for each in (again, run) if named else ():
            with pytest.raises(ValueError, match=named):
                each.admit(wrong)
    rest = list(train(again, BATCHES[5:]))
    whole = list(train(started(plan), BATCHES))
    assert all(torch.equal(a, b) for a, b in zip(begun + rest, whole, strict=True))
    with pytest.raises(RuntimeError, match="8 steps are spent"):
        again.admit([9])
    with pytest.raises(ValueError, match="secret must be of step 8"):
        plan.resume(nn.Linear(1, 1), nn.functional.mse_loss, secret, ledger=path)
    with pytest.raises(TypeError, match="attendance must be a tensor of int64"):
        plan.resume(nn.Linear(1, 1), nn.functional.mse_loss, {**secret, "attendance": torch.ones(3, 2)}, step=5)


def test_a_batch_is_admitted_before_it_is_used_and_used_before_the_next(choice, tmp_path):
    choice.best.save(tmp_path / "plan")
    plan = Plan.load(tmp_path / "plan")
    assert plan.digest() == choice.best.digest() and plan.guarantee == choice.best.guarantee
    run = started(plan)
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(X[:3], X[:3])
    run.admit([0, 1])
    with pytest.raises(ValueError, match="all the batch's 2 users"):
        run.backward(X[:3], X[:3])
    with pytest.raises(RuntimeError, match="0 of 2 rows used"):
        run.admit([2])
    run.backward(X[:1], X[:1], more=True)
    run.backward(X[1:2], X[1:2])
    assert run.step == 1 and len(run) == STEPS - 1
    for call in (lambda: next(iter(run)), lambda: run.loader(X)):
        with pytest.raises(RuntimeError, match=r"call run\.admit"):
            call()
    other = choose(Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4).best
    with pytest.raises(RuntimeError, match="the plan says who"):
        started(other).admit([0])
