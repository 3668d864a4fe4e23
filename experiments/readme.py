"""Writes experiments/README.md from the scripts' docstrings: ``python experiments/readme.py``."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = """# Experiments

One script for each table or figure; a folder is a room of `torchdp`, `bench` measures speed. A docstring is the whole
recipe: the command, what to expect and how closely, time and hardware.

    python experiments/density/error.py --smoke                # seconds on a CPU
    python experiments/density/error.py --help                 # every field of its configuration is an option
    python experiments/density/error.py --device cuda:1        # without it the first GPU, else the CPU
    python experiments/density/error.py --draw-only            # figures from the tables of an earlier run
    python experiments/pairwise/error_vs_n.py --smoke          # a sweep: the same as torchdp sweep experiments/...

Tables are printed and written to `results/<folder>/<script>/*.csv`, figures are drawn from them. `NOTES.md` says what
was tried and did not win. This page is made by `python experiments/readme.py`.
"""


def scripts():
    """What can be run, speed last; other files are imported by these, or stand beside them with
    tests of their own.
    """
    ran = re.compile("^EXPERIMENT = |^def experiment", re.M)
    found = [path for path in HERE.rglob("*.py") if ran.search(path.read_text())]
    return sorted(found, key=lambda path: (path.parent.name == "bench", path))


def fields(path):
    """The docstring's first paragraph as "title"; the text behind each word with a colon."""
    title, _, rest = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")
    found = {"title": " ".join(title.split())}
    for part in re.split(r"\n(?=[A-Z][^:.;\n]*: )", rest):
        name, _, text = part.partition(":")
        found[name.partition(",")[0].strip()] = " ".join(text.split())
    return found


def page():
    lines, folder = [HEAD.strip()], None
    for path in scripts():
        said = fields(path)
        if path.parent != folder:
            folder = path.parent
            lines += [
                f"\n## {folder.name}\n",
                "| paper | figure or table | script | what | status |",
                "|---|---|---|---|---|",
            ]
        paper, artifact = (part.strip() for part in said["Artifact"].split("|"))
        link = f"[{path.name}]({path.relative_to(HERE)})"
        cells = (paper, artifact, link, said["title"].rstrip("."), said["Status"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "README.md").write_text(page())
