"""The unit of work: a block of samples, and the order in which blocks count."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from torchdp.checks import integer, positive
from torchdp.simulate.moments import Moments, merge
from torchdp.simulate.streams import block_generator, canonical

MANY = 10**15  # trials, where no number is set
Sampler = Callable[[torch.Generator, int], Tensor]
"""``sampler(generator, size)``: ``size`` independent samples, shape (size,), drawn from ``generator`` alone."""


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


class Finished(Protocol):
    """What a finished block leaves; ``seconds`` is the wall time inside it."""

    @property
    def moments(self) -> Moments: ...

    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Part:
    """The moments of one block, and the seconds it took."""

    moments: Moments
    seconds: float


def run_block(trial: Sampler, block: Block, device: torch.device) -> Part:
    """What ``trial`` gives in one block. Out of memory, it is tried once more, with all caches emptied.

    Raises TypeError, ValueError, MemoryError that name the block.
    """
    start = time.perf_counter()
    try:
        samples = trial(block.generator(device), block.size)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        samples = None
    if samples is None:  # outside the handler, whose traceback keeps the trial's tensors
        samples = _again(trial, block, device)
    if not isinstance(samples, Tensor):
        raise TypeError(f"trial must return a torch.Tensor, not {type(samples).__name__} ({block})")
    if samples.shape != (block.size,):
        raise ValueError(f"trial must return shape ({block.size},), not {tuple(samples.shape)} ({block})")
    try:
        moments = Moments.of(samples)
    except (TypeError, ValueError) as error:
        raise type(error)(f"trial returned unusable samples in {block}: {error}") from error
    return Part(moments, time.perf_counter() - start)


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _again(trial: Sampler, block: Block, device: torch.device) -> Tensor:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        return trial(block.generator(device), block.size)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        hint = "take a smaller block_size (with a store of its own) or fewer workers; finished blocks are kept"
        raise MemoryError(f"{block} does not fit into the memory of {device}: {error}; {hint}") from None


def block_sizes(trials: int, block_size: int) -> Iterator[tuple[int, int]]:
    """(block index, samples in it) for each block of ``trials`` samples. Raises ValueError."""
    block_size = integer("block_size", block_size, 1)
    for block, start in enumerate(range(0, trials, block_size)):
        yield block, min(block_size, trials - start)


F = TypeVar("F", bound=Finished)


class Gathering(Generic[F]):
    """The blocks of one configuration: handed out in order, taken back in any order, merged in order.

    It ends at the first boundary that reaches the target, or with the last block. Blocks beyond that boundary,
    which somebody may have run ahead, are not merged. moments, blocks and seconds: of the merged ones;
    left: at most so many blocks are still to be handed out.
    """

    def __init__(
        self,
        trials: int,
        block_size: int,
        target: float | None,
        known: Mapping[tuple[int, int], F],
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.moments = Moments()
        self.blocks = 0
        self.seconds = 0.0
        stored = sum(
            0 <= index < -(-trials // block_size) and size == min(block_size, trials - index * block_size)
            for index, size in known
        )
        self.left = -(-trials // block_size) - stored
        self._target = target
        self._back = dict(known)
        self._due = block_sizes(trials, block_size)
        self._next = next(self._due, None)
        self._given: set[tuple[int, int]] = set()  # handed out, not back
        own, of = shard
        self._out = (key for key in block_sizes(trials, block_size) if key[0] % of == own and key not in known)
        self._merge()

    def hand_out(self) -> tuple[int, int] | None:
        """(index, size) of the next block that nobody has run; None when no more are needed, as far as is known now."""
        if self.finished or self._enough or (key := next(self._out, None)) is None:
            return None
        self.left -= 1
        self._given.add(key)
        return key

    def take_back(self, index: int, size: int, found: F) -> None:
        """Merges ``found`` as soon as all blocks before it are there; once."""
        self._given.discard((index, size))
        if self._next is not None and index >= self._next[0]:
            self._back[index, size] = found
            self._merge()

    def give_up(self) -> None:
        """No further block is handed out or merged."""
        self._next = None

    @property
    def finished(self) -> bool:
        """Whether no block is needed any more."""
        return self._next is None

    @property
    def _enough(self) -> bool:
        """Whether the blocks that are out should reach the target, by the variance so far and a tenth more."""
        if self._target is None or not self.blocks or not self._given:
            return False
        needed = 1.1 * self.blocks * (self.moments.relative_half_width(0.95) / self._target) ** 2
        return self.blocks + len(self._back) + len(self._given) >= needed

    @property
    def reached(self) -> bool:
        """Whether the 95 % interval of the mean is as narrow as the target asks; False without a target."""
        return self._target is not None and self.moments.relative_half_width(0.95) <= self._target

    def _merge(self) -> None:
        while self._next in self._back:
            found = self._back.pop(self._next)
            self.moments = merge(self.moments, found.moments)
            self.blocks, self.seconds = self.blocks + 1, self.seconds + found.seconds
            self._next = None if self.reached else next(self._due, None)


class Asked:
    """How much of each configuration. shard: (i, n), of which every n-th block. Raises TypeError, ValueError."""

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
                "trials=None means as many as target_relative_ci needs: give that, or a number of trials"
            )
        self.trials = MANY if trials is None else integer("trials", trials, 1)
        self.seed = integer("seed", seed, 0, 2**256)
        self.block_size = integer("block_size", block_size, 1)
        self.target = None if target is None else positive("target_relative_ci", target)
        self.shard = _shard(shard)
        if shard is not None and target is not None:
            raise ValueError(
                "shard and target_relative_ci exclude each other: a shard does not see when the others suffice; "
                "let the sweeps share one store instead"
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
    of = integer("shard[1]", shard[1], 1)
    return integer("shard[0]", shard[0], 0, of - 1), of
