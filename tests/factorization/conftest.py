"""Small matrices: more threads only wait for each other, and on a busy machine four times as long."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
