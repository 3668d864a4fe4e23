"""Rows of a data set for a run's batches, read ahead by workers or not: the same rows for the same steps."""

from collections import UserDict
from dataclasses import replace

import pytest
import torch
from frameworks import squares
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from torchdp.noise import SeededNoise
from torchdp.training import CyclicPoisson, Iterates, Passes, choose
from torchdp.training.batches import Collate

STEPS = 8
X = torch.linspace(-1, 1, 60)[:, None]


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(X)

    def __len__(self):
        return 60


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(1, 1)
        nn.init.ones_(self.part.weight), nn.init.zeros_(self.part.bias)

    def forward(self, input):
        return self.part(input)


@pytest.fixture(scope="module")
def plans():
    choice = choose(Iterates(STEPS), 60, 15, epsilon=1.0, delta=1e-4)
    return {one.name: one.protocol for one in choice.candidates}


def gradient(run):
    return torch.cat([p.grad.flatten() for p in run.module.parameters()])


class Named(Dataset):
    """Rows by name, as a table of texts has them."""

    def __len__(self):
        return 60

    def __getitem__(self, user):
        return {"input": X[user]}, 2 * X[user]


@pytest.mark.parametrize("kind", ["fixed order", "Poisson, independent noise"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.filterwarnings("ignore:.*fork"))])
def test_a_loader_reads_the_batches_of_the_run_ahead(plans, kind, workers):
    run = plans[kind].start(Model(), squares, noise=SeededNoise(4))
    expected = []
    for users in run:
        run.backward({"input": X[users]}, 2 * X[users])
        expected.append((users, gradient(run)))
    run = plans[kind].start(Model(), squares, noise=SeededNoise(4))
    seen, before = [], torch.get_rng_state()
    for _ in range(2):  # the second one goes on
        for named, targets in run.loader(Named(), num_workers=workers):
            run.backward(named, targets)
            seen.append((named["input"].flatten(), gradient(run)))
            if len(seen) == 3:
                break
    assert run.step == len(seen) == STEPS and not list(run.loader(Named()))
    for (rows, found), (users, wanted) in zip(seen, expected, strict=True):
        assert torch.equal(rows, X[users, 0]) and torch.equal(found, wanted)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_iteration_is_one_pass_and_the_rest_of_one_after_a_kill(plans):
    run = plans["fixed order"].start(Model(), squares)
    passes, seen = Passes(run, TensorDataset(X, 2 * X)), []
    for batch in run.loader(passes.dataset):
        run.backward(*batch)
        if run.step == 3:
            break
    for _ in range(3):
        before = run.step
        for batch in passes:
            run.backward(*batch)
        seen.append(run.step - before)
    assert len(passes) == 4 and seen == [1, 4, 0]


def test_a_batch_of_nobody_has_tensors_of_no_rows(plans):
    plan = replace(plans["Poisson, independent noise"], sampling=CyclicPoisson(1, 1e-9))
    run = plan.start(Model(), squares)
    named, targets = next(run.loader(Named()))
    run.backward(named, targets)
    assert named["input"].shape == targets.shape == (0, 1) and run.step == 1
    pairs = Collate([(1.0, "a")], lambda rows: [torch.tensor([a for a, _ in rows]), tuple(b for _, b in rows)])
    assert len(pairs([])[0]) == 0 and len(pairs([(2.0, "b")])[0]) == 1 and pairs([])[1] == ()
    texts = Collate(
        [0], lambda rows: UserDict(x=torch.ones(len(rows), 2), y=["a"] * len(rows), most=torch.tensor(2))
    )
    empty = texts([])
    assert type(empty) is UserDict and empty["x"].shape == (0, 2) and empty["y"] == [] and empty["most"] == 2


@pytest.mark.parametrize("rows", [torch.ones(3, 1), torch.ones(3, 1).numpy()])
def test_a_data_set_may_read_a_whole_batch_at_once(rows):
    collate = Collate(TensorDataset(X), torch.as_tensor)
    assert torch.equal(collate(rows), torch.ones(3, 1))


def test_a_loader_refuses_what_does_not_fit(plans):
    run = plans["Poisson, independent noise"].start(Model(), squares)
    for data, options, name in [
        (TensorDataset(X[:9]), {}, "data must hold one row for each of the plan's 60 users, not 9"),
        (TensorDataset(X), {"shuffle": True, "batch_size": 3}, "batch_size, shuffle must be left out"),
    ]:
        with pytest.raises(ValueError, match=name):
            run.loader(data, **options)
    with pytest.raises(ValueError, match="in_order must be left out"):  # a slow worker's batch would come later
        run.loader(TensorDataset(X), num_workers=2, in_order=False)
    for data in (iter(X), Streamed()):
        with pytest.raises(TypeError, match="data must be a data set with a length"):
            run.loader(data)
    assert len(next(plans["fixed order"].start(Model(), squares).loader(X))) == 15  # rows by number are enough
    first, second, third = (run.loader(TensorDataset(X, 2 * X)) for _ in range(3))
    batch = next(first)
    with pytest.raises(RuntimeError, match="was not used"):
        next(second)
    run.backward(*batch)
    with pytest.raises(RuntimeError, match="this loader at 0"):
        next(third)
