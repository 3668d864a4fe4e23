"""Two groups of real people compared from their private messages: differences, intervals, p-values beside the truth.

Paper: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): AUC, Kendall's tau, Gini's indices; comparisons are not in it.
Command:  python experiments/pairwise/groups.py
Expected: every private interval's coverage over the repetitions between 0.94 and 0.96. With the patients as they are
    and epsilon = 8 the larger differences are found; at epsilon = 1 it takes a hundred times as many users.
Data: tables that ship with scikit-learn (569 breast tumours, 178 wines), split by a public threshold on another column;
    "x 100": every row held by 100 users, real values but not that many real people. Bounds of the bins are public.
    Intervals (95 %) speak of these users; the p-value and the population's interval allow for drawing them as well.
Output: results/pairwise/groups/groups.csv; "covered" and "power" (the interval leaves out 0) are shares of repetitions.
Artifact: Ghazi et al. (2023) | comparisons, not in the paper
Status: agrees
Time: about 1 minute on one thread; --smoke in 25 s (fewer repetitions).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import pairwise
from torchdp.collection import Collection, compare, difference
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, PairwiseStatistic
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

SETTINGS = ((1, 8.0), (100, 1.0), (100, 4.0))  # (copies of each row, epsilon)


@dataclass(frozen=True)
class Question:
    """A statistic and the types (n,) of the users of each of two groups."""

    title: str
    statistic: PairwiseStatistic
    groups: dict[str, Tensor]


def binned(values: Tensor, low: float, high: float, bins: int) -> Tensor:
    """The bin of each value in [low, high], values outside at the nearer end."""
    return ((values - low) / (high - low) * bins).long().clamp(0, bins - 1)


def split(types: Tensor, condition: Tensor, yes: str, no: str) -> dict[str, Tensor]:
    """The users for whom the condition holds, and the others."""
    return {yes: types[condition], no: types[~condition]}


def questions() -> list[Question]:
    """Three of the tumours, two of the wines."""
    from sklearn.datasets import load_breast_cancer, load_wine

    tumours, wines = load_breast_cancer(), load_wine()

    def column(table: object, name: str) -> Tensor:
        return torch.as_tensor(table.data[:, list(table.feature_names).index(name)])  # type: ignore[attr-defined]

    texture = binned(column(tumours, "mean texture"), 9, 40, 16)
    radius = binned(column(tumours, "mean radius"), 6, 30, 16)
    malignant = torch.as_tensor(tumours.target) == 0
    smooth = column(tumours, "mean smoothness") < 0.095
    strong = column(wines, "alcohol") >= 13
    hue = binned(column(wines, "hue"), 0.4, 1.8, 16)
    return [
        Question(
            "AUC of texture for malignancy",
            pairwise.auc(16),
            split(malignant.long() * 16 + texture, smooth, "smooth", "rough"),
        ),
        Question(
            "Kendall's tau of radius and texture",
            pairwise.kendall(8, 8),
            split(radius // 2 * 8 + texture // 2, malignant, "malignant", "benign"),
        ),
        Question(
            "Gini's mean difference of radius",
            pairwise.absolute_difference(16, spacing=24 / 16),
            split(radius, malignant, "malignant", "benign"),
        ),
        Question(
            "Gini's diversity of cultivars",
            pairwise.unequal(3),
            split(torch.as_tensor(wines.target), strong, "strong", "light"),
        ),
        Question(
            "Gini's mean difference of hue",
            pairwise.absolute_difference(16, spacing=1.4 / 16),
            split(hue, strong, "strong", "light"),
        ),
    ]


@dataclass(frozen=True)
class Config:
    trials: int = 10_000


def row(question: Question, copies: int, epsilon: float, trials: int) -> dict[str, object]:
    """One private comparison, and how often its like holds the truth."""
    statistic = question.statistic
    counts = [torch.bincount(types, minlength=statistic.types) for types in question.groups.values()]
    protocol, held = OneMessage(statistic, epsilon), [copies * each for each in counts]
    true = statistic.exact(held[0]) - statistic.exact(held[1])
    if abs(float(true - (statistic.exact(counts[0]) - statistic.exact(counts[1])))) > 0.02 * max(
        1.0, abs(float(true))
    ):
        raise SystemExit("copying the rows changed the statistic")
    generator = keyed_generator(f"{question.title} {copies} {epsilon}".encode())
    empty = Collection.of(protocol)
    groups = [
        empty.add(name, protocol.collect(types.repeat(copies), noise=SeededNoise.of(generator)))
        for name, types in question.groups.items()
    ]
    found = compare(*groups)
    whole = found.of_population()
    again = difference(
        *(protocol.sample_estimate(each, generator=generator, sample_shape=(trials,)) for each in held)
    )
    (low, high), (bottom, top), (a, b) = again.interval(), found.interval(), whole.interval()
    return {
        "users": " + ".join(str(copies * len(types)) for types in question.groups.values()),
        "epsilon": epsilon,
        "true": true,
        "private": found.value,
        "low": bottom,
        "high": top,
        "p": whole.p_value,
        "population_low": a,
        "population_high": b,
        "covered": ((low <= true) & (true <= high)).double().mean(),
        "power": ((low > 0) | (high < 0)).double().mean(),
    }


def measure(config: Config, report: Report) -> None:
    for question in questions():
        one, two = question.groups
        for copies, epsilon in SETTINGS:
            cells = row(question, copies, epsilon, config.trials)
            report.row("groups", statistic=question.title, difference=f"{one} less {two}", **cells)


EXPERIMENT = Experiment(measure, Config(), Config(300))

if __name__ == "__main__":
    EXPERIMENT.main()
