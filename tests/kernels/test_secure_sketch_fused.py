"""The keyed secure sketch in Triton gives the reference's integers."""

import pytest
import torch

from torchdp.kernels.secure_sketch import reference
from torchdp.noise import SeededNoise

triton = pytest.importorskip("triton")

from torchdp.kernels.secure_sketch import fused  # noqa: E402

# clients, copies, columns, rows, servers, bits, first, data
CASES = [
    (1, 1, 1, 1, 2, 64, 0, torch.float64),
    (63, 2, 3, 5, 3, 64, 7, torch.float32),
    (130, 1, 1, 4, 2, 32, 3, torch.float64),
    (9, 4, 5, 8, 4, 32, 2**33, torch.bfloat16),
    (0, 2, 3, 5, 3, 64, 0, torch.float64),
]


def problem(n, s, d, m, dtype, unit=2.0**20):
    """values, rows, signs, units, key; all matrices are views that skip memory."""
    g = torch.Generator().manual_seed(n)
    rows = torch.rand(m, 2 * n, generator=g).argsort(0)[:s, ::2]
    signs = (2 * torch.randint(2, (n, s), generator=g) - 1).to(torch.int8).T
    values = torch.randn(d, 2 * n, dtype=torch.float64, generator=g).to(dtype)[:, n:].T
    units = unit * (1 + torch.arange(m, dtype=torch.float64) / m)
    return values, rows, signs, units, SeededNoise(n).words((4,)).view(torch.int32)


@pytest.mark.parametrize(("n", "s", "d", "m", "servers", "bits", "first", "dtype"), CASES)
def test_both_paths_give_the_same_sums(device, n, s, d, m, servers, bits, first, dtype):
    inputs = problem(n, s, d, m, dtype)
    kind = {32: torch.int32, 64: torch.int64}[bits]
    expected = torch.full((servers, m, d), -1, dtype=kind)
    sums = expected.to(device, copy=True)
    reference.add(expected, *inputs, first, 2.0**12)
    fused.add(sums, *(x.to(device) for x in inputs), first, 2.0**12)
    assert torch.equal(sums.cpu(), expected)  # no noise here lies within rounding of a half


def test_on_the_finest_grid_integers_differ_next_to_halves_alone(device):
    n, d, unit = 150, 6, 2.0**40
    values, rows, signs, units, key = problem(n, 1, d, n, torch.float64, unit)
    rows = torch.arange(n)[None]  # a row for each client
    sums = torch.zeros(2, n, d, dtype=torch.int64)
    there = sums.to(device, copy=True)
    reference.add(sums, values, rows, signs, units, key, 0, 2.0**30)
    fused.add(there, *(x.to(device) for x in (values, rows, signs, units, key)), 0, 2.0**30)
    assert torch.equal(there[0].cpu(), sums[0])  # masks know no rounding
    moved = (there.cpu() - sums)[1]
    noise = reference.normals(key, 0, n * d).view(n, d) * units[:, None]
    # some last digits of a normal
    near = ((noise - noise.floor()) - 0.5).abs() <= 16 * 2.0**-53 * 10 * units[:, None]
    assert bool(((moved == 0) | near & (moved.abs() == 1)).all())
    assert float(near.double().mean()) < 0.1  # so that the line above says something


def test_parts_add_up_to_the_whole(device):
    values, rows, signs, units, key = (x.to(device) for x in problem(12, 1, 2, 3, torch.float64))
    whole = torch.zeros(2, 3, 2, dtype=torch.int64, device=device)
    parts = whole.clone()
    fused.add(whole, values, rows, signs, units, key, 0, 1.0)
    for part in (slice(0, 1), slice(1, 12)):
        fused.add(parts, values[part], rows[:, part], signs[:, part], units, key, part.start, 1.0)
    assert torch.equal(whole, parts)


def test_columns_that_lie_two_to_the_31_numbers_apart_are_found(device):
    """Values column by column: an offset of 32 bits would wrap around."""
    n, step = 4, 2**29 + 3
    flat = torch.empty(4 * step + n, dtype=torch.uint8, device=device)  # pages that nobody touches take no memory
    values = flat.as_strided((n, 5), (1, step))
    values.copy_(torch.arange(5 * n).view(n, 5))
    _, rows, signs, units, key = (x.to(device) for x in problem(n, 1, 5, 2, torch.float64))
    sums = torch.zeros(2, 2, 5, dtype=torch.int64, device=device)
    expected = torch.zeros_like(sums)
    fused.add(sums, values, rows, signs, units, key, 0, 1.0)
    fused.add(expected, values.contiguous(), rows, signs, units, key, 0, 1.0)
    assert torch.equal(sums, expected)
