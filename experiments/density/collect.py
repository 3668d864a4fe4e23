"""Collecting a kernel density of 560,000 users: the exact law of the sums beside noise drawn for every user.

Paper: Wagner (2025), section 4: DBPedia-14's size, n = 560,000 in 14 classes of 40,000, d = I = 768, Gaussian kernel.
    The dense method is the paper's description in numpy: features, bits, and for every user and coordinate two draws of
    NB(1/n, p), p = exp(-0.8 epsilon_0), that are added and subtracted (the third draw of the protocol cancels).
    Here the sum of all users' draws is drawn at once: one geometric variable for each coordinate and sign.
Command:  OMP_NUM_THREADS=1 python experiments/density/collect.py
Data: unit vectors around 14 random centres, made class by class (not counted).
Expected: projection, cosine, rounding and counting are the same work for both and take most of what is left here; the
    noise of all classes takes under 0.1 s in the place of minutes, and the whole is at least 5 times as fast; three
    quarters of it are the matrix product (experiments/bench/features.py). Standard
    deviations of the two kinds of noise agree to a few per cent. The messages of every user are timed for 4,000 users
    of exactly calibrated protocols. Machines are noisy: compare ratios, not seconds.
Output: results/density/collect/*.csv, of one run, one thread.
Artifact: Wagner (2025) | section 4, n and d of DBPedia
Status: agrees, on a CPU
Time: four minutes, most of it the dense method; --smoke in seconds.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from torchdp.density import Features, GaussianFourier, GaussianSquareWave, ShuffledKDE
from torchdp.draws import Simulated
from torchdp.noise import Noise
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BitLaw, BitSums, CorrelatedSum, PoissonSum, RandomizedResponseSum, paper
from torchdp.simulate import Experiment, Report


@dataclass(frozen=True)
class Config:
    per_class: int = 40_000
    classes: int = 14
    few: int = 4000  # users whose messages are timed


FULL = Config()
SMOKE = Config(300, 2, 100)
D = REPETITIONS = 768
EPSILON, DELTA = 4.5, 1e-6
BLOCK = 4000  # users that the dense method holds in memory at once


@dataclass
class Clock:
    """Seconds spent under each name."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, name, work):
        start = time.perf_counter()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return result


def unit_vectors(n: int, generator: torch.Generator) -> Tensor:
    """Float32 unit vectors around one random centre."""
    centre = torch.randn(D, generator=generator)
    return torch.nn.functional.normalize(centre + torch.randn(n, D, generator=generator), dim=1)


def dense(x: np.ndarray, w: np.ndarray, b: np.ndarray, ratio: float, rng: np.random.Generator, clock: Clock):
    """Estimated sums of bits and their noise alone, (I,), with noise drawn for each user and coordinate."""
    n = len(x)
    bits, noise = np.zeros(w.shape[1]), np.zeros(w.shape[1])
    for part in np.array_split(x, max(1, n // BLOCK)):
        waves = clock.time("projection and cosine", lambda p=part: np.cos(p @ w + b))
        ones = clock.time(
            "rounding", lambda v=waves: rng.random(v.shape, dtype=np.float32) < np.float32(0.5) * (1 + v)
        )

        def draws(size=ones.shape):
            return rng.negative_binomial(1 / n, 1 - ratio, size) - rng.negative_binomial(1 / n, 1 - ratio, size)

        added = clock.time("noise", draws)
        noise += clock.time("noise", lambda a=added: a.sum(0))
        bits += clock.time("counting", lambda o=ones: o.sum(0))
    return bits + noise, noise


def aggregate(x: Tensor, features: Features, law: BitLaw, generator: torch.Generator, clock: Clock):
    """The same from the exact law of the sums."""
    draws = Simulated(generator)
    ones = clock.time("projection, cosine, rounding, counting", lambda: features.ones(x, draws, ()))
    estimate = clock.time("noise", lambda: law.decode(law.noised(ones, draws), len(x)))
    return estimate, estimate - ones


def total(report: Report, name: str, clock: Clock) -> float:
    for part, seconds in clock.seconds.items():
        report.row("seconds", path=name, part=part, seconds=seconds)
    whole = sum(clock.seconds.values())
    report.row("seconds", path=name, part="all", seconds=whole)
    return whole


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    per_class, classes, few = config.per_class, config.classes, config.few
    generator, rng = keyed_generator(b"collect"), np.random.default_rng(0)
    fourier = GaussianFourier(D).draw(REPETITIONS, generator=generator)
    wave = GaussianSquareWave(D).draw(REPETITIONS, generator=generator)
    ratio = math.exp(-0.8 * paper.split(EPSILON, DELTA, REPETITIONS)[0])
    correlated = CorrelatedSum(per_class, ratio, 1.0, 0.5)  # the flood cancels: any will do for the sums
    w, b = fourier.frequencies.float().cpu().numpy(), fourier.phases.float().cpu().numpy()
    clocks = {name: Clock() for name in ("dense", "aggregate", "wave")}
    noises: dict[str, list[np.ndarray]] = {"dense": [], "aggregate": []}
    for _ in range(classes):
        x = unit_vectors(per_class, generator)
        noises["dense"].append(dense(x.cpu().numpy(), w, b, ratio, rng, clocks["dense"])[1])
        noises["aggregate"].append(
            aggregate(x, fourier, correlated, generator, clocks["aggregate"])[1].cpu().numpy()
        )
        aggregate(x, wave, correlated, generator, clocks["wave"])
    report.say(f"n = {classes * per_class:,} users in {classes} classes, d = I = {D}, one thread")
    slow = total(report, "dense numpy, random Fourier features", clocks["dense"])
    fast = total(report, "torchdp, random Fourier features", clocks["aggregate"])
    total(report, "torchdp, square waves", clocks["wave"])
    noise = [clocks[name].seconds["noise"] for name in ("dense", "aggregate")]
    spread = [float(np.std(np.concatenate(noises[name]))) for name in ("dense", "aggregate")]
    report.say("\ntimes as fast as dense; standard deviations of the noise")
    report.row(
        "gain",
        noise=noise[0] / noise[1],
        whole=slow / fast,
        dense_deviation=spread[0],
        aggregate_deviation=spread[1],
        stated_deviation=correlated.rmse,
    )
    report.say(f"\nevery user's messages, {few} users")
    x = unit_vectors(few, generator)
    for kind in (RandomizedResponseSum, PoissonSum):
        kde, clock = ShuffledKDE.calibrated(wave, kind, few, EPSILON, DELTA), Clock()
        sums, bits = BitSums(kde.law, REPETITIONS, DELTA), wave.bits(x, Noise())
        clock.time("all", lambda s=sums, o=bits: s.collect(o))
        report.row(
            "messages",
            protocol=kind.__name__,
            messages_per_user=kde.messages_per_user,
            bits=sums.bits_per_message,
            ns_per_user_and_coordinate=clock.seconds["all"] / few / REPETITIONS * 1e9,
        )


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
