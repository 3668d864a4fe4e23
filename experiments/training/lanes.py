"""Many private trainings at once: every seed and learning rate of one plan, for optimizers.py.

A model is a function of layers with weights (lanes, out, in + 1), and layers remember what they
were given: with the gradients of what they made, that is each example's gradient, its norm and the
clipped sum, without a loop over lanes and without gradients of single examples where there are no
positions.
"""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

from torchdp.randomness import keyed_generator

CONTEXT = 16  # characters before the one that is predicted
WIDTH = 48  # of the language model
RANK = 4  # of what is added to its layers


class Layer(NamedTuple):
    """Sizes, and whether there is a bias."""

    outputs: int
    inputs: int
    bias: bool = True


class Lanes:
    """Weights as ``nn.Linear`` draws them: ``whole[name]`` (rates, seeds, out, in or in + 1)."""

    def __init__(self, layers: dict[str, Layer], rates, seeds):
        self.rates = rates
        self.seeds = seeds
        self.biased = {name: layer.bias for name, layer in layers.items()}
        self.whole = {name: _weights(name, layer, rates, seeds) for name, layer in layers.items()}
        # what an optimizer has, for each rate
        self.each = [{name: W[i] for name, W in self.whole.items()} for i in range(rates)]
        self.sizes = [W[0, 0].numel() for W in self.whole.values()]
        self.made: dict[
            str, tuple[Tensor, Tensor]
        ] = {}  # inputs and outputs of the layers, of the last call

    def linear(self, name, x):
        """x (lanes, n, ..., in) -> (lanes, n, ..., out)."""
        W = self.whole[name].flatten(0, 1)
        if self.biased[name]:
            x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        z = torch.bmm(x.flatten(1, -2), W.mT).unflatten(1, x.shape[1:-1])
        if torch.is_grad_enabled():
            # the first layer's inputs need no gradient, so its outputs are asked to have one
            if not z.requires_grad:
                z.requires_grad_()
            self.made[name] = x.detach(), z
        return z

    def clipped(self, forward, x, y, kept):
        """Sums of gradients clipped to norm 1, by layer (rates, seeds, out, in + 1).

        x: (seeds, n, ...). kept: (seeds, n), 0 for rows that fill up a smaller batch.
        """
        outputs = forward(self, x.repeat(self.rates, *[1] * (x.ndim - 1)))
        targets = y.repeat(self.rates, 1).flatten()
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="sum")
        gradients = torch.autograd.grad(loss, [z for _, z in self.made.values()])
        inputs = [a for a, _ in self.made.values()]
        squares = sum(_squares(a, d) for a, d in zip(inputs, gradients, strict=True))
        shrinking = squares.sqrt().clamp_min(1e-12).reciprocal().clamp_max(1)
        scales = kept.repeat(self.rates, 1) * shrinking
        sums = {}
        for name, a, d in zip(self.made, inputs, gradients, strict=True):
            scaled = d * scales.view(*scales.shape, *[1] * (d.ndim - 2))
            total = torch.bmm(scaled.flatten(1, -2).mT, a.flatten(1, -2))
            sums[name] = total.unflatten(0, (self.rates, self.seeds))
        return sums

    @torch.no_grad()
    def accuracy(self, forward, x, y):
        """(rates, seeds)."""
        right = []
        for rows, classes in zip(x.split(100), y.split(100), strict=True):
            outputs = forward(self, rows.expand(self.rates * self.seeds, *rows.shape))
            right.append((outputs.argmax(-1) == classes).double())
        return torch.cat(right, 1).mean(1).view(self.rates, self.seeds)


def _weights(name, layer, rates, seeds):
    draws = []
    for seed in range(seeds):
        generator = keyed_generator(f"{name} {seed}".encode())
        uniform = torch.rand(layer.outputs, layer.inputs + layer.bias, generator=generator)
        draws.append(2 * uniform - 1)
    # LoRA's second matrix begins at 0
    scale = 0.0 if name.endswith("after") else layer.inputs**-0.5
    return (torch.stack(draws) * scale).repeat(rates, 1, 1, 1)


def _squares(a, d):
    """Squared norms of the examples' gradients d^T a, (lanes, n)."""
    if a.ndim == 3:
        return a.square().sum(-1) * d.square().sum(-1)
    positions, inputs = a.shape[2:]
    outputs = d.shape[3]
    # ||d^T a||^2 = <a a^T, d d^T>: the smaller of the two products is formed
    if positions * (inputs + outputs) < inputs * outputs:
        return ((a @ a.mT) * (d @ d.mT)).sum((-1, -2))
    return (d.mT @ a).square().sum((-1, -2))


class Language(nn.Module):
    """A transformer of one block that says which character comes next."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(CONTEXT, WIDTH))
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in "qkvo"})
        self.layers["up"] = nn.Linear(WIDTH, 2 * WIDTH)
        self.layers["down"] = nn.Linear(2 * WIDTH, WIDTH)
        self.layers["head"] = nn.Linear(WIDTH, 128)

    def forward(self, ids, low: Callable[[str, Tensor], Tensor | float] = lambda name, a: 0.0):
        """low: what is added to a layer, of its name and inputs."""

        def layer(name, a):
            return self.layers[name](a) + low(name, a)

        # one query, of the last character alone
        x = self.embed(ids) + self.place
        a = _normalised(x)
        query = layer("q", a[..., -1:, :])
        weights = (query @ layer("k", a).mT / WIDTH**0.5).softmax(-1)
        h = x[..., -1:, :] + layer("o", weights @ layer("v", a))
        h = h + layer("down", layer("up", _normalised(h)).relu())
        return layer("head", _normalised(h)).squeeze(-2)


def _normalised(x):
    return nn.functional.layer_norm(x, (WIDTH,))


def pieces(text, most):
    """Characters and the one that follows, evenly over the text."""
    codes = torch.tensor([min(ord(c), 127) for c in text])
    first = torch.arange(most) * ((len(codes) - CONTEXT - 1) // most)
    windows = codes[first[:, None] + torch.arange(CONTEXT + 1)]
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
    patches = nn.functional.unfold(images, 3, padding=1).mT  # (lanes n, 64, 9)
    filtered = lanes.linear("filters", patches.unflatten(0, x.shape[:2])).relu()
    means = filtered.unflatten(2, (4, 2, 4, 2)).mean((3, 5))
    return lanes.linear("out", means.flatten(2))


def attention(lanes, x):
    """Over the eight rows of an image; each row says which it is."""
    places = torch.eye(8).expand(*x.shape[:2], 8, 8)
    h = lanes.linear("embed", torch.cat([x.unflatten(-1, (8, 8)), places], -1))
    q, k, v = lanes.linear("mixed", h).chunk(3, -1)
    h = h + (q @ k.mT / 4).softmax(-1) @ v
    return lanes.linear("out", h.relu().mean(-2))


def lora(lanes, x):
    """Two thin matrices beside five layers of ``language()``."""

    def low(name, a) -> Tensor | float:
        before = f"{name} before"
        if before not in lanes.whole:
            return 0.0
        return 4 * lanes.linear(f"{name} after", lanes.linear(before, a))

    return language()(x, low)


def shapes(model, size, classes) -> dict[str, Layer]:
    """Of each layer."""
    if model == "LoRA":
        adapted = {name: language().layers[name] for name in ("q", "v", "up", "down")}
        before = {f"{k} before": Layer(RANK, W.in_features, False) for k, W in adapted.items()}
        after = {f"{k} after": Layer(W.out_features, RANK, False) for k, W in adapted.items()}
        return before | after
    if model == "linear":
        return {"out": Layer(classes, size)}
    if model == "MLP":
        return {"in": Layer(32, size), "out": Layer(classes, 32)}
    if model == "CNN":
        return {"filters": Layer(8, 9), "out": Layer(classes, 128)}
    return {"embed": Layer(16, 16), "mixed": Layer(48, 16), "out": Layer(classes, 16)}


FORWARD = {"linear": linear, "MLP": mlp, "CNN": cnn, "attention": attention, "LoRA": lora}


@cache
def data(name, folder: Path | None):
    """x, y, and how many rows are users': the others are for accuracy.

    name: digits, breast cancer, text (pieces of Python's own source), agnews (embeddings in
    ``folder``), or short digits, of which columns have mean 0 and rows a norm of about 1.
    """
    if name == "text":
        import argparse
        import optparse

        x, y = pieces(inspect.getsource(argparse), 3000)
        unseen, targets = pieces(inspect.getsource(optparse), 1000)
        return torch.cat([x, unseen]), torch.cat([y, targets]), len(x)
    if name == "agnews":
        if folder is None:
            raise ValueError("folder must hold agnews_test_mpnet.pt: (embeddings, classes)")
        x, y = torch.load(folder / "agnews_test_mpnet.pt", weights_only=True)
        users = 6000
        x = 28 * x.float()  # numbers of about 1
    else:
        load = load_breast_cancer if name == "breast cancer" else load_digits
        x, y = map(torch.tensor, load(return_X_y=True))
        users = 400 if name == "breast cancer" else 1500
        if name == "digits":
            x = (x.float() - 8) / 16
        else:
            x = ((x - x.mean(0)) / x.std(0).clamp_min(1e-9)).float()
        if name == "short digits":
            x = x / 8
    order = torch.randperm(len(x), generator=keyed_generator(b"split"))
    return x[order], y[order].long(), users


if __name__ == "__main__":
    raise SystemExit("what is trained at once: run python experiments/training/optimizers.py")
