"""Sums of clipped per-example gradients: time and memory of nine models, beside Opacus's two ways.

Paper: Lee, Kifer (2021), Li, Tramer, Liang, Hashimoto (2022): norms from activations and their
gradients; Bu, Wang, Zha, Karypis (2023): sums from them too, with no second backward pass.
Command:  OMP_NUM_THREADS=1 python experiments/training/clipping.py
Expected: torchdp's sums take less time than the faster of Opacus's ways, hooks and ghost clipping,
on all models but the smallest, where each call of torch counts, and no memory for a copy of large
weights for each example. A batch's gradient without privacy is the floor. Hooks are left out where
their copies pass 1 GiB; where Opacus is not installed its rows are.
Output: results/training/clipping/clipping.csv; seconds: of the processor, the least of several
calls, ways in turn; memory: the process's largest, less what it held before, MiB (Linux; elsewhere
empty); differs: from torchdp's sum, relative (not of the LSTM, whose weights Opacus's layer draws
anew). Printed, with Opacus 1.6: experiments/bench/clipping_cpu.txt.
Artifact: - | what clipping costs
Status: agrees
Time: 3 minutes on one core; --smoke in seconds.
"""

import copy
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from opacus_ways import ghost, hooks
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

from torchdp.simulate import Experiment
from torchdp.training.clipping import MEMORY, Clipper


@dataclass(frozen=True)
class Config:
    models: tuple[str, ...] = (
        "linear", "mlp", "cnn", "lstm", "blocks", "vit", "wide mlp", "wide cnn", "wide blocks"
    )  # fmt: skip
    seconds: float = 0.5  # of the processor, for all ways of a model together
    rounds: int = 3  # at least
    memory: int = MEMORY


BOUND = 1.0
COPIES = 2**28  # float32 numbers of the gradients that hooks hold
STATUS = Path("/proc/self/status")


class Block(nn.Module):
    """Self-attention and a layer of four times the width."""

    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(size)
        self.second = nn.LayerNorm(size)
        self.sides = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x):
        sides = self.sides(self.first(x)).unflatten(2, (3, self.heads, -1))
        q, k, v = sides.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Blocks(nn.Module):
    """Of words, or of rows of eight numbers."""

    def __init__(self, size, blocks, words=0):
        super().__init__()
        self.first = nn.Embedding(words, size) if words else nn.Linear(8, size)
        self.blocks = nn.Sequential(*(Block(size, 4) for _ in range(blocks)))
        self.norm = nn.LayerNorm(size)
        self.last = nn.Linear(size, 10)

    def forward(self, x):
        h = self.norm(self.blocks(self.first(x)))
        return self.last(h.mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(16, 32, batch_first=True)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


class Vision(nn.Module):
    """transformers' ViT of four layers."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4}
        images = {"image_size": 32, "patch_size": 4, "num_attention_heads": 4, "num_labels": 10}
        self.net = ViTForImageClassification(ViTConfig(**sizes, **images))

    def forward(self, x):
        return self.net(x).logits


def layers(*sizes):
    parts = []
    for inputs, outputs in pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def convolutions(channels, *more, groups, last, features):
    parts = [nn.Conv2d(channels, more[0], 3, padding=1), nn.GroupNorm(groups, more[0]), nn.ReLU()]
    for inputs, outputs in pairwise(more):
        parts += [nn.Conv2d(inputs, outputs, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*parts, last, nn.Flatten(), nn.Linear(features, 10))


def task(name) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if name == "linear":
        return nn.Linear(64, 10), torch.randn(512, 64)
    if name == "mlp":
        return layers(64, 128, 10), torch.randn(256, 64)
    if name == "wide mlp":
        return layers(784, 1024, 1024, 10), torch.randn(256, 784)
    if name == "cnn":
        return convolutions(1, 16, 32, groups=4, last=nn.Identity(), features=288), torch.randn(
            128, 1, 8, 8
        )
    if name == "wide cnn":
        net = convolutions(3, 64, 128, 256, groups=8, last=nn.AdaptiveAvgPool2d(2), features=1024)
        return net, torch.randn(64, 3, 16, 16)
    if name == "lstm":
        return Recurrent(), torch.randn(64, 20, 16)
    if name == "vit":
        return Vision(), torch.randn(32, 3, 32, 32)
    if name == "blocks":
        return Blocks(64, 4, 1000), torch.randint(1000, (64, 32))
    return Blocks(256, 4, 5000), torch.randint(5000, (64, 32))


def ways(net, x, y, memory) -> Iterator[tuple[str, Callable[[], Tensor | None]]]:
    def batch():
        torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))

    sums = Clipper(net, F.cross_entropy)
    yield "torchdp", lambda: sums(x, y, BOUND, at_once=len(x), memory=memory)[0]
    yield "a batch's gradient, not private", batch
    yield from opacus(net, x, y)


def opacus(net, x, y) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Opacus's two ways; none where it is not installed."""
    try:
        if len(x) * sum(p.numel() for p in net.parameters()) <= COPIES:
            yield "Opacus, hooks", partial(hooks(copy.deepcopy(net), y, BOUND), x)
        yield "Opacus, ghost clipping", partial(ghost(copy.deepcopy(net), y, BOUND), x)
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)


def largest():
    """MiB that the process held at most since ``forget``; None elsewhere than on Linux."""
    if not STATUS.exists():
        return None
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget():
    if STATUS.exists():
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        Path("/proc/self/clear_refs").write_text("5")


def measure(config, report):
    for name in config.models:
        net, x = task(name)
        net(x[:1])
        y = torch.randint(0, 10, (len(x),))
        runs = dict(ways(net, x, y, config.memory))
        seconds = {way: [] for way in runs}
        memory = {}
        differs = {}
        for way, run in runs.items():
            total = run()  # warm
            if way == "torchdp":
                reference = total
            differs[way] = None
            if total is not None:
                differs[way] = float((total - reference).norm() / reference.norm())
            del total
            forget()
            before = largest()
            run()
            memory[way] = None if before is None else largest() - before
        end = time.process_time() + config.seconds
        while len(seconds["torchdp"]) < config.rounds or time.process_time() < end:
            for way, run in runs.items():
                begun = time.process_time()
                run()
                seconds[way].append(time.process_time() - begun)
        for way in runs:
            report.row(
                "clipping",
                model=name,
                parameters=sum(p.numel() for p in net.parameters()),
                examples=len(x),
                way=way,
                seconds=min(seconds[way]),
                memory=memory[way],
                differs=differs[way],
            )


EXPERIMENT = Experiment(measure, Config(), Config(models=("linear", "cnn"), seconds=0.0, rounds=1))

if __name__ == "__main__":
    EXPERIMENT.main()
