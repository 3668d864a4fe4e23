"""Monte Carlo over any callable, block by block."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tqdm.auto import tqdm

from torchdp.checks import function
from torchdp.simulate.blocks import Asked, Block, Gathering, Part, Sampler, run_block
from torchdp.simulate.moments import Measured, Moments
from torchdp.simulate.streams import canonical
from torchdp.simulate.workers import Jobs, answers


@dataclass(frozen=True)
class Result(Measured):
    """What :func:`run` found.

    metrics: the moments of each number by its name, "value" where it has none, ``moments`` those of the first;
    blocks: how many of them count; seconds: wall time inside those blocks;
    reached_target: whether the target was met, None where none was set.
    """

    metrics: Mapping[str, Moments]
    blocks: int
    seconds: float
    reached_target: bool | None


def run(
    trial: Sampler,
    trials: int | None,
    seed: int,
    *,
    config: Mapping[str, object] | None = None,
    block_size: int = 1024,
    target_relative_ci: float | None = None,
    device: torch.device | str | None = None,
    devices: Sequence[torch.device | str] | None = None,
    executor: Any = None,
    progress: bool | None = None,
) -> Result:
    """The moments of ``trials`` independent samples of ``trial``.

    Block b holds samples b * block_size up to (b + 1) * block_size and draws from
    ``block_generator(seed, config, b, device)``; the blocks are merged in order. On one model of device and
    one version of torch the moments depend on (trial, trials, seed, config, block_size) and nothing else, but
    where the trial itself changes with the number of CPU threads, as decompositions do in their last bits: a worker
    of ``devices`` has one thread, this process may have more (OMP_NUM_THREADS).

    Args:
        trial: ``trial(generator, size)`` returns (size,) independent samples, for example squared errors, or a mapping
            or named tuple of such by name: the first is what the target is about; the mean of a bool one is a share.
        trials: how many samples, >= 1; None: as many as the target needs.
        seed: run seed, >= 0.
        config: what tells this stream from that of another configuration; see ``streams.canonical``.
        block_size: samples in a block, >= 1; only the last block may be shorter.
        target_relative_ci: stop at the first block boundary at which half the width of the 95 % interval
            over abs(mean) is at most this. With blocks of few samples it stops too early too often.
        device: where the generators live, in this process; for None torch's default device.
        devices: instead of ``device``: a worker process for each, such as ``["cuda:0", "cuda:1"]``, all of one kind.
            A script calls this under ``if __name__ == "__main__":``.
        executor: instead of ``devices``: any ``concurrent.futures.Executor``, a ``dask.distributed.Client`` or its
            ``get_executor()``. Its workers have torchdp and the modules of the trial; ``device`` is theirs (a GPU a
            worker: "cuda"). It stays open, and what dies in it is its own to do again.
        progress: show a bar; None shows one on a terminal only.

    Raises:
        TypeError, ValueError: bad arguments, or samples of another shape, NaN or infinite, with their block.
        RuntimeError: a trial in a worker raised something else. ChildProcessError: two workers died in one block.

    Source: the stopping rule is that of Chow and Robbins 1965, for relative width Nadas 1969, looked at on
    block boundaries; its coverage tends to 95 % as the target tends to 0.
    """
    function("trial", trial)
    given = {} if config is None else config
    canonical(given)
    asked = Asked(trials, seed, block_size, target_relative_ci)
    blocks: Gathering[Part] = asked.gathering({})

    class Blocks(Jobs[Block]):
        def next(self, previous: Block | None) -> Block | None:
            key = blocks.hand_out()
            return None if key is None else Block(asked.seed, given, *key)

    parts = answers("trial", partial(run_block, trial), Blocks(), device, devices, executor)
    with progress_bar(trials, progress) as bar, closing(parts):
        for block, part in parts:
            blocks.take_back(block.index, block.size, part)
            bar.update(blocks.moments.count - bar.n)
            if blocks.finished:
                break
    met = None if target_relative_ci is None else blocks.reached
    return Result(blocks.metrics, blocks.blocks, blocks.seconds, met)


def progress_bar(total: int | None, progress: bool | None) -> tqdm:
    """A bar that counts samples; ``progress=None`` is silent where stderr is not a terminal."""
    return tqdm(total=total, unit="trial", unit_scale=True, disable=None if progress is None else not progress)
