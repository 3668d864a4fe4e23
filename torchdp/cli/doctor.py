"""``torchdp doctor``: what is installed, the devices, which kernels agree with references."""

import argparse
import os
import platform
import shutil
import sys
from importlib import metadata

import torch

from torchdp import checks
from torchdp.kernels.dispatch import Kernel, mode
from torchdp.kernels.dispatch.every import KERNELS
from torchdp.text import aligned, say

# Those whose versions decide what runs, to be named in a report of a fault.
PACKAGES = (
    "torch numpy scipy pandas tqdm dp-accounting cryptography triton cvxpy cvxpylayers matplotlib "
    "scikit-learn dask"
).split()
ON_CPU = "fused kernels need a CUDA device; --interpret tries them in Triton's interpreter"


def doctor(options: argparse.Namespace) -> int:
    """Prints the report; the exit code is 1 where a kernel that was tried is switched off."""
    # First, so that a bad TORCHDP_KERNELS is said at once.
    mode()
    device = _device(options)
    if options.interpret:
        # Read when a kernel is defined, and none is yet.
        os.environ["TRITON_INTERPRET"] = "1"
    say(*installed(), *machine())
    faults = {kernel: fault(kernel, device, options.interpret) for kernel in KERNELS}
    # Each once, under a number: one cause often switches off every kernel.
    reasons = [reason for reason in dict.fromkeys(faults.values()) if reason]
    rows = [("kernel", "form")]
    for kernel, reason in faults.items():
        form = f"reference [{reasons.index(reason) + 1}]" if reason else "fused"
        rows.append((kernel.name, form))
    where = "in Triton's interpreter" if options.interpret else f"on {device}"
    say("", f"kernels {where}, TORCHDP_KERNELS={mode()}")
    say(*aligned(rows))
    for number, reason in enumerate(reasons, 1):
        say(f"[{number}] {reason}")
    # No CUDA device is no fault of a kernel, which was then not tried.
    return int(any(reason != ON_CPU for reason in reasons))


def fault(kernel: Kernel, device: torch.device, interpreted: bool = False) -> str | None:
    """Why the fused form is not used on this device; None: it is."""
    if device.type != "cuda" and not interpreted:
        return ON_CPU
    try:
        return kernel.fault(device)
    except RuntimeError as error:  # the CUDA context is lost, or memory ran out
        return str(error)


def installed() -> list[str]:
    """Versions, and what is absent."""
    here = [f"torchdp {sys.modules['torchdp'].__version__}", f"python {platform.python_version()}"]
    absent = []
    for name in PACKAGES:
        try:
            # Metadata: importing them all would take seconds, and fail where one is broken.
            here.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            absent.append(name)
    return ["installed  " + ", ".join(here), "absent     " + (", ".join(absent) or "none")]


def machine() -> list[str]:
    """The processor and every CUDA device."""
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch"
    capability = torch.backends.cpu.get_cpu_capability()
    lines = [f"cpu        {platform.machine()}, {threads}, {capability}"]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        kind = "ROCm" if torch.version.hip else f"sm_{facts.major}{facts.minor}"
        memory = facts.total_memory / 2**30
        lines.append(f"cuda:{index}     {facts.name}, {memory:.0f} GiB, {kind}")
    if not torch.cuda.device_count() and shutil.which("nvidia-smi"):
        lines.append(
            f"cuda       nvidia-smi is here, but torch {torch.__version__} sees no device: "
            "a CPU build?"
        )
    return lines


def _device(options: argparse.Namespace) -> torch.device:
    if options.interpret:
        if options.device not in (None, "cpu"):
            raise ValueError(f"--interpret runs on the CPU, not on --device {options.device}")
        return torch.device("cpu")
    found = checks.device_or_best("--device", options.device)
    return torch.device("cuda", found.index or 0) if found.type == "cuda" else found
