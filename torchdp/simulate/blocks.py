"""Monte Carlo over any callable: blocks of samples, the order in which they count, ``run``."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchdp import checks
from torchdp.simulate.moments import Measured, Moments, merge_all, same_numbers
from torchdp.simulate.streams import block_generator, canonical

# Trials where no number is set: more than anybody runs, yet a number that sizes are computed of.
MANY = 10**15
# The name of a number that has none, as stores and tables show it.
PLAIN = "value"
# On a CPU torch raises a plain RuntimeError, which its words alone tell from a trial's own.
NO_MEMORY = "can't allocate memory"
Samples = Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]
Sampler = Callable[[torch.Generator, int], Samples]
"""``sampler(generator, size)``: ``size`` independent samples, drawn from ``generator`` alone.

Of one number, (size,), or of several: a mapping or a named tuple of tensors (size,), bool where a
share is asked for.
"""


@dataclass(frozen=True)
class Block:
    """``size`` samples that draw from ``block_generator(seed, config, index, device)``."""

    seed: int
    config: Mapping[str, object]
    index: int
    size: int

    def __str__(self) -> str:
        return f"block {self.index} of seed {self.seed}, config {canonical(self.config)}"

    def generator(self, device: torch.device) -> torch.Generator:
        """Fresh, at the start of the block's stream."""
        return block_generator(self.seed, self.config, self.index, device)


@dataclass(frozen=True)
class Part(Measured):
    """The moments of one block, and the wall time inside it."""

    metrics: Mapping[str, Moments]
    seconds: float


def run_block(trial: Sampler, block: Block, device: torch.device) -> Part:
    """What ``trial`` gives in one block, tried once more, caches emptied, when memory runs out.

    Raises TypeError, ValueError, MemoryError that name the block.
    """
    start = time.perf_counter()
    samples: Samples | None = None
    # A generator of its own for each try: the second draws what the first was to draw.
    for again in (False, True):
        try:
            samples = trial(block.generator(device), block.size)
            break
        except (MemoryError, RuntimeError) as error:
            kinds = MemoryError | torch.OutOfMemoryError
            if not isinstance(error, kinds) and NO_MEMORY not in str(error):
                raise
            if again:
                raise MemoryError(
                    f"{block} does not fit into the memory of {device}: {error}; "
                    "take a smaller block_size (with a store of its own) or fewer workers; "
                    "finished blocks are kept"
                ) from None
        # Outside of the handler, whose traceback keeps the trial's tensors alive.
        gc.collect()
        if device.type == "cuda":
            # What was freed stays in torch's cache, in pieces that a large tensor may not fit into.
            torch.cuda.empty_cache()
    metrics: dict[str, Moments] = {}
    for name, values in _named(samples, block).items():
        try:
            metrics[name] = Moments.of(values)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"trial returned unusable samples in {block}: {name}: {error}"
            ) from error
    return Part(metrics, time.perf_counter() - start)


def _named(samples: object, block: Block) -> dict[str, Tensor]:
    """The samples of each number, by name. Raises TypeError, ValueError."""
    given = samples
    if isinstance(samples, Tensor):
        given = {PLAIN: samples}
    elif hasattr(samples, "_asdict"):
        given = samples._asdict()
    if (
        not isinstance(given, Mapping)
        or not given
        or not all(isinstance(name, str) for name in given)
    ):
        raise TypeError(
            "trial must return a torch.Tensor, or a mapping or a named tuple of such, "
            f"not {type(samples).__name__} ({block})"
        )
    for name, values in given.items():
        if not isinstance(values, Tensor):
            raise TypeError(
                f"{name} of a trial must be a torch.Tensor, not {type(values).__name__} ({block})"
            )
        if values.shape != (block.size,):
            shape = tuple(values.shape)
            raise ValueError(
                f"{name} of a trial must have shape ({block.size},), not {shape} ({block})"
            )
    return dict(given)


def block_sizes(trials: int, block_size: int) -> Iterator[tuple[int, int]]:
    """(block index, samples in it) for each block of ``trials`` samples."""
    for block, start in enumerate(range(0, trials, block_size)):
        yield block, min(block_size, trials - start)


F = TypeVar("F", bound=Measured)


class Gathering(Measured, Generic[F]):
    """Blocks of one configuration: handed out in order, taken back in any, merged in order.

    It ends at the first boundary that reaches the target, or with the last block. Blocks beyond
    that boundary, which somebody may have run ahead, are not merged. metrics, blocks and seconds:
    of the merged ones.
    """

    def __init__(
        self,
        trials: int,
        block_size: int,
        target: float | None,
        known: Mapping[tuple[int, int], F],
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.metrics: Mapping[str, Moments] = {}
        self.blocks = 0
        self.seconds = 0.0
        self._target = target
        self._back = dict(known)
        # The same blocks twice: _due in the order in which they count, _out as they are run.
        self._due = block_sizes(trials, block_size)
        self._next = next(self._due, None)
        self._out = self._unknown(block_sizes(trials, block_size), shard, known)
        self._known: Mapping[str, Moments] = {}  # of a block that is there
        # All that is stored, also beyond the target: a trial that has changed must not go unseen.
        for block in known.values():
            self.check(block)
        self._merge()

    @staticmethod
    def _unknown(
        keys: Iterator[tuple[int, int]], shard: tuple[int, int], known: Mapping[tuple[int, int], F]
    ) -> Iterator[tuple[int, int]]:
        own, count = shard
        for key in keys:
            # Every count-th block, so that shards are equally long to within one block.
            if key[0] % count == own and key not in known:
                yield key

    def hand_out(self) -> tuple[int, int] | None:
        """(index, size) of the next block that nobody has run; None when no more are needed."""
        return None if self.finished else next(self._out, None)

    def check(self, block: F) -> None:
        """Raises ValueError where a block measures other numbers than those before it."""
        self._known = self._known or block.metrics
        same_numbers(self._known, block.metrics)

    def take_back(self, index: int, size: int, block: F) -> None:
        """Merges ``block`` as soon as all blocks before it are there; once."""
        self.check(block)
        # What is merged already, or comes after the end, is dropped: a block counts once.
        if self._next is not None and index >= self._next[0]:
            self._back[index, size] = block
            self._merge()

    def give_up(self) -> None:
        """No further block is handed out or merged."""
        self._next = None

    @property
    def finished(self) -> bool:
        """Whether no block is needed any more."""
        return self._next is None

    @property
    def reached(self) -> bool:
        """Whether the 95 % interval of the mean is as narrow as the target."""
        return self._target is not None and self.moments.relative_half_width(0.95) <= self._target

    def _merge(self) -> None:
        # In order, whoever was first: merging is not associative in the last bit, and where a
        # target stops must not depend on who was fast.
        while self._next in self._back:
            block = self._back.pop(self._next)
            self.metrics = merge_all(self.metrics, block.metrics)
            self.blocks += 1
            self.seconds += block.seconds
            # The target is looked at on every boundary, so that blocks run ahead change nothing.
            self._next = None if self.reached else next(self._due, None)


class Asked:
    """How much of each configuration; shard: (i, n), of which every n-th block.

    Raises TypeError, ValueError.
    """

    def __init__(
        self,
        trials: int | None,
        seed: int,
        block_size: int,
        target: float | None,
        shard: tuple[int, int] | None = None,
    ) -> None:
        if trials is None and target is None:
            raise ValueError(
                "trials=None means as many as target_relative_ci needs: give that, or a number"
            )
        self.trials = MANY if trials is None else checks.integer("trials", trials, 1)
        self.seed = checks.integer("seed", seed, 0, 2**256)
        self.block_size = checks.integer("block_size", block_size, 1)
        self.target = None if target is None else checks.positive("target_relative_ci", target)
        self.shard = _shard(shard)
        if shard is not None and target is not None:
            raise ValueError(
                "shard and target_relative_ci exclude each other: a shard does not see when the "
                "others suffice; let the sweeps share one store instead"
            )

    def facts(self) -> dict[str, object]:
        """For a store: plain values."""
        return {**vars(self), "shard": None if self.shard is None else list(self.shard)}

    def gathering(self, stored: Mapping[tuple[int, int], F]) -> Gathering[F]:
        return Gathering(self.trials, self.block_size, self.target, stored, self.shard or (0, 1))


def _shard(shard: object) -> tuple[int, int] | None:
    if shard is None:
        return None
    if not isinstance(shard, tuple) or len(shard) != 2:
        raise TypeError(f"shard must be a pair (i, n) such as (0, 4), not {shard!r}")
    # The number of shards first: the index lies below it.
    count = checks.integer("shard[1]", shard[1], 1)
    index = checks.integer("shard[0]", shard[0], 0, count - 1)
    return index, count


@dataclass(frozen=True)
class Result(Measured):
    """What :func:`run` found.

    metrics: the moments of each number by its name, "value" where it has none, ``moments`` those of
    the first; blocks: how many of them count; seconds: wall time inside those blocks;
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
    progress: bool | None = None,
) -> Result:
    """The moments of ``trials`` independent samples of ``trial``.

    Block b holds samples b * block_size up to (b + 1) * block_size and draws from
    ``block_generator(seed, config, b, device)``; the blocks are merged in order. On one model of
    device and one version of torch the moments depend on (trial, trials, seed, config, block_size)
    and nothing else, but where the trial itself changes with the number of CPU threads
    (OMP_NUM_THREADS), as decompositions do in their last bits.

    Args:
        trial: ``trial(generator, size)`` returns (size,) independent samples, for example squared
            errors, or a mapping or named tuple of such by name: the first is what the target is
            about; the mean of a bool one is a share.
        trials: how many samples, >= 1; None: as many as the target needs.
        seed: run seed, >= 0.
        config: what tells this stream from that of another configuration; see
            ``streams.canonical``.
        block_size: samples in a block, >= 1; only the last block may be shorter.
        target_relative_ci: stop at the first block boundary at which half the width of the 95 %
            interval over abs(mean) is at most this. With blocks of few samples it stops too early
            too often.
        device: where the generators live, in this process; for None torch's default device.
        progress: show a bar; None shows one on a terminal only.

    Raises:
        TypeError, ValueError: bad arguments, or samples of another shape, NaN or infinite, with
            their block; and what the trial raises.

    Source: the stopping rule is that of Chow and Robbins 1965, for relative width Nadas 1969,
    looked at on block boundaries; its coverage tends to 95 % as the target tends to 0.
    """
    checks.function("trial", trial)
    given = {} if config is None else config
    # Refuses, before any work, a configuration that no stream can be named after.
    canonical(given)
    asked = Asked(trials, seed, block_size, target_relative_ci)
    blocks: Gathering[Part] = asked.gathering({})
    here = checks.device("device", torch.get_default_device() if device is None else device)
    with progress_bar(trials, progress) as bar:
        while True:
            key = blocks.hand_out()
            if key is None:
                break
            part = run_block(trial, Block(asked.seed, given, *key), here)
            blocks.take_back(*key, part)
            bar.update(part.moments.count)
    reached = None if target_relative_ci is None else blocks.reached
    return Result(blocks.metrics, blocks.blocks, blocks.seconds, reached)


def progress_bar(total: int | None, progress: bool | None) -> tqdm:
    """A bar that counts samples; ``progress=None`` is silent where stderr is not a terminal."""
    return tqdm(
        total=total,
        unit="trial",
        unit_scale=True,
        # tqdm's None: silent where its file is no terminal.
        disable=None if progress is None else not progress,
    )
