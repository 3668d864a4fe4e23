"""What a server computes: sums of the words that it holds, row by row of the sketch, modulo 2^bits.

Clients send words that already carry their public signs, so a server only adds. In the layout (m, d, width), every
row's words side by side, that is one pass over memory that no other order of the words can beat.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.kernels import secure_sketch
from torchdp.sketching.sketch import Sketch


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Where each (client, copy) pair of a sketch stands in a tensor (m, d, width), width the fullest row's count.

    Pair (c, i) stands at [rows[c, i], :, places[c, i]]; what no pair fills is 0 and adds nothing.
    """

    sketch: Sketch

    def __post_init__(self) -> None:
        checks.instance("sketch", self.sketch, Sketch)

    @cached_property
    def places(self) -> Tensor:
        """(s, n) int64: how many pairs of its row stand before each pair."""
        rows = self.sketch.rows.flatten()
        order = rows.argsort(stable=True)
        counts = self.sketch.counts()
        places = torch.empty_like(rows)
        places[order] = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows[order]]
        return places.view_as(self.sketch.rows)

    @property
    def width(self) -> int:
        """Pairs in the fullest row; n s/m for a balanced sketch."""
        return int(self.sketch.counts().max())

    def empty(self, columns: int, dtype: torch.dtype) -> Tensor:
        """(m, d, width) zeros."""
        shape = (self.sketch.height, checks.integer("columns", columns, 1), self.width)
        checks.fits("the table", *shape)
        return torch.zeros(shape, dtype=dtype, device=self.sketch.device)

    def put(self, table: Tensor, words: Tensor, first: int = 0) -> None:
        """Write the words (s, k, d) of clients first, ..., first + k - 1 into the table (m, d, width).

        Raises ValueError, TypeError.
        """
        table, words = checks.dense("table", table), checks.dense("words", words)
        shapes = f"table {tuple(table.shape)} and words {tuple(words.shape)}"
        if table.ndim != 3 or words.ndim != 3 or table.dtype != words.dtype:
            raise ValueError(f"{shapes} must have three dimensions and one type: (m, d, width), (s, k, d)")
        if (*table.shape, len(words)) != (self.sketch.height, words.shape[2], self.width, self.sketch.copies):
            raise ValueError(f"{shapes} do not fit the sketch: (m, d, width), (s, k, d)")
        first = checks.integer("first", first, 0, self.sketch.clients - words.shape[1])
        part = slice(first, first + words.shape[1])
        table[self.sketch.rows[:, part], :, self.places[:, part]] = words

    def clear(self, table: Tensor, clients: Tensor) -> None:
        """Overwrite with 0 what these clients sent; clients: (n,) bool."""
        table[self.sketch.rows[:, clients], :, self.places[:, clients]] = 0


def bucket_sums(table: Tensor) -> Tensor:
    """Sums of a table in the layout: (*batch, m, d, width) -> (*batch, m, d), the same integers. Raises TypeError."""
    if not checks.dense("table", table).ndim:
        raise ValueError("table must have shape (*batch, m, d, width)")
    return table.sum(-1, dtype=table.dtype)


def add_rows(sums: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """sums[rows[c, i]] += words[..., c, i, :] in place: (*batch, m, d), (s, k), (*batch, s, k, d); returns ``sums``.

    The same integers as a table and ``bucket_sums``, without storing the words. Raises ValueError, TypeError.
    """
    if checks.dense("sums", sums).ndim < 2 or checks.dense("words", words).ndim < 3:
        raise ValueError("sums must have shape (*batch, m, d), words (*batch, s, k, d)")
    places = checks.indices("rows", rows, sums.shape[-2]).flatten()
    shape = (*sums.shape[:-2], *rows.shape, sums.shape[-1])
    if words.shape != shape or words.dtype != sums.dtype:
        raise ValueError(
            f"words must have shape {tuple(shape)} and {sums.dtype}, as rows and sums have, "
            f"not {tuple(words.shape)}, {words.dtype}"
        )
    for batch in itertools.product(*map(range, sums.shape[:-2])):
        secure_sketch.add_rows(sums[batch], places, words[batch].flatten(0, 1))
    return sums
