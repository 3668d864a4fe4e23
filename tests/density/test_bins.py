"""Signs of bins: read from tables they are those computed one by one, bit for bit, on every
float.
"""

import pytest
import torch
from laws import generator

from torchdp.density import LaplacianSigns
from torchdp.density.laplacian import Tables


def features(d, repetitions, scale):
    signs = LaplacianSigns(d, scale)
    return signs.draw(repetitions, generator=generator(7))


def tables_of(grid, x):
    reader = grid.reader(x)
    assert isinstance(getattr(reader, "__self__", None), Tables)
    return reader.__self__


@pytest.mark.parametrize(
    ("d", "repetitions", "scale"),
    [
        (1, 9, 0.3),
        (3, 40, 1.0),
        (20, 17, 50.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_hold_the_same_bits(d, repetitions, scale, dtype):
    grid = features(d, repetitions, scale).grid
    x = torch.randn(20_000, d, dtype=dtype, generator=generator(8))
    found = tables_of(grid, x).read(x)
    assert torch.equal(found, grid.hash(x) >= 0)
    assert 0.2 < found.double().mean() < 0.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_are_right_on_both_sides_of_each_boundary(dtype):
    grid = features(2, 16, 0.5).grid
    x = torch.randn(5000, 2, dtype=dtype, generator=generator(9))
    tables = tables_of(grid, x)
    for j, coordinate in enumerate(tables.coordinates):
        points = x[:1].repeat(2 * len(coordinate.boundaries), 1)
        below = coordinate.boundaries.nextafter(torch.tensor(-torch.inf, dtype=dtype))
        points[:, j] = torch.cat([below, coordinate.boundaries])
        signs = grid.hash(points) >= 0
        assert torch.equal(tables.read(points), signs)
        lower, upper = signs.chunk(2)
        # a boundary is the first float on its side
        assert bool((lower != upper).any(1).all())


def test_few_points_and_far_ones_are_computed_one_by_one():
    grid = features(2, 8, 1.0).grid
    for x in (
        torch.ones(3, 2),
        torch.tensor([[-3e38, 0.0], [3e38, 1.0]]).repeat(1000, 1),
        torch.zeros(0, 2),
    ):
        assert torch.equal(grid.reader(x)(x), grid.hash(x) >= 0)
