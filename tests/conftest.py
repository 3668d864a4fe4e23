"""One thread, unless OMP_NUM_THREADS says another number: the tests' tensors are small, and on busy cores more threads
only wait for each other."""

import os

import pytest
import torch

THREADS = os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start too


@pytest.fixture(scope="session", autouse=True)
def fixed_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(int(THREADS))
    yield
    torch.set_num_threads(threads)
