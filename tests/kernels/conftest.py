"""Fused kernels run on the GPU where there is one, elsewhere through Triton's interpreter, from the
same tests.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # read when a kernel is defined: before any fused module is imported
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device():
    """Where fused kernels can run."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
