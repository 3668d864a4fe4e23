"""Every script is in the generated page, says how it is run, and has a test that runs it."""

import ast
import re

from scripts import FOLDER, loaded

with loaded("readme.py") as readme:
    SCRIPTS = {str(path.relative_to(FOLDER)): readme.fields(path) for path in readme.scripts()}
    PAGE = readme.page()


def test_docstrings_are_recipes():
    for name, said in SCRIPTS.items():
        assert {"title", "Command", "Expected", "Artifact", "Status", "Time"} <= set(said), name
        assert f"experiments/{name}" in said["Command"] and "--smoke" in said["Time"], name


def test_no_script_does_nothing():
    """Run by python it measures, sweeps, or says what to run, with a code other than 0."""
    for path in FOLDER.rglob("[!_]*.py"):
        *_, last = ast.parse(path.read_text()).body
        assert isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'", path
        done = ast.unparse(last.body[-1])
        called = re.search(r"main\(|exit\(|\.write_text\(|^for line in sys.stdin", done)
        said = re.fullmatch(r"raise SystemExit\('[^']*: (run python|python -m pytest) (\S+)[^']*'\)", done)
        assert called or (said and (FOLDER.parent / said[2]).is_file()), path


def test_the_page_is_current():
    assert (FOLDER / "README.md").read_text() == PAGE, "run: python experiments/readme.py"


def test_no_script_is_forgotten():
    tests = "".join(path.read_text() for path in FOLDER.parent.glob("tests/experiments/test_*.py"))
    assert not [name for name in SCRIPTS if f'"{name}"' not in tests]
