"""Monte Carlo over any callable, block by block."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchdp.checks import integer, positive
from torchdp.simulate.moments import Moments, merge
from torchdp.simulate.streams import block_generator, canonical

Sampler = Callable[[torch.Generator, int], Tensor]
"""``sampler(generator, size)``: ``size`` independent samples, shape (size,), drawn from ``generator`` alone."""


@dataclass(frozen=True)
class Result:
    """What :func:`run` found.

    moments: of all the samples; blocks: how many were run; seconds: wall time inside the blocks;
    reached_target: whether the target was met, None where none was set.
    """

    moments: Moments
    blocks: int
    seconds: float
    reached_target: bool | None


def run(
    trial: Sampler,
    trials: int,
    seed: int,
    *,
    config: Mapping[str, object] | None = None,
    block_size: int = 1024,
    target_relative_ci: float | None = None,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
) -> Result:
    """The moments of ``trials`` independent samples of ``trial``.

    Block b holds samples b * block_size up to (b + 1) * block_size and draws from
    ``block_generator(seed, config, b, device)``; the blocks are merged in order. On one kind of device and
    one version of torch the moments depend on (trial, trials, seed, config, block_size) and nothing else.

    Args:
        trial: ``trial(generator, size)`` returns a tensor of shape (size,) of independent samples, for
            example squared errors.
        trials: how many samples, >= 1.
        seed: run seed, >= 0.
        config: what tells this stream from that of another configuration; see :func:`canonical`.
        block_size: samples in a block, >= 1; only the last block may be shorter.
        target_relative_ci: stop at the first block boundary at which half the width of the 95 % interval
            over abs(mean) is at most this. Take blocks of at least some hundred samples: a rule that looks
            at very few of them stops too early too often.
        device: where the generators live.
        progress: show a bar; None shows one on a terminal only.

    Raises:
        TypeError, ValueError: bad arguments, or samples of another shape, NaN or infinite; the message names
            the block.

    Source: the stopping rule is that of Chow and Robbins 1965, for relative width Nadas 1969, looked at on
    block boundaries; its coverage tends to 95 % as the target tends to 0.
    """
    config = {} if config is None else config
    canonical(config)
    trials = integer("trials", trials, 1)
    check_target(target_relative_ci)
    moments, blocks, seconds = Moments(), 0, 0.0
    with progress_bar(trials, progress) as bar:
        for block, size in block_sizes(trials, block_size):
            part, spent = run_block(trial, seed, config, block, size, device)
            moments, blocks, seconds = merge(moments, part), blocks + 1, seconds + spent
            bar.update(size)
            if reached(moments, target_relative_ci):
                break
    met = None if target_relative_ci is None else reached(moments, target_relative_ci)
    return Result(moments, blocks, seconds, met)


def run_block(
    trial: Sampler,
    seed: int,
    config: Mapping[str, object],
    block: int,
    size: int,
    device: torch.device | str = "cpu",
) -> tuple[Moments, float]:
    """The moments of one block, and the seconds it took. Raises TypeError, ValueError that name the block."""
    generator = block_generator(seed, config, block, device)
    start = time.perf_counter()
    samples = trial(generator, size)
    where = f"block {block} of seed {seed}, config {canonical(config)}"
    if not isinstance(samples, Tensor):
        raise TypeError(f"trial must return a torch.Tensor, not {type(samples).__name__} ({where})")
    if samples.shape != (size,):
        raise ValueError(f"trial must return shape ({size},), not {tuple(samples.shape)} ({where})")
    try:
        moments = Moments.of(samples)
    except (TypeError, ValueError) as error:
        raise type(error)(f"trial returned unusable samples in {where}: {error}") from error
    return moments, time.perf_counter() - start


def block_sizes(trials: int, block_size: int) -> Iterator[tuple[int, int]]:
    """(block index, samples in it) for each block of ``trials`` samples. Raises ValueError."""
    block_size = integer("block_size", block_size, 1)
    for block, start in enumerate(range(0, trials, block_size)):
        yield block, min(block_size, trials - start)


def check_target(target: float | None) -> None:
    """Raises ValueError unless ``target`` is None or a finite number > 0."""
    if target is not None:
        positive("target_relative_ci", target)


def reached(moments: Moments, target: float | None) -> bool:
    """Whether the 95 % interval of the mean is as narrow as ``target`` asks; False without a target."""
    return target is not None and moments.relative_half_width(0.95) <= target


def progress_bar(total: int, progress: bool | None) -> tqdm:
    """A bar that counts samples; ``progress=None`` is silent where stderr is not a terminal."""
    return tqdm(total=total, unit="trial", unit_scale=True, disable=None if progress is None else not progress)
