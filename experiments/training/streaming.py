"""Correlated noise for large models: state, memory and time of a step, beside normals alone.

Paper: Dvijotham, McMahan, Pillutla, Steinke, Thakurta (2024), noise of a few buffers; here rows and
columns are scaled.
Command:  python experiments/training/streaming.py
Expected: the step's time is a small multiple of ``torch.randn``'s; the state is buffers x size
numbers, bands less one
    times size with bands, nothing for independent noise, whatever the number of steps.
Output: results/training/streaming/streaming.csv; peak: of the process, bytes for each parameter,
with gradients.
Artifact: - | what correlated noise costs
Status: agrees
Time: 5 minutes; --smoke in seconds.
"""

import resource
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from torchdp.factorization import factorize_buffered
from torchdp.factorization.solvers.banded_solver import banded_toeplitz
from torchdp.simulate import Experiment
from torchdp.training import CorrelatedNoise
from torchdp.workloads import RunningSums


@dataclass(frozen=True)
class Config:
    size: int = 110_000_000
    steps: int = 100
    measured: int = 5  # of each but the last, whose steps are all measured


def nanoseconds(step, times, size, name="torch.randn"):
    """Of a step and a number."""
    progress = tqdm(range(times), name, disable=None)
    begun = time.perf_counter()
    for _ in progress:
        step()
    return (time.perf_counter() - begun) / times / size * 1e9


def measure(config, report):
    gradient = torch.zeros(config.size)
    c = torch.as_tensor(banded_toeplitz(np.ones(config.steps, np.float32), 4, 2.0))
    steps = torch.arange(config.steps)
    age = steps[:, None] - steps
    strategies = {
        "independent": torch.eye(config.steps, dtype=torch.float64),
        "4 bands": torch.where((age >= 0) & (age < 4), c[age.clamp(0, 3)], 0.0),
        "4 buffers": factorize_buffered(RunningSums(config.steps), 4, 2.0).strategy,
    }

    def row(noise, steps, ns, state=0, peak=None):
        report.row(
            "streaming",
            noise=noise,
            steps=steps,
            state_bytes=state,
            ns=ns,
            ratio=ns / normals,
            peak_bytes=peak,
        )

    normals = nanoseconds(gradient.normal_, config.measured, config.size)
    row("torch.randn, float32", config.measured, normals)
    for name, strategy in strategies.items():
        noise = CorrelatedNoise(strategy.to(gradient.device), config.size, 1.0)
        times = config.steps if name == "4 buffers" else config.measured
        ns = nanoseconds(partial(noise, gradient), times, config.size, name)
        state = noise.secret_state()["past"].numel() * 4 / config.size
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / config.size
        row(name, times, ns, state, peak)
        del noise


EXPERIMENT = Experiment(measure, Config(), Config(10_000, 20, 3))

if __name__ == "__main__":
    EXPERIMENT.main()
