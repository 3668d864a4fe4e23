"""How often two samples of one population "differ" at 5 %: the level of p-values, statistic by
statistic.

Command:  python experiments/collection/level.py | tee experiments/collection/level_cpu.txt
Output: results/collection/level/level.csv.
Prints: for each statistic and channel the share of pairs of samples whose difference
``of_population()`` has p < .05,
    its standard error, and the same where the privacy noise alone is counted (no p-value is offered
    for that).
Expected: .03 to .07 in the first six rows. Below .03 in the last two: a mean that is released alone
does not tell how
    much users vary, and the p-value is then that of the most varied users who have this mean.
    ``GaussianCovariance``, which releases the variance beside the mean, and shares of types, which
    tell it, reach the level.
Artifact: - | the level of p-values
Status: agrees
Time: a minute on one core; --smoke in seconds. On the CPU, whatever --device says.
"""

import math
from dataclasses import dataclass

import torch

from torchdp import domains, mean, pairwise, queries, workloads
from torchdp.collection import difference
from torchdp.collection.comparison import Difference
from torchdp.queries import CentralFactorization, FactoredQueries, LocalFactorization
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment

DELTA = 1e-6
TYPES = 4
ASKED = 1  # of the shares "at most 0, 1, 2, 3"
LEVEL = 0.05
# At equal shares the statistic is least, and no sample is below the population: its error is not
# normal there.
UNEVEN = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
EVEN = torch.full((TYPES,), 1 / TYPES, dtype=torch.float64)


@dataclass(frozen=True)
class Config:
    pairs: int = 600
    users: int = 4000  # in each sample


def of_types(protocol, shares, config, generator):
    """Estimates from samples of users whose types have these shares."""
    drawn = torch.multinomial(
        shares.to(generator.device).expand(config.pairs, -1),
        config.users,
        replacement=True,
        generator=generator,
    )
    counts = drawn.new_zeros(config.pairs, len(shares))
    counts.scatter_add_(1, drawn, torch.ones_like(drawn))
    return protocol.sample_estimate(counts, generator=generator)


def of_numbers(protocol, config, generator):
    """Estimates from samples of users whose numbers are uniform in [0, 1]."""
    rows = torch.rand(config.pairs, config.users, 1, dtype=torch.float64, generator=generator)
    return protocol.estimate(rows)


def rejected(found: Difference):
    """The share of pairs with p < .05, of the answer that is asked where there are several."""
    p = found.p_value
    if p.ndim > 1:
        p = p[:, min(ASKED, p.shape[1] - 1)]
    below = p < LEVEL
    return float(below.double().mean())


def measure(config, report):
    report.say(
        f"{config.pairs} pairs of samples of {config.users} users, each pair of one population"
    )

    def row(statistic, channel, first, second):
        apart = difference(first, second)
        level = rejected(apart.of_population())
        error = math.sqrt(level * (1 - level) / config.pairs)
        # as if the two samples were the population
        by_noise = Difference(apart.value, apart.standard_error, apart.n, sampled=True)
        noise_alone = rejected(by_noise)
        cells = {"level": level, "standard_error": error, "noise_alone": noise_alone}
        report.row("level", statistic=statistic, channel=channel, **cells)

    def types(statistic, channel, protocol, shares=EVEN):
        generator = keyed_generator(f"{statistic}, {channel}".encode())
        samples = [of_types(protocol, shares, config, generator) for _ in range(2)]
        row(statistic, channel, *samples)

    shares = workloads.prefix(TYPES).dense()
    for epsilon in (1.0, 4.0, 8.0):
        local = queries.choose(shares, config.users, epsilon).best
        types("share of types", f"local, epsilon = {epsilon:g}", local)
    curator = CentralFactorization(FactoredQueries.identity(shares), 1.0, DELTA)
    types("share of types", "curator", curator)
    box = domains.Box([0.0], [1.0])
    alone = mean.GaussianMean.tuned(box, epsilon=1.0, delta=DELTA)
    both = mean.GaussianCovariance.calibrated(box, alone.shape, epsilon=1.0, delta=DELTA)
    generator = keyed_generator(b"numbers")
    samples = [of_numbers(both, config, generator) for _ in range(2)]
    row("mean beside its variance", "curator", *(each.mean for each in samples))
    pairs = LocalFactorization.of(pairwise.unequal(TYPES), 8.0)
    types("equal pairs", "local, epsilon = 8", pairs, UNEVEN)
    samples = [of_numbers(alone, config, generator) for _ in range(2)]
    row("mean alone", "curator", *samples)
    values = torch.linspace(0, 1, TYPES, dtype=torch.float64)[None]
    curator = CentralFactorization(FactoredQueries.plain(values), 1.0, DELTA)
    types("mean of types alone", "curator", curator)


EXPERIMENT = Experiment(measure, Config(), Config(pairs=20, users=200))

if __name__ == "__main__":
    EXPERIMENT.main()
