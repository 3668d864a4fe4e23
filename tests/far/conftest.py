"""A backend changes its whole process: what needs the device runs in a child, and no other test
meets it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

HERE = Path(__file__).parent
PATH = os.pathsep.join(map(str, [HERE, HERE.parent, HERE.parents[1]]))


@pytest.fixture(scope="session")
def child():
    """What python prints with these arguments, in a process of its own; skips where torch makes no
    such device.
    """
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch makes no device in Python")

    def child(*arguments):
        command = [sys.executable, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": PATH, "TORCHDP_KERNELS": "auto"}
        found = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr[-4000:]
        return found.stdout

    return child
