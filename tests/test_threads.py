"""Solvers of small matrices work in one thread, and leave every thread's number as it was."""

import threading
from collections import Counter

import laws
import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchdp import domains, queries, workloads
from torchdp.factorization import (
    approximate,
    factorize,
    factorize_buffered,
    factorize_epochs,
    factorize_separated,
    gamma2_dual,
    signature_form,
    train,
)
from torchdp.threads import SMALL, one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_new_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@one_thread
def seen(matrix=None, fails=False):
    if fails:
        raise ArithmeticError("as planned")
    return (
        torch.get_num_threads(),
        in_a_new_thread(torch.get_num_threads),
        one_thread(torch.get_num_threads)(),
    )


@pytest.mark.parametrize(
    ("matrix", "inside"),
    [
        (None, 1),
        (torch.ones(9, SMALL), 1),
        (torch.ones(SMALL + 1, 2), 2),
    ],
)
def test_one_thread_inside_for_the_caller_alone_and_all_as_before_outside(matrix, inside):
    assert seen(matrix) == (inside, 2, 1) == seen(matrix=matrix)
    with pytest.raises(ArithmeticError, match="as planned"):
        seen(matrix, fails=True)
    assert torch.get_num_threads() == in_a_new_thread(torch.get_num_threads) == 2


def test_threads_in_and_out_in_any_order_change_nobodys_number():
    start = threading.Barrier(9)
    found = []

    def work(own):
        # from here on the thread has a number of its own
        torch.get_num_threads()
        torch.set_num_threads(own)
        start.wait()
        start.wait()
        found.extend((seen()[0], torch.get_num_threads() - own) for _ in range(20))

    threads = [threading.Thread(target=work, args=(own,)) for own in (2, 2, 2, 2, 2, 3, 3, 1)]
    for thread in threads:
        thread.start()
    start.wait()
    # of threads to come, too
    torch.set_num_threads(2)
    start.wait()
    for thread in threads:
        thread.join()
    assert Counter(found) == {(1, 0): 160}
    assert torch.get_num_threads() == 2
    assert in_a_new_thread(torch.get_num_threads) == 2


class Decompositions(TorchFunctionMode):
    """Counts the calls of torch.linalg by the number of threads that they have."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_function__(
        self,
        func,
        types,
        args=(),
        kwargs=None,
    ):
        if "linalg" in getattr(func, "__name__", "") and "norm" not in func.__name__:
            self.found[torch.get_num_threads()] += 1
        return func(*args, **(kwargs or {}))


X = laws.normal(7, 14, seed=1)
PREFIX = workloads.prefix(12).dense()
CALLS = {
    "factorize": lambda: factorize(X, tol=1e-6),
    "signature": lambda: signature_form(PREFIX + PREFIX.mT, 1e-5),
    "approximate": lambda: approximate(X, 0.1),
    "train": lambda: train(X),
    "dual": lambda: gamma2_dual(X),
    "epochs": lambda: factorize_epochs(PREFIX, 4),
    "separated": lambda: factorize_separated(PREFIX[:6, :6], 3, 2, tol=1e-2),
    "buffered": lambda: factorize_buffered(workloads.RunningSums(8), 1),
    "polytope": lambda: domains.noise_shape(domains.Polytope(X.mT), 3.0),
    "zonotope": lambda: domains.noise_shape(domains.Zonotope(X, X[:, 0]), 2.0),
    "membership": lambda: domains.Polytope(X.mT).contains(X.mT[:5]),
    "choose": lambda: queries.choose(workloads.prefix(5), 1000, 1.0, 1e-6, trust="curator"),
}


@pytest.mark.parametrize("name", CALLS)
def test_nearly_all_decompositions_of_every_solver_have_one_thread(name):
    with Decompositions() as counted:
        CALLS[name]()
    assert counted.found[2] <= max(3, 0.1 * counted.found.total()), counted.found
    assert torch.get_num_threads() == 2
