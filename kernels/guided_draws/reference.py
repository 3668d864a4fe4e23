"""The specification of draws by a guide, in plain torch."""

import torch
from torch import Tensor

OPEN = -(2**15)  # a cell that does not decide


def fill(out: Tensor, parts: Tensor, cells: Tensor, times: int = 0) -> Tensor:
    """out = cells[first bits], or for times > 0 out += times cells[first bits]; where a cell is
    ``OPEN``, (m,), rising.

    out: (n,) int64; it holds ``OPEN``, or has it added so many times, where the draw is open.
    parts: (n,) random int16 or int32, whose highest bits choose one of 2^16 or 2^20
    (a power of two up to all of their bits) cells, int16.
    """
    shift = 8 * parts.itemsize - (len(cells).bit_length() - 1)
    cell = parts.to(torch.int32, copy=True)
    cell = (cell.bitwise_right_shift_(shift) if shift else cell).bitwise_and_(len(cells) - 1)
    found = cells.index_select(0, cell)
    if times:
        out.add_(found, alpha=times)
    else:
        out.copy_(found)
    return (found == OPEN).nonzero()[:, 0]
