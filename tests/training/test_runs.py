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
from functools import partial

import numpy as np
import pytest
import torch
from laws import stored
from scipy.stats import beta
from torch import nn
from trained import KINDS, STEPS, X, gradient, model, plans, squares

from torchdp.factorization import BandedStrategy
from torchdp.noise import SeededNoise
from torchdp.training import AdaptiveBound, Iterates, choose, clipped_sum
from torchdp.training.batches import Waiting
from torchdp.training.participation import CyclicPoisson
from torchdp.training.sums import clipped_rows


def train(run, steps=STEPS):
    """Who was in each step, and the gradients, at the parameters that these lead to."""
    seen, optimizer = [], torch.optim.SGD(run.module.parameters(), 0.1)
    for users in run:
        run.backward(X[users], 2 * X[users])
        seen.append((users.tolist(), gradient(run)))
        optimizer.step()
        if len(seen) == steps:
            break
    return seen


def same(one, other):
    """A new run takes its first batch in parts, whose sums round otherwise."""
    return all(a == b and torch.allclose(g, h) for (a, g), (b, h) in zip(one, other, strict=True))


@functools.cache
def uninterrupted(kind, adaptive):
    """A plan, and its run that was not killed."""
    plan = plans()[kind].adapted(AdaptiveBound()) if adaptive else plans()[kind]
    return plan, train(plan.start(model(), squares, noise=SeededNoise(1)))


@KINDS
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    ("stop", "kept"),
    [(0, "at the end"), (1, "at the start"), (5, "at the start"), (5, "at the end")],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(kind, adaptive, stop, kept):
    plan, whole = uninterrupted(kind, adaptive)
    run = plan.start(model(), squares, noise=SeededNoise(1))
    early = stored(run.secret_state())
    begun = train(run, stop) if stop else []
    secret = early if kept == "at the start" else stored(run.secret_state())
    net = model()
    net.load_state_dict(run.module.state_dict())
    state = stored(run.state_dict())
    assert state == {"step": stop} | ({"bound": run.bound} if adaptive else {})
    # the secret state at the end knows the bound by itself
    again = plan.resume(net, squares, secret, step=stop if kept == "at the end" else state)
    assert again.step == stop
    assert len(again) == STEPS - stop
    assert again.bound == run.bound
    assert (run.bound != plan.bound) == (adaptive and stop > 0)
    assert same(begun + train(again), whole)
    assert list(again) == []


@KINDS
def test_steps_that_the_ledger_knows_are_never_drawn_again(kind, tmp_path):
    plan, whole = uninterrupted(kind, False)
    path = tmp_path / "ledger"
    run = plan.start(model(), squares, noise=SeededNoise(1), ledger=path)
    secret = run.secret_state()
    train(run, 3)
    users = next(iter(run))

    def killed(total):
        raise KeyboardInterrupt

    # after the note, before the noise
    run.noise.forward = killed
    with pytest.raises(KeyboardInterrupt):
        run.backward(X[users], 2 * X[users])
    # with the model and the step of a checkpoint at 0
    again = plan.resume(model(), squares, secret, ledger=path)
    assert again.step == 4
    assert again.spent.epsilon == plan.spent(4).epsilon
    for (users, _), (expected, _) in zip(train(again), whole[4:], strict=True):
        assert users == expected
    assert plan.resume(model(), squares, secret, ledger=path).step == STEPS
    with pytest.raises(FileExistsError):
        plan.start(model(), squares, ledger=path)
    other = plan.start(model(), squares)
    with pytest.raises(ValueError, match="ledger is of another run"):
        plan.resume(model(), squares, other.secret_state(), ledger=path)


def test_a_line_that_a_kill_cut_short_does_not_swallow_the_next(plans, tmp_path):
    path = tmp_path / "ledger"
    run = plans["ordered"].start(model(), squares, ledger=path)
    secret = run.secret_state()
    train(run, 5)
    with path.open("a") as file:
        # of 1234
        file.write("\n1")
    train(plans["ordered"].resume(model(), squares, secret, ledger=path), 1)
    assert plans["ordered"].resume(model(), squares, secret, ledger=path).step == 6
    path.write_text(path.read_text() + "\0")
    plans["ordered"].resume(model(), squares, secret, ledger=path)
    path.write_text(path.read_text() + "\n\0")
    with pytest.raises(ValueError, match="ledger is damaged"):
        plans["ordered"].resume(model(), squares, secret, ledger=path)


def test_guarantee_two_runs_with_one_ledger_never_release_one_step_twice(plans, tmp_path):
    plan = plans["ordered"]
    path = tmp_path / "ledger"
    runs = [plan.start(model(), squares, ledger=path)]
    runs += [plan.resume(model(), squares, runs[0].secret_state(), ledger=path) for _ in range(2)]
    batches, out = [iter(run) for run in runs], []
    users = [next(each) for each in batches]
    for i in (0, 1, 1, 2):
        try:
            runs[i].backward(X[users[i]], 2 * X[users[i]])
            out.append(i)
        except RuntimeError as error:
            assert "another run has spent step 1" in str(error)
            assert runs[i].step == 0
    assert out == [0]
    train(runs[0], 2)
    late = plan.resume(model(), squares, runs[0].secret_state(), ledger=path)
    assert late.step == 3
    assert train(late, 1)
    with pytest.raises(RuntimeError, match="another run has spent step 4"):
        train(runs[0], 1)


@KINDS
def test_guarantee_a_batch_serves_one_step_whatever_interrupts_copies_or_competes(
    plans, kind, monkeypatch
):
    run = plans[kind].start(model(), squares)
    batches = iter(run)
    noise = run.noise.forward
    users = next(batches)
    g = [torch.zeros(len(users), *p.shape) for p in run.module.parameters()]

    def interrupted(total, after):
        if after:
            noise(total)
        raise KeyboardInterrupt

    for after in (False, True):
        run.noise.forward = partial(interrupted, after=after)
        with pytest.raises(KeyboardInterrupt):
            run.release(g)
        assert run.step == after
    run.noise.forward = noise
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.release(g)
    users = next(batches)
    for step in (2, 4):  # as an interrupt could leave them before the batch is out
        run.batches.step = step
        run._waiting = Waiting()
        assert torch.equal(next(iter(run)), users)
        assert run.batches.step == 2
    g = [torch.zeros(len(users), *p.shape) for p in run.module.parameters()]

    def clipped(gradients, bound):  # another thread releases the batch while this one clips it
        monkeypatch.setattr("torchdp.training.run.clipped_rows", clipped_rows)
        other = threading.Thread(target=run.release, args=(g,))
        other.start()
        other.join()
        return clipped_rows(gradients, bound)

    monkeypatch.setattr("torchdp.training.run.clipped_rows", clipped)
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.release(g)
    assert run.step == run.batches.step == 2
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can not be copied"):
            copied(run)


def test_a_layer_that_is_unfrozen_later_is_refused_before_its_step_is_spent(plans):
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    net[1].requires_grad_(False)
    run = plans["ordered"].start(net, squares)
    users = next(iter(run))
    net[1].requires_grad_(True)
    with pytest.raises(ValueError, match="other trainable parameters"):
        run.backward(X[users], X[users])
    assert run.step == 0


def test_the_state_dict_and_the_ledger_hold_no_secret(plans, tmp_path):
    run = plans["banded"].start(model(), squares, ledger=tmp_path / "ledger")
    train(run, 2)
    secret = run.secret_state()
    text = (tmp_path / "ledger").read_text()
    assert bytes(secret["key"].tolist()).hex() not in text
    assert run.state_dict() == {"step": 2}
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["1", "2"]


def test_guarantee_what_is_spent_rises_to_the_plan_s(plans):
    for plan in plans.values():
        spent = [plan.spent(t).epsilon for t in range(STEPS + 1)]
        assert spent[0] == 0
        assert spent == sorted(spent)
        assert spent[1] > 0.05
        assert spent[-1] == pytest.approx(plan.guarantee.epsilon, rel=1e-6)


def test_a_secret_state_of_another_plan_is_refused(plans):
    plan = plans["banded"]
    secret = plan.start(model(), squares).secret_state()
    # the same bytes
    once = BandedStrategy(torch.ones((1, 8)).double(), 8)
    diagonal = BandedStrategy(torch.ones((8, 1)).double(), 8)
    assert replace(plan, strategy=once).digest() != replace(plan, strategy=diagonal).digest()
    for other in (replace(plan, sigma=2 * plan.sigma), plans["ordered"], replace(plan, users=61)):
        with pytest.raises(ValueError, match="secret is of another plan"):
            other.resume(model(), squares, secret, step=0)
    with pytest.raises(ValueError, match="step or ledger must say what was released"):
        plan.resume(model(), squares, secret)
    for wrong, named in (({}, "secret must be"), ({**secret, "key": secret["key"][:3]}, "key must be"),
                         ({**secret, "step": 99}, "step must be")):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            plan.resume(model(), squares, wrong, step=0)


def test_gradients_made_elsewhere_are_those_of_the_batch_and_losses_are_means(plans):
    run = plans["ordered"].start(model(), squares)
    users = next(iter(run))
    g = [torch.zeros(len(users), *p.shape) for p in run.module.parameters()]
    for wrong, message in (
        ([rows[1:] for rows in g], "gradients must be those of all the batch's"),
        (g[::-1], r"must be \(n, \*shape\), for parameters"),
        ([[rows, rows] for rows in g], r"not lists.*zero_grad\(\) of its module"),
    ):
        with pytest.raises(ValueError, match=message):
            run.release(wrong)
    mean = squares(run.module(X[users]), 2 * X[users]).mean()
    torch.testing.assert_close(run.backward(X[users], 2 * X[users]), mean.detach())


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


def killed(plan, place, generator):
    """A run of many lives: what was out of each step, and how often it was killed."""
    place.mkdir()
    run = plan.start(
        net(), squares, noise=SeededNoise(int(generator.integers(2**31))), ledger=place / "ledger"
    )
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
    told = (place / "out").read_text().splitlines() if (place / "out").exists() else []
    rows = [line.split() for line in told]
    outs = [(int(step), int(life), np.frombuffer(bytes.fromhex(got))) for step, life, got in rows]
    return start, outs, life


def check(plan, place, start, told):
    """No step is out twice, the ledger knows all that are, and each has its own noise, as without
    any kill.
    """
    steps = [step for step, _, _ in told]
    known = [
        int(line.split()[0]) for line in (place / "ledger").read_text().splitlines()[1:] if line
    ]
    assert len(set(steps)) == len(steps)
    assert max(steps, default=-1) < max(known, default=0)
    whole = plan.resume(net(), squares, start, step=0)
    out = {step: rest for step, *rest in told}
    for users in whole:
        step = whole.step
        whole.release([torch.zeros(len(users), 1, 1), torch.zeros(len(users), 1)])
        if step in out:
            life, got = out[step]
            noise = torch.cat([p.grad.flatten() for p in whole.module.parameters()])
            total = clipped_sum(gradients(users, life), plan.bound)
            np.testing.assert_allclose(
                got, (noise + total / plan.batch).double().numpy(), rtol=1e-4, atol=1e-5
            )


@pytest.mark.slow  # 240 processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@KINDS
def test_guarantee_no_step_is_out_twice_after_any_kill(plans, kind, tmp_path):
    plan = plans[kind]
    generator = np.random.default_rng(len(kind))
    kills = 0
    outs = 0
    for number in itertools.count():
        start, told, lives = killed(plan, tmp_path / str(number), generator)
        check(plan, tmp_path / str(number), start, told)
        kills = kills + lives
        outs = outs + len(told)
        if kills >= 80:
            break
    assert outs > 20


def attack(plan, seed, canary):
    """The ln likelihood ratio of user 0, who is there or not, by what one run releases and what is
    public.
    """
    steps = plan.strategy.steps
    run = plan.start(nn.Linear(1, 1, bias=False), squares, noise=SeededNoise(seed))
    attended, out = np.zeros(steps), []
    for users in run:
        attended[run.step] = 0 in users
        # is clipped
        run.release([(1.5 * plan.bound * (users == 0) * canary)[:, None, None]])
        out.append(float(run.module.weight.grad) * plan.batch)
    # a fixed order is public
    sets = attended[None]
    chances = np.ones(1)
    if isinstance(plan.sampling, CyclicPoisson):
        q = plan.sampling.chance
        groups = plan.sampling.groups
        sets = np.array(list(itertools.product((0.0, 1.0), repeat=steps)))
        own = np.array([np.arange(steps) % groups == group for group in range(groups)])
        each = np.where(own, np.where(sets[:, None] > 0, q, 1 - q), sets[:, None] == 0)
        chances = each.prod(2).mean(1)
    C = plan.strategy.dense().numpy()
    shift = sets * plan.bound @ C.T / plan.sigma
    return float(
        np.log(chances @ np.exp(shift @ (C @ out) / plan.sigma - (shift * shift).sum(1) / 2))
    )


def shown(plan, runs):
    """Lower bound, of level 1 - 2e-4, on epsilon at the plan's delta; and the test's own delta at
    its epsilon.
    """
    seen = np.array([[attack(plan, 2 * i + there, there) for i in range(runs)] for there in (0, 1)])
    cut = plan.guarantee.epsilon
    away, there = (seen > cut).sum(1)
    low = beta.ppf(1e-4, there, runs - there + 1)
    high = beta.ppf(1 - 1e-4, away + 1, runs - away)
    return math.log(max(low - plan.guarantee.delta, 1e-9) / high), (
        there - math.exp(cut) * away
    ) / runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fixed order", "Poisson, independent noise", "cyclic Poisson, 2 bands"]
)
def test_guarantee_a_canary_in_real_runs_shows_no_more_than_the_plan_says(name):
    """And a part of its delta; of a third of the noise it shows more: the control."""
    choice = choose(Iterates(4), 12, 3, epsilon=0.5, delta=0.1)
    plan = {one.name: one.protocol for one in choice.candidates}[name]
    epsilon, delta = shown(plan, 400)
    assert epsilon <= 0.5
    assert delta > 0.02
    epsilon, _ = shown(replace(plan, sigma=plan.sigma / 3), 400)
    assert epsilon > 0.5
