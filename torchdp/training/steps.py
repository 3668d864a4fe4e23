"""The users of each step of a run, and which rows of a batch are still to be used."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from os import urandom
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchdp.brief import Brief
from torchdp.training import replicas
from torchdp.training.batches import (
    Batches,
    ParticipationLog,
    PrefetchSampler,
    SampledBatches,
    Waiting,
    loader,
)
from torchdp.training.mechanism import Mechanism
from torchdp.training.participation import OwnBatches, Participation
from torchdp.training.secret import Secret

NO_BATCH = "no batch waits: backward once for each batch that iteration hands out"
Row = TypeVar("Row")


class Steps(Brief, ABC):
    """The batches of a run, one for each step, each handed out once and used up before the next.

    Args:
        plan: of the run.
        secret: the run's key.
        first: the step to begin with.
        past: of a secret state, or None.
    """

    _printed = ("step", "plan")

    def __init__(
        self, plan: Mechanism, secret: Secret, first: int, past: dict[str, Any] | None
    ) -> None:
        self.plan = plan
        self._secret = secret
        self._turn = threading.RLock()
        # What was handed out last: it waits while its step is the next one.
        self._waiting = Waiting()
        self.batches = self._made(first, past)

    def _made(
        self, first: int, past: dict[str, Any] | None
    ) -> Batches | SampledBatches | ParticipationLog:
        plan = self.plan
        sampling = plan.sampling
        steps = plan.strategy.steps
        if isinstance(sampling, OwnBatches):
            log = ParticipationLog(sampling.rule, plan.users)
            if past and first != past["step"]:
                raise ValueError(
                    f"secret must be of step {first}, the last that may have been released, not of "
                    f"{past['step']}: nothing else says who was in the steps between; keep the "
                    "secret state at each step"
                )
            if past:
                log.resume(past["attendance"], first)
            return log
        if isinstance(sampling, Participation):
            # Public: it may become known, and tells of no other word.
            order = self._secret.generator(b"order")
            return Batches(sampling, plan.users, plan.batch, steps, generator=order, first=first)
        drawn = self._secret.noise(b"batches")
        return SampledBatches(sampling, plan.users, steps, noise=drawn, first=first)

    @property
    @abstractmethod
    def step(self) -> int:
        """How many steps are spent."""

    @abstractmethod
    def _release_nobody(self, step: int) -> None:
        """The noise of a step that has no rows."""

    def __len__(self) -> int:
        return self.plan.strategy.steps - self.step

    def __iter__(self) -> Iterator[Tensor]:
        rank, ranks = replicas.place()
        batches = self._drawn()
        while self.step < self.plan.strategy.steps:
            with self._turn:
                self._refuse_unused()
                # Whatever was interrupted, a batch is for the step of its number.
                batches.step = self.step
                everyone = torch.tensor(next(iter(batches)), dtype=torch.int64, device="cpu")
                users = everyone[rank::ranks]
                self._waiting = Waiting(self.step, len(users))
            yield users

    @overload
    def loader(
        self, data: Dataset[Row], *, max_rows: None = None, **options: Any
    ) -> Iterator[Row]: ...
    @overload
    def loader(
        self, data: Dataset[Row], *, max_rows: int, **options: Any
    ) -> Iterator[Iterator[Row]]: ...
    def loader(
        self, data: Dataset[Any], *, max_rows: int | None = None, **options: Any
    ) -> Iterator[Any]:
        """The rows of ``data`` for the batch of each step that is left, read ahead.

        As a ``DataLoader`` gives them:

            for inputs, targets in run.loader(data, num_workers=4):
                run.backward(inputs, targets)
                optimizer.step()

            for step in run.loader(data, max_rows=64):  # batches larger than memory, in parts
                for inputs, targets in step:
                    run.backward(inputs, targets)
                optimizer.step()

        An empty batch has tensors of no rows; in parts it has none, and its step releases noise by
        itself. Each batch must be used before the next one, as in iteration. The types are a row's,
        of a ``collate_fn`` its own.

        Args:
            data: a row for each user.
            max_rows: in a part; noise is drawn at the last part, and until then ``.grad`` stays as
                it is.
            options: of ``DataLoader``, but for those that say who is in a batch.

        Raises TypeError, ValueError.
        """
        with self._turn:
            batches = self._drawn()
            first = self.step
            batches.step = first
            ahead = PrefetchSampler(batches, *replicas.place(), max_rows)
        generator = self._secret.generator(b"loader", urandom(16))
        rows = loader(data, ahead, self.plan.users, generator, options)
        return self._handing(rows, ahead, first)

    def _handing(self, rows: DataLoader[Any], ahead: PrefetchSampler, step: int) -> Iterator[Any]:
        left = iter(rows)
        for part in left:  # a batch's first
            with self._turn:
                self._refuse_unused()
                if step != self.step:
                    raise RuntimeError(
                        f"the run is at step {self.step}, this loader at {step}: call loader again"
                    )
                count, parts = ahead.counts.popleft()
                self._waiting = Waiting(step, count, parts=max(parts, 1))
                self.batches.step = step + 1
            rest = islice(left, max(parts, 1) - 1)
            yield part if ahead.max_rows is None else self._parts(chain([part], rest), step, parts)
            self._refuse_unused()
            # What went unread is no part of the next batch.
            deque(rest, maxlen=0)
            step += 1

    def _parts(self, rows: Iterator[Any], step: int, parts: int) -> Iterator[Any]:
        if not parts:
            self._release_nobody(step)
            return
        for part in rows:
            if step != self.step:
                raise RuntimeError(NO_BATCH)
            yield part

    def admit(self, users: Tensor | Sequence[int]) -> Tensor:
        """Sets the users of the next step's batch, of a custom loader.

        Of ``choose(..., participation=)``:

            for users, inputs, targets in batches:
                run.admit(users)
                run.backward(inputs, targets)
                optimizer.step()

        Args:
            users: their numbers, each once, (n,), n >= 0; in a group of processes those of all of
                them.

        Returns this process's, int64, whose rows it then uses. Raises ValueError where the plan's
        rule does not let them come, and RuntimeError where the last batch was not used, all steps
        are spent, or the plan itself says who is in a batch.

        Guarantees: a user's steps are a set that the rule permits, also after ``resume``.
        """
        rank, ranks = replicas.place()
        with self._turn:
            self._refuse_unused()
            if not isinstance(self.batches, ParticipationLog):
                raise RuntimeError(
                    "the plan says who is in a batch: iterate over the run, or take its loader"
                )
            steps = self.plan.strategy.steps
            if self.step == steps or self.batches.step != self.step:
                raise RuntimeError(
                    f"{self.step} steps are spent, {self.batches.step} batches admitted, {steps} "
                    "planned: make a new run, or resume the last secret state where an interrupt "
                    "lost a batch"
                )
            mine = self.batches.check(users)[rank::ranks]
            self._waiting = Waiting(self.step, len(mine))
        return mine

    def _drawn(self) -> Batches | SampledBatches:
        """The plan's own batches. Raises RuntimeError where there are none."""
        if isinstance(self.batches, ParticipationLog):
            raise RuntimeError(
                "this plan's batches are your own: call run.admit(users) for each, then backward"
            )
        return self.batches

    def _refuse_unused(self) -> None:
        if self._waiting.step == self.step:
            raise RuntimeError(
                f"the last batch was not used, {self._waiting.used} of {self._waiting.rows} rows "
                "used: call backward once for each batch, or for each of its parts, or the steps "
                "would not fit"
            )

    def _expect(self, name: str, count: int, more: bool) -> int:
        """The step of the batch that waits, where these rows belong to it.

        Raises RuntimeError, ValueError.
        """
        with self._turn:
            if self._waiting.step != self.step:
                raise RuntimeError(NO_BATCH)
            self._waiting.last(name, count, more)
            return self.step
