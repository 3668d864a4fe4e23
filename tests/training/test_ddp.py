"""Two processes: one sum, the same noise in both, an error where they part."""

import os
from datetime import timedelta
from itertools import islice

import pytest
import torch
from laws import normal
from torch import distributed, nn
from torch.nn.functional import mse_loss
from trained import gradient

from torchdp import factorization, workloads
from torchdp.noise import SeededNoise
from torchdp.training import (
    AdaptiveBound,
    CorrelatedNoise,
    Iterates,
    causal_strategy,
    choose,
    clip_and_sum,
    replicas,
)


def model():
    net = nn.Sequential(nn.ZeroPad1d((0, 1)), nn.Linear(4, 1))
    for p in net.parameters():
        nn.init.constant_(p, 0.3)
    return net.double()


def data():
    """Six examples for each of two processes."""
    return normal(2, 6, 3, name=b"data")


def private(x, reduce, noise):
    """Two private sums; ``reduce`` adds up a sum over the processes."""
    net = model()
    outputs = []
    for _ in range(2):
        total = clip_and_sum(net, mse_loss, x, x[:, :1], 0.1)
        outputs.append(noise(reduce(total)))
    return torch.stack(outputs)


def make(noise, **options):
    C = causal_strategy(workloads.prefix(3).dense(), factorization.square_root(3))
    return CorrelatedNoise(C, 5, 1.0, noise=noise, dtype=torch.float64, **options)


def joined(rank, folder):
    os.environ["MASTER_ADDR"] = "localhost"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )


def reduced(total):
    distributed.all_reduce(total)
    return total


def message(noise, total):
    """Of the error that the noise raises for this sum."""
    try:
        noise(total)
    except RuntimeError as error:
        return str(error)
    return ""


def process(rank, folder):
    joined(rank, folder)
    # Process 0's key counts.
    noise = make(SeededNoise(rank + 1))
    outputs = private(data()[rank], reduced, noise)
    # Sums that were not added up.
    sums_differ = message(noise, torch.full((5,), 1.0 + rank, dtype=torch.float64))
    other = make(None)
    if rank:
        state = other.secret_state()
        other.load_secret_state({**state, "step": 1, "key": state["key"] + 1})
    keys_differ = message(other, torch.zeros(5, dtype=torch.float64))
    torch.save((outputs, sums_differ, keys_differ), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def whole_run(net, adaptive, *, noise, steps=6):
    """Gradients of a plan's run, who was there, and how much of the past this process keeps."""
    x = data().flatten(0, 1)
    plan = choose(Iterates(8), 12, 3, epsilon=1.0, delta=1e-3).candidates[-1].protocol
    plan = plan.adapted(AdaptiveBound(quantile=0.4)) if adaptive else plan
    run = plan.start(net, mse_loss, noise=noise)
    secret = run.secret_state()
    gradients = []
    batches = []
    for users in islice(run, steps):
        state = run.state_dict()
        run.backward(x[users], x[users, :1])
        gradients.append(gradient(run))
        batches.append(users.tolist())
    assert (run.bound != plan.bound) == adaptive
    # Resumed, the last step comes again.
    again = plan.resume(net, mse_loss, secret, step=state)
    users = next(iter(again))
    again.backward(x[users], x[users, :1])
    gradients.append(gradient(again))
    return torch.stack(gradients), batches, run.noise.size


def run_process(rank, folder, adaptive):
    joined(rank, folder)
    # What is trained; the run clips its module's gradients.
    net = nn.parallel.DistributedDataParallel(model())
    found = whole_run(net.module, adaptive, noise=SeededNoise(rank + 1))
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_run_of_two_processes_is_that_of_one(tmp_path, adaptive):
    torch.multiprocessing.spawn(run_process, (str(tmp_path), adaptive), nprocs=2)
    expected, batches, size = whole_run(model(), adaptive, noise=SeededNoise(1))
    first, second = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for found, _, _ in (first, second):
        torch.testing.assert_close(found, expected)
    # Each has its own part of a batch, and of the past.
    together = [sorted(a + b) for a, b in zip(first[1], second[1], strict=True)]
    assert together == [sorted(users) for users in batches]
    sizes = [first[2], second[2]]
    # None has all of the past: the first has a chunk, the last one what is left.
    assert sum(sizes) >= size == 5 + adaptive
    assert max(sizes) == 3


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    expected = private(data().flatten(0, 1), lambda total: total, make(SeededNoise(1)))
    for rank in range(2):
        outputs, sums, keys = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(outputs, expected)
        assert "differ in the sum;" in sums
        assert "differ in the step and the key, strategy, sigma or dtype;" in keys


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bits_decide_whether_sums_agree(monkeypatch, dtype):
    """A sum whose last bits differ is seen; equal ones pass."""
    total = normal(7, name=b"total").to(dtype)
    sent = []

    def all_gather(out, own):
        """The first process and this one."""
        sent.append(own)
        out[0].copy_(sent[0])
        out[1].copy_(own)

    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather", all_gather)
    for mine in (total, total.clone()):
        replicas.check_agree(3, b"digest..", mine)
    with pytest.raises(RuntimeError, match="differ in the sum; add up the sums"):
        replicas.check_agree(3, b"digest..", total.nextafter(total.new_tensor(9.0)))
