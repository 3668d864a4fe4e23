"""CPU seconds of small solvers with torch's threads as they come, beside processes that hold the cores.

    python experiments/bench/threads.py [--busy 4] [--threads 2]

Each call runs in processes of its own: with one thread, and with ``--threads``, while ``--busy`` others compute. The
solvers of ``torchdp.threads.one_thread`` should take about as long either way; without it these took up to 640 times
the CPU time of one thread. Exits with 1 where one takes more than twice.
"""

import argparse
import os
import subprocess
import sys
from multiprocessing import Process

CALLS = {
    "factorize(prefix(128))": "factorize(workloads.prefix(128))",
    "train(prefix(256)), 200 steps": "train(workloads.prefix(256), steps=200)",
    "factorize(RunningSums(1e6))": "factorize(workloads.RunningSums(10**6))",
    "zonotope of 20 generators in 30 dimensions": "domains.noise_shape(domains.Zonotope(x, x[:, 0]), 2.0)",
}
PROGRAM = """
import time, torch
from torchdp import domains, workloads
from torchdp.factorization import factorize, train
x = torch.randn(30, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
factorize(workloads.prefix(4))
start = time.process_time()
{}
print(time.process_time() - start)
"""


def seconds(call: str, threads: int) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    others = [Process(target=spin, daemon=True) for _ in range(asked.busy)]
    for other in others:
        other.start()
    slow = False
    for name, call in CALLS.items():
        one, several = (seconds(call, threads) for threads in (1, asked.threads))
        slow |= several > 2 * one + 0.1
        print(f"{name}: {one:.2f} CPU-s with one thread, {several:.2f} with {asked.threads}", flush=True)
    sys.exit(slow)
