"""How often the 95 % interval of one frequent type's share among many types holds the truth.

Paper: none; the plug-in variance is that of the decoded shares, or of the nearest histogram where that is more.
Command:  python experiments/queries/frequent.py
Expected: coverage of 0.93 to 0.97 in all cells: 0.944 to 0.961, and with 100 users 0.931 to 0.964. The mean squared
    standard error is 0.99 to 1.05 of the squared error that is predicted; 100 users, Hadamard response: 1.11.
Output: results/queries/frequent/frequent.csv.
Artifact: - | coverage of frequent types
Status: agrees
Time: half a minute on one core; --smoke in seconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.queries import LocalOracle
from torchdp.randomizers import HadamardResponse, OptimizedUnaryEncoding, RandomizedResponse
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

CLIENTS: tuple[Callable[[int, float], FrequencyOracle], ...] = (
    RandomizedResponse,
    OptimizedUnaryEncoding,
    HadamardResponse,
)


@dataclass(frozen=True)
class Config:
    types: tuple[int, ...] = (1024, 1024, 1024, 256, 256, 64, 64, 64, 64)
    epsilons: tuple[float, ...] = (4.0, 2.0, 1.0, 2.0, 4.0, 2.0, 1.0, 4.0, 2.0)
    users: tuple[int, ...] = (10_000, 100_000, 100_000, 10_000, 1_000, 1_000, 10_000, 300, 100)
    shares: tuple[float, ...] = (0.28, 0.2, 0.3, 0.52, 0.3, 0.5, 0.5, 0.3, 0.5)
    trials: int = 4_000


FULL = Config()
SMOKE = Config(types=(64,), epsilons=(2.0,), users=(1_000,), shares=(0.5,), trials=300)


def frequent(k: int, users: int, share: float) -> Tensor:
    """Counts of users of whom this share is of type 0; the others are spread evenly."""
    counts = torch.full((k,), int(users * (1 - share)) // (k - 1), dtype=torch.int64)
    counts[0] = round(users * share)
    counts[1 : 1 + users - int(counts.sum())] += 1
    return counts


def measure(config: Config, report: Report) -> None:
    cells = zip(config.types, config.epsilons, config.users, config.shares, strict=True)
    for k, epsilon, users, share in cells:
        counts = frequent(k, users, share)
        first = torch.eye(k, dtype=torch.float64)[:1]
        for client in CLIENTS:
            protocol = LocalOracle(first, client(k, epsilon))
            found = protocol.sample_estimate(
                counts, generator=keyed_generator(b"frequent"), sample_shape=(config.trials,)
            )
            truth = protocol.exact(counts)
            low, high = found.interval()
            covered = ((low <= truth) & (truth <= high)).double().mean()
            report.row(
                "frequent",
                k=k,
                epsilon=epsilon,
                users=users,
                share=share,
                client=client.__name__,
                predicted=math.sqrt(float(protocol.predicted_mse(counts))),
                squared_ratio=found.standard_error.square().mean() / protocol.predicted_mse(counts)[0],
                coverage=covered,
            )


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
