"""Calibrations and accountants of a thousand numbers in one call: the loop's answers, its time, and scipy's.

Command:  python experiments/privacy/batches.py | tee experiments/bench/batches_cpu.txt
Output: results/privacy/batches/*.csv.
Prints: (1) for each call the largest relative difference between a batch and its loop; CPU seconds of the batch over
    those of the loop of the same calls on numbers; milliseconds of one number, and of the same one again; launches,
    operations of torch other than views: of one number, and of the batch over those of one. (2) ten thousand
    mechanisms in one call: PrivUnit at 100 epsilons times 100 dimensions, shuffled randomized response at 1,000
    epsilons times ten numbers of users, and Gaussian noise, beside scipy's brentq in a loop of a few of them. (3) 100
    kernels answered from one tally, and 100 factorizations: as (1), the difference over the loop's largest entry.
Expected: (1) no difference, but for ``least_flip``, below 1e-4; ratios below .02, of flips .25, bound by memory;
    launches 1 to 2.3, of flips 3.6: one's root is in floats. (2) scipy's answers within 1e-4; a tenth of its time,
    PrivUnit as much. (3) no difference above 1e-8, for certificates 1e-3; ratios below .2; launches 1 to 4.1.
Artifact: - | a batch is its loop
Status: agrees
Time: four minutes on one core; --smoke in seconds. On the CPU, whatever --device says.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import betainc, betaln
from scipy.stats import norm
from torch.utils._python_dispatch import TorchDispatchMode

from torchdp import privacy
from torchdp.factorization import factorize
from torchdp.pairwise import RandomizedResponsePlugIn, from_kernel
from torchdp.randomizers import DuchiJordanWainwright, PrivUnit
from torchdp.randomness import keyed_generator
from torchdp.shuffle import RandomizedResponseSum, least_flip
from torchdp.simulate import Experiment, Report
from torchdp.sketching import entry_variance
from torchdp.sketching.losses import Losses

Ranges = dict[str, tuple[float, float]]
EPSILON, DELTA = (1e-2, 20.0), (1e-12, 0.3)
SPREAD = Losses(*torch.tensor([[0.1, 0.5, 2.0], [0.7, 0.2, 0.1]], dtype=torch.float64), convex=True, exact=False)
CALLS: dict[str, tuple[Callable[..., torch.Tensor], Ranges]] = {
    "gaussian_sigma": (privacy.gaussian_sigma, {"epsilon": EPSILON, "delta": DELTA}),
    "gaussian_epsilon": (privacy.gaussian_epsilon, {"mu": (1e-3, 100.0), "delta": DELTA}),
    "gaussian_log_delta": (privacy.gaussian_log_delta, {"sigma": (1e-2, 100.0), "epsilon": EPSILON}),
    "entry_variance": (entry_variance, {"bound": (0.1, 10.0), "epsilon": EPSILON, "delta": DELTA}),
    "Losses.factor": (SPREAD.factor, {"epsilon": EPSILON, "delta": DELTA}),
    "PrivUnit.unit_variance": (PrivUnit.unit_variance, {"dim": (1, 1e6), "epsilon": (1e-3, 50.0)}),
    "DuchiJordanWainwright.unit_variance": (
        DuchiJordanWainwright.unit_variance,
        {"dim": (1, 1e6), "epsilon": (1e-3, 50.0)},
    ),
    "least_flip, 100 users": (lambda **at: least_flip(100, **at), {"epsilon": (0.05, 5.0), "delta": (1e-9, 1e-3)}),
}

ALONE = {  # what takes no batch, as docs/batches.md has it
    "gaussian_guarantee, sampled_guarantee; calibrated, tuned, choose": "one promise, protocol or choice",
    "composed_delta, composed_epsilon, delta_of, epsilon_of; mixtures; PureMean; least_noise_variance": (
        "tables whose sizes depend on the numbers"
    ),
    "variances of oracles of types, scales of discrete noise, level of secure sums": (
        "whole chances of 2^63, distances on a grid and honest pairs, exact in Python's integers"
    ),
    "scale of LaplaceNoise, lower bounds of mean, sensitivities of regression, paper modules": (
        "formulas of one line"
    ),
    "protocols in rounds": "a round's protocol is made of the tally before it",
    "ShuffledForm, PrivateLearner, StrategyCovariance": "sums over tables of one crowd",
    "secure sketches; collections, journals": "servers and keys for each; a row of a file for each",
    "domains, noise_shape": "column generation adds other points to each set",
    "sketches, feature families": "one release has one; B times R features are one draw of B R",
    "searches of strategies; plans": "each stops by itself",
}


@dataclass(frozen=True)
class Config:
    size: int = 1000  # of a batch
    looped: int = 100  # of its numbers are asked for one by one
    cells: int = 100  # epsilons, and dimensions
    epsilons: int = 1000  # of shuffled responses
    users: tuple[int, ...] = (10, 17, 28, 46, 77, 129, 215, 359, 599, 1000)
    peers: int = 20  # scipy is asked for so many
    objects: int = 100  # kernels and matrices


FULL, SMOKE = Config(), Config(30, 5, 5, 6, (10, 40), 3, 4)


def drawn(name: str, size: int) -> dict[str, torch.Tensor]:
    """A batch of each argument, logarithms drawn evenly."""
    generator, batch = keyed_generator(name.encode()), {}
    for argument, (low, high) in CALLS[name][1].items():
        logs = torch.rand(size, dtype=torch.float64, generator=generator) * math.log(high / low) + math.log(low)
        batch[argument] = logs.exp().clamp(low, high)
        batch[argument] = batch[argument].floor() if argument == "dim" else batch[argument]
    return batch


def timed(call: Callable[[], object]) -> tuple[object, float]:
    """What a call returns, and its CPU seconds."""
    start = time.process_time()
    return call(), time.process_time() - start


class Launches(TorchDispatchMode):
    """Counts operations other than views: what a device launches."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


def launches(name: str, size: int) -> int:
    batch = drawn(name, size)
    with Launches() as counted:
        CALLS[name][0](**batch)
    return counted.number


def calls(config: Config, report: Report) -> None:
    report.say(f"(1) {config.size} in one call; loop: {config.looped} calls on numbers, scaled; one core")
    for name, (call, _) in CALLS.items():
        batch = drawn(name, config.size)
        call(**drawn(name, 3))  # what is loaded or kept once
        found, seconds = timed(lambda call=call, batch=batch: call(**batch))
        rows = [
            dict(zip(batch, row, strict=True)) for row in zip(*(e.tolist() for e in batch.values()), strict=True)
        ]
        loop, looped = timed(lambda call=call, rows=rows: [call(**row) for row in rows[: config.looped]])
        _, again = timed(lambda call=call, rows=rows: [call(**rows[0]) for _ in range(100)])
        apart = max(
            abs(one / each - 1) if each else abs(one) for one, each in zip(loop, found.tolist(), strict=False)
        )
        alone = launches(name, 1)
        report.row(
            "calls",
            call=name,
            apart=apart,
            ratio=seconds / looped * config.looped / config.size,
            one_ms=looped / config.looped * 1e3,
            again_ms=again * 10,
            one_launches=alone,
            launches=launches(name, config.size) / alone,
        )
    for name, reason in ALONE.items():
        report.say(f"no batch: {name}: {reason}")


def scipy_privunit(dim: int, epsilon: float) -> float:
    """The variance of PrivUnit by brentq on betainc, which keeps few digits for many dimensions."""
    half, tilt = dim / 2, math.expm1(epsilon)

    def excess(log_y: float) -> float:
        squared = 1 / math.cosh(math.exp(log_y)) ** 2
        share = betainc(half, 0.5, squared) / 2
        mean = tilt * math.exp(half * math.log(squared) - betaln(0.5, half)) / dim
        return mean - math.tanh(math.exp(log_y)) * (1 + tilt * share)

    y = math.exp(brentq(excess, -20.0, 3.5, xtol=1e-14))
    return 1 / ((dim + 1) * math.sinh(y) ** 2)


def scipy_flip(users: int, epsilon: float, delta: float) -> float:
    def excess(flip: float) -> float:
        (curve,) = RandomizedResponseSum(users, flip).profiles()
        return math.log(max(float(curve(np.array([epsilon]))[0]), 1e-300) / delta)

    return brentq(excess, 1e-9, 0.5 - 1e-9, rtol=1e-5)


def scipy_sigma(epsilon: float, delta: float) -> float:
    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        below = norm.logcdf(0.5 / sigma - epsilon * sigma), norm.logcdf(-0.5 / sigma - epsilon * sigma)
        return math.exp(below[0]) - math.exp(epsilon + below[1]) - delta

    return math.exp(brentq(excess, -8.0, 12.0, xtol=1e-14))


def cells(config: Config, report: Report) -> None:
    report.say("(2) ten thousand mechanisms in one call, beside a loop of scipy's brentq over a few of them")
    epsilons = torch.logspace(-1, math.log10(20), config.cells, dtype=torch.float64)
    dims = torch.logspace(0, 5, config.cells, dtype=torch.float64).floor()
    many = torch.logspace(math.log10(0.1), math.log10(5), config.epsilons, dtype=torch.float64)
    users = torch.tensor(config.users, dtype=torch.float64)
    deltas = torch.logspace(-9, -2, config.cells, dtype=torch.float64)
    for name, call, peer, arguments in (
        ("PrivUnit.unit_variance", PrivUnit.unit_variance, scipy_privunit, (dims, epsilons[:, None])),
        ("gaussian_sigma", privacy.gaussian_sigma, scipy_sigma, (epsilons, deltas[:, None])),
        (
            "least_flip",
            least_flip,
            scipy_flip,
            (users, many[:, None], torch.full((1, 1), 1e-6, dtype=torch.float64)),
        ),
    ):
        found, seconds = timed(lambda call=call, arguments=arguments: call(*arguments))
        flat = [each.flatten() for each in torch.broadcast_tensors(*arguments)]
        some = torch.linspace(0, len(flat[0]) - 1, config.peers).long()
        rows = [
            [int(e[i]) if e is flat[0] and peer is not scipy_sigma else float(e[i]) for e in flat] for i in some
        ]
        peers, looped = timed(lambda peer=peer, rows=rows: [peer(*row) for row in rows])
        apart = max(abs(one / peer - 1) for one, peer in zip(found.flatten()[some].tolist(), peers, strict=True))
        scaled = looped / len(rows) * found.numel()
        report.row("cells", call=name, cells=found.numel(), seconds=seconds, scipy_s=scaled, apart=apart)


def objects(config: Config, report: Report) -> None:
    report.say(f"(3) {config.objects} kernels of twelve types, one tally of reports; as many matrices; the loop")
    generator = keyed_generator(b"objects")
    kernels = torch.rand(config.objects, 12, 12, dtype=torch.float64, generator=generator)
    counts = torch.randint(100, 1000, (12,), generator=generator)
    every = kernels + kernels.mT
    many, each = from_kernel(every), [from_kernel(one) for one in every]
    reports = [RandomizedResponsePlugIn(one, 2.0) for one in (many, *each)]
    tally = reports[0].sample_tally(counts, generator=generator)
    asked: dict[str, tuple[Callable[[Any], torch.Tensor], list[Any]]] = {
        "exact of kernels": (lambda one: one.exact(counts), [many, *each]),
        "predicted_mse of kernels": (lambda one: one.predicted_mse(counts), reports),
        "estimates of kernels": (lambda one: one.analyse(tally).value, reports),
        "intervals of kernels": (lambda one: torch.stack(one.analyse(tally).interval(), -1), reports),
        "factorize": (lambda one: factorize(one).certificate.upper, [kernels, *kernels]),
    }
    for name, (call, (whole, *single)) in asked.items():
        call(single[0])
        found, seconds = timed(lambda call=call, whole=whole: call(whole))
        loop, looped = timed(lambda call=call, single=single: torch.stack([call(one) for one in single]))
        apart = float((found - loop).abs().max() / loop.abs().max())
        numbers = []
        for one in (single[0], whole):
            with Launches() as counted:
                call(one)
            numbers.append(counted.number)
        own = {"one_launches": numbers[0], "launches": numbers[1] / numbers[0]}
        report.row("objects", call=name, apart=apart, ratio=seconds / looped, loop_s=looped, **own)


def measure(config: Config, report: Report) -> None:
    calls(config, report)
    cells(config, report)
    objects(config, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
