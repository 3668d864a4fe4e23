"""The battery's power: mistakes planted one at a time in a copy of the package, and the tests that see them.

Command:  python experiments/bench/battery.py
Expected: every mistake is seen by a battery test, but for those whose row says `enumeration`: a few per cent of one
    type's variance, or one message's chance, which the tests beside the battery see.
Output: results/bench/battery/planted.csv.
Artifact: - | what the tests are worth
Status: agrees
Time: about six minutes on two cores; --smoke plants two.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planted import MISTAKES, Mistake

from torchdp.simulate import Experiment, Report

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Config:
    mistakes: int = len(MISTAKES)  # the first so many


FULL, SMOKE = Config(), Config(2)


def planted(mistake: Mistake, copy: Path) -> None:
    """Writes the mistake into the copy. Raises ValueError where the code has changed since it was written down."""
    path = copy / "torchdp" / mistake.file
    code = path.read_text()
    if code.count(mistake.right) != 1:
        raise ValueError(f"{mistake.file} holds {mistake.right!r} {code.count(mistake.right)} times, not once")
    path.write_text(code.replace(mistake.right, mistake.wrong))


def failed(copy: Path, mistake: Mistake) -> Iterator[str]:
    """Names of the tests that fail over the copy."""
    report = copy / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", "-k", mistake.entry]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", str(copy / "tests" / mistake.tests)],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield case.attrib["name"].partition("[")[0]


def measure(config: Config, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, mistake in enumerate(MISTAKES[: config.mistakes]):
            copy = Path(folder) / str(number)
            for name in ("torchdp", "tests", "docs"):
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", copy)
            planted(mistake, copy)
            seen = sorted(set(failed(copy, mistake)))
            report.row(
                "planted", file=mistake.file, mistake=mistake.what, entry=mistake.entry,
                seen=bool(seen), expected=mistake.seen, by=" ".join(seen),
            )  # fmt: skip
            shutil.rmtree(copy)


EXPERIMENT = Experiment(measure, FULL, SMOKE)

if __name__ == "__main__":
    EXPERIMENT.main()
