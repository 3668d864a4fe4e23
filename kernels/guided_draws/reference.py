"""The specification of draws by a guide, in plain torch."""

import torch
from torch import Tensor

OPEN = -(2**15)  # a cell that does not decide


def fill(out: Tensor, parts: Tensor, cells: Tensor, times: int = 0) -> Tensor:
    """out = cells[first bits], or for times > 0 out += times cells[first bits].

    Args:
        out: (n,) int64; it holds ``OPEN``, or has it added so many times, where the draw is open.
        parts: (n,) random int16 or int32, whose highest bits choose a cell.
        cells: int16, 2^16 or 2^20 of them (a power of two, up to all bits of a part).
        times: how often.

    Returns: where a cell is ``OPEN``, (m,), rising.
    """
    shift = 8 * parts.itemsize - (len(cells).bit_length() - 1)
    cell = parts.to(torch.int32, copy=True)
    if shift:
        cell.bitwise_right_shift_(shift)
    cell.bitwise_and_(len(cells) - 1)
    values = cells.index_select(0, cell)
    if times:
        out.add_(values, alpha=times)
    else:
        out.copy_(values)
    return (values == OPEN).nonzero()[:, 0]
