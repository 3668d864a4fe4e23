"""All benches, one command, one table for each kind of machine; fails where a ratio fell by more
than 20 %.

Command:  python experiments/bench/run.py [--quick] [--short] [--only oracles vectors] [--keep]
    On a machine that does nothing else, each week and before a release: python3 run.py bench
    The gate of each commit, on any machine, in half a minute: python3 run.py bench --quick
What: every case of every bench beside its floors (a copy, a matrix product, the random numbers
alone) and its peers
    (numpy, published packages; named as absent where they are not installed), each bench in a fresh
    process, in turns, processor time of one thread (on a GPU the wall's, synchronised). times: how
    many times as long as the other takes. MiB: growth of memory during one call, at its highest.
Expected: no row above 1.25 times its ratio in experiments/bench/tables/<machine>.csv, where there
is a table of the
    same processor; a row above it is measured twice more, and the least of the three counts. Else
    the command names the rows and ends with 1. --keep makes this run's rows that table's. Compare
    ratios, not seconds: machines are noisy. --quick: the bench ``calls`` alone, least times, on the
    CPU, beside tables/calls.csv: no call above 1.5 times its row, the least of six measurements. On
    another processor or with other versions than the table's: above 3 times, and it says so,
    because there the ratios are others. With --keep: the table of --quick.
Output: results/bench/run/table.csv: a row for each case and what it is held against.
Artifact: peers | speed and memory
Status: on a CPU; on a GPU not yet measured
Time: under 20 minutes on two cores; --short a third of it; --quick in half a minute; --smoke in a
minute.
    Each bench is a process on the first GPU, else the CPU, whatever --device says.
"""

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from harness import Row

from torchdp.simulate import Experiment
from torchdp.simulate.report import read_table, write_table

HERE = Path(__file__).resolve().parent
BENCHES = ("oracles", "vectors", "features", "samplers", "secure")
FALLEN = 1 / 0.8  # times as long beside the same floor or peer
GATE = "calls"  # the bench of --quick
SLOWER = 1.5  # of the gate
# where its table is of another processor, or of other versions: ratios differ, not that much
SLOWER_ELSEWHERE = 3.0
GATE_REPEATS = 5  # of a row of the gate above that, on a machine that may be busy
COLUMNS = (
    "bench", "case", "ns", "MiB", "kind", "against", "times", "machine", "versions", "commit", "date",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    only: tuple[str, ...] = BENCHES
    quick: bool = False  # the gate
    short: bool = False
    keep: bool = False
    small: bool = False


def measured(bench, config, cases: Sequence[str] = ()):
    """A bench's rows from a fresh process."""
    name = Path(bench).stem
    command = [sys.executable, HERE / "harness.py", bench]
    if config.small:
        command.append("--small")
    if config.short and not config.quick:
        command += ["--rounds", "3"]
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    if config.quick:
        command += ["--times-only", "--least"]
        env["CUDA_VISIBLE_DEVICES"] = ""  # on a GPU time is the wall's, to which busy processes add
    if cases:
        command += ["--cases", *cases]
    child = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
    rows = [{"bench": name, **json.loads(line)} for line in lines]
    if child.returncode:
        why = f"exit {child.returncode}"
        rows.append({"bench": name, "case": "", "kind": "failed", "against": why})
    return rows


def key(row) -> tuple[str, str, str]:
    return row["bench"], row["case"], row["against"]


def fallen(rows: Sequence[Row], committed: Sequence[Row], again, most=FALLEN, repeats=2):
    """Rows above ``most`` times their ratio in all measurements: ``again(bench, cases)`` measures
    once more.

    A row that a repetition clears takes the repetition's numbers. What fails fell.
    """
    was = {key(row): row["times"] for row in committed if row.get("times")}

    def suspects() -> list[Row]:
        timed = [row for row in rows if row.get("times")]
        return [row for row in timed if row["times"] > most * was.get(key(row), float("inf"))]

    for _ in range(repeats):
        cases = {}
        for row in suspects():
            cases.setdefault(row["bench"], []).append(row["case"])
        for bench, names in cases.items():
            found = {key(row): row for row in again(bench, sorted(set(names)))}
            for row in suspects():
                new = found.get(key(row))
                if new and new.get("times") and new["times"] < row["times"]:
                    row |= new
    return suspects() + [row for row in rows if row["kind"] == "failed"]


def machine():
    """The kind of machine: ratios are compared within one kind."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        text = Path("/proc/cpuinfo").read_text()
        said = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.M))
        name = f"{said['model name']} {said['cpu family']}.{said['model']}"
    except (OSError, KeyError):
        name = platform.processor() or platform.machine()
    return f"{name} {torch.backends.cpu.get_cpu_capability()} one thread"


def where():
    """What every row carries."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    versions = (
        f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    )
    return {
        "machine": machine(),
        "versions": versions,
        "commit": commit,
        "date": str(datetime.date.today()),
    }


def gate_limit(committed: Sequence[Row], here: Row):
    """How many times its row a call of the gate may take here."""
    same = all(
        row["machine"] == here["machine"] and row["versions"] == here["versions"]
        for row in committed
    )
    return SLOWER if same else SLOWER_ELSEWHERE


def measure(config, report):
    rows = []
    stamp = where()
    kind = re.sub(r"\W+", "-", stamp["machine"]).strip("-").lower()
    path = HERE / "tables" / f"{GATE if config.quick else kind}.csv"
    for bench in (GATE,) if config.quick else config.only:
        for row in measured(bench, config):
            row |= stamp
            rows.append(row)
            report.row("table", **{name: row.get(name) for name in COLUMNS})
    committed = read_table(path) if path.exists() and not config.small else []
    benches = {row["bench"] for row in rows}
    if not config.small and not benches <= {row["bench"] for row in committed}:
        report.say(
            f"{path.name} lacks some of these benches: nothing to compare them with; --keep writes it"
        )
    most = FALLEN
    if config.quick:
        most = gate_limit(committed, stamp)
        if most > SLOWER:
            report.say(
                f"{path.name} is of another processor or of other versions: a call may take {most} times its row"
            )
    repeats = GATE_REPEATS if config.quick else 2

    def again(bench, cases):
        return measured(bench, config, cases)

    lost = fallen(rows, committed, again, most, repeats)
    report.write("table", [{name: row.get(name) for name in COLUMNS} for row in rows])
    if config.keep:
        path.parent.mkdir(exist_ok=True)
        write_table(path, COLUMNS, [row for row in committed if row["bench"] not in benches] + rows)
    names = {key(row): row.get("times") for row in lost}
    for (bench, case, against), times in names.items():
        report.say(f"FELL: {bench}, {case}, beside {against}: {times}")
    if lost and not config.keep:
        raise SystemExit(1)


EXPERIMENT = Experiment(measure, Config(), Config(short=True, small=True))

if __name__ == "__main__":
    EXPERIMENT.main()
