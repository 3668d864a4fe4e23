"""Rows of integers added up in the rows of a table."""

import numpy as np
import torch
from scipy.sparse import csc_array
from torch import Tensor

UNSIGNED = {torch.int32: np.uint32, torch.int64: np.uint64}  # in which C++ defines sums modulo 2^bits


def add_rows(table: Tensor, places: Tensor, words: Tensor) -> None:
    """table[places[p]] += words[p] in place, modulo 2^bits: (m, d), (p,), (p, d).

    On a CPU the sum of all of them, or a product with a sparse matrix of ones: the integers of ``index_add_`` in less
    time.
    """
    count = len(places)
    if len(table) == 1 and table.device.type == "cpu":
        table += words.sum(0, dtype=table.dtype)
        return
    if table.device.type != "cpu" or table.dtype not in UNSIGNED or count < len(table):
        table.index_add_(0, places, words)
        return
    unsigned = UNSIGNED[table.dtype]
    columns = np.ones(count, unsigned), places.numpy(), np.arange(count + 1)
    sums = csc_array(columns, shape=(len(table), count)) @ words.contiguous().numpy().view(unsigned)
    table += torch.from_numpy(sums.view(words.numpy().dtype))
