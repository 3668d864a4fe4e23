"""No block of a page and no example of a docstring is left unrun: each that is found has a test
that runs it.
"""

import ast
import re
import subprocess
from pathlib import Path

from test_readme import PRINTED, TOLD, estimates, runnable

ROOT = Path(__file__).resolve().parent.parent
# Pages named by what runs their commands. The rest are blocks of Python, and what those print.
TUTORIALS = {  # every line that begins so
    "docs/sweeps.md": "torchdp ",  # tests/cli/test_sweep_command.py
    "docs/cluster.md": "torchdp ",
}
FORMULAS = "kernels/"  # indented lines there are mathematics
COMMANDS = {  # that tests run, or .ci/run and docs/publish.py
    "python3 run.py demo", "python3 run.py test", "pip install .", "torchdp doctor",
    "python experiments/density/error.py --smoke", "python experiments/density/error.py --help",
    "python experiments/density/error.py --device cuda:1", "python experiments/density/error.py --draw-only",
    "python experiments/pairwise/error_vs_n.py --smoke",
}  # fmt: skip


def tracked(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    # an sdist
    return listed or [str(path.relative_to(ROOT)) for one in patterns for path in ROOT.rglob(one)]


PAGES = {
    name: (ROOT / name).read_text()
    for name in tracked("*.md")
    if not name.startswith("torchdp/kernels")
}
SCRIPTS = {
    name: (ROOT / name).read_text() for name in tracked("*.py") if not name.startswith("tests/")
}


def found(text):
    """Blocks of a page as (language, code): fenced at any depth, "indented" where four spaces
    follow an empty line.
    """
    lines = text.expandtabs(4).split("\n")
    at = 0
    while at < len(lines):
        if fence := re.match(r"( *(?:> ?|[-*] )* *)(`{3,}|~{3,}) *([\w+-]*)", lines[at]):
            start = at = at + 1
            while at < len(lines) and not re.match(rf"[ >]*{fence[2]}", lines[at]):
                at += 1
            yield fence[3], "\n".join(lines[start:at]) + "\n"
        elif re.match(r" {4,}\S", lines[at]) and (at == 0 or not lines[at - 1].strip()):
            start = at
            while at < len(lines) and re.match(r" {4,}\S|\s*$", lines[at]):
                at += 1
            yield (
                "indented",
                re.sub(r"(?m)^    ", "", "\n".join(lines[start:at])).strip("\n") + "\n",
            )
            continue
        at += 1


def commands(block):
    for line in block.replace("\\\n", " ").splitlines():
        if line := re.sub(r"\s+#.*", "", " ".join(line.split())):
            yield line


def unrun(pages):
    """What no test runs, a line each."""
    for page, text in pages.items():
        seen = list(found(text))
        inner = page.removeprefix("docs/")
        pythons = 0
        before = ""
        for language, code in seen:
            what = f"{page}: {language or 'block'} {code.strip().splitlines()[:1]}"
            if not code.strip() or language == "math":  # a formula
                continue
            if language == "python":
                if code not in runnable(inner) or not (
                    (inner, pythons) in PRINTED or inner in TOLD
                ):
                    yield what
                pythons += 1
            # what the block before it prints: tests/test_readme.py compares the README's
            elif language == "text":
                if (page, pythons, before) != ("README.md", 1, "python"):
                    yield what
            elif language not in ("", "indented"):
                yield what
            elif not page.startswith(FORMULAS):
                known = {*COMMANDS, *estimates(inner)}
                for command in commands(code):
                    if not (command.startswith(TUTORIALS.get(page, "\0")) or command in known):
                        yield f"{page}: {command}"
            before = language


def test_every_block_of_every_page_is_run():
    assert sum(1 for text in PAGES.values() for _ in found(text))
    assert not list(unrun(PAGES))


def examples(text):
    """How many examples stand in a script: in strings, however they are indented, or in
    comments.
    """
    return len(re.findall(r"^[ #]*>>> ", text, re.M))


def test_every_example_of_a_docstring_is_run():
    """tests/test_examples.py runs those of the package, and counts that none escapes it; elsewhere
    there are none.
    """
    outside = [
        name for name, text in SCRIPTS.items() if examples(text) and not name.startswith("torchdp/")
    ]
    assert not outside
    assert (
        examples('def f():\n    """A.\n\n    >>> 1\n    2\n    """\n') == 1 == examples("# >>> 1")
    )


def test_no_docstring_holds_code_that_is_no_example():
    inside = [name for name in SCRIPTS if name.startswith(("torchdp/", "kernels/"))]
    assert inside and not [name for name in inside if list(hidden(SCRIPTS[name]))]


HIDDEN = r"```|~~~|::\n\n +\S|code-block|doctest: *\+?SKIP|^ *(import \w+|from [\w.]+ import )"


def hidden(text):
    """Docstrings with code that doctest would pass over."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            said = ast.get_docstring(node) or ""
            if re.search(HIDDEN, said, re.M):
                yield said
