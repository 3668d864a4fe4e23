"""What a histogram's worst data cost, and what its skewed data gain: block designs beside subset selection.

Paper: Ye, Barg (2018), subset selection, optimal for even data; Park, Nam, Lee (2023), block designs.
Command:  python experiments/queries/designs.py
Expected: RMSE of the histogram over that of subset selection, predicted, and measured over trials: the design, decoded
    for the data that its reports show, and (predicted) the strategy optimised for the worst type, decoded likewise; on
    even data, shares like 1/(x + 1) and 98 % of users of one type. The design costs nothing on even data where the
    types are a power of two, else at most 0.4 %; it errs 0.95 to 1.002 and 0.79 to 1 times as much on the others (1
    where it is randomized response). The optimised strategy costs up to 7 % on even data and wins nowhere by 1 %.
    Measured ratios within 2 standard errors of those predicted. A message has 4 to 12 bits for 4 to 93.
Output: results/queries/designs/designs.csv (kept: experiments/bench/designs.csv).
Artifact: own | histograms of skewed data
Status: agrees
Time: two minutes of one core; --smoke in seconds.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.queries import AdaptiveOracle, LocalOracle
from torchdp.randomizers import StrategyMatrix, SubsetSelection
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report


@dataclass(frozen=True)
class Config:
    types: tuple[int, ...] = (16, 24, 64, 100)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0)
    n: int = 100_000
    trials: int = 100
    optimised: int = 64  # types up to which a strategy is optimised beside it


FULL = Config()
SMOKE = Config((8,), (1.0,), trials=200, optimised=8)


def data(k: int) -> dict[str, Tensor]:
    zipf, one = (
        1 / torch.arange(1, k + 1, dtype=torch.float64),
        torch.full((k,), 0.02 / (k - 1), dtype=torch.float64),
    )
    one[k // 3] = 0.98
    return {"even": torch.ones_like(zipf) / k, "skewed": zipf / zipf.sum(), "one frequent": one}


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    for k in config.types:
        W = workloads.identity(k).dense()
        for epsilon in config.epsilons:
            subsets = LocalOracle(W, SubsetSelection(k, epsilon))
            design = AdaptiveOracle(W, StrategyMatrix.balanced(k, epsilon))
            tuned = None
            if k <= config.optimised:
                generator = keyed_generator(b"optimised")
                tuned = AdaptiveOracle(W, StrategyMatrix.tuned(W - 1 / k, epsilon, generator=generator))
            for name, h in data(k).items():
                counts = (h * config.n).round().long()
                usual = float(subsets.predicted_mse(counts).mean())
                drawn = design.sample_estimate(
                    counts,
                    generator=keyed_generator(f"{k}/{epsilon}/{name}".encode()),
                    sample_shape=(config.trials,),
                )
                square = (drawn.value - design.exact(counts)).square().mean(-1)
                measured = math.sqrt(float(square.mean()) / usual)
                report.row(
                    "designs",
                    k=k,
                    epsilon=epsilon,
                    data=name,
                    outputs=design.client.outputs,
                    bits=design.client.bits_per_user,
                    bits_subsets=subsets.client.bits_per_user,
                    predicted=(design.predicted_mse(counts).mean() / usual).sqrt(),
                    measured=measured,
                    standard_error=measured * square.std() / square.mean() / 2 / config.trials**0.5,
                    optimised=None if tuned is None else (tuned.predicted_mse(counts).mean() / usual).sqrt(),
                )


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
