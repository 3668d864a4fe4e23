"""Modules that mix examples, or hide it: by which route they are served, and by how much one
example moves the sum.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from trained import filled

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import Clipper

BOUND = 0.5
FAR = 51.7  # above all numbers of the batches that are looked at first


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
        order = torch.arange(len(z)) + (net.first.bias[0].detach() > 1e3).long()
        return z[order % len(z)]

    net = Mixes(use)
    with pytest.raises(ValueError, match="examples meet in"):
        Clipper(net, cross_entropy, routes=("factors",))(*batch(7, b"index"), BOUND)


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
