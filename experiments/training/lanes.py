"""Many private trainings at once: every seed and learning rate of one plan, for the models and data
of optimizers.py.

A model is a function of layers with weights (lanes, out, in + 1), and layers remember what they
were given: with the gradients of what they made, that is each example's gradient, its norm and the
clipped sum, without a loop over lanes and without gradients of single examples where there are no
positions.
"""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

from torchdp.randomness import keyed_generator

CONTEXT, WIDTH, RANK = 16, 48, 4  # characters, and the language model's numbers


class Lanes:
    """Weights, drawn as ``nn.Linear`` draws them: ``whole[name]`` (rates, seeds, out, in + 1), in
    without bias.
    """

    def __init__(self, shapes: dict[str, tuple[int, int, bool]], rates, seeds):
        self.rates, self.seeds, self.whole = rates, seeds, dict[str, Tensor]()
        self.biased = {name: bias for name, (_, _, bias) in shapes.items()}
        for name, (out, size, bias) in shapes.items():
            draws = [keyed_generator(f"{name} {seed}".encode()) for seed in range(seeds)]
            one = torch.stack([2 * torch.rand(out, size + bias, generator=g) - 1 for g in draws])
            # LoRA's second matrix begins at 0
            scale = 0.0 if name.endswith("after") else size**-0.5
            self.whole[name] = (one * scale).repeat(rates, 1, 1, 1)
        views = ({name: W[i] for name, W in self.whole.items()} for i in range(rates))
        self.each = list(views)  # what an optimizer has, for each rate
        self.sizes = [W[0, 0].numel() for W in self.whole.values()]
        self.made = {}

    def linear(self, name, x):
        """x (lanes, n, ..., in) -> (lanes, n, ..., out)."""
        W = self.whole[name].flatten(0, 1)
        given = torch.cat([x, torch.ones_like(x[..., :1])], -1) if W.shape[-1] > x.shape[-1] else x
        z = torch.bmm(given.flatten(1, -2), W.mT).unflatten(1, given.shape[1:-1])
        if torch.is_grad_enabled():
            self.made[name] = given.detach(), z if z.requires_grad else z.requires_grad_()
        return z

    def clipped(self, forward, x, y, kept):
        """(rates, seeds, out, in + 1): sums of gradients clipped to norm 1; x (seeds, n, ...), kept
        0 or 1.
        """
        many = (self.rates,) + (1,) * (x.ndim - 1)
        out = forward(self, x.repeat(many))
        loss = nn.functional.cross_entropy(
            out.flatten(0, 1), y.repeat(self.rates, 1).flatten(), reduction="sum"
        )
        found = torch.autograd.grad(loss, [z for _, z in self.made.values()])
        factors = {k: (a, d) for (k, (a, _)), d in zip(self.made.items(), found, strict=True)}
        norms = sum(_squares(a, d) for a, d in factors.values())
        scales = kept.repeat(self.rates, 1) * norms.sqrt().clamp_min(1e-12).reciprocal().clamp_max(
            1
        )
        sums = {}
        for name, (a, d) in factors.items():
            scaled = d * scales[(...,) + (None,) * (d.ndim - 2)]
            total = torch.bmm(scaled.flatten(1, -2).mT, a.flatten(1, -2))
            sums[name] = total.unflatten(0, (self.rates, self.seeds))
        return sums

    @torch.no_grad()
    def accuracy(self, forward, x, y):
        """(rates, seeds)."""
        lanes = self.rates * self.seeds
        right = [
            (forward(self, a.expand(lanes, *a.shape)).argmax(-1) == b).double()
            for a, b in zip(x.split(100), y.split(100), strict=True)
        ]
        return torch.cat(right, 1).mean(1).view(self.rates, self.seeds)


def _squares(a, d):
    """Squared norms of the examples' gradients d^T a, (lanes, n)."""
    if a.ndim == 3:
        return a.square().sum(-1) * d.square().sum(-1)
    if a.shape[2] * (a.shape[3] + d.shape[3]) < a.shape[3] * d.shape[3]:
        return ((a @ a.mT) * (d @ d.mT)).sum((-1, -2))
    return (d.mT @ a).square().sum((-1, -2))


class Language(nn.Module):
    """A transformer of one block that says which character comes next; ``low``: what is added to a
    layer.
    """

    def __init__(self):
        super().__init__()
        self.embed, self.place = (
            nn.Embedding(128, WIDTH),
            nn.Parameter(0.1 * torch.randn(CONTEXT, WIDTH)),
        )
        sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
        sizes |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "head": (WIDTH, 128)}
        self.layers = nn.ModuleDict({k: nn.Linear(*size) for k, size in sizes.items()})

    def forward(self, ids, low: Callable[[str, Tensor], Tensor | float] = lambda name, a: 0.0):
        def layer(name, a):
            return self.layers[name](a) + low(name, a)

        x = self.embed(ids) + self.place
        last, a = x[..., -1:, :], nn.functional.layer_norm(x, (WIDTH,))
        weights = (layer("q", a[..., -1:, :]) @ layer("k", a).mT / WIDTH**0.5).softmax(-1)
        h = last + layer("o", weights @ layer("v", a))
        h = h + layer("down", layer("up", nn.functional.layer_norm(h, (WIDTH,))).relu())
        return layer("head", nn.functional.layer_norm(h, (WIDTH,))).squeeze(-2)


def pieces(text, most):
    """Characters and the one that follows, evenly over the text."""
    codes = torch.tensor([min(ord(c), 127) for c in text])
    start = torch.arange(most) * ((len(codes) - CONTEXT - 1) // most)
    windows = codes[start[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


@cache
@torch.enable_grad()
def language():
    """Trained on Python's manual, which is public."""
    from pydoc_data.topics import topics

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Language()
        x, y = pieces("".join(topics[name] for name in sorted(topics)), 100_000)
        optimizer = torch.optim.AdamW(model.parameters(), 0.003)
        for _ in range(600):
            rows = torch.randint(len(x), (256,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.requires_grad_(False)


def linear(lanes, x):
    return lanes.linear("out", x)


def mlp(lanes, x):
    return lanes.linear("out", lanes.linear("in", x).relu())


def cnn(lanes, x):
    """Eight filters of 3 x 3, means of 2 x 2, a linear layer; x: images of 8 x 8, as they are."""
    images = x.reshape(-1, 1, 8, 8)
    # (lanes, n, 64, 9)
    patches = nn.functional.unfold(images, 3, padding=1).mT.unflatten(0, x.shape[:2])
    h = lanes.linear("filters", patches).relu().unflatten(2, (4, 2, 4, 2)).mean((3, 5))
    return lanes.linear("out", h.flatten(2))


def attention(lanes, x):
    """Over the eight rows of an image; each row says which it is."""
    rows = torch.cat([x.unflatten(-1, (8, 8)), torch.eye(8).expand(*x.shape[:2], 8, 8)], -1)
    h = lanes.linear("embed", rows)
    q, k, v = lanes.linear("mixed", h).chunk(3, -1)
    return lanes.linear("out", (h + (q @ k.mT / 4).softmax(-1) @ v).relu().mean(-2))


def lora(lanes, x):
    """Two thin matrices beside five layers of ``language()``."""

    def low(name, a) -> Tensor | float:
        before, after = f"{name} before", f"{name} after"
        return 4 * lanes.linear(after, lanes.linear(before, a)) if before in lanes.whole else 0.0

    return language()(x, low)


def shapes(model, size, classes):
    """(out, in, whether there is a bias) of each layer."""
    if model == "LoRA":
        sizes = {
            "q": (WIDTH, WIDTH),
            "v": (WIDTH, WIDTH),
            "up": (2 * WIDTH, WIDTH),
            "down": (WIDTH, 2 * WIDTH),
        }
        before = {f"{k} before": (RANK, s, False) for k, (_, s) in sizes.items()}
        return before | {f"{k} after": (out, RANK, False) for k, (out, _) in sizes.items()}
    return {
        "linear": {"out": (classes, size, True)},
        "MLP": {"in": (32, size, True), "out": (classes, 32, True)},
        "CNN": {"filters": (8, 9, True), "out": (classes, 128, True)},
        "attention": {"embed": (16, 16, True), "mixed": (48, 16, True), "out": (classes, 16, True)},
    }[model]


FORWARD = {
    "linear": linear,
    "MLP": mlp,
    "CNN": cnn,
    "attention": attention,
    "LoRA": lora,
}


@cache
def data(name, folder: Path | None):
    """x, y, and how many rows are users': the others are for accuracy.

    name: digits, breast cancer, text (pieces of Python's own source), agnews (embeddings in
    ``folder``), or short digits, of which columns have mean 0 and rows a norm of about 1.
    """
    if name == "text":
        import argparse
        import optparse

        (x, y), (unseen, targets) = (
            pieces(inspect.getsource(argparse), 3000),
            pieces(inspect.getsource(optparse), 1000),
        )
        return torch.cat([x, unseen]), torch.cat([y, targets]), len(x)
    if name == "agnews":
        if folder is None:
            raise ValueError("folder must hold agnews_test_mpnet.pt: (embeddings, classes)")
        x, y = torch.load(folder / "agnews_test_mpnet.pt", weights_only=True)
        x, users = 28 * x.float(), 6000  # numbers of about 1
    else:
        x, y = map(
            torch.tensor,
            (load_breast_cancer if name == "breast cancer" else load_digits)(return_X_y=True),
        )
        users = 400 if name == "breast cancer" else 1500
        x = (
            (x.float() - 8) / 16
            if name == "digits"
            else ((x - x.mean(0)) / x.std(0).clamp_min(1e-9)).float()
        )
        x = x / 8 if name == "short digits" else x
    order = torch.randperm(len(x), generator=keyed_generator(b"split"))
    return x[order], y[order].long(), users


if __name__ == "__main__":
    raise SystemExit("what is trained at once: run python experiments/training/optimizers.py")
