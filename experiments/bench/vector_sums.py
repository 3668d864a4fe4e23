"""Every user's own PrivUnitG or PrivUnit message, added up: ``collect`` beside what one would write, in one run.

Command:  OMP_NUM_THREADS=1 python experiments/bench/vector_sums.py [--device cuda]
What: n users in 100 types send float32 vectors of d numbers at epsilon = 1; all that is kept is their sum. Rows:
    collect; sample and decode_sum, some users at a time; PrivUnitG's formula in torch for all users at once, n x d in
    memory (while that is at most 2^26 numbers); the same in numpy (float64, in which it makes normals), some at a time;
    and the floor, torch.randn of the n (d + 1) normals alone, some at a time.
    Memory: by how much it grows at the highest, in a fresh process (on CUDA, what the allocator held at most).
    CUDA alone: normals per second inside the fused sums, in a kernel that only draws and stores them (kernels/normals),
    and of torch.randn; and the time for n = 1e9, d = 64 that the largest run's rate implies: an extrapolation.
Expected: collect's memory the same at every n; on one CPU thread PrivUnitG's collect within 1.7 times the floor.
Output: results/bench/vector_sums/*.csv: medians (torch.utils.benchmark, one thread). Machines are noisy: compare rows,
    not runs.
Artifact: - | speed and memory
Status: on a CPU; on a GPU not yet measured
Time: about five minutes on a CPU; --smoke in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from clock import peak_bytes, seconds
from scipy.special import ndtri
from torch import Tensor

from torchdp.kernels import normals
from torchdp.noise import Noise, SeededNoise
from torchdp.randomizers import BallRandomizer, PrivUnit, PrivUnitG
from torchdp.randomness import keyed_generator
from torchdp.simulate import Experiment, Report

EPSILON, TYPES, AT_ONCE, MOST_NUMBERS = 1.0, 100, 2**18, 2**26
Run = Callable[[], object]

SETUP = """
from torchdp.noise import SeededNoise
from torchdp.randomizers import PrivUnit, PrivUnitG
import sys
sys.path.insert(0, {path!r})
from vector_sums import at_once, block_by_block, people
from torchdp.randomness import keyed_generator
generator = keyed_generator(b"memory")
randomizer = {kind}({d}, 1.0)
points, counts = people({d}, {n}, torch.device("cpu"))
noise = SeededNoise.of(generator)
randomizer.hear_types(points, (counts > 0).long(), noise)
"""
STATEMENTS = {
    "collect": "randomizer.hear_types(points, counts, noise)",
    "sample, decode_sum": "block_by_block(randomizer, points, counts, noise)",
    "torch, n x d": "at_once(randomizer, points, counts, generator)",
}


def people(d: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points of the ball (TYPES, d), float32, and about n users spread over them: the same for every run."""
    x = torch.randn(TYPES, d, generator=keyed_generator(b"points"))
    counts = torch.full((TYPES,), n // TYPES)
    counts[: n % TYPES] += 1
    return (x / (1.01 * x.norm(dim=1, keepdim=True))).to(device), counts.to(device)


def block_by_block(randomizer: BallRandomizer, points: Tensor, counts: Tensor, noise: Noise) -> Tensor:
    """The messages of some users at a time, and their sum."""
    types = torch.arange(TYPES, device=points.device).repeat_interleave(counts)
    total = torch.zeros(randomizer.dim, dtype=torch.float64, device=points.device)
    for some in types.split(max(1, AT_ONCE // randomizer.dim)):
        total += randomizer.tally(randomizer.randomize(points[some], noise=noise))["sum"]
    return total


def at_once(randomizer: PrivUnitG, points: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """PrivUnitG as one would write it down, all users at once."""
    users = points.repeat_interleave(counts, 0)
    g = torch.randn(users.shape, device=points.device, generator=generator)
    lift = torch.randn(len(users), device=points.device, generator=generator)
    tau = randomizer.tau.sample((len(users),), generator=generator).float()
    height = (1 - users.square().sum(1)).clamp_min(0).sqrt()
    along = tau - (g * users).sum(1) - lift * height
    return (g + along[:, None] * users).sum(0, dtype=torch.float64) / randomizer.tau.threshold


def plain_numpy(
    randomizer: PrivUnitG, points: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The same in numpy, some users at a time."""
    tau, total, types = randomizer.tau, np.zeros(randomizer.dim), np.repeat(np.arange(TYPES), counts)
    for some in np.array_split(types, max(1, len(types) * randomizer.dim // AT_ONCE)):
        users, n = points[some], len(some)
        upper, tail = rng.random(n) < tau.upper, 1 - rng.random(n)
        along = np.where(upper, -ndtri(tail * tau.survival), ndtri(tail * (1 - tau.survival)))
        g, lift = rng.standard_normal(users.shape), rng.standard_normal(n)
        height = np.sqrt(np.maximum(0, 1 - (users**2).sum(1)))
        along -= (g * users).sum(1) + lift * height
        total += (g + along[:, None] * users).sum(0)
    return total / tau.threshold


def floor(d: int, n: int, device: torch.device, generator: torch.Generator) -> None:
    """The normals of n users, some at a time, thrown away."""
    rows = max(1, AT_ONCE // d if device.type == "cpu" else 2**28 // d)
    for first in range(0, n, rows):
        torch.randn(min(rows, n - first), d + 1, device=device, generator=generator)


def rows(d: int, n: int, device: torch.device) -> dict[str, Run]:
    """What is timed."""
    generator, (points, counts) = keyed_generator(b"sums", device), people(d, n, device)
    noise = SeededNoise(1, device)
    found: dict[str, Run] = {"normals alone": partial(floor, d, n, device, generator)}
    for kind in (PrivUnitG(d, EPSILON), PrivUnit(d, EPSILON)):
        name = type(kind).__name__
        found[f"{name} collect"] = partial(kind.hear_types, points, counts, noise)
        found[f"{name} sample, decode_sum"] = partial(block_by_block, kind, points, counts, noise)
    best = PrivUnitG(d, EPSILON)
    if n * d <= MOST_NUMBERS:
        found["PrivUnitG torch, n x d"] = partial(at_once, best, points, counts, generator)
    if device.type == "cpu":
        arrays = points.double().numpy(), counts.numpy()
        found["PrivUnitG numpy"] = partial(plain_numpy, best, *arrays, np.random.default_rng(0))
    return found


def memory(kind: str, statement: str, d: int, n: int, device: torch.device) -> float:
    """MB at the highest."""
    if device.type == "cpu":
        setup = SETUP.format(kind=kind, d=d, n=n, path=str(Path(__file__).parent))
        return peak_bytes(setup, STATEMENTS[statement]) / 2**20
    runs = rows(d, n, device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    runs[f"{kind} {statement}"]()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def rates(d: int, n: int, device: torch.device, least: float, report: Report) -> None:
    """On a GPU: how far the sums are from drawing normals and doing nothing else with them."""
    generator, at_most = keyed_generator(b"rates", device), 2**28
    some = min(n, at_most // d)
    sums = seconds(rows(d, n, device)["PrivUnitG collect"], least)
    drawn = seconds(lambda: normals.draws(1, some, d, device=device), least)
    torch_rate = some * d / seconds(lambda: torch.randn(some, d, device=device, generator=generator), least)
    report.row("rates", d=d, fused_sums=n * d / sums, drawn_and_stored=some * d / drawn, torch_randn=torch_rate)
    if d == 64:
        report.say(f"1e9 users at this rate (extrapolated from {n:.0e}): {sums * 1e9 / n:.2f} s")


@dataclass(frozen=True)
class Config:
    device: str = "cpu"
    sizes: tuple[int, ...] = (10**4, 10**5, 10**6)
    dims: tuple[int, ...] = (64, 256)
    least: float = 1.0  # seconds of runs


FULL = Config()
SMOKE = Config(sizes=(2_000,), dims=(64,), least=0.02)


def measure(config: Config, report: Report) -> None:
    torch.set_num_threads(1)
    device, least, dims = torch.device(config.device), config.least, config.dims
    sizes = [*config.sizes, *[10**8] * (device.type == "cuda" and config == FULL)]
    # Memory first: a child process starts with what this one holds as its highest.
    for kind, statement in (
        ("PrivUnitG", "collect"),
        ("PrivUnit", "collect"),
        ("PrivUnitG", "sample, decode_sum"),
        ("PrivUnitG", "torch, n x d"),
    ):
        for n in sizes:
            if statement != "torch, n x d" or n * dims[0] <= MOST_NUMBERS:
                grown = memory(kind, statement, dims[0], n, device)
                report.row("memory", path=f"{kind} {statement}", d=dims[0], n=n, MB=grown)
    report.say()
    for d in dims:
        for n in sizes:
            base = 0.0
            for name, run in rows(d, n, device).items():
                if n > 10**6 and "collect" not in name and "alone" not in name:
                    continue
                each = seconds(run, least) / n
                base = base or each
                speed = {"ns_per_user": 1e9 * each, "users_per_s": 1 / each, "over_floor": each / base}
                report.row("speed", path=name, d=d, n=n, **speed)
    if device.type == "cuda":
        for d in dims:
            rates(d, sizes[-1], device, least, report)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
