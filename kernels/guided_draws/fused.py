"""Draws by a guide in Triton: one launch counts what is open, another writes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch import launched
from torchdp.kernels.guided_draws.reference import OPEN as UNDECIDED

DRAWS = 2048  # of one program
OPEN = tl.constexpr(UNDECIDED)


@triton.jit
def looked_up(parts, cells, place, inside, SHIFT: tl.constexpr, MASK: tl.constexpr):
    part = tl.load(parts + place, mask=inside, other=0).to(tl.int32)
    cell = (part >> SHIFT) & MASK
    return tl.load(cells + cell, mask=inside, other=0).to(tl.int32)


@launched("size")
def count_kernel(
    counts, parts, cells, size, SHIFT: tl.constexpr, MASK: tl.constexpr, DRAWS: tl.constexpr
):
    """How many draws of each program are open."""
    place = tl.program_id(0).to(tl.int64) * DRAWS + tl.arange(0, DRAWS)
    inside = place < size
    cell = looked_up(parts, cells, place, inside, SHIFT, MASK)
    left = inside & (cell == OPEN)
    tl.store(counts + tl.program_id(0), tl.sum(left.to(tl.int32), 0))


@launched("times", "size")
def fill_kernel(
    out,
    places,
    parts,
    cells,
    ends,
    times,
    size,
    SHIFT: tl.constexpr,
    MASK: tl.constexpr,
    ADD: tl.constexpr,
    DRAWS: tl.constexpr,
):
    """ends: open draws of the programs up to each, itself included."""
    place = tl.program_id(0).to(tl.int64) * DRAWS + tl.arange(0, DRAWS)
    inside = place < size
    cell = looked_up(parts, cells, place, inside, SHIFT, MASK)
    value = cell.to(tl.int64)
    if ADD:
        value = value * times + tl.load(out + place, mask=inside, other=0)
    tl.store(out + place, value, mask=inside)
    left = (inside & (cell == OPEN)).to(tl.int32)
    begin = tl.load(ends + tl.program_id(0)) - tl.sum(left, 0)
    rank = begin + tl.cumsum(left, 0) - left
    tl.store(places + rank, place, mask=left > 0)


def fill(out: Tensor, parts: Tensor, cells: Tensor, times: int = 0) -> Tensor:
    """As in reference.py; the second of two launches writes, and one wait lies between."""
    programs = triton.cdiv(len(parts), DRAWS)
    if not programs:
        return torch.empty(0, dtype=torch.int64, device=out.device)
    counts = torch.zeros(programs, dtype=torch.int32, device=out.device)
    sizes = {
        "SHIFT": 8 * parts.itemsize - (len(cells).bit_length() - 1),
        "MASK": len(cells) - 1,
        "DRAWS": DRAWS,
    }
    with torch.cuda.device_of(out):
        count_kernel[(programs,)](counts, parts, cells, len(parts), **sizes)
        ends = counts.cumsum(0)
        places = torch.full((int(ends[-1]),), -1, dtype=torch.int64, device=out.device)
        fill_kernel[(programs,)](
            out, places, parts, cells, ends, times, len(parts), ADD=times != 0, **sizes
        )
    return places
