"""A paper, claim by claim: its scripts are run, their tables are judged, and one page says what came of it."""

import fcntl
import hashlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from tqdm import tqdm

from torchdp import checks
from torchdp.simulate.code import package
from torchdp.simulate.page import Page
from torchdp.simulate.report import Rows, read_table

Scale = Literal["smoke", "laptop", "full"]
Verdict = Literal["agrees", "corrected", "beaten", "behind", "differs", "broken", "compared", "not checkable"]
Tables = Mapping[str, Rows]
SIGMAS = 4.0  # standard errors within which two numbers agree
SLACK = 1e-3  # relative: of an inequality or a comparison
LEGEND: Mapping[Verdict, str] = {
    "agrees": "the number equals the paper's, or the inequality holds, up to what is granted",
    "corrected": "an inequality fails as the paper prints it, at an instance that docs/corrections.md names",
    "beaten": "our error is smaller than that of the paper's method, run here at the same guarantee",
    "behind": "our error is larger than that of the paper's method",
    "differs": "the number is not the paper's: the command ends with 1",
    "broken": "a promise of this package does not hold: the command ends with 1",
    "compared": "two numbers of this package, neither of which the paper prints: no verdict on the paper",
    "not checkable": "no number to compute, or not with the data at hand",
}


@dataclass(frozen=True)
class Finding:
    """What became of one claim. One of the static methods computes the verdict.

    result: "Figure 2". claim: in the paper's terms. measure: which error, and the range in which it was looked at.
    paper, ours: the two numbers, error: the standard error of ours; None where there is none. granted: how far apart
    they may be, relative to the paper's; 4 standard errors are granted always.
    """

    result: str
    claim: str
    measure: str
    paper: float | None
    ours: float | None
    error: float | None
    verdict: Verdict
    granted: float | None = None

    @staticmethod
    def equal(
        result: str,
        claim: str,
        measure: str,
        paper: float,
        ours: float,
        error: float | None = None,
        within: float = 0.0,
    ) -> "Finding":
        """The paper's number: agrees within so much of it, or 4 standard errors; else differs."""
        near = abs(ours - paper) <= _margin(paper, error, within)
        return Finding(result, claim, measure, paper, ours, error, "agrees" if near else "differs", within)

    @staticmethod
    def at_most(
        result: str, claim: str, measure: str, limit: float, ours: float, error: float | None = None
    ) -> "Finding":
        """A promise of this package: agrees where it holds up to a thousandth or 4 standard errors, else broken."""
        holds = ours <= limit + _margin(limit, error)  # not for nan
        return Finding(result, claim, measure, limit, ours, error, "agrees" if holds else "broken", SLACK)

    @staticmethod
    def as_printed(
        result: str, claim: str, measure: str, limit: float, ours: float, error: float | None = None
    ) -> "Finding":
        """An inequality of the paper: agrees where it holds, else corrected, as docs/corrections.md explains."""
        found = Finding.at_most(result, claim, measure, limit, ours, error)
        fails: Verdict = "differs" if math.isnan(ours) else "corrected"
        return found if found.verdict == "agrees" else replace(found, verdict=fails)

    @staticmethod
    def lower(
        result: str, claim: str, measure: str, paper: float, ours: float, error: float | None = None
    ) -> "Finding":
        """Errors of two methods at one guarantee: beaten, behind, or within a thousandth or 4 standard errors."""
        margin = _margin(paper, error)
        verdict: Verdict = "differs" if math.isnan(ours) else "behind"
        if ours <= paper + margin:
            verdict = "beaten" if ours < paper - margin else "agrees"
        return Finding(result, claim, measure, paper, ours, error, verdict, SLACK)

    @staticmethod
    def compared(
        result: str, claim: str, measure: str, other: float, ours: float, error: float | None = None
    ) -> "Finding":
        """Two numbers of this package, the other one in the text: no verdict on the paper."""
        verdict: Verdict = "differs" if math.isnan(ours) or math.isnan(other) else "compared"
        return Finding(result, claim, f"{measure}; beside {other:.4g}", None, ours, error, verdict)

    @staticmethod
    def unchecked(result: str, claim: str, reason: str) -> "Finding":
        """What no program can look at, or not with the data at hand."""
        return Finding(result, claim, reason, None, None, None, "not checkable")


def _margin(value: float, error: float | None, within: float = SLACK) -> float:
    return max(within * abs(value), SIGMAS * (error or 0.0))


@dataclass(frozen=True)
class Part:
    """A script of a paper. judge(tables) yields findings; figures: captions by file name; arguments for each scale.

    data: the script's option for a folder of real data, without which this part is not run; holds: what is in it.
    folder: of its results below the paper's, the script's own where it is "".
    """

    script: str  # below the folder of experiments
    judge: Callable[[Tables], Iterable[Finding]]
    figures: Mapping[str, str] = field(default_factory=dict)
    smoke: Sequence[str] = ("--smoke",)
    laptop: Sequence[str] = ()
    full: Sequence[str] = ()
    data: str = ""
    holds: str = ""
    folder: str = ""

    def command(self, experiments: Path, out: Path, options: "Options") -> list[str]:
        """What is run: the script itself, or ``torchdp sweep`` where it is a grid."""
        path = experiments / self.script
        sweep = "def experiment(" in path.read_text(encoding="utf-8")
        device = ["--device", options.device] if options.device else []
        data = [self.data, str(options.data)] if self.data else []
        start = [sys.executable, *(["-m", "torchdp", "sweep"] if sweep else []), str(path)]
        return [*start, "--out", str(out), *device, *data, *getattr(self, options.scale)]

    def at(self, out: Path) -> Path:
        """Where its results are, below those of the paper."""
        return out / (self.folder or Path(self.script).with_suffix(""))

    def findings(self, out: Path) -> tuple[Finding, ...]:
        """What its tables below ``out`` say. Raises LookupError, TypeError, ValueError, ArithmeticError."""
        return tuple(self.judge({path.stem: read_table(path) for path in sorted(self.at(out).glob("*.csv"))}))

    def lacking(self, reason: str) -> Finding:
        """In the place of findings where it was not run."""
        return Finding.unchecked(self.script, "real data" if self.data else "all of it", reason)


@dataclass(frozen=True)
class Options:
    """How much is computed, on which device, and the folder of real data."""

    scale: Scale = "laptop"
    device: str | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Paper:
    """name: of the command; title: author (year), subject. parts run in this order; rest: what no script looks at."""

    name: str
    title: str
    parts: Sequence[Part]
    rest: Sequence[Finding] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a part: its findings, or why there are none; seconds: of CPU time."""

    part: Part
    folder: Path
    seconds: float
    device: str
    findings: Sequence[Finding]
    failure: str = ""


def run_paper(paper: Paper, experiments: Path, out: Path, options: Options | None = None) -> list[Outcome]:
    """Runs what has not yet been run with these arguments and this code; then writes ``out``/index.html and index.md.

    A script that fails is a line of the page. Killed, it goes on where it stopped. Raises OSError, ValueError.
    """
    checks.instance("paper", paper, Paper)
    options = options or Options()
    with tqdm(paper.parts, unit="script", file=sys.stderr) as bar:
        outcomes = []
        for part in bar:
            bar.set_description(part.script)
            outcomes.append(_outcome(part, experiments, out, options))
    _write(paper, outcomes, out, options.scale)
    return outcomes


def _outcome(part: Part, experiments: Path, out: Path, options: Options) -> Outcome:
    if part.data and options.data is None:
        lacking = part.lacking(f"without --data FOLDER, which holds {part.holds}")
        return Outcome(part, part.at(out), 0.0, "", (lacking,))
    folder = part.at(out)
    folder.mkdir(parents=True, exist_ok=True)
    command, mark = part.command(experiments, folder, options), folder / "finished.json"
    beside = sorted((experiments / part.script).parent.glob("*.py"))  # scripts import what lies there
    source = hashlib.sha256(b"".join(path.read_bytes() for path in beside)).hexdigest()
    made = {"arguments": command[1:], "script": source, "package": package()}
    known = json.loads(mark.read_text()) if mark.exists() else {}
    if {name: known.get(name) for name in made} != made:
        code, spent = _run(command, folder)
        if code:
            lines = (folder / "output.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            failure = (lines or [f"exit code {code}"])[-1]
            return Outcome(part, folder, spent, options.device or "", (), failure)
        known = {**made, "seconds": spent, "device": _device(folder)}
        mark.with_suffix(".part").write_text(json.dumps(known))
        mark.with_suffix(".part").replace(mark)
    try:
        findings = part.findings(out)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # a table that lacks what is judged
        return Outcome(part, folder, known["seconds"], known["device"], (), f"{type(error).__name__}: {error}")
    return Outcome(part, folder, known["seconds"], known["device"], findings)


def _run(command: Sequence[str], folder: Path) -> tuple[int, float]:
    """Exit code and CPU-seconds. Waits for a process of an earlier, killed run that still writes to this folder."""
    with open(folder / "lock", "w") as lock, open(folder / "output.log", "a", encoding="utf-8") as log:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # the script inherits it, and keeps it if this process is killed
        log.truncate(0)
        before = os.times()
        code = subprocess.call(command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()])
        after = os.times()
    return code, sum(after[2:4]) - sum(before[2:4])  # of children: user, system


def _device(folder: Path) -> str:
    """Where the last run was, as its report says."""
    runs = folder / "runs.jsonl"
    last = json.loads(runs.read_text(encoding="utf-8").strip().splitlines()[-1]) if runs.exists() else {}
    return last.get("device_name") or last.get("device") or "cpu"


def _write(paper: Paper, outcomes: Sequence[Outcome], out: Path, scale: Scale) -> None:
    page = Page(paper.title)
    findings = [found for outcome in outcomes for found in outcome.findings] + list(paper.rest)
    counts = Counter(found.verdict for found in findings)
    page.say(
        f"Scale {scale}: {len(findings)} claims; "
        + ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])
        + f"; {sum(outcome.seconds for outcome in outcomes):.0f} CPU-seconds in all."
    )
    for verdict, meaning in LEGEND.items():
        if counts[verdict]:
            page.say(f"{verdict}: {meaning}.")
    for outcome in outcomes:
        if outcome.failure:
            page.say(f"{outcome.part.script} failed: {outcome.failure}", bad=True)
    page.heading("Claim by claim")
    head = ["result", "claim", "measured as", "paper", "ours", "standard error", "verdict"]
    found = ((f, [math.nan if v is None else float(v) for v in (f.paper, f.ours, f.error)]) for f in findings)
    page.table(head, [[f.result, f.claim, f.measure, *numbers, f.verdict] for f, numbers in found])
    for outcome in outcomes:
        for name, caption in outcome.part.figures.items():
            if (outcome.folder / name).exists():
                page.picture(outcome.folder / name, caption, out)
    page.heading("How it was made")
    rows = [[o.part.script, " ".join(getattr(o.part, scale)), o.device, round(o.seconds, 1)] for o in outcomes]
    page.table(["script", "arguments", "device", "CPU-seconds"], rows)
    out.mkdir(parents=True, exist_ok=True)
    page.write(out / "index.html")
