"""What an editor knows after ``choose``: strict type checking finds no Any. Training: tests/training/test_types.py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAD = "import torch\nfrom torchdp import collection, density, domains, mean, pairwise, queries, randomizers\n"
HEAD += "from torchdp import workloads\n\nx = torch.arange(6)\n"
PROGRAMS = {  # an expression of a user's: part of its type
    "pairwise.choose(pairwise.gini(4), 100, 1.0).best": "PairwiseProtocol",
    "pairwise.choose(pairwise.gini(4), 100, 1.0).best.estimate(x).interval()": "tuple[torch._tensor.Tensor",
    "queries.choose(workloads.prefix(4), 100, 1.0).best": "QueryProtocol",
    "queries.choose(workloads.prefix(4), 100, 1.0).best.estimate(x).value": "Tensor",
    "density.choose(density.Gaussian(0.2), epsilon=1.0, delta=1e-5, n=9, dimension=3).best": "ShuffledKDE",
    "density.choose(density.Gaussian(0.2), epsilon=1.0, delta=1e-5, classes=x, dimension=3).best": "ShuffledClasses",
    "mean.choose_covariance(domains.Box(x, x), 100, 1.0).best": "LocalCovariance",
    "pairwise.choose(pairwise.gini(4), 100, 1.0).best.guarantee": "Guarantee",
    "collection.Collection.of(randomizers.RandomizedResponse(4, 1.0)).estimate()": "Estimate",
}


@pytest.mark.slow
def test_no_value_after_a_choice_is_any(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + "".join(f"reveal_type({each})\n" for each in PROGRAMS))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = [line.split("Revealed type is ")[1] for line in done.stdout.splitlines() if "Revealed type" in line]
    assert "error:" not in done.stdout and len(found) == len(PROGRAMS), done.stdout
    wrong = [
        (one, part) for one, part in zip(found, PROGRAMS.values(), strict=True) if part not in one or "Any" in one
    ]
    assert not wrong
