"""The servers' sums, part by part, in exact integers."""

import pytest
import torch
from laws import generator

from torchdp.sketching import Sketch, balanced_osnap, ones, osnap, rademacher
from torchdp.sketching.transform import add_rows


def sketches():
    g = generator()
    yield osnap(57, 10, 3, generator=g)
    yield balanced_osnap(60, 10, 2, generator=g)
    yield balanced_osnap(61, 5, 1, generator=g)
    yield rademacher(12, 4, generator=g)
    yield ones(9)
    yield Sketch(torch.tensor([[4, 4, 0, 4]]), torch.tensor([[1, -1, 1, 1]]), 6)  # rows of 0, 1 and 3 clients
    yield ones(1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sums_of_parts_are_the_sums_row_by_row_modulo_the_ring(dtype):
    for sketch in sketches():
        shape = (sketch.copies, sketch.clients, 3)
        words = torch.empty(shape, dtype=dtype).random_(torch.iinfo(dtype).min, None, generator=generator(1))
        exact = [[0] * 3 for _ in range(sketch.height)]
        for c in range(sketch.copies):
            for i in range(sketch.clients):
                for l in range(3):
                    exact[int(sketch.rows[c, i])][l] += int(words[c, i, l])
        bits = torch.iinfo(dtype).bits
        wrapped = [[(v + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for v in row] for row in exact]
        sums = torch.zeros(sketch.height, 3, dtype=dtype)
        for first in range(0, sketch.clients, 7):
            part = slice(first, first + 7)
            add_rows(sums, sketch.rows[:, part], words[:, part])
        assert sums.tolist() == wrapped


def test_sums_for_all_servers_at_once():
    sketch = osnap(30, 6, 2, generator=generator())
    words = torch.arange(3 * 2 * 30 * 4).view(3, 2, 30, 4)
    together = add_rows(torch.zeros(3, 6, 4, dtype=torch.int64), sketch.rows, words)
    for k in range(3):
        assert torch.equal(together[k], add_rows(torch.zeros(6, 4, dtype=torch.int64), sketch.rows, words[k]))


@pytest.mark.parametrize("row", [3, -1, 10**7])
def test_a_row_that_the_sums_lack_is_refused_before_memory_is_touched(row):
    sums = torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 3\)"):
        add_rows(sums, torch.tensor([[0] * 9 + [row]]), torch.ones(1, 10, 2, dtype=torch.int64))
    assert not sums.any()
