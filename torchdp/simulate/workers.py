"""Jobs done in this process, in worker processes, or by any executor. It knows no block and no store."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cloudpickle
import torch

from torchdp import checks
from torchdp.simulate.pools import THREADS, Order, ProcessPool, WorkerPool

J = TypeVar("J")
A = TypeVar("A")
Device = torch.device | str
MOST = 256  # jobs in a task


class Jobs(ABC, Generic[J]):
    """What is to be done: asked as it goes, since what is needed may depend on the answers."""

    @abstractmethod
    def next(self, previous: J | None) -> J | None:
        """The next job, for whoever has just done ``previous`` (None: nothing yet); None when nothing is left."""

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

    device: Device | None = None  # torch's default
    devices: Sequence[Device] | None = None
    executor: Any = None  # a concurrent.futures.Executor, or a dask.distributed.Client
    retries: int = 2
    time_limit: float | None = None

    @property
    def place(self) -> Device:
        return torch.get_default_device() if self.device is None else self.device


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
        return _here(work, jobs, checks.device("device", where.place))
    if where.devices is not None and where.executor is not None:
        raise ValueError("devices and executor exclude each other; give the one or the other")
    if where.devices is not None and where.device not in (None, "cpu", torch.device("cpu")):
        raise ValueError("device and devices exclude each other; give the one or the other")
    settings = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        sent = cloudpickle.dumps(Order(work, *settings, where.time_limit))
    except Exception as error:
        raise TypeError(f"{name} cannot be sent to workers ({error}); make it of functions and values") from error
    if where.devices is not None:
        return _spread([ProcessPool(device, sent) for device in one_kind(where.devices)], jobs, where)
    return _spread([WorkerPool(_executor(where), torch.device(where.place), sent)], jobs, where)


def one_kind(devices: Sequence[Device]) -> list[torch.device]:
    """The devices, all of one kind and here as far as that is known without touching them. Raises ValueError."""
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ValueError(f"devices must be a list such as ['cuda:0', 'cuda:1'], not {devices!r}")
    try:
        found = [torch.device(device) for device in devices]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"devices must be of torch, such as 'cuda:0' or 'cpu', not {devices!r}") from error
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
        raise ValueError(THREADS)
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
    """A job, and how many workers died that had it alone."""

    job: J
    deaths: int = 0


class _Tasks(Generic[J]):
    """Jobs in tasks that grow until one takes ``SECONDS``; a job whose worker died comes back alone."""

    def __init__(self, jobs: Jobs[J]) -> None:
        self._jobs, self._size = jobs, 1
        self._again: deque[list[_Waiting[J]]] = deque()
        self._last: dict[WorkerPool, J] = {}  # what each was handed last

    def next(self, pool: WorkerPool) -> list[_Waiting[J]]:
        while self._again:
            if task := [each for each in self._again.popleft() if self._jobs.wanted(each.job)]:
                return task
        task = []
        while len(task) < self._size and (job := self._jobs.next(self._last.pop(pool, None))) is not None:
            self._last[pool] = job
            task.append(_Waiting(job))
        return task

    def back(self, task: list[_Waiting[J]], done: int) -> None:
        """The first ``done`` of a task were done; the others wait."""
        self._size = min(MOST, 2 * done) if done == len(task) else max(1, done)
        self._again.appendleft(task[done:])

    def died(self, task: list[_Waiting[J]]) -> None:
        """A worker died in a task: of many jobs each is a suspect, and comes back alone."""
        for each in task:
            each.deaths += len(task) == 1
            self._again.append([each])


def _spread(pools: Sequence[WorkerPool], jobs: Jobs[J], where: Where) -> Generator[tuple[J, Any], None, None]:
    tasks, busy = _Tasks(jobs), dict[Future, tuple[WorkerPool, list[_Waiting[J]]]]()
    try:
        while True:
            for pool in pools:
                while pool.room() and (task := tasks.next(pool)):
                    busy[pool.submit([each.job for each in task])] = pool, task
            if not busy:
                if jobs.wait():
                    continue
                return
            bad: list[tuple[J, Exception]] = []
            ended = wait(busy, return_when=FIRST_COMPLETED).done
            for future in [each for each in busy if each in ended]:  # as they were submitted
                pool, task = busy.pop(future)
                if (death := pool.ended(future)) is not None:
                    if len(task) == 1 and (isinstance(death, TimeoutError) or task[0].deaths >= where.retries):
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
        for pool in pools:
            pool.close()


def _lost(job: Any, death: OSError, where: Where) -> Exception:
    if isinstance(death, TimeoutError):
        return TimeoutError(f"{job} took longer than time_limit = {where.time_limit:g} seconds")
    how, *hint = death.args
    return ChildProcessError("; ".join([f"{how} in {job}", *hint]))


def _raised(job: Any, kind: type[Exception], text: str, trace: str, device: str) -> Exception:
    where = f"on {device}" if str(job) in text else f"{job}, on {device}"
    error = kind(f"{text} ({where})")
    error.add_note(f"In the worker process:\n{trace}")
    return error
