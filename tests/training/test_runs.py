"""Runs that are killed and go on: the same batches, the same noise, no step twice; gradients from elsewhere."""

import copy
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from frameworks import squares
from laws import stored
from torch import nn
from torch.func import functional_call, grad, vmap

from torchdp.factorization import BandedStrategy
from torchdp.noise import SeededNoise
from torchdp.training import Iterates, choose
from torchdp.training.batches import Waiting
from torchdp.training.sums import clipped_rows

STEPS = 8


@pytest.fixture(scope="module")
def plans():
    choice = choose(Iterates(STEPS), 60, 15, epsilon=1.0, delta=1e-4)
    found = {one.name: one.protocol for one in choice.candidates}
    return {"ordered": found["fixed order"], "independent": found["Poisson, independent noise"],
            "banded": found["cyclic Poisson, 4 bands"]}  # fmt: skip


KINDS = pytest.mark.parametrize("kind", ["ordered", "independent", "banded"])
X = torch.linspace(-1, 1, 60)[:, None]


def model():
    torch.manual_seed(0)
    return nn.Linear(1, 1)


def train(run, steps=STEPS):
    """Who was in each step, and the gradients, at the parameters that these lead to."""
    seen, optimizer = [], torch.optim.SGD(run.module.parameters(), 0.1)
    for users in run:
        run.backward(X[users], 2 * X[users])
        seen.append((users.tolist(), torch.cat([p.grad.flatten() for p in run.module.parameters()])))
        optimizer.step()
        if len(seen) == steps:
            break
    return seen


def same(one, other):
    return all(a == b and torch.equal(g, h) for (a, g), (b, h) in zip(one, other, strict=True))


@KINDS
@pytest.mark.parametrize("stop", [0, 1, 5])
@pytest.mark.parametrize("kept", ["at the start", "at the end"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(plans, kind, stop, kept):
    plan = plans[kind]
    whole = train(plan.start(model(), squares, noise=SeededNoise(1)))
    run = plan.start(model(), squares, noise=SeededNoise(1))
    early = stored(run.secret_state())
    begun = train(run, stop) if stop else []
    secret = early if kept == "at the start" else stored(run.secret_state())
    net = model()
    net.load_state_dict(run.module.state_dict())
    state = stored(run.state_dict())
    assert state == {"step": stop}
    again = plan.resume(net, squares, secret, step=state["step"])
    assert again.step == stop and len(again) == STEPS - stop
    assert same(begun + train(again), whole)
    assert list(again) == []
    other = train(plan.start(model(), squares, noise=SeededNoise(2)))
    assert not any(torch.equal(g, h) for (_, g), (_, h) in zip(whole, other, strict=True))


@KINDS
def test_steps_that_the_ledger_knows_are_never_drawn_again(plans, kind, tmp_path):
    plan, path = plans[kind], tmp_path / "ledger"
    whole = train(plan.start(model(), squares, noise=SeededNoise(1)))
    run = plan.start(model(), squares, noise=SeededNoise(1), ledger=path)
    secret = run.secret_state()
    train(run, 3)
    users = next(iter(run))

    def killed(total):
        raise KeyboardInterrupt

    run.noise.forward = killed  # after the note, before the noise
    with pytest.raises(KeyboardInterrupt):
        run.backward(X[users], 2 * X[users])
    again = plan.resume(model(), squares, secret, ledger=path)  # with the model and the step of a checkpoint at 0
    assert again.step == 4 and again.spent.epsilon == plan.spent(4).epsilon
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
        file.write("\n1")  # of 1234
    train(plans["ordered"].resume(model(), squares, secret, ledger=path), 1)
    assert plans["ordered"].resume(model(), squares, secret, ledger=path).step == 6
    path.write_text(path.read_text() + "\0")
    plans["ordered"].resume(model(), squares, secret, ledger=path)
    path.write_text(path.read_text() + "\n\0")
    with pytest.raises(ValueError, match="ledger is damaged"):
        plans["ordered"].resume(model(), squares, secret, ledger=path)


def test_guarantee_two_runs_with_one_ledger_never_release_one_step_twice(plans, tmp_path):
    plan, path = plans["ordered"], tmp_path / "ledger"
    runs = [plan.start(model(), squares, ledger=path)]
    runs += [plan.resume(model(), squares, runs[0].secret_state(), ledger=path) for _ in range(2)]
    batches, out = [iter(run) for run in runs], []
    users = [next(each) for each in batches]
    for i in (0, 1, 1, 2):
        try:
            runs[i].backward(X[users[i]], 2 * X[users[i]])
            out.append(i)
        except RuntimeError as error:
            assert "another run has spent step 1" in str(error) and runs[i].step == 0
    assert out == [0]
    train(runs[0], 2)
    late = plan.resume(model(), squares, runs[0].secret_state(), ledger=path)
    assert late.step == 3 and train(late, 1)
    with pytest.raises(RuntimeError, match="another run has spent step 4"):
        train(runs[0], 1)


@KINDS
def test_guarantee_a_batch_serves_one_step_whatever_interrupts_copies_or_competes(plans, kind, monkeypatch):
    run = plans[kind].start(model(), squares)
    batches, noise = iter(run), run.noise.forward
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
        run.batches.step, run._waiting = step, Waiting()
        assert torch.equal(next(iter(run)), users) and run.batches.step == 2
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


CHILD = """
import os, signal, sys, torch
sys.path[:0] = sys.argv[1:2]
from training.test_runs import X, model, squares
plan = torch.load(sys.argv[2] + "/plan", weights_only=False)
run = plan.start(model(), squares, ledger=sys.argv[2] + "/ledger")
torch.save(run.secret_state(), sys.argv[2] + "/secret")
for users in run:
    run.backward(X[users], 2 * X[users])
    if run.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_what_its_run_needs(plans, tmp_path):
    plan = plans["banded"]
    torch.save(plan, tmp_path / "plan")
    done = subprocess.run([sys.executable, "-c", CHILD, Path(__file__).parent.parent, tmp_path], check=False)
    secret = torch.load(tmp_path / "secret", weights_only=True)
    again = plan.resume(model(), squares, secret, ledger=tmp_path / "ledger")
    assert done.returncode == -signal.SIGKILL and again.step == 3
    whole = plan.resume(model(), squares, secret, step=0)
    train(whole, 3)
    for one, other in zip(train(again), train(whole), strict=True):
        assert one[0] == other[0]
    assert again.noise.secret_state()["key"].tolist() == whole.noise.secret_state()["key"].tolist()
    torch.testing.assert_close(again.secret_state()["past"], whole.secret_state()["past"], rtol=0, atol=0)


@KINDS
def test_the_state_dict_and_the_ledger_hold_no_secret(plans, kind, tmp_path):
    run = plans[kind].start(model(), squares, ledger=tmp_path / "ledger")
    train(run, 2)
    secret = run.secret_state()
    text = (tmp_path / "ledger").read_text()
    assert bytes(secret["key"].tolist()).hex() not in text and run.state_dict() == {"step": 2}
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["1", "2"]


def test_guarantee_what_is_spent_rises_to_the_plan_s(plans):
    for plan in plans.values():
        spent = [plan.spent(t).epsilon for t in range(STEPS + 1)]
        assert spent[0] == 0 and spent == sorted(spent) and spent[1] > 0.05
        assert spent[-1] == pytest.approx(plan.guarantee.epsilon, rel=1e-6)


def test_a_secret_state_of_another_plan_is_refused(plans):
    plan = plans["banded"]
    secret = plan.start(model(), squares).secret_state()
    # the same bytes
    once, diagonal = (BandedStrategy(torch.ones(shape).double(), 8) for shape in ((1, 8), (8, 1)))
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


def per_example(net, x, y):
    def one(parameters, x, y):
        return squares(functional_call(net, parameters, (x[None],)), y[None]).sum()

    found = vmap(grad(one), in_dims=(None, 0, 0))({k: p.detach() for k, p in net.named_parameters()}, x, y)
    return list(found.values())


@KINDS
def test_gradients_made_elsewhere_are_released_as_one_s_own(plans, kind):
    plan, nets = plans[kind], (model(), model())
    runs = [plan.start(net, squares, noise=SeededNoise(1)) for net in nets]
    for users, others in zip(*runs, strict=True):
        assert torch.equal(users, others)
        mean = squares(nets[0](X[users]), 2 * X[users]).mean()
        torch.testing.assert_close(runs[0].backward(X[users], 2 * X[users]), mean.detach(), equal_nan=True)
        gradients = per_example(nets[1], X[users], 2 * X[users]) if len(users) else [
            p.new_empty(0, *p.shape) for p in nets[1].parameters()
        ]  # fmt: skip
        if len(users) > 1:
            with pytest.raises(ValueError, match="gradients must be those of all the batch's"):
                runs[1].release([g[1:] for g in gradients])
            with pytest.raises(ValueError, match="must be \\(n, \\*shape\\), for parameters"):
                runs[1].release(gradients[::-1])
            with pytest.raises(ValueError, match=r"not lists.*zero_grad\(\) of its module"):
                runs[1].release([[g, g] for g in gradients])
        runs[1].release(gradients)
        for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_dropout_is_drawn_for_each_user(plans):
    net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    run = plans["independent"].start(net, squares)
    for users in run:
        run.backward(X[users], 2 * X[users])
    assert run.step == STEPS and all(p.grad.isfinite().all() for p in net.parameters())


def test_what_is_released_is_clipped(plans):
    """A user with a gradient of any size moves a step by the bound over the batch."""
    plan, moved = plans["ordered"], []
    for size in (0.0, 1e6):
        net = model()
        run = plan.start(net, squares, noise=SeededNoise(1))
        users = next(iter(run))
        g = [torch.zeros(len(users), *p.shape) for p in net.parameters()]
        g[0][0] = size
        run.release(g)
        moved.append(torch.cat([p.grad.flatten() for p in net.parameters()]).double())
    assert float((moved[1] - moved[0]).norm()) * plan.batch == pytest.approx(plan.bound, rel=1e-4)
