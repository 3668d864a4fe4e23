"""A paper, claim by claim: its scripts are run, their tables are judged, and one table says what
came of it.

Command: python experiments/papers/run.py NAME, or python3 run.py paper NAME; NAME: pairwise,
factorization, gaussian,
    sketching or densities. --scale smoke takes a minute or two, laptop at most half an hour.
    Killed, it resumes where it stopped. It ends with 1 where a script failed, a number differs or a
    promise of this package is broken.
"""

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from papers_base import LEGEND, Finding, Options, Part, Scale, load
from tqdm import tqdm

from torchdp import checks
from torchdp.simulate.code import package
from torchdp.simulate.report import write_table
from torchdp.text import say

EXPERIMENTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Outcome:
    """What became of a part: its findings, or why there are none; seconds: of CPU time."""

    part: Part
    folder: Path
    seconds: float
    findings: Sequence[Finding]
    failure: str = ""


def run_paper(paper, experiments, out, options):
    """Runs what has not yet been run with these arguments and this code; then writes
    ``out``/claims.csv.

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
    command = part.command(experiments, folder, options)
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
        findings = part.findings(out)
    # a table that lacks what is judged
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        return Outcome(part, folder, known["seconds"], (), f"{type(error).__name__}: {error}")
    return Outcome(part, folder, known["seconds"], findings)


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


def _write(paper, outcomes: Sequence[Outcome], out):
    findings = [found for outcome in outcomes for found in outcome.findings] + list(paper.rest)
    names = [each.name for each in fields(Finding)]
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "claims.csv", names, map(vars, findings))


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--scale", choices=get_args(Scale), default="laptop", help="default: %(default)s"
    )
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
    counts = Counter(each.verdict for outcome in outcomes for each in outcome.findings)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    seconds = sum(outcome.seconds for outcome in outcomes)
    say(f"{said}; {seconds:.0f} CPU-seconds", out / "claims.csv")
    for verdict in counts:
        say(f"{verdict}: {LEGEND[verdict]}")
    failed = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failed:
        log = outcome.folder / "output.log"
        say(f"{outcome.part.script} failed: {outcome.failure}; see {log}", error=True)
    return int(bool(failed) or counts["differs"] > 0 or counts["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main())
