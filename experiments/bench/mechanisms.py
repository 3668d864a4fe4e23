"""All mechanisms in one table: what each promises, of what it speaks, what its arithmetic costs, how fast users speak.

Each at about epsilon = 1 (and delta = 1e-6), 16 types or numbers a user. ``users_a_second``: of ``randomize``, what
users send, or for a curator of ``collect``, from checked data to the release; the best of three runs, one thread.
``bits_delta``: what of delta pays for the distance between the law that is drawn and the theorem's: 0 for INTEGER, none
is stated for REAL.

Command:  python experiments/bench/mechanisms.py | tee experiments/bench/mechanisms_cpu.txt
Expected: INTEGER for frequency oracles, strategies and signs; ROUNDED, with bits_delta below 1e-27, for vectors,
    curators, shuffled sums and densities, and secure sums on a CPU; REAL elsewhere.
Output: results/bench/mechanisms/mechanisms.csv
Artifact: - | every mechanism's guarantee in bits
Status: agrees
Time: about a minute; --smoke for fewer users takes seconds.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import (
    density,
    domains,
    factorization,
    mean,
    pairwise,
    queries,
    randomizers,
    regression,
    secure,
    shuffle,
    sketching,
    workloads,
)
from torchdp.draws import Simulated
from torchdp.noise import SeededNoise
from torchdp.privacy import Arithmetic, Guarantee
from torchdp.protocol import Protocol
from torchdp.simulate import Experiment, Report

K, EPSILON, DELTA = 16, 1.0, 1e-6
Entry = tuple[Protocol, Tensor]


@dataclass(frozen=True)
class Config:
    users: int = 20_000


FULL, SMOKE = Config(), Config(200)


def of_types(x: Tensor) -> Iterator[Entry]:
    yield randomizers.RandomizedResponse(K, EPSILON), x
    yield randomizers.HadamardResponse(K, EPSILON), x
    yield randomizers.SubsetSelection(K, EPSILON), x
    yield randomizers.OptimizedUnaryEncoding(K, EPSILON), x
    yield randomizers.SymmetricUnaryEncoding(K, EPSILON), x
    eye = torch.eye(K, dtype=torch.float64)
    yield randomizers.StrategyMatrix((1 + (math.e - 1) * eye) / (math.e + K - 1)), x
    yield randomizers.ShiftStrategy(torch.arange(K)[None] < 3, torch.ones(1), K, EPSILON), x
    W = workloads.prefix(K)
    factored = queries.FactoredQueries.of(W, factorization.factorize(W))
    yield queries.LocalOracle(W, randomizers.HadamardResponse(K, EPSILON)), x
    yield queries.LocalFactorization.calibrated(factored, epsilon=EPSILON), x
    yield queries.CentralFactorization(factored, EPSILON, DELTA), x
    yield queries.CentralFactorization(queries.FactoredQueries.tree(W), EPSILON, DELTA), x
    statistic = pairwise.absolute_difference(K)
    yield pairwise.OneMessage(statistic, EPSILON), x
    yield pairwise.TwoMessage(statistic, EPSILON), x
    yield pairwise.SubsetPairs(statistic, EPSILON), x
    yield pairwise.RandomizedResponsePlugIn(statistic, EPSILON), x
    yield pairwise.TwoRound(statistic, EPSILON, EPSILON / 2), x
    yield regression.SecureHistogram(len(x), K, EPSILON), x


def of_vectors(x: Tensor) -> Iterator[Entry]:
    n, d = x.shape
    yield randomizers.PrivUnit(d, EPSILON), x
    yield randomizers.DuchiJordanWainwright(1, EPSILON), x[:, :1]
    yield randomizers.GaussianVector(d, EPSILON, delta=DELTA), x
    ball = domains.lp_ball(d, 2.0, 1.0)
    shape = domains.round_shape(ball, 2.0)
    yield mean.LocalMean.calibrated(ball, shape, epsilon=EPSILON), x
    yield mean.GaussianMean.calibrated(ball, shape, epsilon=EPSILON, delta=DELTA), x
    yield mean.GaussianCovariance.calibrated(ball, shape, epsilon=EPSILON, delta=DELTA), x
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    features = density.GaussianFourier(d, 1.0).draw(8, generator=generator)
    yield density.ShuffledKDE.calibrated(features, shuffle.PoissonSum, n, EPSILON, DELTA), x
    yield density.CentralKDE.calibrated(features, n, EPSILON, DELTA), x
    yield secure.SecureSketch(sketching.ones(n), d, 1.0, EPSILON, DELTA), x
    yield regression.GramRelease(n, d, 1.0, EPSILON, DELTA), x
    yield regression.LocalRows(d, 1.0, EPSILON, DELTA), x


def of_numbers(x: Tensor) -> Iterator[Entry]:
    n = len(x)
    bits, law = x > 0, {"users": n, "epsilon": EPSILON, "delta": DELTA, "instances": K}
    for kind in (shuffle.RandomizedResponseSum, shuffle.PoissonSum, shuffle.NegativeBinomialSum):
        yield shuffle.BitSums(kind.calibrated(**law), K, DELTA, EPSILON), bits


def bits_delta(promise: Guarantee) -> float | None:
    """(1 + e^epsilon) times the total variation distance; 0 for integers, None for real numbers."""
    if promise.arithmetic is Arithmetic.REAL:
        return None
    return (1 + math.exp(promise.epsilon)) * promise.variation


def users_a_second(protocol: Protocol, x: Tensor) -> float:
    speak: Callable[..., object] = getattr(protocol, "randomize", protocol.collect)
    best = math.inf
    for seed in range(4):  # the first one makes the tables
        noise, start = SeededNoise(seed), time.perf_counter()
        speak(x, noise=noise)
        best = min(best, time.perf_counter() - start) if seed else best
    return len(x) / best


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    draws = Simulated(torch.Generator(torch.get_default_device()).manual_seed(0))
    vectors = draws.normal((config.users, K))
    vectors /= 1.000001 * vectors.norm(dim=1, keepdim=True)
    types, numbers = draws.below(K, (config.users,)), draws.below(2, (config.users, K))
    for protocol, x in (*of_types(types), *of_vectors(vectors), *of_numbers(numbers)):
        promise = protocol.guarantee
        delta = bits_delta(promise)
        parts = (getattr(protocol, name, None) for name in ("client", "law"))
        law = next((each for each in parts if isinstance(each, Protocol | shuffle.BitLaw)), None)
        report.row(
            "mechanisms", room=type(protocol).__module__.split(".")[1],
            mechanism=type(protocol).__name__ + (f" of {type(law).__name__}" if law else ""),
            arithmetic=promise.arithmetic.name, guarantee=str(promise),
            bits_delta="not stated" if delta is None else f"{delta:.2g}",
            users_a_second=float(f"{users_a_second(protocol, x):.2g}"),
            messages="each user's" if hasattr(protocol, "randomize") else "none",
        )  # fmt: skip


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
