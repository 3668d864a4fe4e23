"""Runs that are killed, at random points too, and go on: no step comes twice; audits of what whole
runs release.
"""

import copy
import functools
import itertools
import math
import os
import pickle
import signal
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import stored
from scipy.stats import beta
from torch import nn
from trained import KINDS, STEPS, X, gradient, model, named, plans, squares, started, use

from torchdp.factorization import BandedStrategy
from torchdp.noise import SeededNoise
from torchdp.training import AdaptiveBound, Iterates, choose, clipped_sum
from torchdp.training.batches import Waiting
from torchdp.training.participation import CyclicPoisson
from torchdp.training.sums import clipped_rows


def train(run, steps=STEPS):
    """Who was in each step, and the gradients, at the parameters that these lead to."""
    seen = []
    optimizer = torch.optim.SGD(run.module.parameters(), 0.1)
    for users in itertools.islice(run, steps):
        use(run, users)
        seen.append((users.tolist(), gradient(run)))
        optimizer.step()
    return seen


def zeros(run, users):
    """Gradients of a batch, made elsewhere."""
    return [torch.zeros(len(users), *p.shape) for p in run.module.parameters()]


def killed(total):
    raise KeyboardInterrupt


@functools.cache
def uninterrupted(kind, adaptive):
    """A plan, and its run that was not killed."""
    plan = plans()[kind]
    if adaptive:
        plan = plan.adapted(AdaptiveBound())
    return plan, train(started(plan))


@KINDS
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (0, "at the end"),
        (1, "at the start"),
        (5, "at the start"),
        (5, "at the end"),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(kind, adaptive, stop, kept):
    plan, whole = uninterrupted(kind, adaptive)
    run = started(plan)
    secret = stored(run.secret_state())
    begun = train(run, stop)
    net = model()
    net.load_state_dict(run.module.state_dict())
    state = stored(run.state_dict())
    assert state == {"step": stop} | ({"bound": run.bound} if adaptive else {})
    step = state
    if kept == "at the end":
        # This state knows the bound by itself.
        secret = stored(run.secret_state())
        step = stop
    again = plan.resume(net, squares, secret, step=step)
    assert again.step == stop
    assert len(again) == STEPS - stop
    assert again.bound == run.bound
    assert (run.bound != plan.bound) == (adaptive and stop > 0)
    for (users, found), (others, expected) in zip(begun + train(again), whole, strict=True):
        assert users == others
        # A new run takes its first batch in parts, whose sums round otherwise.
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    # No step is left for a second time.
    assert list(again) == []


@KINDS
def test_steps_that_the_ledger_knows_are_never_drawn_again(kind, tmp_path):
    plan, whole = uninterrupted(kind, False)
    path = tmp_path / "ledger"
    run = started(plan, ledger=path)
    secret = run.secret_state()
    train(run, 3)
    users = next(iter(run))
    # After the note, before the noise.
    run.noise.forward = killed
    with pytest.raises(KeyboardInterrupt):
        use(run, users)
    # With the model and the step of a checkpoint at 0.
    again = plan.resume(model(), squares, secret, ledger=path)
    assert again.step == 4
    assert again.spent.epsilon == plan.spent(4).epsilon
    assert [users for users, _ in train(again)] == [users for users, _ in whole[4:]]
    assert plan.resume(model(), squares, secret, ledger=path).step == STEPS
    with pytest.raises(FileExistsError):
        started(plan, ledger=path)
    other = plan.start(model(), squares)
    with pytest.raises(ValueError, match="ledger is of another run"):
        plan.resume(model(), squares, other.secret_state(), ledger=path)


def test_a_line_that_a_kill_cut_short_does_not_swallow_the_next(plans, tmp_path):
    plan = plans["ordered"]
    path = tmp_path / "ledger"
    run = started(plan, ledger=path)
    secret = run.secret_state()
    train(run, 5)
    with path.open("a") as file:
        # Of 1234.
        file.write("\n1")
    train(plan.resume(model(), squares, secret, ledger=path), 1)
    assert plan.resume(model(), squares, secret, ledger=path).step == 6
    path.write_text(path.read_text() + "\0")
    plan.resume(model(), squares, secret, ledger=path)
    path.write_text(path.read_text() + "\n\0")
    with pytest.raises(ValueError, match="ledger is damaged"):
        plan.resume(model(), squares, secret, ledger=path)


def test_guarantee_two_runs_with_one_ledger_never_release_one_step_twice(plans, tmp_path):
    plan = plans["ordered"]
    path = tmp_path / "ledger"
    first = started(plan, ledger=path)
    runs = [first]
    runs += [plan.resume(model(), squares, first.secret_state(), ledger=path) for _ in range(2)]
    # All of them have the first step's batch, and its noise.
    users = [next(iter(run)) for run in runs]
    use(first, users[0])
    for i in (1, 1, 2):
        with pytest.raises(RuntimeError, match="another run has spent step 1"):
            use(runs[i], users[i])
        assert runs[i].step == 0
    train(first, 2)
    late = plan.resume(model(), squares, first.secret_state(), ledger=path)
    assert late.step == 3
    assert train(late, 1)
    with pytest.raises(RuntimeError, match="another run has spent step 4"):
        train(first, 1)


@KINDS
def test_guarantee_a_batch_serves_one_step_whatever_interrupts_it(plans, kind):
    run = plans[kind].start(model(), squares)
    batches = iter(run)
    noise = run.noise.forward
    users = next(batches)
    g = zeros(run, users)

    def killed_after(total):
        noise(total)
        raise KeyboardInterrupt

    for forward, step in ((killed, 0), (killed_after, 1)):
        run.noise.forward = forward
        with pytest.raises(KeyboardInterrupt):
            run.release(g)
        assert run.step == step
    run.noise.forward = noise
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.release(g)
    users = next(batches)
    # As an interrupt could leave them before the batch is out.
    # The batch of step 1 must come again, not that of a later one.
    for step in (2, 4):
        run.batches.step = step
        run._waiting = Waiting()
        assert torch.equal(next(iter(run)), users)
        assert run.batches.step == 2


@KINDS
def test_guarantee_a_batch_serves_one_step_whatever_competes_for_it(plans, kind, monkeypatch):
    run = plans[kind].start(model(), squares)
    g = zeros(run, next(iter(run)))

    def clipped(gradients, bound):
        """Another thread releases the batch while this one clips it."""
        monkeypatch.setattr("torchdp.training.run.clipped_rows", clipped_rows)
        other = threading.Thread(target=run.release, args=(g,))
        other.start()
        other.join()
        return clipped_rows(gradients, bound)

    monkeypatch.setattr("torchdp.training.run.clipped_rows", clipped)
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.release(g)
    assert run.step == run.batches.step == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_can_not_be_copied(plans, copied):
    with pytest.raises(TypeError, match="can not be copied"):
        copied(started(plans["ordered"]))


def test_a_layer_that_is_unfrozen_later_is_refused_before_its_step_is_spent(plans):
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    net[1].requires_grad_(False)
    run = plans["ordered"].start(net, squares)
    users = next(iter(run))
    net[1].requires_grad_(True)
    with pytest.raises(ValueError, match="other trainable parameters"):
        use(run, users)
    assert run.step == 0


def test_the_state_dict_and_the_ledger_hold_no_secret(plans, tmp_path):
    run = started(plans["banded"], ledger=tmp_path / "ledger")
    train(run, 2)
    # With the key the noise can be subtracted.
    key = run.secret_state()["key"]
    text = (tmp_path / "ledger").read_text()
    assert bytes(key.tolist()).hex() not in text
    assert run.state_dict() == {"step": 2}
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["1", "2"]


@KINDS
def test_guarantee_what_is_spent_rises_to_the_plan_s(plans, kind):
    plan = plans[kind]
    spent = [plan.spent(t).epsilon for t in range(STEPS + 1)]
    assert spent[0] == 0
    assert spent[1] > 0.05
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(plan.guarantee.epsilon, rel=1e-6)


def test_a_secret_state_of_another_plan_is_refused(plans):
    plan = plans["banded"]
    secret = plan.start(model(), squares).secret_state()
    for other in (replace(plan, sigma=2 * plan.sigma), plans["ordered"], replace(plan, users=61)):
        with pytest.raises(ValueError, match="secret is of another plan"):
            other.resume(model(), squares, secret, step=0)
    with pytest.raises(ValueError, match="step or ledger must say what was released"):
        plan.resume(model(), squares, secret)
    damaged = {
        "secret must be": {},
        "key must be": {**secret, "key": secret["key"][:3]},
        "step must be": {**secret, "step": 99},
    }
    for message, wrong in damaged.items():
        with pytest.raises(ValueError, match=message):
            plan.resume(model(), squares, wrong, step=0)


def test_a_row_and_a_column_of_the_same_bytes_are_two_plans(plans):
    row = BandedStrategy(torch.ones(1, 8), 8)
    column = BandedStrategy(torch.ones(8, 1), 8)
    plan = plans["banded"]
    assert replace(plan, strategy=row).digest() != replace(plan, strategy=column).digest()


def test_gradients_made_elsewhere_are_those_of_the_batch_and_losses_are_means(plans):
    run = started(plans["ordered"])
    users = next(iter(run))
    g = zeros(run, users)
    for wrong, message in (
        ([rows[1:] for rows in g], "gradients must be those of all the batch's"),
        (g[::-1], r"must be \(n, \*shape\), for parameters"),
        ([[rows, rows] for rows in g], r"not lists.*zero_grad\(\) of its module"),
    ):
        with pytest.raises(ValueError, match=message):
            run.release(wrong)
    mean = squares(run.module(X[users]), 2 * X[users]).mean()
    torch.testing.assert_close(use(run, users), mean.detach())


def net():
    made = nn.Linear(1, 1)
    for p in made.parameters():
        nn.init.constant_(p, 0.1)
    return made


def gradients(users, life):
    """Each life of a run has data of its own: noise that comes twice would publish their
    difference.
    """
    return [X[users][:, None] * (1 + life), X[users] - life]


def live(plan, place, life, lines):
    """In a child: goes on with the run, tells of each gradient that is out, and dies at one of our
    lines.
    """
    left = lines

    def trace(frame, event, _):
        nonlocal left
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace if "torchdp" in frame.f_code.co_filename else None

    signal.alarm(60)
    torch.set_num_threads(1)
    out = os.open(place / "out", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sys.settrace(trace)
    secret = torch.load(place / "secret", weights_only=True)
    run = plan.resume(net(), squares, secret, ledger=place / "ledger")
    for users in run:
        step = run.step
        run.release(gradients(users, life))
        got = np.array([float(p.grad) for p in run.module.parameters()])
        os.write(out, f"{step} {life} {got.tobytes().hex()}\n".encode())
        if run.step % 3 == 0:
            torch.save(run.secret_state(), place / "new")
            os.replace(place / "new", place / "secret")


def lives(plan, place, generator):
    """A run of many lives: its first secret state, what was out, and how often it was killed.

    What was out: step, life and gradient of each line.
    """
    place.mkdir()
    seed = int(generator.integers(2**31))
    run = plan.start(net(), squares, noise=SeededNoise(seed), ledger=place / "ledger")
    start = run.secret_state()
    torch.save(start, place / "secret")
    for life in itertools.count():
        lines = int(generator.integers(1, 6000))
        child = os.fork()
        if not child:
            try:
                live(plan, place, life, lines)
            finally:
                os._exit(0)
        if os.WTERMSIG(os.waitpid(child, 0)[1]) != signal.SIGKILL:
            break
    out = place / "out"
    rows = [line.split() for line in out.read_text().splitlines()] if out.exists() else []
    outs = [(int(step), int(life), np.frombuffer(bytes.fromhex(got))) for step, life, got in rows]
    return start, outs, life


def check(plan, place, start, outs):
    """No step is out twice, the ledger knows all that are, and each has its own noise, as without
    any kill.
    """
    out = {step: (life, got) for step, life, got in outs}
    assert len(out) == len(outs)
    lines = (place / "ledger").read_text().splitlines()[1:]
    known = [int(line.split()[0]) for line in lines if line]
    # Noted first: a step that is out and not noted would be drawn again.
    assert max(out, default=-1) < max(known, default=0)
    whole = plan.resume(net(), squares, start, step=0)
    for users in whole:
        step = whole.step
        whole.release(zeros(whole, users))
        if step in out:
            life, got = out[step]
            total = clipped_sum(gradients(users, life), plan.bound)
            expected = (gradient(whole) + total / plan.batch).double().numpy()
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # 240 processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@KINDS
def test_guarantee_no_step_is_out_twice_after_any_kill(plans, kind, tmp_path):
    plan = plans[kind]
    generator = np.random.default_rng(len(kind))
    kills = 0
    released = 0
    for number in itertools.count():
        place = tmp_path / str(number)
        start, outs, killed_times = lives(plan, place, generator)
        check(plan, place, start, outs)
        kills += killed_times
        released += len(outs)
        # Enough to meet each line of a step.
        if kills >= 80:
            break
    assert released > 20


def attendances(plan):
    """Sets of steps that a user may be in, (sets, steps), and their chances."""
    steps = plan.strategy.steps
    q = plan.sampling.chance
    groups = plan.sampling.groups
    sets = np.array(list(itertools.product((0.0, 1.0), repeat=steps)))
    # Of a group the other groups' steps have no chance.
    own = np.array([np.arange(steps) % groups == group for group in range(groups)])
    within = np.where(sets[:, None] > 0, q, 1 - q)
    chances = np.where(own, within, sets[:, None] == 0)
    return sets, chances.prod(2).mean(1)


def attack(plan, seed, canary):
    """The ln likelihood ratio of user 0, who is there or not, by what one run releases and what is
    public.
    """
    run = plan.start(nn.Linear(1, 1, bias=False), squares, noise=SeededNoise(seed))
    attended = []
    out = []
    for users in run:
        mine = users == 0
        attended.append(float(mine.any()))
        # Is clipped.
        run.release([(1.5 * plan.bound * mine * canary)[:, None, None]])
        out.append(float(run.module.weight.grad) * plan.batch)
    if isinstance(plan.sampling, CyclicPoisson):
        sets, chances = attendances(plan)
    else:
        # A fixed order is public.
        sets = np.array([attended])
        chances = np.ones(1)
    C = plan.strategy.dense().numpy()
    shifts = sets * plan.bound @ C.T / plan.sigma
    exponents = shifts @ (C @ out) / plan.sigma - (shifts * shifts).sum(1) / 2
    return float(np.log(chances @ np.exp(exponents)))


def shown(plan, runs):
    """Lower bound, of level 1 - 2e-4, on epsilon at the plan's delta; and the test's own delta at
    its epsilon.
    """
    seen = np.array([[attack(plan, 2 * i + there, there) for i in range(runs)] for there in (0, 1)])
    cut = plan.guarantee.epsilon
    away, there = (seen > cut).sum(1)
    low = beta.ppf(1e-4, there, runs - there + 1)
    high = beta.ppf(1 - 1e-4, away + 1, runs - away)
    epsilon = math.log(max(low - plan.guarantee.delta, 1e-9) / high)
    return epsilon, (there - math.exp(cut) * away) / runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fixed order", "Poisson, independent noise", "cyclic Poisson, 2 bands"]
)
def test_guarantee_a_canary_in_real_runs_shows_no_more_than_the_plan_says(name):
    """And a part of its delta; of a third of the noise it shows more: the control."""
    plan = named(choose(Iterates(4), 12, 3, epsilon=0.5, delta=0.1))[name]
    epsilon, delta = shown(plan, 400)
    assert epsilon <= 0.5
    assert delta > 0.02
    # The control: an attack that sees nothing would pass everything.
    epsilon, _ = shown(replace(plan, sigma=plan.sigma / 3), 400)
    assert epsilon > 0.5
