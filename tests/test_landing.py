"""Which tests are left out where nothing moves them."""

import landing
import pytest

PACKAGES = {
    "torchdp/density/kde.py": "density",
    "torchdp/checks.py": "checks",
    "torchdp/__init__.py": None,
    "kernels/philox/reference.py": "kernels",
    "tests/density/test_waves.py": "density",
    "tests/density/README.md": "density",
    "tests/test_text.py": "pages",
    "tests/contract.py": None,
    "docs/gpu.md": "pages",
    "README.md": "pages",
    "experiments/mean/errors.py": "pages",
    "pyproject.toml": None,
    "run.py": None,
}
WAVES = "tests/density/test_waves.py::test_waves[3]"
OTHER = "tests/density/test_waves.py::test_others"
PAGE = "tests/test_readme.py::test_stories[a.md]"


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_each_file_is_of_a_package(name, package):
    assert landing.package_of(name) == package


@pytest.mark.parametrize(
    ("changed", "out"),
    [
        (set(), {WAVES, PAGE}),
        ({"pages"}, {WAVES}),
        # which density does not import, and a page may
        ({"pairwise"}, {WAVES}),
        ({"density"}, set()),
        # which density imports, by way of another package
        ({"checks"}, set()),
        ({"kernels"}, set()),
        ({None, "pages"}, set()),
    ],
)
def test_dear_tests_that_nothing_moves_are_left_out(monkeypatch, changed, out):
    monkeypatch.setattr(landing, "changed", lambda since: changed)
    dear = {landing.function_of(WAVES), landing.function_of(PAGE)}
    monkeypatch.setattr(landing, "noted", lambda: dear)
    assert landing.left_out([WAVES, OTHER, PAGE], "a commit") == out


def test_the_dearest_tenth_is_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(landing, "DEAR", tmp_path / "dear.txt")
    seconds = {f"tests/a.py::test_{i}[{j}]": i + j for i in range(20) for j in range(2)}
    landing.note(seconds)
    assert landing.noted() == {"tests/a.py::test_19", "tests/a.py::test_18"}


def test_an_unknown_commit_is_named():
    with pytest.raises(landing.UnknownCommit):
        landing.changed("no-such-commit")
