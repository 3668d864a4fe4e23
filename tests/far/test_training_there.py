"""After its first one a training step waits for no device; what it refuses comes as NaN, and as an error later."""

CODE = """
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


def test_a_training_step_there_refuses_without_waiting(child):
    assert child("-c", CODE) == "fine\n"
