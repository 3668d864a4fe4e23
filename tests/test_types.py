"""What an editor knows after ``choose``: strict type checking of users' programs finds no Any."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAD = """
import torch
import torchdp
from torch.utils.data import TensorDataset
from torchdp import collection, density, domains, mean, pairwise, queries, randomizers, training, workloads

x, rows = torch.arange(6), torch.ones(60, 1)
choice = training.choose(training.Iterates(6), users=60, batch=20, epsilon=2.0, delta=1e-5)
plan = choice.best
net = torch.nn.Linear(1, 1)
run = plan.start(net, torch.nn.functional.mse_loss)
for users in run:
    loss = run.backward(rows[users], rows[users])
for inputs, targets in run.loader(TensorDataset(rows, rows)):
    pass
for step in run.loader(TensorDataset(rows, rows), max_rows=4):
    for part in step:
        run.backward(*part)
"""
# an expression of a user's: part of its type
PROGRAMS = {
    "queries.choose(pairwise.gini(4), 100, 1.0).best": "Protocol[torch._tensor.Tensor]",
    "queries.choose(pairwise.gini(4), 100, 1.0).best.estimate(x).interval()": "tuple[torch._tensor.Tensor",
    "queries.choose(workloads.prefix(4), 100, 1.0).best": "Protocol[torch._tensor.Tensor]",
    "queries.choose(workloads.prefix(4), 100, 1.0).best.estimate(x).value": "Tensor",
    "queries.choose(workloads.identity(4), 100, 1.0, 1e-6, trust='curator').best.estimate(x).interval()": "tuple[torch",
    "density.choose(density.Gaussian(0.2), epsilon=1.0, delta=1e-5, n=9, dimension=3).best": "ShuffledKDE",
    "density.choose(density.Gaussian(0.2), epsilon=1.0, delta=1e-5, classes=x, dimension=3).best": "ShuffledClasses",
    "queries.choose(pairwise.gini(4), 100, 1.0).best.guarantee": "Guarantee",
    "torchdp.pairwise.choose_rounds(torchdp.pairwise.gini(4), 100, 1.0).candidates[0].protocol": "Protocol",
    "collection.Collection.of(randomizers.RandomizedResponse(4, 1.0)).estimate()": "Estimate",
    "choice.candidates[0].protocol": "training.plan.Plan",
    "training.Plan.load('plan')": "training.plan.Plan",
    "plan.deviations()": "Tensor",
    "run": "training.run.Run",
    "run.plan.guarantee.epsilon + run.deviation": "float",
    "(users, loss, part[0])": "tuple[torch._tensor.Tensor, torch._tensor.Tensor, torch._tensor.Tensor]",
    "inputs": "Tensor",
}


@pytest.mark.slow
def test_no_value_after_a_choice_is_any(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + "".join(f"reveal_type({each})\n" for each in PROGRAMS))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    found = [
        line.split("Revealed type is ")[1]
        for line in done.stdout.splitlines()
        if "Revealed type" in line
    ]
    assert "error:" not in done.stdout and len(found) == len(PROGRAMS), done.stdout
    wrong = [
        (one, part)
        for one, part in zip(found, PROGRAMS.values(), strict=True)
        if part not in one or "Any" in one
    ]
    assert not wrong
