"""Three kernels on two tables: the shuffled density of least predicted error, bits with Poisson noise, and a curator's.

Paper: Wagner (2025), section 4.1 (highest density class), on digits (125 users of each of ten classes) and on
    paragraphs of the docstrings of eight installed packages (the class), 735 users of each: their words, hashed with
    signs to 256 numbers, roots of their counts, normalised.
Command:  python experiments/density/kernels.py
Expected: accuracy over splits of the table, the same in all rows of one kernel and epsilon. "before": bits with Poisson
    noise; "now": ``density.choose`` for inner products, four steps with bounded shares for
    other kernels; "curator": Gaussian noise on the features themselves; "no privacy": their sums.
    "gap": the curator's accuracy less this row's, split by split; of "now" it is nought within 2.5 of its errors.
    "error": predicted, of one feature's mean, rounding and noise.
Output: results/density/kernels/kernels.csv; printed: ``experiments/bench/kernels_cpu.txt``.
Artifact: Wagner (2025) | section 4.1
Status: agrees, on digits and docstrings
Time: a quarter of an hour on one core; --smoke in 10 to 20 CPU-seconds.
"""

import math
import re
import zlib
from dataclasses import dataclass, replace

import data as tables
import torch
from torch import Tensor

from torchdp.density import (
    CentralKDE,
    Family,
    Features,
    GaussianOrthogonal,
    InnerProductRotated,
    LaplacianSigns,
    ShuffledClasses,
    ShuffledKDE,
    choose,
    classify,
)
from torchdp.randomness import keyed_generator
from torchdp.shuffle import BoundedSum, CentralGaussianSum, PoissonSum
from torchdp.simulate import Experiment, Report
from torchdp.threads import on_host

DELTA, WORDS = 1e-5, 256
WAYS = ("no privacy", "curator", "before", "now")
Kde = ShuffledKDE | CentralKDE


@dataclass(frozen=True)
class Config:
    tables: tuple[str, ...] = ("digits", "docstrings")
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.5)
    kernels: tuple[str, ...] = ("inner product", "Gaussian", "Laplacian")
    digits: int = 8  # splits; inner products, which are quick, twelve times as many
    docstrings: int = 3


def family(kernel: str, dimension: int) -> tuple[Family, int]:
    """And repetitions: an l_2 distance of 0.7, and what an l_1 distance is of such, are near."""
    if kernel == "inner product":
        return InnerProductRotated(dimension), 1
    if kernel == "Gaussian":
        return GaussianOrthogonal(dimension, 0.7), 64
    return LaplacianSigns(dimension, 0.25 * math.sqrt(dimension)), 128


def docstrings(packages: tuple[str, ...] = tables.PACKAGES) -> tuple[Tensor, Tensor]:
    """Hashed words of paragraphs, unit vectors, and the packages they are from; always in one order."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    rows, labels = [], []
    for label, package in enumerate(packages):
        for text in tables.paragraphs(package)[:1000]:
            row = torch.zeros(WORDS, dtype=torch.float64)
            for word in re.findall(r"[a-z]{3,}", text.lower()):
                if word not in ENGLISH_STOP_WORDS:
                    code = zlib.crc32(word.encode())
                    row[code % WORDS] += 1 if code >> 16 & 1 else -1
            if row.any():
                rows.append(row.sign() * row.abs().sqrt())
                labels.append(label)
    return torch.nn.functional.normalize(torch.stack(rows), dim=1), torch.tensor(labels)


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    x, labels = torch.as_tensor(found.data) - 5.0, torch.as_tensor(found.target)
    return torch.nn.functional.normalize(x, dim=1), labels


@on_host
def split(labels: Tensor, users: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of so many users of each class, and of queries."""
    order = torch.randperm(len(labels), generator=keyed_generator(b"split %d" % seed))
    groups = [order[labels[order] == c] for c in range(int(labels.max()) + 1)]
    return torch.cat([g[:users] for g in groups]), torch.cat([g[users:] for g in groups])


def density(way: str, features: Features, n: int, epsilon: float) -> Kde:
    if way == "no privacy":
        return CentralKDE(features, CentralGaussianSum(n, 0.0), DELTA)
    if way == "curator":
        return CentralKDE.calibrated(features, n, epsilon, DELTA)
    if way == "before":
        return ShuffledKDE.calibrated(features, PoissonSum, n, epsilon, DELTA)
    if isinstance(features.family, InnerProductRotated):
        chosen = choose(features.family, n=n, epsilon=epsilon, delta=DELTA).best
        return replace(chosen, features=features)
    return ShuffledKDE.calibrated(features, BoundedSum, n, epsilon, DELTA, steps=4)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for name in config.tables:
        points, labels = digits() if name == "digits" else docstrings()
        classes = int(labels.max()) + 1
        smallest = int(torch.bincount(labels).min())
        n = 125 if name == "digits" else min(1000, smallest - smallest // 8)
        splits = [
            tuple(map(torch.as_tensor, split(labels.cpu(), n, seed))) for seed in range(12 * getattr(config, name))
        ]
        for kernel in config.kernels:
            drawn, repetitions = family(kernel, points.shape[1])
            chosen = splits if repetitions == 1 else splits[: getattr(config, name)]
            for epsilon in config.epsilons:
                hits = {way: [] for way in WAYS}
                for seed, (users, queries) in enumerate(chosen):
                    generator = keyed_generator(f"{name} {kernel} {epsilon} {seed}".encode())
                    features = drawn.draw(repetitions, generator=generator)
                    for way in WAYS:
                        kde = density(way, features, n, epsilon)
                        found = ShuffledClasses((kde,) * classes).sample_estimate(
                            (points[users], labels[users]), generator=generator
                        )
                        right = classify(found, points[queries]) == labels[queries]
                        hits[way].append(float(right.double().mean()))
                for way in WAYS:
                    kde = density(way, features, n, epsilon)
                    accuracy = torch.tensor(hits[way])
                    gap = torch.tensor(hits["curator"]) - accuracy
                    shuffled = isinstance(kde, ShuffledKDE)
                    report.row(
                        "kernels",
                        table=name,
                        kernel=kernel,
                        epsilon=epsilon,
                        way=way,
                        law=type(kde.law).__name__ if shuffled else "",
                        steps=1.0 if kde.steps is None else float(kde.steps.max()),
                        accuracy=float(accuracy.mean()),
                        standard_error=float(accuracy.std() / math.sqrt(len(chosen))),
                        gap=float(gap.mean()),
                        gap_error=float(gap.std() / math.sqrt(len(chosen))),
                        error=float(kde.worst_mse(n).sqrt()),
                        messages=kde.messages_per_user if shuffled else 0.0,
                        bits=kde.bits_per_user if shuffled else 0.0,
                    )


EXPERIMENT = Experiment(measure, Config(), Config(("digits",), (4.5,), ("inner product",), 2, 2))

if __name__ == "__main__":
    EXPERIMENT.main()
