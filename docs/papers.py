"""Writes docs/papers.md from docs/papers.csv and the tables of the papers' laptop runs:
``python docs/papers.py``.

``--from results/papers`` first copies there what the judges of experiments/papers read of finished
runs. No verdict is written down: each is computed here, from the tables, by the judges.
"""

import argparse
import csv
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from torchdp.simulate.report import read_table, write_table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "experiments/papers"))
import papers_page  # noqa: E402
from papers_base import Figure, Finding, Paper, Part, database, load  # noqa: E402
from papers_page import line, titles  # noqa: E402

PAGE = ROOT / "docs/papers.md"
WHERE = ROOT / "docs/papers.csv"
RESULTS = ROOT / "docs/results.csv"
RUNS = ROOT / "experiments/papers/laptop"
MARK = "finished.json"  # of a script that ran to its end
NAMES = ("pairwise", "factorization", "gaussian", "sketching", "densities")
HEAD = """# The five papers, result by result

For each paper two tables. The first has a row for every claim that a program can look at: what is
right, our figure with its standard error, and the verdict. The second has a row for
every figure, table, theorem and algorithm: its code, its test, and what the first table says of it.
What differs from the paper is in [corrections](corrections.md), each with its quotation.
[results.csv](results.csv) has a row for every numbered result, with its own verdict or "not looked at":

{results}

`python3 run.py paper NAME` (`pairwise`, `factorization`, `gaussian`, `sketching`, `densities`) runs
every script that belongs to a paper and writes the first table with its figures, `results/papers/NAME/page.md` and
`claims.csv`, beside the scripts' own tables; `--scale smoke`, `laptop` (the default) or `full`;
`--device` as everywhere; `--data FOLDER` names real data that are not in the repository (each
script says which). Killed, it resumes where it stopped. This page is made from the tables of such
runs at `laptop`, which are in `experiments/papers/laptop/`, by `python docs/papers.py`. No verdict
is typed: NAME.toml in `experiments/papers/` has a query for each claim, which computes it.

{legend}

A claim is *of* the paper, or of this package (*ours*): only of the first can a failure be the paper's, and then only
where the corrections explain it. *Right* is the figure that ours should be, a limit, or the error of a baseline.
*Granted* is how far ours may be from it: what the claim grants (a thousandth, where it says nothing else)
and 4 standard errors, 3 against a baseline. *With the mistake* is what the figure would be if that mistake were made. A
claim is accepted only where ours lies within what is granted and the mistake outside of it; else the verdict is "too
noisy to tell", or "too loose to tell" where no standard error is to blame but the limit itself, such as a constant that
stands for the paper's O(). A baseline may be one that needs more trust, such as a curator: a loss to it is printed as
a loss.
*Measured as* names the figure, its range, and the instance that is nearest to failing.
"""
REAL = """## On real data

Ridge regression (phi at epsilon = 0.03, lambda = 10; 1 is the least) and low rank (psi at epsilon = 0.05, k = 3;
0 is the least) on tables of UCI, delta = 1e-6, 50 runs: the sketch and the Gram matrix at the same exact guarantee in
the linear-transformation model, AdaSSP and MOD-SULQ by a curator. *Rows repeated*: each row
equally often, as many clients would have them (`experiments/regression/tables.py`).

{uci}

Accuracy in per cent of the class of highest density on the test rows of AG News as vectors of the paper's model: 6,080
rows for training and 1,520 as queries, divided anew in each trial; epsilon of the vector, 5 for the label, delta =
1e-5 (`experiments/density/classification.py`).

{agnews}
"""
TAIL = """## Gaps

- **Data that are not at hand**: the four UCI files of Burkhardt et al., Tables 6 to 8, and the
  embeddings of Wagner. The scripts read them where they are given (`--data`, `--folder`); what is
  looked at here are other tables of UCI, digits, and the test rows of AG News as vectors of the
  paper's model.
- **Not looked at**: what [results.csv](results.csv) says so of, among them Edmonds et al., Lemma
  29 and Corollary 31, and Ghazi et al., the two open questions.
- **Not run as printed**: of Wagner's "Pure" the flood, which changes no estimate, is ours
  (`experiments/density/bitsums.py`), and shorter. SSP and an exact local mechanism stand in Figure 3 of
  Burkhardt et al. where rows are cut: other rows have no bound to calibrate to.
- **Seconds on other machines**: Tables 3 to 5 of Burkhardt et al. were measured by others
  elsewhere. GPU figures: not yet measured.
"""
KINDS = "Theorem|Lemma|Corollary|Corollarie|Definition|Fact|Claim|Table|Figure|Algorithm|Appendix|Section|Remark after"
NUMBERS = r"(?:[A-Z]\.)?\d+(?:\.\d+)?"


@cache
def covered(cell: str) -> frozenset[tuple[str, str]]:
    """Kind and number of every result that is named: "Lemmas 35 to 38, 40", "Theorem 3.1"."""
    cell = re.sub(
        r"Remark after Corollary",
        "Remark after",
        re.sub(r"\bsection", "Section", cell.split(":")[0]),
    )
    parts = re.split(rf"({KINDS})(?:s|ies)?\b", cell)
    found = set()
    for kind, text in zip(parts[1::2], parts[2::2], strict=True):
        for first, last in re.findall(rf"({NUMBERS})(?: to ({NUMBERS}))?", text):
            found |= {
                (kind.replace("Corollarie", "Corollary"), one) for one in between(first, last)
            }
    return frozenset(found)


def between(first: str, last: str) -> list[str]:
    if not last:
        return [first]
    head, dot, low = first.rpartition(".")
    return [f"{head}{dot}{n}" for n in range(int(low), int(last.rpartition(".")[2]) + 1)]


def judged(paper: Paper, runs: Path = RUNS) -> Iterator[tuple[str, Finding]]:
    """Each finding, and its script where one is run."""
    for part in paper.parts:
        findings: Sequence[Finding] = (part.lacking("not run"),)
        if part.at(runs / paper.name).is_dir():
            findings = part.judge(database(part.tables(runs / paper.name)))
        for finding in findings:
            yield f"experiments/{part.script}", finding
    for finding in paper.rest:
        yield "", finding


def about(row: str, result: str) -> bool:
    """Whether a row of docs/papers.csv is about a finding's result."""
    return bool(covered(row) & covered(result)) or (not covered(result) and row.startswith(result))


def verdicts(row: Mapping[str, str], findings: list[Finding]) -> str:
    """What the findings of the results that a row names come to."""
    found = Counter(each.verdict for each in findings if about(row["result"], each.result))
    if not found and row["test"]:
        return "by its test"
    if not found:
        return "not looked at" if row["code"] else "a step of a proof"
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in sorted(found))


def section(paper: Paper, runs: Path = RUNS) -> Iterator[str]:
    """The claims, the map of the results, and the figures."""
    found = list(judged(paper, runs))
    made = read_table(runs / paper.name / "made.csv")
    minutes = sum(row["seconds"] for row in made) / 60
    devices = ", ".join(sorted({row["device"] for row in made}))
    yield from papers_page.section(paper, found, "")
    yield f"{len(made)} of {len(paper.parts)} runs of scripts are in it, which took"
    yield f"{minutes:.1f} CPU-minutes ({devices}).\n"
    yield titles("result, code, test, script, verdicts")
    with open(WHERE, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["paper"] == paper.name:
                files = [quoted(row["test"]), quoted(row["script"])]
                said = verdicts(row, [finding for _, finding in found])
                yield line(row["result"], row["code"], *files, said)
    yield ""

    def place(_: Part, figure: Figure) -> str:
        path = picture(paper, figure.file)
        return path.relative_to(PAGE.parent).as_posix() if path.exists() else ""

    yield from papers_page.figures(paper, place)


def quoted(names: str) -> str:
    return ", ".join(f"`{one}`" for one in names.split(", ") if one)


def picture(paper: Paper, name: str) -> Path:
    return PAGE.parent / f"pictures/papers/{paper.name}_{name}"


def tables_of_uci(runs: Path = RUNS) -> Iterator[str]:
    """phi and psi of each route."""
    folder = runs / "sketching/regression/uci"
    yield titles("table, n, d, phi(0), sketch, Gram, AdaSSP, psi: sketch, Gram, MOD-SULQ")
    for phi, psi in zip(
        read_table(folder / "phi.csv"), read_table(folder / "psi.csv"), strict=True
    ):
        cells = [with_error(phi, name) for name in ("0", "sketch", "Gram", "AdaSSP")]
        cells += [with_error(psi, name) for name in ("sketch", "Gram", "MOD-SULQ")]
        yield line(phi["table"], f"{phi['n']:,}", str(phi["d"]), *cells)


def with_error(row: Mapping[str, float], name: str) -> str:
    error = row.get(f"{name} error")
    return f"{row[name]:.4g}" + (f" +- {error:.1g}" if error else "")


def accuracies(runs: Path = RUNS) -> Iterator[str]:
    """Per cent on rows of AG News, a line for each kernel and protocol."""
    rows = read_table(runs / "densities/density/agnews/agnews_rows.csv")
    cells: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["epsilon"]):
        said = f"{100 * row['accuracy']:.1f} +- {100 * row['standard_error']:.1f}"
        cells.setdefault((row["kernel"], row["protocol"]), []).append(said)
    epsilons = sorted({row["epsilon"] for row in rows})
    yield titles("kernel, protocol, " + ", ".join(f"epsilon = {epsilon:g}" for epsilon in epsilons))
    for named, few in cells.items():
        yield line(*named, *few)


def page() -> str:
    lines = [HEAD.format(legend=papers_page.legend(), results="\n".join(results()))]
    for name in NAMES:
        lines += section(load(ROOT / "experiments/papers", name))
    uci = "\n".join(tables_of_uci())
    agnews = "\n".join(accuracies())
    return "\n".join([*lines, REAL.format(uci=uci, agnews=agnews), TAIL])


def results() -> Iterator[str]:
    """How many of each paper's numbered results have which verdict of docs/results.csv."""
    with RESULTS.open(encoding="utf-8") as file:
        counts = Counter((row["paper"], row["verdict"]) for row in csv.DictReader(file))
    verdicts = sorted({verdict for _, verdict in counts})
    yield titles(", ".join(["paper", *verdicts]))
    for name in NAMES:
        yield line(name, *(str(counts[name, verdict]) for verdict in verdicts))


def store(results: Path) -> None:
    """Copies what the judges read of finished runs in ``results``/NAME, and what each script
    took.
    """
    for name in NAMES:
        paper = load(ROOT / "experiments/papers", name)
        finished = [part for part in paper.parts if (part.at(results / name) / MARK).exists()]
        if not finished:
            continue
        shutil.rmtree(RUNS / name, ignore_errors=True)
        made = [copied(part, results / name, RUNS / name) for part in finished]
        write_table(RUNS / name / "made.csv", list(made[0]), made)
        for part in finished:
            for figure in part.figures:
                shrunk(part.at(results / name) / figure.file, picture(paper, figure.file))


def copied(part: Part, results: Path, runs: Path) -> dict[str, object]:
    """Copies the tables that the claims read; what the run took."""
    folder = part.at(results)
    known = json.loads((folder / MARK).read_text())
    part.at(runs).mkdir(parents=True)
    for name in part.tables(results):
        shutil.copy(folder / f"{name}.csv", part.at(runs))
    return {
        "script": part.script,
        "folder": str(part.at(Path())),
        "seconds": round(known["seconds"], 1),
        "device": known["device"],
    }


def shrunk(figure: Path, path: Path) -> None:
    """A figure of a run, for the page: 1,200 pixels wide at most, 96 colours (of thin lines
    too).
    """
    if figure.exists():
        from PIL import Image

        path.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(figure) as drawn:
            width = min(drawn.width, 1200)
            small = drawn.convert("RGB").resize((width, round(drawn.height * width / drawn.width)))
        small.quantize(96, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--from",
        type=Path,
        dest="results",
        metavar="FOLDER",
        help="results/papers of finished runs",
    )
    given = parser.parse_args()
    if given.results:
        store(given.results)
    PAGE.write_text(page(), encoding="utf-8")
