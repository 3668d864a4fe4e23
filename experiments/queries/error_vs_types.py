"""Error of local mechanisms for thresholds as the types grow: predicted curves, measured points.

Papers: Edmonds, Nikolov, Ullman (2020), Theorem 10 (factorization); McKenna, Maity, Mazumdar,
Miklau (2020).
Command:  python experiments/queries/error_vs_types.py
Expected: error of the average query at n = 10,000 where all users have the type that is worst.
Factorization grows like
    log k, frequency oracles like a power of k except where e^epsilon is of order k; an optimised
    strategy is below both. Measured points lie on the curves. bound: of any data, which a strategy
    of a known histogram does not reach.
Output: results/queries/error_vs_types/error_vs_types.csv and .png.
Artifact: Edmonds, Nikolov, Ullman (2020); McKenna et al. (2020) | Theorem 10
Status: agrees
Time: a minute on one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.queries import choose
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, columns, subplots


@dataclass(frozen=True)
class Config:
    epsilons: tuple[float, ...] = (0.5, 1.0, 4.0)
    sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    n: int = 10_000
    trials: int = 200


SHOWN = (
    "optimised strategy",
    "gamma_F, PrivUnit",
    "plain, PrivUnit",
    "SubsetSelection",
    "OptimizedUnaryEncoding",
    "HadamardResponse",
    "RandomizedResponse",
)


def measure(config, report):
    generator = keyed_generator(b"error vs types")
    for epsilon in config.epsilons:
        for k in config.sizes:
            for candidate in choose(
                workloads.prefix(k), config.n, epsilon, objective=Objective.MEAN
            ).candidates:
                if candidate.name not in SHOWN:
                    continue
                protocol = candidate.protocol
                each = config.n * torch.eye(k, dtype=torch.int64)
                errors = protocol.predicted_mse(each).mean(-1)
                counts = each[errors.argmax()]
                found = protocol.sample_estimate(
                    counts, generator=generator, sample_shape=(config.trials,)
                )
                squares = (found.value - protocol.exact(counts)).square().mean(-1)
                measured = math.sqrt(float(squares.mean()))
                report.row(
                    "error_vs_types",
                    epsilon=epsilon,
                    k=k,
                    mechanism=candidate.name,
                    predicted=errors.max().sqrt(),
                    bound=candidate.error,
                    measured=measured,
                    standard_error=squares.std() / math.sqrt(config.trials) / (2 * measured),
                )


def draw(tables):
    rows = tables["error_vs_types"]
    epsilons = sorted({row["epsilon"] for row in rows})
    figure, panels = subplots(len(epsilons), size=(4.2, 4), wide=3)
    for axes, epsilon in zip(panels, epsilons, strict=True):
        for i, name in enumerate(SHOWN):
            k, predicted, measured, errors = columns(
                rows,
                "k",
                "predicted",
                "measured",
                "standard_error",
                mechanism=name,
                epsilon=epsilon,
            )
            axes.plot(k, predicted, "-", color=f"C{i}", label=name)
            bars = [2 * error for error in errors]
            axes.errorbar(k, measured, bars, fmt="o", markersize=3, capsize=2, color=f"C{i}")
        axes.set(xscale="log", yscale="log", xlabel="types k", title=f"epsilon = {epsilon:g}")
        axes.grid(True, linewidth=0.3, which="both")
    panels[0].set_ylabel("root mean squared error, n = 10,000")
    panels[0].legend(fontsize="x-small")
    return {"error_vs_types.png": figure}


EXPERIMENT = Experiment(measure, Config(), Config((1.0,), (4, 8)), draw)

if __name__ == "__main__":
    EXPERIMENT.main()
