"""Blocks of a sweep run in this process, in a process for each device, or by any executor."""

import multiprocessing
import os
import pickle
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from torchdp import checks
from torchdp.simulate.config_runs import Job, Work
from torchdp.simulate.store import Record

Runner = Callable[[Job, torch.device], Record]
Device = torch.device | str
# Of workers in one job, after which it has failed: one death may be another program's doing.
DEATHS = 2
# of a cluster to all processes: it is for the parent, as Ctrl-C is
STOPS = (signal.SIGTERM, signal.SIGUSR1)
DIED = (
    "the system kills what takes too much memory; and a script that uses devices= must be a file, "
    "and must do so under if __name__ == '__main__':"
)
_held = threading.local()  # the order that this thread works on


def answers(
    run: Runner,
    work: Work,
    device: Device | None,
    devices: Sequence[Device] | None,
    executor: Any,
) -> Generator[tuple[Job, Record], None, None]:
    """(job, run(job, device)) as the records come, for every job of the work.

    Close it (``contextlib.closing``): that ends the processes of ``devices``, whatever happened.
    One that dies is replaced, and its job is done again.

    Args:
        run: done in this process, or in workers with one thread each.
        device: of this process, or of an executor's workers; None: torch's default.
        devices: a process for each.
        executor: a ``concurrent.futures.Executor``, or a ``dask.distributed.Client``.

    Raises:
        TypeError, ValueError: at once, where the arguments contradict each other or ``run`` cannot
            be sent.
        What ``run`` raises; from a worker as TypeError, ValueError, OSError, MemoryError or
            RuntimeError that names the job and the device, with the worker's traceback as its
            cause; and what an executor raises.
        ChildProcessError: a process died twice in one job.
    """
    if devices is not None and (executor is not None or device is not None):
        raise ValueError("devices excludes device and executor; give one of them")
    named = torch.get_default_device() if device is None else device
    if devices is None and executor is None:
        return _here(run, work, checks.device("device", named))
    order = _Order(
        run, torch.get_default_dtype(), torch.get_float32_matmul_precision(), _here_and_now()
    )
    try:
        # pickle knows functions by name alone; make_trial may be a lambda, or stand in a notebook.
        sent = cloudpickle.dumps(order)
    except Exception as error:
        raise TypeError(
            f"make_trial cannot be sent to workers ({error}); make it of functions and values"
        ) from error
    if devices is not None:
        return _spread([_Process(own, sent) for own in one_kind(devices)], work)
    # of the workers: it need not be here
    return _spread([_Given(executor, torch.device(named), sent)], work)


def one_kind(devices: Sequence[Device]) -> list[torch.device]:
    """The devices, of one kind, here as far as is known untouched. Raises ValueError."""
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ValueError(f"devices must be a list such as ['cuda:0', 'cuda:1'], not {devices!r}")
    try:
        found = [torch.device(device) for device in devices]
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"devices must be of torch, such as 'cuda:0' or 'cpu', not {devices!r}"
        ) from error
    kinds = {device.type for device in found}
    if len(kinds) > 1:
        raise ValueError(
            f"devices must be of one kind, not {devices!r}: a block's numbers depend on the kind"
        )
    if kinds == {"meta"}:
        raise ValueError("devices must hold data, not be 'meta'")
    if kinds == {"cuda"}:
        # Counting makes no CUDA context here, which would take memory from the workers.
        here = torch.cuda.device_count()
        found = [torch.device("cuda", device.index or 0) for device in found]
        if max(device.index for device in found) >= here:
            raise ValueError(
                f"devices names {devices!r}, but {here} CUDA device(s) are available here"
            )
    return found


def _here(
    run: Runner, work: Work, device: torch.device
) -> Generator[tuple[Job, Record], None, None]:
    job = None
    while True:
        job = work.next(job)
        if job is None:
            if work.wait():
                continue
            return
        try:
            record = run(job, device)
        except Exception as error:
            if not work.failed(job, error):
                raise
        else:
            # Outside of the try: what the reader of the records throws in is not the job's error.
            yield job, record


class _Process:
    """A process of our own on a device, one job at a time, replaced when it dies."""

    def __init__(self, device: torch.device, sent: bytes) -> None:
        self.device = device
        self._sent = sent
        self.replace()

    def replace(self) -> None:
        # CUDA does not survive a fork.
        spawn = multiprocessing.get_context("spawn")
        # The end that writes stays here: however this process dies, the worker's read then ends.
        theirs, self._lifeline = spawn.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(1, spawn, _begin, (self._sent, theirs))

    def width(self) -> int:
        return 1

    def submit(self, job: Job) -> Future[Record]:
        try:
            # Empty: the process was given the order when it began.
            return self._executor.submit(do, b"", str(self.device), job)
        except BrokenExecutor:  # it was killed between two jobs
            self.replace()
            return self._executor.submit(do, b"", str(self.device), job)

    def close(self) -> None:
        self._lifeline.close()  # ends the process
        self._executor.shutdown(cancel_futures=True)


class _Given:
    """An executor of the user's, which stays open: two jobs a worker, so that none waits."""

    def __init__(self, executor: Any, device: torch.device, sent: bytes) -> None:
        if hasattr(executor, "get_executor"):  # a client of Dask
            # Else Dask answers a call with the result of an equal one.
            executor = executor.get_executor(pure=False)
        if not isinstance(executor, Executor):
            raise TypeError(
                "executor must be a concurrent.futures.Executor or a dask.distributed.Client, "
                f"not {type(executor).__name__}"
            )
        self.device = device
        self._executor: Any = executor
        self._sent = sent

    def replace(self) -> None:
        raise ChildProcessError(
            "the executor has lost its workers and takes no more jobs; finished blocks are kept"
        )

    def width(self) -> int:
        client = getattr(self._executor, "_client", None)  # Dask's, whose workers come and go
        if client is not None:
            return 2 * max(1, sum(client.nthreads().values()))
        return 2 * (getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1)

    def submit(self, job: Job) -> Future[Record]:
        future: Future[Record] = self._executor.submit(do, self._sent, str(self.device), job)
        return future

    def close(self) -> None:
        """It is not ours to close."""


@dataclass
class _Busy:
    """A job in hand; deaths: of the workers that had it before."""

    place: _Process | _Given
    job: Job
    deaths: int


def _spread(
    places: Sequence[_Process | _Given], work: Work
) -> Generator[tuple[Job, Record], None, None]:
    busy: dict[Future[Record], _Busy] = {}
    again: deque[_Busy] = deque()
    last: dict[_Process | _Given, Job] = {}
    try:
        while True:
            for place in places:
                under_way = sum(task.place is place for task in busy.values())
                for _ in range(place.width() - under_way):
                    # First what a dead worker had: blocks behind it cannot be merged before it.
                    if again:
                        died = again.popleft()
                        task = _Busy(place, died.job, died.deaths)
                    else:
                        job = work.next(last.get(place))
                        if job is None:
                            break
                        task = _Busy(place, job, 0)
                    last[place] = task.job
                    busy[place.submit(task.job)] = task
            if not busy:
                if work.wait():
                    continue
                return
            ended = wait(busy, return_when=FIRST_COMPLETED).done
            # In the order of submission; that of a set differs from run to run.
            for future in [future for future in busy if future in ended]:
                task = busy.pop(future)
                try:
                    record = future.result()
                except BrokenExecutor:
                    # The job is not blamed yet: the system may have chosen this process by chance.
                    task.place.replace()
                    task.deaths += 1
                    if task.deaths < DEATHS:
                        again.append(task)
                        continue
                    error: Exception = ChildProcessError(
                        f"the worker process on {task.place.device} died in {task.job}, "
                        f"{DEATHS} times; {DIED}"
                    )
                except Exception as raised:
                    error = raised
                else:
                    yield task.job, record
                    continue
                if not work.failed(task.job, error):
                    raise error
    finally:
        for future in busy:
            future.cancel()
        for place in places:
            place.close()


@dataclass(frozen=True)
class _Order:
    """What all jobs are done with, and the settings of the process that asks for it."""

    run: Runner
    dtype: torch.dtype
    precision: str
    process: tuple[str, int]


def _here_and_now() -> tuple[str, int]:
    """What tells this process from others."""
    return platform.node(), os.getpid()


def _begin(sent: bytes, lifeline: Connection) -> None:
    """A process of our own begins: it keeps the order, and ends with its parent's pipe."""
    # A terminal sends Ctrl-C to all processes of a group: the parent decides, and its pipe ends
    # this one.
    for number in (signal.SIGINT, *STOPS):
        signal.signal(number, signal.SIG_IGN)
    _held.given = sent
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()


def _end_with_parent(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    # Not by an exception, which no computation of the main thread would notice.
    os._exit(1)


def do(sent: bytes, device_name: str, job: Job) -> Record:
    """In a worker: the record, or an error of Python that names the job and the device."""
    device = torch.device(device_name)
    try:
        return _opened(sent or _held.given, device).run(job, device)
    # sys.exit in a trial would end the worker as if the system had killed it.
    except (Exception, SystemExit) as error:
        known = (TypeError, ValueError, OSError, MemoryError)
        # A class of the script's own may not unpickle in the parent.
        kind = next((kind for kind in known if isinstance(error, kind)), RuntimeError)
        text = str(error) if type(error) is kind else f"{type(error).__name__}: {error}"
        where = f"on {device}" if str(job) in text else f"{job}, on {device}"
        raise kind(f"{text} ({where})") from error


def _opened(sent: bytes, device: torch.device) -> _Order:
    """The order, opened once in each thread."""
    if getattr(_held, "sent", None) != sent:
        # Two orders at once might not fit into memory.
        _held.order = None
        order = pickle.loads(sent)
        if order.process != _here_and_now():
            # or the last bits of some operations would depend on the number of workers
            torch.set_num_threads(1)
            torch.set_default_dtype(order.dtype)
            torch.set_float32_matmul_precision(order.precision)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        _held.order = order
        # Last: an order that failed to open does not count as open.
        _held.sent = sent
    opened: _Order = _held.order
    return opened
