"""Per-example clipping: the bound of one example; modules and losses that are refused by name."""

import math
from functools import partial

import pytest
import torch
from laws import normal
from torch import nn
from torch.nn.functional import cross_entropy, dropout, mse_loss
from trained import filled

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum, clipped_sum, set_gradients
from torchdp.training.per_example import masks


def data(n):
    return normal(n, 4, name=b"clipping"), torch.arange(n) % 3


def model():
    layers = nn.Linear(4, 6), nn.Tanh(), nn.GroupNorm(2, 6), nn.Linear(6, 3)
    return filled(nn.Sequential(*layers).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bound", [1.0, 0.3, 7.7])
def test_guarantee_no_clipped_gradient_is_longer_than_the_bound(dtype, bound):
    g = keyed_generator(b"rows")
    sizes = 10 ** torch.empty(150, 1).uniform_(-3, 3, generator=g)
    rows = (torch.randn(150, 50, generator=g) * sizes).to(dtype)
    found = torch.stack([clipped_sum([row[:, :20], row[:, 20:]], bound) for row in rows.split(1)])
    norms = found.double().norm(dim=1)
    assert (norms <= bound).all()
    assert norms.max() > 0.98 * bound
    # What is within the bound stays as it is.
    small = rows.double().norm(dim=1) < 0.99 * bound
    assert small.any()
    torch.testing.assert_close(found[small].to(dtype), rows[small], rtol=1e-6, atol=0)


def test_guarantee_an_example_moves_the_sum_by_the_bound_at_most():
    net = model()
    x, y = data(9)
    x[3] *= 1e6
    x[5] = math.nan
    clip = partial(clip_and_sum, net, cross_entropy)
    everything = clip(x, y, 0.5)
    assert everything.isfinite().all()
    moves = []
    for i in range(9):
        rest = [j for j in range(9) if j != i]
        moves.append(float((everything - clip(x[rest], y[rest], 0.5)).norm()))
    # An example that is no number counts as nothing.
    assert moves[5] < 1e-15
    assert 0.49 < max(moves) <= 0.5 * (1 + 1e-12)
    # The control: without clipping one moves the sum further.
    unclipped = clip(x[:5], y[:5], 1e9) - clip(x[:4], y[:4], 1e9)
    assert unclipped.norm() > 0.5


def test_frozen_parameters_are_left_out_and_gradients_go_back():
    net = model()
    x, y = data(4)
    frozen, *others = net.parameters()
    frozen.requires_grad_(False)
    set_gradients(net, clip_and_sum(net, cross_entropy, x, y, 1e9))
    assert frozen.grad is None
    expected = torch.autograd.grad(cross_entropy(net(x), y, reduction="sum"), others)
    for p, g in zip(others, expected, strict=True):
        torch.testing.assert_close(p.grad, g)


def plain(x):
    """An example's numbers out of all wrappers of vmap and grad, for code that remembers them."""
    x = x.detach()
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return float(x.abs().mean())


class Stateful(nn.Module):
    """Its outputs are times what ``remember(self, x)`` returns."""

    factor = 1.0

    def __init__(self, remember):
        super().__init__()
        self.inner = nn.Linear(4, 3, dtype=torch.float64)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.box = {"a": [1.0]}
        self.remember = remember

    def forward(self, x):
        return self.inner(x) * self.remember(self, x)


def buffer(net, x):
    net.scale = 0.5 * net.scale + 0.5 * x.detach().abs().mean()
    return net.scale


def in_place(net, x):
    return net.scale.mul_(0.5).add_(0.5 * x.detach().abs().mean()).clone()


def attribute(net, x):
    before = net.box["a"][0]
    net.box["a"][0] = plain(x)
    return before


def of_the_class(net, x):
    before = Stateful.factor
    Stateful.factor = plain(x)
    return before


class Loss:
    before = 1.0

    def __call__(self, output, target):
        factor = self.before
        self.before = plain(output)
        return factor * cross_entropy(output, target)


CHANGED = r"changed module\.0\.scale;"
MOVED = "another loss after"


@pytest.mark.parametrize(
    ("remember", "loss", "message"),
    [
        (buffer, cross_entropy, CHANGED),
        (in_place, cross_entropy, CHANGED),
        (attribute, cross_entropy, MOVED),
        (of_the_class, cross_entropy, MOVED),
        (None, Loss(), MOVED),
    ],
)
def test_guarantee_what_remembers_the_examples_is_refused(remember, loss, message):
    net = nn.Sequential(Stateful(remember)) if remember else model()
    x, y = data(5)
    before = {name: value.clone() for name, value in net.named_buffers()}
    # Also where it was refused before, and where examples come in parts.
    for at_once in (5, 2, 2):
        with pytest.raises(ValueError, match="must not remember the examples.*" + message):
            clip_and_sum(net, loss, x, y, 1.0, at_once=at_once)
    for name, value in net.named_buffers():
        assert torch.equal(value, before[name])


def test_a_cache_that_a_call_on_public_input_has_filled_is_no_memory():
    def cached(net, x):
        if "table" not in net.box:
            net.scale = net.scale + 1
            net.box["table"] = net.scale
        return net.scale

    net = Stateful(cached)
    x, y = data(5)
    with pytest.raises(ValueError, match=r"changed module\.scale;.*call on public input"):
        clip_and_sum(net, cross_entropy, x, y, 1.0)
    # What the refused call has left is put away, and the cache filled from public numbers.
    net.box.clear()
    net(torch.zeros(1, 4, dtype=torch.float64))
    assert clip_and_sum(net, cross_entropy, x, y, 1.0).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_guarantee_half_precision_keeps_the_bound(dtype):
    """Sums of many users in 8 or 11 digits would lose or invent whole users."""
    net = model().to(dtype)
    x, y = data(600)
    x = x.to(dtype)
    total = clip_and_sum(net, cross_entropy, x, y, 1e-3)
    fewer = clip_and_sum(net, cross_entropy, x[1:], y[1:], 1e-3)
    assert total.dtype == torch.float32
    assert 0 < (total - fewer).norm() <= 1e-3 * (1 + 1e-3)
    # The smallest numbers keep their norm, of which squares are 0.
    rows = torch.full((1, 500), 6e-8, dtype=dtype)
    assert 0 < clipped_sum([rows], 5e-7).double().norm() <= 5e-7


class Drops(nn.Module):
    """A layer, and dropout by a module or by a function that no module shows."""

    def __init__(self, inner, shown):
        super().__init__()
        self.inner = inner
        self.drop = nn.Dropout(0.5) if shown else None

    def forward(self, x):
        out = self.inner(x[:, None])
        if isinstance(out, tuple):  # a recurrent layer's, and a state
            out = out[0]
        out = out[:, 0]
        return self.drop(out) if self.drop else dropout(out, training=self.training)


@pytest.mark.parametrize("inner", [nn.Linear(4, 3), nn.GRU(4, 3, batch_first=True)])
@pytest.mark.parametrize("shown", [True, False])
def test_dropout_draws_a_mask_for_each_example_and_leaves_torch_s_generator(inner, shown):
    net = Drops(inner, shown)
    x = torch.ones(200, 4)
    y = torch.zeros(200, 3)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"draws dropout .* pass dropout="):
        clip_and_sum(net, mse_loss, x[:3], y[:3], 1.0)
    one, same, other = [
        clip_and_sum(net, mse_loss, x, y, 1e-3, dropout=keyed_generator(key))
        for key in (b"1", b"1", b"2")
    ]
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    # The examples are one: only other masks give their gradients other directions.
    assert float(one.norm()) < 0.999 * 200e-3
    # Another program's draws after this call are what they were.
    assert torch.equal(before, torch.get_rng_state())
    assert clip_and_sum(net.eval(), mse_loss, x[:3], y[:3], 1.0).any()


def elsewhere():
    """Gradients of six examples in three parameters, one of which is no number."""
    g = keyed_generator(b"elsewhere")
    rows = [torch.randn(6, *shape, generator=g) for shape in ((), (3, 700), (4,))]
    rows[1][4] = math.inf
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_guarantee_gradients_made_elsewhere_are_clipped_together(dtype):
    rows = elsewhere()
    expected = torch.zeros(1 + 2100 + 4)
    for i in (0, 1, 2, 3, 5):
        one = torch.cat([part[i].flatten() for part in rows])
        expected += one * min(1.0, 40.0 / float(one.norm()))
    found = clipped_sum([part.to(dtype) for part in rows], 40.0)
    torch.testing.assert_close(found, expected.to(dtype), rtol=1e-4, atol=1e-4)
    # Of nobody the sum is 0.
    assert not clipped_sum([part[:0] for part in rows], 1.0).any()


@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1e25])
def test_guarantee_squares_that_float32_does_not_have(scale):
    few, many, _ = elsewhere()
    for part in (many[:1], few[:1]):
        bound = max(0.5 * scale * float(part.norm()), 1e-30)
        moved = float(clipped_sum([part * scale], bound).double().norm())
        assert 0.999 * bound <= moved <= bound * (1 + 1e-6)


@pytest.mark.parametrize("far", [math.inf, math.nan, 1e25, -3e38])
def test_guarantee_an_example_far_off_moves_the_sum_by_the_bound_at_most(far):
    """And no other example's part: 4,000 are clipped in one direction."""
    rows = torch.full((4001, 40), 3.0)
    # Its square is no number of float32.
    rows[7] = far
    others = torch.cat([rows[:7], rows[8:]])
    without = clipped_sum([others], 1.0).double()
    moved = float((clipped_sum([rows], 1.0).double() - without).norm())
    # Up to the rounding of the sum.
    assert moved <= (1 + 2e-4 if math.isfinite(far) else 2e-4)
    exact = clipped_sum([others.double()], 1.0)
    assert float(exact.norm()) == pytest.approx(4000)


@pytest.mark.parametrize(
    ("size", "numbers", "bound"),
    [
        (1e15, 3, 2e-30),
        (1e38, 10_000, 1e-5),
        (3e38, 4, 1e-7),
        (1e5, 50, 1e-28),
    ],
)
@pytest.mark.parametrize("factor", [1.0, 1.3, 1.7, 2.3])
def test_guarantee_scales_without_digits_do_not_round_over_the_bound(size, numbers, bound, factor):
    row = torch.full((1, numbers), size / factor)
    moved = float(clipped_sum([row], bound).double().norm())
    assert moved <= bound
    # Where float32 has no scale with all digits, the example counts as nothing.
    if row.double().norm() < 2.0**125 * bound:
        assert moved > 0.999 * bound
    else:
        assert moved == 0


def test_guarantee_a_second_example_changes_nothing_of_the_first_one():
    """Whose terms cancel: norms of factors are upper bounds.

    They would be taken for two examples and not for one.
    """
    net = nn.Linear(64, 64, bias=False)
    u = torch.randn(64, generator=keyed_generator(b"second"))
    first = torch.stack([u, u * (1 + 1e-7)])
    second = torch.stack([0 * u, 1e8 * (first[0] - first[1])])
    x = torch.stack([first, second])

    def loss(output, target):
        return 100 * (output[:, 0] - output[:, 1]).sum(1)

    # By factors' norms the second example would be scaled below its bound, or the first one.
    one, two = [clip_and_sum(net, loss, x[:n], torch.zeros(n), 1e-6) for n in (1, 2)]
    assert 0.99 < float((two - one).norm()) * 1e6 <= 1 + 1e-6


def test_guarantee_masks_are_seeded_on_their_own_device_alone_and_its_state_is_put_back(
    monkeypatch,
):
    """Two generators stand for those of two GPUs.

    One that is seeded and not put back would repeat its numbers.
    """
    gpus = [torch.Generator().manual_seed(place) for place in (1, 2)]
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    before = [each.get_state() for each in gpus]
    with masks(7, torch.device("cuda", 1)):
        assert torch.equal(gpus[0].get_state(), before[0])
        assert gpus[1].initial_seed() == torch.initial_seed() == 7
    for each, state in zip(gpus, before, strict=True):
        assert torch.equal(each.get_state(), state)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"sparse": True}])
def test_guarantee_tables_that_a_call_writes_to_are_refused_before_it(option):
    """Rows that are made shorter in place would show who was in a batch."""
    net = nn.Sequential(nn.Embedding(50, 4, **option), nn.Flatten(), nn.Linear(8, 3))
    before = net[0].weight.detach().clone()
    words = torch.arange(6).view(3, 2)
    with pytest.raises(ValueError, match="max_norm"):
        clip_and_sum(net, mse_loss, words, torch.zeros(3, 3), 1.0)
    assert torch.equal(net[0].weight, before)
