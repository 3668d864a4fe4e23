"""Sums of clipped per-example gradients: time and memory, beside whole gradients and Opacus.

Paper: Lee, Kifer (2021), Li, Tramer, Liang, Hashimoto (2022): norms from activations and their gradients; Bu, Wang,
    Zha, Karypis (2023): sums from them too, with no second backward pass.
Command:  OMP_NUM_THREADS=1 python experiments/training/clipping.py
Expected: a batch's gradient without privacy is the floor. torchdp's sums take a small multiple of its time, and memory
    that does not hold a copy of the large weights for each example; ``torch.func.vmap(grad)`` does, and so does Opacus
    by hooks; its ghost clipping does not. Where Opacus is not installed its rows are left out.
Output: results/training/clipping/clipping.csv; seconds: of the processor, the least of several calls; memory: the
    process's largest, less what it held before, MiB (Linux; elsewhere empty); differs: from whole gradients' sum,
    relative. Printed, with Opacus 1.6: experiments/bench/clipping_cpu.txt.
Artifact: - | what clipping costs
Status: agrees
Time: 3 minutes on one core; --smoke in seconds.
"""

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from torchdp.simulate import Experiment, Report
from torchdp.training import clip_and_sum, clipped_sum


@dataclass(frozen=True)
class Config:
    width: int = 1024
    batch: int = 128
    model: int = 256
    words: int = 16
    vocabulary: int = 8000
    blocks: int = 4
    sequences: int = 64
    calls: int = 2


FULL = Config()
SMOKE = Config(width=64, batch=8, model=64, words=4, vocabulary=300, blocks=1, sequences=4, calls=1)
BOUND = 1.0


class Block(nn.Module):
    """Self-attention of one head, and a layer of four times the width."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        weights = (self.query(h) @ self.key(h).mT / h.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out(weights @ self.value(h))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Text(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.table = nn.Embedding(config.vocabulary, config.model)
        self.blocks = nn.Sequential(*(Block(config.model) for _ in range(config.blocks)))
        self.last = nn.Linear(config.model, 10)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.blocks(self.table(words)).mean(1))


def tasks(config: Config) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    width, wide = config.width, 4 * config.width
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, width))
    yield (
        f"{width}-{wide}-{width}",
        net,
        torch.randn(config.batch, width),
        torch.randint(0, width, (config.batch,)),
    )
    words = torch.randint(0, config.vocabulary, (config.sequences, config.words))
    yield f"{config.blocks} blocks, {config.words} words", Text(config), words, torch.randint(0, 10, (len(words),))


def ways(net: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Callable[[], Tensor | None]]]:
    def batch() -> None:
        torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, parameters, (x[None],)), y[None])

    def whole() -> Tensor:
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        return clipped_sum(list(vmap(grad(one), (None, 0, 0))(parameters, x, y).values()), BOUND)

    yield "vmap(grad), whole gradients", whole
    yield "torchdp", lambda: clip_and_sum(net, F.cross_entropy, x, y, BOUND, at_once=len(x))
    yield "a batch's gradient, not private", batch
    yield from opacus(net, x, y)


def opacus(net: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Opacus's two ways; none where it is not installed."""
    try:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    except ImportError as error:
        print(f"left out, not installed: {error}", file=sys.stderr)
        return

    def flat(wrapped: nn.Module) -> Tensor:
        gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
        wrapped.zero_grad(set_to_none=True)
        return gradient

    def hooks() -> Tensor:
        F.cross_entropy(hooked(x), y).backward()
        gradient = clipped_sum([p.grad_sample for p in net.parameters()], BOUND)
        hooked.zero_grad(set_to_none=True)
        return gradient

    hooked = GradSampleModule(net)
    yield "Opacus, hooks", hooks
    hooked.to_standard_module()

    def ghost() -> Tensor:
        losses = F.cross_entropy(ghosts(x), y, reduction="none")
        losses.mean().backward(retain_graph=True)
        ghosts.zero_grad(set_to_none=True)
        scales = ghosts.get_clipping_coef()
        ghosts.disable_hooks()
        (scales * losses).sum().backward()
        ghosts.enable_hooks()
        return flat(ghosts)

    ghosts = GradSampleModuleFastGradientClipping(net, max_grad_norm=BOUND, use_ghost_clipping=True)
    yield "Opacus, ghost clipping", ghost
    ghosts.to_standard_module()


def largest() -> float | None:
    """MiB that the process held at most since ``forget``."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)


def forget() -> None:
    if STATUS.exists():
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        Path("/proc/self/clear_refs").write_text("5")


STATUS = Path("/proc/self/status")


def measure(config: Config, report: Report) -> None:
    for task, net, x, y in tasks(config):
        size, reference = sum(p.numel() for p in net.parameters()), None
        for way, run in ways(net, x, y):
            found = run()  # warm
            reference = found if reference is None else reference
            differs = None if found is None else float((found - reference).norm() / reference.norm())
            del found
            forget()
            before, seconds = largest(), []
            for _ in range(config.calls):
                begun = time.process_time()
                run()
                seconds.append(time.process_time() - begun)
            memory = None if before is None else largest() - before
            report.row(
                "clipping", model=task, parameters=size, examples=len(x), way=way, seconds=min(seconds),
                memory=memory, differs=differs,
            )  # fmt: skip


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
