"""Enforced participation: batches in a fixed order, a check of external batches, and batches waiting to be used."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Sampler

from torchdp import checks
from torchdp.training.participation import Participation


class ParticipationLog:
    """Which users took part in which steps: a batch that breaks ``participation`` is refused before it is used.

    users: how many there are; a batch holds their numbers, each once. Where a user has several examples, number the
    users and clip each user's sum. In several processes check the batches of all of them together. ``attendance``,
    (3, users), and ``step`` are its state, and as secret as the batches. Raises TypeError, ValueError.

    Guarantees: a user's steps whose batches were accepted are a set that ``participation`` allows.
    """

    def __init__(self, participation: Participation, users: int) -> None:
        self.participation = checks.instance("participation", participation, Participation)
        self.users, self.step = checks.integer("users", users, 1), 0
        checks.fits("users", self.users)
        never = torch.tensor([-1, -1, 0], dtype=torch.int64, device="cpu")  # first, last, times
        self.attendance = never.repeat_interleave(self.users).view(3, -1)

    def check(self, indices: Tensor | Sequence[int]) -> Tensor:
        """The batch of the next step as int64 on the CPU: (n,), n >= 0; the step is over then. Raises ValueError."""
        checks.instance("indices", indices, (Tensor, Sequence))
        if not isinstance(indices, Tensor):
            numbers = [checks.integer("indices", index, 0) for index in indices]
            indices = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        batch = checks.shaped("indices", checks.indices("indices", indices, self.users).cpu(), "n", empty=True)
        if len(batch.unique()) < len(batch):
            raise ValueError("indices must hold each user once: twice in a batch is twice the bound")
        first, last, times = self.attendance[:, batch]
        refused = (times > 0) & self.participation.refuses(self.step, first, last, times)
        if refused.any():
            raise ValueError(
                f"{int(refused.sum())} of the {len(batch)} users in the batch of step {self.step} may not participate "
                f"again under {self.participation}; take batches from training.Batches, or calibrate for a wider rule"
            )
        first = torch.where(times > 0, first, self.step)
        self.attendance[:, batch] = torch.stack([first, torch.full_like(last, self.step), times + 1])
        self.step += 1
        return batch

    def resume(self, attendance: Tensor, step: int) -> None:
        """Goes on after ``step`` steps of a log with this attendance. Raises TypeError, ValueError."""
        given = checks.shaped("attendance", checks.typed("attendance", attendance, torch.int64), 3, self.users)
        self.attendance, self.step = given.cpu().clone(), checks.integer("step", step, 0)


class PlannedBatches(Sampler[list[int]], ABC):
    """Batches of users' numbers for all steps, from step ``first`` on; ``step`` of them were handed out.

    Iteration goes on where the last one ended; after the last step it raises RuntimeError.
    """

    def __init__(self, users: int, steps: int, first: int) -> None:
        self.users, self.steps = checks.integer("users", users, 1), checks.integer("steps", steps, 1)
        self.step = checks.integer("first", first, 0, self.steps)

    def __len__(self) -> int:
        return self.steps - self.step

    def __iter__(self) -> Iterator[list[int]]:
        if self.step == self.steps:
            name = type(self).__name__
            raise RuntimeError(f"all {self.steps} batches were handed out; make {name} for a new run")
        while self.step < self.steps:
            users = self._users(self.step)
            self.step += 1
            yield users

    @abstractmethod
    def _users(self, step: int) -> list[int]:
        """Who is in this step."""


class Batches(PlannedBatches):
    """Batches of ``size`` users for all steps, in one order that is drawn once and gone through again and again.

    ``DataLoader(data, batch_sampler=Batches(...))``: iteration goes on where the last one ended, so a loop over epochs
    that breaks off after each period serves as well as one loop; after the last step it raises RuntimeError. The
    users // size batches of a pass leave the rest of the users out. A batch that was handed out counts, used or not.

    participation: the rule that the noise is calibrated for. steps: how many batches in all. generator: draws the
    order, which is public. first: the step to go on from after a restart (the same generator's seed gives the same
    order). Raises TypeError, ValueError, the latter where such passes break the rule: ``Epochs(period)`` asks for
    users // size = period or a multiple, ``Separated(gap, times)`` for at least ``gap``, ``ONCE`` for ``steps``.

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
        # passes after the first, for a user of its first batch
        again = torch.arange(1, -(-self.steps // self.period), device="cpu")
        rule, start = checks.instance("participation", participation, Participation), torch.zeros_like(again)
        if rule.refuses(again * self.period, start, (again - 1) * self.period, again).any():
            raise ValueError(
                f"{rule} does not allow {self.steps} steps in passes of {self.period} batches (users // size); "
                "change size or steps, or calibrate for a wider rule"
            )
        checks.random_source(generator, torch.device("cpu"))
        self._order = torch.randperm(self.users, generator=generator, device="cpu")

    def _users(self, step: int) -> list[int]:
        place = step % self.period * self.size
        return self._order[place : place + self.size].tolist()


@dataclass(frozen=True)
class Waiting:
    """A batch that was handed out and is not released: for which step, its rows, and those that were used.

    parts: calls of ``backward`` that are left where a loader cuts the batch. total: of the rows that were used.
    """

    step: int = -1
    rows: int = 0
    used: int = 0
    parts: int = 1
    total: Tensor | None = None

    def last(self, name: str, count: int, more: bool) -> bool:
        """Whether ``count`` more rows are the last ones. Raises ValueError where they do not add up to the batch."""
        used, last = self.used + count, not more and self.parts == 1
        if used > self.rows or (last and used < self.rows):
            raise ValueError(
                f"{name} must be those of all the batch's {self.rows} users, {self.used} of which were used, not "
                f"{count}: backward splits what is larger than memory by itself, and more=True goes with all parts of "
                "a batch but the last"
            )
        return last

    def with_part(self, total: Tensor, count: int, more: bool) -> "Waiting":
        """After a part that is not the last."""
        return Waiting(self.step, self.rows, self.used + count, self.parts - (not more), total)
