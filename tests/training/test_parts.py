"""Batches that are larger than memory, in parts: one sum, one noise, at the last part and not before."""

import threading
from dataclasses import replace

import pytest
import torch
from frameworks import squares
from torch import nn
from torch.utils.data import TensorDataset

from torchdp.noise import SeededNoise
from torchdp.training import CyclicPoisson, Iterates, choose

STEPS = 6
X = torch.linspace(-1, 1, 60)[:, None]


@pytest.fixture(scope="module")
def plans():
    choice = choose(Iterates(STEPS), 60, 15, epsilon=1.0, delta=1e-4)
    return {one.name: one.protocol for one in choice.candidates}


def started(plan, **options):
    torch.manual_seed(0)
    return plan.start(nn.Linear(1, 1), squares, noise=SeededNoise(3), **options)


def gradient(run):
    return torch.cat([p.grad.flatten() for p in run.module.parameters()])


def whole(plan):
    run, seen = started(plan), []
    for users in run:
        run.backward(X[users], 2 * X[users])
        seen.append(gradient(run))
    return torch.stack(seen)


def by_hand(run, size):
    for users in run:
        parts = users.split(size)
        for part in parts:
            before = [p.grad for p in run.module.parameters()]
            assert run.step == len(run.seen)
            run.backward(X[part], 2 * X[part], more=part is not parts[-1])
            assert part is parts[-1] or all(
                p.grad is g for p, g in zip(run.module.parameters(), before, strict=True)
            )
        yield


def by_loader(run, size):
    for step in run.loader(TensorDataset(X, 2 * X), max_rows=size):
        for x, y in step:
            assert len(x) <= size and run.step == len(run.seen)
            run.backward(x, y)
        yield


def elsewhere(run, size):
    """Of a linear model 2 (output - target) times (x, 1)."""
    for users in run:
        parts = users.split(size)
        for part in parts:
            g = 2 * (run.module(X[part]) - 2 * X[part]).detach()
            run.release([(g * X[part])[:, None], g], more=part is not parts[-1])
        yield


@pytest.mark.parametrize("kind", ["fixed order", "Poisson, independent noise"])
@pytest.mark.parametrize("size", [1, 4, 15, 99])
@pytest.mark.parametrize("way", [by_hand, by_loader, elsewhere])
def test_parts_of_any_size_have_the_sum_and_the_noise_of_the_whole(plans, kind, size, way, tmp_path):
    run = started(plans[kind], ledger=tmp_path / "ledger", at_once=2)
    run.seen = []
    for _ in way(run, size):
        run.seen.append(gradient(run))
        assert len((tmp_path / "ledger").read_text().splitlines()) == 1 + run.step
    torch.testing.assert_close(torch.stack(run.seen), whole(plans[kind]), rtol=1e-5, atol=1e-6)


def test_a_step_must_be_used_up_and_by_no_more_than_its_rows(plans):
    run = started(plans["fixed order"])
    steps = run.loader(TensorDataset(X, 2 * X), max_rows=4)
    first = next(steps)
    x, y = next(first)
    run.backward(x, y)
    with pytest.raises(ValueError, match="all the batch's 15 users, 4 of which were used, not 12"):
        run.backward(X[:12], X[:12])
    with pytest.raises(RuntimeError, match="4 of 15 rows used"):
        next(steps)
    for x, y in first:
        run.backward(x, y)
    assert run.step == 1
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(x, y)
    users = next(iter(run))
    run.backward(X[users], X[users], more=True)  # whose last part never comes
    with pytest.raises(RuntimeError, match="15 of 15 rows used"):
        next(iter(run))
    with pytest.raises(ValueError, match="15 of which were used, not 1"):
        run.backward(X[:1], X[:1])
    with pytest.raises(ValueError, match="max_rows"):
        run.loader(TensorDataset(X), max_rows=0)
    assert run.step == 1


def test_rows_that_a_loader_left_unread_are_of_no_later_step(plans):
    run, expected = started(plans["fixed order"]), whole(plans["fixed order"])
    seen = []
    for step in run.loader(TensorDataset(X, 2 * X), max_rows=4):
        users = run.batches._order[run.step % 4 * 15 :][:15]  # read otherwise: the loader's own parts stay unread
        next(step)
        for part in users.split(4):
            run.backward(X[part], 2 * X[part])
        with pytest.raises(RuntimeError, match="no batch waits"):
            next(step)
        seen.append(gradient(run))
    torch.testing.assert_close(torch.stack(seen), expected, rtol=1e-5, atol=1e-6)


def test_a_batch_of_nobody_releases_noise_by_itself(plans):
    run = started(replace(plans["Poisson, independent noise"], sampling=CyclicPoisson(1, 1e-9)))
    for step in run.loader(TensorDataset(X, X), max_rows=4):
        assert not list(step) and gradient(run).abs().min() > 0
    assert run.step == STEPS


def test_guarantee_a_part_counts_once_whatever_interrupts_it(plans, monkeypatch):
    """Before it is counted the same rows may come again; when the noise is drawn the step is over."""
    run, expected = started(plans["fixed order"]), whole(plans["fixed order"])
    clip, forward = run._clipper, run.noise.forward

    def interrupted(*arguments, **options):
        (clip if options else forward)(*arguments, **options)
        raise KeyboardInterrupt

    users = next(iter(run))
    parts = [(X[part], 2 * X[part]) for part in users.split(5)]
    for last, (x, y) in zip((False, False, True), parts, strict=True):
        monkeypatch.setattr(run, "_clipper", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.backward(x, y, more=not last)
        monkeypatch.setattr(run, "_clipper", clip)
        run.backward(x, y, more=not last)
    torch.testing.assert_close(gradient(run), expected[0], rtol=1e-5, atol=1e-6)
    users = next(iter(run))
    monkeypatch.setattr(run.noise, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.backward(X[users], X[users])
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(X[users], X[users])


def test_threads_share_the_parts_of_a_step(plans):
    run, expected = started(plans["fixed order"]), whole(plans["fixed order"])
    users = next(iter(run))
    barrier = threading.Barrier(14)

    def use(user):
        barrier.wait()
        run.backward(X[user : user + 1], 2 * X[user : user + 1], more=True)

    threads = [threading.Thread(target=use, args=(int(user),)) for user in users[1:]]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    run.backward(X[users[:1]], 2 * X[users[:1]])
    torch.testing.assert_close(gradient(run), expected[0], rtol=1e-5, atol=1e-6)


def test_a_run_that_is_killed_amid_a_step_takes_it_again(plans, tmp_path):
    plan = plans["Poisson, independent noise"]
    run, expected = started(plan, ledger=tmp_path / "ledger"), whole(plan)
    secret, steps = run.secret_state(), run.loader(TensorDataset(X, 2 * X), max_rows=4)
    for x, y in next(steps):
        run.backward(x, y)
    run.backward(*next(next(steps)))
    torch.manual_seed(0)
    again = plan.resume(nn.Linear(1, 1), squares, secret, ledger=tmp_path / "ledger")
    assert again.step == 1
    again.seen = [expected[0]]
    for _ in by_loader(again, 4):
        again.seen.append(gradient(again))
    torch.testing.assert_close(torch.stack(again.seen), expected, rtol=1e-5, atol=1e-6)
