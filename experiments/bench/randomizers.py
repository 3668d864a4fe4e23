"""Speed of the randomizers beside the floor of drawing their normals, plain numpy and a published code, in one run.

Command:  python experiments/bench/randomizers.py --projunit PATH
    PATH: a checkout of github.com/apple/ml-projunit (Asi et al. 2023, the authors' code), measured as it is, one user
    at a time; without it that row says so.
Per user: each of 1e5 users draws a message of dimension 256, and the messages are added up. Floor: torch.randn of
    the 257 normals that a message needs; randomized response needs two uniforms for each user.
Aggregate: the sum over 1e9 users drawn at once (for PrivUnit, whose cost grows with the users, over 1e6).
Expected: every user's PrivUnitG message takes 1.1 to 1.3 times as long as as many float64 normals by torch.randn; words
    of the cipher 0.92 to 0.99 of the time of a generator's.
Output: medians over rounds in which every operation runs once (torch.utils.benchmark, one thread), so that a slow
    minute slows them all; results/bench/randomizers/randomizers.csv. Compare ratios, not seconds.
Artifact: Asi et al. (2023); peers | speed
Status: on a CPU
Time: about 2 minutes; --smoke in seconds (few users, one round).
"""

import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.utils.benchmark import Timer

from torchdp.draws import Simulated
from torchdp.noise import Noise, SeededNoise
from torchdp.protocol import Crowd
from torchdp.randomizers import (
    BallRandomizer,
    DuchiJordanWainwright,
    HadamardResponse,
    OptimizedUnaryEncoding,
    PointRelease,
    PrivUnit,
    PrivUnitG,
    ProjUnit,
    RandomizedResponse,
    SubsetSelection,
)
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

DIM, EPSILON, AT_ONCE = 256, 1.0, 4096


@dataclass(frozen=True)
class Config:
    device: str = "cpu"
    projunit: Path | None = None
    users: int = 100_000
    values: int = 10**6  # users of the oracles
    rounds: int = 9


FULL = Config()
SMOKE = Config(users=2_000, values=50_000, rounds=1)


@dataclass(frozen=True)
class Operation:
    """What is timed: a name, the number of users it serves, a call, and the name of its floor."""

    name: str
    users: int
    run: Callable[[], object]
    floor: str | None = None


def times_of(operations: list[Operation], rounds: int) -> list[tuple[str, float, float | None]]:
    """(name, users per second, time for each user over its floor's) from medians over the rounds."""
    times: dict[str, list[float]] = {operation.name: [] for operation in operations}
    for operation in operations:
        operation.run()  # tables and caches
    for _ in range(rounds):
        for operation in operations:
            timer = Timer("run()", globals={"run": operation.run}, num_threads=1)
            times[operation.name].append(timer.timeit(1).median)
    cost = {operation.name: statistics.median(times[operation.name]) / operation.users for operation in operations}
    return [
        (o.name, 1 / cost[o.name], None if o.floor is None else cost[o.name] / cost[o.floor]) for o in operations
    ]


def randomise_and_sum(randomizer: BallRandomizer, points: Tensor, noise: Noise) -> Tensor:
    """The sum of all users' messages, some users at a time, as a protocol adds them up."""
    total = torch.zeros(DIM, dtype=torch.float64, device=points.device)
    for some in points.split(AT_ONCE):
        total += randomizer.tally(randomizer.randomize(some, noise=noise))["sum"]
    return total


def spoken(randomizer: BallRandomizer, points: Tensor) -> Tensor:
    """Users who speak: few where each message decomposes a projection of its own."""
    return points[:100] if isinstance(randomizer, ProjUnit) else points


def plain_numpy(randomizer: PrivUnitG, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """PrivUnitG with the lift as one would write it down: all users at once, the inverse CDF for tau."""
    tau, users = randomizer.tau, len(points)
    upper = rng.random(users) < tau.upper
    tail = 1 - rng.random(users)
    along = np.where(upper, -ndtri(tail * tau.survival), ndtri(tail * (1 - tau.survival)))
    normals, lift = rng.standard_normal(points.shape), rng.standard_normal(users)
    height = np.sqrt(np.maximum(0, 1 - (points**2).sum(1)))
    shift = along - (normals * points).sum(1) - lift * height
    return ((normals + shift[:, None] * points) / tau.threshold).sum(0)


def published(path: Path | None, points: np.ndarray) -> Callable[[], object] | None:
    """PrivUnitG of ml-projunit for these users, and their sum; None without a checkout. It takes unit vectors only."""
    if path is None:
        return None
    sys.path.insert(0, str(path))
    import PrivUnitAlgs as peer

    p = peer.priv_unit_G_get_p(EPSILON)
    gamma, sigma = peer.get_gamma_sigma(p, EPSILON)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    return lambda: sum(peer.PrivUnitG(x, EPSILON, p, gamma, sigma) for x in unit)


def vectors(config: Config, generator: torch.Generator) -> list[Operation]:
    """Messages of dimension 256."""
    operations = []
    users, device = config.users, torch.device(config.device)
    noise = SeededNoise(1, device)
    best, exact, projected = PrivUnitG(DIM, EPSILON), PrivUnit(DIM, EPSILON), ProjUnit(DIM, EPSILON, k=64)
    hemisphere, release = DuchiJordanWainwright(DIM, EPSILON), PointRelease(DIM, EPSILON)
    for dtype in (torch.float32, torch.float64):
        name, like = str(dtype)[6:], {"dtype": dtype, "device": device, "generator": generator}
        points = torch.randn(users, DIM, **like)
        points /= points.norm(dim=1, keepdim=True) * 1.01
        floor = f"torch.randn d={DIM} {name}"
        operations.append(Operation(floor, users, partial(torch.randn, users, DIM + 1, **like), floor))
        operations.append(
            Operation(f"normals d={DIM} {name}", users, partial(noise.normal, tuple(points.shape), dtype), floor)
        )
        sample = partial(best.randomize, points, noise=noise)
        operations.append(Operation(f"PrivUnitG.randomize d={DIM} {name}", users, sample, floor))
        for kind in (best, exact, projected, hemisphere, release):
            some = spoken(kind, points)
            run = partial(randomise_and_sum, kind, some, noise)
            operations.append(Operation(f"{type(kind).__name__} randomise and sum, {name}", len(some), run, floor))
    for kind in (
        best,
        exact,
        projected,
        hemisphere,
        release,
    ):  # float64 points; words of a generator, of the cipher
        label, some = f"{type(kind).__name__}, words of", spoken(kind, points)
        operations.append(
            Operation(f"{label} a generator", len(some), partial(kind.speak, some, Simulated(generator)), floor)
        )
        run = partial(kind.speak, some, Noise(device))
        operations.append(Operation(f"{label} the system's cipher", len(some), run, f"{label} a generator"))
    if device.type == "cpu":
        run = partial(plain_numpy, best, points.numpy(), np.random.default_rng(0))
        operations.append(Operation("PrivUnitG in plain numpy, float64", users, run, floor))
        peer = published(config.projunit, points[:500].numpy())
        if peer is not None:
            operations.append(Operation("ml-projunit PrivUnitG, float64", 500, peer, floor))
    for kind, n in ((best, 10**9), (release, 10**9), (exact, 10**6), (hemisphere, 10**6), (projected, 10**6)):
        counts = torch.full((DIM,), n // DIM, device=device)
        run = partial(kind.sample_tally, Crowd(points[:DIM], counts), generator=generator)
        operations.append(
            Operation(f"{type(kind).__name__}.sample_tally d={DIM}, {n:.0e} users", int(counts.sum()), run)
        )
    return operations


def values(config: Config, generator: torch.Generator) -> list[Operation]:
    """Reports of one value in 1024."""
    device, users = torch.device(config.device), config.values
    response = RandomizedResponse(1024, EPSILON)
    types = torch.randint(1024, (users,), device=device, generator=generator)
    uniforms = partial(torch.rand, 2, users, dtype=torch.float64, device=device, generator=generator)
    counts = torch.full((1024,), 10**9 // 1024, device=device)
    reports = partial(response.sample_tally, counts, generator=generator)
    floor = "torch.rand of 2 float64"
    oracles = [
        kind(1024, EPSILON)
        for kind in (RandomizedResponse, HadamardResponse, OptimizedUnaryEncoding, SubsetSelection)
    ]
    sources = []
    for oracle in oracles:
        some, label = types[:20_000], f"{type(oracle).__name__} k=1024, words of"
        plain = partial(oracle.speak, some, Simulated(generator))
        private = partial(oracle.speak, some, Noise(device))
        sources.append(Operation(f"{label} a generator", len(some), plain, f"{label} a generator"))
        sources.append(Operation(f"{label} the system's cipher", len(some), private, f"{label} a generator"))
    return [
        *sources,
        Operation(floor, users, uniforms, floor),
        Operation(
            "RandomizedResponse.randomize k=1024",
            users,
            partial(response.randomize, types, noise=SeededNoise(2, device)),
            floor,
        ),
        Operation("RandomizedResponse.sample_tally k=1024, 1e9 users", int(counts.sum()), reports),
    ]


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    device = torch.device(config.device)
    generator = keyed_generator(b"bench", device)
    for name, rate, ratio in times_of(vectors(config, generator) + values(config, generator), config.rounds):
        report.row("randomizers", operation=name, users_per_s=rate, time_over_floor=ratio)
    if config.projunit is None:
        report.say("ml-projunit PrivUnitG: not measured; give --projunit PATH")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"
    report.say(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}")


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
