"""One sum over many users, a block of users at a time, on one device or several."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchdp.checks import floating, function, integer
from torchdp.simulate.blocks import Block, block_sizes
from torchdp.simulate.engine import progress_bar
from torchdp.simulate.streams import canonical
from torchdp.simulate.workers import Jobs, Where, answers

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

UserSum = Callable[[torch.Generator, int, int], Tensor]
"""``part(generator, first, size)``: the sum over the users first .. first + size - 1, of one shape for all blocks."""


def total(
    part: UserSum,
    users: int,
    seed: int,
    *,
    config: Mapping[str, object] | None = None,
    block_size: int = 2**20,
    device: torch.device | str = "cpu",
    devices: Sequence[torch.device | str] | None = None,
    executor: Any = None,
    progress: bool | None = None,
) -> Tensor:
    """The sum over ``users`` users of one quantity, any shape, for one trial too large for one device or one call.

    sum over blocks b of part(block_generator(seed, config, b, device), b * block_size, size), added in order of b
    on the CPU: in int64 where the parts are integers, else in float64. What it depends on is said at
    :func:`torchdp.simulate.run`. Nothing is stored: the sum of a killed call is lost.

    Args:
        part: adds up its own users, drawing from the generator, or from the users' numbers where a kernel does.
        users: how many, >= 1.
        block_size: users in a block, >= 1; only the last block may be smaller.
        seed, config, device, devices, executor, progress: as in :func:`torchdp.simulate.run`.

    Raises:
        As :func:`torchdp.simulate.run` does; ValueError also where two sums differ in shape.
    """
    function("part", part)
    config = {} if config is None else config
    canonical(config)
    users, seed, block_size = (
        integer("users", users, 1),
        integer("seed", seed, 0),
        integer("block_size", block_size, 1),
    )
    blocks = (Block(seed, config, index, size) for index, size in block_sizes(users, block_size))

    class Blocks(Jobs[Block]):
        def next(self, previous: Block | None) -> Block | None:
            return next(blocks, None)

    found = answers("part", _Summed(part, block_size), Blocks(), Where(device, devices, executor))
    with progress_bar(users, progress, "user") as bar, closing(found):
        return reduce(_add, _in_order(found, bar))


def _in_order(found: Iterable[tuple[Block, np.ndarray]], bar: tqdm) -> Iterator[Tensor]:
    early: dict[int, Tensor] = {}  # came before their turn
    due = 0
    for block, summed in found:
        early[block.index] = torch.from_numpy(summed)
        bar.update(block.size)
        while (ready := early.pop(due, None)) is not None:
            yield ready
            due += 1


def _add(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape:
        raise ValueError(f"part must return one shape for all blocks, not {tuple(a.shape)} and {tuple(b.shape)}")
    return a + b


@dataclass(frozen=True)
class _Summed:
    part: UserSum
    block_size: int

    def __call__(self, block: Block, device: torch.device) -> np.ndarray:
        summed = self.part(block.generator(device), block.index * self.block_size, block.size)
        whole = isinstance(summed, Tensor) and summed.dtype in _WHOLE
        try:
            summed = summed if whole else floating("the sum that part returns", summed)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} ({block})") from error
        return summed.detach().to("cpu", torch.int64 if whole else torch.float64, copy=True).numpy()
