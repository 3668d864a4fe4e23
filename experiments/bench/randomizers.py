"""Speed of the randomizers beside the floor of drawing their normals, in one run.

Command:  python experiments/bench/randomizers.py
Floor: a per-user PrivUnitG message of dimension d needs d + 1 normals, so the floor is torch.randn of that many;
    randomized response needs two uniforms for each user. The aggregate path needs d normals and one
    eigendecomposition whatever the number of users.
Output: medians by torch.utils.benchmark, as a table and as randomizers_<device>.json beside this file. Machines are
    noisy: compare ratios, not seconds.
Time: about 30 s; --smoke in seconds (writes nothing).
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from torchdp.randomizers import PrivUnitG, RandomizedResponse
from torchdp.randomness import keyed_generator

DIM, USERS, EPSILON = 256, 20_000, 1.0


def median(run: Callable[[], object], seconds: float) -> float:
    """Median seconds of one call."""
    return Timer("run()", globals={"run": run}).blocked_autorange(min_run_time=seconds).median


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--smoke", action="store_true")
    options = arguments.parse_args()
    device, seconds = torch.device(options.device), 0.05 if options.smoke else 2.0
    generator = keyed_generator(b"bench", device)
    rows = []
    for dtype in (torch.float32, torch.float64):
        settings = {"dtype": dtype, "device": device}
        points = torch.randn(USERS, DIM, generator=generator, **settings)
        points /= points.norm(dim=1, keepdim=True) * 1.01
        randomizer = PrivUnitG(DIM, EPSILON)
        floor = median(lambda s=settings: torch.randn(USERS, DIM + 1, generator=generator, **s), seconds)
        ours = median(lambda r=randomizer, p=points: r.sample(p, generator=generator), seconds)
        rows.append((f"PrivUnitG.sample d={DIM} {str(dtype)[6:]}", USERS / ours, ours / floor))

    points = points[:DIM].double()
    counts = torch.full((DIM,), 10**9 // DIM, device=device)
    ours = median(lambda: randomizer.sample_sum(points, counts, generator=generator), seconds)
    rows.append((f"PrivUnitG.sample_sum d={DIM}, 1e9 users", float(counts.sum()) / ours, None))

    response = RandomizedResponse(1024, EPSILON)
    types = torch.randint(1024, (USERS * 50,), device=device, generator=generator)
    floor = median(
        lambda: torch.rand(2, len(types), dtype=torch.float64, device=device, generator=generator), seconds
    )
    ours = median(lambda: response.sample(types, generator=generator), seconds)
    rows.append(("RandomizedResponse.sample k=1024", len(types) / ours, ours / floor))
    counts = torch.full((1024,), 10**9 // 1024, device=device)
    ours = median(lambda: response.sample_reports(counts, generator=generator), seconds)
    rows.append(("RandomizedResponse.sample_reports k=1024, 1e9 users", float(counts.sum()) / ours, None))

    print(f"{'operation':<54}{'users/s':>12}{'time / floor':>14}")
    for name, rate, ratio in rows:
        print(f"{name:<54}{rate:>12.3g}{'' if ratio is None else format(ratio, '.2f'):>14}")
    if not options.smoke:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"
        facts = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
        result = [{"operation": n, "users_per_second": r, "time_over_floor": q} for n, r, q in rows]
        path = Path(__file__).parent / f"randomizers_{device.type}.json"
        path.write_text(json.dumps({**facts, "results": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
