"""Bad arguments of run and sweep are named, before any work."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import worker_trials as trials
from worker_trials import GRID, SETTINGS

from torchdp.simulate import Trial, run, sweep

THREADS = ThreadPoolExecutor(1)


def facts(value):
    return lambda config: Trial(torch.rand, {"p": value})


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"trial": 3}, TypeError, "trial must be a function, not int"),
    ({"trials": 0}, ValueError, "trials"), ({"trials": 1.5}, ValueError, "trials"),
    ({"block_size": 0}, ValueError, "block_size"), ({"seed": -1}, ValueError, "seed"),
    ({"target_relative_ci": 0.0}, ValueError, "target_relative_ci"),
    ({"trials": None}, ValueError, "as many as target_relative_ci needs"),
    ({"devices": []}, ValueError, "devices must be a list"),
    ({"devices": "cpu"}, ValueError, "devices must be a list"),
    ({"devices": 2}, ValueError, "devices must be a list"),
    ({"devices": ["abacus"]}, ValueError, "devices must be of torch"),
    ({"devices": [None]}, ValueError, "devices must be of torch"),
    ({"devices": ["cpu", "meta"]}, ValueError, "of one kind"),
    ({"devices": ["meta"]}, ValueError, "devices must hold data"),
    ({"device": "abacus"}, ValueError, "device must be a device of this machine"),
    ({"device": "meta"}, ValueError, "device must hold data"),
    ({"devices": ["cuda:99"]}, ValueError, r"CUDA device\(s\) are available"),
    ({"devices": ["cpu"], "device": "meta"}, ValueError, "devices excludes device"),
    ({"executor": THREADS, "devices": ["cpu"]}, ValueError, "excludes device and executor"),
    ({"executor": 3}, TypeError, "concurrent.futures.Executor or a dask"),
])  # fmt: skip
def test_of_run(arguments, error, words):
    with pytest.raises(error, match=words):
        run(**{"trial": trials.squared_error, "trials": 10, "seed": 0, **arguments})


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"make_trial": 3}, TypeError, "make_trial must be a function"),
    ({"grid": [*GRID, dict(GRID[0])]}, ValueError, "twice"),
    ({"other_code": "keep"}, TypeError, "other_code"), ({"on_error": True}, TypeError, "on_error"),
    ({"make_trial": facts(math.nan)}, ValueError, r"facts\['p'\]"),
    ({"make_trial": facts(torch.tensor(1.0))}, TypeError, r"facts\['p'\]"),
    ({"trials": None}, ValueError, "target_relative_ci"),
    ({"shard": (2, 2)}, ValueError, r"shard\[0\]"), ({"shard": (0, 0)}, ValueError, r"shard\[1\]"),
    ({"shard": 3}, TypeError, "pair"),
    ({"shard": (0, 2), "target_relative_ci": 0.1}, ValueError, "share one store"),
])  # fmt: skip
def test_of_sweep(tmp_path, arguments, error, words):
    how = {"make_trial": trials.make_trial, "grid": GRID, "store": tmp_path / "s.jsonl", **SETTINGS}
    with pytest.raises(error, match=words):
        sweep(**how | arguments)
    assert trials.block_lines(tmp_path / "s.jsonl") == []
