"""Integer noise whose first bits are looked up in Triton: the reference's integers, and the same
words taken.
"""

import pytest
import torch

from torchdp import rounded
from torchdp.kernels.guided_draws import reference
from torchdp.noise import SeededNoise
from torchdp.rounded import RoundedNormal

pytest.importorskip("triton")
from torchdp.kernels.guided_draws import fused


# 1, 2 and 4 pieces of 16 and of 32 bits
@pytest.mark.parametrize("sigma", [0.3, 100.0, 600.0, 5000.0, 2.0**22])
def test_draws_and_the_stream_afterwards_are_those_of_the_reference(device, sigma, monkeypatch):
    # more parts than one
    monkeypatch.setattr(rounded, "AT_ONCE", 4096)
    monkeypatch.setattr(rounded, "AT_ONCE_THERE", 4096)
    for size in (1, 63, 1000, 9000):
        found = {}
        for mode in ("reference", "fused"):
            monkeypatch.setenv("TORCHDP_KERNELS", mode)
            noise = SeededNoise(size, device)
            found[mode] = torch.cat([RoundedNormal(sigma).draw((size,), noise), noise.words((8,))])
        assert torch.equal(*found.values())


def test_open_draws_are_found_in_their_order_wherever_they_lie(device):
    """All, none, the first and the last of a program and of all; nothing is written before, behind
    or elsewhere.
    """
    size = 2 * fused.DRAWS + 5
    ends = torch.tensor([0, fused.DRAWS - 1, fused.DRAWS, size - 1])
    for open_ones in (
        torch.arange(size),
        torch.arange(0),
        ends,
        torch.arange(7, size, 611),
    ):
        numbers = torch.arange(2**16)
        cells = numbers.to(torch.int16).masked_fill_(numbers == 2**15, 5)
        parts = torch.arange(size).remainder(2**15).to(torch.int16)
        # the cell of the number 2^15
        parts[open_ones] = -(2**15)
        cells[2**15] = reference.OPEN
        here = [each.to(device) for each in (parts, cells)]
        held = torch.full((size + 20,), 77, device=device)
        wanted = held.clone()
        assert torch.equal(fused.fill(held[10:-10], *here).cpu(), open_ones)
        assert torch.equal(reference.fill(wanted[10:-10], *here).cpu(), open_ones)
        assert torch.equal(held, wanted)
