"""What training makes of a chosen plan under SGD, momentum, Adam and AdamW: accuracy beside
DP-SGD's and Opacus's.

Paper: no artifact; Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, for Adam on noise of known
variance.
    Four models, from a linear one to attention over the images' rows, learn scikit-learn's digits
    (1,500 users, batches of 100, 297 other rows for accuracy), breast cancer (400 users, batches
    of 40) or AG News' embeddings in --folder (6,000 users, batches of 200). LoRA is a language
    model of one block, trained on Python's manual, whose thin matrices of rank 4 learn the next
    character of a module's source (3,000 users, batches of 100; accuracy on another module).
    delta = 1e-5. Sides: DP-SGD, independent noise over Poisson batches, with PrivateAdam for Adam;
    Opacus's noise: the same with its accountant's noise (PRV) and torch's optimizers; Opacus: its
    own engine too, with its loader, clipping and noise (engine.py), of at most --engine seeds; the
    best plan of choose(Descent(steps, momentum)), without momentum for Adam; that of the flat loss,
    Iterates(steps, momentum), with .9 for Adam. Each side has the best of five learning rates. All
    rates and seeds of a side but Opacus's are trained at once (lanes.py), with the library's plans,
    batches, noise and optimizers. Seeds share weights with the same seed of other sides, and but
    for Opacus's own engine what noise is made of: ahead and behind are means over pairs, apart is
    the standard error of that mean, behind is a number of these.
Command:  OMP_NUM_THREADS=1 python experiments/training/optimizers.py
          OMP_NUM_THREADS=1 python experiments/training/optimizers.py --models linear MLP --seeds 20
          OMP_NUM_THREADS=1 python experiments/training/optimizers.py --models CNN attention LoRA
          --optimizers Adam AdamW --epsilons 2 8 --seeds 3
Expected: experiments/bench/optimizers_cpu.txt. The chosen plan is nowhere behind DP-SGD by more
than .2 standard
    errors; with momentum it is ahead by .8 to 4.9 on digits (linear, MLP; most at epsilon 8),
    without it, and for Adam, it is DP-SGD. That of the flat loss is up to 8.4 behind at epsilon 1,
    and up to 3.8 ahead at epsilon 8. Opacus's noise with torch's Adam is between 2.8 behind DP-SGD
    with PrivateAdam and 2.6 ahead, of attention with three seeds at epsilon 2 by 3.1 (Adam) and .4
    (AdamW); its own engine is between 1.3 behind and 3.8 ahead there.
Output: results/training/optimizers/accuracy.csv, and runs/, from which a run that was killed goes
on.
Artifact: figure | optimizers
Status: agrees
Time: four CPU-minutes for linear and MLP with 20 seeds without Opacus's engine, five for the third
command; the
    whole was not run; --smoke in 20 CPU-seconds.
"""

import hashlib
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from engine import trained
from lanes import FORWARD, Lanes, data, shapes
from tqdm import tqdm

from torchdp.noise import SeededNoise
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment
from torchdp.training import (
    Batches,
    CorrelatedNoise,
    Descent,
    Iterates,
    Participation,
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
PLAIN = ("SGD", "momentum")
DECAY = 0.01  # of AdamW's weights
TIMES = {"text": 0.3, "short digits": 4.0}  # these rates
BATCH = {"digits": 100, "short digits": 50, "breast cancer": 40, "text": 100, "agnews": 200}


@dataclass(frozen=True)
class Config:
    data: str = "digits"
    folder: Path | None = None  # of agnews_test_mpnet.pt
    # LoRA: of text, whatever data is
    models: tuple[str, ...] = ("linear", "MLP", "CNN", "attention", "LoRA")
    optimizers: tuple[str, ...] = ("SGD", "momentum", "Adam", "AdamW")
    epsilons: tuple[float, ...] = (1.0, 2.0, 8.0)
    steps: tuple[int, ...] = (120,)
    seeds: int = 10
    engine: int = 3  # seeds, at most, that Opacus's own engine trains one after another


SMOKE = Config(
    models=("linear",),
    optimizers=("momentum", "Adam"),
    epsilons=(8.0,),
    steps=(6,),
    seeds=2,
    engine=2,
)


class PrivateAdam(torch.optim.Optimizer):
    """Adam, with ``weight_decay`` AdamW, that takes the noise's variance out of the second moment.

        m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  u <- b2 u + (1 - b2) deviation^2
        x <- x - rate m' / (sqrt(max(v' - u', u')) + eps)

    Primes are the corrections by 1 - b^t, and x was first made smaller by rate weight_decay.
    ``deviation`` is that of the noise in ``.grad``, set before each step. No better than torch's
    Adam at its best rate.
    Source: Tang, Shpilevskiy, Lecuyer (2024), DP-AdamBC, for a constant variance; here that of each
    step is averaged as the squares are.
    """

    def __init__(self, groups: list[dict[str, Any]], weight_decay):
        super().__init__(groups, {"weight_decay": weight_decay})
        self.deviation = 0.0
        self.taken = 0
        self.noise = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self):
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
                rate = group["lr"]
                p.mul_(1 - rate * group["weight_decay"])
                p.add_(m / sizes, alpha=-rate / (1 - first**self.taken))


def optimizer(name, lanes, rates: tuple[float, ...], own):
    """One for all lanes. own: whether Adam is PrivateAdam."""
    groups = [
        {"params": list(each.values()), "lr": rate}
        for each, rate in zip(lanes.each, rates, strict=True)
    ]
    if name in PLAIN:
        return torch.optim.SGD(groups, momentum=0.9 if name == "momentum" else 0.0)
    adam = PrivateAdam if own else torch.optim.AdamW
    return adam(groups, weight_decay=DECAY if name == "AdamW" else 0.0)


def batches(plan, tag) -> Iterator[list[int]]:
    steps = plan.strategy.steps
    if isinstance(plan.sampling, Participation):
        generator = keyed_generator(tag.encode(), "cpu")
        return iter(Batches(plan.sampling, plan.users, plan.batch, steps, generator=generator))
    noise = SeededNoise(zlib.crc32(tag.encode()))
    return iter(SampledBatches(plan.sampling, plan.users, steps, noise=noise))


def rates_of(data, name) -> tuple[float, ...]:
    # Adam's steps do not grow with the gradients; those of text need to be shorter all the same
    scaled = name in PLAIN or data == "text"
    factor = TIMES.get(data, 1.0) if scaled else 1.0
    return tuple(rate * factor for rate in RATES[name])


def learned(config, model):
    return data(source(config, model), config.folder)


def accuracies(plan, config, model, name, own):
    """After all steps, of each rate and seed: (rates, seeds). own: whether Adam is PrivateAdam.

    Weights and the numbers that noise is made of are those of all plans, batches of all that sample
    alike.
    """
    x, y, users = learned(config, model)
    rates = rates_of(source(config, model), name)
    forward = FORWARD[model]
    lanes = Lanes(shapes(model, x.shape[-1], int(y.max()) + 1), len(rates), config.seeds)
    update = optimizer(name, lanes, rates, own)
    drawn = [batches(plan, f"{model} {seed}") for seed in range(config.seeds)]
    draws = SeededNoise(zlib.crc32(model.encode()), x.device)
    strategy = plan.strategy.to(x.device)
    noise = CorrelatedNoise(strategy, config.seeds * sum(lanes.sizes), plan.sigma, noise=draws)
    for deviation in tqdm(plan.deviations().tolist(), f"{model} {name}", leave=False, disable=None):
        rows = [next(sampler) for sampler in drawn]
        lengths = torch.tensor([len(own) for own in rows])
        longest = max(1, *map(len, rows))
        # shorter batches are filled up with row 0, which counts nothing
        index = torch.tensor([own + [0] * (longest - len(own)) for own in rows])
        kept = (torch.arange(longest) < lengths[:, None]).float()
        sums = lanes.clipped(forward, x[index], y[index], kept)
        # each seed its own
        z = noise(torch.zeros(noise.size)).view(config.seeds, -1).split(lanes.sizes, 1)
        for part, layer in zip(z, lanes.whole, strict=True):
            total = sums[layer]
            means = (total + part.view(total.shape[1:])) / plan.batch
            for weights, mean in zip(lanes.each, means, strict=True):
                weights[layer].grad = mean
        if isinstance(update, PrivateAdam):
            update.deviation = deviation
        update.step()
    return lanes.accuracy(forward, x[users:], y[users:])


def by_engine(plan, config, model, name):
    """As ``accuracies``, by Opacus's own loader, clipping, optimizer and noise, of few seeds."""
    x, y, users = learned(config, model)
    update = torch.optim.SGD if name in PLAIN else torch.optim.AdamW
    options = {
        "SGD": {},
        "momentum": {"momentum": 0.9},
        "Adam": {"weight_decay": 0.0},
        "AdamW": {"weight_decay": DECAY},
    }[name]
    right = torch.zeros(len(RATES[name]), config.engine, dtype=torch.float64)
    for i, rate in enumerate(rates_of(source(config, model), name)):
        for seed in range(config.engine):
            net = trained(
                model,
                x[:users],
                y[:users],
                update,
                {"lr": rate, **options},
                seed,
                classes=int(y.max()) + 1,
                batch=plan.batch,
                steps=plan.strategy.steps,
                noise=plan.sigma,
            ).eval()
            with torch.no_grad():
                classes = net(x[users:]).argmax(-1)
            right[i, seed] = (classes == y[users:]).double().mean()
    return right


def stored(folder, plan, config, model, name, way):
    """``accuracies``, or those that an earlier run wrote: a killed run goes on."""
    engine = way == "engine"
    own = way == "ours" and name not in PLAIN
    seeds = config.engine if engine else config.seeds
    key = repr((source(config, model), model, name, own, seeds)).encode()
    digest = hashlib.sha256(plan.digest() + key + b"engine" * engine).hexdigest()
    path = folder / "runs" / f"{digest[:16]}.pt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        if engine:
            right = by_engine(plan, config, model, name)
        else:
            right = accuracies(plan, config, model, name, own)
        # written beside and moved, so that a killed run leaves no half of a file
        part = path.with_suffix(".part")
        torch.save(right.cpu(), part)
        part.rename(path)
    return torch.load(path, weights_only=True)


def source(config, model):
    return "text" if model == "LoRA" else config.data


def opacus(plan, epsilon):
    """DP-SGD with the noise that Opacus's accountant finds."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        noise = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            accountant="prv",
            sample_rate=plan.batch / plan.users,
            steps=plan.strategy.steps,
        )
    return replace(plan, sigma=noise)


@cache
def plans(users, batch, objective: Descent | Iterates, epsilon):
    """By name, the least error first."""
    choice = choose(objective, users, batch, epsilon=epsilon, delta=DELTA)
    return {one.name: one.protocol for one in choice.candidates}


def sides(config, model, name, steps, epsilon):
    """(side, plan's name, plan, who trains: "ours", "torch's" or Opacus's "engine"); DP-SGD first."""
    _, _, users = learned(config, model)
    batch = BATCH[source(config, model)]
    chosen = plans(users, batch, Descent(steps, 0.9 if name == "momentum" else 0.0), epsilon)
    flat = plans(users, batch, Iterates(steps, 0.0 if name == "SGD" else 0.9), epsilon)
    independent = chosen[INDEPENDENT]
    theirs = opacus(independent, epsilon)
    yield "DP-SGD", INDEPENDENT, independent, "ours"
    yield "Opacus's noise", INDEPENDENT, theirs, "torch's"
    if config.engine:
        yield "Opacus", INDEPENDENT, theirs, "engine"
    yield "chosen", *next(iter(chosen.items())), "ours"
    yield "chosen, flat", *next(iter(flat.items())), "ours"


def measure(config, report):
    torch.set_num_threads(1)
    every = product(config.models, config.steps, config.optimizers, config.epsilons)
    for model, steps, name, epsilon in every:
        table = source(config, model)
        rates = rates_of(table, name)
        base = None
        for side, plan_name, plan, way in sides(config, model, name, steps, epsilon):
            accuracy = stored(report.folder, plan, config, model, name, way)
            best = int(accuracy.mean(1).argmax())
            accuracy = accuracy[best]
            if base is None:
                base = accuracy
            pairs = accuracy - base[: len(accuracy)]
            ahead = pairs.mean()
            error = pairs.std() / len(pairs) ** 0.5
            report.row(
                "accuracy",
                data=table,
                model=model,
                optimizer=name,
                steps=steps,
                epsilon=epsilon,
                seeds=len(pairs),
                side=side,
                plan=plan_name,
                rate=rates[best],
                accuracy=accuracy.mean(),
                ahead=ahead,
                apart=error,
                behind=-ahead / error.clamp_min(1e-9),
            )


EXPERIMENT = Experiment(measure, Config(), SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
