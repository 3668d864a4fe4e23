"""What a crowd behind a shuffler adds to 15 local randomizers, beside what epsilon alone says; one
message or many.

Paper: Balle, Bell, Gascon, Nissim (2019), the privacy blanket; Feldman, McMillan, Talwar (2023),
the clones' pair and
    closed form.
Command:  OMP_NUM_THREADS=1 python experiments/shuffle/amplification.py
Expected, at delta = 1e-6 (to 1 %): randomized response of 64 types at epsilon_0 = 4, n = 1e4:
.2703, where the clones'
    pair says .4108 and their closed form .958; optimized unary encoding at 8, n = 1e4: 1.843, where
    the clones say 8. A guarantee takes at most .1 CPU-seconds; of two types, whose exact pairs are
    followed, 2. Choice, at epsilon = 1, n = 1e4: variance of one count of 64 even types 73.3 by one
    message of 6 bits, 33.2 by bounded sums of bits in 128 messages, 35.1 of a curator, all by
    ``queries.choose``; squared error of a mean of 32 dimensions .00070 by one message (PrivUnit),
    .000224 by sums of numbers rounded to 4 levels, .000023 of a curator.
Output: results/shuffle/amplification/{epsilons,choice}.csv; printed: ``experiments/bench/
    amplification_cpu.txt``. Columns of epsilons are by n; "clones" is
    what epsilon_0 alone says, "closed" their closed form (epsilon_0 where it says nothing);
    "seconds": CPU, longest. choice: a histogram of types held evenly, variance of one count in
    users squared; the mean of unit vectors, E |error|^2, rounding at its most; messages of one
    user, the local epsilon that one spends.
Artifact: - | amplification by shuffling
Status: own bound; the closed form is as published
Time: one to two minutes on one core; --smoke in seconds.
"""

import math
import time
from dataclasses import dataclass

import torch

from torchdp import workloads
from torchdp.privacy import gaussian_sigma
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Objective
from torchdp.queries import choose
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    ShiftStrategy,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.shuffle import Amplified, BoundedSum, PoissonSum, Sensitivity
from torchdp.shuffle.amplified import blanket_delta, least_epsilon
from torchdp.simulate import Experiment

DELTA = 1e-6
TYPES = {
    "randomized response": RandomizedResponse,
    "subsets": SubsetSelection,
    "Hadamard": HadamardResponse,
    "optimized unary": OptimizedUnaryEncoding,
    "symmetric unary": SymmetricUnaryEncoding,
}


@dataclass(frozen=True)
class Config:
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    users: tuple[int, ...] = (100, 1_000, 10_000, 100_000, 1_000_000)
    tables: bool = True  # optimised strategies too
    choice: tuple[tuple[int, float, int, int], ...] = (  # users, epsilon, types, dimensions
        (1_000, 1.0, 64, 32),
        (10_000, 0.5, 64, 32),
        (10_000, 1.0, 16, 8),
        (10_000, 1.0, 64, 32),
        (10_000, 1.0, 256, 128),
        (10_000, 4.0, 64, 32),
        (100_000, 1.0, 64, 32),
    )


def kinds(tables):
    """Fifteen randomizers, of a local epsilon."""
    for name, kind in TYPES.items():
        for k in (2, 4, 64, 1024) if kind is RandomizedResponse else (64, 1024):
            yield f"{name} {k}", lambda e, kind=kind, k=k: kind(k, e)
    for dim in (32, 256):
        yield f"PrivUnit {dim}", lambda e, dim=dim: PrivUnit(dim, e)
    if tables:
        prefix = workloads.prefix(64).dense()
        drawn = lambda: torch.Generator().manual_seed(0)  # noqa: E731
        yield (
            "shifts for prefix sums 64",
            lambda e: ShiftStrategy.tuned(prefix, e, generator=drawn()),
        )


def closed(epsilon, n):
    """The closed form of Feldman, McMillan, Talwar (2023); epsilon where it says nothing."""
    growth, log = math.expm1(epsilon), math.log(4 / DELTA)
    if growth + 2 > n / (8 * math.log(2 / DELTA)):
        return epsilon
    return min(epsilon, math.log1p(growth * (4 * math.sqrt(2 * log / ((growth + 2) * n)) + 4 / n)))


def clones(epsilon, n):
    """Of the pair that epsilon alone says."""
    blanket = Blanket.unknown(epsilon)
    return least_epsilon(lambda at: blanket_delta(blanket, at, n), DELTA, epsilon)


def epsilons(config, report):
    for local in config.epsilons:
        for name, of in (("closed", closed), ("clones", clones)):
            row = {str(n): of(local, n) for n in config.users}
            report.row("epsilons", local=local, randomizer=name, **row, seconds=0.0)
        for name, kind in kinds(config.tables):
            client, row, longest = kind(local), {}, 0.0
            for n in config.users:
                start = time.process_time()
                row[str(n)] = Amplified(client, n, DELTA).guarantee.epsilon
                longest = max(longest, time.process_time() - start)
            report.row("epsilons", local=local, randomizer=name, **row, seconds=longest)


def histograms(n, epsilon, k):
    """(protocol, messages of a user, local epsilon, variance of the count of a type that n/k users
    hold).
    """
    even = torch.ones(k, dtype=torch.float64)
    asked = workloads.identity(k)
    trusted = {"objective": Objective.MEAN, "trust": "curator", "prior": even}
    for one in choose(asked, n, epsilon, DELTA, **trusted).candidates:
        crowd, alone = one.protocol, math.inf
        messages = getattr(crowd, "messages_per_user", 0.0)
        if isinstance(crowd, Amplified):
            messages, alone = 1.0, crowd.client.guarantee.epsilon
        yield one.name, messages, alone, (n * one.error) ** 2


def vectors(n, epsilon, dim):
    """(protocol, messages of a user, local epsilon, E |error|^2 of the mean of n unit vectors)."""
    crowd = Amplified.calibrated(lambda e: PrivUnit(dim, e), n, epsilon, DELTA)
    yield "PrivUnit", 1.0, crowd.client.epsilon, crowd.client.squared_error(1.0) / n
    for sums in (PoissonSum, BoundedSum):
        # numbers from 0 to 4
        law = sums.calibrated(n, epsilon, DELTA, Sensitivity(dim, change=16.0, largest=4.0))
        noise = 4 * dim * float(law.variance(torch.tensor([n / 2]))) / 16 / n**2
        yield (
            sums.__name__,
            dim * (law.messages_per_user + 3),
            math.inf,
            noise + 4 / 16 / n * dim / 4,
        )
    yield "a curator", 0.0, math.inf, dim * (gaussian_sigma(epsilon, DELTA, 2.0) / n) ** 2


def measure(config, report):
    torch.set_num_threads(1)
    epsilons(config, report)
    for n, epsilon, *sizes in config.choice:
        for question, of, size in zip(
            ("histogram", "mean"), (histograms, vectors), sizes, strict=True
        ):
            for name, messages, alone, error in of(n, epsilon, size):
                facts = {"messages": messages, "local": alone, "error": error}
                report.row(
                    "choice",
                    n=n,
                    epsilon=epsilon,
                    question=question,
                    size=size,
                    protocol=name,
                    **facts,
                )


EXPERIMENT = Experiment(
    measure, Config(), Config((4.0,), (100, 10_000), False, ((10_000, 1.0, 64, 32),))
)

if __name__ == "__main__":
    EXPERIMENT.main()
