"""The notebooks of the site: they parse, hold what they printed, and run again to the same kinds of
output.
"""

import json
from pathlib import Path

import pytest
from laws import executed

FOLDER = Path(__file__).resolve().parent.parent / "docs"
BOOKS = sorted((FOLDER / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def script():
    return executed(FOLDER / "notebooks.py")


def kinds(cells):
    """What each code cell has put out."""
    outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    return [
        [sorted(one.get("data", {one["output_type"]: 0})) for one in several] for several in outputs
    ]


@pytest.mark.parametrize("path", BOOKS, ids=[path.stem for path in BOOKS])
def test_outputs_are_stored_and_shown(path, script):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for at, cell in enumerate(code, 1):
        compile("".join(cell["source"]), path.stem, "exec")
        assert cell["execution_count"] == at
    text, images = script.page(path)
    assert 3 * len(images) >= len(code) - 2
    assert all(f"]({name})" in text for name in images)
    assert all(image.startswith(b"\x89PNG") for image in images.values())
    assert not [
        bad
        for bad in ("Traceback", "site-packages", "/tmp/", "Warning")
        if bad in json.dumps(cells)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=[path.stem for path in BOOKS])
def test_they_run(path, script):
    assert kinds(script.execute(path).cells) == kinds(json.loads(path.read_text())["cells"])
