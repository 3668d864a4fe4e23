"""Densities and classes by one call, ``density.choose``: two crescents, digits, four classes of
news.

Command:  python experiments/density/chosen.py
Expected: "crescents", 10,000 users, delta = 1e-6: total error at most .0012 at epsilon 1 with 150
messages of a user
    and .007 at .1 with 60; simulated from the sums of these users, beside what is predicted for
    users all over the box. "classes", delta = 1e-5: digits at epsilon 1 / 4.5: .809 +- .006 / .897
    +- .003 on the 20 splits that the rules were made on, .801 +- .006 / .898 +- .004 on 20 others
    (--first 20), a curator's sums of the same features .005 +- .010 / .000 +- .002 more
    (goals: .815 / .90); with --data, a file of sentence embeddings of news (X, y) of four classes,
    within .003 of a curator.
Output: results/density/chosen/*.csv.
Artifact: our own | densities and classes by one call
Status: agrees, but for digits at epsilon 1
Time: five minutes on one core; --smoke in some seconds.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchdp import density
from torchdp.density import (
    CentralKDE,
    InnerProduct,
    ShuffledClasses,
    class_counts,
    kernel_means,
    nearest_centre,
)
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment


@dataclass(frozen=True)
class Config:
    crescents: tuple[str, ...] = (
        "1:20",
        "1:60",
        "1:150",
        "1:400",
        "0.1:60",
        "0.1:400",
        "8:150",
    )  # epsilon:messages
    epsilons: tuple[float, ...] = (1.0, 4.5)
    splits: int = 20
    first: int = 0  # of the splits
    runs: int = 20
    data: str = ""


def crescents(n=10_000):
    made = keyed_generator(b"crescents")
    side = torch.rand(n, generator=made) < 0.6
    turn = math.pi * torch.rand(n, generator=made, dtype=torch.float64)
    left = torch.stack([turn.cos() - 0.5, turn.sin() - 0.25], 1)
    noise = torch.randn(n, 2, generator=made, dtype=torch.float64)
    return (0.55 * torch.where(side[:, None], left, -left) + 0.04 * noise).clamp(-1, 1)


def tables(path) -> dict[str, tuple[Tensor, Tensor, int]]:
    from sklearn.datasets import load_digits

    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    x = (x - x.amin(0)) / (x.amax(0) - x.amin(0)).clamp_min(1e-9)
    found = {"digits": (torch.nn.functional.normalize(x, dim=1), y.long(), 1)}
    if path and Path(path).exists():
        x, y = torch.load(path, weights_only=True)
        found["news"] = (torch.nn.functional.normalize(x.double(), dim=1), y.long(), 4)
    return found


def measure_classes(config, report):
    for name, (x, y, fewer) in tables(config.data).items():
        classes, train = int(y.max()) + 1, int(0.8 * len(x))
        for epsilon in config.epsilons:
            hits = {"chosen": [], "curator": []}
            seconds = []
            for split in range(config.first, config.first + max(1, config.splits // fewer)):
                generator = keyed_generator(b"split %d" % split)
                order = torch.randperm(len(x), generator=generator)
                users, queries = order[:train], order[train:]
                counts, start = class_counts(y[users], classes), time.process_time()
                choice = density.choose(
                    InnerProduct(x.shape[1]),
                    epsilon=epsilon,
                    delta=1e-5,
                    classes=counts,
                    generator=generator,
                )
                seconds.append(time.process_time() - start)
                features = choice.best.kdes[0].features
                curators = (
                    CentralKDE.calibrated(features, n, epsilon, 1e-5) for n in counts.tolist()
                )
                for way, made in (
                    ("chosen", choice.best),
                    ("curator", ShuffledClasses(tuple(curators))),
                ):
                    released = made.sample_estimate((x[users], y[users]), generator=generator)
                    hits[way].append(
                        float((nearest_centre(released, x[queries]) == y[queries]).double().mean())
                    )
            chosen, gap = (
                torch.tensor(hits["chosen"]),
                torch.tensor(hits["curator"]) - torch.tensor(hits["chosen"]),
            )
            report.row(
                "classes", table=name, epsilon=epsilon, chosen=choice.candidates[0].name,
                steps=float(choice.best.kdes[0].steps.max()), messages=choice.best.kdes[0].messages_per_user,
                accuracy=float(chosen.mean()), standard_error=float(chosen.std() / len(chosen) ** 0.5),
                curator_ahead=float(gap.mean()), gap_error=float(gap.std() / len(gap) ** 0.5), first_call=seconds[0],
            )  # fmt: skip


def measure(config, report):
    torch.set_num_threads(1)
    places, line = crescents(), torch.linspace(-1, 1, 41, dtype=torch.float64)
    grid, box = torch.cartesian_prod(line, line), torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    for epsilon, most in (map(float, each.split(":")) for each in config.crescents):
        start = time.process_time()
        choice = density.choose(
            density.Gaussian(0.25),
            n=len(places),
            epsilon=epsilon,
            delta=1e-6,
            box=box,
            most_messages=most,
        )
        seconds, kde = time.process_time() - start, choice.best
        released = kde.sample_estimate(
            kde.summary(places), generator=keyed_generator(b"runs"), sample_shape=(config.runs,)
        )
        squares = (
            (released.evaluate(grid) - kernel_means(kde.features.family, places, grid))
            .square()
            .mean(-1)
        )
        report.row(
            "crescents", epsilon=epsilon, limit=most, chosen=choice.candidates[0].name,
            messages=kde.messages_per_user, predicted=choice.candidates[0].error,
            simulated=float(squares.mean().sqrt()),
            standard_error=float(squares.std() / config.runs**0.5 / 2 / squares.mean().sqrt()), seconds=seconds,
        )  # fmt: skip
    measure_classes(config, report)


EXPERIMENT = Experiment(measure, Config(), Config(("1:60",), (4.5,), 2, 4))

if __name__ == "__main__":
    EXPERIMENT.main()
