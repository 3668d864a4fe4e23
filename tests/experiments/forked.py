"""Scripts run in children of one process that has imported what they all import: two seconds saved for each."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

COMMON = ["numpy", "scipy.stats", "torch", "matplotlib.figure", "matplotlib.backends.backend_agg", "torchdp.cli"]
COMMON += [f"torchdp.{room}" for room in ("density", "factorization", "mean", "pairwise", "queries", "sketching")]


def run(arguments: list[str], output: Path, errors: Path) -> int | None:
    """Exit code of ``python *arguments`` (a script, or -m and a module), with its output in these two files."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(COMMON)
    child = context.Process(target=_main, args=(arguments, output, errors))
    child.start()
    child.join()
    return child.exitcode


def _main(arguments: list[str], output: Path, errors: Path) -> None:
    import torch

    torch.set_num_threads(1)  # small tensors: on a busy machine five times as fast
    for descriptor, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    sys.stdin = open(os.devnull)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
