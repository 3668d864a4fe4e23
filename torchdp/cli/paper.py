"""``torchdp paper``: what a paper claims, by the scripts that show it."""

import argparse
import runpy
import sys
from collections import Counter
from pathlib import Path

from torchdp import checks
from torchdp.simulate.paper import Options, Paper, run_paper
from torchdp.text import say

COMMON = "papers_base"  # what the papers have in common


def paper(options: argparse.Namespace) -> int:
    """Runs the paper's scripts and writes its page; 1 where a script failed, a number differs, a promise is broken."""
    experiments = Path(options.experiments)
    found = load(experiments / "papers", options.name)
    if options.device is not None:
        checks.device("--device", options.device)
    out = Path(options.out or f"results/papers/{options.name}")
    data = None if options.data is None else Path(options.data)
    if data is not None and not data.is_dir():
        raise ValueError(f"--data must be a folder with real data; there is none at {data}")
    outcomes = run_paper(found, experiments, out, Options(options.scale, options.device, data))
    counts = Counter(each.verdict for outcome in outcomes for each in outcome.findings)
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), out / "index.html", out / "index.md")
    failed = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failed:
        say(
            f"torchdp paper: {outcome.part.script} failed: {outcome.failure}; see {outcome.folder / 'output.log'}",
            error=True,
        )
    return 1 if failed or counts["differs"] or counts["broken"] else 0


def load(folder: Path, name: str) -> Paper:
    """PAPER of ``folder``/name.py. Raises ValueError, naming those there are."""
    path = folder / f"{name}.py"
    if not path.is_file():
        if not folder.is_dir():
            raise ValueError(f"there is no {folder}: torchdp paper needs a checkout; run it in its root")
        there = ", ".join(sorted(p.stem for p in folder.glob("*.py") if p.stem != COMMON)) or "none"
        raise ValueError(f"NAME must be a paper below {folder}, such as those there are: {there}; not {name!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return checks.instance(f"{path}: PAPER", runpy.run_path(str(path)).get("PAPER"), Paper)
