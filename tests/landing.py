"""Which tests a change can move: ``python3 run.py test --since COMMIT``.

The dearest tenth of all test functions (``dear.txt``) takes two thirds of the suite's time. Those of
them whose packages are as they were at COMMIT, and import nothing that changed, are left out; all
other tests run. ``--dear`` notes the dearest tenth anew, from a run of the whole suite.
"""

import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEAR = Path(__file__).with_name("dear.txt")
SHARE = 0.1
# What no test of a package reads.
PAGES = {"docs", "experiments", ".github", "README.md", "CHANGELOG.md", "CITATION.cff"}


class UnknownCommit(ValueError):
    """What git says."""


def function_of(node):
    """A test without its parameters."""
    return node.split("[")[0]


def noted():
    """The functions of ``dear.txt``."""
    return {line.split()[1] for line in DEAR.read_text().splitlines()}


def note(seconds):
    """Writes the dearest tenth of functions. seconds: of each test."""
    total = defaultdict(float)
    for node, spent in seconds.items():
        total[function_of(node)] += spent
    dearest = sorted(total, key=total.get, reverse=True)[: round(SHARE * len(total))]
    lines = [f"{total[name]:.1f} {name}\n" for name in sorted(dearest)]
    DEAR.write_text("".join(lines))


def changed(since):
    """Packages, and "pages", whose files differ from a commit's; None: what all tests rest on."""
    commands = (
        ["git", "diff", "--no-renames", "--name-only", since],
        ["git", "ls-files", "-o", "--exclude-standard"],
    )
    found = set()
    for command in commands:
        git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if git.returncode:
            raise UnknownCommit(git.stderr.strip())
        found |= {package_of(name) for name in git.stdout.splitlines()}
    return found


def package_of(name):
    """The package that a file belongs to, "pages", or None for the others."""
    parts = Path(name).with_suffix("").parts
    if parts[0] in PAGES or name in PAGES:
        return "pages"
    if parts[0] == "kernels":
        return "kernels"
    if parts[0] == "tests" and len(parts) == 2 and parts[1].startswith("test_"):
        return "pages"
    inside = parts[0] == "torchdp" or (parts[0] == "tests" and len(parts) > 2)
    return parts[1] if inside and len(parts) > 1 and parts[1] != "__init__" else None


def needed(package, may_import):
    """A package and all that it may import, one through the other."""
    found = {package}
    open_ones = [package]
    while open_ones:
        new = set(may_import[open_ones.pop()]) - found
        found |= new
        open_ones += new
    return found


def left_out(nodes, since):
    """Of the tests, those that are dear and rest on nothing that changed since a commit."""
    from test_architecture import MAY_IMPORT

    moved = changed(since)
    if None in moved:
        return set()
    dear = noted()
    found = set()
    for node in nodes:
        folder = Path(node.split("::")[0]).parts[1]
        # Tests of pages, and those of no package, read everything.
        rests_on = needed(folder, MAY_IMPORT) if folder in MAY_IMPORT else moved
        if function_of(node) in dear and not moved & rests_on:
            found.add(node)
    return found
