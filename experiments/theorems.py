"""Every inequality that docs/papers.md calls checked, over its whole range: which theorem holds,
and which fails where.

Paper:    all five; the statements are in experiments/statements/, a file for each paper.
Command:  OMP_NUM_THREADS=1 python experiments/theorems.py --page docs/theorems.md
What: random small instances and grids over all parameters of a statement: p, l, d, epsilon small
and large, n = 1,
    k = 1, degenerate sets and matrices. Norms are bracketed by witnesses that are evaluated again
    here, in numpy; distributions are enumerated. The ratio is (side that should be smaller)/(other
    side); where the paper's O() names no constant, the limit is the constant that is granted.
Expected: the statements with a kind of failure in experiments/statements fail, each beside its
mended form, and no
    other.
Output: results/experiments/theorems/theorems.csv; with --page the table as a page.
Artifact: all five papers | every inequality that is checked
Status: the statements named in docs/corrections.md fail as printed, all others hold
Time: three minutes of one core; --smoke, with few instances, in seconds.
    On the CPU, whatever --device says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statements import densities, factorization, gaussian, pairwise, sketching
from statements.base import CHECKS, KINDS

from torchdp.simulate import Experiment
from torchdp.threads import on_host

PAPERS = [
    each.paper
    for each in (
        pairwise.ghazi,
        factorization.edmonds,
        gaussian.nikolov,
        sketching.burkhardt,
        densities.wagner,
    )
]
HEAD = """# The theorem checker

Each row is an inequality of one of the five papers, tried over the range that is stated by
`python experiments/theorems.py --page docs/theorems.md`, which wrote this page. *Worst* is the largest ratio of the
side that should be smaller to the other one, *limit* what it may be: 1, or the constant that is granted where the
paper's O() names none. A statement that fails as printed is followed by the form that holds;
[corrections](corrections.md) gives counterexamples and proofs. [The papers](papers.md) says where each result is in
the code. A lower bound "for every protocol" is tried on the workloads and protocols that its range names, an upper
bound with a constant on those instances: what holds there is not proved by it. *Kind*, of what fails:

"""
HEAD += "".join(f"- *{kind}*: {said};\n" for kind, said in KINDS.items())
COLUMNS = """
| result | statement | range | instances | worst | limit | failures | verdict | kind |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Config:
    instances: int = 140  # of each random statement; grids are walked whole
    seed: int = 1
    match: str = ""  # part of a statement's or a row's text
    page: Path | None = None


def chosen(config):
    """The checks that match, paper by paper."""
    found = [each for each in CHECKS if config.match in f"{each.paper} {each.row} {each.statement}"]
    return sorted(found, key=lambda each: PAPERS.index(each.paper))


@on_host
def measure(config, report):
    rows = []
    for each in chosen(config):
        rows.append(each.run(config.instances, config.seed))
        report.row("theorems", **rows[-1])
    failing = sum(row["verdict"] == "fails" for row in rows)
    tried = sum(row["instances"] for row in rows)
    report.say(f"\n{len(rows)} statements, {tried} instances, {failing} fail as printed")
    if config.page:
        config.page.write_text(page(rows))


def page(rows: Sequence[Mapping[str, object]]):
    lines = [HEAD + COLUMNS]
    for row in rows:
        at = f" at {row['where']}" if row["failures"] else ""
        cells = (
            f"{row['paper']}: {row['result']}",
            row["statement"],
            row["range"],
            row["instances"],
            f"{row['worst']:.4g}{at}",
            f"{row['limit']:.4g}",
            row["failures"],
        )
        escaped = [str(cell).replace("|", "\\|").replace("*", "\\*") for cell in cells]
        verdict = f"**{row['verdict']}**" if at else row["verdict"]
        lines.append(f"| {' | '.join(escaped)} | {verdict} | {row['kind']} |")
    return "\n".join(lines) + "\n"


EXPERIMENT = Experiment(measure, Config(), Config(3))

if __name__ == "__main__":
    EXPERIMENT.main()
