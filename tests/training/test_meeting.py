"""Modules that mix examples are found at the first batch on every route; modules that do not are
served as fast.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from trained import brute, filled

from torchdp.randomness import keyed_generator
from torchdp.training import Iterates, choose, clip_and_sum
from torchdp.training.clipping import Clipper

WIDTH = 24
BOUND = 0.5


class Net(nn.Module):
    """Its hidden numbers z, (n, WIDTH), are changed by ``use(self, z, x)``."""

    def __init__(self, use, **parts):
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.parts = nn.ModuleDict(parts)
        self.use = use
        filled(self, 0.4)

    def forward(self, x):
        return self.last(torch.tanh(self.use(self, self.first(x), x)))


def batch(n, key=b"meeting"):
    g = keyed_generator(key)
    return torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)


def neighbours(net, z, x):
    """Most rows have none."""
    apart = (x[:, None] - x[None]).square().sum(2)
    return (torch.exp(-20 * apart) * (apart < 0.5)) @ z


def row_two(net, z, x):
    mask = torch.zeros(len(x), 1)
    if len(x) > 4:
        mask[2] = 1.0
    return z + 5 * mask * z.roll(1, 0)


def experts(net, z, x):
    """As in Switch: rows of a full expert pass by it; later ones if they come later."""
    chosen = F.one_hot(z[:, :4].argmax(1), 4)
    within = (chosen.cumsum(0) * chosen).sum(1) <= int(1.25 * len(z) / 4)
    return z * within[:, None]


def statistics(net, z, x):
    return (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()


def written(net, z, x):
    out = z.clone()
    out[1:] = out[1:] + 0.1 * z[:-1]
    return out


MIXING = {
    "row two hears row one": row_two,
    "near neighbours": neighbours,
    "experts of capacity 1.25": experts,
    "statistics by hand": statistics,
    "largest of the batch": lambda net, z, x: z / z.detach().abs().amax(0).clamp_min(20.0),
    "sum along the batch": lambda net, z, x: z.cumsum(0),
    "sorted": lambda net, z, x: z.sort(0).values,
    "roll": lambda net, z, x: z + 0.1 * z.roll(1, 0),
    "softmax over rows": lambda net, z, x: z * z.softmax(0),
    "largest rows": lambda net, z, x: z * (z.norm(dim=1) >= z.norm(dim=1).topk(len(z) // 2 + 1).values.min())[:, None],
    "attention over rows": lambda net, z, x: (z @ z.mT).softmax(1) @ z,
    "convolution over rows": lambda net, z, x: F.avg_pool1d(z.mT[None], 3, 1, 1)[0].mT,
    "written rows": written,
    "far above": lambda net, z, x: z + torch.relu(x.roll(1, 0) - 51.7).sum(1, keepdim=True) * z.roll(1, 0),
}  # fmt: skip
MORE = {  # what only operations show, not all of it in what the module returns
    "flip": lambda net, z, x: z + z.flip(0),
    "rows added": lambda net, z, x: z + torch.zeros_like(z).index_add(0, torch.arange(len(z)).roll(1), z),
    "index of data": lambda net, z, x: z + z[(x[:, 1] > 50).long()],
    "order of data": lambda net, z, x: z[x[:, 0].argsort()],
    "merged roll": lambda net, z, x: z + z.reshape(-1, 4).roll(1, 0).reshape(z.shape),
    "unfolded rows": lambda net, z, x: z + F.pad(z, (0, 0, 1, 0)).unfold(0, 2, 1).sum(2),
    "past autograd": lambda net, z, x: z + z.data.cumsum(0),
    "distances": lambda net, z, x: z + torch.exp(-torch.cdist(z, z)) @ z,
    "contracted rows": lambda net, z, x: z + torch.einsum("nd,md->nm", z, z).mean(1, keepdim=True),
    "masked mean": lambda net, z, x: z - (z * (x[:, :1] > 0)).sum(0) / 9,
    "written into a mask": lambda net, z, x: z + torch.zeros_like(z).index_copy(0, torch.arange(len(z)).flip(0), z),
    "gradients alone": lambda net, z, x: z.detach() + (z - z.detach()) * z.detach().roll(1, 0),
    "largest in gradients": lambda net, z, x: z.detach() + (z - z.detach()) * x.abs().max().clamp_min(1e9),
    "complex": lambda net, z, x: torch.view_as_real(torch.complex(z, z).roll(1, 0)).sum(2),
    "kth row": lambda net, z, x: z / z.detach().abs().kthvalue(1, 0).values.clamp_min(1e9),
    "half of the rows": lambda net, z, x: torch.cat([z[len(z) // 2 :], z[: len(z) // 2]]),
}  # fmt: skip
HONEST = {  # and the route that serves it
    "nothing": (lambda net, z, x: z, {}, "factors"),
    "dropout": (lambda net, z, x: F.dropout(z, 0.5), {}, "factors"),
    "layer norm": (lambda net, z, x: net.parts["n"](z), {"n": nn.LayerNorm(WIDTH)}, "factors"),
    "group norm": (lambda net, z, x: net.parts["n"](z), {"n": nn.GroupNorm(4, WIDTH)}, "factors"),
    "attention within": (
        lambda net, z, x: F.scaled_dot_product_attention(*[z.unflatten(1, (4, 6))] * 3).flatten(1), {}, "factors"),
    "heads in the batch": (
        lambda net, z, x: torch.bmm(z.view(-1, 6, 1), z.view(-1, 1, 6)).softmax(2).sum(1).view(len(z), -1), {},
        "factors"),
    "last of a sequence": (
        lambda net, z, x: z.view(len(z), 4, 6)[torch.arange(len(z)), -1].repeat(1, 4), {}, "factors"),
    "experts": (
        lambda net, z, x: sum(
            net.parts[k](z) * (z[:, :2].argmax(1) == i)[:, None] for i, k in enumerate("ab")),
        {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)}, "factors"),
    "far above": (lambda net, z, x: z + torch.relu(x - 51.7).sum(1, keepdim=True), {}, "factors"),
    "noise": (lambda net, z, x: z + 0.1 * torch.randn_like(z), {}, "factors"),
    "loop over rows": (lambda net, z, x: torch.stack([row * 2 for row in z]), {}, "factors"),
    "recurrent": (
        lambda net, z, x: net.parts["r"](z.view(-1, 4, 6))[0].flatten(1),
        {"r": nn.GRU(6, 6, batch_first=True)}, "factors"),
    "instance norm": (
        lambda net, z, x: net.parts["n"](z.view(-1, 4, 6)).flatten(1),
        {"n": nn.InstanceNorm1d(4, affine=True)}, "factors"),
    "gathered in a row": (
        lambda net, z, x: z + z.gather(1, (x[:, :1] > 0).long().expand(-1, WIDTH)), {}, "factors"),
    "largest of a row": (
        lambda net, z, x: torch.zeros_like(z).scatter(1, z.topk(3, 1).indices, z.topk(3, 1).values.softmax(1)),
        {}, "factors"),
    "classes of a row": (
        lambda net, z, x: z + F.one_hot((x[:, 0] > 0).long(), WIDTH), {}, "factors"),
    "batch second": (
        lambda net, z, x: z.view(-1, 4, 6).transpose(0, 1).cumsum(0).transpose(0, 1).flatten(1), {}, "factors"),
    "two batches in one": (
        lambda net, z, x: torch.cat([z, z.tanh()]).chunk(2)[1] + z, {}, "factors"),
    "interleaved": (
        lambda net, z, x: z.repeat_interleave(3, 0).view(len(z), 3, -1).mean(1), {}, "factors"),
    "statistic that is not used": (
        lambda net, z, x: z + 0 * len(str(z.detach().mean(0).shape)), {}, "factors"),
    "fourier": (
        lambda net, z, x: torch.fft.irfft(torch.fft.rfft(z) * 2, n=WIDTH), {}, "factors"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXING)
def test_guarantee_what_mixes_examples_is_refused_at_the_first_batch_on_every_route(name):
    """12 rows divide the width of 24; also where the first batch has one row, in which nothing
    shows.
    """
    for routes in (("factors", "vmap", "loop"), ("vmap",), ("loop",)):
        for sizes in ((12,), (1, 12)):
            sums = Clipper(Net(MIXING[name]), F.cross_entropy, routes=routes)
            with pytest.raises(ValueError, match=r"module mixes examples|served by none"):
                for n in sizes:
                    sums(*batch(n), BOUND)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXING | MORE)
def test_guarantee_what_mixes_examples_is_seen_in_the_operations_alone(name, monkeypatch):
    """Without a look at outputs, whatever the numbers are."""
    for part in ("clipping", "routes"):
        monkeypatch.setattr(f"torchdp.training.{part}.meet", lambda *given: None)
    sums = Clipper(Net((MIXING | MORE)[name]), F.cross_entropy, routes=("factors",))
    with pytest.raises(ValueError, match="none of the routes"):
        sums(*batch(12), BOUND)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HONEST)
def test_modules_that_do_not_mix_are_served_by_the_route_that_they_had(name):
    use, parts, route = HONEST[name]
    for n in (2, 12, 33):
        net = Net(use, **parts)
        sums = Clipper(net, F.cross_entropy)
        total, _ = sums(*batch(n), BOUND, dropout=keyed_generator(b"masks"))
        assert sums.route.split(":")[0] == route, (n, sums.route)
    if name not in ("dropout", "noise"):
        expected = brute(net, F.cross_entropy, *batch(33), BOUND)
        assert (total - expected).norm() < 1e-4 * expected.norm()


def test_rows_that_are_looked_at_are_others_at_each_check():
    """The gradient of the last row of 4 is another than alone: three rows are looked at."""

    def use(net, z, x):
        last = (torch.arange(len(x)) == 3)[:, None]
        stopped = z.detach()
        return stopped + (z - stopped) * (1 + last.float())

    taken = []
    for _ in range(20):
        sums = Clipper(Net(use), F.cross_entropy)
        sums(*batch(4), BOUND)
        taken.append(sums.route.split(":")[0])
    assert "vmap" in taken


def test_guarantee_a_result_without_the_batch_s_dimension_goes_to_another_route_whatever_sizes_divide():
    """The largest gradient factor of a batch of 12 has 24 numbers; outputs show nothing of it."""

    def use(net, z, x):
        stopped = z.detach()
        return stopped + (z - stopped) * stopped.abs().amax(0).clamp_min(1e9)

    sums = Clipper(Net(use), F.cross_entropy)
    sums(*batch(12), BOUND)
    assert sums.route.startswith("vmap")
    assert "examples meet in amax" in sums.route


@pytest.mark.parametrize("routes", [("factors", "vmap", "loop"), ("vmap", "loop"), ("loop",)])
@pytest.mark.parametrize(
    "write",
    [
        lambda p, x: (
            p.data.mul_(1 + 1e-5 * x.detach().mean())
            if not torch._C._functorch.maybe_current_level()
            else None
        ),
        lambda p, x: p.detach().numpy().__imul__(1.001),
        lambda p, x: torch.from_dlpack(p.detach()).mul_(1.001),
        lambda p, x: setattr(p, "data", p.data * 1.001),
    ],
)
def test_guarantee_a_forward_pass_that_changes_parameters_is_refused_and_they_are_put_back(
    routes, write
):
    def use(net, z, x):
        write(net.last.weight, x)
        return z

    net = Net(use)
    before = net.last.weight.detach().clone()
    with pytest.raises(ValueError, match=r"changed module\.last\.weight"):
        clip_and_sum(net, F.cross_entropy, *batch(5), BOUND, routes=routes)
    assert torch.equal(net.last.weight, before)


class OwnRule(torch.autograd.Function):
    """Each row by itself, but under vmap."""

    @staticmethod
    def forward(z):
        return z * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def vmap(info, in_dims, z):
        return z - z.roll(1, 0), 0


def test_guarantee_a_custom_function_with_a_vmap_rule_of_its_own_is_not_run_by_vmap():
    for use in (
        lambda net, z, x: OwnRule.apply(z),
        lambda net, z, x: z + OwnRule.apply(x.detach())[:, :1],
    ):
        with pytest.raises(ValueError, match="OwnRule has a rule of its own for vmap"):
            clip_and_sum(Net(use), F.cross_entropy, *batch(5), BOUND, routes=("vmap",))
        sums = Clipper(Net(use), F.cross_entropy)
        sums(*batch(5), BOUND)
        assert not sums.route.startswith("vmap")


def kept(use):
    """Nothing that usual numbers show: z becomes less where a far number was seen before."""
    return lambda net, z, x: z / max(float(use(net, x.detach().abs().max())), 60.0)


def as_tensor(net, new):
    old = net.seen
    net.seen = torch.maximum(old, new)
    return old


def in_list(net, new):
    old = [*net.past, 0.0]
    net.past.append(float(new))
    return max(old)


def in_dict(net, new):
    old = net.named.get("most", 0.0)
    net.named["most"] = max(old, float(new))
    return old


def in_part(net, new):
    old = getattr(net.first, "seen", 0.0)
    net.first.seen = max(old, float(new))
    return old


REMEMBERS = {"tensor": as_tensor, "list": in_list, "dict": in_dict, "part": in_part}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("routes", [("factors", "vmap", "loop"), ("loop",)])
@pytest.mark.parametrize("name", REMEMBERS)
def test_guarantee_an_example_moves_no_later_sum_by_what_attributes_hold(name, routes):
    """A far example comes in the second batch, or none; the module itself remembers it, called as
    it is.
    """
    sums, outputs = [], []
    for factor in (1.0, 100.0):
        net = Net(kept(REMEMBERS[name]))
        net.seen = torch.zeros(())
        net.past = []
        net.named = {}
        clipper = Clipper(net, F.cross_entropy, routes=routes)
        clipper(*batch(9), BOUND)
        x, y = batch(9, b"far")
        x[0] *= factor
        clipper(x, y, BOUND)
        sums.append(clipper(*batch(9, b"later"), BOUND)[0])
        net(x)
        outputs.append(net(batch(9)[0]))
    assert torch.equal(*sums)
    assert not torch.equal(*outputs)


@pytest.mark.parametrize("routes", [("factors", "vmap", "loop"), ("loop",)])
def test_guarantee_a_tensor_in_an_attribute_that_is_written_over_is_refused_by_name(routes):
    def use(net, z, x):
        net.seen.copy_(torch.maximum(net.seen, x.detach().abs().max()))
        return z

    net = Net(use)
    net.seen = torch.zeros(())
    with pytest.raises(ValueError, match=r"changed module\.seen"):
        clip_and_sum(net, F.cross_entropy, *batch(5), BOUND, routes=routes)


@pytest.mark.parametrize("routes", [("factors",), ("vmap",), ("loop",)])
def test_attributes_are_put_back_on_every_route_and_named(routes):
    def use(net, z, x):
        net.calls += 1
        net.fresh = z.detach()
        return z

    net = Net(use)
    net.calls = 0
    with pytest.warns(UserWarning, match=r"sets module\.calls, which is put back"):
        clip_and_sum(net, F.cross_entropy, *batch(5), BOUND, routes=routes)
    assert not net.calls
    assert not hasattr(net, "fresh")
    net(batch(5)[0])
    assert net.calls == 1
    assert net.fresh.shape == (5, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip_and_sum(Net(lambda net, z, x: z), F.cross_entropy, *batch(5), BOUND, routes=routes)


def test_a_run_refuses_what_mixes_before_a_step_is_spent():
    plan = choose(Iterates(2), 24, 12, epsilon=1.0, delta=1e-4).candidates[0].protocol
    run = plan.start(Net(statistics), F.cross_entropy)
    x, y = batch(24)
    users = next(iter(run))
    with pytest.raises(ValueError, match="module mixes examples"):
        run.backward(x[users], y[users])
    assert run.step == 0


def test_autocast_around_a_call_keeps_the_fast_route():
    sums = Clipper(Net(lambda net, z, x: z), F.cross_entropy)
    with torch.autocast("cpu", torch.bfloat16):
        sums(*batch(12), BOUND)
    assert sums.route.startswith("factors"), sums.route
