"""How many files a reader passes who follows one call: ``python experiments/bench/walks.py``.

Each walk is a real call, traced. *Files* are those of torchdp whose functions ran, but for the floor (checks, random
numbers, memory and threads), which every call enters; *moves* count calls from one file into another; *bounce* is the
largest number of moves between the same two files, with the two. A warm-up makes caches, which a reader does not pass.
Below, the classes with the most bases to look up: of torchdp's in the order of resolution, the class itself included.
"""

import importlib
import inspect
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import torchdp
from torchdp import density, pairwise, secure, shuffle, simulate, sketching, training, workloads
from torchdp.brief import Brief
from torchdp.factorization import factorize
from torchdp.noise import SeededNoise

ROOT = Path(__file__).resolve().parents[2]
FLOOR = {
    "checks.py",
    "draws.py",
    "noise.py",
    "library.py",
    "randomness.py",
    "memory.py",
    "threads.py",
    "__init__.py",
}


def statistic() -> Callable[[], object]:
    protocol = pairwise.OneMessage(pairwise.unequal(5), 1.0)
    x = torch.arange(5).repeat(40)
    return lambda: protocol.estimate(x, noise=SeededNoise(1))


def densities() -> Callable[[], object]:
    features = density.GaussianOrthogonal(4, 1.5).draw(16, generator=torch.Generator().manual_seed(1))
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(2)).double()
    protocol = density.ShuffledKDE.calibrated(features, shuffle.PoissonSum, 200, 1.0, 1e-6)
    return lambda: protocol.estimate(x, noise=SeededNoise(1))


def sketch() -> Callable[[], object]:
    protocol = secure.SecureSketch(sketching.ones(40), 3, 1.0, 1.0, 1e-6)
    x = torch.rand(40, 3, dtype=torch.float64) / 2
    return lambda: protocol.estimate(x, noise=SeededNoise(1))


def factors() -> Callable[[], object]:
    W = workloads.prefix(32)
    return lambda: factorize(W)


def gradient() -> Callable[[], object]:
    x, y = torch.randn(80, 3), torch.randn(80, 1)
    plan = training.choose(workloads.prefix(8), 80, 10, epsilon=2.0, delta=1e-5).best
    run = plan.start(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss)
    steps = iter(run)

    def step() -> None:
        users = next(steps)
        run.backward(x[users], y[users])

    return step


def sweep() -> Callable[[], object]:
    def trial(generator: torch.Generator, size: int) -> torch.Tensor:
        return torch.rand(size, generator=generator)

    return lambda: simulate.run(trial, 1000, seed=1, progress=False)


WALKS = {
    "types -> OneMessage.estimate": statistic, "vectors -> ShuffledKDE.estimate": densities,
    "rows -> SecureSketch.estimate": sketch, "workload -> factorize": factors,
    "one gradient through a run": gradient, "trial -> simulate.run": sweep,
}  # fmt: skip


def traced(call: Callable[[], object]) -> tuple[set[str], Counter[tuple[str, str]]]:
    """The files of torchdp whose functions ran, and how often one called into another."""
    files: set[str] = set()
    moves: Counter[tuple[str, str]] = Counter()

    def name(frame: FrameType | None) -> str | None:
        path = Path(frame.f_code.co_filename) if frame else None
        if path is None or path.name in FLOOR:
            return None
        for top in (ROOT / "torchdp", ROOT / "kernels"):
            if path.is_relative_to(top):
                return str(path.relative_to(top))
        return None

    def see(frame: FrameType, event: str, _: Any) -> None:
        here = name(frame) if event == "call" else None
        if here is None:
            return
        files.add(here)
        caller = frame.f_back
        while caller is not None and name(caller) is None:
            caller = caller.f_back
        there = name(caller)
        if there is not None and there != here:
            moves[min(here, there), max(here, there)] += 1

    call()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files, moves


def ancestors() -> dict[str, list[str]]:
    """Each class of the library by its full name: torchdp's classes among its ancestors, itself first.

    Without ``Brief``, from which a class has nothing but the way in which it prints itself.
    """
    for room in pkgutil.iter_modules(torchdp.__path__):
        if room.name != "__main__":
            importlib.import_module(f"torchdp.{room.name}")
    loaded = [module for name, module in sys.modules.items() if name.startswith("torchdp.")]
    kinds = {each for module in loaded for each in vars(module).values() if inspect.isclass(each)}
    return {
        f"{each.__module__}.{each.__qualname__}": [
            kind.__name__ for kind in each.__mro__ if kind.__module__.startswith("torchdp.") and kind is not Brief
        ]
        for each in kinds
        if each.__module__.startswith("torchdp.")
    }


def main(arguments: list[str]) -> None:
    print(f"{'walk':32} files moves bounce")
    for title, prepare in WALKS.items():
        files, moves = traced(prepare())
        pair, bounce = moves.most_common(1)[0] if moves else (("", ""), 0)
        print(f"{title:32} {len(files):5} {moves.total():5} {bounce:6}  {' / '.join(pair)}", flush=True)
        if "--files" in arguments:
            print("   ", *sorted(files))
    deepest = sorted(ancestors().values(), key=lambda names: (-len(names), names))
    for names in deepest if "--classes" in arguments else deepest[:3]:
        print(len(names), *names)


if __name__ == "__main__":
    main(sys.argv[1:])
