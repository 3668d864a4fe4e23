"""Trials that worker processes load by name; each draws what ``make_trial`` draws."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchdp.simulate import Row, Trial
from torchdp.simulate.blocks import Samples
from torchdp.simulate.streams import block_generator

# blocks of each process
done: Counter[int] = Counter()
GRID: list[dict[str, Any]] = [{"n": n, "name": name} for n in (10, 100) for name in ("a", "b")]
SETTINGS: dict[str, Any] = {"trials": 250, "seed": 7, "block_size": 100}


def make_trial(config: dict[str, Any]) -> Trial:
    def sample(generator: torch.Generator, size: int) -> torch.Tensor:
        drawn = torch.randn(
            size,
            generator=generator,
            dtype=torch.float64,
            device=generator.device,
        )
        return drawn.square() / config["n"]

    return Trial(sample, {"predicted_mse": 1 / config["n"]})


def several(config: dict[str, Any]) -> Trial:
    """What ``make_trial`` draws, with two numbers more."""
    one = make_trial(config)

    def sample(generator: torch.Generator, size: int) -> dict[str, torch.Tensor]:
        error = one.sample(generator, size)
        assert isinstance(error, torch.Tensor)
        return {
            "squared error": error,
            "coverage": error < 4 / config["n"],
            "bias": error.sqrt(),
        }

    return Trial(sample, one.facts)


def before_block(config: dict[str, Any], index: int, act) -> Trial:
    """``make_trial`` that calls ``act`` before one block of this configuration."""
    trial = make_trial(config)

    def sample(generator: torch.Generator, size: int) -> Samples:
        if generator.initial_seed() == block_generator(7, config, index).initial_seed():
            act()
        return trial.sample(generator, size)

    return Trial(sample, trial.facts)


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def divide_by_zero() -> None:
    raise ZeroDivisionError("a planted error")


def dying(config: dict[str, Any]) -> Trial:
    return before_block(config, 1, kill_this_process) if config == GRID[2] else make_trial(config)


def failing(config: dict[str, Any]) -> Trial:
    return before_block(config, 2, divide_by_zero) if config == GRID[3] else make_trial(config)


def never(config: dict[str, Any]) -> Trial:
    raise AssertionError(f"nothing was left to run, yet a trial was made for {config}")


def results(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Everything but the wall time and the code."""
    return [
        (str(row.config), row.metrics, str(row.facts), row.seed, row.block_size, row.error)
        for row in rows
    ]


def block_lines(store: Path) -> list[bytes]:
    """The lines of a store that hold blocks."""
    lines = store.read_bytes().splitlines() if store.exists() else []
    return [line for line in lines if b'"kind":"block"' in line]


# seconds for what must come, on a machine that does other things too
PATIENCE = 600


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def late_first_block(store: Path, count: int, config: dict[str, Any]) -> Trial:
    """The first block waits until others have put more than ``count`` into the store."""
    return before_block(config, 0, lambda: wait_until(lambda: len(block_lines(store)) > count))


def slow(
    folder: Path,
    seconds: float,
    most: int,
    config: dict[str, Any],
) -> Trial:
    """``make_trial`` that takes its time and leaves its process number in ``folder``; it hangs
    after ``most``.
    """
    trial = make_trial(config)

    def sample(generator: torch.Generator, size: int) -> Samples:
        (folder / f"{os.getpid()}.pid").touch()
        done[os.getpid()] += 1
        alone = done[os.getpid()] <= most
        time.sleep(seconds if alone else PATIENCE)
        return trial.sample(generator, size)

    return Trial(sample, trial.facts)


for same in (dying, failing, late_first_block, never, slow):
    # their numbers are its own
    same.__wrapped__ = make_trial


def poisoned(generator: torch.Generator, size: int) -> torch.Tensor:
    bad = generator.initial_seed() == block_generator(7, {}, 1).initial_seed()
    return torch.full((size,), float("nan") if bad else 1.0)


def leaving(generator: torch.Generator, size: int) -> torch.Tensor:
    sys.exit(3)


def squared_error(generator: torch.Generator, size: int) -> torch.Tensor:
    return torch.randn(
        size, generator=generator, dtype=torch.float64, device=generator.device
    ).square()


def large_sum(generator: torch.Generator, size: int) -> torch.Tensor:
    """It depends on the default dtype and, in its last bits, on the number of threads."""
    return torch.randn(1_000_000, generator=generator).sum().expand(size)
