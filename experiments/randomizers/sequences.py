"""Intervals that may be read at all times: how often all of 1,000 looks hold the truth, and how
wide they are.

Paper: Robbins (1970); Howard, Ramdas, McAuliffe, Sekhon (2021); none has private messages.
Command:  python experiments/randomizers/sequences.py
Expected: all looks at all types hold in 0.97 to 1 of 100 trials; fixed intervals of one type in
0.41 to 0.54. Half
    widths over those of a fixed interval at 1,000 / 5,000 / 20,000 users: one bit 1.87 / 1.71 /
    1.75 at epsilon = 0.5, 1.99 / 1.81 / 1.86 at 1, 4.8 / 4.4 / 4.5 at 4; 16 types 2.15 to 2.5 / 2.0
    to 2.3 / 2.05 to 2.4 by Hadamard response, 3.5 to 4.1 by randomized response, whose rare reports
    have a variance far below their proxy.
Data: 20,000 users who hold a type or not, or one of 16 types (Zipf's shares), in random order; the
truth is the share
    among the users heard. Intervals of 95 %, tightest at 5,000 users, read 1,000 times from 20
    users on.
Output: results/randomizers/sequences/sequences.csv.
Artifact: own | confidence sequences
Status: agrees
Time: half a CPU-minute; --smoke in seconds
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from torchdp.collection import Collection
from torchdp.noise import SeededNoise
from torchdp.protocol import Tally
from torchdp.randomizers import HadamardResponse, RandomizedResponse, SubsetSelection
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.draws import unpack
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment

TYPES = 16
Z = 1.959964  # of fixed intervals at 95 %


@dataclass(frozen=True)
class Config:
    users: int = 20_000
    looks: int = 1_000
    first: int = 20
    best: int = 5_000
    shown: tuple[int, ...] = (1_000, 5_000, 20_000)  # users at which widths are compared
    epsilons: tuple[float, ...] = (0.5, 1.0, 4.0)
    trials: int = 100


SMOKE = Config(users=400, looks=20, best=100, shown=(100, 400), epsilons=(1.0,), trials=10)


def reports(oracle: FrequencyOracle, messages):
    """A row for each message, what it adds to a tally."""
    if messages.ndim > 1:
        bits = unpack(messages)
        return bits[:, : oracle.k].double()
    return one_hot(messages, oracle.outputs).double()


def half_widths(oracle: FrequencyOracle, n, best):
    """Of the sequence for so many users, (looks,): the same for all types and data."""
    x = torch.zeros(1, dtype=torch.int64)
    one = oracle.collect(x, noise=SeededNoise(1))["reports"]
    widths = []
    for users in n.tolist():
        tally = Tally(users, {"reports": one * users})
        arrived = Collection.of(oracle).add("all", tally)
        low, high = arrived.sequence(0.95, best=best)
        widths.append((high - low)[0])
    return torch.stack(widths) / 2


def judged(oracle: FrequencyOracle, shares, config, seed):
    """Share of the trials in which all looks at all types hold, beside fixed intervals of the first
    type; widths.
    """
    n = torch.linspace(config.first, config.users, config.looks).long()
    looks = n[:, None]
    widths = half_widths(oracle, n, config.best)
    # Totals are affine in the reports: for one user without any, and then without users.
    shape, _ = oracle.layout["reports"]
    shift = oracle.totals(Tally(1, {"reports": torch.zeros(shape)}))
    generator = keyed_generator(seed)
    held = fixed = 0
    for _ in range(config.trials):
        x = torch.multinomial(shares, config.users, replacement=True, generator=generator)
        messages = oracle.randomize(x, noise=SeededNoise.of(generator))
        arrived = reports(oracle, messages).cumsum(0)[n - 1]
        value = shift + oracle.totals(Tally(0, {"reports": arrived})) / looks
        counts = one_hot(x, oracle.k).double().cumsum(0)
        truth = counts[n - 1] / looks
        off = (value - truth).abs()
        held += bool((off <= widths[:, None]).all())
        variances = oracle.variance.under(truth) / looks
        inside = off <= Z * variances.sqrt()
        # the first type alone: fixed intervals make no promise for all of them
        fixed += bool(inside[:, 0].all())
    normal = Z * (oracle.variance.under(shares)[0] / n).sqrt()
    relative = widths / normal
    nearest = {users: (n - users).abs().argmin() for users in config.shown}
    return {
        "held": held / config.trials,
        "fixed": fixed / config.trials,
        **{f"width at {users}": relative[look] for users, look in nearest.items()},
    }


def measure(config, report):
    torch.set_num_threads(1)
    cells = []
    zipf = 1 / torch.arange(1, TYPES + 1, dtype=torch.float64)
    zipf /= zipf.sum()
    for epsilon in config.epsilons:
        for share in (0.02, 0.5):
            shares = torch.tensor([share, 1 - share], dtype=torch.float64)
            cells.append((RandomizedResponse(2, epsilon), shares))
        for kind in (RandomizedResponse, SubsetSelection, HadamardResponse):
            cells.append((kind(TYPES, epsilon), zipf))
    for index, (oracle, shares) in enumerate(cells):
        report.row(
            "sequences",
            oracle=type(oracle).__name__,
            k=oracle.k,
            epsilon=oracle.epsilon,
            share=shares[0],
            **judged(oracle, shares, config, b"sequences %d" % index),
        )


EXPERIMENT = Experiment(measure, Config(), SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
