"""Gradients as factors of one pass: sums of the plain way, the bound where terms cancel, who takes
another route.
"""

import itertools

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from trained import brute, filled

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum, factors
from torchdp.training.clipping import Clipper
from torchdp.training.sums import SLACK

N = 6


def squares(output, target):
    return (output.flatten(1) - target[:, None]).square().mean()


class Words(nn.Module):
    """Embeddings, a layer that is used twice, normalisation, a mean over the words."""

    def __init__(self, tied=False, rate=0.0, padding=0):
        super().__init__()
        self.table = nn.Embedding(300, 64, padding_idx=padding)
        self.inner = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.drop = nn.Dropout(rate)
        self.last = self.table if tied else nn.Linear(64, 80, bias=False)

    def forward(self, words):
        h = self.table(words)
        for _ in range(2):
            h = h + self.drop(F.gelu(self.inner(self.norm(h))))
        return F.linear(h.mean(1), self.last.weight)


class Also(nn.Module):
    """Uses its weight beside the layer: what it adds to the gradient is none of the layer's."""

    def __init__(self, use):
        super().__init__()
        self.inner = nn.Linear(96, 64)
        self.use = use

    def forward(self, x):
        return self.inner(x) + self.use(self.inner.weight, x)


class Calls(nn.Module):
    """Its layer is called by other code."""

    def __init__(self, call, layer=None):
        super().__init__()
        self.inner = layer or nn.Linear(96, 64)
        self.call = call

    def forward(self, x):
        return self.call(self.inner, x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(96, 64)
        self.two = nn.Linear(96, 64, bias=False)

    def forward(self, left, right):
        return self.one(left) * self.two(right)


class Frozen(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 80))
        self[0].weight.requires_grad_(False)


def convolutions():
    first = nn.Sequential(nn.Conv1d(3, 32, 3, padding=1), nn.Unflatten(2, (4, 4)))
    last = nn.Sequential(nn.Tanh(), nn.Flatten(2), nn.Conv1d(24, 90, 2), nn.Flatten())
    return nn.Sequential(first, nn.Conv2d(32, 24, (3, 2), 2, (1, 0)), last)


def mlp():
    return nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 80))


def in_half(layer, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layer(x).float()


def tangent(layer, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x.sin())).tanh()).tangent


def draw(*shape):
    return torch.randn(N, *shape, generator=keyed_generator(b"x"))


# some more than once, some padding
WORDS = torch.randint(0, 8, (N, 5), generator=keyed_generator(b"words"))


class Sums(nn.Module):
    """One parameter, used by ``call(parameter, x)``."""

    def __init__(self, shape, call):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(shape))
        self.call = call

    def forward(self, x):
        return self.call(self.p, x).reshape(len(x), -1)


def uses(*shape, call, x=None):
    return lambda: Sums(shape, call), draw(4, 3) if x is None else x, "factors"


def attend(**options):
    layer = nn.MultiheadAttention(64, 2, batch_first=options.pop("first", True), **options)
    return lambda: Calls(lambda f, x: f(x, x, x)[0].mean(1), layer)


def normed(kind, *shape):
    return lambda: nn.Sequential(
        nn.Linear(3, 8), nn.Unflatten(-1, (8, *shape)), kind, nn.Flatten(), nn.LazyLinear(2)
    )


CASES = {  # module, inputs, the route
    "layers": (mlp, draw(96), "factors"),
    "doubles": (lambda: mlp().double(), draw(96).double(), "factors"),
    "half": (lambda: mlp().bfloat16(), draw(96).bfloat16(), "factors"),
    "sequence": (lambda: nn.Linear(96, 64), draw(5, 96), "factors"),
    "words": (Words, WORDS, "factors"),
    "padding from the end": (lambda: Words(padding=-293), WORDS, "factors"),
    "tied": (lambda: Words(tied=True), WORDS, "factors"),
    "convolutions": (convolutions, draw(3, 16), "factors"),
    "turned": (lambda: nn.ConvTranspose2d(4, 3, 3), draw(4, 5, 5), "factors"),
    "by name": (Pair, {"left": draw(96), "right": draw(96).flip(0)}, "factors"),
    "frozen": (Frozen, draw(96), "factors"),
    "norm of the weight": (lambda: Also(lambda w, x: w.norm()), draw(96), "factors"),
    "product beside": (lambda: Also(lambda w, x: x @ w.mT), draw(96), "factors"),
    "written over by what follows": (lambda: Calls(lambda f, x: f(x).relu_()), draw(96), "factors"),
    "standardised weight": (lambda: Calls(lambda f, x: F.linear(x, f.weight / f.weight.norm(), f.bias)), draw(96),
                            "factors"),
    "parts of a weight": (lambda: Calls(lambda f, x: F.linear(x, f.weight.chunk(2)[1], f.bias[32:])), draw(96),
                          "factors"),
    "layer norm": (normed(nn.LayerNorm(8)), draw(3), "factors"),
    "group norm": (normed(nn.GroupNorm(2, 8), 1), draw(3), "factors"),
    "batch norm in use": (lambda: nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Linear(3, 2)), draw(3), "factors"),
    "scale": uses(3, call=lambda p, x: x * p),
    "in place": uses(3, call=lambda p, x: (x * 1.0).add_(p).square()),
    "class token": uses(1, 1, 3, call=lambda p, x: torch.cat([p.expand(len(x), -1, -1), x], 1).square()),
    "steep": uses(4, call=lambda p, x: F.prelu(x, p)),
    "additive mask": uses(1, 1, 4, 4, call=lambda p, x: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=p)),
    "gradient inside": (
        lambda: Calls(lambda f, x: torch.func.grad(lambda v: f(v).tanh().sum())(x)),
        draw(96),
        "vmap",
    ),
    "tangent inside": (lambda: Calls(tangent), draw(96), "vmap"),
    "map inside": (lambda: Calls(lambda f, x: torch.func.vmap(f)(x)), draw(96), "vmap"),
    "attention": (attend(), draw(3, 64), "factors"),
    "attention to added words": (attend(add_bias_kv=True), draw(3, 64), "vmap"),
    "autocast": (lambda: Calls(in_half), draw(96), "factors"),
    "recurrent": (lambda: Calls(lambda f, x: f(x)[0], nn.GRU(8, 8, batch_first=True)), draw(3, 8), "factors"),
    "reads": (lambda: Calls(lambda f, x: f(x * (1.0 if x.sum().item() < 1e9 else 0.0))), draw(96), "loop"),
}  # fmt: skip


def made(name):
    make, x, expected = CASES[name]
    net = make()
    net(**x) if isinstance(x, dict) else net(x)
    return (
        filled(net, 0.2),
        x,
        torch.linspace(-1, 1, N, dtype=next(net.parameters()).dtype),
        expected,
    )


def one(x, i):
    return (
        x[i : i + 1]
        if isinstance(x, torch.Tensor)
        else {name: value[i : i + 1] for name, value in x.items()}
    )


def whole(*args, **options):
    """The sum of whole gradients, one example after another."""
    return clip_and_sum(*args, **options, routes=("loop",))


@pytest.mark.filterwarnings("ignore")  # vmap: no batching rule, slower
@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_whole_gradients_and_which_route_is_taken(name):
    net, x, y, expected = made(name)
    norms = [float(whole(net, squares, one(x, i), y[i : i + 1], 1e9).norm()) for i in range(N)]
    sums = Clipper(net, squares)
    for at_once, bound in ((4, sorted(norms)[N // 2]), (100, 1e3)):  # some are clipped; none is
        found = sums(x, y, bound, at_once=at_once)[0]
        plain = whole(net, squares, x, y, bound)
        tolerance = {torch.bfloat16: 1e-2, torch.float32: 2 * SLACK, torch.float64: 1e-12}[y.dtype]
        tolerance = 1e-2 if name == "autocast" else tolerance
        assert float((found - plain).norm() / plain.norm()) < tolerance
        assert found.dtype == plain.dtype
    assert sums.route.split(":")[0] == expected, sums.route
    assert len(set(norms)) == N
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("use", [lambda w, x: x @ w.mT, lambda w, x: torch.cat([w, w]).sum()])
def test_a_module_that_uses_a_weight_in_another_way_than_at_first(use):
    """As one that a schedule changes in the midst of a run: another program is checked, or another
    route taken.
    """
    net, x, y, _ = made("product beside")
    sums = Clipper(net, squares)
    net.use = lambda w, x: 0.0
    sums(x, y, 0.1)
    assert sums.route.startswith("factors")
    net.use = use
    torch.testing.assert_close(sums(x, y, 0.1)[0], whole(net, squares, x, y, 0.1))


@pytest.mark.filterwarnings("ignore")
def test_guarantee_the_first_example_does_not_decide_how_others_gradients_are_made():
    """A module that goes by the numbers where it can: custom functions take it to vmap, whatever
    the numbers say.
    """

    def use(w, x):
        try:
            other = bool(x.sum() < 0)
        # numbers are not to be seen
        except RuntimeError:
            other = True
        return Mine.apply(w) if other else 0.5 * Mine.apply(2 * w)  # rows do not meet in the output

    class Mine(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda w: w.sum())
        setup_context = staticmethod(lambda ctx, inputs, output: None)
        backward = staticmethod(lambda ctx, g: g.expand(64, 96))

    x = draw(96)
    for first in (x[:1].abs(), -x[:1].abs()):
        sums = Clipper(Also(use), squares)
        sums(torch.cat([first, x[1:]]), torch.zeros(N), 0.1)
        assert sums.route.startswith("vmap")


def test_an_input_that_is_written_over_is_no_factor():
    net = Calls(lambda f, x: (h := x * 1.0) + 0 * f(h).sum() + h.mul_(0.5))
    net.inner.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        clip_and_sum(net, squares, draw(96), torch.zeros(N), 0.1)


def test_compiled_parts_run_as_they_are():
    net, x, y, _ = made("layers")
    plain = clip_and_sum(net, squares, x, y, 0.1)
    net[0].compile(backend="eager")
    net(x)
    sums = Clipper(net, squares)
    torch.testing.assert_close(sums(x, y, 0.1)[0], plain)
    assert sums.route.startswith("factors")


class Scaled(nn.Module):
    """The factors of its weight's gradient are its inputs: words, and sizes times ones."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64, bias=False)

    def forward(self, words, sizes):
        return (self.inner(words) * sizes[..., None]).sum((1, 2))


def cancelling(n=8):
    """Two terms whose sum is 2^-46 of them, all of it exact in float64; their products add up to 0
    there.
    """
    signs = torch.randint(0, 2, (n, 1, 64), generator=keyed_generator(b"signs")) * 2.0 - 1
    words = signs * 2.0**30 * torch.tensor([1.0, 1 + 2.0**-23])[:, None]
    return words, torch.tensor([2.0**30, 2.0**7 - 2.0**30]).expand(n, 2)


def test_guarantee_terms_that_cancel_keep_the_bound():
    """Norms of nothing but the terms' products would let one example through at any length."""
    words, sizes = cancelling()
    net = Scaled()
    y = torch.zeros(8)
    x, rest = {"words": words, "sizes": sizes}, {"words": words[1:], "sizes": sizes[1:]}
    total = clip_and_sum(net, lambda out, y: out, x, y, 1.0, routes=("factors",))
    others = clip_and_sum(net, lambda out, y: out, rest, y[1:], 1.0)
    assert float((total - others).double().norm()) <= 1 + 1e-6


def test_guarantee_several_terms_that_cancel_are_added_up_in_float64():
    """The sum is 2^-18 of its terms, of which float32 leaves six bits."""
    half = torch.randn(1, 4, 64, generator=keyed_generator(b"terms"))
    words = torch.cat([half, half * (1 + 2.0**-18)], 1)
    sizes = torch.cat([torch.ones(1, 4), -torch.ones(1, 4)], 1)
    x = {"words": words, "sizes": sizes}
    net = Scaled()
    total = clip_and_sum(net, lambda out, y: out, x, torch.zeros(1), 1e-6, routes=("factors",))
    exact = (words.double() * sizes[..., None]).sum(1)
    weight = total[: net.inner.weight.numel()].view_as(net.inner.weight).double()
    direction = exact.expand_as(weight) / exact.expand_as(weight).norm()
    torch.testing.assert_close(weight / weight.norm(), direction, rtol=0, atol=1e-5)


def test_guarantee_norms_are_never_too_small_and_close_where_little_cancels():
    g = keyed_generator(b"norms")
    for terms in (1, 2, 5):
        a = torch.randn(200, terms, 7, generator=g).double()
        b = torch.randn(200, terms, 9, generator=g).double()
        # of the first term, when the others have taken the rest
        for left in (1.0, 1e-3, 1e-6, 1e-9):
            if terms > 1:
                a[:, 1] = a[:, 0]
                b[:, 1] = -b[:, 0] * (1 - left)
                b[:, 2:] = 0
            exact = torch.linalg.matrix_norm(b.mT @ a)
            found = factors.Products(a, b).norms()
            assert (found >= exact * (1 - 1e-13)).all()
            if left > 1e-4:
                assert (found <= exact * (1 + 1e-4)).all()


def test_guarantee_factors_whose_squares_are_no_numbers():
    net = nn.Linear(96, 64, bias=False).double()
    y = torch.zeros(1).double()
    x = torch.full((1, 96), 1e-165, dtype=torch.float64)
    bound = 1e-30
    total = clip_and_sum(net, lambda out, y: 1e150 * out.sum(), x, y, bound)
    assert float(total.norm() / bound) == pytest.approx(1, abs=1e-5)


def test_guarantee_rows_that_cancel_keep_the_bound():
    """One word many times: its row is added up before its norm is known."""
    indices = torch.tensor([[3, 3, 1, 3], [2, 0, 2, 2]])
    b = torch.tensor([1e8, -1e8, 2.0, 3.0]).double()[None, :, None].expand(2, 4, 5)
    words = factors.Words.of(indices, b.float(), 4)
    rows = torch.zeros(2, 4, 5).double()
    for i, j in itertools.product(range(2), range(4)):
        rows[i, indices[i, j]] += b[i, j]
    total = words.sum(torch.tensor([0.5, 0.25]).double(), 1.0)
    torch.testing.assert_close(total, (0.5 * rows[0] + 0.25 * rows[1]).flatten().float())
    torch.testing.assert_close(words.norms(), torch.linalg.matrix_norm(rows))
    torch.testing.assert_close(words.whole(), rows.flatten(1).float())


@pytest.mark.parametrize("numbers", [1, 10**5])
def test_parts_of_the_examples_are_the_whole(monkeypatch, numbers):
    net, x, y, _ = made("words")
    whole_of_it = clip_and_sum(net, squares, x, y, 0.1)
    monkeypatch.setattr(factors, "AT_ONCE", 1)
    torch.testing.assert_close(clip_and_sum(net, squares, x, y, 0.1), whole_of_it)
    torch.testing.assert_close(clip_and_sum(net, squares, x, y, 0.1, memory=numbers), whole_of_it)


class Branches(nn.Module):
    """torch.cond for each example, whose branches close over weights."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x):
        return torch.stack([torch.cond(row[0] > 0, self.left, self.right, (row,)) for row in x])


def test_a_route_that_ends_with_whatever_error_is_left_and_closures_of_branches_have_gradients():
    """torch.cond raises a KeyError under a transform; without tracing its branches' weights have no
    gradient.
    """
    net = Branches()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    wanted = brute(net, squares, x, torch.zeros(5), 1e6).float()
    sums = Clipper(net, squares)
    for _ in range(2):
        torch.testing.assert_close(sums(x, torch.zeros(5), 1e6)[0], wanted)
    assert sums.route.startswith("loop")
