"""Signs of bins: read from tables they are those computed one by one, bit for bit, on every float."""

import pytest
import torch

from torchdp.density import LaplacianSigns
from torchdp.density.bins import Tables


def features(d, repetitions, scale):
    return LaplacianSigns(d, scale).draw(repetitions, generator=torch.Generator().manual_seed(7))


def tables_of(grid, x):
    reader = grid.reader(x)
    assert isinstance(getattr(reader, "__self__", None), Tables)
    return reader.__self__


@pytest.mark.parametrize(("d", "repetitions", "scale"), [(1, 9, 0.3), (3, 40, 1.0), (20, 17, 50.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_hold_the_same_bits(d, repetitions, scale, dtype):
    grid = features(d, repetitions, scale).grid
    x = torch.randn(20_000, d, dtype=dtype, generator=torch.Generator().manual_seed(8))
    found = tables_of(grid, x).read(x)
    assert torch.equal(found, grid.hash(x) >= 0)
    assert 0.2 < found.double().mean() < 0.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_are_right_on_both_sides_of_each_boundary(dtype):
    grid = features(2, 16, 0.5).grid
    x = torch.randn(5000, 2, dtype=dtype, generator=torch.Generator().manual_seed(9))
    tables = tables_of(grid, x)
    for j, coordinate in enumerate(tables.coordinates):
        points = x[:1].repeat(2 * len(coordinate.boundaries), 1)
        below = coordinate.boundaries.nextafter(torch.tensor(-torch.inf, dtype=dtype))
        points[:, j] = torch.cat([below, coordinate.boundaries])
        signs = grid.hash(points) >= 0
        assert torch.equal(tables.read(points), signs)
        lower, upper = signs.chunk(2)
        assert bool((lower != upper).any(1).all())  # a boundary is the first float on its side


def test_few_points_and_far_ones_are_computed_one_by_one():
    grid = features(2, 8, 1.0).grid
    for x in (torch.ones(3, 2), torch.tensor([[-3e38, 0.0], [3e38, 1.0]]).repeat(1000, 1), torch.zeros(0, 2)):
        assert torch.equal(grid.reader(x)(x), grid.hash(x) >= 0)


def test_one_value_for_everybody_needs_no_boundary():
    grid = features(3, 8, 1.0).grid
    x = torch.tensor([0.3, -0.2, 5.0]).repeat(100, 1)
    tables = tables_of(grid, x)
    assert tables.coordinates == (None, None, None)
    assert torch.equal(tables.read(x), grid.hash(x) >= 0)


def test_different_bins_have_independent_signs():
    """The law that the kernel rests on, over the keys, for pairs that differ in one coordinate, or in both."""
    grid = features(2, 40_000, 1.0).grid
    widths = torch.ones_like(grid.widths)
    shifted = type(grid)(widths, torch.zeros_like(widths), grid.keys)
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [0.0, -7.0], [1.0, 1.0], [2.0, 4.0]])
    signs = (shifted.hash(corners) >= 0).double() * 2 - 1
    correlation = signs @ signs.T / signs.shape[1]
    assert float((correlation - torch.eye(6)).abs().max()) < 5 / 200
