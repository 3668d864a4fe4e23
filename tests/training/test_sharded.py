"""Modules cut by fully_shard: the sums, noise and gradients of the whole module, in shards."""

import functools
from datetime import timedelta

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.training import Iterates, choose, clip_and_sum, set_gradients

STEPS = 4


@functools.cache
def made():
    return choose(Iterates(STEPS), 12, 3, epsilon=1.0, delta=1e-3).candidates[-1].protocol


def model():
    """Rows that two processes cannot share evenly; a weight that has factors, a frozen one."""
    net = nn.Sequential(nn.Linear(5, 65), nn.Tanh(), nn.Linear(65, 65), nn.Tanh(), nn.Linear(65, 1)).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(0.3 * torch.randn(p.shape, dtype=p.dtype, generator=keyed_generator(bytes([i]))))
    net[0].bias.requires_grad_(False)
    return net


def cut(net, mesh=None):
    from torch.distributed.fsdp import fully_shard

    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    return net


def copied(net):
    """Copies of shards: a mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    return cut(net, init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards")))


def data():
    return torch.randn(12, 5, dtype=torch.float64, generator=keyed_generator(b"data"))


@pytest.fixture
def alone():
    """A group of this process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("shard", [cut, copied])
def test_sums_and_gradients_of_shards(alone, shard):
    net, x = shard(model()), data()
    expected = clip_and_sum(model(), mse_loss, x, x[:, :1], 0.3)
    hooks = [len(part._forward_pre_hooks) for part in net.modules()]
    for _ in range(2):
        torch.testing.assert_close(clip_and_sum(net, mse_loss, x, x[:, :1], 0.3), expected, rtol=0, atol=0)
        torch.testing.assert_close(net(x), model()(x))  # gathers its parameters, and leaves them so
    set_gradients(net, expected)
    assert net[0].bias.grad is None and sum(hooks) == 3
    assert hooks == [len(part._forward_pre_hooks) for part in net.modules()]
    found = [p.grad for p in net.parameters() if p.requires_grad]
    assert torch.equal(torch.cat([g.full_tensor().flatten() for g in found]), expected)
    assert all(g.to_local().untyped_storage().nbytes() == 8 * g.to_local().numel() for g in found)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    optimizer.step()
    kept = [state["exp_avg"].placements for state in optimizer.state.values()]
    assert kept == [p.placements for p in net.parameters() if p.requires_grad]


def test_a_recurrent_layer_has_its_own_weights_after_the_call(alone):
    """torch would leave it the whole ones, which an optimizer's steps do not reach."""

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.RNN(5, 3, batch_first=True), Last()).double()

    class Last(nn.Linear):
        __init__ = functools.partialmethod(nn.Linear.__init__, 3, 1)

        def forward(self, x):
            return super().forward(x[0][:, -1])

    from torch.distributed.fsdp import fully_shard

    net, x = fully_shard(made()), data()
    weights = list(net[1]._flat_weights)
    found, expected = (clip_and_sum(each, mse_loss, x, x[:, :1], 0.3) for each in (net, made()))
    torch.testing.assert_close(found, expected)
    assert all(a is b for a, b in zip(net[1]._flat_weights, weights, strict=True))


def test_what_a_cut_module_remembers_is_refused(alone):
    class Remembers(nn.Linear):
        def forward(self, x):
            self.seen = self.seen + 1 if hasattr(self, "seen") else 1
            return super().forward(x) * self.seen

    net = model()
    net[4] = Remembers(65, 1).double()
    with pytest.raises(ValueError, match="another loss after"):
        clip_and_sum(cut(net), mse_loss, data(), data()[:, :1], 0.3)
    assert sum(len(part._forward_pre_hooks) for part in net.modules()) == 3


def columns(net):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    net[2].weight = nn.Parameter(distribute_tensor(net[2].weight.detach(), mesh, [Shard(1)]))
    return net


def classic(net):
    from torch.distributed.fsdp import FullyShardedDataParallel

    class Wrapped(FullyShardedDataParallel):
        def __init__(self, net):
            nn.Module.__init__(self)
            self._fsdp_wrapped_module = net

    return nn.Sequential(Wrapped(net))


@pytest.mark.parametrize(("wrong", "message"), [
    (columns, "module must have parameters that are whole or cut along dimension 0, and 2.weight is"),
    (classic, "module must be sharded by fully_shard; FullyShardedDataParallel"),
])  # fmt: skip
def test_other_layouts_are_refused(alone, wrong, message):
    net, x = wrong(model()), data()
    with pytest.raises(ValueError, match=message):
        clip_and_sum(net, mse_loss, x, x[:, :1], 0.3)
    for call in (lambda: made().start(net, mse_loss), lambda: set_gradients(net, torch.zeros(1))):
        with pytest.raises(ValueError, match=message):
            call()


def trained(net, run, steps):
    """Gradients of steps, at the parameters that Adam makes of them."""
    x, seen, optimizer = data(), [], torch.optim.Adam(net.parameters(), 0.1)
    for users in run:
        run.backward(x[users], x[users, :1])
        seen.append(whole(net))
        optimizer.step()
        if len(seen) == steps:
            break
    return seen


def in_parts(net, run):
    """Of one row each: the first process has two rows of three, the other one row and a part of nobody."""
    x, seen = data(), []
    for step in run.loader(TensorDataset(x, x[:, :1]), max_rows=1):
        for rows, targets in step:
            run.backward(rows, targets)
        seen.append(whole(net))
    return seen


def whole(net):
    parts = [p.grad for p in net.parameters() if p.requires_grad]
    return torch.cat([(g.full_tensor() if hasattr(g, "placements") else g).flatten() for g in parts])


def story(shard):
    """Gradients of a run, of one that was killed and resumed, and of one whose sums are 0: its noise."""
    plan, net, found = made(), shard(model()), []
    run = plan.start(net, mse_loss, noise=SeededNoise(1))
    secret = run.secret_state()
    found += trained(net, run, STEPS)
    again = shard(model())
    found += trained(again, plan.resume(again, mse_loss, secret, step=2), STEPS)
    found += trained(still := shard(model()), plan.start(still, zero, noise=SeededNoise(2)), 2)
    apart = in_parts(cut_up := shard(model()), plan.start(cut_up, mse_loss, noise=SeededNoise(1)))
    torch.testing.assert_close(apart[0], found[0])
    found[:0] = apart
    rows = [len(p.to_local() if hasattr(p, "placements") else p) for p in net.parameters()]
    return torch.stack(found), run.noise.secret_state()["past"].shape[1], rows


def zero(output, target):
    return 0.0 * output.sum()


def process(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.save(story(cut), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_a_run_of_two_processes_with_shards_is_that_of_one(tmp_path):
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    expected, size, rows = story(lambda net: net)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for found, _, _ in parts:
        torch.testing.assert_close(found, expected)
        assert torch.equal(found[-2:], expected[-2:])  # noise alone
    assert sum(kept for _, kept, _ in parts) == size and len(expected) == 3 * STEPS
    assert [sum(pair) for pair in zip(*(local for _, _, local in parts), strict=True)] == rows
    assert parts[0][2] == [33, 33, 33, 33, 1, 1] and expected[-2:].abs().min() > 0
