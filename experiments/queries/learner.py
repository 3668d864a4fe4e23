"""Agnostic learning of decision stumps under local differential privacy, on real data: loss against
epsilon.

Paper: Edmonds, Nikolov, Ullman (2020), Theorem 24: one message of each user estimates the loss of
every concept.
Data: scikit-learn's breast cancer table (569 women, 30 measurements), each measurement in 6 equal
bins between its
    smallest and largest value (taken as public here: in a real collection the ranges must be stated
    beforehand). Larger n resamples the rows, so that the true losses stay the same.
Command:  python experiments/queries/learner.py
Expected: the true loss of the learned stump falls to the least of the class, 0.081, as n epsilon^2
grows: at n = 569
    it is 0.11 at epsilon = 8, at n = 100,000 0.087 at epsilon = 1. Estimates are within the
    half-width (95 %) of the truth; that of the learned stump is the least of 300 and too small on
    average.
Output: results/queries/learner/learner.csv and learner.png.
Artifact: Edmonds, Nikolov, Ullman (2020) | Theorem 24
Status: agrees
Time: 1.5 minutes on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch

from torchdp.noise import SeededNoise
from torchdp.queries import PrivateLearner, stumps
from torchdp.simulate import Experiment, columns, subplots


@dataclass(frozen=True)
class Config:
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    sizes: tuple[int, ...] = (569, 10_000, 100_000)
    trials: int = 20  # at least
    total: int = 20_000  # users of all trials, at least


FULL = Config()
BINS = 6


def table() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x = torch.as_tensor(data.data)
    low = x.amin(0)
    high = x.amax(0)
    bins = ((x - low) / (high - low) * BINS).long().clamp_max(BINS - 1)
    return bins, 2 * torch.as_tensor(data.target) - 1, [str(name) for name in data.feature_names]


def measure(config, report):
    records, labels, names = table()
    concepts = stumps([BINS] * records.shape[1], names)
    noise = SeededNoise(1)
    report.say(f"{len(concepts)} stumps, code of length {concepts.dim}, norm {concepts.norm:.4f}")
    for n in config.sizes:
        users = torch.arange(n) % len(records)
        x = torch.cat([records, labels[:, None]], 1)[users]
        truth = concepts.losses(records[users], labels[users])
        trials = max(config.trials, config.total // n)
        for epsilon in config.epsilons:
            learner = PrivateLearner.calibrated(concepts, epsilon=epsilon)
            found = [learner.best(learner.estimate(x, noise=noise)) for _ in range(trials)]
            loss = torch.stack([truth[f.concept] for f in found])
            report.row(
                "learner",
                n=n,
                epsilon=epsilon,
                trials=trials,
                loss=loss.mean(),
                standard_error=loss.std() / math.sqrt(trials),
                estimated=sum(f.loss for f in found) / trials,
                half_width=found[0].half_width(),
                least=truth.min(),
                first_stump=found[0].name,
            )


def draw(tables):
    rows = tables["learner"]
    figure, (axes,) = subplots(size=(7, 4.2))
    for n in sorted({row["n"] for row in rows}):
        epsilon, loss, errors = columns(rows, "epsilon", "loss", "standard_error", n=n)
        axes.errorbar(
            epsilon,
            loss,
            [2 * error for error in errors],
            fmt="o-",
            capsize=3,
            label=f"n = {n:,.0f}",
        )
    axes.axhline(
        rows[0]["least"],
        color="black",
        linestyle="--",
        linewidth=1,
        label="best stump, not private",
    )
    axes.set(
        xscale="log",
        xlabel="epsilon",
        ylabel="true loss of the learned stump",
        title="Decision stumps, breast cancer table",
    )
    axes.set_xticks(FULL.epsilons, [f"{e:g}" for e in FULL.epsilons])
    axes.minorticks_off()
    axes.grid(True, linewidth=0.3)
    axes.legend()
    return {"learner.png": figure}


EXPERIMENT = Experiment(measure, FULL, Config((1.0, 8.0), (569, 10_000), 3, 0), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
