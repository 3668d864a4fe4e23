"""The specification of draws by inversion: integers compared with integers, in plain torch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torchdp.kernels import philox
from torchdp.kernels.inversion.tables import Table

GROUPS_AT_ONCE = (
    1 << 13
)  # of four columns of a user, one for each word of a counter: they fit in a processor's cache
SECOND = 1 << 30  # added to the stream: where the other 96 bits of words come from


def draws(table: Table, key: int, users: int, columns: int, *, first: int, stream: int) -> Tensor:
    """One draw for each user and column: (users, columns), int64."""
    out = torch.empty((users, columns), dtype=torch.int64, device=table.device)
    for rows, where, cells in _blocks(table, key, users, columns, first, stream):
        out[rows, where] = cells
    return out


def column_sums(table: Table, key: int, users: int, columns: int, *, first: int, stream: int) -> Tensor:
    """``draws(...).sum(0)``, part by part: (columns,), int64."""
    out = torch.zeros(columns, dtype=torch.int64, device=table.device)
    for _, where, cells in _blocks(table, key, users, columns, first, stream):
        out[where] += cells.sum(0)
    return out


def _blocks(
    table: Table, key: int, users: int, columns: int, first: int, stream: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    groups = (columns + 3) // 4
    width = max(1, min(groups, GROUPS_AT_ONCE))
    height = max(1, GROUPS_AT_ONCE // width)
    for left in range(0, groups, width):
        group = torch.arange(left, min(left + width, groups), device=table.device)
        where = slice(4 * left, min(4 * (left + width), columns))
        for top in range(0, users, height):
            index = first + torch.arange(top, min(top + height, users), device=table.device)
            cells = counts(table, key, index, group, stream)[:, : where.stop - where.start]
            yield slice(top, top + len(index)), where, cells


def counts(table: Table, key: int, index: Tensor, group: Tensor, stream: int) -> Tensor:
    """The draws of columns 4 group, ..., 4 group + 3 of users ``index``: (u,) and (g,) -> (u, 4 g).

    The first 32 bits of a cell's W decide unless they are a threshold's own; then, and only then, are the others made.
    """
    word = torch.stack(philox.words(key, index[:, None], group, stream), -1).flatten(1)
    passed = table.words.shape[1] - torch.searchsorted(table.words[0].flip(0), word, right=True)
    tied = table.words[0][passed] == word  # the threshold behind all those that exceed the word
    if tied.any():
        user, place = tied.nonzero(as_tuple=True)
        rest = philox.words(key, index[user], 4 * group[place // 4] + place % 4, stream + SECOND)[:3]
        below = torch.zeros((), dtype=torch.bool, device=word.device)
        for part, threshold in zip((*rest[::-1], word[tied]), table.words.flip(0), strict=True):
            below = (part[:, None] < threshold) | ((part[:, None] == threshold) & below)
        passed[tied] = below.sum(-1)
    return passed + table.first
