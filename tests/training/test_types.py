"""What a type checker says of a user's training loop: nothing after ``choose`` is Any."""

import re
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from torch.utils.data import TensorDataset
from torchdp import training

x = torch.ones(60, 1)
choice = training.choose(training.Iterates(6), users=60, batch=20, epsilon=2.0, delta=1e-5)
plan = choice.best
net = torch.nn.Linear(1, 1)
run = plan.start(net, torch.nn.functional.mse_loss)
optimizer = training.PrivateAdam(net.parameters(), run)
for users in run:
    mean = run.backward(x[users], x[users])
for rows in run.loader(TensorDataset(x, x)):
    inputs, targets = rows
for step in run.loader(TensorDataset(x, x), max_rows=4):
    for part in step:
        run.backward(*part)
for candidate in choice.candidates:
    reveal_type(candidate.protocol)
reveal_type(training.Plan.load("plan"))
"""
EXPECTED = {
    "plan": "torchdp.training.plan.Plan",
    "run": "torchdp.training.run.Run",
    "run.plan.guarantee.epsilon": "float",
    "users": "torch._tensor.Tensor",
    "mean": "torch._tensor.Tensor",
    "inputs": "torch._tensor.Tensor",
    "part[0]": "torch._tensor.Tensor",
    "run.deviation": "float",
    "plan.deviations()": "torch._tensor.Tensor",
}


@pytest.mark.slow
def test_nothing_after_choose_is_any(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "".join(f"reveal_type({name})\n" for name in EXPECTED))
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--ignore-missing-imports", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.findall(r'Revealed type is "(?:builtins\.)?(.*?)"', done.stdout)
    plans = ["torchdp.training.plan.Plan"] * 2
    assert found == plans + list(EXPECTED.values()) and done.returncode == 0, done.stdout + done.stderr
