"""How the time of a call grows with the number of users, types, dimensions or steps.

Command:  python experiments/bench/growth.py [--least 0.25]
What: each call at a few sizes, the median processor time of one thread of three calls at least, and
    for ``least`` seconds; the exponent between two sizes is log(time ratio)/log(size ratio).
Expected: exponents of 1.03 at most in users, below .05 in steps and in the users of a calibration;
    ``choose`` takes .45 seconds at most up to 32 types and 2.9 at 128, .22 without searches
    (growth_cpu.txt).
Output: results/bench/growth/growth.csv: call, what grows, size, seconds, exponent since the size
    before.
Artifact: - | speed
Status: agrees
Time: a minute of one core; --smoke in ten seconds.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchdp import pairwise, privacy, queries, randomizers, regression, shuffle, workloads
from torchdp.factorization import factorize
from torchdp.noise import Noise
from torchdp.simulate import Experiment

USERS = (10_000, 100_000, 1_000_000)
TYPES = (8, 16, 32, 64, 128)
Call = Callable[[], object]
FRESH = itertools.count(1)


@dataclass(frozen=True)
class Config:
    least: float = 0.25
    sizes: int = 5  # of each call, at most


def fresh() -> float:
    """An epsilon near 1 that was not asked for before: nothing is remembered of it."""
    return 1 + 1e-6 * next(FRESH)


def types(n, k):
    return torch.arange(n, device="cpu") % k


def estimate(protocol, x) -> Call:
    noise = Noise("cpu")
    return lambda: protocol.estimate(x, noise=noise)


def vectors(n, k):
    question = pairwise.absolute_difference(k)
    return estimate(queries.LocalFactorization.of(question, 1.0), types(n, k))


def subsets(n, k):
    return estimate(randomizers.SubsetSelection(k, 1.0), types(n, k))


def points(d):
    rows = torch.ones(5000, d, dtype=torch.float64, device="cpu") / math.sqrt(d)
    return estimate(randomizers.PrivUnit(d, 4.0), rows)


def gram(n, d):
    rows = torch.full((n, d + 1), 1 / (d + 1), dtype=torch.float64, device="cpu")
    return estimate(regression.GramRelease(n, d, 1.0, 1.0, 1e-6, label_bound=1.0), rows)


def factors(k):
    W = workloads.prefix(k).dense()
    return lambda: factorize(W, p=math.inf)


def poisson(users):
    return lambda: shuffle.PoissonSum.calibrated(users, fresh(), 1e-6, 16)


def sampled(steps):
    return lambda: privacy.sampled_guarantee(fresh(), 0.01, steps, 1e-5)


def choice(question, search=True):
    return lambda: queries.choose(question, 100_000, fresh(), search=search)


# Name, what grows, the call of a size, sizes.
CALLS = (
    ("LocalFactorization of pairs", "users", lambda n: vectors(n, 16), USERS),
    ("LocalFactorization of pairs", "types", lambda k: vectors(10_000, k), (16, 64, 256)),
    ("SubsetSelection", "users", lambda n: subsets(n, 16), USERS),
    ("SubsetSelection", "types", lambda k: subsets(20_000, k), (16, 128, 1024)),
    ("PrivUnit", "dimensions", points, (32, 128, 512)),
    ("GramRelease", "users", lambda n: gram(n, 10), USERS),
    ("GramRelease", "dimensions", lambda d: gram(20_000, d), (16, 64, 128)),
    ("factorize of prefix sums", "types", factors, (32, 128, 512)),
    ("PoissonSum.calibrated", "users", poisson, (1000, 10**5, 10**7)),
    ("sampled_guarantee", "steps", sampled, (100, 1000, 10_000)),
    ("choose of prefix sums", "types", lambda k: choice(workloads.prefix(k)), TYPES),
    ("choose of pairs", "types", lambda k: choice(pairwise.absolute_difference(k)), TYPES),
    (
        "choose of pairs, search=False",
        "types",
        lambda k: choice(pairwise.absolute_difference(k), search=False),
        TYPES,
    ),
)


def seconds(call: Call, least: float) -> float:
    """The median of three calls at least, after one."""
    call()
    spent: list[float] = []
    begun = time.perf_counter()
    while len(spent) < 3 or time.perf_counter() - begun < least:
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return statistics.median(spent)


def measure(config, report):
    torch.set_num_threads(1)
    for name, what, make, sizes in CALLS:
        before = None
        for size in sizes[: config.sizes]:
            spent = seconds(make(size), config.least)
            exponent = None
            if before is not None:
                exponent = math.log(spent / before[1]) / math.log(size / before[0])
            report.row("growth", call=name, grows=what, size=size, seconds=spent, exponent=exponent)
            before = (size, spent)


EXPERIMENT = Experiment(measure, Config(), Config(least=0.0, sizes=2))

if __name__ == "__main__":
    EXPERIMENT.main()
