"""Two processes: one sum, the same noise in both, an error where they part."""

import os
from datetime import timedelta

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import mse_loss

from torchdp import factorization, workloads
from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
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
    return torch.randn(2, 6, 3, dtype=torch.float64, generator=keyed_generator(b"data"))


def private(net, x, reduce, noise):
    """Two private sums; ``reduce`` adds up a sum over the processes."""
    return torch.stack(
        [noise(reduce(clip_and_sum(net, mse_loss, x, x[:, :1], 0.1))) for _ in range(2)]
    )


def make(noise, **options):
    C = causal_strategy(workloads.prefix(3).dense(), factorization.square_root(3))
    return CorrelatedNoise(C, 5, 1.0, noise=noise, dtype=torch.float64, **options)


def process(rank, folder):
    os.environ["MASTER_ADDR"] = "localhost"
    store = f"file://{folder}/store"
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )

    def reduce(total):
        torch.distributed.all_reduce(total)
        return total

    mine = data()[rank]
    # process 0's key counts
    noise = make(SeededNoise(rank + 1))
    outputs = private(model(), mine, reduce, noise)
    refused = []
    for other, total in (
        (noise, mine[0].new_full((5,), 1.0 + rank)),  # sums that were not added up
        (make(None), mine.new_zeros(5)),
    ):
        if len(refused) == 1 and rank:
            state = other.secret_state()
            other.load_secret_state({**state, "step": 1, "key": state["key"] + 1})
        try:
            other(total)
            refused.append("")
        except RuntimeError as error:
            refused.append(str(error))
    torch.save((outputs, refused), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def whole_run(net, x, adaptive, *, noise, steps=6):
    """Gradients of a plan's run, who was there, and how much of the past this process keeps."""
    plan = choose(Iterates(8), 12, 3, epsilon=1.0, delta=1e-3).candidates[-1].protocol
    plan = plan.adapted(AdaptiveBound(quantile=0.4)) if adaptive else plan
    run, seen, users = plan.start(net, mse_loss, noise=noise), [], []
    secret = run.secret_state()
    state = None
    for who in run:
        run.backward(x[who], x[who, :1])
        seen.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
        users.append(who.tolist())
        if run.step == steps:
            break
        state = run.state_dict()
    assert (run.bound != plan.bound) == adaptive
    again = plan.resume(net, mse_loss, secret, step=state)
    for who in again:
        again.backward(x[who], x[who, :1])
        break
    seen.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    return torch.stack(seen), users, run.noise.size


def run_process(rank, folder, adaptive):
    store = f"file://{folder}/store"
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    # what is trained; the run clips its module's gradients
    net = nn.parallel.DistributedDataParallel(model())
    found = whole_run(net.module, data().flatten(0, 1), adaptive, noise=SeededNoise(rank + 1))
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_run_of_two_processes_is_that_of_one(tmp_path, adaptive):
    torch.multiprocessing.spawn(run_process, (str(tmp_path), adaptive), nprocs=2)
    expected, users, size = whole_run(model(), data().flatten(0, 1), adaptive, noise=SeededNoise(1))
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for found, _, _ in parts:
        torch.testing.assert_close(found, expected)
    assert [sorted(a + b) for a, b in zip(parts[0][1], parts[1][1], strict=True)] == [
        sorted(u) for u in users
    ]
    assert parts[0][2] + parts[1][2] >= size == 5 + adaptive
    assert max(parts[0][2], parts[1][2]) == 3


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    expected = private(model(), data().flatten(0, 1), lambda total: total, make(SeededNoise(1)))
    for rank in range(2):
        outputs, refused = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(outputs, expected)
        assert "differ in the sum;" in refused[0]
        assert "differ in the step and the key, strategy, sigma or dtype;" in refused[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bits_decide_whether_sums_agree(monkeypatch, dtype):
    """A sum whose last bits differ is seen; equal ones pass."""
    total, sent = torch.randn(7, generator=keyed_generator(b"total")).to(dtype), []

    def all_gather(out, own):  # the first process and this one
        sent.append(own)
        out[0].copy_(sent[0]), out[1].copy_(own)

    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather", all_gather)
    for mine in (total, total.clone()):
        replicas.check_agree(3, b"digest..", mine)
    with pytest.raises(RuntimeError, match="differ in the sum; add up the sums"):
        replicas.check_agree(3, b"digest..", total.nextafter(total.new_tensor(9.0)))
