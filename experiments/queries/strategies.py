"""Strategy matrices optimised for a workload, beside every oracle, the factorization mechanism and a certified bound.

Paper: McKenna, Maity, Mazumdar, Miklau (2020); their code's sums over queries of the worst type's variance for
    thresholds at epsilon = 1 (4k outputs, seed 0) are 723.59 at k = 64 and 1910.87 at k = 128.
Command:  python experiments/queries/strategies.py
Expected: variance of one user's answers, mean over queries, worst type. On thresholds strategies are 11 % or more below
    the authors' values, at epsilon = 1 at most 0.65 times the factorization mechanism and, at k = 16, within 2 % of
    the certified lower bound (10 % at epsilon = 4); on the histogram subset selection is as good.
Time: ten minutes on one core, most of it k = 512; --smoke in seconds.
"""

import argparse
import time

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import factorize
from torchdp.queries import Objective as Error
from torchdp.queries import factored, local_factorization
from torchdp.randomizers import (
    HadamardResponse,
    Objective,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    SubsetSelection,
    optimize_strategy,
    strategy_lower_bound,
)
from torchdp.randomness import keyed_generator

ORACLES = (RandomizedResponse, SubsetSelection, OptimizedUnaryEncoding, HadamardResponse)
AUTHORS = {("prefix", 64, 1.0): 723.5917 / 64, ("prefix", 128, 1.0): 1910.86757 / 128}
BOUNDED = 16  # types up to which the lower bound is computed


def problem(name: str, k: int) -> Tensor:
    kinds = {
        "prefix": workloads.prefix,
        "histogram": workloads.identity,
        "abs(i - j)/k": workloads.absolute_difference,
    }
    W = kinds[name](k).dense()
    return W / k if name == "abs(i - j)/k" else W


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    smoke = arguments.parse_args().smoke
    torch.set_num_threads(1)
    sizes = (
        {"prefix": (8,)}
        if smoke
        else {"prefix": (16, 64, 128, 256, 512), "histogram": (16, 64), "abs(i - j)/k": (16, 64)}
    )
    print(
        f"{'workload':<14}{'k':>5}{'epsilon':>9}{'at least':>10}{'optimised':>11}{'authors':>9}{'gamma_F':>9}"
        f"{'oracle':>9}  {'best oracle':<24}{'seconds':>8}"
    )
    for name, ks in sizes.items():
        for k in ks:
            W = problem(name, k)
            centred = W - W.mean(1, keepdim=True)
            for epsilon in (1.0,) if smoke or k > 64 else (1.0, 4.0):
                start = time.perf_counter()
                strategy = optimize_strategy(W, epsilon, Objective.WORST, generator=keyed_generator(b"strategies"))
                seconds = time.perf_counter() - start
                value = float(Objective.WORST.of(strategy.workload_variance(centred)))
                oracles = {
                    kind.__name__: float(Objective.WORST.of(kind(k, epsilon).workload_variance(centred)))
                    for kind in ORACLES
                }
                best = min(oracles, key=lambda name: oracles[name])
                factors = factored(W, factorize(W, 2.0, shift=True))
                factorization = (
                    local_factorization(factors, epsilon, PrivUnit).worst_error(1, Error.AVERAGE_QUERY) ** 2
                )
                bound = f"{strategy_lower_bound(W, epsilon):.5g}" if k <= BOUNDED else "-"
                authors = f"{AUTHORS[name, k, epsilon]:.5g}" if (name, k, epsilon) in AUTHORS else "-"
                print(
                    f"{name:<14}{k:>5}{epsilon:>9g}{bound:>10}{value:>11.5g}{authors:>9}{factorization:>9.4g}"
                    f"{oracles[best]:>9.4g}  {best:<24}{seconds:>8.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
