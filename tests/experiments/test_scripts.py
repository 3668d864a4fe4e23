"""Every script is in the generated page, says how it is run, and has a test that runs it."""

import pytest
from scripts import FOLDER, loaded

with loaded("readme.py") as readme:
    SCRIPTS = {str(path.relative_to(FOLDER)): readme.fields(path) for path in readme.scripts()}
    PAGE = readme.page()


@pytest.mark.parametrize("name", SCRIPTS)
def test_docstrings_are_recipes(name):
    said = SCRIPTS[name]
    assert {"title", "Command", "Expected", "Artifact", "Status", "Time"} <= set(said)
    assert f"experiments/{name}" in said["Command"] and "--smoke" in said["Time"]


def test_the_page_is_current():
    assert (FOLDER / "README.md").read_text() == PAGE, "run: python experiments/readme.py"


def test_no_script_is_forgotten():
    tests = "".join(path.read_text() for path in FOLDER.parent.glob("tests/experiments/test_*.py"))
    assert len(SCRIPTS) > 50 and not [name for name in SCRIPTS if f'"{name}"' not in tests]
