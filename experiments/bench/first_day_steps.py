"""What the children of first_day.py measure, each on one device: rows as lines of JSON.

``python experiments/bench/first_day_steps.py STEP DEVICE [SIZE OR NAME ...]``. On a GPU times are medians of events
after a call that does not count; a rehearsal calls the same functions with small sizes on the CPU, where fused kernels
run in Triton's interpreter.
"""

import csv
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Row = dict[str, Any]


def seconds(call: Callable[[], object], device: torch.device, rounds: int = 7) -> float:
    """The median; the first call's for no rounds."""
    begun = time.perf_counter()
    call()
    spent = [] if rounds else [time.perf_counter() - begun]
    for _ in range(rounds):
        if device.type == "cuda":
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            call()
            after.record()
            after.synchronize()
            spent.append(before.elapsed_time(after) / 1e3)
        else:
            begun = time.perf_counter()
            call()
            spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def facts(device: torch.device) -> Iterator[Row]:
    """What is here."""
    from torchdp.kernels.dispatch import verdicts

    said = {name: verdicts.version(name) for name in ("torch", "triton", "numpy")}
    said |= {"python": platform.python_version(), "cuda": str(torch.version.cuda), "device": str(device)}
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        said |= {"gpu": gpu.name, "GiB": f"{gpu.total_memory / 2**30:.0f}", "kind": f"sm_{gpu.major}{gpu.minor}"}
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        said["driver, clock, power"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    commit = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    said["commit"] = subprocess.run(commit, capture_output=True, text=True).stdout.strip()
    yield from ({"fact": name, "value": value} for name, value in said.items())


def parity(device: torch.device, package: str) -> Iterator[Row]:
    """Every form of a kernel: a trial on public numbers first, then the call itself beside its reference."""
    import forms

    os.environ["TORCHDP_KERNELS"] = "fused"  # what can not run raises, and what a trial refuses
    with torch.device(device):
        for number, (kernel, *given) in enumerate(forms.every()[package]):
            begun, agrees, said = time.perf_counter(), False, ""
            try:
                found = forms.answered(kernel, lambda *a, k=kernel, **o: k(device, *a, **o), *given)
                agrees = kernel.case.agrees(found, forms.answered(kernel, kernel.plain, *given))
            except RuntimeError as error:
                said = str(error)[:300]
            spent = time.perf_counter() - begun
            yield {"kernel": kernel.name, "form": number, "agrees": agrees, "first seconds": spent, "said": said}


def bounds(device: torch.device, many: str) -> Iterator[Row]:
    """Each launch beside the least time that its machine code and its bytes allow (static_kernels.txt)."""
    import compiled

    names, *lines = (HERE / "static_kernels.txt").read_text().splitlines()[1:]
    kind = "sm_80" if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 9 else "sm_90"
    stated = [
        dict(zip(names.split(), re.split("  +", line), strict=True)) for line in lines if line.startswith(kind)
    ]
    with torch.device(device):
        for launch in compiled.launches(float(many)):
            rows, stated = stated[: len(launch.works)], stated[len(launch.works) :]
            if any(row["call"] != launch.name for row in rows):
                raise RuntimeError(f"static_kernels.txt has no row for {launch.name}: write it anew")
            least = sum(total / float(row["e9/s"]) / 1e9 for total, row in zip(launch.totals, rows, strict=True))
            spent = seconds(launch.call, device, 7 if device.type == "cuda" else 0)
            name = f"{rows[0]['kernel'].partition('.')[0]}, {launch.name}"
            yield {"launch": name, "seconds": spent, "least": least, "of the bound": least / spent}


def doctor(device: torch.device) -> Iterator[Row]:
    """``torchdp doctor``: ceilings of this device, the kernels' tiles and shares; of references where none can run."""
    command = [sys.executable, "-m", "torchdp", "doctor", "--json", "--device", str(device)]
    child = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(child.stdout)
    yield {
        "ceilings": found["ceilings"],
        "collect": found["collect"],
        "kept": found.get("kept"),
        "exit": child.returncode,
    }
    for each in found["kernels"]:
        yield {name: each[name] for name in ("kernel", "fault", "n", "seconds", "share", "tiles")}


def rows_of(bench: str, options: list[str]) -> list[Row]:
    command = [sys.executable, str(HERE / "harness.py"), bench, *options]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


def bench(device: torch.device, name: str, *options: str) -> Iterator[Row]:
    """A bench's rows beside those of a CPU in tables/: nanoseconds a unit, and how many times as fast the GPU is."""
    cpu: dict[str, tuple[float, str]] = {}
    for path in sorted((HERE / "tables").glob("*one-thread.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["bench"] == name and row["ns"]:
                    cpu[row["case"]] = float(row["ns"]), path.stem
    seen: set[str] = set()
    for row in rows_of(name, list(options)):
        if row["kind"] == "failed" or row["case"] not in seen:
            seen.add(row["case"])
            there, table = cpu.get(row["case"], (None, ""))
            faster = there and row.get("ns") and there / row["ns"]
            said = row["against"] if row["kind"] == "failed" else ""
            yield {
                "case": row["case"],
                "ns": row.get("ns"),
                "ns on a CPU": there,
                "times as fast": faster,
                "table": table,
                "failed": said,
            }


def paper(device: torch.device, script: str, folder: str, *smoke: str) -> Iterator[Row]:
    """A script, on the device and at the same time on the CPU: seconds, and how much of their tables is alike.

    With --smoke and without a GPU the first is on the device that is not there, which has no numbers.
    """
    there = [sys.executable, str(ROOT / "experiments" / script), *smoke, "--out", folder, "--device", str(device)]
    here = [
        sys.executable,
        str(ROOT / "experiments" / script),
        *smoke,
        "--out",
        folder + "_cpu",
        "--device",
        "cpu",
    ]
    where, environment = None, {**os.environ, "OMP_NUM_THREADS": "4" if device.type == "cuda" else "1"}
    if device.type != "cuda":
        there, where = [sys.executable, "smokes.py", script], ROOT / "tests" / "far"

    def timed(command: list[str], place: Path | None) -> tuple[float, int, str]:
        begun, kind = time.perf_counter(), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        child = subprocess.run(command, cwd=place, env=environment, **kind)
        return time.perf_counter() - begun, child.returncode, child.stdout

    with ThreadPoolExecutor(2) as pool:
        (spent, code, said), (cpu, cpu_code, cpu_said) = pool.map(timed, (there, here), (where, None))
    wrong = [text[-500:] for failed, text in ((code, said), (cpu_code, cpu_said)) if failed]
    if device.type != "cuda":
        wrong += [each for line in said.splitlines() if line[:1] == "{" and (each := json.loads(line)["wrong"])]
    close = alike(Path(folder), Path(folder + "_cpu")) if device.type == "cuda" else ""
    yield {"script": script, "seconds": spent, "seconds on the CPU": cpu, "alike": close, "wrong": wrong}
    if wrong:
        raise SystemExit(1)


def alike(one: Path, other: Path) -> str:
    """How many of the numbers in the tables of two folders differ by less than a tenth; draws are other ones."""
    close = numbers = 0
    for path in sorted(one.glob("*.csv")):
        tables = [list(csv.reader((folder / path.name).open(newline=""))) for folder in (one, other)]
        for mine, theirs in zip(*tables, strict=False):
            for a, b in zip(mine, theirs, strict=False):
                try:
                    x, y = float(a), float(b)
                except ValueError:
                    continue
                numbers += 1
                close += abs(x - y) <= 0.1 * max(abs(x), abs(y))
    return f"{close} of {numbers}"


def sweep(device: torch.device, users: str, repetitions: str) -> Iterator[Row]:
    """Histograms of so many users, each repetition an estimate of its own."""
    from torchdp import randomizers

    n, times = int(users), int(repetitions)
    counts, generator = torch.full((64,), n // 64, device=device), torch.Generator(device).manual_seed(1)
    for kind in ("RandomizedResponse", "HadamardResponse", "OptimizedUnaryEncoding"):
        protocol = getattr(randomizers, kind)(64, 1.0)

        def call(protocol: Any = protocol) -> object:
            return protocol.sample_estimate(counts, generator=generator, sample_shape=(times,))

        yield {
            "call": f"{kind}.sample_estimate",
            "users": n,
            "repetitions": times,
            "seconds": seconds(call, device, 3),
        }


def training(device: torch.device, width: str, depth: str) -> Iterator[Row]:
    """A step of private training: clipped sum of 64 rows, noise, gradients; independent noise is plain DP-SGD's."""
    from torchdp.factorization import factorize_buffered
    from torchdp.noise import SeededNoise
    from torchdp.training import CorrelatedNoise, set_gradients
    from torchdp.training.clipping import Clipper
    from torchdp.workloads import RunningSums

    layers = [torch.nn.Linear(int(width), int(width), bias=False) for _ in range(int(depth))]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU()))).to(device)
    size = sum(each.numel() for each in model.parameters())
    x = torch.randn(64, int(width), generator=torch.Generator().manual_seed(1)).to(device)
    clipper = Clipper(model, torch.nn.functional.mse_loss)
    total = clipper(x, x, 1.0)[0]
    clip = seconds(lambda: clipper(x, x, 1.0), device)
    plain = torch.empty_like(total)
    copied = seconds(lambda: plain.normal_().add_(total), device)
    yield {
        "noise": "torch's normals, added",
        "numbers": size,
        "seconds of noise": copied,
        "seconds a step": clip + copied,
    }
    eye = torch.eye(100, dtype=torch.float64)
    strategies = {
        "independent": eye,
        "two bands": eye + 0.5 * eye.roll(1, 0).tril(-1),
        "4 buffers": factorize_buffered(RunningSums(100), 4, 2.0).strategy,
    }
    for name, strategy in strategies.items():
        noise = CorrelatedNoise(strategy.to(device), size, 1.0, noise=SeededNoise(1, device))
        drawn = seconds(lambda each=noise: each(total), device)

        def step(each: Any = noise) -> None:
            set_gradients(model, each(clipper(x, x, 1.0)[0]))

        yield {
            "noise": name,
            "numbers": size,
            "seconds of noise": drawn,
            "seconds a step": seconds(step, device, 5),
        }
        del noise, step


STEPS = {each.__name__: each for each in (facts, parity, bounds, doctor, bench, paper, sweep, training)}


def main(step: str, device: str, *given: str) -> None:
    for row in STEPS[step](torch.device(device), *given):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
