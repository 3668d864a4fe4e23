"""Jobs done in this process, or in worker processes, one for each device. It knows no block and no store."""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

import torch

from torchdp import checks

J = TypeVar("J")
A = TypeVar("A")
Device = torch.device | str


def answers(
    name: str,
    work: Callable[[J, torch.device], A],
    choose: Callable[[J | None], J | None],
    device: Device,
    devices: Sequence[Device] | None,
    failed: Callable[[J, Exception], bool] = lambda job, error: False,
) -> Generator[tuple[J, A], None, None]:
    """(job, work(job, device)) as the answers come, for every job that is chosen.

    Close it (``contextlib.closing``): that ends the workers, whatever happened.

    Args:
        name: what the user calls that which must be sent to the workers.
        work: run in this process if ``devices`` is None, else in one process for each device.
        choose: ``choose(previous)`` is the next job for whoever has just answered ``previous`` (None: nothing
            yet), or None when nothing is left. It is asked after the answer to ``previous`` was used.
        failed: ``failed(job, error)`` says whether to go on without that job, in a new process if its own is dead;
            else the error is raised.
        device, devices: as in :func:`torchdp.simulate.run`.

    Raises:
        TypeError, ValueError: at once, where the devices are no list of one kind or the work cannot be sent.
        What the work raises; from a worker as TypeError, ValueError, OSError or RuntimeError that names the job
            and the device, with the worker's traceback as a note.
        ChildProcessError: a worker was killed.
    """
    if devices is None:
        return _here(work, choose, checks.device("device", device), failed)
    if device not in ("cpu", torch.device("cpu")):
        raise ValueError("device and devices exclude each other; give the one or the other")
    return _spread(_sendable(name, work), choose, one_kind(devices), failed)


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


def _here(
    work: Callable[[J, torch.device], A],
    choose: Callable[[J | None], J | None],
    device: torch.device,
    failed: Callable[[J, Exception], bool],
) -> Generator[tuple[J, A], None, None]:
    job = choose(None)
    while job is not None:
        try:
            answer = work(job, device)
        except Exception as error:
            if not failed(job, error):
                raise
        else:
            yield job, answer
        job = choose(job)


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: connection.Connection
    device: torch.device
    job: Any
    answered: bool = False

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # it is dead; receive says so
            self.pipe.send_bytes(data)

    def receive(self) -> Any:
        """The answer, or what went wrong as an exception."""
        try:
            failure, answer = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return self._death()
        self.answered = True
        if failure is None:
            return answer
        kind, text, trace = failure
        where = f"on {self.device}" if str(self.job) in text else f"{self.job}, on {self.device}"
        error = kind(f"{text} ({where})")
        error.add_note(f"In the worker process:\n{trace}")
        return error

    def _death(self) -> ChildProcessError:
        self.process.join(10)
        code = self.process.exitcode
        if code is not None and code < 0:
            known = {each.value: each.name for each in signal.Signals}
            how = f"was killed by {known.get(-code, f'signal {-code}')}"
            hint = "the system kills what takes too much memory" if code == -signal.SIGKILL else ""
        else:
            how, hint = f"ended with exit code {code}", ""
            if not self.answered:
                hint = (
                    "a script that uses devices= must be a file, and must do so under if __name__ == '__main__':"
                )
        hint = f"; {hint}" if hint else ""
        return ChildProcessError(f"the worker process on {self.device} {how} in {self.job}{hint}")


def _spread(
    work: bytes,
    choose: Callable[[J | None], J | None],
    devices: Sequence[torch.device],
    failed: Callable[[J, Exception], bool],
) -> Generator[tuple[J, A], None, None]:
    workers: list[_Worker] = []
    try:
        for device in devices:
            if (job := choose(None)) is not None:
                workers.append(_start(device, job))
        for worker in workers:
            worker.send(work)
            worker.send(pickle.dumps(worker.job))
        busy = {worker.pipe: worker for worker in workers}
        while busy:
            ready = [busy[pipe] for pipe in connection.wait(list(busy))]  # type: ignore[index]
            received = [(worker, worker.receive()) for worker in ready]
            for worker, answer in received:
                if not isinstance(answer, Exception):
                    yield worker.job, answer
            for worker, answer in received:
                if isinstance(answer, Exception) and not failed(worker.job, answer):
                    raise answer
            for worker, answer in received:
                worker.job = choose(worker.job)
                if isinstance(answer, ChildProcessError) and worker.job is not None:
                    busy.pop(worker.pipe).pipe.close()
                    worker = _start(worker.device, worker.job)
                    workers.append(worker)
                    busy[worker.pipe] = worker
                    worker.send(work)
                if worker.job is None:
                    busy.pop(worker.pipe).pipe.close()  # it ends by itself
                else:
                    worker.send(pickle.dumps(worker.job))
        for worker in workers:
            worker.process.join(10)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join(10)
            worker.pipe.close()


def _start(device: torch.device, job: Any) -> _Worker:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    pipe, theirs = context.Pipe()
    settings = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    process = context.Process(target=_serve, args=(theirs, str(device), *settings), daemon=True)
    resource_tracker.ensure_running()  # else it is started, and signals let through, under the mask below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for the parent
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Worker(process, pipe, device, job)


def _serve(pipe: connection.Connection, device_name: str, dtype: torch.dtype, precision: str) -> None:
    """A worker: takes the work, then job after job, until the pipe is closed or the parent gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # or the last bits of some operations would depend on the number of workers
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    device = torch.device(device_name)
    work = None
    try:
        sent = pipe.recv_bytes()
        while True:
            job = pickle.loads(pipe.recv_bytes())
            try:
                work = work or _ready(sent, device)
                reply = pickle.dumps((None, work(job, device)))
            except (Exception, SystemExit) as error:
                reply = pickle.dumps((_told(error), None))
            pipe.send_bytes(reply)
    except (EOFError, OSError):
        return


def _ready(sent: bytes, device: torch.device) -> Callable[[Any, torch.device], Any]:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        torch.Generator(device)
    except RuntimeError as error:
        raise ValueError(f"devices names {device}, which is not available here") from error
    try:
        return pickle.loads(sent)
    except Exception as error:
        raise TypeError(f"the worker cannot load it ({error}); define it in a module or script file") from error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _told(error: Exception | SystemExit) -> tuple[type[Exception], str, str]:
    kind = next((kind for kind in (TypeError, ValueError, OSError) if isinstance(error, kind)), RuntimeError)
    text = str(error) if type(error) is kind else f"{type(error).__name__}: {error}"
    return kind, text, "".join(traceback.format_exception(error))


def _sendable(name: str, work: Callable[..., Any]) -> bytes:
    try:
        return pickle.dumps(work)
    except Exception as error:
        raise TypeError(
            f"{name} cannot be sent to worker processes ({error}); with devices it must be a function at the top level "
            "of a module or script, or made of such ones: no lambda, no function inside a function"
        ) from error
