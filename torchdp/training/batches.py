"""Enforced participation: batches in a fixed order or sampled, and a check of external ones.

Batches that were handed out wait to be used; a ``DataLoader`` reads a data set's rows for them.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from torchdp import checks
from torchdp.noise import Noise, SeededNoise, source
from torchdp.training.participation import CyclicPoisson, Participation

# By the plan: out of order a batch would be used for another step, and users would come back too
# soon.
DECIDED = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "drop_last",
    "generator",
    "in_order",
)


class ParticipationLog:
    """Which users took part in which steps: a batch that breaks the rule is refused before its use.

    Where a user has several examples, number the users and clip each user's sum. In several
    processes check the batches of all of them together. ``attendance``, (3, users): of each user
    the first and the last step, and how many; it and ``step`` are the log's state, and as secret as
    the batches.

    Args:
        participation: the rule.
        users: how many there are; a batch holds their numbers, each once.

    Raises TypeError, ValueError.

    Guarantees: a user's steps whose batches were accepted are a set that ``participation`` allows.
    """

    def __init__(self, participation: Participation, users: int) -> None:
        self.participation = checks.instance("participation", participation, Participation)
        self.users = checks.integer("users", users, 1)
        self.step = 0
        checks.fits("users", self.users)
        never = torch.tensor([-1, -1, 0], dtype=torch.int64, device="cpu")
        self.attendance = never.repeat_interleave(self.users).view(3, -1)

    def check(self, indices: Tensor | Sequence[int]) -> Tensor:
        """The batch of the next step as int64 on the CPU: (n,), n >= 0; the step is over then.

        Raises TypeError, ValueError.
        """
        checks.instance("indices", indices, (Tensor, Sequence))
        if not isinstance(indices, Tensor):
            numbers = [checks.integer("indices", index, 0) for index in indices]
            indices = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        batch = checks.indices("indices", indices, self.users).cpu()
        checks.shaped("indices", batch, "n", empty=True)
        if len(batch.unique()) < len(batch):
            raise ValueError(
                "indices must hold each user once: twice in a batch is twice the bound"
            )
        first, last, times = self.attendance[:, batch]
        # Rules are for users who came before.
        refused = (times > 0) & self.participation.refuses(self.step, first, last, times)
        if refused.any():
            raise ValueError(
                f"{int(refused.sum())} of the {len(batch)} users in the batch of step {self.step} "
                f"may not participate again under {self.participation}; take batches from "
                "training.Batches, or calibrate for a wider rule"
            )
        first = torch.where(times > 0, first, self.step)
        now = torch.full_like(last, self.step)
        self.attendance[:, batch] = torch.stack([first, now, times + 1])
        self.step += 1
        return batch

    def resume(self, attendance: Tensor, step: int) -> None:
        """Goes on after ``step`` steps of a log with this attendance.

        Raises TypeError, ValueError.
        """
        checks.typed("attendance", attendance, torch.int64)
        checks.shaped("attendance", attendance, 3, self.users)
        self.attendance = attendance.cpu().clone()
        self.step = checks.integer("step", step, 0)


class PlannedBatches(Sampler[list[int]], ABC):
    """Batches of users' numbers for all steps from ``first`` on; ``step`` were handed out.

    Iteration goes on where the last one ended; after the last step it raises RuntimeError.
    """

    def __init__(self, users: int, steps: int, first: int) -> None:
        self.users = checks.integer("users", users, 1)
        self.steps = checks.integer("steps", steps, 1)
        self.step = checks.integer("first", first, 0, self.steps)

    def __len__(self) -> int:
        return self.steps - self.step

    def __iter__(self) -> Iterator[list[int]]:
        if self.step == self.steps:
            name = type(self).__name__
            raise RuntimeError(
                f"all {self.steps} batches were handed out; make {name} for a new run"
            )
        while self.step < self.steps:
            users = self._users(self.step)
            self.step += 1
            yield users

    @abstractmethod
    def _users(self, step: int) -> list[int]:
        """Who is in this step."""


class Batches(PlannedBatches):
    """Batches of ``size`` users for all steps, in one order gone through again and again.

    ``DataLoader(data, batch_sampler=Batches(...))``: iteration goes on where the last one ended, so
    a loop over epochs that breaks off after each period serves as well as one loop; after the last
    step it raises RuntimeError. The users // size batches of a pass leave the rest of the users
    out. A batch that was handed out counts, used or not.

    Args:
        participation: the rule that the noise is calibrated for.
        users: how many.
        size: of a batch.
        steps: how many batches in all.
        generator: draws the order, once; it is public.
        first: the step to go on from after a restart (the same generator's seed gives the same
            order).

    Raises TypeError, ValueError, the latter where such passes break the rule: ``Epochs(period)``
    asks for users // size = period or a multiple, ``Separated(gap, times)`` for at least ``gap``,
    ``ONCE`` for ``steps``.

    Guarantees: each user's steps are a set that ``participation`` allows.
    """

    def __init__(
        self,
        participation: Participation,
        users: int,
        size: int,
        steps: int,
        *,
        generator: torch.Generator,
        first: int = 0,
    ) -> None:
        super().__init__(users, steps, first)
        self.size = checks.integer("size", size, 1, self.users)
        self.period = self.users // self.size
        checks.fits("users and steps", self.users + self.steps)
        rule = checks.instance("participation", participation, Participation)
        # A user of a pass's first batch comes at its first step: passes after the first one.
        passes = torch.arange(1, -(-self.steps // self.period), device="cpu")
        step = passes * self.period
        if rule.refuses(step, torch.zeros_like(passes), step - self.period, passes).any():
            raise ValueError(
                f"{rule} does not allow {self.steps} steps in passes of {self.period} batches "
                "(users // size); change size or steps, or calibrate for a wider rule"
            )
        checks.random_source(generator, torch.device("cpu"))
        self._order = torch.randperm(self.users, generator=generator, device="cpu")

    def _users(self, step: int) -> list[int]:
        start = step % self.period * self.size
        return self._order[start : start + self.size].tolist()


class SampledBatches(PlannedBatches):
    """The batches of :class:`CyclicPoisson` for all steps: users' numbers, of any size.

    A user's group is drawn once; each step draws its group's members by one word for each, so that
    the chance is at most ``sampling.chance`` and at least that less 2^-63. ``step`` batches are
    handed out; after the last one iteration raises RuntimeError. The draws are secret: who knows
    them knows who was in a batch.

    Args:
        sampling: groups, and the chance.
        users: how many.
        steps: at least 1.
        noise: source of the 256 bits of which all draws are a function, None for the system's.
        first: the step to go on from, after a restart with the same bits.

    Raises TypeError, ValueError.

    Guarantees: the groups and who is in a step do not depend on the data; given the groups, users
    are in a step independently of each other, and of all other steps.
    """

    def __init__(
        self,
        sampling: CyclicPoisson,
        users: int,
        steps: int,
        *,
        noise: Noise | None = None,
        first: int = 0,
    ) -> None:
        self.sampling = checks.instance("sampling", sampling, CyclicPoisson)
        super().__init__(users, steps, first)
        checks.fits("users", self.users)
        self._key = source(noise).words((4,)).cpu().numpy().tobytes()
        # Each user's: of a permutation, so that groups differ in size by one user at most.
        self._group = self._draws(self.steps).permutation(self.users) % sampling.groups

    def _users(self, step: int) -> list[int]:
        members = (self._group == step % self.sampling.groups).nonzero()[:, 0]
        # At a chance of 1 everyone comes, and 2^63 is no int64.
        if self.sampling.chance < 1:
            # 63 bits of a word below chance 2^63, rounded down: no more than the chance.
            words = self._draws(step).integers((len(members),))
            members = members[words < math.floor(self.sampling.chance * 2**63)]
        return members.tolist()

    def _draws(self, step: int) -> Noise:
        """Of one step, ``steps`` for the groups: steps that are passed over need no draws."""
        # A key for each step: one that is resumed draws what it would have drawn.
        key = self._key + step.to_bytes(8, "little")
        return SeededNoise(int.from_bytes(key, "little"), "cpu")


@dataclass(frozen=True)
class Waiting:
    """A batch that was handed out and is not released.

    step: for which it is. rows: of it. used: of these. parts: calls of ``backward`` that are left
    where a loader cuts the batch. total: of the rows that were used.
    """

    step: int = -1
    rows: int = 0
    used: int = 0
    parts: int = 1
    total: Tensor | None = None

    def last(self, name: str, count: int, more: bool) -> bool:
        """Whether ``count`` more rows are the last ones.

        Raises ValueError where they do not add up to the batch.
        """
        used = self.used + count
        last = not more and self.parts == 1
        if used > self.rows or (last and used < self.rows):
            raise ValueError(
                f"{name} must be those of all the batch's {self.rows} users, {self.used} of which "
                f"were used, not {count}: backward splits what is larger than memory by itself, "
                "and more=True goes with all parts of a batch but the last"
            )
        return last

    def with_part(self, total: Tensor, count: int, more: bool) -> "Waiting":
        """After a part that is not the last."""
        return Waiting(self.step, self.rows, self.used + count, self.parts - (not more), total)


class PrefetchSampler(Sampler[list[int]]):
    """This process's part of the batches that are left, drawn before they are due.

    The given batches stay where they are. ``counts``: of each batch that was drawn this process's
    rows and its parts, 0 of an empty batch, which is handed out nonetheless.

    Args:
        batches: the plan's.
        rank: this process's number.
        ranks: how many processes there are.
        max_rows: batches are cut in parts of at most so many, equally many in every process; None:
            whole.
    """

    def __init__(
        self, batches: Batches | SampledBatches, rank: int, ranks: int, max_rows: int | None
    ) -> None:
        self.counts: deque[tuple[int, int]] = deque()
        self.max_rows = None if max_rows is None else checks.integer("max_rows", max_rows, 1)
        # A copy: reading ahead must not move the step of the batches that are handed out.
        self._batches = copy.copy(batches)
        self._rank = rank
        self._ranks = ranks

    def __iter__(self) -> Iterator[list[int]]:
        for users in self._batches if len(self._batches) else ():
            mine = users[self._rank :: self._ranks]
            most = -(-len(users) // self._ranks)  # that a process has
            rows = self.max_rows or max(most, 1)
            parts = -(-most // rows)
            self.counts.append((len(mine), parts))
            for start in range(0, max(parts, 1) * rows, rows):
                yield mine[start : start + rows]


class Collate:
    """The rows of a batch by ``collate``.

    Of an empty batch what it makes of one row, less that row.
    """

    def __init__(self, data: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self.data = data
        self.collate = collate

    def __call__(self, rows: list[Any]) -> Any:
        return self.collate(rows) if len(rows) else _emptied(self.collate([self.data[0]]))


def loader(
    data: Dataset[Any], ahead: PrefetchSampler, users: int, generator: torch.Generator, options: Any
) -> DataLoader[Any]:
    """The rows of each batch, collated. Raises TypeError, ValueError."""
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, IterableDataset) or not by_number:
        raise TypeError(
            "data must be a data set with a length and rows by number, not "
            f"{type(data).__name__}: torch.utils.data.TensorDataset makes one of tensors"
        )
    if len(data) != users:  # type: ignore[arg-type]
        raise ValueError(
            f"data must hold one row for each of the plan's {users} users, not {len(data)}"  # type: ignore[arg-type]
        )
    decided = sorted(set(DECIDED) & set(options))
    if decided:
        names = ", ".join(decided)
        raise ValueError(f"{names} must be left out: the plan decides who is in a batch")
    collate = Collate(data, options.pop("collate_fn", None) or default_collate)
    return DataLoader(data, batch_sampler=ahead, collate_fn=collate, generator=generator, **options)


def _emptied(value: Any) -> Any:
    """What a collate function has made of one row, less that row."""
    if isinstance(value, Tensor | np.ndarray):
        return value[:0] if value.ndim else value
    if isinstance(value, MutableMapping):
        emptied = copy.copy(value)
        for name, part in value.items():
            emptied[name] = _emptied(part)
        return emptied
    if hasattr(value, "_fields"):
        return type(value)(*map(_emptied, value))
    if isinstance(value, tuple | list):
        # A list of strings is a column of a batch, with one for each row.
        texts = all(isinstance(part, str) for part in value)
        return type(value)([] if texts else map(_emptied, value))
    return value
