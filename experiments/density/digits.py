"""Handwritten digits learned from shuffled users: accuracy against epsilon, exact calibration beside the paper's.

Paper: Wagner (2025), section 4.1 (highest density class), on a table that comes with scikit-learn: 1797 digits of 64
    pixels in 10 classes, 125 of each class users, the rest queries. Users subtract 5 from every pixel
    (a public constant, as is the range 0..16) and normalise their vector. Labels are public here, or go through
    randomized response at epsilon = 5 in the lines marked so: then epsilon + 5 protects vector and label together.
Command:  python experiments/density/digits.py
Expected: at epsilon = 4.5, delta = 1e-5 the Gaussian kernel of bandwidth 0.7 by square waves (2048 repetitions) is
    within 0.03 of its accuracy without any privacy, and randomized response calibrated as in the paper is at chance.
    More repetitions cost communication, not accuracy. The inner product by rotated coordinates in four
    steps with bounded shares is within 0.02 of its own limit there, with half the messages of eight rotations in bits,
    and within 2.5 standard errors of its curator, who adds up the features themselves, at every epsilon.
Output: results/density/digits/digits.csv and digits.png: mean and standard error over 8 splits of the table; printed:
    ``experiments/bench/digits_cpu.txt``.
Artifact: Wagner (2025) | section 4.1
Status: agrees, on digits
Time: one to two minutes on one core; --smoke in half a minute.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.density import (
    CentralKDE,
    Density,
    Family,
    Features,
    GaussianFourier,
    GaussianSquareWave,
    InnerProduct,
    InnerProductRotated,
    ShuffledClasses,
    ShuffledKDE,
    class_counts,
    classify,
    kernel_means,
)
from torchdp.noise import SeededNoise
from torchdp.randomizers import RandomizedResponse
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BoundedSum, PoissonSum, RandomizedResponseSum
from torchdp.shuffle import paper as published
from torchdp.simulate import Experiment, Report, columns, subplots
from torchdp.threads import on_host


@dataclass(frozen=True)
class Config:
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.5, 7.0)
    seeds: int = 8
    repetitions: int = 2048  # of the square waves


FULL = Config()
SMOKE = Config((4.5,), 2, 64)
DELTA, LABEL_EPSILON, BANDWIDTH, GREY = 1e-5, 5.0, 0.7, 5.0
USERS, CLASSES = 125, 10  # users of each class
FIELDS = ("line", "epsilon", "certified", "seeds", "accuracy", "standard_error", "rmse", "messages")
Maker = Callable[[Features, int, float], ShuffledKDE | CentralKDE]


@dataclass(frozen=True)
class Line:
    """One curve: a family, its repetitions, and how a density of n users is made at epsilon."""

    name: str
    family: Family
    repetitions: int
    make: Maker
    labels: bool = False  # labels go through randomized response


def poisson(features: Features, n: int, epsilon: float) -> ShuffledKDE:
    """Exact calibration."""
    return ShuffledKDE.calibrated(features, PoissonSum, n, epsilon, DELTA)


def response(features: Features, n: int, epsilon: float) -> ShuffledKDE:
    """Exact calibration."""
    return ShuffledKDE.calibrated(features, RandomizedResponseSum, n, epsilon, DELTA)


def bounded(features: Features, n: int, epsilon: float) -> ShuffledKDE:
    """Four steps, bounded shares."""
    return ShuffledKDE.calibrated(features, BoundedSum, n, epsilon, DELTA, steps=4)


def steps(features: Features, n: int, epsilon: float) -> ShuffledKDE:
    """Four steps, Poisson noise."""
    return ShuffledKDE.calibrated(features, PoissonSum, n, epsilon, DELTA, steps=4)


def curator(features: Features, n: int, epsilon: float) -> CentralKDE:
    """The features themselves, Gaussian noise for what they move by."""
    return CentralKDE.calibrated(features, n, epsilon, DELTA)


def paper(features: Features, n: int, epsilon: float) -> ShuffledKDE:
    """Randomized response with the paper's closed form under advanced composition."""
    law = published.randomized_response(n, *published.split(epsilon, DELTA, features.instances))
    return ShuffledKDE(features, law, DELTA)


def lines(gaussian: int) -> list[Line]:
    wave, fourier = GaussianSquareWave(64, BANDWIDTH), GaussianFourier(64, BANDWIDTH)
    return [
        Line("Gaussian, square waves", wave, gaussian, poisson),
        Line("Gaussian, square waves, labels at 5", wave, gaussian, poisson, labels=True),
        Line("Gaussian, square waves, 512 repetitions", wave, gaussian // 4, poisson),
        Line("Gaussian, Fourier features", fourier, gaussian // 4, poisson),
        Line("Gaussian, Fourier, randomized response", fourier, gaussian // 4, response),
        Line("Gaussian, Fourier, paper's randomized response", fourier, gaussian // 4, paper),
        Line("inner product, rotated", InnerProductRotated(64), 8, poisson),
        Line("inner product, rotated, 4 steps", InnerProductRotated(64), 1, steps),
        Line("inner product, rotated, 4 steps, bounded shares", InnerProductRotated(64), 1, bounded),
        Line("inner product, plain", InnerProduct(64), 8, poisson),
        Line("curator, Gaussian, square waves", wave, gaussian, curator),
        Line("curator, Gaussian, Fourier", fourier, gaussian // 4, curator),
        Line("curator, inner product, rotated", InnerProductRotated(64), 1, curator),
        Line("inner product, paper's randomized response", InnerProduct(64), 1, paper),
    ]


def table() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x, labels = torch.as_tensor(data.data) - GREY, torch.as_tensor(data.target)
    return torch.nn.functional.normalize(x, dim=1), labels


def released(line: Line, x: Tensor, labels: Tensor, epsilon: float, generator: torch.Generator) -> Density:
    """The densities of all classes."""
    reported, randomizer = labels, RandomizedResponse(CLASSES, LABEL_EPSILON)
    if line.labels:
        reported = randomizer.randomize(labels, noise=SeededNoise.of(generator))
    features = line.family.draw(line.repetitions, generator=generator)
    kdes = tuple(line.make(features, int(n), epsilon) for n in class_counts(reported, CLASSES))
    classes = ShuffledClasses(kdes, randomizer if line.labels else None)
    return classes.sample_estimate((x, reported), generator=generator)


@on_host
def split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of users and rows of queries."""
    order = torch.randperm(len(labels), generator=keyed_generator(b"split %d" % seed))
    groups = [order[labels[order] == c] for c in range(CLASSES)]
    return torch.cat([g[:USERS] for g in groups]), torch.cat([g[USERS:] for g in groups])


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    points, labels = table()
    splits = [tuple(map(torch.as_tensor, split(labels.cpu(), seed))) for seed in range(config.seeds)]

    def summary(
        name: str, epsilon: float, certified: float, hits: list[float], rmse: float, messages: float
    ) -> None:
        mean = sum(hits) / len(hits)
        error = math.sqrt(sum((hit - mean) ** 2 for hit in hits) / (len(hits) - 1) / len(hits))
        values = (name, epsilon, certified, len(hits), mean, error, rmse, messages)
        report.row("digits", **dict(zip(FIELDS, values, strict=True)))

    for name, family in (
        ("no privacy, Gaussian kernel", GaussianSquareWave(64, BANDWIDTH)),
        ("no privacy, inner product", InnerProduct(64)),
    ):
        hits = []
        for users, queries in splits:
            groups = [users[labels[users] == c] for c in range(CLASSES)]
            scores = torch.stack([kernel_means(family, points[group], points[queries]) for group in groups])
            hits.append(float((scores.argmax(0) == labels[queries]).double().mean()))
        summary(name, math.inf, math.inf, hits, 0.0, 0.0)
    for line in lines(config.repetitions):
        for epsilon in config.epsilons:
            hits = []
            for seed, (users, queries) in enumerate(splits):
                generator = keyed_generator(f"{line.name} {epsilon} {seed}".encode())
                densities = released(line, points[users], labels[users], epsilon, generator)
                hits.append(float((classify(densities, points[queries]) == labels[queries]).double().mean()))
            kde = line.make(densities.features, USERS, epsilon)
            certified = densities.guarantee.epsilon
            messages = kde.messages_per_user if isinstance(kde, ShuffledKDE) else 0.0
            summary(line.name, epsilon, certified, hits, kde.law.rmse, messages)


def draw(tables: dict) -> dict:
    rows = tables["digits"]
    figure, (axes,) = subplots(size=(9, 5))
    for i, name in enumerate(dict.fromkeys(row["line"] for row in rows)):
        x, y, errors = columns(rows, "epsilon", "accuracy", "standard_error", line=name)
        if not math.isfinite(x[0]):
            axes.axhline(y[0], color="black", linestyle=("--", ":")[i % 2], linewidth=1, label=name)
            continue
        axes.errorbar(x, y, [2 * error for error in errors], fmt=("o-", "s--", "^:")[i % 3], capsize=3, label=name)
    axes.set(
        xscale="log",
        xlabel=f"epsilon, one user's vector replaced, delta = {DELTA:g}",
        ylabel="accuracy (bars: 2 standard errors)",
        title="Digits, highest density class, shuffle model",
    )
    axes.set_xticks(FULL.epsilons, [f"{e:g}" for e in FULL.epsilons])
    axes.minorticks_off()
    axes.grid(True, linewidth=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return {"digits.png": figure}


EXPERIMENT = Experiment(measure, FULL, SMOKE, draw)

if __name__ == "__main__":
    EXPERIMENT.main()
