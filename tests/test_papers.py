"""The map of the papers: every name of the package and every file that it gives is there, and no result is left out."""

import functools
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/papers.md").read_text()
PAPERS = re.findall(r"^## (\w[^:\n]*\(\d+\)[^\n]*)\n(.*?)(?=^## |^The paper has|\Z)", PAGE, re.M | re.S)
NUMBERED = {
    "Ghazi": "Definition 1 to 3, Theorem 4 to 6, 8, 9, 14, 19, 23, 24, Corollary 7, 16, Fact 15, Lemma 10 to 13, 17, "
    "18, 20 to 22",
    "Edmonds": "Theorem 1, 7, 10, 22 to 25, 28, 30, Corollary 4 to 6, 31, Definition 16, Lemma 9, 11 to 15, 17 to 21, "
    "26, 27, 29",
    "Nikolov": "Theorem 3, 4, 6, 7, 15, 17, 20, 23, 26, 30, 32, 42, 43, 51 to 53, 55, 58, 59, 64 to 66, Lemma 11 "
    "to 13, 19, 21, 27, 28, 31, 33, 35 to 41, 45 to 50, 54, 57, 60, 62, 63, 67, Corollary 16, Definition 2, 29, 61, "
    "Claim 68",
    "Burkhardt": "Table 1 to 8, Figure 1 to 4, Algorithm 1, Definition 3.1, 4.1, 4.2, Theorem 4.4, 4.8, 5.4, 5.7, 5.8, "
    "Corollary 4.7, 4.10, 4.11, Lemma 3.3 to 3.5, 4.3, 4.5, 4.6, 4.9, 5.1 to 5.3, 5.5, 5.6",
    "Wagner": "Table 1 to 8, Figure 1 to 8, Theorem 3.1, 3.2, Algorithm 1",
}


def rows(text):
    """The five cells of each row of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| result")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def covered(cells):
    """Kind and number of every result that a first cell names: "Lemmas 35 to 38, 40", "Theorem 3.1"."""
    found = set()
    for cell in cells:
        parts = re.split(
            r"(Theorem|Lemma|Corollary|Definition|Fact|Claim|Table|Figure|Algorithm|Corollarie)(?:s|ies)?\b", cell
        )
        for kind, text in zip(parts[1::2], parts[2::2], strict=True):
            kind = kind.replace("Corollarie", "Corollary")
            numbers = r"\d+(?:\.\d+)?"
            for first, last in re.findall(rf"({numbers})(?: to ({numbers}))?", text.split(":")[0]):
                found |= {(kind, one) for one in between(first, last)}
    return found


def between(first, last):
    if not last:
        return [first]
    head, dot, low = first.rpartition(".")
    return [f"{head}{dot}{n}" for n in range(int(low), int(last.rpartition(".")[2]) + 1)]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper[0].split(",")[0])
def test_no_result_is_left_out(paper):
    title, text = paper
    wanted = covered([NUMBERED[re.split(r"[, ]", title)[0]]])
    assert len(wanted) > 15 and not wanted - covered([row[0] for row in rows(text)])


def test_there_are_five_papers_and_a_missing_result_is_seen():
    assert len(PAPERS) == 5 and all(len(row) == 5 for _, text in PAPERS for row in rows(text))
    assert ("Lemma", "36") in covered(["Lemmas 35 to 41, Theorem 42"]) and ("Lemma", "42") not in covered(
        ["Lemma 41"]
    )


@pytest.mark.parametrize("row", [row for _, text in PAPERS for row in rows(text)], ids=lambda row: row[0])
def test_every_name_is_there(row):
    for path in re.findall(r"(?:experiments|tests)/[\w/]+\.py", " ".join(row)):
        assert (ROOT / path).exists(), path
    room = ""
    for name in re.findall(r"`([A-Za-z][\w.]*)`", row[1]):
        parts = name.split(".")
        if parts[0] == "torchdp":
            room = parts.pop(1) if len(parts) > 1 else ""
            parts = parts[1:]
        assert there(f"torchdp.{room}", parts), name


def there(module, parts):
    """Whether an attribute, or a module of the room, has this name."""
    try:
        functools.reduce(getattr, parts, importlib.import_module(module))
    except AttributeError:
        return importlib.util.find_spec(".".join([module, *parts])) is not None
    return True


def test_a_wrong_name_is_seen():
    assert there("torchdp.sketching", ["paper"]) and not there("torchdp.sketching", ["papers"])
