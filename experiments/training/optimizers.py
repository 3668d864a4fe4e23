"""What training makes of a chosen plan under SGD, momentum, Adam and AdamW: accuracy beside DP-SGD's.

Paper: no artifact; Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, for Adam on noise of known variance.
    1,500 users of scikit-learn's digits, batches of 100, delta = 1e-5, the other 297 rows for accuracy; four models
    from a linear one to attention over the images' rows. Sides: the best plan of choose(Iterates(steps, momentum,
    curved=True)); that of the flat loss, Iterates(steps, momentum); independent noise over Poisson batches (DP-SGD)
    with the same optimizer, PrivateAdam for Adam; and DP-SGD with torch's own optimizer, which is Opacus's loop (its
    noise is DP-SGD's). Each side has the best of five learning rates. All rates and seeds of a side are trained at
    once, by vmap, with the library's plans, batches, noise and optimizers. behind: how many standard errors of the
    difference a side's accuracy is below DP-SGD's with the same optimizer; less than 0 where it is above.
Command:  OMP_NUM_THREADS=1 python experiments/training/optimizers.py
          OMP_NUM_THREADS=1 python experiments/training/optimizers.py --models MLP linear
Expected: in the cells of experiments/bench/optimizers_cpu.txt, a part of all, the chosen plan is from 1.1 standard
    errors behind (a CNN with momentum, 4 seeds) to 2.7 ahead, the flat one up to 5.5 behind at epsilon 1 and 2.7 ahead
    at 8; for SGD without momentum and for Adam the chosen plan is DP-SGD; PrivateAdam is between .7 ahead of torch's
    Adam and 1.1 behind.
Output: results/training/optimizers/accuracy.csv.
Artifact: figure | optimizers
Status: agrees
Time: hours on one core; --smoke in 20 CPU-seconds.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report
from torchdp.training import (
    Batches,
    CorrelatedNoise,
    Iterates,
    Participation,
    Plan,
    PrivateAdam,
    SampledBatches,
    choose,
)

USERS, BATCH = 1500, 100
INDEPENDENT = "Poisson, independent noise"
SGD, ADAM = (0.3, 1.0, 2.0, 4.0, 8.0), (0.003, 0.01, 0.03, 0.1, 0.3)
RATES = {"SGD": SGD, "momentum": tuple(rate / 10 for rate in SGD), "Adam": ADAM, "AdamW": ADAM}


@dataclass(frozen=True)
class Config:
    models: tuple[str, ...] = ("linear", "MLP", "CNN", "attention")
    optimizers: tuple[str, ...] = ("SGD", "momentum", "Adam", "AdamW")
    epsilons: tuple[float, ...] = (1.0, 2.0, 8.0)
    steps: tuple[int, ...] = (120,)
    seeds: int = 10
    floor: float = 1.0  # of PrivateAdam


FULL = Config()
SMOKE = Config(("linear",), ("momentum", "Adam"), (8.0,), (6,), 2)


class Attention(nn.Module):
    """Over the eight rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mixed, self.out = nn.Linear(8, 16), nn.Linear(16, 48), nn.Linear(16, 10)
        self.place = nn.Parameter(0.1 * torch.randn(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.unflatten(-1, (8, 8))) + self.place
        q, k, v = self.mixed(h).chunk(3, -1)
        return self.out((h + (q @ k.mT / 4).softmax(-1) @ v).relu().mean(-2))


def model(name: str, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name == "linear":
            return nn.Linear(64, 10)
        if name == "MLP":
            return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        if name == "attention":
            return Attention()
        conv = (nn.Unflatten(-1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2))
        return nn.Sequential(*conv, nn.Flatten(), nn.Linear(128, 10))


class Lanes:
    """Models of several rates and seeds at once: the same draws for all rates of a seed. run: of ``PrivateAdam``."""

    def __init__(self, name: str, rates: tuple[float, ...], seeds: int) -> None:
        nets = [model(name, seed) for seed in range(seeds)]
        self.base, self.rates, self.seeds, self.deviation = nets[0], rates, seeds, 0.0
        stacked = {k: torch.stack([n.state_dict()[k] for n in nets]) for k in nets[0].state_dict()}
        self.params = [{k: v.clone().requires_grad_() for k, v in stacked.items()} for _ in rates]
        self.size = sum(p.numel() for p in stacked.values())

    def optimizer(self, name: str, floor: float | None) -> torch.optim.Optimizer:
        """floor: of PrivateAdam; None for torch's own."""
        groups = [{"params": list(p.values()), "lr": lr} for p, lr in zip(self.params, self.rates, strict=True)]
        if name in ("SGD", "momentum"):
            return torch.optim.SGD(groups, momentum=0.9 if name == "momentum" else 0.0)
        decay = 0.01 if name == "AdamW" else 0.0
        if floor is None:
            return torch.optim.AdamW(groups, weight_decay=decay)
        return PrivateAdam(groups, self, weight_decay=decay, floor=floor)

    def whole(self) -> dict[str, Tensor]:
        return {k: torch.cat([p[k].detach() for p in self.params]) for k in self.params[0]}

    def clipped(self, x: Tensor, y: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """Sums of gradients clipped to norm 1, of examples (seeds, n, ...): (rates, seeds, ...)."""

        def loss(p: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
            return nn.functional.cross_entropy(functional_call(self.base, p, (a[None],)), b[None])

        def one(p: dict[str, Tensor], a: Tensor, b: Tensor, kept: Tensor) -> dict[str, Tensor]:
            g = vmap(grad(loss), (None, 0, 0))(p, a, b)
            norms = torch.stack([v.flatten(1).square().sum(1) for v in g.values()]).sum(0).sqrt()
            scales = kept * norms.clamp_min(1e-12).reciprocal().clamp_max(1)
            return {k: torch.tensordot(scales, v, 1) for k, v in g.items()}

        many = len(self.rates)
        found = vmap(one)(self.whole(), x.repeat(many, 1, 1), y.repeat(many, 1), kept.repeat(many, 1))
        return {k: v.unflatten(0, (many, self.seeds)) for k, v in found.items()}

    def accuracy(self, x: Tensor, y: Tensor) -> Tensor:
        """(rates, seeds)."""
        out = vmap(lambda p: functional_call(self.base, p, (x,)))(self.whole())
        return (out.argmax(-1) == y).double().mean(-1).view(len(self.rates), self.seeds)


def batches(plan: Plan, tag: str) -> Iterator[list[int]]:
    steps = plan.strategy.steps
    if isinstance(plan.sampling, Participation):
        generator = keyed_generator(tag.encode())
        return iter(Batches(plan.sampling, plan.users, plan.batch, steps, generator=generator))
    draws = SeededNoise(zlib.crc32(tag.encode()))
    return iter(SampledBatches(plan.sampling, plan.users, steps, noise=draws))


def accuracies(plan: Plan, name: str, optimizer: str, floor: float | None, seeds: int) -> Tensor:
    """After all steps, of each rate and seed."""
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=keyed_generator(b"split"))
    x, y = (x[order].float() - 8) / 16, y[order]
    lanes, tag = Lanes(name, RATES[optimizer], seeds), f"{plan} {name}"
    steps, moved = lanes.optimizer(optimizer, floor), [batches(plan, f"{tag} {seed}") for seed in range(seeds)]
    noise = CorrelatedNoise(plan.strategy, lanes.size, plan.sigma, noise=SeededNoise(zlib.crc32(tag.encode())))
    for lanes.deviation in plan.deviations().tolist():
        users = [next(each) for each in moved]
        most = max(1, *map(len, users))
        kept = torch.tensor([[1.0] * len(who) + [0.0] * (most - len(who)) for who in users])
        index = torch.tensor([who + [0] * (most - len(who)) for who in users])
        sums, z = lanes.clipped(x[index], y[index], kept), noise(torch.zeros(lanes.size))
        parts = z.split([p.numel() for p in lanes.params[0].values()])
        for (k, total), w in zip(sums.items(), parts, strict=True):
            for p, part in zip(lanes.params, total, strict=True):
                p[k].grad = (part + w.view(part.shape)) / plan.batch
        steps.step()
    return lanes.accuracy(x[USERS:], y[USERS:])


def sides(optimizer: str, steps: int, epsilon: float) -> dict[str, tuple[str, Plan, bool]]:
    """Of each its plan, and whether the optimizer is ours; DP-SGD first."""
    plain = optimizer in ("SGD", "momentum")
    momentum = 0.9 if optimizer == "momentum" else 0.0
    ask = {"users": USERS, "batch": BATCH, "epsilon": epsilon, "delta": 1e-5}
    curved = choose(Iterates(steps, momentum, curved=True), **ask)
    flat = choose(Iterates(steps, momentum if plain else 0.9), **ask).candidates[0]
    best, independent = curved.candidates[0], next(c for c in curved.candidates if c.name == INDEPENDENT)
    found = {"DP-SGD": (independent, True), "chosen": (best, True), "chosen, flat": (flat, True)}
    found |= {} if plain else {"DP-SGD, torch's own": (independent, False)}
    return {side: (one.name, one.protocol, own) for side, (one, own) in found.items()}


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for steps in config.steps:
        for optimizer in config.optimizers:
            for epsilon in config.epsilons:
                compared = sides(optimizer, steps, epsilon)
                for name in config.models:
                    cell = {"model": name, "optimizer": optimizer, "steps": steps, "epsilon": epsilon}
                    done: dict[tuple[str, bool], Tensor] = {}
                    for side, (plan_name, plan, own) in compared.items():
                        key = plan_name, own
                        if key not in done:
                            done[key] = accuracies(
                                plan, name, optimizer, config.floor if own else None, config.seeds
                            )
                        best = int(done[key].mean(1).argmax())
                        found = done[key][best]
                        mean, spread = found.mean(), found.std() / len(found) ** 0.5
                        if side == "DP-SGD":
                            base = mean, spread
                        apart = (base[1].square() + spread.square()).sqrt().clamp_min(1e-9)
                        behind = float((base[0] - mean) / apart)
                        row = {"side": side, "plan": plan_name, "rate": RATES[optimizer][best]}
                        report.row("accuracy", **cell, **row, accuracy=mean, standard_error=spread, behind=behind)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
