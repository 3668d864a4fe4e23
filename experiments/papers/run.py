"""A paper, claim by claim: its scripts are run, their tables are judged, and a page says what came
of it.

Command: python experiments/papers/run.py NAME, or python3 run.py paper NAME; NAME: pairwise,
factorization, gaussian,
    sketching or densities. --scale smoke takes a minute or two, laptop at most half an hour.
    Killed, it resumes where it stopped. It writes page.md and claims.csv, and ends with 1 where a
    script failed, a number differs or a promise of this package is broken.
"""

import argparse
import fcntl
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import papers_page
from papers_base import FAILURES, LEGEND, Figure, Finding, Paper, Part, database, load
from tqdm import tqdm

from torchdp import checks
from torchdp.simulate.code import package
from torchdp.simulate.report import write_table
from torchdp.text import say

EXPERIMENTS = Path(__file__).resolve().parents[1]
SCALES = ("smoke", "laptop", "full")


@dataclass(frozen=True)
class Options:
    """How much is computed, on which device, and the folder of real data."""

    scale: Literal["smoke", "laptop", "full"] = "laptop"
    device: str | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a part: its findings, or why there are none; seconds: of CPU time."""

    part: Part
    folder: Path
    seconds: float
    findings: Sequence[Finding]
    failure: str = ""


def run_paper(paper, experiments, out, options):
    """Runs what has not yet been run with these arguments and this code; then writes claims.csv
    and page.md.

    Killed, it goes on where it stopped. Raises OSError, ValueError.
    """
    with tqdm(paper.parts, unit="script", file=sys.stderr) as bar:
        outcomes = []
        for part in bar:
            bar.set_description(part.script)
            outcomes.append(_outcome(part, experiments, out, options))
    _write(paper, outcomes, out)
    return outcomes


def _outcome(part, experiments, out, options) -> Outcome:
    if part.data and options.data is None:
        lacking = part.lacking(f"without --data FOLDER, which holds {part.holds}")
        return Outcome(part, part.at(out), 0.0, (lacking,))
    folder = part.at(out)
    folder.mkdir(parents=True, exist_ok=True)
    command = command_of(part, experiments, folder, options)
    mark = folder / "finished.json"
    # a script imports what lies beside it
    script = experiments / part.script
    sources = [path.read_bytes() for path in sorted(script.parent.glob("*.py"))]
    digest = hashlib.sha256(b"".join(sources)).hexdigest()
    made = {"arguments": command[1:], "script": digest, "package": package()}
    known = json.loads(mark.read_text()) if mark.exists() else {}
    if {name: known.get(name) for name in made} != made:
        code, spent = _run(command, folder)
        if code:
            log = folder / "output.log"
            text = log.read_text(encoding="utf-8", errors="replace")
            _, _, last = text.strip().rpartition("\n")
            return Outcome(part, folder, spent, (), last or f"exit code {code}")
        known = {**made, "seconds": spent, "device": _device(folder)}
        mark.with_suffix(".part").write_text(json.dumps(known))
        mark.with_suffix(".part").replace(mark)
    try:
        findings = part.judge(database(part.tables(out)))
    # a table that lacks what is judged
    except (LookupError, TypeError, ValueError, sqlite3.Error) as error:
        return Outcome(part, folder, known["seconds"], (), f"{type(error).__name__}: {error}")
    return Outcome(part, folder, known["seconds"], findings)


def command_of(part, experiments, out, options: Options):
    """What is run: the script itself, or ``torchdp sweep`` where it is a grid."""
    path = experiments / part.script
    start = [sys.executable, str(path)]
    if "def experiment(" in path.read_text(encoding="utf-8"):
        start = [sys.executable, "-m", "torchdp", "sweep", str(path)]
    device = ["--device", options.device] if options.device else []
    data = [part.data, str(options.data)] if part.data else []
    return [*start, "--out", str(out), *device, *data, *getattr(part, options.scale)]


def _run(command: Sequence[str], folder):
    """Exit code and CPU-seconds. Waits for a process of an earlier, killed run that still writes to
    this folder.
    """
    with (
        open(folder / "lock", "w") as lock,
        open(folder / "output.log", "a", encoding="utf-8") as log,
    ):
        with suppress(OSError):  # a file system without locks
            # the script inherits it, and keeps it if this process is killed
            fcntl.flock(lock, fcntl.LOCK_EX)
        log.truncate(0)
        before = os.times()
        code = subprocess.call(
            command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()]
        )
        after = os.times()
    return code, sum(after[2:4]) - sum(before[2:4])  # of children: user, system


def _device(folder):
    """Where the last run was, as its report says."""
    runs = folder / "runs.jsonl"
    if not runs.exists():
        return "cpu"
    *_, line = runs.read_text(encoding="utf-8").strip().splitlines()
    last = json.loads(line)
    return last.get("device_name") or last.get("device") or "cpu"


def found_by(paper: Paper, outcomes: Sequence[Outcome]) -> papers_page.Found:
    """Each finding with its script, and what no script looks at."""
    judged = [(one.part.script, found) for one in outcomes for found in one.findings]
    return [*judged, *(("", found) for found in paper.rest)]


def _write(paper: Paper, outcomes: Sequence[Outcome], out: Path) -> None:
    found = found_by(paper, outcomes)
    names = ["script", *(each.name for each in fields(Finding))]
    out.mkdir(parents=True, exist_ok=True)
    rows = [{"script": script, **vars(finding)} for script, finding in found]
    write_table(out / "claims.csv", names, rows)
    docs = os.path.relpath(EXPERIMENTS.parent / "docs", out) + "/"

    def place(part: Part, figure: Figure) -> str:
        path = part.at(Path()) / figure.file
        return path.as_posix() if (out / path).exists() else ""

    page = [*papers_page.section(paper, found, docs), *papers_page.figures(paper, place)]
    page += ["## Verdicts\n", papers_page.legend(), ""]
    (out / "page.md").write_text("\n".join(page), encoding="utf-8")


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--scale", choices=SCALES, default="laptop", help="default: %(default)s")
    parser.add_argument(
        "--device", help="such as cuda:1 or cpu (default: the first CUDA device, else the CPU)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="of real data: scripts that need them"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: results/papers/NAME")
    parser.add_argument(
        "--experiments", type=Path, default=EXPERIMENTS, help="default: %(default)s"
    )
    given = parser.parse_args(arguments)
    try:
        paper = load(given.experiments / "papers", given.name)
        if given.device is not None:
            checks.device("--device", given.device)
        if given.data is not None and not given.data.is_dir():
            raise ValueError(
                f"--data must be a folder with real data; there is none at {given.data}"
            )
    except ValueError as error:
        parser.error(str(error))
    out = given.out or Path("results/papers", given.name)
    outcomes = run_paper(
        paper, given.experiments, out, Options(given.scale, given.device, given.data)
    )
    found = found_by(paper, outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    say(f"{papers_page.counted(found)}; {seconds:.0f} CPU-seconds", out / "page.md")
    verdicts = {finding.verdict for _, finding in found}
    for verdict in LEGEND:
        if verdict in verdicts:
            say(f"{verdict}: {LEGEND[verdict]}")
    failed = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failed:
        log = outcome.folder / "output.log"
        say(f"{outcome.part.script} failed: {outcome.failure}; see {log}", error=True)
    return int(bool(failed) or not verdicts.isdisjoint(FAILURES))


if __name__ == "__main__":
    sys.exit(main())
