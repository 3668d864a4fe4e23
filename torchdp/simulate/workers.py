"""Jobs done in this process, in worker processes, or by any executor. It knows no block and no store."""

import os
import pickle
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cloudpickle
import torch

from torchdp import checks
from torchdp.simulate.crews import LATE, Borrowed, Crew, Death, Own, kept

J = TypeVar("J")
A = TypeVar("A")
Device = torch.device | str
SECONDS = 0.25  # of work in a task: what a cluster spends on one, some 4 ms, stays below 2 %
MOST = 256  # jobs in a task
_HOME = uuid.uuid4().hex  # of this process
_held = threading.local()  # the order that this thread works on


class Jobs(Generic[J]):
    """What is to be done: asked as it goes, since what is needed may depend on the answers."""

    def next(self, previous: J | None) -> J | None:
        """The next job, for whoever has just done ``previous`` (None: nothing yet); None when nothing is left."""
        raise NotImplementedError

    def wait(self) -> bool:
        """Asked when nothing is left and nothing is busy: True, after a pause, where there may be more."""
        return False

    def wanted(self, job: J) -> bool:
        """Whether a job that was handed out is still of use."""
        return True

    def failed(self, job: J, error: Exception) -> bool:
        """Whether to go on without that job; else the error is raised."""
        return False


@dataclass(frozen=True)
class Where:
    """Who works: this process on ``device``; a process for each of ``devices``; or an ``executor``.

    retries: how often a job whose worker died is done again. time_limit: seconds a job may take, None: any.
    """

    device: Device = "cpu"
    devices: Sequence[Device] | None = None
    executor: Any = None  # a concurrent.futures.Executor, or a dask.distributed.Client
    retries: int = 2
    time_limit: float | None = None


def answers(
    name: str, work: Callable[[J, torch.device], A], jobs: Jobs[J], where: Where
) -> Generator[tuple[J, A], None, None]:
    """(job, work(job, device)) as the answers come, for every job.

    Close it (``contextlib.closing``): that ends the workers, whatever happened. A task holds as many jobs as take
    a quarter of a second; what dies or fails costs the jobs of its task that were not done, and they are done again.

    Args:
        name: what the user calls that which must be sent to the workers.
        work: run in this process, or in workers with one thread each.

    Raises:
        TypeError, ValueError: at once, where the arguments contradict each other or the work cannot be sent.
        What the work raises; from a worker as TypeError, ValueError, OSError, MemoryError or RuntimeError that names
            the job and the device, with the worker's traceback as a note.
        ChildProcessError: a worker died in one job more often than ``retries``. TimeoutError: a job took too long.
    """
    checks.integer("retries", where.retries, 0)
    if where.time_limit is not None:
        checks.positive("time_limit", where.time_limit)
    if where.devices is None and where.executor is None:
        if where.time_limit is not None:
            raise ValueError("time_limit ends worker processes: give devices=['cpu'] or an executor with it")
        return _here(work, jobs, checks.device("device", where.device))
    if where.devices is not None and where.executor is not None:
        raise ValueError("devices and executor exclude each other; give the one or the other")
    if where.devices is not None and where.device not in ("cpu", torch.device("cpu")):
        raise ValueError("device and devices exclude each other; give the one or the other")
    crew: Crew
    if where.devices is not None:
        crew = Own(one_kind(where.devices))
    else:
        crew = Borrowed(_executor(where), torch.device(where.device))
    settings = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    order = _Order(work, *settings, where.time_limit)
    try:
        crew.take(_do, uuid.uuid4().hex, cloudpickle.dumps(order))
    except Exception as error:
        raise TypeError(
            f"{name} cannot be sent to workers ({error}); make it of functions and plain values"
        ) from error
    return _spread(crew, jobs, where)


def one_kind(devices: Sequence[Device]) -> list[torch.device]:
    """The devices, all of one kind and here as far as that is known without touching them. Raises ValueError."""
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ValueError(f"devices must be a list such as ['cuda:0', 'cuda:1'], not {devices!r}")
    try:
        found = [torch.device(device) for device in devices]
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"devices must name devices of torch, such as 'cuda:0' or 'cpu', not {devices!r}"
        ) from error
    if len({device.type for device in found}) > 1:
        raise ValueError(f"devices must be of one kind, not {devices!r}: a block's numbers depend on the kind")
    if found[0].type == "meta":
        raise ValueError("devices must hold data, not be 'meta'")
    here = torch.cuda.device_count() if found[0].type == "cuda" else None  # makes no CUDA context
    if here is not None:
        found = [torch.device("cuda", device.index or 0) for device in found]
        if max(device.index for device in found) >= here:
            raise ValueError(f"devices names {devices!r}, but {here} CUDA device(s) are available here")
    return found


def _executor(where: Where) -> Any:
    executor = where.executor
    if not isinstance(executor, Executor) and not hasattr(executor, "get_executor"):
        raise TypeError(
            "executor must be a concurrent.futures.Executor or a dask.distributed.Client, "
            f"not {type(executor).__name__}"
        )
    if where.time_limit is not None and isinstance(executor, ThreadPoolExecutor):
        raise ValueError("time_limit ends worker processes, and this executor has threads; leave it out")
    return executor


def _here(
    work: Callable[[J, torch.device], A], jobs: Jobs[J], device: torch.device
) -> Generator[tuple[J, A], None, None]:
    job = None
    while (job := jobs.next(job)) is not None or jobs.wait():
        if job is None:
            continue
        try:
            answer = work(job, device)
        except Exception as error:
            if not jobs.failed(job, error):
                raise
        else:
            yield job, answer


@dataclass
class _Waiting(Generic[J]):
    """A job to be done again; deaths: of workers that had it alone, None where none died."""

    job: J
    deaths: int | None = None


class _Tasks(Generic[J]):
    """Jobs in tasks that grow until one takes ``SECONDS``; a job whose worker died comes back alone.

    together: all go on with what was handed out last, since any worker may get any task; else with what each did last.
    """

    def __init__(self, jobs: Jobs[J], together: bool) -> None:
        self._jobs, self._together, self._size = jobs, together, 1
        self._waiting: deque[_Waiting[J]] = deque()
        self._previous: list[J] = []

    def next(self) -> list[_Waiting[J]]:
        task: list[_Waiting[J]] = []
        while len(task) < self._size and (each := self._one(task)) is not None:
            task.append(each)
            if each.deaths is not None:
                break
        return task

    def _one(self, task: list[_Waiting[J]]) -> _Waiting[J] | None:
        while self._waiting:
            if task and self._waiting[0].deaths is not None:
                return None
            if self._jobs.wanted((each := self._waiting.popleft()).job):
                return each
        previous = task[-1].job if task else self._previous.pop() if self._previous else None
        if (job := self._jobs.next(previous)) is None:
            return None
        if self._together:
            self._previous = [job]
        return _Waiting(job)

    def back(self, task: list[_Waiting[J]], done: int) -> None:
        """The first ``done`` of a task were done; the others wait."""
        if not self._together:
            self._previous.append(task[-1].job)
        self._size = min(MOST, 2 * done) if done == len(task) else max(1, done)
        self._waiting.extendleft(reversed(task[done:]))

    def died(self, task: list[_Waiting[J]]) -> None:
        """A worker died in a task: of many jobs each is a suspect, and comes back alone."""
        for each in task:
            each.deaths = 0 if len(task) > 1 else (each.deaths or 0) + 1
        self._waiting.extend(task)


def _spread(crew: Crew, jobs: Jobs[J], where: Where) -> Generator[tuple[J, Any], None, None]:
    tasks, busy = _Tasks(jobs, crew.together), dict[Future, list[_Waiting[J]]]()
    try:
        while True:
            while crew.room(len(busy)) and (task := tasks.next()):
                busy[crew.submit([each.job for each in task])] = task
            if not busy:
                if jobs.wait():
                    continue
                return
            bad: list[tuple[J, Exception]] = []
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                task, death = busy.pop(future), crew.ended(future)
                if death is not None:
                    if len(task) == 1 and (death.late or (task[0].deaths or 0) >= where.retries):
                        bad.append((task[0].job, _lost(task[0].job, death, where)))
                    else:
                        tasks.died(task)
                    continue
                told = future.result()
                tasks.back(task, len(told))
                for each, (failure, answer) in zip(task, told, strict=False):
                    if failure is None:
                        yield each.job, answer
                    else:
                        bad.append((each.job, _raised(each.job, *failure)))
            for job, error in bad:
                if not jobs.failed(job, error):
                    raise error
    finally:
        crew.close(busy)


def _lost(job: Any, death: Death, where: Where) -> Exception:
    if death.late:
        return TimeoutError(f"{job} took longer than time_limit = {where.time_limit:g} seconds")
    hint = f"; {death.hint}" if death.hint else ""
    return ChildProcessError(f"{death.how} in {job}{hint}")


def _raised(job: Any, kind: type[Exception], text: str, trace: str, device: str) -> Exception:
    where = f"on {device}" if str(job) in text else f"{job}, on {device}"
    error = kind(f"{text} ({where})")
    error.add_note(f"In the worker process:\n{trace}")
    return error


@dataclass(frozen=True)
class _Order:
    work: Callable[..., Any]
    dtype: torch.dtype
    precision: str
    time_limit: float | None
    home: str = _HOME


def _do(token: str, sent: bytes, device_name: str, jobs: list[Any]) -> list[tuple[Any, Any]]:
    """In a worker: (what went wrong or None, answer) of the first jobs, until time is up or one fails."""
    ends, device = time.monotonic() + SECONDS, torch.device(device_name)
    told: list[tuple[Any, Any]] = []
    for job in jobs:
        try:
            order = _ready(token, sent, device)
            with _Alarm(order):
                told.append((None, order.work(job, device)))
        except (Exception, SystemExit) as error:
            told.append(((*_told(error), device_name), None))
            break
        if time.monotonic() > ends:
            break
    return told


class _Alarm:
    """Ends this worker where a job takes too long."""

    def __init__(self, order: _Order) -> None:
        if order.time_limit is not None and order.home == _HOME:
            raise ValueError("time_limit ends worker processes, and this executor has threads; leave it out")
        limit = order.time_limit
        self._timer = None if limit is None else threading.Timer(limit, os._exit, [LATE])

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _ready(token: str, sent: bytes, device: torch.device) -> _Order:
    """The order, opened once in each thread."""
    if getattr(_held, "token", None) != token:
        _held.token, _held.order = None, None  # two at once might not fit into memory
        try:
            order = pickle.loads(sent or kept(token))
        except Exception as error:
            raise TypeError(f"the worker cannot load it ({error}); its modules must be installed there") from error
        if order.home != _HOME:
            torch.set_num_threads(1)  # or the last bits of some operations would depend on the number of workers
            torch.set_default_dtype(order.dtype)
            torch.set_float32_matmul_precision(order.precision)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            torch.Generator(device)
        except RuntimeError as error:
            raise ValueError(f"{device} is not available in this worker") from error
        _held.token, _held.order = token, order
    return _held.order


def _told(error: Exception | SystemExit) -> tuple[type[Exception], str, str]:
    kind = next(
        (kind for kind in (TypeError, ValueError, OSError, MemoryError) if isinstance(error, kind)), RuntimeError
    )
    text = str(error) if type(error) is kind else f"{type(error).__name__}: {error}"
    return kind, text, "".join(traceback.format_exception(error))
