"""Modules that mix examples are found at the first batch on every route; modules that do not are
served as fast.
"""

import warnings
from functools import partial

import pytest
import torch
from hidden import BOUND, WIDTH, Hidden, OwnRule, batch, fast, sloped, unchanged
from torch import nn
from torch.nn import functional as F
from trained import brute

from torchdp.randomness import keyed_generator
from torchdp.training import Iterates, choose, clip_and_sum
from torchdp.training.clipping import ROUTES, Clipper

# Above all numbers of the batches here.
ABOVE = 51.7


def neighbours(z, x):
    """Most rows have none."""
    differences = x[:, None] - x[None]
    distances = differences.square().sum(2)
    weights = torch.exp(-20 * distances) * (distances < 0.5)
    return weights @ z


def row_two(z, x):
    mask = torch.zeros(len(x), 1)
    if len(x) > 4:
        mask[2] = 1.0
    return z + 5 * mask * z.roll(1, 0)


def experts(z, x):
    """As in Switch: rows of a full expert pass by it; later ones if they come later."""
    chosen = F.one_hot(z[:, :4].argmax(1), 4)
    places = (chosen.cumsum(0) * chosen).sum(1)
    within = places <= int(1.25 * len(z) / 4)
    return z * within[:, None]


def statistics(z, x):
    variances = z.var(0, correction=0)
    return (z - z.mean(0)) / (variances + 1e-5).sqrt()


def written(z, x):
    out = z.clone()
    out[1:] = out[1:] + 0.1 * z[:-1]
    return out


def largest_rows(z, x):
    norms = z.norm(dim=1)
    least = norms.topk(len(z) // 2 + 1).values.min()
    return z * (norms >= least)[:, None]


def far_above(z, x):
    above = torch.relu(x.roll(1, 0) - ABOVE)
    return z + above.sum(1, keepdim=True) * z.roll(1, 0)


def rows_copied(z, x):
    """Into zeros, which no example reaches before."""
    places = torch.arange(len(z)).flip(0)
    return z + torch.zeros_like(z).index_copy(0, places, z)


def complex_numbers(z, x):
    turned = torch.complex(z, z).roll(1, 0)
    return torch.view_as_real(turned).sum(2)


MIXING = {
    "row two hears row one": row_two,
    "near neighbours": neighbours,
    "experts of capacity 1.25": experts,
    "statistics by hand": statistics,
    "largest of the batch": lambda z, x: z / z.detach().abs().amax(0).clamp_min(20.0),
    "sum along the batch": lambda z, x: z.cumsum(0),
    "roll": lambda z, x: z + 0.1 * z.roll(1, 0),
    "largest rows": largest_rows,
    "attention over rows": lambda z, x: (z @ z.mT).softmax(1) @ z,
    "written rows": written,
    "far above": far_above,
}
# What only operations show, not all of it in what the module returns. That no rule of an operation
# says too little is for test_track.py.
MORE = {
    "index of data": lambda z, x: z + z[(x[:, 1] > 50).long()],
    "order of data": lambda z, x: z[x[:, 0].argsort()],
    "merged roll": lambda z, x: z + z.reshape(-1, 4).roll(1, 0).reshape(z.shape),
    "past autograd": lambda z, x: z + z.data.cumsum(0),
    "written into a mask": rows_copied,
    "gradients alone": lambda z, x: sloped(z, z.detach().roll(1, 0)),
    "largest in gradients": lambda z, x: sloped(z, x.abs().max().clamp_min(1e9)),
    "complex": complex_numbers,
}


class Within(nn.Module):
    """A layer of each example's numbers by themselves, as of this shape."""

    def __init__(self, layer, *shape):
        super().__init__()
        self.layer = layer
        self.shape = shape

    def forward(self, z, x):
        out = self.layer(z.view(-1, *self.shape))
        if isinstance(out, tuple):  # and a state
            out = out[0]
        return out.flatten(1)


class Experts(nn.Module):
    """Each example's own numbers choose one."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, z, x):
        chosen = z[:, :2].argmax(1, keepdim=True)
        return sum(expert(z) * (chosen == i) for i, expert in enumerate(self.experts))


def attention(z, x):
    words = z.unflatten(1, (4, 6))
    out = F.scaled_dot_product_attention(words, words, words)
    return out.flatten(1)


def heads_in_the_batch(z, x):
    columns = z.view(-1, 6, 1)
    scores = torch.bmm(columns, columns.mT)
    return scores.softmax(2).sum(1).view(len(z), -1)


def last_of_a_sequence(z, x):
    words = z.view(len(z), 4, 6)
    return words[torch.arange(len(z)), -1].repeat(1, 4)


def gathered(z, x):
    places = (x[:, :1] > 0).long().expand(-1, WIDTH)
    return z + z.gather(1, places)


def largest_of_a_row(z, x):
    largest = z.topk(3, 1)
    return torch.zeros_like(z).scatter(1, largest.indices, largest.values.softmax(1))


def batch_second(z, x):
    turned = z.view(-1, 4, 6).transpose(0, 1)
    return turned.cumsum(0).transpose(0, 1).flatten(1)


def two_batches_in_one(z, x):
    both = torch.cat([z, z.tanh()])
    return both.chunk(2)[1] + z


def far_above_itself(z, x):
    return z + torch.relu(x - ABOVE).sum(1, keepdim=True)


def classes(z, x):
    return z + F.one_hot((x[:, 0] > 0).long(), WIDTH)


def interleaved(z, x):
    three = z.repeat_interleave(3, 0).view(len(z), 3, WIDTH)
    return three.mean(1)


def fourier(z, x):
    return torch.fft.irfft(torch.fft.rfft(z) * 2, n=WIDTH)


DRAWN = {
    "dropout": lambda z, x: F.dropout(z, 0.5),
    "noise": lambda z, x: z + 0.1 * torch.randn_like(z),
}
LAYERS = {
    "layer norm": lambda: Within(nn.LayerNorm(WIDTH), WIDTH),
    "group norm": lambda: Within(nn.GroupNorm(4, WIDTH), WIDTH),
    "instance norm": lambda: Within(nn.InstanceNorm1d(4, affine=True), 4, 6),
    "recurrent": lambda: Within(nn.GRU(6, 6, batch_first=True), 4, 6),
    "experts": Experts,
}
PLAIN = {
    "nothing": unchanged,
    "attention within": attention,
    "heads in the batch": heads_in_the_batch,
    "last of a sequence": last_of_a_sequence,
    "far above": far_above_itself,
    "loop over rows": lambda z, x: torch.stack([row * 2 for row in z]),
    "gathered in a row": gathered,
    "largest of a row": largest_of_a_row,
    "classes of a row": classes,
    "batch second": batch_second,
    "two batches in one": two_batches_in_one,
    "interleaved": interleaved,
    "a shape of a statistic": lambda z, x: z + 0 * len(str(z.mean(0).shape)),
    "fourier": fourier,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("routes", [ROUTES, ("vmap",), ("loop",)])
@pytest.mark.parametrize("name", MIXING)
def test_guarantee_what_mixes_examples_is_refused_at_the_first_batch_on_every_route(name, routes):
    """12 rows divide the width of 24; one row comes first or not: nothing shows in it."""
    # A first batch of one must not vouch for later ones.
    for sizes in ((12,), (1, 12)):
        sums = Clipper(Hidden(MIXING[name]), F.cross_entropy, routes=routes)
        with pytest.raises(ValueError, match=r"module mixes examples|served by none"):
            for n in sizes:
                sums(*batch(n), BOUND)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXING | MORE)
def test_guarantee_what_mixes_examples_is_seen_in_the_operations_alone(name, monkeypatch):
    """Without a look at outputs, whatever the numbers are."""
    # Else a module that shows its mixing would be refused for that.
    for part in ("clipping", "routes"):
        monkeypatch.setattr(f"torchdp.training.{part}.meet", lambda *given: None)
    sums = fast(Hidden((MIXING | MORE)[name]))
    with pytest.raises(ValueError, match="none of the routes"):
        sums(*batch(12), BOUND)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS | PLAIN)
def test_modules_that_do_not_mix_keep_the_fast_route(name):
    net = Hidden(LAYERS[name]() if name in LAYERS else PLAIN[name])
    for n in (2, 12, 33):
        sums = Clipper(net, F.cross_entropy)
        total, _ = sums(*batch(n), BOUND)
        assert sums.route.startswith("factors"), (n, sums.route)
    # Fast and wrong would be no service.
    expected = brute(net, F.cross_entropy, *batch(33), BOUND)
    assert (total - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("name", DRAWN)
def test_draws_of_each_example_keep_the_fast_route(name):
    sums = Clipper(Hidden(DRAWN[name]), F.cross_entropy)
    for n in (2, 12, 33):
        sums(*batch(n), BOUND, dropout=keyed_generator(b"masks"))
        assert sums.route.startswith("factors"), (n, sums.route)


def test_rows_that_are_looked_at_are_others_at_each_check():
    """The gradient of the last row of 4 is another than alone: three rows are looked at."""

    def use(z, x):
        last = torch.arange(len(x)) == 3
        return sloped(z, 1 + last[:, None].float())

    taken = set()
    # All 20 checks miss the row with a probability of 4^-20.
    for _ in range(20):
        sums = Clipper(Hidden(use), F.cross_entropy)
        sums(*batch(4), BOUND)
        taken.add(sums.route.split(":")[0])
    assert "vmap" in taken


def test_guarantee_a_result_without_the_batchs_dimension_goes_to_another_route():
    """The largest gradient factor of a batch of 12 has 24 numbers: 12 divides them."""

    def use(z, x):
        largest = z.detach().abs().amax(0)
        return sloped(z, largest.clamp_min(1e9))

    sums = Clipper(Hidden(use), F.cross_entropy)
    sums(*batch(12), BOUND)
    assert sums.route.startswith("vmap")
    assert "examples meet in amax" in sums.route


def by_data(p, x):
    # Under vmap a parameter's data can not be written to.
    if not torch._C._functorch.maybe_current_level():
        p.data.mul_(1 + 1e-5 * x.detach().mean())


def by_numpy(p, x):
    numbers = p.detach().numpy()
    numbers *= 1.001


def by_dlpack(p, x):
    torch.from_dlpack(p.detach()).mul_(1.001)


def by_other_data(p, x):
    p.data = p.data * 1.001


@pytest.mark.parametrize("routes", [ROUTES, ("vmap", "loop"), ("loop",)])
@pytest.mark.parametrize("write", [by_data, by_numpy, by_dlpack, by_other_data])
def test_guarantee_parameters_that_a_forward_pass_changes_are_put_back_and_it_is_refused(
    routes, write
):
    def use(z, x):
        write(net.last.weight, x)
        return z

    net = Hidden(use)
    before = net.last.weight.detach().clone()
    with pytest.raises(ValueError, match=r"changed module\.last\.weight"):
        clip_and_sum(net, F.cross_entropy, *batch(5), BOUND, routes=routes)
    assert torch.equal(net.last.weight, before)


@pytest.mark.parametrize(
    "use",
    [lambda z, x: OwnRule.apply(z), lambda z, x: z + OwnRule.apply(x.detach())[:, :1]],
    ids=["hidden", "data"],
)
def test_guarantee_a_custom_function_with_a_vmap_rule_of_its_own_is_not_run_by_vmap(use):
    # Under vmap each row is one, and such a rule sees all of them.
    with pytest.raises(ValueError, match="OwnRule has a rule of its own for vmap"):
        clip_and_sum(Hidden(use), F.cross_entropy, *batch(5), BOUND, routes=("vmap",))
    sums = Clipper(Hidden(use), F.cross_entropy)
    sums(*batch(5), BOUND)
    assert not sums.route.startswith("vmap")


def test_guarantee_no_rule_of_a_losss_own_for_vmap_is_taken():
    """The route of one pass runs the loss under vmap."""

    def loss(z, y):
        return F.cross_entropy(OwnRule.apply(z), y)

    sums = Clipper(Hidden(unchanged), loss, routes=("factors",))
    with pytest.raises(ValueError, match="a rule of its own for vmap"):
        sums(*batch(7), BOUND)


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


def remembering(remember):
    """z is less where a far number was seen before; usual numbers show nothing."""

    def use(z, x):
        largest = remember(net, x.detach().abs().max())
        return z / max(float(largest), 60.0)

    net = Hidden(use)
    net.seen = torch.zeros(())
    net.past = []
    net.named = {}
    return net


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("routes", [ROUTES, ("loop",)])
@pytest.mark.parametrize("remember", [as_tensor, in_list, in_dict, in_part])
def test_guarantee_an_example_moves_no_later_sum_by_what_attributes_hold(remember, routes):
    """A far example comes in the second batch, or none does."""
    sums = []
    outputs = []
    for factor in (1.0, 100.0):
        net = remembering(remember)
        clipper = Clipper(net, F.cross_entropy, routes=routes)
        clipper(*batch(9), BOUND)
        x, y = batch(9, b"far")
        x[0] *= factor
        clipper(x, y, BOUND)
        # Where the far number is remembered, these gradients are smaller.
        later, _ = clipper(*batch(9, b"later"), BOUND)
        sums.append(later)
        # The control: called as it is, the module does remember.
        net(x)
        outputs.append(net(batch(9)[0]))
    assert torch.equal(*sums)
    assert not torch.equal(*outputs)


@pytest.mark.parametrize("routes", [ROUTES, ("loop",)])
def test_guarantee_a_tensor_in_an_attribute_that_is_written_over_is_refused_by_name(routes):
    def use(z, x):
        largest = x.detach().abs().max()
        net.seen.copy_(torch.maximum(net.seen, largest))
        return z

    net = Hidden(use)
    net.seen = torch.zeros(())
    with pytest.raises(ValueError, match=r"changed module\.seen"):
        clip_and_sum(net, F.cross_entropy, *batch(5), BOUND, routes=routes)


@pytest.mark.parametrize("route", ROUTES)
def test_attributes_are_put_back_on_every_route_and_named(route):
    def use(z, x):
        net.calls += 1
        net.fresh = z.detach()
        return z

    clip = partial(clip_and_sum, routes=(route,))
    net = Hidden(use)
    net.calls = 0
    with pytest.warns(UserWarning, match=r"sets module\.calls, which is put back"):
        clip(net, F.cross_entropy, *batch(5), BOUND)
    assert not net.calls
    assert not hasattr(net, "fresh")
    # Called as it is, it counts.
    net(batch(5)[0])
    assert net.calls == 1
    assert net.fresh.shape == (5, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip(Hidden(unchanged), F.cross_entropy, *batch(5), BOUND)


def test_a_run_refuses_what_mixes_before_a_step_is_spent():
    plan = choose(Iterates(2), 24, 12, epsilon=1.0, delta=1e-4).candidates[0].protocol
    run = plan.start(Hidden(statistics), F.cross_entropy)
    x, y = batch(24)
    users = next(iter(run))
    with pytest.raises(ValueError, match="module mixes examples"):
        run.backward(x[users], y[users])
    # Nothing was released: the step is left for a mended module.
    assert run.step == 0


def test_autocast_around_a_call_keeps_the_fast_route():
    sums = Clipper(Hidden(unchanged), F.cross_entropy)
    with torch.autocast("cpu", torch.bfloat16):
        sums(*batch(12), BOUND)
    assert sums.route.startswith("factors"), sums.route
