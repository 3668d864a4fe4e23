"""A data set's rows for the batches of a run, read ahead by a ``DataLoader``."""

import copy
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from torchdp import checks
from torchdp.training.batches import Batches
from torchdp.training.sampled import SampledBatches

# by the plan; out of order a batch would be used for another step, and users would come back too soon
DECIDED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator", "in_order")


class PrefetchSampler(Sampler[list[int]]):
    """This process's part of the batches that are left, drawn before they are due: the given ones stay where they are.

    max_rows: batches are cut in parts of at most so many, equally many in every process; None: whole. counts: of each
    batch that was drawn this process's rows and its parts, 0 of an empty batch, which is handed out nonetheless.
    """

    def __init__(self, batches: Batches | SampledBatches, rank: int, ranks: int, max_rows: int | None) -> None:
        self.counts: deque[tuple[int, int]] = deque()
        self.max_rows = None if max_rows is None else checks.integer("max_rows", max_rows, 1)
        self._batches, self._rank, self._ranks = copy.copy(batches), rank, ranks

    def __iter__(self) -> Iterator[list[int]]:
        for users in self._batches if len(self._batches) else ():
            mine, most = users[self._rank :: self._ranks], -(-len(users) // self._ranks)
            rows = self.max_rows or max(most, 1)
            parts = -(-most // rows)
            self.counts.append((len(mine), parts))
            for start in range(0, max(parts, 1) * rows, rows):
                yield mine[start : start + rows]


class Collate:
    """The rows of a batch by ``collate``; of an empty batch what it makes of one row, less that row."""

    def __init__(self, data: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self.data, self.collate = data, collate

    def __call__(self, rows: list[Any]) -> Any:
        return self.collate(rows) if len(rows) else _emptied(self.collate([self.data[0]]))


def loader(
    data: Dataset[Any], ahead: PrefetchSampler, users: int, generator: torch.Generator, options: Any
) -> DataLoader[Any]:
    """The rows of each batch, collated. Raises TypeError, ValueError."""
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(
            f"data must be a data set with a length and rows by number, not {type(data).__name__}: "
            "torch.utils.data.TensorDataset makes one of tensors"
        )
    if len(data) != users:
        raise ValueError(f"data must hold one row for each of the plan's {users} users, not {len(data)}")
    if wrong := sorted(set(DECIDED) & set(options)):
        raise ValueError(f"{', '.join(wrong)} must be left out: the plan decides who is in a batch")
    collate = Collate(data, options.pop("collate_fn", None) or default_collate)
    return DataLoader(data, batch_sampler=ahead, collate_fn=collate, generator=generator, **options)


def _emptied(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value[:0] if value.ndim else value
    if isinstance(value, MutableMapping):
        emptied = copy.copy(value)
        emptied.update({name: _emptied(part) for name, part in value.items()})
        return emptied
    if hasattr(value, "_fields"):
        return type(value)(*map(_emptied, value))
    if isinstance(value, tuple | list):
        return type(value)([] if all(isinstance(part, str) for part in value) else map(_emptied, value))
    return value
