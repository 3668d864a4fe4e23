"""The site: it builds strictly, and every public name is on it, which is shown only where it has a
docstring.
"""

import functools
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_architecture import FLOOR, MAY_IMPORT

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(path.stem for path in (ROOT / "docs/reference").glob("*.md"))
INNER = {"__main__", "cli", "kernels", "wire"} | FLOOR - {"noise"}


def build(folder, *options):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder), *options]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=quiet,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("site")
    done = build(found)
    assert done.returncode == 0, done.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def site(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.html")}


def public(room):
    """Names of a room, and what its classes define themselves: methods and properties."""
    module = importlib.import_module(f"torchdp.{room}")
    held = vars(module)
    own = [name for name in held if getattr(held[name], "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", own):
        if not name.startswith("_"):
            yield name
            thing = getattr(module, name)
            if inspect.isclass(thing):
                for inner, held in vars(thing).items():
                    kinds = property | classmethod | staticmethod | functools.cached_property
                    field = inner in getattr(thing, "__dataclass_fields__", {})
                    # what its metadata routing adds
                    others = type(held).__module__.startswith("sklearn")
                    if not (inner.startswith("_") or field or others) and (
                        inspect.isroutine(held) or isinstance(held, kinds)
                    ):
                        yield f"{name}.{inner}"


def absent(page, names):
    identifier = r'id="torchdp\.([\w.]+\.)?'
    return [name for name in names if not re.search(f'{identifier}{re.escape(name)}"', page)]


def test_every_room_has_a_page():
    assert set(ROOMS) == set(MAY_IMPORT) - INNER


@pytest.mark.slow  # builds the whole site
def test_every_public_name_is_shown(site):
    missing = {room: absent(site[f"reference/{room}/index.html"], public(room)) for room in ROOMS}
    assert not any(missing.values()), {room: names for room, names in missing.items() if names}
    assert absent(site["reference/privacy/index.html"], ["Guarante", "Budget.nothing"]) == [
        "Guarante",
        "Budget.nothing",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted", ["[x](nowhere.md) [x](index.md#no.md)", "::: torchdp.nowhere", '--8<-- "no.md"']
)
def test_what_is_broken_stops_it(planted, tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/griffe_torchdp.py", tmp_path / "docs")
    (tmp_path / "docs/index.md").write_text("# Start\n\n" + planted + "\n")
    config = {
        "INHERIT": f"{ROOT}/mkdocs.yml",
        "docs_dir": "docs",
        "extra_css": [],
        "hooks": [],
        "nav": ["index.md"],
    }
    lines = [f"{name}: {value}\n" for name, value in config.items()]
    (tmp_path / "mkdocs.yml").write_text("".join(lines))
    done = build(tmp_path / "site", "-f", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert all(name in done.stderr for name in ("nowhere", "no.md") if name in planted)
