"""Two processes: one sum, the same noise in both, and a layer's gradients averaged by DDP."""

import os
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from torchdp import density, factorization, workloads
from torchdp.randomness import keyed_generator
from torchdp.training import CorrelatedNoise, FeatureLayer, causal_strategy, clip_and_sum


def model():
    layer = FeatureLayer(density.GaussianFourier(3).draw(4, generator=keyed_generator(b"layer")))
    net = nn.Sequential(layer, nn.Linear(4, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.3)
    return net


def data():
    return torch.randn(2, 6, 3, dtype=torch.float64, generator=keyed_generator(b"data"))


def private(net, x, reduce):
    """Two private sums; ``reduce`` adds up a sum over the processes."""
    C = causal_strategy(workloads.prefix(2).dense(), factorization.square_root(2))
    noise = CorrelatedNoise(C, 5, 1.0, generator=keyed_generator(b"noise"), dtype=torch.float64)
    return torch.stack([noise(reduce(clip_and_sum(net, mse_loss, x, x[:, :1], 0.1))) for _ in range(2)])


def process(rank, folder):
    os.environ["MASTER_ADDR"] = "localhost"
    store = f"file://{folder}/store"
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )

    def reduce(total):
        torch.distributed.all_reduce(total)
        return total

    mine, net = data()[rank], model()
    parallel = nn.parallel.DistributedDataParallel(net)
    mse_loss(parallel(mine), mine[:, :1]).backward()
    gradient = [p.grad for p in net.parameters()]
    net.zero_grad()
    torch.save((gradient, private(net, mine, reduce)), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    net, x = model(), data().flatten(0, 1)
    mse_loss(net(x), x[:, :1]).backward()
    gradient = [p.grad for p in net.parameters()]
    expected = private(model(), x, lambda total: total)
    for rank in range(2):
        found, outputs = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for a, b in zip(found, gradient, strict=True):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(outputs, expected)
