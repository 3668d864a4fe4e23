"""Where host work runs: small decompositions in one thread, and on the CPU whatever torch's default
device is.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

SMALL = 512  # rows and columns of matrices whose decompositions gain little from a second thread
P = ParamSpec("P")
T = TypeVar("T")
_LOCK = threading.Lock()


def one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """A solver whose work on a CPU the calling thread does alone, where no matrix passed has a side
    above 512.

    Threads of one operation wait for each other, and where other processes hold the cores that
    costs far more time than a small operation takes. ``torch.set_num_threads`` sets the calling
    thread's number and that with which new threads begin: a fresh thread puts the latter back at
    once, and the caller's own comes back after the call, exceptions included. So no other thread
    sees anything, but one that first uses torch in those microseconds.
    """

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        sides = [
            side
            for each in (*args, *kwargs.values())
            if isinstance(each, Tensor)
            for side in each.shape[-2:]
        ]
        before = torch.get_num_threads()
        if before == 1 or max(sides, default=0) > SMALL:
            return function(*args, **kwargs)
        _set_here(1)
        try:
            return function(*args, **kwargs)
        finally:
            _set_here(before)

    return alone


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose tensors that name no device are on the CPU, whatever torch's default device
    is.
    """

    @wraps(function)
    def here(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.get_default_device().type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return here


def _set_here(count: int) -> None:
    """This thread's number of threads, and not that of threads to come."""
    with _LOCK:
        others = _elsewhere(torch.get_num_threads)
        torch.set_num_threads(count)
        if others != count:
            _elsewhere(lambda: torch.set_num_threads(others))


def _elsewhere(function: Callable[[], T]) -> T:
    """What a thread that has not used torch yet returns."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]
