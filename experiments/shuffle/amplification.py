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

        def shifts(epsilon):
            generator = torch.Generator().manual_seed(0)
            return ShiftStrategy.tuned(prefix, epsilon, generator=generator)

        yield "shifts for prefix sums 64", shifts


def closed(epsilon, n):
    """The closed form of Feldman, McMillan, Talwar (2023); epsilon where it says nothing."""
    growth = math.expm1(epsilon)
    if growth + 2 > n / (8 * math.log(2 / DELTA)):
        return epsilon
    spread = 4 * math.sqrt(2 * math.log(4 / DELTA) / ((growth + 2) * n))
    return min(epsilon, math.log1p(growth * (spread + 4 / n)))


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
            client = kind(local)
            row = {}
            longest = 0.0
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
    for candidate in choose(asked, n, epsilon, DELTA, **trusted).candidates:
        protocol = candidate.protocol
        # a curator's user sends no message
        messages = getattr(protocol, "messages_per_user", 0.0)
        local = math.inf
        if isinstance(protocol, Amplified):
            messages = 1.0
            local = protocol.client.guarantee.epsilon
        yield candidate.name, messages, local, (n * candidate.error) ** 2


def vectors(n, epsilon, dim):
    """(protocol, messages of a user, local epsilon, E |error|^2 of the mean of n unit vectors)."""
    client = Amplified.calibrated(lambda e: PrivUnit(dim, e), n, epsilon, DELTA).client
    yield "PrivUnit", 1.0, client.epsilon, client.squared_error(1.0) / n
    for kind in (PoissonSum, BoundedSum):
        # numbers from 0 to 4 for coordinates from -1 to 1: half a unit is 1/4 in squares
        sums = kind.calibrated(n, epsilon, DELTA, Sensitivity(dim, change=16.0, largest=4.0))
        variance = float(sums.variance(torch.tensor([n / 2])))
        noise = 4 * dim * variance / 16 / n**2
        rounding = 4 / 16 / n * dim / 4
        yield kind.__name__, dim * (sums.messages_per_user + 3), math.inf, noise + rounding
    sigma = gaussian_sigma(epsilon, DELTA, 2.0) / n
    yield "a curator", 0.0, math.inf, dim * sigma**2


def measure(config, report):
    torch.set_num_threads(1)
    epsilons(config, report)
    for n, epsilon, types, dim in config.choice:
        for question, ways, size in (("histogram", histograms, types), ("mean", vectors, dim)):
            cells = {"n": n, "epsilon": epsilon, "question": question, "size": size}
            for name, messages, local, error in ways(n, epsilon, size):
                facts = {"messages": messages, "local": local, "error": error}
                report.row("choice", **cells, protocol=name, **facts)


EXPERIMENT = Experiment(
    measure, Config(), Config((4.0,), (100, 10_000), False, ((10_000, 1.0, 64, 32),))
)

if __name__ == "__main__":
    EXPERIMENT.main()
