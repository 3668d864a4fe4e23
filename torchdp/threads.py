"""Where host work runs: small decompositions in one thread, and on the CPU by default."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

# rows and columns of matrices whose decompositions gain little from a second thread
SMALL = 512
P = ParamSpec("P")
T = TypeVar("T")
_LOCK = threading.Lock()


def one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """A solver whose work on a CPU the calling thread does alone, for matrices up to 512 wide.

    Threads of one operation wait for each other, and where other processes hold the cores that
    costs far more time than a small operation takes. ``torch.set_num_threads`` sets the calling
    thread's number and that with which new threads begin: a fresh thread puts the latter back at
    once, and the caller's own comes back after the call, exceptions included. So no other thread
    sees anything, but one that first uses torch in those microseconds.
    """

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        before = torch.get_num_threads()
        if before == 1 or _longest_side((*args, *kwargs.values())) > SMALL:
            return function(*args, **kwargs)
        _set_here(1)
        try:
            return function(*args, **kwargs)
        finally:
            _set_here(before)

    return alone


def _longest_side(values: Iterable[object]) -> int:
    """Of the matrices among these arguments."""
    sides = [max(value.shape[-2:], default=0) for value in values if isinstance(value, Tensor)]
    return max(sides, default=0)


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose tensors that name no device are on the CPU."""

    @wraps(function)
    def here(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.get_default_device().type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return here


def _set_here(count: int) -> None:
    """This thread's number of threads, and not that of threads to come."""
    # Reading and putting back what new threads begin with must not interleave.
    with _LOCK:
        others = _elsewhere(torch.get_num_threads)
        torch.set_num_threads(count)
        if others != count:
            _elsewhere(lambda: torch.set_num_threads(others))


def _elsewhere(function: Callable[[], T]) -> T:
    """What a thread that has not used torch yet returns."""
    # A new one each time: a thread that has used torch keeps the number with which it began.
    with ThreadPoolExecutor(1) as fresh:
        return fresh.submit(function).result()
