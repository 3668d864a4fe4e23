"""``torchdp sweep``: the grid of an experiment script."""

import argparse
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torchdp import checks, simulate
from torchdp.simulate import Experiment, Sampler, Trial


def sweep(options: argparse.Namespace) -> int:
    """Measures what the store lacks, then writes the table and the figures from the store's rows."""
    experiment = load(options.experiment, options.smoke)
    folder = Path(options.out or f"results/{experiment.name}")
    trials = experiment.trials if options.trials is None else checks.integer("--trials", options.trials, 1)
    store = folder / "results.jsonl"
    if options.draw_only:
        wanted = {simulate.canonical(config) for config in experiment.grid}
        rows = [
            row
            for row in simulate.read(store)
            if (row.seed, row.block_size) == (options.seed, experiment.block_size)
            and simulate.canonical(row.config) in wanted
        ]
        if not rows:
            raise ValueError(f"{store} holds no row of this grid and seed; run without --draw-only first")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        there = Script(str(Path(options.experiment).resolve()), options.smoke)
        rows = simulate.sweep(
            there if options.devices is not None else experiment.make_trial,
            experiment.grid,
            trials=trials,
            seed=checks.integer("--seed", options.seed, 0),
            store=store,
            block_size=experiment.block_size,
            target_relative_ci=options.target_relative_ci,
            device=checks.device("--device", options.device),
            devices=options.devices.split(",") if options.devices is not None else None,
        )
    table = folder / "results.csv"
    simulate.write_csv(rows, table)
    for path in (store, table, *experiment.draw(rows, folder)):
        print(path)
    return 0


def load(path: str, smoke: bool) -> Experiment:
    """``experiment(smoke)`` of the script at ``path``. Raises ValueError, OSError."""
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"{path} is not a Python script; name one under experiments/")
    spec = importlib.util.spec_from_file_location(f"experiment_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be loaded as a Python script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "experiment", None)):
        raise ValueError(f"{path} defines no experiment(smoke); see experiments/pairwise/error_vs_n.py")
    made = module.experiment(smoke)
    if not isinstance(made, Experiment):
        raise ValueError(f"{path}: experiment(smoke) must return a torchdp.simulate.Experiment")
    return made


@dataclass(frozen=True)
class Script:
    """``make_trial`` of a script that each worker process loads for itself, once."""

    path: str
    smoke: bool

    def __call__(self, config: dict[str, Any]) -> Trial | Sampler:
        return _loaded(self.path, self.smoke).make_trial(config)


@cache
def _loaded(path: str, smoke: bool) -> Experiment:
    return load(path, smoke)
