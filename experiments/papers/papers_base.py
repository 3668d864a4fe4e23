"""What the papers' pages have in common: rows of a table, and the statements that the theorem checker tries."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from torchdp.simulate.paper import Finding, Part, Tables
from torchdp.simulate.report import Rows

T = TypeVar("T")


def where(table: Rows, /, **cells: object) -> Rows:
    """The rows with these cells. Raises LookupError where there is none."""
    found = [row for row in table if all(row[name] == value for name, value in cells.items())]
    if not found:
        raise LookupError(f"no row with {cells}")
    return found


def worst(table: Iterable[T], key: Callable[[T], float]) -> T:
    """The row whose key is largest; one whose key is no number is worse than any. Raises ValueError for no row."""
    return max(table, key=lambda row: (math.isnan(key(row)), key(row)))


def theorems(author: str) -> Part:
    """Every inequality of this paper that the checker tries.

    One that fails is the paper's where its kind of failure is known (docs/corrections.md), else our mistake.
    """

    def judge(tables: Tables) -> Iterator[Finding]:
        for row in where(tables["theorems"], paper=author):  # a statement may name another paper's author
            at = f"{row['range']}; {row['instances']} instances, the largest ratio of the two sides"
            if row["kind"]:
                at = f"{at}, at {row['where']}; kind: {row['kind']}"
            judged = Finding.as_printed if row["kind"] else Finding.at_most
            yield judged(row["result"], row["statement"], at, row["limit"], row["worst"])

    match = ("--match", author)
    return Part("theorems.py", judge, smoke=("--smoke", *match), laptop=match, full=match)


if __name__ == "__main__":
    raise SystemExit("the judges of papers import this: run python run.py paper pairwise")
