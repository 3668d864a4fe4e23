"""Does the mechanism of least predicted error measure best? All candidates of ``choose`` over workloads, n, epsilon.

Papers: Edmonds, Nikolov, Ullman (2020), Theorem 10 (factorization); McKenna, Maity, Mazumdar, Miklau (2020).
Command:  python experiments/queries/choose.py
Expected: 36 cells; measured over predicted mean squared error of the chosen mechanism 1 up to its standard error; no
    other candidate measures better by more than 4 standard errors of the difference. Optimised strategies win most
    cells, subset selection the histogram, PrivUnit on factors where types are many against the queries.
Each trial draws the users' sum at once (aggregate law), all users of the type that is worst for the chosen mechanism.
Output: results/choose/choose.csv. Time: four minutes on one core; --smoke in seconds.
"""

import argparse
import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.queries import Objective, QueryMechanism, choose
from torchdp.randomness import keyed_generator

EPSILONS, SIZES = (0.5, 1.0, 4.0), (1_000, 30_000)
FIELDS = (
    "workload",
    "epsilon",
    "n",
    "chosen",
    "predicted",
    "measured_ratio",
    "standard_error",
    "runner_up",
    "worst_z",
)


def problems(smoke: bool) -> dict[str, Tensor]:
    generator = keyed_generator(b"choose problems")
    if smoke:
        return {"prefix 8": workloads.prefix(8).dense()}
    return {
        "prefix 32": workloads.prefix(32).dense(),
        "all ranges 16": workloads.all_ranges(16).dense(),
        "histogram 64": workloads.identity(64).dense(),
        "parities 6, <= 2": workloads.parities(6, 2).dense(),
        "abs(i - j) 32": workloads.absolute_difference(32, spacing=1 / 31).dense(),
        "random signs 8 x 128": (2.0 * torch.randint(2, (8, 128), generator=generator) - 1).double(),
    }


def squared_errors(mechanism: QueryMechanism, counts: Tensor, trials: int, generator: torch.Generator) -> Tensor:
    """Mean over queries of the squared error, one for each trial."""
    truth = mechanism.workload @ counts.double() / counts.sum()
    value = mechanism.answer_histogram(counts, generator=generator, sample_shape=(trials,)).value
    return (value - truth).square().mean(-1)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("results/choose"))
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path, generator = options.out / "choose.csv", keyed_generator(b"choose experiment")
    trials = 100 if options.smoke else 200
    print(
        f"{'workload':<22}{'eps':>5}{'n':>8}  {'chosen':<26}{'RMSE':>9}{'ratio':>7}{'+-':>6}  {'runner-up':<26}{'z':>6}"
    )
    worst = -math.inf
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for name, W in problems(options.smoke).items():
            for epsilon in EPSILONS[1:2] if options.smoke else EPSILONS:
                for n in SIZES[:1] if options.smoke else SIZES:
                    choice = choose(W, n, epsilon, Objective.AVERAGE_QUERY)
                    errors = choice.best.errors
                    hardest = (errors.bias.square() + errors.variance / n).mean(0).argmax()
                    counts = torch.zeros(W.shape[1], dtype=torch.int64)
                    counts[hardest] = n
                    drawn = [squared_errors(c.mechanism, counts, trials, generator) for c in choice.candidates]
                    best = drawn[0]
                    ratio = best / choice.best.predicted_mse(counts).mean()
                    # Only candidates that are better than the chosen one on these data can speak against it.
                    worst_z = max(
                        float((best.mean() - other.mean()) / ((best.var() + other.var()) / trials).sqrt())
                        for c, other in zip(choice.candidates[1:], drawn[1:], strict=True)
                        if c.mechanism.worst_error(n, Objective.AVERAGE_QUERY)
                        > choice.candidates[0].error * 1.0001
                    )
                    worst = max(worst, worst_z)
                    first, second = choice.candidates[:2]
                    error = float(ratio.std()) / math.sqrt(trials)
                    values = (
                        name,
                        epsilon,
                        n,
                        first.name,
                        first.error,
                        float(ratio.mean()),
                        error,
                        second.name,
                        worst_z,
                    )
                    writer.writerow(dict(zip(FIELDS, values, strict=True)))
                    print(
                        f"{name:<22}{epsilon:>5g}{n:>8}  {first.name:<26}{first.error:>9.4f}{values[5]:>7.3f}"
                        f"{error:>6.3f}  {second.name:<26}{worst_z:>6.1f}",
                        flush=True,
                    )
    print(f"most that any other candidate measured better by: {worst:.1f} standard errors")
    print(path.resolve())


if __name__ == "__main__":
    main()
