"""A sketch is the matrix it says it is, on every way of applying it."""

import math

import pytest
import torch
from laws import generator, normal
from products import written_out
from torch.testing import assert_close

from torchdp.sketching import Sketch, balanced_count_sketch, balanced_osnap, ones, osnap, rademacher

SKETCHES = [
    osnap(60, 8, 3, generator=generator(1)),
    osnap(200, 13, 3, generator=generator(9)),
    balanced_osnap(61, 9, 3, generator=generator(2)),
    balanced_osnap(60, 12, 4, generator=generator(3)),
    balanced_count_sketch(60, 5, generator=generator(4)),
    Sketch(
        torch.arange(60)[None] // 12, balanced_count_sketch(60, 5, generator=generator(4)).signs, 5
    ),  # bucketed
    rademacher(60, 7, generator=generator(5)),
    ones(9),
    osnap(1, 2, 2, generator=generator(6)),
    osnap(3, 50, 1, generator=generator(7)),
]


@pytest.mark.parametrize("sketch", SKETCHES)
def test_every_way_of_applying_a_sketch_is_the_matrix_product(sketch):
    S = written_out(sketch)
    A = normal(2, sketch.clients, 4)
    assert_close(sketch.dense(), S)
    assert_close(sketch.apply(A), S @ A)
    assert_close(sketch.sums(A), math.sqrt(sketch.copies) * S @ A)
    assert_close(sketch.apply(A[0].float()), (S @ A[0]).float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(sketch.counts(), (S != 0).sum(1))


@pytest.mark.parametrize("sketch", SKETCHES)
def test_sums_of_integers_are_exact_also_where_they_wrap(sketch):
    Q = torch.empty(2, sketch.clients, 3, dtype=torch.int64).random_(
        -(2**63), None, generator=generator(8)
    )
    scaled = written_out(sketch) * math.sqrt(sketch.copies)
    signs = scaled.round().to(torch.int64)
    wanted = (signs[:, :, None] * Q[:, None]).sum(-2)
    assert torch.equal(sketch.sums(Q), wanted)
    assert torch.equal(sketch.sums(Q.to(torch.int32)), wanted.to(torch.int32))


@pytest.mark.gpu
def test_sketches_on_a_gpu():
    here = osnap(5000, 40, 4, generator=generator(1, "cuda"))
    there = Sketch(here.rows.cpu(), here.signs.cpu(), 40)
    A = normal(5000, 3)
    assert_close(here.apply(A.cuda()).cpu(), there.apply(A))
    Q = torch.randint(
        -(2**62),
        2**62,
        (5000, 3),
        generator=generator(2),
    )
    assert torch.equal(here.sums(Q.cuda()).cpu(), there.sums(Q))
