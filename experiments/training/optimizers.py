"""What training makes of a chosen plan under SGD, momentum, Adam and AdamW: accuracy beside DP-SGD's.

Paper: no artifact; Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, for Adam on noise of known variance.
    A linear model, an MLP, and attention over the images' rows learn scikit-learn's digits (1,500 users, batches of
    100, 297 other rows for accuracy) or breast cancer (400 users, batches of 40). delta = 1e-5. Sides: DP-SGD,
    independent noise over Poisson batches, with PrivateAdam for Adam; Opacus's noise: the same with its accountant's
    noise (PRV) and torch's optimizers; the best plan of choose(Descent(steps, momentum)), without momentum for Adam;
    that of the flat loss, Iterates(steps, momentum), with .9 for Adam. Each side has the best of five learning rates.
    All rates and seeds of a side are trained at once, with the library's plans, batches, noise and optimizers. Seeds
    share weights, and what noise is made of, with the same seed of other sides: ahead and behind are means over pairs,
    apart is the standard error of that mean, behind is a number of these.
Command:  OMP_NUM_THREADS=1 python experiments/training/optimizers.py --models linear MLP --seeds 20
          OMP_NUM_THREADS=1 python experiments/training/optimizers.py --models attention --optimizers Adam AdamW
          --epsilons 2 8 --seeds 3
Expected: experiments/bench/optimizers_cpu.txt. The chosen plan is nowhere behind DP-SGD by more than .2 standard
    errors; with momentum it is ahead by .8 to 4.9 on digits at epsilon 2 and 8 (linear, MLP), at 1, without
    momentum, and for Adam it is DP-SGD. That of the flat loss is up to 8.4 behind at epsilon 1, and up to 3.8 ahead at
    epsilon 8. Opacus's noise with torch's Adam is between 2.8 behind DP-SGD with PrivateAdam and 2.6 ahead, of
    attention with three seeds at epsilon 2 by 3.1 (Adam) and .4 (AdamW).
Output: results/training/optimizers/accuracy.csv.
Artifact: figure | optimizers
Status: agrees
Time: four CPU-minutes for linear and MLP with 20 seeds; --smoke in 20 CPU-seconds.
"""

import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from tqdm import tqdm

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import (
    Batches,
    CorrelatedNoise,
    Descent,
    Iterates,
    Participation,
    Plan,
    SampledBatches,
    choose,
)

DELTA = 1e-5
BETAS = (0.9, 0.999)  # of PrivateAdam, as torch's
EPS = 1e-8
INDEPENDENT = "Poisson, independent noise"
SGD = (0.3, 1.0, 2.0, 4.0, 8.0)
ADAM = (0.003, 0.01, 0.03, 0.1, 0.3)
RATES = {"SGD": SGD, "momentum": tuple(rate / 10 for rate in SGD), "Adam": ADAM, "AdamW": ADAM}
BATCH = {"digits": 100, "breast cancer": 40}


@dataclass(frozen=True)
class Config:
    data: str = "digits"
    models: tuple[str, ...] = ("linear", "MLP", "attention")
    optimizers: tuple[str, ...] = ("SGD", "momentum", "Adam", "AdamW")
    epsilons: tuple[float, ...] = (1.0, 2.0, 8.0)
    steps: int = 120
    seeds: int = 10
    every: bool = False  # candidate of choose beside the chosen ones


FULL = Config()
SMOKE = Config(models=("linear",), optimizers=("momentum", "Adam"), epsilons=(8.0,), steps=6, seeds=2)


class PrivateAdam(torch.optim.Optimizer):
    """Adam, and with ``weight_decay`` AdamW, that takes the public variance of the noise out of the second moment.

        m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  u <- b2 u + (1 - b2) deviation^2
        x <- x - rate m' / (sqrt(max(v' - u', u')) + eps)

    Primes are the corrections by 1 - b^t, and x was first made smaller by rate weight_decay. ``deviation`` is that of
    the noise in ``.grad``, set before each step. No better than torch's Adam at its best rate.
    Source: Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, for a constant variance; here that of each step is averaged as
    the squares are.
    """

    def __init__(self, groups: list[dict[str, Any]], weight_decay: float) -> None:
        super().__init__(groups, {"weight_decay": weight_decay})
        self.deviation = 0.0
        self.taken = 0
        self.noise = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        first, second = BETAS
        self.taken += 1
        self.noise = second * self.noise + (1 - second) * self.deviation**2
        seen = 1 - second**self.taken
        least = self.noise / seen
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p]["m"].lerp_(p.grad, 1 - first)
                v = self.state[p]["v"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                sizes = (v / seen - least).clamp_min(least).sqrt() + EPS
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m / sizes, alpha=-group["lr"] / (1 - first**self.taken))


class Lanes:
    """Many trainings at once: weights, drawn as ``nn.Linear`` draws them, ``whole[name]`` (rates, seeds, out, in + 1).

    A model is a function of layers, which remember what they were given: with the gradients of what they made, that is
    each example's gradient, its norm and the clipped sum, without a loop over lanes.
    """

    def __init__(self, shapes: dict[str, tuple[int, int]], rates: int, seeds: int) -> None:
        self.rates = rates
        self.seeds = seeds
        self.whole = dict[str, Tensor]()
        for name, (out, size) in shapes.items():
            draws = [keyed_generator(f"{name} {seed}".encode()) for seed in range(seeds)]
            one = torch.stack([2 * torch.rand(out, size + 1, generator=g) - 1 for g in draws])
            self.whole[name] = (one * size**-0.5).repeat(rates, 1, 1, 1)
        # what an optimizer has, for each rate
        self.each = [{name: W[i] for name, W in self.whole.items()} for i in range(rates)]
        self.sizes = [W[0, 0].numel() for W in self.whole.values()]
        self.made: dict[str, tuple[Tensor, Tensor]] = {}

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x (lanes, n, ..., in) -> (lanes, n, ..., out)."""
        W = self.whole[name].flatten(0, 1)
        given = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        z = torch.bmm(given.flatten(1, -2), W.mT).unflatten(1, given.shape[1:-1])
        if torch.is_grad_enabled():
            self.made[name] = given.detach(), z if z.requires_grad else z.requires_grad_()
        return z

    def clipped(self, forward: "Forward", x: Tensor, y: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """(rates, seeds, out, in + 1): sums of gradients clipped to norm 1; x (seeds, n, d), kept 0 or 1."""
        out = forward(self, x.repeat(self.rates, 1, 1))
        loss = nn.functional.cross_entropy(out.flatten(0, 1), y.repeat(self.rates, 1).flatten(), reduction="sum")
        found = torch.autograd.grad(loss, [z for _, z in self.made.values()])
        factors = {k: (a, d) for (k, (a, _)), d in zip(self.made.items(), found, strict=True)}
        norms = sum(_squares(a, d) for a, d in factors.values())
        scales = kept.repeat(self.rates, 1) * norms.sqrt().clamp_min(1e-12).reciprocal().clamp_max(1)
        sums = {}
        for name, (a, d) in factors.items():
            scaled = d * scales[(...,) + (None,) * (d.ndim - 2)]
            total = torch.bmm(scaled.flatten(1, -2).mT, a.flatten(1, -2))
            sums[name] = total.unflatten(0, (self.rates, self.seeds))
        return sums

    @torch.no_grad()
    def accuracy(self, forward: "Forward", x: Tensor, y: Tensor) -> Tensor:
        """(rates, seeds)."""
        out = forward(self, x.expand(self.rates * self.seeds, *x.shape))
        return (out.argmax(-1) == y).double().mean(1).view(self.rates, self.seeds)


Forward = Callable[[Lanes, Tensor], Tensor]


def _squares(a: Tensor, d: Tensor) -> Tensor:
    """Squared norms of the examples' gradients d^T a, (lanes, n)."""
    if a.ndim == 3:
        return a.square().sum(-1) * d.square().sum(-1)
    return ((a @ a.mT) * (d @ d.mT)).sum((-1, -2))


def linear(lanes: Lanes, x: Tensor) -> Tensor:
    return lanes.linear("out", x)


def mlp(lanes: Lanes, x: Tensor) -> Tensor:
    return lanes.linear("out", lanes.linear("in", x).relu())


def attention(lanes: Lanes, x: Tensor) -> Tensor:
    """Over the eight rows of an image; each row says which it is."""
    rows = torch.cat([x.unflatten(-1, (8, 8)), torch.eye(8).expand(*x.shape[:2], 8, 8)], -1)
    h = lanes.linear("embed", rows)
    q, k, v = lanes.linear("mixed", h).chunk(3, -1)
    return lanes.linear("out", (h + (q @ k.mT / 4).softmax(-1) @ v).relu().mean(-2))


FORWARD: dict[str, Forward] = {"linear": linear, "MLP": mlp, "attention": attention}


def shapes(model: str, size: int, classes: int) -> dict[str, tuple[int, int]]:
    """(out, in) of each layer."""
    return {
        "linear": {"out": (classes, size)},
        "MLP": {"in": (32, size), "out": (classes, 32)},
        "attention": {"embed": (16, 16), "mixed": (48, 16), "out": (classes, 16)},
    }[model]


@cache
def data(name: str) -> tuple[Tensor, Tensor, int]:
    """x, y, and how many rows are users': the others are for accuracy."""
    load = load_breast_cancer if name == "breast cancer" else load_digits
    x, y = map(torch.tensor, load(return_X_y=True))
    if name == "digits":
        users = 1500
        x = (x.float() - 8) / 16
    else:
        users = 400
        x = ((x - x.mean(0)) / x.std(0).clamp_min(1e-9)).float()
    order = torch.randperm(len(x), generator=keyed_generator(b"split"))
    return x[order], y[order].long(), users


def optimizer(name: str, lanes: Lanes, rates: tuple[float, ...], own: bool) -> torch.optim.Optimizer:
    """One for all lanes. own: whether Adam is PrivateAdam."""
    groups = [{"params": list(each.values()), "lr": rate} for each, rate in zip(lanes.each, rates, strict=True)]
    if name in ("SGD", "momentum"):
        return torch.optim.SGD(groups, momentum=0.9 if name == "momentum" else 0.0)
    decay = 0.01 if name == "AdamW" else 0.0
    adam = PrivateAdam if own else torch.optim.AdamW
    return adam(groups, weight_decay=decay)


def batches(plan: Plan, tag: str) -> Iterator[list[int]]:
    steps = plan.strategy.steps
    if isinstance(plan.sampling, Participation):
        generator = keyed_generator(tag.encode())
        return iter(Batches(plan.sampling, plan.users, plan.batch, steps, generator=generator))
    return iter(SampledBatches(plan.sampling, plan.users, steps, noise=SeededNoise(zlib.crc32(tag.encode()))))


def accuracies(plan: Plan, config: Config, model: str, name: str, own: bool) -> torch.Tensor:
    """After all steps, of each rate and seed: (rates, seeds). own: whether Adam is PrivateAdam.

    Weights and the numbers that noise is made of are those of all plans, batches of all that sample alike.
    """
    x, y, users = data(config.data)
    rates = RATES[name]
    forward = FORWARD[model]
    lanes = Lanes(shapes(model, x.shape[-1], int(y.max()) + 1), len(rates), config.seeds)
    update = optimizer(name, lanes, rates, own)
    moved = [batches(plan, f"{model} {seed}") for seed in range(config.seeds)]
    draws = SeededNoise(zlib.crc32(model.encode()))
    noise = CorrelatedNoise(plan.strategy, config.seeds * sum(lanes.sizes), plan.sigma, noise=draws)
    for deviation in tqdm(plan.deviations().tolist(), f"{model} {name}", leave=False, disable=None):
        who = [next(each) for each in moved]
        most = max(1, *map(len, who))
        kept = torch.tensor([[1.0] * len(each) + [0.0] * (most - len(each)) for each in who])
        index = torch.tensor([each + [0] * (most - len(each)) for each in who])
        sums = lanes.clipped(forward, x[index], y[index], kept)
        z = noise(torch.zeros(noise.size)).view(config.seeds, -1).split(lanes.sizes, 1)  # each seed its own
        for part, k in zip(z, lanes.whole, strict=True):
            means = (sums[k] + part.view(sums[k].shape[1:])) / plan.batch
            for each, mean in zip(lanes.each, means, strict=True):
                each[k].grad = mean
        if isinstance(update, PrivateAdam):
            update.deviation = deviation
        update.step()
    return lanes.accuracy(forward, x[users:], y[users:])


def opacus(plan: Plan, epsilon: float) -> Plan:
    """DP-SGD with the noise that Opacus's accountant finds."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ask = {"target_epsilon": epsilon, "target_delta": DELTA, "accountant": "prv"}
        noise = get_noise_multiplier(**ask, sample_rate=plan.batch / plan.users, steps=plan.strategy.steps)
    return replace(plan, sigma=noise)


@cache
def plans(users: int, batch: int, objective: Descent | Iterates, epsilon: float) -> dict[str, Plan]:
    """By name, the least error first."""
    choice = choose(objective, users, batch, epsilon=epsilon, delta=DELTA)
    return {one.name: one.protocol for one in choice.candidates}


def sides(config: Config, name: str, epsilon: float) -> dict[str, tuple[str, Plan, bool]]:
    """Of each its plan, and whether Adam is PrivateAdam; DP-SGD first."""
    momentum = {"SGD": 0.0, "momentum": 0.9}.get(name)
    users = data(config.data)[2]
    batch = BATCH[config.data]
    chosen = plans(users, batch, Descent(config.steps, momentum or 0.0), epsilon)
    flat = plans(users, batch, Iterates(config.steps, 0.9 if momentum is None else momentum), epsilon)
    independent = chosen[INDEPENDENT]
    found = {
        "DP-SGD": (INDEPENDENT, independent, True),
        "Opacus's noise": (INDEPENDENT, opacus(independent, epsilon), False),
        "chosen": (*next(iter(chosen.items())), True),
        "chosen, flat": (*next(iter(flat.items())), True),
    }
    if config.every:
        found |= {f"of all: {plan}": (plan, chosen[plan], True) for plan in chosen}
    return found


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for model, name, epsilon in product(config.models, config.optimizers, config.epsilons):
        keys = {"data": config.data, "model": model, "optimizer": name, "steps": config.steps, "epsilon": epsilon}
        base = None
        runs: dict[tuple[bytes, bool], Tensor] = {}
        for side, (plan_name, plan, own) in sides(config, name, epsilon).items():
            made = plan.digest(), own
            if made not in runs:
                runs[made] = accuracies(plan, config, model, name, own)
            found = runs[made]
            best = int(found.mean(1).argmax())
            base = found[best] if base is None else base
            pairs = found[best] - base
            ahead = pairs.mean()
            apart = pairs.std() / len(pairs) ** 0.5
            row = {"side": side, "plan": plan_name, "rate": RATES[name][best], "accuracy": found[best].mean()}
            row |= {"ahead": ahead, "apart": apart, "behind": -ahead / apart.clamp_min(1e-9)}
            report.row("accuracy", **keys, seeds=len(pairs), **row)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
