"""Where tasks are done: an executor of the user's, or a process of our own on each device; and what a worker does."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import torch

Task = Future[list[tuple[Any, Any]]]
SECONDS = 0.25  # of work in a task: what a cluster spends on one, some 4 ms, stays below 2 %
DASKS = "65536"  # what its nannies tell the allocator, at half the speed of trials
LATE = 124  # exit code of a worker whose job took longer than allowed
STOPS = (signal.SIGTERM, signal.SIGUSR1)  # of a cluster to all processes: it is for the parent, as Ctrl-C is
UNGUARDED = "a script that uses devices= must be a file, and must do so under if __name__ == '__main__':"
TOO_LARGE = "the system kills what takes too much memory"
THREADS = "time_limit ends worker processes, and this executor has threads; leave it out"
_HOME = uuid.uuid4().hex  # of this process
_held = threading.local()  # the order that this thread works on


class WorkerPool:
    """Does tasks: ``do`` in a worker. This one: by an executor of the user's.

    It stays open. Any worker may get any task; twice as many as there are workers are under way, so that none waits.
    """

    def __init__(self, executor: Any, device: torch.device, sent: bytes) -> None:
        self._client = None if executor is None or isinstance(executor, Executor) else executor
        self._executor = executor if self._client is None else executor.get_executor(pure=False)
        self._device, self._sent, self._token = device, sent, uuid.uuid4().hex
        self._busy: set[Task] = set()
        self._width, self._looked = 1, -1.0

    def room(self) -> bool:
        """Whether to submit one more task."""
        if self._client is None:
            self._width = getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1
        elif time.monotonic() > self._looked + 1:  # workers come and go
            self._width, self._looked = sum(self._client.nthreads().values()), time.monotonic()
        return len(self._busy) < 2 * max(1, self._width)

    def submit(self, jobs: list[Any]) -> Task:
        try:
            task = self._executor.submit(do, self._token, self._sent, str(self._device), jobs)
        except RuntimeError as error:
            raise ChildProcessError(f"the executor takes no tasks ({error}); finished blocks are kept") from error
        self._busy.add(task)
        return task

    def ended(self, task: Task) -> OSError | None:
        """A task has ended: None where it has a result; TimeoutError, or ChildProcessError(how, what may help)."""
        self._busy.remove(task)
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            return None
        return ChildProcessError(f"the executor lost a task ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Ends what is still busy."""
        for task in self._busy:
            task.cancel()


class ProcessPool(WorkerPool):
    """A process of our own on a device: one that dies had a known task, and another takes its place."""

    _process: BaseProcess | None = None
    _answered = False

    def __init__(self, device: torch.device, sent: bytes) -> None:
        super().__init__(None, device, sent)

    def room(self) -> bool:
        return not self._busy

    def submit(self, jobs: list[Any]) -> Task:
        try:
            task = self._start(jobs) if self._process is None else self._submit(jobs)
        except BrokenExecutor:  # its process was killed between two tasks
            self.close()
            task = self._start(jobs)
        self._busy.add(task)
        return task

    def _submit(self, jobs: list[Any]) -> Task:
        return self._executor.submit(do, self._token, b"", str(self._device), jobs)

    def _start(self, jobs: list[Any]) -> Task:
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._executor = ProcessPoolExecutor(1, spawn, _begin, (self._sent,))
        resource_tracker.ensure_running()  # else it is started, and signals let through, under the mask below
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *STOPS})  # inherited
        try:
            task = self._submit(jobs)  # starts its process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        (self._process,) = self._executor._processes.values()
        return task

    def ended(self, task: Task) -> OSError | None:
        self._busy.remove(task)
        if task.exception() is None:
            self._answered = True
            return None
        self._executor.shutdown()  # waits for the process
        code = None if self._process is None else self._process.exitcode
        who = f"the worker process on {self._device}"
        self._process = None
        if code == LATE:
            return TimeoutError()
        if code is None or code >= 0:
            hint = [] if self._answered else [UNGUARDED]
            return ChildProcessError(f"{who} ended with exit code {code}", *hint)
        name = {each.value: each.name for each in signal.Signals}.get(-code, f"signal {-code}")
        return ChildProcessError(f"{who} was killed by {name}", *([TOO_LARGE] if code == -signal.SIGKILL else []))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._executor.shutdown(cancel_futures=True)
            self._process = None


@dataclass(frozen=True)
class Order:
    """What all tasks do, and the settings of the process that asks for it; time_limit: of a job."""

    work: Callable[..., Any]
    dtype: torch.dtype
    precision: str
    time_limit: float | None
    home: str = _HOME


def _begin(sent: bytes) -> None:
    """A process of our own begins: it keeps the order, and ends with its parent."""
    _held.sent = sent
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def do(token: str, sent: bytes, device_name: str, jobs: list[Any]) -> list[tuple[Any, Any]]:
    """In a worker: (what went wrong or None, answer) of the first jobs, until time is up or one fails."""
    ends, device = time.monotonic() + SECONDS, torch.device(device_name)
    told: list[tuple[Any, Any]] = []
    for job in jobs:
        try:
            order = _ready(token, sent, device)
            with _alarm(order.time_limit):
                told.append((None, order.work(job, device)))
        except (Exception, SystemExit) as error:
            told.append(((*_told(error), device_name), None))
            break
        if time.monotonic() > ends:
            break
    return told


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Ends this worker where a job takes too long."""
    timer = threading.Timer(seconds or 0, os._exit, [LATE])
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _ready(token: str, sent: bytes, device: torch.device) -> Order:
    """The order, opened once in each thread."""
    if getattr(_held, "token", None) != token:
        _held.token, _held.order = None, None  # two at once might not fit into memory
        try:
            order = pickle.loads(sent or _held.sent)
        except Exception as error:
            raise TypeError(f"the worker cannot load it ({error}); its modules must be installed there") from error
        if order.home != _HOME:
            _keep_memory()
            torch.set_num_threads(1)  # or the last bits of some operations would depend on the number of workers
            torch.set_default_dtype(order.dtype)
            torch.set_float32_matmul_precision(order.precision)
        elif order.time_limit is not None:
            raise ValueError(THREADS)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            torch.Generator(device)
        except RuntimeError as error:
            raise ValueError(f"{device} is not available in this worker") from error
        _held.token, _held.order = token, order
    return _held.order


def _keep_memory() -> None:
    """Tells glibc to keep what a trial frees: by Dask's setting, often by its own, large arrays are mapped anew."""
    if os.environ.get("MALLOC_TRIM_THRESHOLD_", DASKS) == DASKS:
        with suppress(AttributeError, OSError):  # another library
            # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: glibc's own most
            for parameter, size in ((-1, 2**26), (-3, 2**25)):
                ctypes.CDLL(None).mallopt(parameter, size)


def _told(error: Exception | SystemExit) -> tuple[type[Exception], str, str]:
    known = (TypeError, ValueError, OSError, MemoryError)
    kind = next((kind for kind in known if isinstance(error, kind)), RuntimeError)
    text = str(error) if type(error) is kind else f"{type(error).__name__}: {error}"
    return kind, text, "".join(traceback.format_exception(error))
