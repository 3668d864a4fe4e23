"""Every entry of the battery on a device that is not there: it runs, mixes no devices, and finds
the CPU's numbers.

And on the CPU, whatever torch's default device and dtype are.
"""

import json
from pathlib import Path

import pytest
from far import smokes

SCRIPT = Path(__file__).with_name("battery.py")
PACKAGES = "density mean pairwise queries randomizers regression secure shuffle".split()
CODE = """
import device
library = device.register(True)
import torch
far = device.DEVICE

def refused(call, kind=(RuntimeError, TypeError)):
    try:
        call()
    except kind:
        return
    raise SystemExit(f"not refused: {call.__code__.co_firstlineno}")

with device.counted() as counts:
    x = torch.arange(6.0, device=far)
    here = torch.arange(6.0)
    made = torch.Generator().manual_seed(1)
    refused(lambda: x + here)
    refused(lambda: here.add_(x))
    refused(lambda: torch.cat([x, here]))
    refused(lambda: torch.stack([x.sum(), here.sum()]))
    refused(lambda: here[x.long()])
    refused(lambda: here @ x)
    refused(lambda: x.numpy())
    refused(lambda: torch.rand(3, device=far, generator=made))
    refused(lambda: torch.rand(3, generator=device.generator()))
    refused(lambda: here.sum().add_(x.sum()))
with device.counted() as counts:
    y = (x[:3].view(3, 1) * 2 + 1).sum()
    assert counts.syncs == 0, counts.syncs
    assert float(y) == 9 and counts.syncs == 1
    x[x > 2], x.nonzero(), x.cpu(), here.to(far), bool((x > 0).any())
    assert counts.syncs == 6, counts.syncs
    x[x > 2] = 0.0
    assert counts.syncs == 6 and not x.cpu()[3:].any()
    torch.rand(3, device=far, generator=device.generator())
print("fine")
"""
STEP = """
import device
library = device.register(True)
import torch
from torchdp import draws, training
from torchdp.noise import SeededNoise
from torchdp.training import noise as module
from torchdp.training.clipping import Clipper
module._recorded = lambda total: False
far = device.DEVICE

def stream(device_):
    return training.CorrelatedNoise(torch.eye(4).double().to(device_), 8, 1.0, noise=SeededNoise(1, device_))

with device.counted():
    draws.RARE = 0  # the same words as on the CPU
    there, here = stream(far), stream("cpu")
    for _ in range(2):
        torch.testing.assert_close(there(torch.ones(8, device=far)).cpu(), here(torch.ones(8)))
    bad = torch.ones(8, device=far)
    bad[3] = float("inf")
    assert there(bad).isnan().all().cpu()
    try:
        there(torch.ones(8, device=far))
    except ValueError as error:
        assert "not finite" in str(error)
    else:
        raise SystemExit("an infinite sum was forgotten")
    fresh = stream(far)
    assert fresh(torch.full((8,), 1e12, device=far)).isnan().all().cpu()  # float32 has no digits for the noise

net, x = torch.nn.Linear(4, 3).to(far), torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).to(far)
y, weights = torch.arange(6).to(far) % 3, torch.tensor([1.0, 20.0, 3.0]).to(far)
clipper = Clipper(net, torch.nn.CrossEntropyLoss())
clipper(x, y, 1.0)  # the first batch is held to single examples
with device.counted() as counts:
    found, _ = clipper(x, y, 1.0)
    assert counts.syncs == 0
assert bool(found.isfinite().all())
try:
    Clipper(net, torch.nn.CrossEntropyLoss(weights))(x, y, 1.0)
except ValueError as error:
    assert "mean or the sum of their own losses" in str(error)
else:
    raise SystemExit("weights were passed over")

numbers = torch.tensor([5, 2**40, 2**62, 7, 2**31], device="cpu")
for RARE in (2, 8):
    draws.RARE = RARE
    class Planted(draws.Simulated):  # words that hold two numbers below COARSE
        def fill(self, words):
            words.copy_(numbers.to(words.device) if len(words) == 5 else torch.full_like(words, 2**61))
        def integers(self, shape):
            return torch.full(shape, 2**61, device=self.device)
    with device.counted() as counts:
        found = torch.empty(5, dtype=torch.float64, device=far), torch.empty(5, dtype=torch.float64)
        Planted(device.generator(), far)._logarithms(found[0])
        assert counts.syncs == 1, counts.syncs  # the planted words' own
        Planted(torch.Generator())._logarithms(found[1])
        same = torch.isclose(found[0].cpu(), found[1], rtol=1e-12, atol=0)
        assert same.all() == (RARE == 8), same  # three numbers are small: two places are too few
print("fine")
"""


def faults(found):
    return [
        f"{entry}, {part}:\n{trace}"
        for entry, wrong in found.items()
        for part, trace in wrong.items()
    ]


def test_some_entries_run_there_and_defaults_of_torch_change_nothing(child):
    some = "regression.LocalRows", "mean.LocalVariance", "shuffle.Poisson"
    found = json.loads(child(SCRIPT, "--json", "--there", "--device", "--dtype", *some))
    assert len(found) == 9 and not faults(found), "\n".join(faults(found))


def test_rows_there_are_asked_by_protocols_that_are_here(child):
    some = "queries.LocalOracle", "queries.CentralLaplace", "pairwise.SeveralAnswers"
    found = json.loads(child(SCRIPT, "--json", "--rows", *some))
    assert len(found) == 3 and not faults(found), "\n".join(faults(found))


def test_rows_there_are_counted_there_and_all_else_is_done_here(child):
    lines = child(SCRIPT.with_name("launches.py"), "queries.CentralLaplace").splitlines()
    row = next(line.split() for line in lines if ".estimate " in line)
    launches, waits = map(int, row[2:4])
    assert launches <= 5 and waits <= 5, row


@pytest.mark.slow
@pytest.mark.parametrize("default", ["--device", "--dtype"])
@pytest.mark.parametrize("package", PACKAGES)
def test_defaults_of_torch_change_nothing_anywhere(child, default, package):
    found = json.loads(child(SCRIPT, "--json", default, f"{package}."))
    assert found and not faults(found), "\n".join(faults(found))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["--there", "--rows"])
@pytest.mark.parametrize("package", PACKAGES)
def test_every_entry_runs_there(child, package, what):
    found = json.loads(child(SCRIPT, "--json", what, f"{package}."))
    assert found and not faults(found), "\n".join(faults(found))


@pytest.mark.slow
@pytest.mark.parametrize("package", sorted({name.split("/")[0] for name in smokes.every()}))
def test_every_script_runs_there(child, package):
    found = [json.loads(line) for line in child(smokes.__file__, package).splitlines()]
    assert found
    assert not [row for row in found if row["wrong"]]


def test_the_device_refuses_and_counts(child):
    assert child("-c", CODE) == "fine\n"


def test_a_training_step_there_refuses_without_waiting(child):
    assert child("-c", STEP) == "fine\n"
