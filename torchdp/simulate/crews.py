"""Who does tasks: processes of our own, one for each device, or an executor of the user's."""

import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import torch

Do = Callable[[str, bytes, str, list[Any]], list[tuple[Any, Any]]]
Task = Future[list[tuple[Any, Any]]]
LATE = 124  # exit code of a worker whose job took longer than allowed
_kept: dict[str, bytes] = {}  # in a worker of ours: the order it was started with


def _exit_code(process: BaseProcess | None) -> int | None:
    """Of a process that ends; where its pool waits for it too, whoever comes second is told a moment later."""
    until = time.monotonic() + 10
    while process is not None and process.exitcode is None and time.monotonic() < until:
        process.join(0.1)
        time.sleep(0.01)
    return None if process is None else process.exitcode


@dataclass(frozen=True)
class Death:
    """Of a worker in a task. how: ``the worker process on cpu was killed by SIGKILL``; hint: what may mend it."""

    how: str
    hint: str = ""
    late: bool = False  # the job took longer than allowed


class Crew(ABC):
    """Does tasks: ``do(token, sent, device, jobs)`` somewhere else. together: any worker may get any task."""

    together = False

    def take(self, do: Do, token: str, sent: bytes) -> None:
        """What all tasks do."""
        self._do, self._token, self._sent = do, token, sent

    @abstractmethod
    def room(self, busy: int) -> bool:
        """Whether to submit one more task while so many are busy."""

    @abstractmethod
    def submit(self, jobs: list[Any]) -> Task: ...

    @abstractmethod
    def ended(self, task: Task) -> Death | None:
        """A task has ended: None where it has a result."""

    @abstractmethod
    def close(self, busy: Collection[Task]) -> None:
        """Ends what is still busy."""


class Borrowed(Crew):
    """An executor of the user's; it stays open. Twice as many tasks as workers are under way, so that none waits."""

    together = True

    def __init__(self, executor: Any, device: torch.device) -> None:
        self._client = None if isinstance(executor, Executor) else executor
        self._executor = executor if self._client is None else executor.get_executor(pure=False)
        self._device, self._width, self._looked = str(device), 1, -1.0

    def room(self, busy: int) -> bool:
        if self._client is None:
            self._width = getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1
        elif time.monotonic() > self._looked + 1:  # workers come and go
            self._width, self._looked = sum(self._client.nthreads().values()), time.monotonic()
        return busy < 2 * max(1, self._width)

    def submit(self, jobs: list[Any]) -> Task:
        try:
            return self._executor.submit(self._do, self._token, self._sent, self._device, jobs)
        except RuntimeError as error:
            raise ChildProcessError(
                f"the executor takes no more tasks ({error}); finished blocks are kept"
            ) from error

    def ended(self, task: Task) -> Death | None:
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            return None
        return Death(f"the executor lost a task ({type(error).__name__}: {error})")

    def close(self, busy: Collection[Task]) -> None:
        for task in busy:
            task.cancel()


@dataclass
class _Place:
    device: torch.device
    pool: ProcessPoolExecutor | None = None
    process: BaseProcess | None = None
    answered: bool = False


class Own(Crew):
    """A process for each device, in a pool of its own: one that dies has a known task, and another takes its place."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._places = [_Place(device) for device in devices]
        self._idle = self._places[::-1]
        self._at: dict[Task, _Place] = {}

    def room(self, busy: int) -> bool:
        return bool(self._idle)

    def submit(self, jobs: list[Any]) -> Task:
        place = self._idle.pop()
        try:
            task = self._start(place, jobs) if place.pool is None else self._submit(place.pool, place, jobs)
        except BrokenExecutor:  # its process was killed between two tasks
            self._end(place)
            task = self._start(place, jobs)
        self._at[task] = place
        return task

    def _submit(self, pool: ProcessPoolExecutor, place: _Place, jobs: list[Any]) -> Task:
        return pool.submit(self._do, self._token, b"", str(place.device), jobs)

    def _start(self, place: _Place, jobs: list[Any]) -> Task:
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        place.pool = ProcessPoolExecutor(1, spawn, _begin, (self._token, self._sent))
        resource_tracker.ensure_running()  # else it is started, and signals let through, under the mask below
        known = {process.pid for process in multiprocessing.active_children()}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for the parent
        try:
            task = self._submit(place.pool, place, jobs)  # starts its process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        fresh = [process for process in multiprocessing.active_children() if process.pid not in known]
        place.process = fresh[0] if fresh else None
        return task

    def ended(self, task: Task) -> Death | None:
        place = self._at.pop(task)
        self._idle.append(place)
        if task.exception() is None:
            place.answered = True
            return None
        death = self._death(place)
        self._end(place)
        return death

    def _death(self, place: _Place) -> Death:
        code = _exit_code(place.process)
        who = f"the worker process on {place.device}"
        if code == LATE:
            return Death(f"{who} was ended after time_limit", late=True)
        if code is not None and code < 0:
            name = {each.value: each.name for each in signal.Signals}.get(-code, f"signal {-code}")
            hint = "the system kills what takes too much memory" if code == -signal.SIGKILL else ""
            return Death(f"{who} was killed by {name}", hint)
        hint = "a script that uses devices= must be a file, and must do so under if __name__ == '__main__':"
        return Death(f"{who} ended with exit code {code}", "" if place.answered else hint)

    def _end(self, place: _Place) -> None:
        if place.process is not None:
            place.process.kill()
        if place.pool is not None:
            place.pool.shutdown(cancel_futures=True)
        place.pool = place.process = None

    def close(self, busy: Collection[Task]) -> None:
        for place in self._places:
            if place.process is not None:
                place.process.kill()
        for place in self._places:
            self._end(place)


def kept(token: str) -> bytes:
    """In a worker of ours: the order."""
    return _kept[token]


def _begin(token: str, sent: bytes) -> None:
    _kept[token] = sent
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
