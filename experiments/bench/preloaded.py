"""A process that has loaded what tests take seconds to load, and runs pytest in a child for each
line it reads.

A line is a JSON list: folder, file for what is printed, seconds, pytest's arguments. The answer is
the exit code, or -1 where the child did not end in time.
"""

import json
import os
import signal
import sys
import time

import numpy  # noqa: F401
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import torch  # noqa: F401


def child(folder, printed, arguments):
    os.setpgid(0, 0)
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    return int(pytest.main(arguments))


def ended(pid, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder, printed, seconds, arguments = json.loads(line)
        if not (pid := os.fork()):
            code = 70
            try:
                code = child(folder, printed, arguments)
            finally:
                sys.stdout.flush()
                os._exit(code)
        print(ended(pid, seconds), file=answers, flush=True)
