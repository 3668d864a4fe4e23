"""Per-example clipping, against one example at a time."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum, set_gradients
from torchdp.training.clipping import _clipped


def data(n):
    g = keyed_generator(b"clipping")
    return torch.randn(n, 4, dtype=torch.float64, generator=g), torch.randint(0, 3, (n,), generator=g)


def model():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.GroupNorm(2, 6), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=keyed_generator(bytes([i]))))
    return net


def one_by_one(net, x, y, bound):
    total = 0.0
    for a, b in zip(x, y, strict=True):
        net.zero_grad()
        cross_entropy(net(a[None]), b[None]).backward()
        g = torch.cat([p.grad.flatten() for p in net.parameters()])
        total = total + g * min(1.0, bound / float(g.norm()))
    net.zero_grad()
    return total


@pytest.mark.parametrize("n", [1, 2, 11])
@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_sum_of_clipped_gradients_one_by_one(n, at_once):
    net, (x, y) = model(), data(n)
    norms = [float(one_by_one(net, x[i : i + 1], y[i : i + 1], 1e9).norm()) for i in range(n)]
    bound = sorted(norms)[n // 2]  # some are clipped and some are not
    found = clip_and_sum(net, cross_entropy, x, y, bound, at_once=at_once)
    torch.testing.assert_close(found, one_by_one(net, x, y, bound))
    assert all(p.grad is None for p in net.parameters())


def test_no_examples_give_zero():
    net, (x, y) = model(), data(3)
    assert not clip_and_sum(net, cross_entropy, x[:0], y[:0], 1.0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_guarantee_no_clipped_gradient_is_longer_than_the_bound(dtype):
    g = keyed_generator(b"rows")
    size = 10 ** torch.empty(2000, 1).uniform_(-3, 3, generator=g)
    rows = (torch.randn(2000, 50, generator=g) * size).to(dtype)
    for bound in (1.0, 0.3, 7.7):
        norms = _clipped(rows, bound).double().norm(dim=1)
        assert (norms <= bound).all() and norms.max() > 0.98 * bound
        small = rows.double().norm(dim=1) < 0.99 * bound
        assert small.any()
        torch.testing.assert_close(
            _clipped(rows, bound)[small], rows[small], rtol=2 * torch.finfo(dtype).eps, atol=0
        )


def test_guarantee_an_example_moves_the_sum_by_the_bound_at_most():
    net, (x, y) = model(), data(9)
    x[3] *= 1e6  # and one that is not finite counts as nothing
    x[5] = math.nan
    everything = clip_and_sum(net, cross_entropy, x, y, 0.5)
    moves = []
    for i in range(9):
        rest = [j for j in range(9) if j != i]
        moves.append(float((everything - clip_and_sum(net, cross_entropy, x[rest], y[rest], 0.5)).norm()))
    assert everything.isfinite().all() and moves[5] < 1e-15
    assert max(moves) <= 0.5 * (1 + 1e-12) and max(moves) > 0.49
    unclipped = clip_and_sum(net, cross_entropy, x[:5], y[:5], 1e9) - clip_and_sum(
        net, cross_entropy, x[:4], y[:4], 1e9
    )
    assert unclipped.norm() > 0.5  # clipping is what does it


def test_frozen_parameters_are_left_out_and_gradients_go_back():
    net, (x, y) = model(), data(4)
    net[0].weight.requires_grad_(False)
    total = clip_and_sum(net, cross_entropy, x, y, 1e9)
    set_gradients(net, total)
    found = [p.grad for p in net.parameters()]
    assert found[0] is None
    expected = torch.autograd.grad(
        cross_entropy(net(x), y, reduction="sum"), [p for p in net.parameters() if p.requires_grad]
    )
    for a, b in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: clip_and_sum(model(), cross_entropy, x, y, 0.0), ValueError, "bound must be"),
        (lambda x, y: clip_and_sum(model(), cross_entropy, x, y[:1], 1.0), ValueError, "equally many"),
        (lambda x, y: clip_and_sum(model(), cross_entropy, x, [1, 2], 1.0), TypeError, "inputs and targets"),
        (lambda x, y: clip_and_sum(model(), cross_entropy, x, y, 1.0, at_once=0), ValueError, "at_once must be"),
        (lambda x, y: clip_and_sum(nn.BatchNorm1d(4).double(), mse_loss, x, x, 1.0), ValueError, "GroupNorm"),
        (
            lambda x, y: clip_and_sum(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).double(), mse_loss, x, x, 1.0),
            ValueError,
            "dropout",
        ),
        (lambda x, y: clip_and_sum(nn.Tanh(), mse_loss, x, x, 1.0), ValueError, "module must have a parameter"),
        (lambda x, y: set_gradients(model(), torch.zeros(3)), ValueError, "gradient must be a flat"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(*data(3))
