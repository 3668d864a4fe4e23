"""``torchdp list`` and ``torchdp new``: the scripts that there are, and the first lines of another."""

import argparse
import ast
import re
from pathlib import Path

from torchdp.text import say

SKELETON = '''\
"""{title}: the error of a mean under randomized response, predicted and measured. (Put your question here.)

Command:  torchdp sweep {file}
Artifact: our own | none
Status: new
"""

import math
import sys

import torch

from torchdp import cli
from torchdp.simulate import Sweep, Trial

GRID = [{{"users": users, "epsilon": epsilon}} for users in (10**3, 10**5, 10**7) for epsilon in (0.5, 2.0)]


def make_trial(config):
    """What one configuration runs: here the mechanism, its exact distribution, and its predicted error."""
    users, truth = config["users"], 1 / (1 + math.exp(-config["epsilon"]))
    ones = users // 3  # the data: how many users hold a one

    def sample(generator, size):  # -> (size,) independent squared errors, drawn from generator alone
        ask = lambda n, chance: torch.binomial(torch.full((size,), float(n)), torch.tensor(chance), generator)
        heard = ask(ones, truth) + ask(users - ones, 1 - truth)
        return ((heard / users - (1 - truth)) / (2 * truth - 1) - ones / users).double().square()

    return Trial(sample, {{"predicted_mse": truth * (1 - truth) / (2 * truth - 1) ** 2 / users}})


def experiment(smoke):
    return Sweep("{name}", GRID, make_trial, trials=100 if smoke else 10_000, block_size=100 if smoke else 1_000)


if __name__ == "__main__":
    sys.exit(cli.main(["sweep", *sys.argv]))
'''


def new(options: argparse.Namespace) -> int:
    """Writes a script that runs as it is; prints what to do with it. Raises ValueError, OSError."""
    path = Path(options.name).with_suffix(".py")
    if not path.stem.isidentifier():
        raise ValueError(f"NAME must be a word of Python, such as my_error, not {path.stem!r}")
    text = SKELETON.format(title=path.stem.replace("_", " ").capitalize(), file=path, name=path.stem)
    with open(path, "x", encoding="utf-8") as file:  # never over what is there
        file.write(text)
    say(path, f"torchdp sweep {path} --smoke   # then without --smoke; it writes results/{path.stem}/report.html")
    return 0


def scripts(folder: Path) -> list[Path]:
    """The files below ``folder`` that can be run as experiments or sweeps."""
    ran = re.compile("^EXPERIMENT = |^def experiment", re.M)
    return sorted(
        path for path in folder.rglob("*.py") if path.is_file() and ran.search(path.read_text("utf-8", "replace"))
    )


def fields(path: Path) -> dict[str, str]:
    """The docstring's first line as "title", and what follows each word with a colon at the beginning of a line."""
    try:
        title, _, rest = (ast.get_docstring(ast.parse(path.read_text("utf-8", "replace"))) or "").partition("\n")
    except (SyntaxError, ValueError) as error:
        return {"title": f"not Python: {error}"}
    found = {"title": title}
    for part in re.split(r"\n(?=[A-Z])", rest):
        name, _, text = part.partition(":")
        found[name.partition(",")[0].strip()] = " ".join(text.split())
    return found


def list_scripts(options: argparse.Namespace) -> int:
    """A line for each script: its path, what it reproduces, what became of that, its title."""
    found = scripts(Path(options.folder))
    if not found:
        say(
            f"torchdp list: no experiments below {options.folder}; it needs a checkout: run it in its root",
            error=True,
        )
        return 1
    for path in found:
        said = fields(path)
        source = ", ".join(part.strip() for part in said.get("Artifact", "").split("|"))
        say(path, f"    {said['title']}", f"    {source}; {said.get('Status', 'no status')}")
    return 0
