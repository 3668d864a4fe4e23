"""The device that is not there refuses what CUDA refuses, and counts; in a child, since it changes the process."""

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
    assert (counts.launches, counts.syncs) == (3, 0), (counts.launches, counts.syncs)
    assert float(y) == 9 and counts.syncs == 1
    x[x > 2], x.nonzero(), x.cpu(), here.to(far), bool((x > 0).any())
    assert counts.syncs == 6, counts.syncs
    x[x > 2] = 0.0
    assert counts.syncs == 6 and not x.cpu()[3:].any()
    torch.rand(3, device=far, generator=device.generator())
print("fine")
"""


def test_the_device_refuses_and_counts(child):
    assert child("-c", CODE) == "fine\n"
