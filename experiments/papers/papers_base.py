"""A paper claim by claim: NAME.toml says which scripts are run and what their tables must show.

A claim of NAME.toml is a query in SQL over the tables of a script, and each row that it selects is
judged. Its columns:

    ours: the figure; right: what it should be, its limit, or the error of a baseline;
    standard_error: of ours, 0 without this column;
    wrong: what ours would be with the mistake that the claim names under "mistake";
    kind: how a statement of the paper is known to fail (docs/corrections.md), empty where it is not;

and whatever else the texts of the claim name in braces. The keys of a claim are those of ``Claim``.
"""

import math
import re
import sqlite3
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchdp.simulate.report import Rows, read_table

Tables = Mapping[str, Rows]
Test = Literal["equal", "at most", "against", "beside"]
Verdict = str
ROOT = Path(__file__).resolve().parents[2]
# standard errors that are granted: a promise is tried on hundreds of rows, a baseline on few
SIGMAS: Mapping[Test, float] = {"equal": 4.0, "at most": 4.0, "against": 3.0, "beside": 0.0}
SLACK = 1e-3  # relative, granted without another word
# the worst first: of several rows, that of the worst verdict stands for all
LEGEND: Mapping[Verdict, str] = {
    "broken": "a promise of this package does not hold: the command ends with 1",
    "differs": "a figure is not the paper's, or an inequality of the paper fails that is not known to: "
    "the command ends with 1",
    "loses": "our error is above that of the baseline",
    "too noisy to tell": "right within what is granted, and so would be the mistake that is named",
    "too loose to tell": "the same without a standard error: the limit also admits the mistake",
    "corrected": "an inequality fails as the paper prints it, at an instance that the corrections explain",
    "ties": "our error is that of the baseline, within what is granted",
    "wins": "our error is below that of the baseline",
    "agrees": "a figure is the paper's, or its inequality holds, and the mistake would have been seen",
    "holds": "a promise of this package holds, and the mistake would have been seen",
    "compared": "two figures of this package, neither of which the paper prints: no verdict",
    "not checkable": "no number to compute, or no data at hand",
}
FAILURES = ("broken", "differs")


@dataclass(frozen=True)
class Claim:
    """What a table must show.

    Args:
        result: of the paper, such as "Figure 2".
        says: the claim in the paper's terms.
        measure: which figure, and over what range.
        rows: a query in SQL, see above.
        mistake: what would make the figure "wrong".
        where: the instance, of the row that is shown.
        quotation: the paper's words, of what it promises.
        test: "equal" to what is right, "at most" that, "against" a baseline's error, or only
            "beside" another figure.
        owner: who promises it, "ours" or "paper".
        within: granted relative to what is right, besides standard errors.
        each: columns; the worst row of each of their values is shown, of all rows without them.
        optional: whether a small scale may have no such row.
    """

    result: str
    says: str
    measure: str
    rows: str
    mistake: str = ""
    where: str = ""
    quotation: str = ""
    test: Test = "equal"
    owner: Literal["ours", "paper"] = "ours"
    within: float = SLACK
    each: Sequence[str] = ()
    optional: bool = False

    def findings(self, database: sqlite3.Connection, of: str) -> Sequence["Finding"]:
        """The worst row for each value of ``each``. Raises LookupError where there is none."""
        selected = database.execute(self.rows.format(of=of))
        names = [column[0] for column in selected.description]
        # of two columns of one name the last counts: "select *, 1 as k" has another k
        rows = [dict(zip(names, cells, strict=True)) for cells in selected]
        if not (rows or self.optional):
            raise LookupError(f"no row for {self.result}: {self.says}")
        groups: dict[tuple[object, ...], list[Finding]] = {}
        for row in rows:
            key = tuple(row[name] for name in self.each)
            groups.setdefault(key, []).append(self.judge({**row, "tried": len(rows)}))
        return [max(group, key=self.severity) for group in groups.values()]

    def judge(self, row: Mapping[str, Any]) -> "Finding":
        """Of one row."""
        right = row["right"]
        error = row.get("standard_error", 0.0)
        granted = math.nan
        if right is not None and error is not None:
            granted = self.within * abs(right) + SIGMAS[self.test] * error
        texts = {
            name: getattr(self, name).format_map(row)
            for name in ("result", "says", "measure", "where", "quotation", "mistake")
        }
        return Finding(
            **texts,
            owner=self.owner,
            right=right,
            ours=row["ours"],
            error=error,
            granted=granted,
            wrong=row.get("wrong"),
            verdict=self.verdict(row, granted),
        )

    def verdict(self, row: Mapping[str, Any], granted: float) -> Verdict:
        """Accepted only where what is wrong lies outside of the margin, and ours within it."""
        fails = "broken" if self.owner == "ours" else "differs"
        # SQL has no nan: it is NULL, and so is what is computed from it
        if row["ours"] is None or row["ours"] == -math.inf or math.isnan(granted):
            return fails
        if self.test == "beside":
            return "compared"
        above = row["ours"] - row["right"]
        if self.test == "against" and abs(above) > granted:
            return "loses" if above > 0 else "wins"
        if abs(above) > granted and (above > 0 or self.test == "equal"):
            known = self.owner == "paper" and row.get("kind")
            return "corrected" if known else fails
        wrong = math.nan if row["wrong"] is None else row["wrong"] - row["right"]
        if not self.sees(wrong, granted):
            exactly = self.sees(wrong, self.within * abs(row["right"]))
            return "too noisy to tell" if exactly else "too loose to tell"
        if self.test == "against":
            return "ties"
        return "holds" if self.owner == "ours" else "agrees"

    def severity(self, found: "Finding") -> tuple[int, float]:
        """Larger is worse: by verdict, then by how near ours is to failing."""
        rank = -list(LEGEND).index(found.verdict)
        if self.test == "at most" and found.verdict not in (*FAILURES, "corrected"):
            # a mistake in a bound is seen, if anywhere, in the row where it is tightest
            rank = -len(LEGEND)
        if found.ours is None or found.right is None:
            return rank, math.inf
        off = found.ours - found.right
        if self.test == "equal":
            return rank, abs(off) / (found.granted or 1.0)
        return rank, off / (abs(found.right) or 1.0)

    def sees(self, off: float, granted: float) -> bool:
        """Whether a figure so far from what is right would not be accepted."""
        return (off if self.test == "at most" else abs(off)) > granted


@dataclass(frozen=True)
class Finding:
    """What became of one claim: its texts, the figures, and the verdict.

    error: the standard error of ours; granted: how far it may be from what is right.
    """

    result: str
    says: str
    measure: str
    where: str = ""
    quotation: str = ""
    owner: str = ""
    right: float | None = None
    ours: float | None = None
    error: float | None = None
    granted: float | None = None
    wrong: float | None = None
    mistake: str = ""
    verdict: Verdict = "not checkable"


@dataclass(frozen=True)
class Figure:
    """A file of a script, what it shows, and what the paper says of its own."""

    file: str
    caption: str
    paper: str


@dataclass(frozen=True)
class Part:
    """A script of a paper: its claims, figures, and arguments for each scale.

    Args:
        script: below the folder of experiments.
        claims: what its tables must show.
        of: what stands for {of} in the queries: a table, or an author.
        data: the script's option for a folder of real data, without which it is not run.
        holds: what is in that folder.
        folder: of its results below the paper's, the script's own where it is "".
    """

    script: str
    claims: Sequence[Claim]
    figures: Sequence[Figure] = ()
    smoke: Sequence[str] = ("--smoke",)
    laptop: Sequence[str] = ()
    full: Sequence[str] = ()
    of: str = ""
    data: str = ""
    holds: str = ""
    folder: str = ""

    def at(self, out: Path) -> Path:
        """Where its results are, below those of the paper."""
        return out / (self.folder or Path(self.script).with_suffix(""))

    def tables(self, out: Path) -> Tables:
        """Those that its claims read. Raises OSError."""
        words = " ".join(claim.rows.format(of=self.of) for claim in self.claims)
        names = set(re.findall(r"\w+", words))
        paths = sorted(self.at(out).glob("*.csv"))
        return {path.stem: read_table(path) for path in paths if path.stem in names}

    def judge(self, database: sqlite3.Connection) -> Sequence[Finding]:
        """What the tables say of its claims. Raises LookupError, ValueError, sqlite3.Error."""
        findings = [claim.findings(database, self.of) for claim in self.claims]
        return [found for few in findings for found in few]

    def lacking(self, reason: str) -> Finding:
        """In the place of findings where it was not run."""
        return Finding(self.script, "real data" if self.data else "all of it", reason)


@dataclass(frozen=True)
class Paper:
    """name: of the command; title: author (year): subject; identifier: its number and address; rest:
    what no script looks at.
    """

    name: str
    title: str
    identifier: str
    parts: Sequence[Part]
    rest: Sequence[Finding] = ()


def database(tables: Tables) -> sqlite3.Connection:
    """The tables in memory: every number a float, so that no quotient is cut off."""
    found = sqlite3.connect(":memory:")
    found.create_function("sqrt", 1, lambda x: None if x is None else math.sqrt(x))
    found.create_function("ln", 1, lambda x: None if x is None else math.log(x))
    for name, rows in tables.items():
        columns = ", ".join(f'"{column}"' for column in rows[0])
        found.execute(f'create table "{name}" ({columns})')
        marks = ", ".join("?" * len(rows[0]))
        cells = ([cell(value) for value in row.values()] for row in rows)
        found.executemany(f'insert into "{name}" values ({marks})', cells)
    return found


def cell(value: object) -> object:
    """An integer as a float: text, None, nan (which becomes NULL) as they are."""
    return float(value) if isinstance(value, int) else value


THEOREMS = {
    "result": "{result}",
    "says": "{statement}",
    "measure": "{range}; {instances:.0f} instances, the largest ratio of the two sides",
    "where": "{where}",
    "mistake": "a factor of 2 on one side",
    "test": "at most",
    "owner": "paper",
    "each": ["result", "statement"],
    "rows": "select *, worst as ours, \"limit\" as right, 2*worst as wrong from theorems where paper = '{of}'",
}


def theorems(author: str) -> Mapping[str, object]:
    """Every inequality of this paper that the checker tries."""
    match = ("--match", author)
    return {
        "script": "theorems.py",
        "claims": [THEOREMS],
        "of": author,
        "smoke": ("--smoke", *match),
        "laptop": match,
        "full": match,
    }


def load(folder: Path, name: str) -> Paper:
    """The paper of ``folder``/name.toml. Raises ValueError, naming those there are."""
    there = sorted(each.stem for each in folder.glob("*.toml"))
    if name not in there:
        raise ValueError(
            f"NAME must be a paper below {folder}: {', '.join(there) or 'none is there'}; not {name!r}"
        )
    given = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    parts = [theorems(given["theorems"])] if "theorems" in given else []
    return Paper(
        name,
        given["title"],
        given["identifier"],
        [part(each, given.get("claims", {})) for each in (*parts, *given["parts"])],
        [Finding(**each) for each in given.get("rest", ())],
    )


def part(given: Mapping[str, Any], named: Mapping[str, Sequence[Mapping[str, Any]]]) -> Part:
    """Of a table of NAME.toml; claims that two scripts share have a name."""
    claims = given["claims"]
    shared = named[claims] if isinstance(claims, str) else claims
    return Part(
        **{
            **given,
            "claims": [Claim(**each) for each in shared],
            "figures": [Figure(**each) for each in given.get("figures", ())],
        }
    )


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/papers/run.py NAME")
