"""Clipping bounds that follow a quantile: users' rows keep the plan's bound, and a killed run goes on with the same."""

import math
from dataclasses import replace

import pytest
import torch
from laws import stored
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training import AdaptiveBound, Iterates, Plan, Separated, choose

STEPS, USERS, SIZE, LIMIT, SHARE = 8, 60, 3, 0.7, 0.3
NORMS = torch.logspace(-3, 3, USERS, dtype=torch.float64)
DIRECTIONS = nn.functional.normalize(torch.randn(USERS, SIZE, generator=keyed_generator(b"rows")).double(), dim=1)
X = DIRECTIONS * NORMS[:, None]
ALL = list(range(USERS))


@pytest.fixture(scope="module")
def plans():
    """Batches of one's own, of anybody, and all that are chosen from."""
    asked = {"users": USERS, "batch": 15, "epsilon": 20.0, "delta": 1e-4, "bound": LIMIT}
    own = choose(Iterates(STEPS), participation=Separated(1, STEPS), **asked).best
    found = {one.name: one.protocol for one in choose(Iterates(STEPS), **asked).candidates} | {"own": own}
    return {name: plan.adapted(AdaptiveBound(share=SHARE)) for name, plan in found.items()}


def model():
    net = nn.Linear(SIZE, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    return net


def linear(output, target):
    """Whose gradient is a user's x, whatever the weights are."""
    return (output - target).mean(1)


def at_bound(plan, bound):
    """A run whose next clipping bound is this one, and the rows' sums that it gives to the noise, which is none."""
    secret = plan.start(model(), linear).secret_state() | {"bound": bound}
    run, seen = plan.resume(model(), linear, secret, step=0), []
    spend = run.noise.forward
    run.noise.forward = lambda total: (spend(total), seen.append(total), total)[-1]
    return run, seen


def by_backward(run, users):
    run.backward(X[users], X[users, :1])


def in_parts(run, users):
    """One row, then several at a time."""
    first, *rest = torch.tensor(users).split([1, *[10] * 5, len(users) - 51])
    run.backward(X[first], X[first, :1], more=True)
    for i, part in enumerate(rest, 1):
        run.backward(X[part], X[part, :1], more=i < len(rest))


def by_release(run, users):
    run.release([X[users][:, None]])


WAYS = pytest.mark.parametrize("way", [by_backward, in_parts, by_release])


def row_sum(plan, bound, users, way):
    run, seen = at_bound(plan, bound)
    run.admit(users)
    way(run, users)
    return seen[0], run


def lengths(plan, bound, way):
    """How far each user moves what is released, in units of the plan's bound."""
    whole = row_sum(plan, bound, ALL, way)[0]
    others = [row_sum(plan, bound, [u for u in ALL if u != one], way)[0] for one in range(0, USERS, 12)]
    return torch.stack([(whole - other).norm() / plan.bound for other in others])


@WAYS
@pytest.mark.parametrize("bound", [1e-5, 0.7, 1e5])
def test_guarantee_a_user_moves_gradient_and_count_together_by_the_plans_bound(plans, monkeypatch, bound, way):
    """Whatever the clipping bound is; and by more where the count's share is not taken from the gradient's."""
    plan = plans["own"]
    moved = lengths(plan, bound, way)
    assert (moved <= 1 + 1e-11).all() and (moved >= SHARE - 1e-9).all()
    if bound < NORMS[-12]:
        assert moved.max() > 1 - 1e-6
        monkeypatch.setattr(AdaptiveBound, "unit", lambda self, bound, limit: bound / limit)
        assert lengths(plan, bound, way).max() > math.sqrt(1 + SHARE**2) - 1e-6


@WAYS
@pytest.mark.parametrize("bound", [0.03, 0.7, 40.0])
def test_rows_are_clipped_gradients_and_signs_and_come_back_as_gradients(plans, bound, way):
    plan = plans["own"]
    total, run = row_sum(plan, bound, ALL, way)
    clipped = (DIRECTIONS * NORMS.clamp_max(bound)[:, None]).sum(0)
    signs = torch.where(NORMS <= bound, 1.0, -1.0).sum()
    expected = torch.cat([math.sqrt(1 - SHARE**2) / bound * clipped, (SHARE * signs)[None]])
    torch.testing.assert_close(total, LIMIT * expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run.module.weight.grad[0] * plan.batch, clipped, rtol=1e-5, atol=1e-5 * bound)
    within = min(1.0, float((NORMS <= bound).sum() / plan.batch - USERS / plan.batch / 2 + 0.5))
    assert run.bound == pytest.approx(bound * math.exp(-0.2 * (max(0.0, within) - 0.5)))


def test_guarantee_rows_are_scaled_by_what_they_were_clipped_to(plans, monkeypatch):
    """Where another thread's step moves the bound meanwhile."""
    import torchdp.training.run as module

    run, seen = at_bound(plans["own"], 1e-3)
    clipped = module.clipped_rows

    def moving(gradients, bound):
        run._bound = 1e-4
        return clipped(gradients, bound)

    monkeypatch.setattr(module, "clipped_rows", moving)
    run.admit([USERS - 1])
    run.release([X[-1:, None]])
    assert seen[0].norm() <= LIMIT * (1 + 1e-11)


def test_the_deviation_is_that_of_the_gradient(plans):
    plan = plans["own"]
    run, _ = at_bound(plan, 5.0)
    one, spend = plan.sigma * plan.strategy.recurrence.row_norms()[0], run.noise.forward
    run.noise.forward = lambda total: 0 * spend(total) + one
    assert run.deviation == 0.0
    run.admit([])
    run.release([torch.zeros(0, 1, SIZE).double()])
    torch.testing.assert_close(run.module.weight.grad, torch.full((1, SIZE), run.deviation).double())
    assert run.deviation == pytest.approx(5.0 / LIMIT / math.sqrt(1 - SHARE**2) * float(plan.deviations()[0]))


def train(run, steps=STEPS):
    """Gradients and bounds of some steps; drawn, since rows do not depend on the weights."""
    seen = []
    for users in run:
        run.backward(X[users], X[users, :1])
        seen.append((*run.module.weight.grad[0].tolist(), run.bound))
        if len(seen) == steps:
            break
    return seen


KINDS = pytest.mark.parametrize("kind", ["fixed order", "Poisson, independent noise", "cyclic Poisson, 4 bands"])


@KINDS
@pytest.mark.parametrize("kept", ["state dict", "secret state", "ledger", "all"])
@pytest.mark.parametrize("stop", [0, 3])
def test_a_killed_run_goes_on_with_the_same_bound(plans, kind, kept, stop, tmp_path):
    plan = plans[kind]
    whole = train(plan.start(model(), linear, noise=SeededNoise(1)))
    assert len({bound for *_, bound in whole}) > STEPS / 2
    run = plan.start(model(), linear, noise=SeededNoise(1), ledger=tmp_path / "ledger")
    start, begun = run.secret_state(), train(run, stop) if stop else []
    secret = stored(run.secret_state() if kept in ("secret state", "all") else start)
    step = stored(run.state_dict()) if kept in ("state dict", "all") else stop
    ledger = {"ledger": tmp_path / "ledger"} if kept in ("ledger", "all") else {}
    again = plan.resume(model(), linear, secret, step=step, **ledger)
    assert again.bound == run.bound
    torch.testing.assert_close(torch.tensor(begun + train(again)), torch.tensor(whole))


def test_after_a_kill_within_a_step_the_bound_is_that_step_s_own(plans, tmp_path):
    plan, path = plans["fixed order"], tmp_path / "ledger"
    run = plan.start(model(), linear, ledger=path)
    secret = run.secret_state()
    train(run, 3)
    bound, users = run.bound, next(iter(run))

    def killed(total):
        raise KeyboardInterrupt

    run.noise.forward = killed
    with pytest.raises(KeyboardInterrupt):
        run.backward(X[users], X[users, :1])
    assert run.bound == bound
    again = plan.resume(model(), linear, secret, ledger=path)
    assert (again.step, again.bound) == (4, bound)
    text = path.read_text()
    for cut in range(len(text) - 1, text.index("\n"), -1):  # cut short anywhere: an older bound, never a wrong one
        path.write_text(text[:cut])
        found = plan.resume(model(), linear, secret, ledger=path)
        assert found.bound in (
            LIMIT,
            *(float(line.split()[1]) for line in text.splitlines() if line.count(" ") == 2),
        )


def test_guarantee_only_an_adaptive_plan_takes_its_bound_from_a_state(plans, tmp_path):
    adaptive = plans["own"]
    plain = replace(adaptive, adaptive=None)
    secret = plain.start(model(), linear).secret_state()
    assert plain.resume(model(), linear, secret, step={"step": 0, "bound": 9.0}).bound == LIMIT
    with pytest.raises(ValueError, match="secret must be"):
        adaptive.resume(model(), linear, secret, step=0)
    with pytest.raises(ValueError, match="another plan"):
        replace(adaptive, adaptive=AdaptiveBound()).resume(
            model(), linear, adaptive.start(model(), linear).secret_state(), step=0
        )
    adaptive.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.digest() == adaptive.digest() != plain.digest() and loaded.adaptive == adaptive.adaptive
    assert "clipped to 0.7 at first" in str(loaded) and loaded.guarantee == plain.guarantee


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("start", [0.05, 20.0])
def test_the_bound_finds_the_quantile_of_norms(quantile, start):
    """From 20 times below or above the median of lognormal norms, within a tenth of its rank."""
    users, steps = 2000, 100
    norms = torch.randn(users, 1, 1, generator=keyed_generator(b"norms")).double().exp()
    plan = choose(Iterates(steps), users, 500, epsilon=8.0, delta=1e-5, bound=start).best
    run, seen = (
        plan.adapted(AdaptiveBound(quantile)).start(
            nn.Linear(1, 1, bias=False).double(), linear, noise=SeededNoise(4)
        ),
        [],
    )
    for batch in run:
        run.release([norms[batch]])
        seen.append(run.bound)
    rank = (norms <= torch.tensor(seen[-20:]).mean()).double().mean()
    assert abs(float(rank) - quantile) < 0.1
