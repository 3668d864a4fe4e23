"""Rows for a run's batches: read ahead, in parts larger than memory, or of one's own loader that
keeps to a rule.
"""

import functools
import threading
from collections import UserDict
from dataclasses import replace

import pytest
import torch
import trained
from rules import permitted
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from trained import STEPS, X, gradient, model, squares, started

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.training import ONCE, CyclicPoisson, Epochs, Iterates, Passes, Separated, choose

USERS = 30
RULE = Separated(3, 2)
# three or more steps apart, twice at most
BATCHES = [[i, i + 10, i + 20] for i in (0, 1, 2, 3, 0, 1, 2, 4)]


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(X)

    def __len__(self):
        return 60


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(1, 1)
        nn.init.ones_(self.part.weight), nn.init.zeros_(self.part.bias)

    def forward(self, input):
        return self.part(input)


class Named(Dataset):
    """Rows by name, as a table of texts has them."""

    def __len__(self):
        return 60

    def __getitem__(self, user):
        return {"input": X[user]}, 2 * X[user]


@pytest.mark.parametrize("kind", ["ordered", "independent"])
@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.filterwarnings("ignore:.*fork"))]
)
def test_a_loader_reads_the_batches_of_the_run_ahead(plans, kind, workers):
    run = plans[kind].start(Wrapped(), squares, noise=SeededNoise(4))
    expected = []
    for users in run:
        run.backward({"input": X[users]}, 2 * X[users])
        expected.append((users, gradient(run)))
    run = plans[kind].start(Wrapped(), squares, noise=SeededNoise(4))
    seen, before = [], torch.get_rng_state()
    for _ in range(2):  # the second one goes on
        for named, targets in run.loader(Named(), num_workers=workers):
            run.backward(named, targets)
            seen.append((named["input"].flatten(), gradient(run)))
            if len(seen) == 3:
                break
    assert run.step == len(seen) == STEPS
    assert not list(run.loader(Named()))
    for (rows, found), (users, wanted) in zip(seen, expected, strict=True):
        assert torch.equal(rows, X[users, 0])
        assert torch.equal(found, wanted)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_iteration_is_one_pass_or_the_rest_of_one(plans):
    run = started(plans["ordered"])
    seen = []
    passes = Passes(run, TensorDataset(X, 2 * X))
    run.backward(*next(iter(passes)))
    for _ in range(3):
        before = run.step
        for batch in passes:
            run.backward(*batch)
        seen.append(run.step - before)
    assert len(passes) == 4
    assert seen == [3, 4, 0]


def test_a_batch_of_nobody_has_tensors_of_no_rows(plans):
    plan = replace(plans["independent"], sampling=CyclicPoisson(1, 1e-9))
    run = plan.start(Wrapped(), squares)
    named, targets = next(run.loader(Named()))
    assert run.backward(named, targets).isnan()
    assert named["input"].shape == targets.shape == (0, 1)
    assert run.step == 1

    def texts(rows):
        return UserDict(x=torch.ones(len(rows), 2), y=["a"] * len(rows), most=torch.tensor(2))

    empty = next(plan.start(Wrapped(), squares).loader(Named(), collate_fn=texts))
    assert type(empty) is UserDict
    assert empty["x"].shape == (0, 2)
    assert empty["y"] == []
    assert empty["most"] == 2


def test_a_loader_refuses_what_does_not_fit(plans):
    run = plans["independent"].start(Wrapped(), squares)
    for data, options, message in (
        (X[:9], {}, "data must hold one row for each of the plan's 60 users, not 9"),
        (X, {"shuffle": True, "batch_size": 3}, "batch_size, shuffle must be left out"),
        # a slow worker's batch would come later
        (X, {"num_workers": 2, "in_order": False}, "in_order must be left out"),
        (X, {"max_rows": 0}, "max_rows"),
        (iter(X), {}, "data must be a data set with a length"),
        (Streamed(), {}, "data must be a data set with a length"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            run.loader(data, **options)
    # rows by number are enough
    assert len(next(plans["ordered"].start(Wrapped(), squares).loader(X))) == 15
    first, second, third = (run.loader(TensorDataset(X, 2 * X)) for _ in range(3))
    batch = next(first)
    with pytest.raises(RuntimeError, match="was not used"):
        next(second)
    run.backward(*batch)
    with pytest.raises(RuntimeError, match="this loader at 0"):
        next(third)


def whole(plan):
    run, seen = started(plan), []
    for users in run:
        run.backward(X[users], 2 * X[users])
        seen.append(gradient(run))
    return torch.stack(seen)


@functools.cache
def whole_of(kind):
    return whole(trained.plans()[kind])


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
            assert len(x) <= size
            assert run.step == len(run.seen)
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


@pytest.mark.parametrize("kind", ["ordered", "independent"])
@pytest.mark.parametrize("size", [1, 4, 15])  # 15: the whole batch of the fixed order
@pytest.mark.parametrize("way", [by_hand, by_loader, elsewhere])
def test_parts_of_any_size_have_the_sum_and_the_noise_of_the_whole(
    plans, kind, size, way, tmp_path
):
    run = started(plans[kind], ledger=tmp_path / "ledger", at_once=2)
    run.seen = []
    for _ in way(run, size):
        run.seen.append(gradient(run))
        assert len((tmp_path / "ledger").read_text().splitlines()) == 1 + run.step
    torch.testing.assert_close(torch.stack(run.seen), whole_of(kind), rtol=1e-5, atol=1e-6)


def test_a_step_must_be_used_up_and_by_no_more_than_its_rows(plans):
    run = started(plans["ordered"])
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
    # whose last part never comes
    run.backward(X[users], X[users], more=True)
    with pytest.raises(RuntimeError, match="15 of 15 rows used"):
        next(iter(run))
    with pytest.raises(ValueError, match="15 of which were used, not 1"):
        run.backward(X[:1], X[:1])
    assert run.step == 1


def test_rows_that_a_loader_left_unread_are_of_no_later_step(plans):
    run = started(plans["ordered"])
    expected = whole(plans["ordered"])
    seen = []
    for step in run.loader(TensorDataset(X, 2 * X), max_rows=4):
        # read otherwise: the loader's own parts stay unread
        users = run.batches._order[run.step % 4 * 15 :][:15]
        next(step)
        for part in users.split(4):
            run.backward(X[part], 2 * X[part])
        with pytest.raises(RuntimeError, match="no batch waits"):
            next(step)
        seen.append(gradient(run))
    torch.testing.assert_close(torch.stack(seen), expected, rtol=1e-5, atol=1e-6)


def test_a_batch_of_nobody_releases_noise_by_itself(plans):
    run = started(replace(plans["independent"], sampling=CyclicPoisson(1, 1e-9)))
    for step in run.loader(TensorDataset(X, X), max_rows=4):
        assert not list(step)
        assert gradient(run).abs().min() > 0
    assert run.step == STEPS


def test_guarantee_a_part_counts_once_whatever_interrupts_it(plans, monkeypatch):
    """Before it is counted the same rows may come again; when the noise is drawn the step is
    over.
    """
    run = started(plans["ordered"])
    expected = whole(plans["ordered"])
    clip = run._clipper
    forward = run.noise.forward

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
    run = started(plans["ordered"])
    expected = whole(plans["ordered"])
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
    plan = plans["independent"]
    run = started(plan, ledger=tmp_path / "ledger")
    expected = whole(plan)
    secret = run.secret_state()
    steps = run.loader(TensorDataset(X, 2 * X), max_rows=4)
    for x, y in next(steps):
        run.backward(x, y)
    run.backward(*next(next(steps)))
    again = plan.resume(model(), squares, secret, ledger=tmp_path / "ledger")
    assert again.step == 1
    again.seen = [expected[0]]
    for _ in by_loader(again, 4):
        again.seen.append(gradient(again))
    torch.testing.assert_close(torch.stack(again.seen), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def choice():
    return choose(Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4, participation=RULE)


def admitted(run, batches):
    for users in batches:
        mine = run.admit(users)
        assert mine.tolist() == list(users)
        run.backward(X[mine], 2 * X[mine])
        yield gradient(run)


@pytest.mark.parametrize("rule", [RULE, ONCE, Epochs(3), Separated(20, 1)])
def test_guarantee_no_user_of_the_rule_moves_further_than_the_noise_is_made_for(rule):
    """Every permitted set of steps, by enumeration, with all signs alike and in turns: what C makes
    of it.
    """
    for one in choose(
        Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4, participation=rule
    ).candidates:
        plan = one.protocol
        C = one.protocol.strategy.dense()
        worst = 0.0
        for chosen in map(list, permitted(rule, STEPS)):
            alike = C[:, chosen].sum(1).norm()
            in_turns = (C[:, chosen[0::2]].sum(1) - C[:, chosen[1::2]].sum(1)).norm()
            worst = max(worst, float(alike), float(in_turns))
        moved = gaussian_guarantee(
            plan.sigma, 1e-4, plan.bound * worst, Model.CENTRAL, Neighbours.ADD_REMOVE
        )
        assert 0.99 < moved.epsilon <= plan.guarantee.epsilon
        assert plan.guarantee.epsilon <= 1.0
        assert plan.spent(STEPS).epsilon == plan.guarantee.epsilon
        assert plan.spent(1).epsilon < plan.guarantee.epsilon or rule.most(STEPS) == 1
        torch.testing.assert_close(
            plan.standard_errors,
            plan.sigma * torch.linalg.inv(C).cumsum(0).norm(dim=1),
            rtol=1e-6,
            atol=0,
        )


def test_guarantee_who_comes_too_soon_or_too_often_is_refused_also_after_a_kill(choice, tmp_path):
    plan = choice.best
    path = tmp_path / "ledger"
    run = started(plan, ledger=path)
    begun = list(admitted(run, BATCHES[:5]))
    torch.save(run.secret_state(), tmp_path / "secret")
    secret = torch.load(tmp_path / "secret")
    again = plan.resume(model(), squares, secret, ledger=path)
    for wrong in ([3], [0]):
        for each in (again, run):
            with pytest.raises(ValueError, match="may not participate"):
                each.admit(wrong)
    rest = list(admitted(again, BATCHES[5:]))
    whole = list(admitted(started(plan), BATCHES))
    assert all(torch.equal(a, b) for a, b in zip(begun + rest, whole, strict=True))
    with pytest.raises(RuntimeError, match="8 steps are spent"):
        again.admit([9])
    with pytest.raises(ValueError, match="secret must be of step 8"):
        plan.resume(model(), squares, secret, ledger=path)
    with pytest.raises(TypeError, match="attendance must be a tensor of int64"):
        plan.resume(model(), squares, {**secret, "attendance": torch.ones(3, 2)}, step=5)


def test_a_batch_is_admitted_before_it_is_used_and_used_before_the_next(choice):
    run = started(choice.best)
    with pytest.raises(RuntimeError, match="no batch waits"):
        run.backward(X[:3], X[:3])
    run.admit([0, 1])
    with pytest.raises(ValueError, match="all the batch's 2 users"):
        run.backward(X[:3], X[:3])
    with pytest.raises(RuntimeError, match="0 of 2 rows used"):
        run.admit([2])
    run.backward(X[:1], X[:1], more=True)
    run.backward(X[1:2], X[1:2])
    assert run.step == 1
    assert len(run) == STEPS - 1
    for call in (lambda: next(iter(run)), lambda: run.loader(X)):
        with pytest.raises(RuntimeError, match=r"call run\.admit"):
            call()
    other = choose(Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4).best
    with pytest.raises(RuntimeError, match="the plan says who"):
        started(other).admit([0])
