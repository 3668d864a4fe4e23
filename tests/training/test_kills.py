"""Runs whose processes are killed at random points of the code; and audits of what whole runs release."""

import itertools
import math
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from frameworks import squares
from scipy.stats import beta
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.training import Iterates, choose, clipped_sum
from torchdp.training.participation import CyclicPoisson
from torchdp.training.secret import Ledger

X = torch.linspace(-1, 1, 60)[:, None]
NAMES = dict(ordered="fixed order", independent="Poisson, independent noise", banded="cyclic Poisson, 4 bands")
KINDS = pytest.mark.parametrize("kind", NAMES)


@pytest.fixture(scope="module")
def plans():
    choice = choose(Iterates(8), 60, 15, epsilon=1.0, delta=1e-4)
    found = {one.name: one.protocol for one in choice.candidates}
    return {kind: found[name] for kind, name in NAMES.items()}


def net():
    made = nn.Linear(1, 1)
    for p in made.parameters():
        nn.init.constant_(p, 0.1)
    return made


def gradients(users, life):
    """Each life of a run has data of its own: noise that comes twice would publish their difference."""
    return [X[users][:, None] * (1 + life), X[users] - life]


def live(plan, place, life, lines, noted):
    """In a child: goes on with the run, tells of each gradient that is out, and dies at one of our lines."""
    left = lines

    def trace(frame, event, _):
        nonlocal left
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace if "torchdp" in frame.f_code.co_filename else None

    signal.alarm(60)
    torch.set_num_threads(1)
    if not noted:
        Ledger.record = lambda self, step: None
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


def killed(plan, place, generator, noted=True):
    """A run of many lives: what was out of each step, and how often it was killed."""
    place.mkdir()
    run = plan.start(net(), squares, noise=SeededNoise(int(generator.integers(2**31))), ledger=place / "ledger")
    start = run.secret_state()
    torch.save(start, place / "secret")
    for life in itertools.count():
        lines = int(generator.integers(1, 6000))
        child = os.fork()
        if not child:
            try:
                live(plan, place, life, lines, noted)
            finally:
                os._exit(0)
        if os.WTERMSIG(os.waitpid(child, 0)[1]) != signal.SIGKILL:
            break
    told = (place / "out").read_text().splitlines() if (place / "out").exists() else []
    return (
        start,
        [(int(step), int(life), np.frombuffer(bytes.fromhex(got))) for step, life, got in map(str.split, told)],
        life,
    )


def check(plan, place, start, told):
    """No step is out twice, the ledger knows all that are, and each has its own noise, as without any kill."""
    steps = [step for step, _, _ in told]
    known = [int(line.split()[0]) for line in (place / "ledger").read_text().splitlines()[1:] if line]
    assert len(set(steps)) == len(steps) and max(steps, default=-1) < max(known, default=0)
    whole, out = plan.resume(net(), squares, start, step=0), {step: rest for step, *rest in told}
    for users in whole:
        step = whole.step
        whole.release([torch.zeros(len(users), 1, 1), torch.zeros(len(users), 1)])
        if step in out:
            life, got = out[step]
            noise = torch.cat([p.grad.flatten() for p in whole.module.parameters()])
            total = clipped_sum(gradients(users, life), plan.bound)
            np.testing.assert_allclose(got, (noise + total / plan.batch).double().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # 240 processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@KINDS
def test_guarantee_no_step_is_out_twice_after_any_kill(plans, kind, tmp_path):
    plan, generator, kills, outs = plans[kind], np.random.default_rng(len(kind)), 0, 0
    for number in itertools.count():
        start, told, lives = killed(plan, tmp_path / str(number), generator)
        check(plan, tmp_path / str(number), start, told)
        kills, outs = kills + lives, outs + len(told)
        if kills >= 80:
            break
    assert outs > 20
    start, told, _ = killed(plan, tmp_path / "control", generator, noted=False)
    with pytest.raises(AssertionError):
        check(plan, tmp_path / "control", start, told)


def attack(plan, seed, canary):
    """The ln likelihood ratio of user 0, who is there or not, by what one run releases and what is public."""
    steps, run = plan.strategy.steps, plan.start(nn.Linear(1, 1, bias=False), squares, noise=SeededNoise(seed))
    attended, out = np.zeros(steps), []
    for users in run:
        attended[run.step] = 0 in users
        run.release([(1.5 * plan.bound * (users == 0) * canary)[:, None, None]])  # is clipped
        out.append(float(run.module.weight.grad) * plan.batch)
    sets, chances = attended[None], np.ones(1)  # a fixed order is public
    if isinstance(plan.sampling, CyclicPoisson):
        q, groups = plan.sampling.chance, plan.sampling.groups
        sets = np.array(list(itertools.product((0.0, 1.0), repeat=steps)))
        own = np.array([np.arange(steps) % groups == group for group in range(groups)])
        each = np.where(own, np.where(sets[:, None] > 0, q, 1 - q), sets[:, None] == 0)
        chances = each.prod(2).mean(1)
    C = plan.strategy.dense().numpy()
    shift = sets * plan.bound @ C.T / plan.sigma
    return float(np.log(chances @ np.exp(shift @ (C @ out) / plan.sigma - (shift * shift).sum(1) / 2)))


def shown(plan, runs):
    """Lower bound, of level 1 - 2e-4, on epsilon at the plan's delta; and the test's own delta at its epsilon."""
    seen = np.array([[attack(plan, 2 * i + there, there) for i in range(runs)] for there in (0, 1)])
    cut = plan.guarantee.epsilon
    away, there = (seen > cut).sum(1)
    low, high = beta.ppf(1e-4, there, runs - there + 1), beta.ppf(1 - 1e-4, away + 1, runs - away)
    return math.log(max(low - plan.guarantee.delta, 1e-9) / high), (there - math.exp(cut) * away) / runs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed order", "Poisson, independent noise", "cyclic Poisson, 2 bands"])
def test_guarantee_a_canary_in_real_runs_shows_no_more_than_the_plan_says(name):
    """And a part of its delta; of a third of the noise it shows more: the control."""
    choice = choose(Iterates(4), 12, 3, epsilon=0.5, delta=0.1)
    plan = {one.name: one.protocol for one in choice.candidates}[name]
    epsilon, delta = shown(plan, 400)
    assert epsilon <= 0.5 and delta > 0.02
    epsilon, _ = shown(replace(plan, sigma=plan.sigma / 3), 400)
    assert epsilon > 0.5
