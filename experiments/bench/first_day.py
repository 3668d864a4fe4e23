"""The first day on a GPU as one command: what is right there, then how fast every kernel and every
row of a bench is.

Correctness comes first: the tests of the kernels, which compare each fused kernel with its
reference on the GPU, and the tests that need one. Then each kernel beside its reference, in bytes
of arguments and results a second, with torch's copy as what memory allows; then all benches,
README's rows among them.

Command: python experiments/bench/first_day.py
Expected: every command ends with 0, every kernel is fused.
Output: results/bench/first_day/commands.csv, kernels.csv; the benches' in results/bench/run
Artifact: - | the first hour on a GPU
Status: on a GPU not yet measured
Time: on a GPU not yet measured; --smoke, without tests and benches, seconds on a CPU.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from torchdp.cli.doctor import fault
from torchdp.kernels.dispatch.every import KERNELS
from torchdp.simulate import Experiment

ROOT = Path(__file__).resolve().parents[2]
PARITY = (
    ("-m", "pytest", "-q", "tests/kernels"),
    ("-m", "pytest", "-q", "-m", "gpu"),
)
BENCHES = (("experiments/bench/run.py",),)


@dataclass(frozen=True)
class Config:
    size: int = 2**20  # users, rows or numbers of a kernel's call
    copied: int = 2**28
    commands: bool = True  # tests and benches


def measure(config, report):
    device = torch.get_default_device()
    if config.commands:
        run(PARITY, report)
    source = torch.zeros(config.copied, device=device)
    copy = 2 * source.nbytes / seconds(source.clone) / 1e9
    report.say(f"copy: {copy:.4g} GB/s")
    for kernel in KERNELS:
        why = fault(kernel, device)
        plain = rate(kernel, kernel.plain, device, config.size)
        fused = None if why else rate(kernel, kernel.fused, device, config.size)
        report.row("kernels", kernel=kernel.name, fused=fused, reference=plain, fault=why or "")
    if config.commands:
        run(BENCHES, report)


def rate(kernel, form: Callable[..., object], device, size):
    """1e9 bytes of arguments and results in a second."""
    moved = sum(each.nbytes for each in kernel.result(form, device, size))
    arguments, options = kernel.example(device, size)
    return moved / seconds(lambda: form(*arguments, **options)) / 1e9


def seconds(call: Callable[[], object]):
    """The median; a device's work is waited for."""
    return float(
        Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.05).median
    )


def run(commands, report):
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
        report.row("commands", command=" ".join(command), exit=done.returncode)


EXPERIMENT = Experiment(measure, Config(), Config(2**7, 2**10, False))

if __name__ == "__main__":
    EXPERIMENT.main()
