"""Modules that mix examples, or hide it: by which route they are served, and by how much one
example moves the sum.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from trained import filled

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import Clipper

BOUND = 0.5
# above all numbers of the batches that are looked at first
FAR = 51.7


class Hooks(torch.autograd.Function):
    """Mixes in both directions."""

    @staticmethod
    def forward(ctx, z):
        return z + z.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g + g.mean(0)


class Mixes(nn.Module):
    """Its hidden numbers are ``mix`` of what a layer makes of the batch."""

    def __init__(self, mix):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)
        self.mix = mix
        filled(self, 0.5)

    def forward(self, x):
        return self.last(self.mix(self.first(x), x))


def hooked(z, x):
    z.register_hook(lambda g: g + g.roll(1, 0))
    return z


def where_far(z, x):
    """Nothing shows of it in batches of usual numbers, and each row keeps its place."""
    return z + torch.relu(x.roll(1, 0) - FAR).sum(1, keepdim=True) * z.roll(1, 0)


MIXES = {  # what is done, and the route that serves it
    "honest": (lambda z, x: torch.relu(z), "factors"),
    "branch on data": (lambda z, x: z - z.roll(1, 0) if bool((x > 50).any()) else z, "refused"),
    "little of another": (lambda z, x: z - 1e-3 * z.roll(1, 0), "refused"),
    "from nine on": (lambda z, x: z - z.roll(1, 0) if len(z) > 8 else z, "refused"),
    "factor of the number": (lambda z, x: z - z.roll(1, 0) * float(len(z) > 8), "vmap"),
    "norm of all, where large": (lambda z, x: z / x.norm().clamp_min(1e3), "refused"),
    "item": (lambda z, x: z * (1.0 if (x > 1e9).sum().item() < 9 else 0.0), "loop"),
    "numpy": (lambda z, x: z * float(x.detach().numpy().sum() < 1e9), "loop"),
    "dlpack": (lambda z, x: z * float(torch.from_dlpack(x.detach()).numpy().sum() < 1e9), "loop"),
    "storage": (lambda z, x: z * float(x.untyped_storage()[0] < 999), "loop"),
    "written out": (lambda z, x: z * float(len(f"{x.sum().detach():.3f}") < 99), "loop"),
    "index": (lambda z, x: z[:, : min(8, 8 + int(x.sum() > 1e9))], "loop"),
    "hook": (hooked, "vmap"),
    "custom function": (lambda z, x: Hooks.apply(z), "refused"),
    "custom function of data": (lambda z, x: z + Hooks.apply(x).sum(1, keepdim=True), "refused"),
}  # fmt: skip


def batch(n, key):
    g = keyed_generator(key)
    x = torch.randn(n, 6, generator=g)
    return x, torch.randint(3, (n,), generator=g)


def most(sums, last=100.0, sizes=range(3, 12)):
    """The largest change of the sum by one example that comes last, over the bound; each size was
    seen before.
    """
    for n in range(2, 12):
        sums(*batch(n, b"seen"), BOUND)
    moves = []
    for n in sizes:
        x, y = batch(n, bytes([n]))
        x[-1] *= last
        with_it, without = (sums(x[:k], y[:k], BOUND)[0].double() for k in (n, n - 1))
        moves.append(float((with_it - without).norm()) / BOUND)
    return max(moves)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXES)
def test_guarantee_an_example_moves_the_sum_by_the_bound_at_most_where_examples_mix(name):
    mix, route = MIXES[name]
    sums = Clipper(Mixes(mix), cross_entropy)
    if route == "refused":
        with pytest.raises(ValueError, match="module mixes examples"):
            most(sums)
        return
    assert 0.5 < most(sums) <= 1 + 1e-5
    assert sums.route.split(":")[0] == route, sums.route


def test_guarantee_what_no_number_shows_is_followed_in_the_operations():
    """Numbers a thousand times as large as those of all batches that were looked at show nothing."""
    net = Mixes(lambda z, x: where_far(z, x / 1e4))
    for routes in (("factors", "vmap", "loop"), ("vmap", "loop")):
        sums = Clipper(net, cross_entropy, routes=routes)
        assert 0.5 < most(sums, 1e6, range(5, 7)) <= 1 + 1e-5
        assert sums.route.startswith("vmap")


@pytest.mark.parametrize("share", [1e-3, 0.0])
def test_half_precision_keeps_the_fast_route_and_what_it_hides_is_followed(share):
    """A share of another example's gradient that bfloat16 does not see."""
    net = Mixes(lambda z, x: z + share * (hooked_forward(z, x) - z) if share else z).bfloat16()
    sums, (x, y) = Clipper(net, cross_entropy), batch(7, b"half")
    sums(x.bfloat16(), y, BOUND)
    assert sums.route.startswith("vmap" if share else "factors")


def test_dropout_is_checked_without_it_and_mixing_beside_it_is_seen():
    sums = Clipper(Mixes(lambda z, x: dropout(z, 0.5)), cross_entropy)
    sums(*batch(7, b"drops"), BOUND, dropout=keyed_generator(b"masks"))
    assert sums.route.startswith("factors")
    sums = Clipper(Mixes(lambda z, x: dropout(z, 0.5) - 0.1 * z.roll(1, 0)), cross_entropy)
    with pytest.raises(ValueError, match="module mixes examples"):
        sums(*batch(7, b"drops"), BOUND, dropout=keyed_generator(b"masks"))


class LateBackward(torch.autograd.Function):
    """Its gradients mix in batches of more than 20."""

    @staticmethod
    def forward(ctx, z):
        return z * 1.0

    @staticmethod
    def backward(ctx, g):
        return g + g.roll(1, 0) if len(g) > 20 else g * 1.0


def test_guarantee_python_in_the_backward_pass_is_part_of_the_program():
    sums = Clipper(Mixes(lambda z, x: LateBackward.apply(z)), cross_entropy, routes=("factors",))
    sums(*batch(7, b"late"), BOUND)
    with pytest.raises(ValueError, match="examples meet in add"):
        sums(*batch(30, b"late"), BOUND)


def test_guarantee_an_index_that_the_next_pass_may_have_otherwise_chooses_anything():
    """Rows are permuted by a parameter, which training moves."""

    def use(z, x):
        # From the first pass on it is 0, and later perhaps 1: the row before.
        before = net.first.bias[:1].detach().long() * -1
        return z[torch.arange(len(z)) + before]

    net = Mixes(use)
    with pytest.raises(ValueError, match="examples meet in"):
        Clipper(net, cross_entropy, routes=("factors",))(*batch(7, b"index"), BOUND)


def by_other_constant(z, x, late):
    places = torch.arange(len(z))
    return z + z[[places, places.flip(0)][late]]


def by_numpy_in_place(z, x, late):
    places = torch.arange(len(z))
    if late:
        places.numpy()[:] = np.arange(len(z))[::-1]
    return z + z[places]


LATER = {  # what a module does from some batch on, by calls that look as before
    "sizes whose hashes are one": lambda z, x, late: z + z.softmax([-1, -2][late]),
    "another constant of the pass": by_other_constant,
    "numbers of numpy": lambda z, x, late: z + z.roll(np.int64(late), 0),
    "written by numpy": by_numpy_in_place,
}


@pytest.mark.parametrize("name", LATER)
def test_guarantee_a_program_that_differs_in_a_constant_is_another_one(name):
    late = []
    net = Mixes(lambda z, x: LATER[name](z, x, len(late)))
    sums = Clipper(net, cross_entropy, routes=("factors",))
    with pytest.raises(ValueError, match=r"module mixes examples|examples meet in"):
        for _ in range(2):
            sums(*batch(7, b"later"), BOUND)
            late.append(True)


class Returns(Mixes):
    """One of two tensors that both are made in each call."""

    late = False

    def forward(self, x):
        z = super().forward(x)
        return [z, z - z.mean(0)][self.late]


def test_guarantee_what_a_module_returns_is_part_of_the_program():
    net = Returns(lambda z, x: z)
    sums = Clipper(net, cross_entropy, routes=("factors",))
    sums(*batch(7, b"returns"), BOUND)
    net.late = True
    with pytest.raises(ValueError, match="module mixes examples"):
        sums(*batch(7, b"returns"), BOUND)


class NumpyBackward(torch.autograd.Function):
    """The gradients of all are made shorter where one of them is long."""

    @staticmethod
    def forward(ctx, z):
        return z * 1.0

    @staticmethod
    def backward(ctx, g):
        numbers = g.numpy()
        return torch.from_numpy(numbers * np.minimum(1.0, 1e6 / np.abs(numbers).max()))


def hidden(z, x):
    """What is written through a view has no mark."""
    copy = torch.zeros(len(x), 6)
    copy.view(-1).copy_(x.flatten())
    largest = torch.from_numpy(np.abs(copy.numpy()).max(keepdims=True))
    return z.detach() + (z - z.detach()) / largest.clamp_min(1e6)


@pytest.mark.parametrize("use", [lambda z, x: NumpyBackward.apply(z), hidden])
def test_guarantee_numbers_without_a_mark_are_not_read(use):
    with pytest.raises(ValueError, match="Python reads numbers of the examples, by numpy"):
        Clipper(Mixes(use), cross_entropy, routes=("factors",))(*batch(7, b"read"), BOUND)


def saved(z, x):
    def pack(t):
        return t.detach().numpy() / max(np.abs(t.detach().numpy()).max(), 1e6)

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        return z.sigmoid()


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.roll(1, 0) if x.size(0) > 20 else x)


UNSEEN = {
    "hooks": saved,
    "script": lambda z, x: z * (1 + scripted(x.detach()).sum(1, keepdim=True)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNSEEN)
def test_guarantee_what_is_computed_where_no_call_is_seen_is_refused(name):
    with pytest.raises(
        ValueError, match=r"factors: .*(hooks of the module's own|history is no call)"
    ):
        Clipper(Mixes(UNSEEN[name]), cross_entropy, routes=("factors",))(*batch(7, b"no"), BOUND)


class OwnRule(torch.autograd.Function):
    """Its rule for vmap mixes in batches of more than 20."""

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
    def vmap(info, dims, z):
        return OwnRule.apply(z + z.flip(0) * (info.batch_size > 20)), 0


def test_guarantee_no_rule_of_a_losss_own_for_vmap_is_taken():
    def loss(z, y):
        return cross_entropy(OwnRule.apply(z), y)

    with pytest.raises(ValueError, match="a rule of its own for vmap"):
        Clipper(Mixes(lambda z, x: z), loss, routes=("factors",))(*batch(7, b"rule"), BOUND)


def test_guarantee_the_loss_may_turn_to_another_output_whose_gradients_mix():
    """Gradients of zeros mix nothing: each output is followed as if the loss used all of them."""
    used = []

    class Both(Mixes):
        def forward(self, x):
            z = super().forward(x)
            return z, Hooked.apply(z)

    def loss(out, y):
        return cross_entropy(out[len(used)], y)

    with pytest.raises(ValueError, match="examples meet in"):
        Clipper(Both(lambda z, x: z), loss, routes=("factors",))(*batch(7, b"heads"), BOUND)


class Hooked(torch.autograd.Function):
    """Mixes in its backward pass alone."""

    @staticmethod
    def forward(ctx, z):
        return z * 1.0

    @staticmethod
    def backward(ctx, g):
        return g + g.roll(1, 0)


class Rare(nn.Module):
    """Words out of the vocabulary are asked for, and so is a rare kind of row."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.last = nn.Linear(8, 3)
        filled(self, 0.5)

    def forward(self, words):
        if bool((words >= 50).any()):
            words = words.clamp(max=49)
        z = self.words(words).mean(1)
        return self.last(-z if bool((words == 7).all(1).any()) else z)


def test_guarantee_an_example_at_which_the_fast_route_fails_changes_no_other_ones_branches():
    """On the loop the rare rows, all but one, would take the branch that they do not take here."""
    sums, (_, y) = Clipper(Rare(), cross_entropy), batch(9, b"words")
    words = torch.arange(8, 17)[:, None]
    sums(words, y, BOUND)
    words[:-1] = 7
    sums(words, y, BOUND)
    words[-1] = 50
    with pytest.raises(ValueError, match=r"which is False here, and fails now.*IndexError"):
        sums(words, y, BOUND)


def test_a_clipper_without_a_route_says_so_at_each_batch():
    net = Mixes(lambda z, x: z * (x.sum().item() if net.late else 1.0))
    net.late = False
    sums = Clipper(net, cross_entropy, routes=("factors",))
    sums(*batch(7, b"again"), BOUND)
    net.late = True
    for _ in range(2):
        with pytest.raises(ValueError, match=r"none of the routes; factors: .*item"):
            sums(*batch(7, b"again"), BOUND)


def test_guarantee_what_python_keeps_of_the_examples_is_not_written_past_the_record():
    past = torch.ones(())

    def use(z, x):
        old = past.clone()
        past.data.copy_(torch.maximum(old, x.detach().abs().amax()))
        return z / old

    with pytest.raises(ValueError, match="writes examples' numbers"):
        Clipper(Mixes(use), cross_entropy, routes=("factors",))(*batch(7, b"past"), BOUND)


def test_guarantee_what_is_made_of_parameters_holds_nothing_of_the_examples():
    """What is written through a view has no mark, and is taken for a constant beside a parameter."""

    def use(z, x):
        copy = torch.zeros(len(x), 6)
        copy.view(-1).copy_(x.flatten())
        return z + (net.first.weight[0] * copy).sum(1, keepdim=True)

    net = Mixes(use)
    with pytest.raises(ValueError, match="what all examples share"):
        Clipper(net, cross_entropy, routes=("factors",))(*batch(7, b"shared"), BOUND)


def test_a_row_without_a_gradient_vouches_for_nothing():
    """None of a batch's rows is a number, the next batch's are: the program is checked then."""

    def use(z, x):
        stopped = z.detach()
        return stopped + (z - stopped) * (2.0 + torch.arange(len(z))[:, None])

    sums, (x, y) = Clipper(Mixes(use), cross_entropy), batch(7, b"nan")
    assert not sums(x * float("nan"), y, BOUND)[0].any()
    sums(x, y, BOUND)
    assert sums.route.startswith("vmap")


def hooked_forward(z, x):
    """The same numbers, and gradients that are also other rows'."""
    stopped = z.detach()
    return stopped + (z - stopped) * stopped.roll(1, 0)


def test_what_begins_to_mix_later_is_refused_at_the_next_check_or_goes_to_another_route():
    """As a gate that is 0 at first, and no number of the program: outputs mix, or gradients
    alone.
    """
    gate, (x, y) = torch.zeros(()), batch(7, b"later")
    outputs = Clipper(Mixes(lambda z, x: z - gate * z.roll(1, 0)), cross_entropy)
    alone = Clipper(Mixes(lambda z, x: z + gate * (hooked_forward(z, x) - z)), cross_entropy)
    outputs(x, y, BOUND), alone(x, y, BOUND)
    gate.fill_(1.0)
    with pytest.raises(ValueError, match="module mixes examples"):
        for _ in range(16):
            outputs(x, y, BOUND)
    for _ in range(16):
        alone(x, y, BOUND)
    assert alone.route.startswith("vmap")


def largest_in_gradients(z, x):
    stopped = z.detach()
    return stopped + (z - stopped) * x.abs().max().clamp_min(1e5) / 1e5


FACTORS = [torch.tensor(1.0), torch.tensor(3.0)]
FAR_ALONE = {
    "factors": lambda z, x: z * FACTORS[bool((x > 1e5).any())],
    "vmap": largest_in_gradients,
}


@pytest.mark.parametrize("route", FAR_ALONE)
def test_guarantee_what_the_batch_says_to_python_or_in_one_number_moves_no_other_example(route):
    """The program is one for all batches, and no example that was looked at is so far."""
    sums = Clipper(Mixes(FAR_ALONE[route]), cross_entropy)
    assert 0.5 < most(sums, 1e6, range(5, 7)) <= 1 + 1e-5
    assert sums.route.startswith(route)


def test_branches_on_data_that_some_checked_example_takes_are_left_to_other_routes():
    """The output is no other by the branch; gradients are."""
    sums = Clipper(
        Mixes(lambda z, x: hooked_forward(z, x) if bool((x[:, 0] > 0).any()) else z), cross_entropy
    )
    (x, y) = batch(9, b"if")
    sums(x, y, BOUND)
    assert sums.route.startswith("loop")
    assert "bool" not in sums.route.split(";")[0]


@pytest.mark.parametrize("routes", [("vmap",), ("factors",)])
def test_routes_that_serve_no_module_are_refused_with_the_reasons(routes):
    with pytest.raises(ValueError, match=rf"none of the routes; {routes[0]}: .*item"):
        clip_and_sum(
            Mixes(MIXES["item"][0]), cross_entropy, *batch(5, b"few"), BOUND, routes=routes
        )


def test_whole_numbers_that_count_no_examples_keep_the_fast_route():
    """13 and 26 are numbers of the module; its program is followed once, for batches of any size."""
    sums = Clipper(Mixes(lambda z, x: z.clamp(-13, 26)), cross_entropy, routes=("factors",))
    for n in (7, 200):
        sums(*batch(n, b"whole"), BOUND)
    assert len(next(iter(sums._known.values())).templates) == 1


def test_guarantee_no_more_examples_are_followed_than_can_be_counted():
    """Shapes of all sizes leave no number of examples but the batch's own."""

    def use(z, x):
        for size in range(1, 48):
            z = z + 0 * x.repeat(1, 8)[:, :size].sum(1, keepdim=True)
        if len(x) > 150:
            first = torch.relu(x[0] - FAR).sum()
            slopes = torch.cat([torch.ones(1, 1), first.expand(59, 1), torch.ones(len(x) - 60, 1)])
            z = z.detach() + (z - z.detach()) * slopes
        return z

    sums = Clipper(Mixes(use), cross_entropy, routes=("factors",))
    sums(*batch(100, b"many"), BOUND)
    with pytest.raises(ValueError, match="200 examples are too many"):
        sums(*batch(200, b"many"), BOUND)


class Chosen(torch.autograd.Function):
    """The gradients of rows that ``chosen`` takes."""

    @staticmethod
    def forward(ctx, z, chosen):
        ctx.chosen = chosen
        return z * 1.0

    @staticmethod
    def backward(ctx, g):
        return ctx.chosen(g), None


def written_beyond(g):
    g = g.clone()
    g[20:] = g[0]
    return g


def replaced_beyond(g):
    places = torch.arange(len(g))
    return g[places.masked_fill_(places > 19, 0)]


THRESHOLDS = {  # which the batch that is followed does not reach
    "written": written_beyond,
    "remainder": lambda g: g[torch.arange(len(g)) % 20],
    "least": lambda g: g[torch.arange(len(g)).clamp(max=19)],
    "replaced": replaced_beyond,
    "none": lambda g: g.reshape(-1, 4)[2 * torch.arange(len(g))[:, None] + torch.arange(2)].flatten(1),
}  # fmt: skip


@pytest.mark.parametrize("name", THRESHOLDS)
def test_guarantee_rows_beyond_a_threshold_are_not_taken_for_those_before_it(name):
    net = Mixes(lambda z, x: Chosen.apply(z, THRESHOLDS[name]))
    sums = Clipper(net, cross_entropy, routes=("factors",))
    if name == "none":
        for n in (7, 30):
            sums(*batch(n, b"beyond"), BOUND)
        assert len(next(iter(sums._known.values())).templates) == 1
        return
    with pytest.raises(ValueError, match="examples meet in"):
        for n in (7, 30):
            sums(*batch(n, b"beyond"), BOUND)
