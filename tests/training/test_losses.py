"""Losses and loops that would go wrong in silence: each is served as plain autograd on one example,
or refused.
"""

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from trained import brute

from torchdp.randomness import keyed_generator
from torchdp.training import clip_and_sum
from torchdp.training.clipping import ROUTES, Clipper

N = 24
BOUND = 0.7
X = torch.randn(N, 8, generator=keyed_generator(b"losses"))
Y = torch.arange(N) % 3
WEIGHTS = torch.tensor([1.0, 20.0, 3.0])


class Headed(nn.Module):
    """Its head is called by the loss, which has a temperature too."""

    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Linear(8, width)
        self.head = nn.Linear(width, 3)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return torch.relu(self.body(x))


class Centres(nn.Module):
    """A loss with parameters."""

    def __init__(self, width=3):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, width, generator=keyed_generator(b"centres")))

    def forward(self, out, y):
        return (out - self.centres[y]).square().sum(1).mean()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.cell(x))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(checkpoint(self.inner, x, use_reentrant=False).tanh())


class Branches(nn.Linear):
    """Python reads an example's numbers."""

    def forward(self, x):
        return super().forward(x if bool((x > 0).all(1).any()) else 2 * x)


def linear():
    return nn.Linear(8, 3)


def headed(width=16):
    return lambda: Headed(width)


def centred():
    net = nn.Linear(8, 3)
    net.criterion = Centres()
    return net


def penalised(net):
    return lambda out, y: (
        F.cross_entropy(out, y) + 10 * sum(p.square().sum() for p in net.parameters())
    )


def penalised_list(net):
    """The loss holds the parameters by themselves: what stands in for them in the module is none of
    these.
    """
    kept = list(net.parameters())
    return lambda out, y: F.cross_entropy(out, y) + 10 * sum(p.square().sum() for p in kept)


def by_head(net):
    return lambda out, y: F.cross_entropy(net.head(out) / net.temperature, y)


def ignoring(net):
    loss = nn.CrossEntropyLoss(ignore_index=1)
    return lambda out, y: loss(out, y)


def plain(net):
    return F.cross_entropy


SERVED = {
    "head in the loss": (headed(), by_head),
    "head in the loss, wide": (headed(600), by_head),
    "loss with parameters, of the module": (centred, lambda net: net.criterion),
    "penalty": (linear, penalised),
    "penalty on a list of parameters": (linear, penalised_list),
    "class weights, none": (linear, lambda net: nn.CrossEntropyLoss(WEIGHTS, reduction="none")),
    "ignored labels": (linear, ignoring),
    "weights of a table": (
        linear,
        lambda net: lambda out, y: F.cross_entropy(out, y, reduction="none") * WEIGHTS[y],
    ),
    "gru cell": (Cell, plain),
    "checkpoints": (Checkpointed, plain),
    "branches": (lambda: Branches(8, 3), plain),
}


def error(found, expected):
    """Relative; beside it 1.5e-5 that norms are taken too large by."""
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", SERVED)
def test_the_loss_is_of_one_example_and_reaches_what_it_reaches(name):
    make, criterion = SERVED[name]
    net = make()
    loss = criterion(net)
    for at_once in (256, 5):
        assert (
            error(
                clip_and_sum(net, loss, X, Y, BOUND, at_once=at_once), brute(net, loss, X, Y, BOUND)
            )
            < 5e-5
        )


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


UNREACHED = {"idle": (Idle, ROUTES, "idle"), "experts": (Experts, ("loop",), "experts.2")}


@pytest.mark.parametrize(
    ("name", "route"), [(name, route) for name in UNREACHED for route in UNREACHED[name][1]]
)
def test_a_parameter_that_no_example_reaches_is_refused_by_name_or_accepted_by_name(name, route):
    make, _, idle = UNREACHED[name]
    net = make()
    x = torch.linspace(-2, 2, N)[:, None] * X.abs()
    options, message = (
        {"routes": (route,)},
        rf"reaches, {idle}.weight, {idle}.bias, .*requires_grad_\(False\)",
    )
    for at_once in (256, 5):
        with pytest.raises(ValueError, match=message):
            clip_and_sum(net, F.cross_entropy, x, Y, BOUND, at_once=at_once, **options)
    expected = brute(net, F.cross_entropy, x, Y, BOUND)
    for named in ((idle,), (f"{idle}.weight", f"{idle}.bias")):
        assert (
            error(
                clip_and_sum(net, F.cross_entropy, x, Y, BOUND, unused=named, **options), expected
            )
            < 5e-5
        )
    sums = Clipper(net, F.cross_entropy, unused=[idle])
    assert sums(x[:0], Y[:0], BOUND)[0].shape == expected.shape
    net.get_submodule(idle).requires_grad_(False)
    assert clip_and_sum(net, F.cross_entropy, x, Y, BOUND, **options).any()


def test_parameters_are_looked_for_in_the_first_batch_that_has_examples():
    sums = Clipper(Idle(), F.cross_entropy)
    sums(X[:0], Y[:0], BOUND)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"reaches, idle\.weight"):
            sums(X, Y, BOUND)


def table(out, y):
    """A mean that class weights divide, by hand."""
    return (F.cross_entropy(out, y, reduction="none") * WEIGHTS[y]).sum() / WEIGHTS[y].sum()


class Inner(nn.Linear):
    """Its call has the loss in it, of labels among its inputs."""

    def __init__(self, loss, reads=False):
        super().__init__(8, 3)
        self.inner = loss
        self.reads = reads

    def forward(self, x, labels):
        # vmap does not serve this, nor do factors
        if self.reads and float(x.detach().sum()) == 51.7:
            return {"loss": x.sum()}
        out = super().forward(x)
        return {"loss": self.inner(out, labels), "logits": out}


INSIDE = {
    "weights": lambda out, y: F.cross_entropy(out, y, WEIGHTS),
    "weights by hand": table,
    "contrastive": lambda out, y: F.cross_entropy(out @ out.mT, torch.arange(len(out))),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", INSIDE)
def test_guarantee_a_loss_inside_of_the_module_that_is_not_of_one_example_is_refused_on_every_route(
    name, route
):
    net, given = Inner(INSIDE[name], route == "loop"), {"x": X, "labels": Y}
    routes = ROUTES[ROUTES.index(route) :]
    for at_once in (256, 5):
        with pytest.raises(ValueError, match=MEANS):
            clip_and_sum(
                net, lambda out, y: out["loss"], given, Y, BOUND, routes=routes, at_once=at_once
            )


@pytest.mark.parametrize("route", ROUTES)
def test_a_loss_inside_of_the_module_is_each_example_s_own_mean_on_every_route(route):
    # three words of each
    words = X[:, :6].reshape(N, 2, 3).mT @ torch.ones(2, 8)
    labels = torch.where(torch.arange(3) <= (Y % 3)[:, None], Y[:, None], -100)
    for loss in (
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        lambda out, y: F.cross_entropy(out.mT, y),
        # lists of examples' own losses
        lambda out, y: F.cross_entropy(out.mT, y, reduction="none").mean(1),
        lambda out, y: F.cross_entropy(
            out[:, 0], y[:, 0], torch.arange(1.0, out.shape[2] + 1), reduction="none"
        ),
    ):
        net, total = Inner(loss, route == "loop"), lambda out, y: out["loss"]
        given = {"x": words, "labels": labels}
        sums = Clipper(net, total, routes=(route,))
        assert error(sums(given, Y, BOUND)[0], brute(net, total, given, Y, BOUND)) < 5e-5


def test_weights_that_cancel_are_seen_in_one_row():
    """Of one example alone w loss / w is its loss: rows that come one by one have no mean to be
    compared with.
    """
    for rows in (slice(1), slice(5)):
        with pytest.raises(ValueError, match=MEANS):
            clip_and_sum(linear(), nn.CrossEntropyLoss(WEIGHTS), X[rows], Y[rows], BOUND, at_once=1)


def foreign(net):
    temperature = nn.Parameter(torch.ones(()))
    return lambda out, y: F.cross_entropy(out / temperature, y)


def ragged(out, y):
    """Words: their number differs from one example to the next."""
    return F.cross_entropy(
        out[:, :, None].expand(-1, -1, 3),
        torch.where(torch.arange(3) <= y[:, None], y[:, None], -100),
    )


MEANS = "mean or the sum of their own losses.*reduction='none'"
REFUSED = {
    "class weights, mean": (linear, lambda net: nn.CrossEntropyLoss(WEIGHTS), MEANS),
    "counts of words": (linear, lambda net: ragged, MEANS),
    "contrastive": (linear, lambda net: lambda out, y: F.cross_entropy(out @ out.mT, torch.arange(len(out))), MEANS),
    "sum and penalty": (linear, lambda net: lambda out, y: len(y) * penalised(net)(out, y) ** 2, MEANS),
    "loss with parameters": (linear, lambda net: Centres(), "parameter of its own, centres,.*module.loss = loss"),
    "parameter of nobody": (linear, foreign, r"trainable tensor of shape \(\).*make it a parameter of module"),
    "detached": (linear, lambda net: lambda out, y: F.cross_entropy(out.detach(), y), "no trainable parameter"),
    "batch normalisation": (lambda: nn.Sequential(nn.BatchNorm1d(8), linear()), plain, "GroupNorm"),
    "statistics": (lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True),
                                         nn.Flatten(), linear()), plain, r"changed module\.1\.(running|num)"),
    "several devices": (lambda: nn.DataParallel(linear()), plain, r"DataParallel; pass what it wraps, its \.module"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_guarantee_a_loss_that_is_not_of_one_example_is_refused_with_the_cure(name):
    make, criterion, message = REFUSED[name]
    net = make()
    with pytest.raises(ValueError, match=message):
        clip_and_sum(net, criterion(net), X, Y, BOUND)


def test_class_weights_are_refused_in_whatever_batch_they_first_differ():
    """A batch of one class has no weighted mean: the next one has."""
    net = linear()
    loss = table
    same = torch.zeros(N, dtype=torch.int64)
    assert error(clip_and_sum(net, loss, X, same, BOUND), brute(net, loss, X, same, BOUND)) < 5e-5
    for at_once in (256, 6):
        with pytest.raises(ValueError, match=MEANS):
            clip_and_sum(
                net, loss, X, torch.cat([same[:-1], same[-1:] + 1]), BOUND, at_once=at_once
            )


def test_a_module_that_is_wrapped_or_sharded_is_named():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(linear())
        flat = distributed.fsdp.FullyShardedDataParallel(linear(), device_id=torch.device("cpu"))
        cut = distributed.fsdp.fully_shard(linear(), mesh=distributed.init_device_mesh("cpu", (1,)))
        names = {
            "DistributedDataParallel": parallel,
            "FullyShardedDataParallel": flat,
            "FSDPModule": cut,
        }
        for name, net in names.items():
            with pytest.raises(
                ValueError, match=rf"wrapped in {name}; pass what it wraps, its \.module"
            ):
                clip_and_sum(net, F.cross_entropy, X, Y, BOUND)
    finally:
        distributed.destroy_process_group()


SIZES = dict(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
)
DISTIL = dict(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=24, num_labels=3)
GPT2 = dict(
    vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
)
T5 = dict(
    vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
)
VIT = dict(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    image_size=8,
    patch_size=4,
)
MODELS = {  # of transformers: class of the model, of its configuration, sizes
    "bert": ("BertForSequenceClassification", "BertConfig", dict(SIZES, num_labels=3)),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig", DISTIL),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", dict(SIZES, num_key_value_heads=1)),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "vit": ("ViTForImageClassification", "ViTConfig", dict(VIT, num_labels=3)),
}  # fmt: skip


CLASSIFIES = ("bert", "distilbert", "vit")


def transformer(name):
    import transformers

    kind, config, sizes = MODELS[name]
    return getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()


def task(name, form):
    """Inputs, targets and the loss: with a mask, without, or with labels inside of the call, fewer
    of some rows.
    """
    words = torch.randint(3, 50, (4, 7), generator=keyed_generator(b"words"))
    y = Y[:4]
    x = {"pixel_values": torch.randn(4, 3, 8, 8, generator=keyed_generator(b"pixels"))} if name == "vit" else {
        "input_ids": words
    }  # fmt: skip
    if form != "no mask" and name != "vit":
        x["attention_mask"] = (torch.arange(7) < torch.tensor([7, 4, 7, 5])[:, None]).long()
    if form == "labels":
        some = words.masked_fill(torch.arange(7) < torch.tensor([1, 2, 4, 3])[:, None], -100)
        return x | {"labels": y if name in CLASSIFIES else some}, y, lambda out, y: out.loss
    if name == "t5":
        x["decoder_input_ids"] = words[:, :3]
    if name in CLASSIFIES:
        return x, y, lambda out, y: F.cross_entropy(out.logits, y)
    return (
        x,
        y,
        lambda out, y: F.cross_entropy(
            out.logits.mT, (y[:, None] + torch.arange(out.logits.shape[1])) % 50
        ),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["mask", "no mask", "labels"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_are_served_and_the_package_is_as_it_was(name, form):
    from transformers.activations import ACT2FN

    before, (x, y, loss) = dict(dict.items(ACT2FN)), task(name, form)
    net = transformer(name)
    sums = Clipper(net, loss)
    assert error(sums(x, y, BOUND)[0], brute(net, loss, x, y, BOUND)) < 5e-5
    assert sums.route.startswith("factors"), sums.route
    assert dict(dict.items(ACT2FN)) == before
    assert transformer(name) is not net
