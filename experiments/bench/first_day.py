"""The first day on a GPU as one command: what is right there, how fast it is, and what fails, in under ten minutes.

Command:  python experiments/bench/first_day.py --out FOLDER
          python experiments/bench/first_day.py --out FOLDER --rehearse     (here, without a GPU)
Steps:    parity of every fused kernel in every form (forms.py), the kernels' time over the bound of their machine code
          (static_kernels.txt), torchdp doctor, every bench row beside the CPU's, an experiment of each of the five
          papers at full size with the CPU's time beside, sweeps of 1e9 users, a training step of 1.1e8 parameters
          beside independent noise, the tests that need a GPU. Correctness comes before speed.
          Each is a process of its own with a time limit, on a GPU twice its plan, so that a lost context or a hang
          costs one step. What fails is a row. The same command again goes on: what succeeded is kept.
Output:   FOLDER/first_day.json, written after each step; first_day.html, one page with a figure; first_day.txt, seconds
          by step. --rehearse: the same steps with small sizes on the CPU, kernels in Triton's interpreter, experiments
          on the device that is not there (tests/far); experiments/bench/first_day_rehearsal.txt is such a table.
Expected: every step "ok"; every form agrees. The command ends with 1 otherwise.
Artifact: - | the first hour on a GPU
Status: rehearsed; on a GPU not yet measured
Time: planned 505 seconds on an H100, 600 at most; --rehearse, its --smoke, 20 minutes on two cores shared by eight.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from first_day_page import write
from tqdm import tqdm

from torchdp.kernels.dispatch.every import KERNELS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Found = dict[str, Any]
BENCHES = ("oracles", "vectors", "features", "samplers", "secure", "factorization", "rooms")
PAPERS = {  # with planned seconds, which the CPU's run beside it takes
    "pairwise statistics": ("pairwise/large_domain.py", 25),
    "factorization": ("factorization/lower_bounds.py", 10),
    "means": ("mean/local_central.py", 35),
    "linear transformations": ("sketching/noise.py", 25),
    "kernel densities": ("density/bitsums.py", 60),
}


@dataclass(frozen=True)
class Step:
    """seconds: planned. interpreted: kernels run in Triton's interpreter. together: steps that follow
    one another and share this word run at the same time, as many as half the cores."""

    name: str
    command: tuple[str, ...]
    seconds: float
    interpreted: bool = False
    together: str = ""


def steps(device: str, folder: Path) -> Iterator[Step]:
    """On a GPU; on the CPU a rehearsal of the same, with the seconds that it takes there."""
    python, real = sys.executable, not device.startswith("cpu")

    def measured(*words: str) -> tuple[str, ...]:
        return (python, str(HERE / "first_day_steps.py"), words[0], device, *words[1:])

    yield Step("what is here", measured("facts"), 10)
    for name in dict.fromkeys(kernel.name.partition(".")[0] for kernel in KERNELS):
        yield Step(f"parity: {name}", measured("parity", name), 30 if real else 15, not real, "parity")
    yield Step("time over the bound", measured("bounds", "100" if real else "1e-4"), 40 if real else 60, not real)
    yield Step("doctor", measured("doctor"), 40 if real else 10)
    for name in BENCHES:
        options = ("--rounds", "3") if real else ("--rounds", "1", "--small")
        yield Step(f"bench: {name}", measured("bench", name, *options), 15)
    for paper, (script, planned) in PAPERS.items():
        smoke = () if real else ("--smoke",)
        place = str(folder / script.removesuffix(".py"))
        yield Step(f"paper: {paper}", measured("paper", script, place, *smoke), planned if real else 20)
    yield Step("sweep of 1e9 users", measured("sweep", str(10**9), "1000" if real else "20"), 15)
    yield Step(
        "training step", measured("training", *(("4000", "7") if real else ("64", "3"))), 20 if real else 10
    )
    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    collect = () if real else ("--collect-only",)
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *collect)
    yield Step("tests that need a GPU", (*pytest, "-m", "gpu", *marked), 45 if real else 15)
    yield Step(
        "tests of the kernels", (*pytest, "-m", "not slow", str(ROOT / "tests" / "kernels")), 45 if real else 15
    )


def ran(step: Step, folder: Path, limit: float) -> Found:
    """One child: its rows of JSON, and the end of what else it said."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    if step.interpreted:
        environment["TRITON_INTERPRET"] = "1"
    begun = time.monotonic()
    with (folder / f"{step.name.replace(': ', '-').replace(' ', '_')}.log").open("w+") as log:
        child = subprocess.Popen(
            step.command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(limit)
            status = "ok" if code == 0 else f"exit {code}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)  # with its own children
            child.wait()
            status = f"over {limit:.0f} s"
        log.seek(0)
        lines = log.read().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    if status == "ok" and any(row.get("agrees") is False or row.get("failed") for row in rows):
        status = "wrong"
    said = "\n".join(line for line in lines if not line.startswith("{"))[-1500:]
    spent = time.monotonic() - begun
    return {"status": status, "seconds": spent, "planned": step.seconds, "rows": rows, "said": said}


def stages(every: Sequence[Step]) -> Iterator[list[Step]]:
    """Steps that run at the same time."""
    stage: list[Step] = []
    for step in every:
        if stage and not (step.together and step.together == stage[0].together):
            yield stage
            stage = []
        stage.append(step)
    if stage:
        yield stage


def day(every: Sequence[Step], folder: Path, budget: float, patience: float = 2) -> dict[str, Found]:
    """What was found, by step; in the folder after each stage. patience: times the plan, a step's limit."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path, commands = folder / "first_day.json", {step.name: list(step.command) for step in every}
    kept: dict[str, Found] = json.loads(path.read_text()) if path.exists() else {}
    found = {n: each for n, each in kept.items() if each["status"] == "ok" and each["command"] == commands.get(n)}
    ends = time.monotonic() + budget
    with (
        tqdm(total=len(every), desc="first day", unit="step") as bar,
        ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool,
    ):

        def one(step: Step) -> None:
            left = ends - time.monotonic()
            if step.name in found:
                found[step.name]["planned"] = step.seconds
            elif left < 5:
                found[step.name] = {"status": "no time left", "seconds": 0.0, "planned": step.seconds, "rows": []}
            else:
                bar.set_postfix_str(step.name)
                found[step.name] = ran(step, folder, min(left, patience * step.seconds))
            found[step.name]["command"] = commands[step.name]
            bar.update()

        for stage in stages(every):
            list(pool.map(one, stage))
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps({n: found[n] for n in commands if n in found}, indent=1))
            draft.replace(path)
    return {name: found[name] for name in commands}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder; one of an earlier run goes on")
    parser.add_argument("--rehearse", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--device", default="cuda:0", help="default: %(default)s")
    parser.add_argument("--budget", type=float, help="seconds (600; a rehearsal 3600)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="steps whose names hold one of these")
    given = parser.parse_args(arguments)
    device = "cpu" if given.rehearse else given.device
    if not given.rehearse:
        import torch

        if not torch.cuda.is_available():
            parser.error(f"no GPU: torch {torch.__version__} sees none; --rehearse runs the steps on the CPU")
    every = [
        s for s in steps(device, given.out.resolve()) if not given.only or any(p in s.name for p in given.only)
    ]
    if not every:
        parser.error(
            f"--only: no step is named so; there are {', '.join(s.name for s in steps(device, given.out))}"
        )
    budget, patience = (3600, 20) if given.rehearse else (600, 2)  # other work may keep a CPU busy
    found = day(every, given.out, given.budget or budget, patience)
    for page in write(found, given.out, given.rehearse):
        print(page)
    failed = [f"{name}: {each['status']}" for name, each in found.items() if each["status"] != "ok"]
    print(f"{len(found) - len(failed)} of {len(found)} steps are well", *failed, sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
