"""What is known of every fused kernel without a GPU: registers, spills, occupancy, and which resource binds it.

What:     every launcher is called as its rooms call it (compiled.py); what it would launch is compiled for a
          Hopper (sm_90) and an Ampere GPU (sm_80) and disassembled. Registers, stack and shared memory are those of the
          machine code; warps: how many of a multiprocessor's 64 they leave room for. The instructions of a program are
          counted from the machine code, each loop as often as it is passed (both sides of short branches, no
          subroutines), and divided by the throughputs of a multiprocessor: an upper bound of the speed, no measurement.
          A GPU meets it only where warps hide all latency.
Command:  python experiments/bench/static_kernels.py [--write]
          python experiments/bench/static_kernels.py --triton 3.4.0 3.5.1 3.6.0 3.7.0 3.9.0 --targets 80 90 100 --write
          python experiments/bench/static_kernels.py --which tiles --triton 3.9.0 --targets 80 90 --write
Expected: no stack and no spill, and the numbers of static_kernels.txt, which --write writes.
          --triton: every launch compiled by each version, which pip installs without its dependencies into a folder of
          its own beside the table; static_versions.txt. --which tiles: the same with all other sizes of tiles that
          torchdp doctor may choose; static_tiles.txt. The command ends with 1 where one fails or spills.
Output:   results/bench/static_kernels/kernels.csv, a row for each launch and GPU. Beside the resources: instructions
          for a unit of work (of one thread: int, fp32, fp64), bytes; 1e9 units a second at most; what binds,
          and of memory bandwidth the share that is used then; the instructions that write to memory. With --triton
          versions.csv: registers, bytes of stack and of spills, instructions of integers and all (of one thread, for
          a unit; "-" where this version's loops are others), of sm_100 without a roofline.
Peaks:    H100 SXM: 132 multiprocessors at 1.98 GHz, 3.35 TB/s, tf32 494.7e12 (NVIDIA H100 datasheet, 2023: 33.5 TFLOPS
          of FP64, 66.9 of FP32). A100 SXM: 108 at 1.41 GHz, 2.039 TB/s, tf32 156e12 (NVIDIA A100 80GB datasheet, 2021).
          Results a clock of one multiprocessor: CUDA C++ Programming Guide, "Throughput of Native Arithmetic
          Instructions".
Artifact: - | registers, spills, occupancy, roofline of every kernel
Status: compiled; on a GPU not yet measured
Time:     two CPU-minutes, a minute for each version and GPU; --smoke half a minute. On the CPU, whatever --device says.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from torchdp.simulate import Experiment, Report

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "gpu kernel call warps registers stack shared warps_per_sm unit int fp32 fp64 bytes e9/s bound memory writes"
)
SHOWN = ("registers", "stack", "spilled", "int", "all")  # of each version


@dataclass(frozen=True)
class Gpu:
    """clock in GHz; memory in 1e9 bytes a second, shared in bytes; the rest: results a clock of a multiprocessor."""

    processors: int
    clock: float
    memory: float
    shared: int
    tensor: float  # multiply-adds of tf32
    fp32: float
    fp64: float


GPUS = {
    "90": Gpu(132, 1.98, 3350, 233472, 494.7e3 / (2 * 132 * 1.98), 128, 64),
    "80": Gpu(108, 1.41, 2039, 167936, 156e3 / (2 * 108 * 1.41), 64, 32),
}
FP32, FP64 = ("FADD", "FMUL", "FFMA"), ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")
SPECIAL = ("MUFU", "POPC", "F2I", "I2F", "F2F", "FRND", "FLO", "BREV")
MEMORY = ("LD", "ST", "ATOM", "RED", "SHFL")
CONTROL = ("BRA", "BSYNC", "BSSY", "EXIT", "BAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "ERRBAR", "RET")
CONTROL += ("MEMBAR", "HGMMA", "HMMA", "CALL", "YIELD", "ARRIVES", "SYNCS", "FENCE")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]+)([^;]*)")


@dataclass(frozen=True)
class Code:
    """Instructions in their order, (name, operands); the first of each label; loops and branches as (first, last)."""

    instructions: list[tuple[str, str]]
    loops: list[tuple[int, int]]
    branches: list[tuple[int, int]]

    @classmethod
    def read(cls, sass: str) -> "Code":
        """Subroutines, which come at the end, are left out: square roots of denormal numbers and the like."""
        found: list[tuple[str, str]] = []
        labels: dict[str, int] = {}
        end: int | None = None
        for line in sass.split("\n"):
            if label := re.match(r"\s*(\.L_x_\d+):", line):
                labels[label[1]] = len(found)
            elif re.match(r"\s*\$\S+:", line) and end is None:
                end = len(found)
            elif match := INSTRUCTION.search(line):
                found.append((match[2], match[3]))
        end = end or len(found)
        jumps = [
            (place, labels[target[0]])
            for place, (name, rest) in enumerate(found[:end])
            if name.startswith("BRA") and (target := re.search(r"\.L_x_\d+", rest))
        ]
        loops = sorted((to, place) for place, to in jumps if to < place)
        return cls(found[:end], loops, [(place + 1, to - 1) for place, to in jumps if place < to <= end])

    def times(self, trips: list[float], rare: bool) -> list[float]:
        """How often a program passes each instruction."""
        if len(trips) != len(self.loops):
            raise RuntimeError(f"{len(self.loops)} loops, not {len(trips)}: {self.loops}")
        times = [1.0] * len(self.instructions)
        for (first, last), passed in zip(self.loops, trips, strict=True):
            for place in range(first, last + 1):
                times[place] *= passed
        if rare:
            first, last = max(self.branches, key=lambda branch: branch[1] - branch[0])
            times[first : last + 1] = [0.0] * (last + 1 - first)
        return times


def kind(name: str) -> tuple[str, float]:
    """The pipe of an instruction, and how many turns of it it takes."""
    base = name.split(".")[0]
    if base in FP64 or base in FP32:
        return ("fp64" if base in FP64 else "fp32"), 1.0
    if base in SPECIAL:
        return "special", 1.0
    if base.startswith(CONTROL) or base == "NOP" or base.startswith("U"):
        return "issue", 1.0
    if base.startswith(MEMORY):
        return "memory", max(1.0, float(max([int(b) for b in re.findall(r"\.(64|128)", name)], default=32)) / 32)
    return ("imad" if base == "IMAD" else "int"), 1.0


def counted(code: Code, work: dict[str, Any], threads: int) -> Counter[str]:
    """Turns of each pipe for one unit, of all threads; issue: instructions."""
    total: Counter[str] = Counter()
    for (name, _), times in zip(code.instructions, code.times(work["trips"], work["rare"]), strict=True):
        if name != "NOP":
            pipe, turns = kind(name)
            total["issue"] += times
            total[pipe] += times * turns * (pipe != "issue")
    return Counter({pipe: number * threads / work["units"] for pipe, number in total.items()})


def roof(gpu: Gpu, turns: Counter[str], work: dict[str, Any]) -> dict[str, float]:
    """Nanoseconds of the whole GPU for one unit, by resource."""
    both = turns["fp32"] + turns["imad"] * gpu.fp32 / 64  # one pipe: fp32 at its rate, integer products at 64
    clocks = {
        "issue": turns["issue"] / 128,
        "int": turns["int"] / 64,
        "fma": both / gpu.fp32,
        "fp64": turns["fp64"] / gpu.fp64,
        "special": turns["special"] / 16,
        "load/store": turns["memory"] / 32,
        "tensor": work["products"] / gpu.tensor,
    }
    spent = {name: number / (gpu.processors * gpu.clock) for name, number in clocks.items()}
    return {**spent, "memory": work["bytes"] / gpu.memory}


def occupancy(gpu: Gpu, warps: int, registers: int, shared: int) -> int:
    """Warps of a multiprocessor: 64 and 32 blocks at most, 16384 registers for each of four schedulers."""
    by_registers = 16384 // (-(-registers * 32 // 256) * 256) * 4 // warps
    by_shared = gpu.shared // (-(-(shared + 1024) // 128) * 128)
    return warps * min(64 // warps, 32, by_registers, by_shared)


def row(gpu: str, found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        raise RuntimeError(f"{found['kernel']}, {found['call']}: {found['error']}")
    code, work, model = Code.read(found["sass"]), found["work"], GPUS[gpu]
    turns = counted(code, work, 32 * found["warps"])
    spent = roof(model, turns, work)
    bound = max(spent, key=spent.__getitem__)
    cells = (
        *(f"sm_{gpu}", found["kernel"], found["call"], found["warps"], found["REG"], found["STACK"]),
        *(found["shared"], occupancy(model, found["warps"], found["REG"], found["shared"]), work["unit"]),
        *(round(turns["int"] + turns["imad"], 1), round(turns["fp32"], 1), round(turns["fp64"], 1)),
        *(
            round(work["bytes"], 2),
            float(f"{1 / spent[bound]:.3g}"),
            bound,
            round(spent["memory"] / spent[bound], 2),
        ),
        writes(code),
    )
    return dict(zip(COLUMNS.split(), cells, strict=True))


def writes(code: Code) -> str:
    """Instructions that write to memory, by their width in bits, such as "store 128 x8"; local: to a thread's stack."""
    words = {"STG": "store", "RED": "add", "ATOMG": "add", "REDG": "add", "STL": "local"}
    found = Counter(
        f"{words[base]} {next((w for w in ('128', '64', '16', '8') if w in rest), '32')}"
        for base, _, rest in (name.partition(".") for name, _ in code.instructions)
        if base in words
    )
    return ", ".join(f"{name} x{number}" for name, number in sorted(found.items()))


def spilled(sass: str) -> int:
    """Bytes that a thread writes to its stack."""
    return sum(
        int((re.findall(r"\.(64|128)", name) or ["32"])[0]) // 8 for name in re.findall(r"\bSTL[.\w]*", sass)
    )


def resources(version: str, gpu: str, found: dict[str, Any]) -> dict[str, Any]:
    """A row for one version of Triton; the error of what does not compile."""
    cells = {"triton": version, "gpu": f"sm_{gpu}", "kernel": found["kernel"], "call": found["call"]}
    cells |= {"unit": found["work"]["unit"], "error": found.get("error", "")}
    if cells["error"]:
        return cells | dict.fromkeys(SHOWN, "fails")
    cells |= {"registers": found["REG"], "stack": found["STACK"], "spilled": spilled(found["sass"])}
    try:
        turns = counted(Code.read(found["sass"]), found["work"], 32 * found["warps"])
    except RuntimeError:  # a version that merges or unrolls loops
        return cells | {"int": "-", "all": "-"}
    return cells | {"int": round(turns["int"] + turns["imad"], 1), "all": round(turns["issue"], 1)}


def launched(backend: str, architecture: str, which: str = "", triton: Path | None = None) -> list[dict[str, Any]]:
    """What compiled.py prints, in a process of its own: here Triton's interpreter may be at work.

    triton: a folder with another version than the installed one.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if triton is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(triton), environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "compiled.py"), backend, architecture, *[which] * bool(which)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(child.stderr[-3000:])
    return [json.loads(line) for line in child.stdout.splitlines()]


def installed(version: str, folder: Path) -> Path:
    """A folder with this version of Triton, for PYTHONPATH."""
    here = folder / f"triton-{version}"
    if not here.exists():
        part = here.with_suffix(".part")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part)]
        subprocess.run([*pip, f"triton=={version}"], check=True)
        part.rename(here)
    return here


@dataclass(frozen=True)
class Config:
    targets: tuple[str, ...] = ("90", "80")
    triton: tuple[str, ...] = ()  # versions; none: the installed one
    which: Literal["", "first", "tiles"] = ""  # one form of each kernel, or other tiles
    write: bool = False  # the committed table, too


def versions(config: Config, report: Report) -> None:
    """Every launch by every version; raises SystemExit where one fails or spills."""
    rows: list[dict[str, Any]] = []
    for version in config.triton:
        folder = installed(version, report.folder)
        for target in config.targets:
            for found in launched("cuda", target, config.which, folder):
                rows.append(resources(version, target, found))
                report.row("versions", **rows[-1])
    failed = [row for row in rows if row["error"]]
    full = [row for row in rows if not row["error"] and row["stack"] + row["spilled"]]
    said = f"{len(rows)} launches, {len(failed)} do not compile, {len(full)} spill"
    report.say("\n".join([said, *map(str, failed + full)]))
    if config.write:
        name = "static_tiles.txt" if config.which == "tiles" else "static_versions.txt"
        command = f"--triton {' '.join(config.triton)} --targets {' '.join(config.targets)}"
        command = f"--which {config.which} {command}" if config.which else command
        head = f"# python experiments/bench/static_kernels.py {command} --write: {said}"
        (HERE / name).write_text("\n".join([head, *beside(rows, config.triton), ""]))
    if failed or full:
        raise SystemExit(1)


def beside(rows: Sequence[dict[str, Any]], versions: Sequence[str]) -> list[str]:
    """A line for each launch: of each version its registers, integer and all instructions."""
    lines: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["gpu"], row["kernel"], row["call"]), {})[row["triton"]] = row
    table = [["gpu", "kernel", "call", "unit", *(f"{name} {version}" for name in SHOWN for version in versions)]]
    for place, found in lines.items():
        cells = [str(found[version][name]) if version in found else "" for name in SHOWN for version in versions]
        table.append([*place, next(iter(found.values()))["unit"], *(cell or "." for cell in cells)])
    return aligned(table)


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, wide, strict=True)).rstrip() for line in table
    ]


def measure(config: Config, report: Report) -> None:
    if find_spec("triton") is None:
        report.say("Triton is not installed: nothing to compile")
        return
    if config.triton:
        return versions(config, report)
    rows = [row(target, found) for target in config.targets for found in launched("cuda", target, config.which)]
    for cells in rows:
        report.row("kernels", **cells)
    if config.write:
        import triton

        table = [COLUMNS.split(), *([str(cell) for cell in cells.values()] for cells in rows)]
        head = f"# python experiments/bench/static_kernels.py --write; Triton {triton.__version__} and its ptxas"
        (HERE / "static_kernels.txt").write_text("\n".join([head, *aligned(table), ""]))


EXPERIMENT = Experiment(measure, Config(), Config(targets=("90",), which="first"))

if __name__ == "__main__":
    EXPERIMENT.main()
