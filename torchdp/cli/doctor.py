"""``torchdp doctor``: what is installed, what the machine does, and which form of each kernel is used here, and why."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from dataclasses import asdict

import torch

from torchdp import checks
from torchdp.cli import examine
from torchdp.cli.examine import Ceilings, Finding
from torchdp.kernels.dispatch import Kernel, LostDevice, mode, verdicts
from torchdp.kernels.dispatch.every import KERNELS
from torchdp.noise import SeededNoise
from torchdp.randomizers import RandomizedResponse
from torchdp.text import aligned, say

NEEDED = ("torch", "numpy", "scipy", "pandas", "tqdm", "dp-accounting", "cryptography")
OPTIONAL = ("triton", "cvxpy", "cvxpylayers", "matplotlib", "scikit-learn", "dask")
COMPILERS = ("cc", "ptxas", "nvcc")
ON_CPU = "fused kernels need a CUDA device; --interpret tries them in Triton's interpreter"
LOST = "killed the CUDA context when it was tried"
DEAD = "not tried: a kernel has killed this process's CUDA context; later processes do without that kernel"
USERS = 100_000


def doctor(options: argparse.Namespace) -> int:
    """Prints the report; the exit code is 1 where a kernel that was tried is switched off, or collecting fails."""
    chosen = [kernel for kernel in KERNELS if options.only is None or kernel.name in options.only]
    unknown = set(options.only or ()) - {kernel.name for kernel in KERNELS}
    if unknown:
        names = ", ".join(kernel.name for kernel in KERNELS)
        raise ValueError(f"--only: {', '.join(sorted(unknown))} is no kernel; there are {names}")
    mode()  # a bad TORCHDP_KERNELS is said at once
    device = _device(options)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined; none is yet
    report: dict[str, object] = {
        "torchdp": sys.modules["torchdp"].__version__,
        "installed": installed(),
        "machine": machine(),
    }
    report |= {"device": str(device), "interpreted": options.interpret, "mode": mode()}
    if options.interpret:
        findings = [Finding(kernel.name, kernel.trial(device)) for kernel in chosen]
    else:
        try:
            most = examine.ceilings(device)
        except torch.OutOfMemoryError as error:
            raise ValueError(f"{device} has less than 3 GiB of free memory, which the ceilings need") from error
        report["ceilings"] = asdict(most)
        findings = examined(chosen, device, most)
    if device.type == "cuda":
        report["kept"] = kept(device, findings)
    report["kernels"] = [asdict(finding) for finding in findings]
    lost = any(finding.fault == LOST for finding in findings)
    report["collect"] = fault = DEAD if lost else collects(device)
    say(*(json.dumps(report, indent=1).split("\n") if options.json else page(report, findings)))
    tried = options.interpret or device.type == "cuda"
    return int(fault is not None or (tried and any(finding.fault for finding in findings)))


def _device(options: argparse.Namespace) -> torch.device:
    if options.interpret:
        if options.device not in (None, "cpu"):
            raise ValueError(f"--interpret runs on the CPU, not on --device {options.device}")
        return torch.device("cpu")
    found = checks.device_or_best("--device", options.device)
    return torch.device("cuda", found.index or 0) if found.type == "cuda" else found


def installed() -> dict[str, str]:
    """Versions, and where the compilers lie."""
    found = {
        "python": platform.python_version(),
        **{name: verdicts.version(name) for name in (*NEEDED, *OPTIONAL)},
    }
    try:
        import triton  # noqa: F401
    except Exception as error:
        if found["triton"] != "absent":
            found["triton"] += f", which does not import: {type(error).__name__}: {error}"
    return found | {name: shutil.which(name) or "absent" for name in COMPILERS}


def machine() -> dict[str, str]:
    """The processor and every CUDA device."""
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch"
    found = {"cpu": f"{platform.machine()}, {threads}, {torch.backends.cpu.get_cpu_capability()}"}
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        kind = "ROCm" if torch.version.hip else f"sm_{facts.major}{facts.minor}"
        found[f"cuda:{index}"] = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, {kind}"
    if not torch.cuda.device_count() and shutil.which("nvidia-smi"):
        found["cuda"] = f"nvidia-smi is here, but torch {torch.__version__} sees no device: a CPU build of torch?"
    return found


def examined(kernels: list[Kernel], device: torch.device, most: Ceilings) -> list[Finding]:
    """One after the other; where one kills the CUDA context, the rest in another process."""
    if device.type != "cuda":
        return [examine.plain(kernel, device, most, ON_CPU) for kernel in kernels]
    findings: list[Finding] = []
    for place, kernel in enumerate(kernels):
        try:
            tune = all(each.package != kernel.package for each in kernels[:place])
            findings.append(examine.fused(kernel, device, most, tune))
        except LostDevice:
            findings.append(Finding(kernel.name, LOST, forms={"": LOST}))
            kept(device, findings)  # before anybody else meets that kernel
            return findings + elsewhere([each.name for each in kernels[place + 1 :]], device)
    return findings


def elsewhere(names: list[str], device: torch.device) -> list[Finding]:
    """What a process of its own finds of these kernels."""
    if not names:
        return []
    command = [sys.executable, "-m", "torchdp", "doctor", "--json", "--device", str(device), "--only", *names]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return [Finding(**found) for found in json.loads(child.stdout)["kernels"]]
    except (ValueError, KeyError, TypeError):
        return [Finding(name, "could not be tried: its process ended early") for name in names]


def kept(device: torch.device, findings: list[Finding]) -> str | None:
    """Where the verdicts lie now, with those of other kernels; None where they can not be kept."""
    old = verdicts.read(device)
    packages = {kernel.name: kernel.package for kernel in KERNELS}
    faults = old.faults | {each.kernel: old.faults.get(each.kernel, {}) | each.forms for each in findings}
    tiles = old.tiles | {packages[finding.kernel]: finding.tiles for finding in findings if finding.tiles}
    file = verdicts.write(device, verdicts.Verdicts(faults, tiles))
    return None if file is None else str(file)


def collects(device: torch.device) -> str | None:
    """What goes wrong where users are collected on this device as any caller would; None: nothing."""
    oracle = RandomizedResponse(16, 1.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the table has said it
            tally = oracle.collect(torch.arange(USERS, device=device) % 16, noise=SeededNoise(0, device))
            error = float((oracle.totals(tally) / USERS - 1 / 16).abs().max())
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    deviation = float((oracle.workload_variance(torch.eye(16, dtype=torch.float64)).max() / USERS).sqrt())
    return None if error < 6 * deviation else f"a share is wrong by {error / deviation:.1f} standard deviations"


def page(report: dict, findings: list[Finding]) -> list[str]:
    """The report's lines."""
    found: dict[str, str] = report["installed"]
    here = [f"{name} {found[name]}" for name in ("python", *NEEDED, *OPTIONAL) if found[name] != "absent"]
    lines = [f"torchdp    {report['torchdp']}", "installed  " + ", ".join(here)]
    absent = [name for name in (*NEEDED, *OPTIONAL, *COMPILERS) if found[name] == "absent"]
    lines += ["absent     " + ", ".join(absent)] * bool(absent)
    lines += ["compilers  " + (", ".join(found[name] for name in COMPILERS if found[name] != "absent") or "none")]
    lines += [f"{name:9}  {facts}" for name, facts in report["machine"].items()]
    if "ceilings" in report:
        most = Ceilings(**report["ceilings"])
        rates = f"copy {most.bytes / 1e9:.3g} GB/s, float32 product {most.flops / 1e9:.3g} Gflop/s"
        lines += [f"rates      {rates}, normals {most.normals / 1e9:.3g} G/s on {report['device']}"]
    where = "in Triton's interpreter, on the CPU" if report["interpreted"] else f"on {report['device']}"
    lines += ["", f"kernels {where}, TORCHDP_KERNELS={report['mode']}", *table(findings)]
    if report.get("kept"):
        lines += ["", f"kept in {report['kept']}"]
    fault = report["collect"]
    return [*lines, "", f"collect on {report['device']}: " + (f"FAILS: {fault}" if fault else "works")]


def table(findings: list[Finding]) -> list[str]:
    """A line for each kernel; a reason that several share is said once, below."""
    reasons = list(dict.fromkeys(finding.fault for finding in findings if finding.fault))
    rows: list[tuple[str, ...]] = [("kernel", "verdict", "n", "ms", "of rate", "tiles")]
    for finding in findings:
        verdict = f"reference [{reasons.index(finding.fault) + 1}]" if finding.fault else "agrees"
        time = "" if finding.seconds is None else f"{1e3 * finding.seconds:.3g}"
        share = "" if finding.share is None else f"{100 * finding.share:.3g} %"
        tiles = ", ".join(f"{name} {size}" for name, size in finding.tiles.items())
        rows.append((finding.kernel, verdict, f"{finding.n:,}" if finding.n else "", time, share, tiles))
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines = aligned(list(zip(*kept, strict=True)))
    return lines + [f"[{number}] {reason}" for number, reason in enumerate(reasons, 1)]
