"""Losses that would go wrong in silence: each is served as plain autograd on one example, or
refused.
"""

from functools import partial

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F
from trained import brute

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import ROUTES, Clipper

N = 24
BOUND = 0.7
X = torch.randn(N, 8, generator=keyed_generator(b"losses"))
Y = torch.arange(N) % 3
WEIGHTS = torch.tensor([1.0, 20.0, 3.0])
MEANS = "mean or the sum of their own losses.*reduction='none'"
# All examples at once, and a few.
PIECES = pytest.mark.parametrize("at_once", [256, 5])


def linear():
    return nn.Linear(8, 3)


def agrees(found, net, loss, x, y):
    """Relative; beside it 1.5e-5 that norms are taken too large by."""
    expected = brute(net, loss, x, y, BOUND)
    error = (found.double() - expected).norm() / expected.norm()
    return float(error) < 5e-5


class Headed(nn.Module):
    """Its head is called by the loss, which has a temperature too."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(8, width)
        self.head = nn.Linear(width, 3)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return torch.relu(self.body(x))


class Centres(nn.Module):
    """A loss with parameters."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 3, generator=keyed_generator(b"centres")))

    def forward(self, out, y):
        return (out - self.centres[y]).square().sum(1).mean()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.cell(x))


class Branches(nn.Linear):
    """Python reads an example's numbers."""

    def forward(self, x):
        positive = (x > 0).all(1)
        return super().forward(x if bool(positive.any()) else 2 * x)


def centred():
    net = linear()
    net.criterion = Centres()
    return net


def squares(parameters):
    return 10 * sum(p.square().sum() for p in parameters)


def penalised(net):
    return lambda out, y: F.cross_entropy(out, y) + squares(net.parameters())


def penalised_list(net):
    """What stands in for parameters in the module is none of the tensors that the loss holds."""
    kept = list(net.parameters())
    return lambda out, y: F.cross_entropy(out, y) + squares(kept)


def by_head(net):
    return lambda out, y: F.cross_entropy(net.head(out) / net.temperature, y)


def by_table(net):
    return lambda out, y: F.cross_entropy(out, y, reduction="none") * WEIGHTS[y]


def plain(net):
    return F.cross_entropy


SERVED = {  # what makes a module, and the loss of it
    "head in the loss": (partial(Headed, 16), by_head),
    "head in the loss, wide": (partial(Headed, 600), by_head),
    "loss with parameters, of the module": (centred, lambda net: net.criterion),
    "penalty": (linear, penalised),
    "penalty on a list of parameters": (linear, penalised_list),
    "class weights, none": (linear, lambda net: nn.CrossEntropyLoss(WEIGHTS, reduction="none")),
    "ignored labels": (linear, lambda net: nn.CrossEntropyLoss(ignore_index=1)),
    "weights of a table": (linear, by_table),
    "gru cell": (Cell, plain),
    "branches": (partial(Branches, 8, 3), plain),
}


@PIECES
@pytest.mark.parametrize("name", SERVED)
def test_the_loss_is_of_one_example_and_reaches_what_it_reaches(name, at_once):
    make, criterion = SERVED[name]
    net = make()
    loss = criterion(net)
    # What stands in for a parameter must be what the loss sees, too.
    found = clip_and_sum(net, loss, X, Y, BOUND, at_once=at_once)
    assert agrees(found, net, loss, X, Y)


class Idle(nn.Linear):
    """A layer is used by nothing, as the pooler of BERT where the words' own outputs are."""

    def __init__(self):
        super().__init__(8, 3)
        self.idle = nn.Linear(3, 3)


class Experts(nn.Module):
    """Each example is one expert's; the last one has none."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x):
        return torch.cat([self.experts[int(row[0] > 0)](row[None]) for row in x])


UNREACHED = [(Idle, "idle", route) for route in ROUTES] + [(Experts, "experts.2", "loop")]


@pytest.mark.parametrize(("make", "idle", "route"), UNREACHED)
def test_a_parameter_that_no_example_reaches_is_refused_by_name_or_accepted_by_name(
    make, idle, route
):
    net = make()
    # Of both signs, for both experts.
    x = torch.linspace(-2, 2, N)[:, None] * X.abs()
    clip = partial(clip_and_sum, net, F.cross_entropy, bound=BOUND, routes=(route,))
    message = rf"reaches, {idle}.weight, {idle}.bias, .*requires_grad_\(False\)"
    for at_once in (256, 5):
        with pytest.raises(ValueError, match=message):
            clip(x, Y, at_once=at_once)
    for named in ((idle,), (f"{idle}.weight", f"{idle}.bias")):
        found = clip(x, Y, unused=named)
        assert agrees(found, net, F.cross_entropy, x, Y)
    # Nobody reaches anything, and nothing is refused for it.
    assert clip(x[:0], Y[:0], unused=[idle]).shape == found.shape
    net.get_submodule(idle).requires_grad_(False)
    assert clip(x, Y).any()


def test_parameters_are_looked_for_in_the_first_batch_that_has_examples():
    sums = Clipper(Idle(), F.cross_entropy)
    sums(X[:0], Y[:0], BOUND)
    # A call that was refused vouches for no later one.
    for _ in range(2):
        with pytest.raises(ValueError, match=r"reaches, idle\.weight"):
            sums(X, Y, BOUND)


def by_weights(out, y):
    """A mean that class weights divide, by hand."""
    weights = WEIGHTS[y]
    return (F.cross_entropy(out, y, reduction="none") * weights).sum() / weights.sum()


def contrastive(out, y):
    return F.cross_entropy(out @ out.mT, torch.arange(len(out)))


class Inner(nn.Linear):
    """Its call has the loss in it, of labels among its inputs."""

    def __init__(self, loss, reads):
        super().__init__(8, 3)
        self.inner = loss
        self.reads = reads

    def forward(self, x, labels):
        # vmap does not serve this, nor do factors.
        if self.reads and float(x.detach().sum()) == 51.7:
            return x.sum(), x
        out = super().forward(x)
        return self.inner(out, labels), out


def first_output(out, y):
    return out[0]


MIXED = {
    "weights": lambda out, y: F.cross_entropy(out, y, WEIGHTS),
    "weights by hand": by_weights,
    "contrastive": contrastive,
}


@PIECES
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", MIXED)
def test_guarantee_a_loss_inside_of_the_module_that_is_not_of_one_example_is_refused_on_every_route(
    name, route, at_once
):
    net = Inner(MIXED[name], route == "loop")
    inputs = {"x": X, "labels": Y}
    routes = ROUTES[ROUTES.index(route) :]
    # Each row alone has a loss: only all rows together show the divisor.
    with pytest.raises(ValueError, match=MEANS):
        clip_and_sum(net, first_output, inputs, Y, BOUND, routes=routes, at_once=at_once)


def first_words(out, y):
    """With weights of classes, and no mean."""
    weights = torch.arange(1.0, out.shape[2] + 1)
    return F.cross_entropy(out[:, 0], y[:, 0], weights, reduction="none")


OWN_MEANS = {
    "flat": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    "by word": lambda out, y: F.cross_entropy(out.mT, y),
    "listed": lambda out, y: F.cross_entropy(out.mT, y, reduction="none").mean(1),
    "weighted": first_words,
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", OWN_MEANS)
def test_a_loss_inside_of_the_module_is_each_example_s_own_mean_on_every_route(name, route):
    # Three words of each, of which 1 to 3 count.
    words = X[:, :6].reshape(N, 2, 3).mT @ torch.ones(2, 8)
    labels = torch.where(torch.arange(3) <= Y[:, None], Y[:, None], -100)
    net = Inner(OWN_MEANS[name], route == "loop")
    inputs = {"x": words, "labels": labels}
    found, _ = Clipper(net, first_output, routes=(route,))(inputs, Y, BOUND)
    assert agrees(found, net, first_output, inputs, Y)


@pytest.mark.parametrize("n", [1, 5])
def test_weights_that_cancel_are_seen_in_one_row(n):
    """Of one example alone w loss / w is its loss: there is no mean to be compared with."""
    loss = nn.CrossEntropyLoss(WEIGHTS)
    with pytest.raises(ValueError, match=MEANS):
        clip_and_sum(linear(), loss, X[:n], Y[:n], BOUND, at_once=1)


def foreign(net):
    temperature = nn.Parameter(torch.ones(()))
    return lambda out, y: F.cross_entropy(out / temperature, y)


def ragged(out, y):
    """Words: their number differs from one example to the next."""
    words = out[:, :, None].expand(-1, -1, 3)
    labels = torch.where(torch.arange(3) <= y[:, None], y[:, None], -100)
    return F.cross_entropy(words, labels)


def sum_and_penalty(net):
    loss = penalised(net)
    return lambda out, y: len(y) * loss(out, y) ** 2


def normalised():
    return nn.Sequential(nn.BatchNorm1d(8), linear())


def with_statistics():
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), linear())


REFUSED = {  # what makes a module, the loss of it, and a message that says what to do
    "class weights, mean": (linear, lambda net: nn.CrossEntropyLoss(WEIGHTS), MEANS),
    "counts of words": (linear, lambda net: ragged, MEANS),
    "contrastive": (linear, lambda net: contrastive, MEANS),
    "sum and penalty": (linear, sum_and_penalty, MEANS),
    "loss with parameters": (
        linear,
        lambda net: Centres(),
        "parameter of its own, centres,.*module.loss = loss",
    ),
    "parameter of nobody": (
        linear,
        foreign,
        r"trainable tensor of shape \(\).*make it a parameter of module",
    ),
    "detached": (
        linear,
        lambda net: lambda out, y: F.cross_entropy(out.detach(), y),
        "no trainable parameter",
    ),
    "batch normalisation": (normalised, plain, "GroupNorm"),
    "statistics": (with_statistics, plain, r"changed module\.1\.(running|num)"),
    "several devices": (
        lambda: nn.DataParallel(linear()),
        plain,
        r"DataParallel; pass what it wraps, its \.module",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_guarantee_a_loss_that_is_not_of_one_example_is_refused_with_the_cure(name):
    make, criterion, message = REFUSED[name]
    net = make()
    with pytest.raises(ValueError, match=message):
        clip_and_sum(net, criterion(net), X, Y, BOUND)


def test_class_weights_are_refused_in_whatever_batch_they_first_differ():
    """A batch of one class has no weighted mean: the next one has."""
    net = linear()
    one_class = torch.zeros(N, dtype=torch.int64)
    found = clip_and_sum(net, by_weights, X, one_class, BOUND)
    assert agrees(found, net, by_weights, X, one_class)
    # In the first pieces all weights are one.
    two_classes = one_class.clone()
    two_classes[-1] = 1
    for at_once in (256, 6):
        with pytest.raises(ValueError, match=MEANS):
            clip_and_sum(net, by_weights, X, two_classes, BOUND, at_once=at_once)


def in_ddp(net):
    return nn.parallel.DistributedDataParallel(net)


def in_fsdp(net):
    return distributed.fsdp.FullyShardedDataParallel(net, device_id=torch.device("cpu"))


def in_fsdp2(net):
    mesh = distributed.init_device_mesh("cpu", (1,))
    return distributed.fsdp.fully_shard(net, mesh=mesh)


def test_a_module_that_is_wrapped_or_sharded_is_named():
    wrappers = {
        "DistributedDataParallel": in_ddp,
        "FullyShardedDataParallel": in_fsdp,
        "FSDPModule": in_fsdp2,
    }
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        for name, wrap in wrappers.items():
            message = rf"wrapped in {name}; pass what it wraps, its \.module"
            with pytest.raises(ValueError, match=message):
                clip_and_sum(wrap(linear()), F.cross_entropy, X, Y, BOUND)
    finally:
        distributed.destroy_process_group()
