"""A paper claim by claim: its scripts, what their tables say of each claim, and what the papers
have in common.
"""

import math
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from torchdp.simulate.report import Rows, read_table

T = TypeVar("T")
Scale = Literal["smoke", "laptop", "full"]
# of the paper: the first five; of this package: "holds", "broken", "compared"
Verdict = Literal[
    "agrees",
    "corrected",
    "beaten",
    "behind",
    "differs",
    "holds",
    "broken",
    "compared",
    "not checkable",
]
Tables = Mapping[str, Rows]
SIGMAS = 4.0  # standard errors within which two numbers agree
SLACK = 1e-3  # relative: of an inequality or a comparison
# relative: what 4 standard errors may grant; with more, what is wrong would agree as well
NOISY = 0.25
LEGEND: Mapping[Verdict, str] = {
    "agrees": "the number equals the paper's, or its inequality holds, up to what is granted",
    "corrected": "an inequality fails as the paper prints it, at an instance that docs/corrections.md names",
    "beaten": "our error is smaller than that of the paper's method, run here at the same guarantee",
    "behind": "our error is larger than that of the paper's method",
    "differs": "the number is not the paper's: the command ends with 1",
    "holds": "a promise of this package holds, up to what is granted",
    "broken": "a promise of this package does not hold, or an inequality of the paper fails that is not known to: "
    "the command ends with 1",
    "compared": "two numbers of this package, neither of which the paper prints: no verdict on the paper",
    "not checkable": "no number to compute, no data at hand, or 4 standard errors are above a quarter of it",
}


@dataclass(frozen=True)
class Finding:
    """What became of one claim. One of the static methods computes the verdict.

    result: "Figure 2". claim: in the paper's terms. measure: which error, and the range in which it
    was looked at. paper, ours: the two numbers, error: the standard error of ours; None where there
    is none. granted: how far apart they may be, relative to the paper's; 4 standard errors are
    granted always.
    """

    result: str
    claim: str
    measure: str
    paper: float | None
    ours: float | None
    error: float | None
    verdict: Verdict
    granted: float | None = None

    def __post_init__(self):
        if self.verdict in ("agrees", "holds") and SIGMAS * (self.error or 0) > NOISY * abs(
            self.paper or 0
        ):
            object.__setattr__(self, "verdict", "not checkable")

    @staticmethod
    def equal(result, claim, measure, paper, ours, error=None, within=0.0):
        """The paper's number: agrees within so much of it, or 4 standard errors; else differs."""
        near = abs(ours - paper) <= _margin(paper, error, within)
        return Finding(
            result, claim, measure, paper, ours, error, "agrees" if near else "differs", within
        )

    @staticmethod
    def at_most(result, claim, measure, limit, ours, error=None):
        """A promise of this package: holds up to a thousandth or 4 standard errors, else broken."""
        holds = ours <= limit + _margin(limit, error)  # not for nan
        return Finding(
            result, claim, measure, limit, ours, error, "holds" if holds else "broken", SLACK
        )

    @staticmethod
    def as_printed(result, claim, measure, limit, ours, error=None, known=True):
        """An inequality of the paper: agrees where it holds, else corrected.

        known: whether docs/corrections.md explains how it fails; else its failure is our mistake.
        """
        found = Finding.at_most(result, claim, measure, limit, ours, error)
        fails = "differs" if math.isnan(ours) else "corrected"
        verdicts = {"holds": "agrees", "broken": fails if known else "broken"}
        return replace(found, verdict=verdicts.get(found.verdict, found.verdict))

    @staticmethod
    def lower(result, claim, measure, paper, ours, error=None):
        """Errors of two methods at one guarantee: beaten, behind, or within a thousandth or 4
        standard errors.
        """
        margin = _margin(paper, error)
        verdict = "differs" if math.isnan(ours) else "behind"
        if ours <= paper + margin:
            verdict = "beaten" if ours < paper - margin else "agrees"
        return Finding(result, claim, measure, paper, ours, error, verdict, SLACK)

    @staticmethod
    def compared(result, claim, measure, other, ours, error=None):
        """Two numbers of this package, the other one in the text: no verdict on the paper."""
        verdict = "differs" if math.isnan(ours) or math.isnan(other) else "compared"
        return Finding(result, claim, f"{measure}; beside {other:.4g}", None, ours, error, verdict)

    @staticmethod
    def unchecked(result, claim, reason):
        """What no program can look at, or not with the data at hand."""
        return Finding(result, claim, reason, None, None, None, "not checkable")


def _margin(value, error, within=SLACK):
    return max(within * abs(value), SIGMAS * (error or 0.0))


@dataclass(frozen=True)
class Part:
    """A script of a paper. judge(tables) yields findings; figures: captions by file name; arguments
    for each scale.

    data: the script's option for a folder of real data, without which this part is not run; holds:
    what is in it. folder: of its results below the paper's, the script's own where it is "".
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

    def command(self, experiments, out, options):
        """What is run: the script itself, or ``torchdp sweep`` where it is a grid."""
        path = experiments / self.script
        sweep = "def experiment(" in path.read_text(encoding="utf-8")
        device = ["--device", options.device] if options.device else []
        data = [self.data, str(options.data)] if self.data else []
        start = [sys.executable, *(["-m", "torchdp", "sweep"] if sweep else []), str(path)]
        return [*start, "--out", str(out), *device, *data, *getattr(self, options.scale)]

    def at(self, out):
        """Where its results are, below those of the paper."""
        return out / (self.folder or Path(self.script).with_suffix(""))

    def findings(self, out):
        """What its tables below ``out`` say. Raises LookupError, TypeError, ValueError,
        ArithmeticError.
        """
        paths = sorted(self.at(out).glob("*.csv"))
        tables = {path.stem: read_table(path) for path in paths}
        return tuple(self.judge(tables))

    def lacking(self, reason):
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
    """name: of the command; title: author (year), subject. parts run in this order; rest: what no
    script looks at.
    """

    name: str
    title: str
    parts: Sequence[Part]
    rest: Sequence[Finding] = ()


def where(table, /, **cells):
    """The rows with these cells. Raises LookupError where there is none."""
    # a row may hold more cells than are asked for
    found = [row for row in table if {name: row[name] for name in cells} == cells]
    if not found:
        raise LookupError(f"no row with {cells}")
    return found


def worst(table: Iterable[T], key):
    """The row whose key is largest; one whose key is no number is worse than any. Raises ValueError
    for no row.
    """
    return max(table, key=lambda row: (math.isnan(key(row)), key(row)))


def worst_ratio(table: Iterable[T], above, below):
    """The row where one column is largest over another."""
    return worst(table, lambda row: row[above] / row[below])


def farthest(table: Iterable[T], ours, theirs):
    """The row where two columns differ most, relative to the second."""
    return worst(table, lambda row: abs(row[ours] / row[theirs] - 1))


def least_likely(table: Iterable[T]):
    """The row whose measured error is the most standard errors from the predicted one."""
    return worst(table, lambda row: abs(row["measured"] - row["predicted"]) / row["standard_error"])


def theorems(author):
    """Every inequality of this paper that the checker tries.

    One that fails is the paper's where its kind of failure is known (docs/corrections.md), else our
    mistake.
    """

    def judge(tables):
        # a statement may name another paper's author
        for row in where(tables["theorems"], paper=author):
            at = f"{row['range']}; {row['instances']} instances, the largest ratio of the two sides"
            if row["kind"]:
                at = f"{at}, at {row['where']}; kind: {row['kind']}"
            yield Finding.as_printed(
                row["result"],
                row["statement"],
                at,
                row["limit"],
                row["worst"],
                known=bool(row["kind"]),
            )

    match = ("--match", author)
    return Part("theorems.py", judge, smoke=("--smoke", *match), laptop=match, full=match)


def load(folder, name):
    """PAPER of ``folder``/name.py. Raises ValueError, naming those there are."""
    path = folder / f"{name}.py"
    others = {"papers_base", "run"}
    there = sorted(each.stem for each in folder.glob("*.py") if each.stem not in others)
    if name not in there:
        raise ValueError(
            f"NAME must be a paper below {folder}: {', '.join(there) or 'none is there'}; not {name!r}"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return runpy.run_path(str(path))["PAPER"]


if __name__ == "__main__":
    raise SystemExit(
        "the judges of papers import this: run python experiments/papers/run.py pairwise"
    )
