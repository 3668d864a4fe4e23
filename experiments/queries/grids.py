"""Prefix sums of types on a grid: the chosen reports beside a bound, and patterns shifted on a circle and on a torus.

Command:  python experiments/queries/grids.py
Expected: variance of the average query on the worst type, over ``strategy_lower_bound`` by singular values: at
    epsilon 1 chosen 1.17, 1.19, 1.22 for 256, 289, 400 types, 1.44 for 1,024 (there shifts on a torus); shifts on a
    circle 1.85 to 1.94. At epsilon 3 the bound is loose: 1.35, 1.5, 2.4, 2.2 (circle 3.6 to 3.8).
Output: results/queries/grids/grids.csv.
Artifact: own | prefix sums on grids
Status: agrees
Time: CPU seconds in the table: 20 to 65 for 256 to 400 types, 8 for 1,024; --smoke in seconds.
"""

import time
from dataclasses import dataclass

import torch

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.queries import choose
from torchdp.randomizers import ShiftStrategy, strategy_lower_bound
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

USERS = 10**6


@dataclass(frozen=True)
class Config:
    sides: tuple[int, ...] = (16, 17, 20, 32)
    epsilons: tuple[float, ...] = (1.0, 3.0)


FULL = Config()
SMOKE = Config((3,), (1.0,))


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for side in config.sides:
        line = workloads.prefix(side).dense()
        W = torch.kron(line, line)
        centred = W - W.mean(1, keepdim=True)
        for epsilon in config.epsilons:
            least, row = strategy_lower_bound(W, epsilon, program=False), {}
            for name, grid in (("circle", None), ("torus", (side, side))):
                start = time.process_time()
                made = ShiftStrategy.tuned(W, epsilon, generator=keyed_generator(b"grids"), grid=grid)
                row[name] = float(made.workload_variance(centred).mean(0).max()) / least
                row[f"{name}_seconds"] = time.process_time() - start
            start = time.process_time()
            best = choose(W, USERS, epsilon, Objective.MEAN).candidates[0]
            row |= {
                "chosen": USERS * best.error**2 / least,
                "seconds": time.process_time() - start,
                "name": best.name,
            }
            report.row("grids", types=side**2, epsilon=epsilon, bound=least, **row)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
