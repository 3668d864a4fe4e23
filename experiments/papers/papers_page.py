"""What a page says of a paper: its claims, its figures beside the paper's words, and a legend."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from papers_base import LEGEND, Figure, Finding, Paper, Part

Found = Sequence[tuple[str, Finding]]  # with the script, "" where none is run
Place = Callable[[Part, Figure], str]  # the address of a figure for a page, "" where there is none
TITLES = "result, claim, of, measured as, right, ours, granted, with the mistake, verdict, script"


def line(*cells: str) -> str:
    """A row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def titles(names: str) -> str:
    """The head of a table."""
    return line(*names.split(", ")) + "\n|" + "---|" * (names.count(",") + 1)


def legend() -> str:
    """Of the verdicts."""
    return "\n".join([titles("verdict, meaning"), *(line(*pair) for pair in LEGEND.items())])


def number(value: float | None) -> str:
    """Four digits, nothing for what is not there."""
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def counted(found: Found) -> str:
    """How many claims have which verdict, the worst first."""
    counts = Counter(finding.verdict for _, finding in found)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in LEGEND if verdict in counts)


def corrections(paper: Paper, docs: str) -> str:
    """The address of the paper's corrections, for a page from which the docs are at ``docs``."""
    authors, _, _ = paper.title.partition(":")
    anchor = re.sub(r"[^\w -]", "", authors.lower()).replace(" ", "-")
    return f"{docs}corrections.md#{anchor}"


def claim(paper: Paper, script: str, found: Finding, docs: str) -> str:
    """A row of the table of claims."""
    at = f"; at {found.where}" if found.where else ""
    words = f': "{found.quotation}"' if found.quotation else ""
    ours = number(found.ours)
    if found.error:
        ours = f"{ours} +- {number(found.error)}"
    mistake = ""
    # where it was not needed for the verdict, it is left out
    if found.wrong is not None and found.verdict not in ("corrected", "wins", "loses"):
        mistake = f"{number(found.wrong)}: {found.mistake}"
    verdict = found.verdict
    if verdict == "corrected":
        verdict = f"[{verdict}]({corrections(paper, docs)})"
    return line(
        found.result,
        found.says + words,
        found.owner,
        found.measure + at,
        number(found.right),
        ours,
        number(found.granted),
        mistake,
        verdict,
        f"`{script}`" if script else "none",
    )


def section(paper: Paper, found: Found, docs: str) -> Iterator[str]:
    """The paper's identifier and its claims."""
    yield f"## {paper.title}\n"
    yield f"{paper.identifier}; [corrections]({corrections(paper, docs)}).\n"
    yield f"{len(found)} claims: {counted(found)}.\n"
    yield titles(TITLES)
    for script, finding in found:
        yield claim(paper, script, finding, docs)
    yield ""


def figures(paper: Paper, place: Place) -> Iterator[str]:
    """Those that were drawn, each beside what the paper says of its own."""
    for part in paper.parts:
        for figure in part.figures:
            address = place(part, figure)
            if address:
                yield f"![{figure.caption}]({address})\n\n*{figure.caption}* {figure.paper}\n"


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/papers/run.py NAME")
