"""Speed of the randomizers beside the floor of drawing their normals, plain numpy and a published code, in one run.

Command:  python experiments/bench/randomizers.py --projunit PATH
    PATH: a checkout of github.com/apple/ml-projunit (Asi et al. 2023, the authors' code), measured as it is, one user
    at a time; without it that row says so.
Per user: each of 1e5 users draws a message of dimension 256, and the messages are added up. Floor: torch.randn of
    the 257 normals that a message needs; randomized response needs two uniforms for each user.
Aggregate: the sum over 1e9 users drawn at once (for PrivUnit, whose cost grows with the users, over 1e6).
Output: medians by torch.utils.benchmark on one thread, as a table and as randomizers_<device>.json beside this file.
    Machines are noisy: compare ratios, not seconds.
Time: about 2 minutes; --smoke in seconds (few users, writes nothing).
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.utils.benchmark import Timer

from torchdp.randomizers import (
    BallRandomizer,
    DuchiJordanWainwright,
    PointRelease,
    PrivUnit,
    PrivUnitG,
    ProjUnit,
    RandomizedResponse,
)
from torchdp.randomness import keyed_generator

DIM, USERS, EPSILON, AT_ONCE = 256, 100_000, 1.0, 4096
Row = tuple[str, float, float | None]  # operation, users per second, time over the floor's


def median(run: Callable[[], object], seconds: float) -> float:
    """Median seconds of one call."""
    return Timer("run()", globals={"run": run}).blocked_autorange(min_run_time=seconds).median


def randomise_and_sum(randomizer: BallRandomizer, points: Tensor, generator: torch.Generator) -> Tensor:
    """The sum of all users' messages, some users at a time, as a protocol adds them up."""
    total = torch.zeros(DIM, dtype=torch.float64, device=points.device)
    for some in points.split(AT_ONCE):
        total += randomizer.decode_sum(randomizer.sample(some, generator=generator))
    return total


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
    """PrivUnitG of ml-projunit for these users, and their sum; None where it cannot be loaded."""
    if path is None or not (path / "PrivUnitAlgs.py").exists():
        return None
    sys.path.insert(0, str(path))
    try:
        import PrivUnitAlgs as peer
    except ImportError as error:
        print(f"ml-projunit does not load: {error}")
        return None
    p = peer.priv_unit_G_get_p(EPSILON)
    gamma, sigma = peer.get_gamma_sigma(p, EPSILON)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)  # it takes unit vectors only
    return lambda: sum(peer.PrivUnitG(x, EPSILON, p, gamma, sigma) for x in unit)


def vectors(options: argparse.Namespace, generator: torch.Generator, seconds: float) -> list[Row]:
    """Messages of dimension 256."""
    rows: list[Row] = []
    users = 5_000 if options.smoke else USERS
    device = torch.device(options.device)
    kinds = [PrivUnitG(DIM, EPSILON), PrivUnit(DIM, EPSILON), ProjUnit(DIM, EPSILON, k=64)]
    kinds += [DuchiJordanWainwright(DIM, EPSILON), PointRelease(DIM, EPSILON)]
    for dtype in (torch.float32, torch.float64):
        name = str(dtype)[6:]
        points = torch.randn(users, DIM, dtype=dtype, device=device, generator=generator)
        points /= points.norm(dim=1, keepdim=True) * 1.01
        floor = median(
            lambda d=dtype: torch.randn(users, DIM + 1, dtype=d, device=device, generator=generator), seconds
        )
        rows.append((f"drawing the normals, {name}", users / floor, 1.0))
        ours = median(lambda p=points: kinds[0].sample(p, generator=generator), seconds)
        rows.append((f"PrivUnitG.sample d={DIM} {name}", users / ours, ours / floor))
        for kind in kinds:
            ours = median(lambda k=kind, p=points: randomise_and_sum(k, p, generator), seconds)
            rows.append((f"{type(kind).__name__} randomise and sum, {name}", users / ours, ours / floor))
    if device.type == "cpu":
        plain, rng = points.numpy(), np.random.default_rng(0)
        theirs = median(lambda: plain_numpy(kinds[0], plain, rng), seconds)
        rows.append(("PrivUnitG in plain numpy, float64", users / theirs, theirs / floor))
        few = plain[:500]
        run = published(options.projunit, few)
        if run is None:
            rows.append(("ml-projunit PrivUnitG: not found (--projunit PATH)", math.nan, None))
        else:
            theirs = median(run, seconds)
            rows.append(("ml-projunit PrivUnitG, float64", len(few) / theirs, theirs / len(few) / (floor / users)))

    points, counts = points[:DIM].double(), torch.full((DIM,), 10**9 // DIM, device=device)
    for kind, n in ((kinds[0], 10**9), (kinds[4], 10**9), (kinds[1], 10**6), (kinds[3], 10**6), (kinds[2], 10**6)):
        counts = torch.full((DIM,), n // DIM, device=device)
        ours = median(lambda k=kind, c=counts: k.sample_sum(points, c, generator=generator), seconds)
        rows.append((f"{type(kind).__name__}.sample_sum d={DIM}, {n:.0e} users", float(counts.sum()) / ours, None))
    return rows


def values(options: argparse.Namespace, generator: torch.Generator, seconds: float) -> list[Row]:
    """Reports of one value in 1024."""
    device, users = torch.device(options.device), 50_000 if options.smoke else 10**6
    response = RandomizedResponse(1024, EPSILON)
    types = torch.randint(1024, (users,), device=device, generator=generator)
    floor = median(lambda: torch.rand(2, users, dtype=torch.float64, device=device, generator=generator), seconds)
    ours = median(lambda: response.sample(types, generator=generator), seconds)
    counts = torch.full((1024,), 10**9 // 1024, device=device)
    sums = median(lambda: response.sample_reports(counts, generator=generator), seconds)
    return [
        ("RandomizedResponse.sample k=1024", users / ours, ours / floor),
        ("RandomizedResponse.sample_reports k=1024, 1e9 users", float(counts.sum()) / sums, None),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--projunit", type=Path)
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    device, seconds = torch.device(options.device), 0.05 if options.smoke else 2.0
    generator = keyed_generator(b"bench", device)
    rows = vectors(options, generator, seconds) + values(options, generator, seconds)

    print(f"{'operation':<54}{'users/s':>12}{'time / floor':>14}")
    for name, rate, ratio in rows:
        print(f"{name:<54}{rate:>12.3g}{'' if ratio is None else format(ratio, '.2f'):>14}")
    if not options.smoke:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"
        facts = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
        result = [
            {"operation": n, "users_per_second": None if math.isnan(r) else r, "time_over_floor": q}
            for n, r, q in rows
        ]
        path = Path(__file__).parent / f"randomizers_{device.type}.json"
        path.write_text(json.dumps({**facts, "results": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
