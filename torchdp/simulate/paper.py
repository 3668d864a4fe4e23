"""A paper, claim by claim: its scripts are run, their tables are judged, and one page says what came of it."""

import hashlib
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tqdm import tqdm

from torchdp import checks
from torchdp.simulate.code import package
from torchdp.simulate.page import Page
from torchdp.simulate.report import Rows, read_table

Scale = Literal["smoke", "laptop", "full"]
Verdict = Literal["agrees", "corrected", "beaten", "behind", "differs", "not checkable"]
Tables = Mapping[str, Rows]
SIGMAS = 4.0  # standard errors within which two numbers agree


@dataclass(frozen=True)
class Finding:
    """What became of one claim. One of the static methods computes the verdict.

    result: "Figure 2". claim: in the paper's terms. measure: which error, and the range in which it was looked at.
    paper, ours: the two numbers, error: the standard error of ours; None where there is none.
    """

    result: str
    claim: str
    measure: str
    paper: float | None
    ours: float | None
    error: float | None
    verdict: Verdict

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
        near = abs(ours - paper) <= max(within * abs(paper), SIGMAS * (error or 0.0))
        return Finding(result, claim, measure, paper, ours, error, "agrees" if near else "differs")

    @staticmethod
    def at_most(
        result: str, claim: str, measure: str, limit: float, ours: float, error: float | None = None
    ) -> "Finding":
        """An inequality as printed: agrees where it holds up to a thousandth or 4 standard errors, else corrected."""
        holds = ours <= limit + _margin(limit, error)
        verdict: Verdict = "differs" if math.isnan(ours) else "agrees" if holds else "corrected"
        return Finding(result, claim, measure, limit, ours, error, verdict)

    @staticmethod
    def lower(
        result: str, claim: str, measure: str, paper: float, ours: float, error: float | None = None
    ) -> "Finding":
        """Errors of two methods at one guarantee: beaten, behind, or within a thousandth or 4 standard errors."""
        margin = _margin(paper, error)
        verdict: Verdict = "differs" if math.isnan(ours) else "behind"
        if ours <= paper + margin:
            verdict = "beaten" if ours < paper - margin else "agrees"
        return Finding(result, claim, measure, paper, ours, error, verdict)

    @staticmethod
    def unchecked(result: str, claim: str, reason: str) -> "Finding":
        """What no program can look at, or not with the data at hand."""
        return Finding(result, claim, reason, None, None, None, "not checkable")


def _margin(value: float, error: float | None) -> float:
    return max(1e-3 * abs(value), SIGMAS * (error or 0.0))


@dataclass(frozen=True)
class Part:
    """A script of a paper. judge(tables) yields findings; figures: captions by file name; arguments for each scale."""

    script: str  # below the folder of experiments
    judge: Callable[[Tables], Iterable[Finding]]
    figures: Mapping[str, str] = field(default_factory=dict)
    smoke: Sequence[str] = ("--smoke",)
    laptop: Sequence[str] = ()
    full: Sequence[str] = ()

    def command(self, experiments: Path, out: Path, scale: Scale, device: str | None) -> list[str]:
        """What is run: the script itself, or ``torchdp sweep`` where it is a grid."""
        path = experiments / self.script
        sweep = "def experiment(" in path.read_text(encoding="utf-8")
        start = [sys.executable, *(["-m", "torchdp", "sweep"] if sweep else []), str(path)]
        return [*start, "--out", str(out), *(["--device", device] if device else []), *getattr(self, scale)]


@dataclass(frozen=True)
class Paper:
    """name: of the command; title: author (year), subject. parts run in this order; rest: what no script looks at."""

    name: str
    title: str
    parts: Sequence[Part]
    rest: Sequence[Finding] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a part: its findings, or why there are none."""

    part: Part
    folder: Path
    seconds: float
    device: str
    findings: Sequence[Finding]
    failure: str = ""


def run_paper(
    paper: Paper, experiments: Path, out: Path, *, scale: Scale = "laptop", device: str | None = None
) -> list[Outcome]:
    """Runs what has not yet been run with these arguments and this code; then writes ``out``/index.html and index.md.

    A script that fails is a line of the page. Killed, it goes on where it stopped. Raises OSError, ValueError.
    """
    checks.instance("paper", paper, Paper)
    with tqdm(paper.parts, unit="script", file=sys.stderr) as bar:
        outcomes = []
        for part in bar:
            bar.set_description(part.script)
            outcomes.append(_outcome(part, experiments, out / Path(part.script).with_suffix(""), scale, device))
    _write(paper, outcomes, out, scale)
    return outcomes


def _outcome(part: Part, experiments: Path, folder: Path, scale: Scale, device: str | None) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    command, mark = part.command(experiments, folder, scale, device), folder / "finished.json"
    beside = sorted((experiments / part.script).parent.glob("*.py"))  # scripts import what lies there
    source = hashlib.sha256(b"".join(path.read_bytes() for path in beside)).hexdigest()
    made = {"arguments": command[1:], "script": source, "package": package()}
    known = json.loads(mark.read_text()) if mark.exists() else {}
    if {name: known.get(name) for name in made} != made:
        start = time.perf_counter()
        with open(folder / "output.log", "w", encoding="utf-8") as log:
            code = subprocess.call(command, stdout=log, stderr=subprocess.STDOUT)
        if code:
            lines = (folder / "output.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return Outcome(
                part, folder, time.perf_counter() - start, device or "", (), (lines or [f"exit code {code}"])[-1]
            )
        known = {**made, "seconds": time.perf_counter() - start, "device": _device(folder)}
        mark.with_suffix(".part").write_text(json.dumps(known))
        mark.with_suffix(".part").replace(mark)
    try:
        findings = tuple(part.judge({path.stem: read_table(path) for path in sorted(folder.glob("*.csv"))}))
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # a table that lacks what is judged
        return Outcome(part, folder, known["seconds"], known["device"], (), f"{type(error).__name__}: {error}")
    return Outcome(part, folder, known["seconds"], known["device"], findings)


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
        + f"; {sum(outcome.seconds for outcome in outcomes):.0f} s in all."
    )
    for outcome in outcomes:
        if outcome.failure:
            page.say(f"{outcome.part.script} failed: {outcome.failure}", bad=True)
    page.heading("Claim by claim")
    page.table(
        ["result", "claim", "measured as", "paper", "ours", "standard error", "verdict"],
        [
            [
                f.result,
                f.claim,
                f.measure,
                *(math.nan if v is None else float(v) for v in (f.paper, f.ours, f.error)),
                f.verdict,
            ]
            for f in findings
        ],
    )
    for outcome in outcomes:
        for name, caption in outcome.part.figures.items():
            if (outcome.folder / name).exists():
                page.picture(outcome.folder / name, caption, out)
    page.heading("How it was made")
    rows = [[o.part.script, " ".join(getattr(o.part, scale)), o.device, round(o.seconds, 1)] for o in outcomes]
    page.table(["script", "arguments", "device", "seconds"], rows)
    out.mkdir(parents=True, exist_ok=True)
    page.write(out / "index.html")
