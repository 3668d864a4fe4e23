"""Error and coverage against the number of users: both protocols and randomized response, predicted
and measured.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11 and Corollary 7
(the paper has no experiments).
Command:  torchdp sweep experiments/pairwise/error_vs_n.py
Expected: measured / predicted MSE within 1 +- 0.05 (10,000 trials, standard error about 0.015) for
the means; for
    auc, a ratio, wherever the error is below 0.05. Slopes near -1/2 for large n, near -1 where n is
    small. Coverage of 95 % intervals, beside the error in the same table: 0.944 to 0.956 of Gini's
    cells with 10,000 trials; 0.934 to 0.974 of Kendall's and the AUC's with --trials 2500
    (standard error about 0.0044).
Data: fixed histograms (Zipf, or a discretised normal), so the error is that of the privacy noise
alone.
Artifact: Ghazi et al. (2023) | Lemma 11, Corollary 7
Status: agrees
Time: about 4 minutes on 2 CPU cores; --smoke in seconds.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torchdp import cli, pairwise, queries, randomizers
from torchdp.simulate import Row, Sweep, Trial, error_curves
from torchdp.simulate.plots import ratio_strip


@dataclass(frozen=True)
class Config:
    statistics: tuple[str, ...] = ("gini-mean-difference", "gini-diversity", "kendall", "auc")
    types: int = 32
    side: int = 6  # Kendall's tau lives on a side x side grid
    users: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7, 10**8)
    epsilons: tuple[float, ...] = (1.0, 4.0)
    trials: int = 10_000
    block_size: int = 2_500


FULL = Config()
SMOKE = Config(
    ("gini-diversity", "kendall", "auc"), 8, 3, (10**4, 10**6), (1.0,), trials=50, block_size=50
)


def responses(question: pairwise.PairwiseStatistic, epsilon):
    """By randomized response."""
    return queries.LocalOracle.of(question, randomizers.RandomizedResponse(question.types, epsilon))


PROTOCOLS = {
    "one-message": queries.LocalFactorization.of,
    "two-message": queries.Twice.of,
    "randomized-response": responses,
}


@cache
def statistic(name, types):
    """The statistic on ``types`` types (a side of the grid for kendall, the scores for auc)."""
    if name == "gini-mean-difference":
        return pairwise.absolute_difference(types, spacing=1 / (types - 1))
    if name == "gini-diversity":
        return pairwise.unequal(types)
    return pairwise.kendall(types, types) if name == "kendall" else pairwise.auc(types)


def users(name, types, n):
    """Counts of n users: Zipf; for kendall a correlated normal on the grid, for auc two shifted
    normals.
    """
    x = torch.linspace(-2, 2, types, dtype=torch.float64)
    if name == "kendall":
        y = x[:, None]
        exponents = (y**2 - 0.8 * y * x + x**2) / 1.2
        weights = torch.exp(-exponents).flatten()
    elif name == "auc":
        exponents = torch.cat([(x - shift) ** 2 / 2 for shift in (-0.5, 0.5)])
        weights = torch.exp(-exponents)
    else:
        weights = 1 / torch.arange(1, types + 1, dtype=torch.float64)
    shares = weights / weights.sum()
    counts = (shares * n).floor().long()
    # what rounding lost
    counts[0] += n - counts.sum()
    return counts


def make_trial(config: dict[str, Any]):
    """Of one private estimate: its squared error, whether its 95 % interval holds the truth, and
    its error.
    """
    question = statistic(config["statistic"], config["types"])
    kind = PROTOCOLS[config["protocol"]]
    protocol = kind(question, config["epsilon"])
    counts = users(config["statistic"], config["types"], config["n"])
    truth = float(question.exact(counts))

    def sample(generator, size):
        there = kind(question.to(generator.device), config["epsilon"])
        drawn = there.sample_estimate(counts, generator=generator, sample_shape=(size,))
        error = drawn.value - truth
        low, high = drawn.interval()
        return {
            "squared error": error.square(),
            "coverage": (low <= truth) & (truth <= high),
            "bias": error,
        }

    return Trial(sample, {"predicted_mse": float(protocol.predicted_mse(counts)), "truth": truth})


def draw(rows: Sequence[Row], folder):
    """One figure of curves for each epsilon, and one of measured over predicted."""
    paths = []
    for epsilon in sorted({row.config["epsilon"] for row in rows}):
        path = folder / f"error_vs_n_epsilon_{epsilon:g}.png"
        figure = error_curves(
            [row for row in rows if row.config["epsilon"] == epsilon],
            x="n",
            lines="protocol",
            panels="statistic",
            title=f"Pairwise statistics, local DP of one user, epsilon = {epsilon:g}",
        )
        figure.savefig(path, dpi=150)
        paths.append(path)
    means = [row for row in rows if row.config["statistic"] != "auc"]
    ratio_strip(means, "Kendall and Gini: the prediction is exact").savefig(
        folder / "ratio.png", dpi=150
    )
    return [*paths, folder / "ratio.png"]


def experiment(smoke):
    """The grid."""
    config = SMOKE if smoke else FULL
    grid = [
        {"statistic": name, "types": types, "protocol": protocol, "epsilon": epsilon, "n": n}
        for name in config.statistics
        for types in [config.side if name == "kendall" else config.types]
        for epsilon in config.epsilons
        for protocol in PROTOCOLS
        for n in config.users
    ]
    return Sweep(
        "error_vs_n", grid, make_trial, config.trials, config.block_size, draw, needs=["matplotlib"]
    )


if __name__ == "__main__":
    sys.exit(cli.main(["sweep", *sys.argv]))
