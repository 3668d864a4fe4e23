"""A tenth of the users makes the strategy of the others: squared error over that of one strategy for all.

Paper: McKenna, Maity, Mazumdar, Miklau (2020), strategies of a prior; the pilot is made here.
Command:  python experiments/queries/pilot.py
Expected: prefix sums of 16 types, squared error over that of the strategy for the worst type, decoded plainly: of the
    pilot and the others, measured over pilots and trials; predicted ones of that strategy decoded for the data shown
    (adaptive), and of the strategy of the true histogram (known). At epsilon = 4 the pilot ends at 0.74 to 0.77 on a
    broad peak and 0.52 to 0.55 on a narrow one (known: 0.72 and 0.48), 0.91 to 0.94 on even data; at epsilon = 1 at
    0.92 to 1.01: there it is not worth the trouble.
Output: results/queries/pilot/pilot.csv.
Artifact: own | pilots
Status: agrees
Time: two minutes of one core; --smoke in seconds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.queries import AdaptiveOracle, LocalOracle, after_pilot, pooled
from torchdp.randomizers import StrategyMatrix
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report


def shares(name: str, k: int) -> Tensor:
    x = (torch.arange(k, dtype=torch.float64) + 0.5) / k
    h = {
        "even": torch.ones_like(x),
        "beta": x * (1 - x) ** 3,
        "peaked": torch.exp(-(((x - 0.3) / 0.06) ** 2) / 2) + 1e-3,
    }[name]
    return h / h.sum()


@dataclass(frozen=True)
class Config:
    types: int = 16
    users: tuple[int, ...] = (1_000, 10_000, 100_000)
    epsilons: tuple[float, ...] = (1.0, 4.0)
    data: tuple[str, ...] = ("even", "beta", "peaked")
    share: float = 0.1  # of the users in the pilot
    pilots: int = 4
    trials: int = 500


FULL = Config()
SMOKE = Config(4, (1_000,), (4.0,), ("beta",), pilots=1, trials=100)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    W = workloads.prefix(config.types).dense()[:-1]
    for epsilon in config.epsilons:
        client = StrategyMatrix.tuned(W, epsilon, generator=keyed_generator(b"pilot, first"))
        plain, pilot = LocalOracle(W, client), AdaptiveOracle(W, client)
        for data in config.data:
            h = shares(data, config.types)
            known = StrategyMatrix.tuned(
                W, epsilon, 0.99 * h + 0.01 / config.types, generator=keyed_generator(b"known")
            )
            for n in config.users:
                counts = (h * n).round().long()
                first = (counts * config.share).round().long()
                usual = float(plain.predicted_mse(counts).mean())
                ratios = [
                    ratio(pilot, first, counts - first, config.trials, f"{epsilon}/{data}/{n}/{each}") / usual
                    for each in range(config.pilots)
                ]
                report.row(
                    "pilot",
                    epsilon=epsilon,
                    data=data,
                    n=n,
                    pilot=torch.tensor(ratios).mean(),
                    spread=max(ratios) - min(ratios),
                    adaptive=pilot.predicted_mse(counts).mean() / usual,
                    known=AdaptiveOracle(W, known).predicted_mse(counts).mean() / usual,
                )


def ratio(pilot: AdaptiveOracle, first: Tensor, rest: Tensor, trials: int, key: str) -> float:
    """Mean squared error of all users' answers after one pilot.

    The pilot's own answers are drawn again for each trial: those of the others are unbiased whatever strategy it made,
    so the two errors do not go together.
    """
    generator = keyed_generator(key.encode())
    heard = pilot.sample_tally(first, generator=generator)
    other = after_pilot(pilot, heard)
    later = other.sample_tally(rest, generator=generator, sample_shape=(trials,))
    again = pilot.sample_tally(first, generator=generator, sample_shape=(trials,))
    found = pooled([(pilot, again), (other, later)])
    truth = pilot.exact(first + rest)
    return float((found.value - truth).square().mean())


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
