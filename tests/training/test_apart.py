"""Modules that mix examples, or hide it: by which route they are served, and by how much one
example moves the sum.
"""

import numpy as np
import pytest
import torch
from hidden import BOUND, WIDTH, Backward, Hidden, batch, fast, sloped, unchanged
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from trained import filled

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import ROUTES, Clipper

# Above all numbers of the batches that are looked at first.
FAR = 51.7
REFUSED = "module mixes examples"


def before(rows):
    """In the place of each row the one before it."""
    return rows.roll(1, 0)


class Both(torch.autograd.Function):
    """Mixes in both directions."""

    @staticmethod
    def forward(ctx, z):
        return z + z.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g + g.mean(0)


def hooked(z, x):
    z.register_hook(lambda g: g + before(g))
    return z


def others_gradients(z, x):
    return sloped(z, before(z.detach()))


def dlpack(z, x):
    total = torch.from_dlpack(x.detach()).numpy().sum()
    return z * float(total < 1e9)


def written_out(z, x):
    total = x.sum().detach()
    return z * float(len(f"{total:.3f}") < 99)


def index(z, x):
    far = x.sum() > 1e9
    return z[:, : min(WIDTH, WIDTH + int(far))]


MIXES = {  # what is done, and the route that serves it
    "honest": (lambda z, x: torch.relu(z), "factors"),
    "branch on data": (lambda z, x: z - before(z) if bool((x > 50).any()) else z, REFUSED),
    "little of another": (lambda z, x: z - 1e-3 * before(z), REFUSED),
    "from nine on": (lambda z, x: z - before(z) if len(z) > 8 else z, REFUSED),
    "factor of the number": (lambda z, x: z - before(z) * float(len(z) > 8), "vmap"),
    "norm of all, where large": (lambda z, x: z / x.norm().clamp_min(1e3), REFUSED),
    "item": (lambda z, x: z * (1.0 if (x > 1e9).sum().item() < 9 else 0.0), "loop"),
    "numpy": (lambda z, x: z * float(x.detach().numpy().sum() < 1e9), "loop"),
    "dlpack": (dlpack, "loop"),
    "storage": (lambda z, x: z * float(x.untyped_storage()[0] < 999), "loop"),
    "written out": (written_out, "loop"),
    "index": (index, "loop"),
    "hook": (hooked, "vmap"),
    "custom function": (lambda z, x: Both.apply(z), REFUSED),
    "custom function of data": (lambda z, x: z + Both.apply(x).sum(1, keepdim=True), REFUSED),
}


def most(sums, factor=100.0, sizes=range(3, 12)):
    """The largest change of the sum by one example that comes last, over the bound.

    Each size was seen before: what is looked at in a first batch has usual numbers.
    """
    # What is kept of a first batch must not serve one that is far off.
    for n in range(2, 12):
        sums(*batch(n, b"seen"), BOUND)
    moves = []
    for n in sizes:
        x, y = batch(n, bytes([n]))
        # Only this one is there or not.
        x[-1] *= factor
        with_it, _ = sums(x, y, BOUND)
        without, _ = sums(x[:-1], y[:-1], BOUND)
        moved = (with_it.double() - without).norm()
        moves.append(float(moved) / BOUND)
    return max(moves)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXES)
def test_guarantee_an_example_moves_the_sum_by_the_bound_at_most_where_examples_mix(name):
    mix, route = MIXES[name]
    sums = Clipper(Hidden(mix), cross_entropy)
    if route == REFUSED:
        with pytest.raises(ValueError, match=REFUSED):
            most(sums)
        return
    # A last example that moved nothing would show nothing.
    assert 0.5 < most(sums) <= 1 + 1e-5
    assert sums.route.startswith(route), sums.route


@pytest.mark.parametrize("routes", [ROUTES, ("vmap", "loop")])
def test_guarantee_what_no_number_shows_is_followed_in_the_operations(routes):
    """Numbers a thousand times as large as those of all batches that were looked at show nothing."""

    def where_far(z, x):
        above = torch.relu(before(x) / 1e4 - FAR)
        return z + above.sum(1, keepdim=True) * before(z)

    sums = Clipper(Hidden(where_far), cross_entropy, routes=routes)
    assert 0.5 < most(sums, 1e6, range(5, 7)) <= 1 + 1e-5
    assert sums.route.startswith("vmap")


@pytest.mark.parametrize("share", [1e-3, 0.0])
def test_half_precision_keeps_the_fast_route_and_what_it_hides_is_followed(share):
    """A share of another example's gradient that bfloat16 does not see."""

    def use(z, x):
        return z + share * (others_gradients(z, x) - z) if share else z

    # In half precision no comparison of numbers shows a thousandth.
    sums = Clipper(Hidden(use).bfloat16(), cross_entropy)
    x, y = batch(7)
    sums(x.bfloat16(), y, BOUND)
    assert sums.route.startswith("vmap" if share else "factors")


def test_dropout_is_checked_without_it_and_mixing_beside_it_is_seen():
    sums = Clipper(Hidden(lambda z, x: dropout(z, 0.5)), cross_entropy)
    sums(*batch(7), BOUND, dropout=keyed_generator(b"masks"))
    assert sums.route.startswith("factors")
    sums = Clipper(Hidden(lambda z, x: dropout(z, 0.5) - 0.1 * before(z)), cross_entropy)
    with pytest.raises(ValueError, match=REFUSED):
        sums(*batch(7), BOUND, dropout=keyed_generator(b"masks"))


def test_guarantee_python_in_the_backward_pass_is_part_of_the_program():
    def late(g):
        return g + before(g) if len(g) > 20 else g * 1.0

    sums = fast(Hidden(lambda z, x: Backward.apply(z, late)))
    # In few rows nothing mixes: that program is served, and is no other one's.
    sums(*batch(7), BOUND)
    with pytest.raises(ValueError, match="examples meet in add"):
        sums(*batch(30), BOUND)


def test_guarantee_an_index_that_the_next_pass_may_have_otherwise_chooses_anything():
    """Rows are permuted by a parameter, which training moves."""

    def use(z, x):
        # At first it is 0, and later perhaps -1: the row before. Only by sums and products, since
        # what may have a threshold chooses anything for that alone.
        shift = net.first.bias[:1].detach().long() * -1
        return z[torch.arange(len(z)) + shift]

    net = Hidden(use)
    with pytest.raises(ValueError, match="examples meet in"):
        fast(net)(*batch(7), BOUND)


def by_other_constant(z, late):
    places = torch.arange(len(z))
    chosen = [places, places.flip(0)][late]
    return z + z[chosen]


def by_numpy_in_place(z, late):
    places = torch.arange(len(z))
    if late:
        numbers = places.numpy()
        numbers[:] = numbers[::-1].copy()
    return z + z[places]


def by_other_row(z, late):
    """All rows are made by one call."""
    rows = list(z.unbind(0))
    return torch.stack(rows[::-1] if late else rows)


def by_other_half(z, late):
    own, others = torch.stack([z, z.flip(0)]).unbind(0)
    return z + (others if late else own)


def by_other_gradient(z, late):
    def change(g):
        own = g * 1.0
        others = before(g)
        return others if late else own

    return Backward.apply(z, change)


def by_other_target(z, late):
    """Others' numbers are written into what is used, or into what is not."""
    used = z * 1.0
    unused = z * 1.0
    targets = [unused.view(z.shape), used.view(z.shape)]
    targets[late].copy_(before(z))
    return used


def by_other_tensor_as_it_is(z, late):
    """The call returns what it is given, here or there."""
    own = z * 1.0
    others = before(z)
    return (others if late else own).contiguous()


class Saved(torch.autograd.Function):
    """Its gradients are times one of its outputs, which come back as other tensors."""

    @staticmethod
    def forward(ctx, z, late):
        own = z * 1.0
        others = before(z)
        ctx.late = late
        ctx.save_for_backward(own, others)
        return own, others

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.saved_tensors[ctx.late], None


LATER = {  # what a module does from some batch on, by calls that look as before
    "sizes whose hashes are one": lambda z, late: z + z.softmax([-1, -2][late]),
    "another constant of the pass": by_other_constant,
    "numbers of numpy": lambda z, late: z + z.roll(np.int64(late), 0),
    "written by numpy": by_numpy_in_place,
    "another row of one call": by_other_row,
    "another half of one call": by_other_half,
    "another target": by_other_target,
    "another tensor as it is": by_other_tensor_as_it_is,
    "another gradient of one function": by_other_gradient,
    "another output that was saved": lambda z, late: Saved.apply(z, late)[0],
}


@pytest.mark.parametrize("name", LATER)
def test_guarantee_a_program_that_differs_in_a_constant_is_another_one(name):
    calls = []
    sums = fast(Hidden(lambda z, x: LATER[name](z, len(calls))))
    # Followed once, the second batch's program would be taken for the first one's.
    with pytest.raises(ValueError, match=rf"{REFUSED}|examples meet in"):
        for _ in range(2):
            sums(*batch(7), BOUND)
            calls.append(True)


def test_guarantee_what_a_modules_hook_makes_of_gradients_is_part_of_the_program():
    calls = []

    def hook(module, of_inputs, of_outputs):
        own = of_inputs[0] * 1.0
        others = before(own)
        return (others if calls else own,)

    net = Hidden(unchanged)
    net.last.register_full_backward_hook(hook)
    sums = fast(net)
    sums(*batch(7), BOUND)
    calls.append(True)
    with pytest.raises(ValueError, match="examples meet in"):
        sums(*batch(7), BOUND)


class Returns(Hidden):
    """One of two tensors that both are made in each call."""

    late = False

    def forward(self, x):
        z = super().forward(x)
        return [z, z - z.mean(0)][self.late]


def test_guarantee_what_a_module_returns_is_part_of_the_program():
    net = Returns(unchanged)
    sums = fast(net)
    sums(*batch(7), BOUND)
    # The calls are the same, but for what is done with them.
    net.late = True
    with pytest.raises(ValueError, match=REFUSED):
        sums(*batch(7), BOUND)


def shortened(g):
    """All gradients are shorter where one of them is long, by numpy."""
    longest = np.abs(g.numpy()).max()
    return g * min(1.0, 1e6 / float(longest))


def copied(x):
    """What is written through a view has no mark."""
    copy = torch.zeros(len(x), 6)
    copy.view(-1).copy_(x.flatten())
    return copy


def largest_of_a_copy(z, x):
    numbers = np.abs(copied(x).numpy())
    largest = torch.from_numpy(numbers.max(keepdims=True))
    return sloped(z, 1 / largest.clamp_min(1e6))


@pytest.mark.parametrize("use", [lambda z, x: Backward.apply(z, shortened), largest_of_a_copy])
def test_guarantee_numbers_without_a_mark_are_not_read(use):
    with pytest.raises(ValueError, match="Python reads numbers of the examples, by numpy"):
        fast(Hidden(use))(*batch(7), BOUND)


def test_guarantee_what_is_made_of_parameters_holds_nothing_of_the_examples():
    """A copy without a mark is taken for a constant beside a parameter."""

    def use(z, x):
        products = net.first.weight[0] * copied(x)
        return z + products.sum(1, keepdim=True)

    net = Hidden(use)
    with pytest.raises(ValueError, match="what all examples share"):
        fast(net)(*batch(7), BOUND)


def saved(z, x):
    """Hooks run inside of torch's calls."""

    def pack(t):
        numbers = t.detach().numpy()
        return numbers / max(np.abs(numbers).max(), 1e6)

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        return z.sigmoid()


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.roll(1, 0) if x.size(0) > 20 else x)


def by_script(z, x):
    return z * (1 + scripted(x.detach()).sum(1, keepdim=True))


def by_hook_of_a_node(z, x):
    z.grad_fn.register_prehook(lambda gradients: (before(gradients[0]),))
    return z


def by_code_in_c(z, x):
    """What numpy hands over in the place of a gradient."""
    return Backward.apply(z, lambda g: torch.from_numpy(np.ones(g.shape, np.float32)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", [saved, by_script, by_hook_of_a_node, by_code_in_c])
def test_guarantee_what_is_computed_where_no_call_is_seen_is_refused(use):
    reasons = (
        "hooks of the module's own|history is no call|reads grad_fn|no call of torch's has made"
    )
    with pytest.raises(ValueError, match=reasons):
        fast(Hidden(use))(*batch(7), BOUND)


def test_guarantee_the_loss_may_turn_to_another_output_whose_gradients_mix():
    """Gradients of zeros mix nothing: each output is followed as if the loss used all of them."""

    class Two(Hidden):
        def forward(self, x):
            z = super().forward(x)
            return z, Backward.apply(z, lambda g: g + before(g))

    def first(out, y):
        return cross_entropy(out[0], y)

    sums = Clipper(Two(unchanged), first, routes=("factors",))
    with pytest.raises(ValueError, match="examples meet in"):
        sums(*batch(7), BOUND)


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
        rare = (words == 7).all(1)
        return self.last(-z if bool(rare.any()) else z)


def test_guarantee_an_example_at_which_the_fast_route_fails_changes_no_other_ones_branches():
    """On the loop the rare rows, all but one, would take the branch that they do not take here."""
    sums = Clipper(Rare(), cross_entropy)
    _, y = batch(9)
    words = torch.arange(8, 17)[:, None]
    sums(words, y, BOUND)
    # Under factors bool() of data is False: these take the usual branch.
    words[:-1] = 7
    sums(words, y, BOUND)
    # An index that fails alone would send all to the loop.
    words[-1] = 50
    with pytest.raises(ValueError, match=r"which is False here, and fails now.*IndexError"):
        sums(words, y, BOUND)


def test_a_clipper_without_a_route_says_so_at_each_batch():
    late = []

    def use(z, x):
        return z * x.sum().item() if late else z

    sums = fast(Hidden(use))
    sums(*batch(7), BOUND)
    late.append(True)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"none of the routes; factors: .*item"):
            sums(*batch(7), BOUND)


def test_guarantee_what_python_keeps_of_the_examples_is_not_written_past_the_record():
    past = torch.ones(())

    def use(z, x):
        old = past.clone()
        largest = x.detach().abs().amax()
        # .data has no history, and keeps the batch's largest number for the next one.
        past.data.copy_(torch.maximum(old, largest))
        return z / old

    with pytest.raises(ValueError, match="writes examples' numbers"):
        fast(Hidden(use))(*batch(7), BOUND)


def test_a_row_without_a_gradient_vouches_for_nothing():
    """None of a batch's rows is a number, the next batch's are: the program is checked then."""

    def use(z, x):
        # Another gradient than that of the module, for each place another one.
        return sloped(z, 2.0 + torch.arange(len(z))[:, None])

    sums = Clipper(Hidden(use), cross_entropy)
    x, y = batch(7)
    total, _ = sums(x * float("nan"), y, BOUND)
    # Gradients that are no numbers count as 0.
    assert not total.any()
    sums(x, y, BOUND)
    assert sums.route.startswith("vmap")


def test_what_begins_to_mix_later_is_refused_at_the_next_check_or_goes_to_another_route():
    """As by a gate that is 0 at first, and no number of the program."""
    gate = torch.zeros(())
    x, y = batch(7)
    in_outputs = Clipper(Hidden(lambda z, x: z - gate * before(z)), cross_entropy)
    in_gradients = Clipper(
        Hidden(lambda z, x: z + gate * (others_gradients(z, x) - z)), cross_entropy
    )
    in_outputs(x, y, BOUND)
    in_gradients(x, y, BOUND)
    gate.fill_(1.0)
    # The 16th batch is checked again.
    with pytest.raises(ValueError, match=REFUSED):
        for _ in range(16):
            in_outputs(x, y, BOUND)
    for _ in range(16):
        in_gradients(x, y, BOUND)
    assert in_gradients.route.startswith("vmap")


FACTORS = [torch.tensor(1.0), torch.tensor(3.0)]
FAR_ALONE = {
    "factors": lambda z, x: z * FACTORS[bool((x > 1e5).any())],
    "vmap": lambda z, x: sloped(z, x.abs().max().clamp_min(1e5) / 1e5),
}


@pytest.mark.parametrize("route", FAR_ALONE)
def test_guarantee_what_the_batch_says_to_python_or_in_one_number_moves_no_other_example(route):
    """The program is one for all batches, and no example that was looked at is so far."""
    sums = Clipper(Hidden(FAR_ALONE[route]), cross_entropy)
    assert 0.5 < most(sums, 1e6, range(5, 7)) <= 1 + 1e-5
    assert sums.route.startswith(route)


def test_branches_on_data_that_some_checked_example_takes_are_left_to_other_routes():
    """The output is no other by the branch; gradients are."""

    def use(z, x):
        positive = x[:, 0] > 0
        return others_gradients(z, x) if bool(positive.any()) else z

    sums = Clipper(Hidden(use), cross_entropy)
    # Examples alone, in the check, take the branch that the batch does not.
    sums(*batch(9, b"if"), BOUND)
    assert sums.route.startswith("loop")
    assert "bool" not in sums.route.split(";")[0]


@pytest.mark.parametrize("route", ["vmap", "factors"])
def test_routes_that_serve_no_module_are_refused_with_the_reasons(route):
    net = Hidden(MIXES["item"][0])
    with pytest.raises(ValueError, match=rf"none of the routes; {route}: .*item"):
        clip_and_sum(net, cross_entropy, *batch(5), BOUND, routes=(route,))


def templates(sums):
    """Programs that were followed, of a clipper that has seen one shape."""
    (known,) = sums._known.values()
    return known.templates


def test_whole_numbers_that_count_no_examples_keep_the_fast_route():
    """13 and 26 are numbers of the module; its program is followed once, for batches of any size."""
    sums = fast(Hidden(lambda z, x: z.clamp(-13, 26)))
    # Were 13 examples followed, 13 and 26 would count them.
    for n in (7, 200):
        sums(*batch(n), BOUND)
    assert len(templates(sums)) == 1


def test_guarantee_no_more_examples_are_followed_than_can_be_counted():
    """Shapes of all sizes leave no number of examples but the batch's own."""

    def use(z, x):
        for size in range(1, 48):
            z = z + 0 * x.repeat(1, 8)[:, :size].sum(1, keepdim=True)
        if len(x) <= 150:
            return z
        # Row 1's gradient grows by what row 0 is.
        slopes = torch.ones(len(x), 1)
        slopes[1] = torch.relu(x[0] - FAR).sum()
        return sloped(z, slopes)

    sums = fast(Hidden(use))
    sums(*batch(100), BOUND)
    with pytest.raises(ValueError, match="200 examples are too many"):
        sums(*batch(200), BOUND)


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
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_guarantee_rows_beyond_a_threshold_are_not_taken_for_those_before_it(name):
    sums = fast(Hidden(lambda z, x: Backward.apply(z, THRESHOLDS[name])))
    with pytest.raises(ValueError, match="examples meet in"):
        for n in (7, 30):
            sums(*batch(n), BOUND)


def test_an_index_without_a_threshold_is_followed_once():
    def in_halves(g):
        """As they were, by an index of two halves of each row."""
        places = 2 * torch.arange(len(g))[:, None] + torch.arange(2)
        return g.reshape(-1, WIDTH // 2)[places].flatten(1)

    sums = fast(Hidden(lambda z, x: Backward.apply(z, in_halves)))
    for n in (7, 30):
        sums(*batch(n), BOUND)
    assert len(templates(sums)) == 1
