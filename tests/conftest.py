"""One thread: the tests' tensors are small, and on busy cores more threads only wait for each other."""

import os

import pytest
import torch

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
