"""Rows for a run's batches: read ahead, in parts larger than memory, or of one's own loader that
keeps to a rule.
"""

import functools
import itertools
import threading
from collections import UserDict
from dataclasses import replace

import pytest
import torch
import trained
from rules import permitted
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from trained import STEPS, X, gradient, model, squares, started, use

from torchdp.noise import SeededNoise
from torchdp.privacy import Model, Neighbours, gaussian_guarantee
from torchdp.training import ONCE, CyclicPoisson, Epochs, Iterates, Passes, Separated, choose

DATA = TensorDataset(X, 2 * X)
NO_BATCH = "no batch waits"


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(X)

    def __len__(self):
        return 60


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(1, 1)
        nn.init.ones_(self.part.weight)
        nn.init.zeros_(self.part.bias)

    def forward(self, input):
        return self.part(input)


class Named(Dataset):
    """Rows by name, as a table of texts has them."""

    def __len__(self):
        return 60

    def __getitem__(self, user):
        return {"input": X[user]}, 2 * X[user]


def empty(plan):
    """Batches of nobody."""
    return replace(plan, sampling=CyclicPoisson(1, 1e-9))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def whole(plan):
    """The gradients of a run whose batches come whole."""
    run = started(plan)
    seen = []
    for users in run:
        use(run, users)
        seen.append(gradient(run))
    return torch.stack(seen)


@functools.cache
def whole_of(kind):
    return whole(trained.plans()[kind])


@pytest.mark.parametrize("kind", ["ordered", "independent"])
@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.filterwarnings("ignore:.*fork"))]
)
def test_a_loader_reads_the_batches_of_the_run_ahead(plans, kind, workers):
    run = plans[kind].start(Wrapped(), squares, noise=SeededNoise(4))
    batches = []
    gradients = []
    for users in run:
        run.backward({"input": X[users]}, 2 * X[users])
        batches.append(X[users])
        gradients.append(gradient(run))
    run = plans[kind].start(Wrapped(), squares, noise=SeededNoise(4))
    rows = []
    found = []
    before = torch.get_rng_state()
    # The second loader goes on.
    for count in (3, STEPS):
        loader = run.loader(Named(), num_workers=workers)
        for inputs, targets in itertools.islice(loader, count):
            run.backward(inputs, targets)
            rows.append(inputs["input"])
            found.append(gradient(run))
    assert run.step == STEPS
    assert not list(run.loader(Named()))
    assert torch.equal(torch.cat(rows), torch.cat(batches))
    assert torch.equal(torch.stack(found), torch.stack(gradients))
    # torch's own generator would be repeated by another program.
    assert torch.equal(torch.get_rng_state(), before)


def test_each_iteration_is_one_pass_or_the_rest_of_one(plans):
    run = started(plans["ordered"])
    passes = Passes(run, DATA)
    assert len(passes) == 4
    run.backward(*next(iter(passes)))
    seen = []
    for _ in range(3):
        before = run.step
        for batch in passes:
            run.backward(*batch)
        seen.append(run.step - before)
    # The rest of the first pass, the second one, and no step is left.
    assert seen == [3, 4, 0]


def test_a_batch_of_nobody_has_tensors_of_no_rows(plans):
    plan = empty(plans["independent"])
    run = plan.start(Wrapped(), squares)
    inputs, targets = next(run.loader(Named()))
    assert run.backward(inputs, targets).isnan()
    assert inputs["input"].shape == targets.shape == (0, 1)
    assert run.step == 1

    def texts(rows):
        return UserDict(x=torch.ones(len(rows), 2), y=["a"] * len(rows), most=torch.tensor(2))

    batch = next(plan.start(Wrapped(), squares).loader(Named(), collate_fn=texts))
    assert type(batch) is UserDict
    assert batch["x"].shape == (0, 2)
    assert batch["y"] == []
    assert batch["most"] == 2


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (X[:9], {}, "data must hold one row for each of the plan's 60 users, not 9"),
        (X, {"shuffle": True, "batch_size": 3}, "batch_size, shuffle must be left out"),
        # A slow worker's batch would come later.
        (X, {"num_workers": 2, "in_order": False}, "in_order must be left out"),
        (X, {"max_rows": 0}, "max_rows"),
        (iter(X), {}, "data must be a data set with a length"),
        (Streamed(), {}, "data must be a data set with a length"),
    ],
)
def test_a_loader_refuses_what_does_not_fit(plans, data, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        started(plans["independent"]).loader(data, **options)


def test_rows_by_number_are_data_enough(plans):
    assert len(next(started(plans["ordered"]).loader(X))) == 15


def test_a_batch_of_one_loader_is_no_other_ones(plans):
    run = started(plans["independent"])
    first, second, third = [run.loader(DATA) for _ in range(3)]
    batch = next(first)
    # Its users would never be in a step, and the next ones too early.
    with pytest.raises(RuntimeError, match="was not used"):
        next(second)
    run.backward(*batch)
    with pytest.raises(RuntimeError, match="this loader at 0"):
        next(third)


def by_hand(run, size):
    for users in run:
        parts = users.split(size)
        before = [p.grad for p in run.module.parameters()]
        for part in parts[:-1]:
            use(run, part, more=True)
            # Nothing is out before the last part.
            for p, g in zip(run.module.parameters(), before, strict=True):
                assert p.grad is g
        use(run, parts[-1])
        yield


def by_loader(run, size):
    for step in run.loader(DATA, max_rows=size):
        for x, y in step:
            assert len(x) <= size
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
    ledger = tmp_path / "ledger"
    run = started(plans[kind], ledger=ledger, at_once=2)
    seen = []
    for _ in way(run, size):
        seen.append(gradient(run))
        assert run.step == len(seen)
        # A line before the first step, and one for each.
        assert len(ledger.read_text().splitlines()) == 1 + run.step
    close(torch.stack(seen), whole_of(kind))


def test_a_step_must_be_used_up_and_by_no_more_than_its_rows(plans):
    run = started(plans["ordered"])
    steps = run.loader(DATA, max_rows=4)
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
    with pytest.raises(RuntimeError, match=NO_BATCH):
        run.backward(x, y)
    # Whose last part never comes.
    use(run, next(iter(run)), more=True)
    with pytest.raises(RuntimeError, match="15 of 15 rows used"):
        next(iter(run))
    with pytest.raises(ValueError, match="15 of which were used, not 1"):
        run.backward(X[:1], X[:1])
    assert run.step == 1


def test_rows_that_a_loader_left_unread_are_of_no_later_step(plans):
    run = started(plans["ordered"])
    seen = []
    for step in run.loader(DATA, max_rows=4):
        # Read otherwise: the loader's own parts stay unread.
        users = run.batches._order[run.step % 4 * 15 :][:15]
        next(step)
        for part in users.split(4):
            use(run, part)
        with pytest.raises(RuntimeError, match=NO_BATCH):
            next(step)
        seen.append(gradient(run))
    close(torch.stack(seen), whole_of("ordered"))


def test_a_batch_of_nobody_releases_noise_by_itself(plans):
    run = started(empty(plans["independent"]))
    for step in run.loader(DATA, max_rows=4):
        assert not list(step)
        assert gradient(run).abs().min() > 0
    assert run.step == STEPS


def test_guarantee_a_part_counts_once_whatever_interrupts_it(plans, monkeypatch):
    """Before it is counted the same rows may come again; when the noise is drawn the step is
    over.
    """
    run = started(plans["ordered"])

    def interrupting(call):
        def called(*arguments, **options):
            call(*arguments, **options)
            raise KeyboardInterrupt

        return called

    parts = next(iter(run)).split(5)
    for part in parts:
        more = part is not parts[-1]
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(run, "_clipper", interrupting(run._clipper))
            use(run, part, more=more)
        use(run, part, more=more)
    close(gradient(run), whole_of("ordered")[0])
    users = next(iter(run))
    monkeypatch.setattr(run.noise, "forward", interrupting(run.noise.forward))
    with pytest.raises(KeyboardInterrupt):
        use(run, users)
    with pytest.raises(RuntimeError, match=NO_BATCH):
        use(run, users)


def test_threads_share_the_parts_of_a_step(plans):
    run = started(plans["ordered"])
    users = next(iter(run))
    barrier = threading.Barrier(14)

    def use_one(user):
        barrier.wait()
        use(run, user[None], more=True)

    threads = [threading.Thread(target=use_one, args=(user,)) for user in users[1:]]
    # A part that is lost or counted twice changes the sum.
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    use(run, users[:1])
    close(gradient(run), whole_of("ordered")[0])


def test_a_run_that_is_killed_amid_a_step_takes_it_again(plans, tmp_path):
    plan = plans["independent"]
    ledger = tmp_path / "ledger"
    run = started(plan, ledger=ledger)
    secret = run.secret_state()
    steps = run.loader(DATA, max_rows=4)
    for batch in next(steps):
        run.backward(*batch)
    # Of the second step one part.
    run.backward(*next(next(steps)))
    again = plan.resume(model(), squares, secret, ledger=ledger)
    assert again.step == 1
    seen = [gradient(again) for _ in by_loader(again, 4)]
    close(torch.stack(seen), whole_of("independent")[1:])


USERS = 30
RULE = Separated(3, 2)
# Three or more steps apart, twice at most.
BATCHES = [[i, i + 10, i + 20] for i in (0, 1, 2, 3, 0, 1, 2, 4)]


@functools.cache
def chosen(rule):
    return choose(Iterates(STEPS), USERS, 3, epsilon=1.0, delta=1e-4, participation=rule)


def admitted(run, batches):
    """The gradients of one's own batches."""
    seen = []
    for users in batches:
        mine = run.admit(users)
        assert mine.tolist() == users
        use(run, mine)
        seen.append(gradient(run))
    return seen


@pytest.mark.parametrize("rule", [RULE, ONCE, Epochs(3), Separated(20, 1)])
def test_guarantee_no_user_of_the_rule_moves_further_than_the_noise_is_made_for(rule):
    """Every permitted set of steps, by enumeration, with all signs alike and in turns: what C makes
    of it.
    """
    for one in chosen(rule).candidates:
        plan = one.protocol
        C = plan.strategy.dense()
        worst = 0.0
        for steps in permitted(rule, STEPS):
            columns = C[:, list(steps)]
            alike = columns.sum(1).norm()
            in_turns = (columns[:, 0::2].sum(1) - columns[:, 1::2].sum(1)).norm()
            worst = max(worst, float(alike), float(in_turns))
        moved = gaussian_guarantee(
            plan.sigma, 1e-4, plan.bound * worst, Model.CENTRAL, Neighbours.ADD_REMOVE
        )
        epsilon = plan.guarantee.epsilon
        assert 0.99 < moved.epsilon <= epsilon <= 1.0
        assert plan.spent(STEPS).epsilon == epsilon
        assert plan.spent(1).epsilon < epsilon or rule.most(STEPS) == 1
        errors = plan.sigma * torch.linalg.inv(C).cumsum(0).norm(dim=1)
        torch.testing.assert_close(plan.standard_errors, errors, rtol=1e-6, atol=0)


def test_guarantee_who_comes_too_soon_or_too_often_is_refused_also_after_a_kill(tmp_path):
    plan = chosen(RULE).best
    ledger = tmp_path / "ledger"
    run = started(plan, ledger=ledger)
    begun = admitted(run, BATCHES[:5])
    torch.save(run.secret_state(), tmp_path / "secret")
    secret = torch.load(tmp_path / "secret")
    again = plan.resume(model(), squares, secret, ledger=ledger)
    # Too soon after step 3, and for the third time.
    for user in (3, 0):
        for each in (again, run):
            with pytest.raises(ValueError, match="may not participate"):
                each.admit([user])
    # Noise and attendance go on where they were.
    gradients = begun + admitted(again, BATCHES[5:])
    assert torch.equal(torch.stack(gradients), torch.stack(admitted(started(plan), BATCHES)))
    with pytest.raises(RuntimeError, match="8 steps are spent"):
        again.admit([9])
    with pytest.raises(ValueError, match="secret must be of step 8"):
        plan.resume(model(), squares, secret, ledger=ledger)
    with pytest.raises(TypeError, match="attendance must be a tensor of int64"):
        plan.resume(model(), squares, {**secret, "attendance": torch.ones(3, 2)}, step=5)


def test_a_batch_is_admitted_before_it_is_used_and_used_before_the_next(plans):
    run = started(chosen(RULE).best)
    with pytest.raises(RuntimeError, match=NO_BATCH):
        run.backward(X[:3], X[:3])
    # Who is admitted is in the step: other rows are of other users.
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
    with pytest.raises(RuntimeError, match="the plan says who"):
        started(plans["ordered"]).admit([0])
