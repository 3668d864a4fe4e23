"""The projection on a simplex, and that on a hull as a mechanism for linear queries."""

import math

import pytest
import torch
from laws import normal, sampled

from torchdp.protocol import Crowd
from torchdp.queries.channel import nearest
from torchdp.randomizers import PrivUnit
from torchdp.simplex import onto_simplex


def normals(key, *shape):
    return normal(*shape, name=key.encode())


def test_the_simplex_projection_meets_its_optimality_conditions():
    x = 3 * normals("simplex", 100, 6)
    found = onto_simplex(x)
    torch.testing.assert_close(found.sum(-1), torch.ones(100, dtype=torch.float64))
    # (x - p) is a constant where p > 0, and no more than it elsewhere
    shift = (x - found).masked_fill(found == 0, -math.inf).amax(-1, keepdim=True)
    assert bool(((x - found - shift).abs()[found > 0] < 1e-12).all())
    assert bool((x <= shift + 1e-12)[found == 0].all())


@pytest.mark.parametrize("n", [100, 100_000])
@pytest.mark.parametrize("symmetric", [False, True])
def test_squared_error_is_below_its_bound_and_below_that_without_projection(symmetric, n):
    """Linear queries: E ||mu - R h||^2 <= min(r v, C (2 proxy n log m)^{1/2})/n, Ghazi et al.
    (2023), Theorem 19.
    """
    points = normals("points", 30, 30).sign()
    hull = torch.cat([points, -points]) if symmetric else points
    users = PrivUnit(30, 1.0, 30**0.5)
    counts = torch.tensor([n // 2, n - n // 2])
    drawn = users.sample_tally(Crowd(points[3:5], counts), **sampled(300, b"error"))
    found = nearest(hull, drawn["sum"] / n, 1e-9) @ hull
    truth = (points[3] + points[4]) / 2
    error = (found - truth).square().sum(-1)
    slack = 5 * float(error.std()) / 300**0.5
    unprojected = 30 * users.moments.variance / n
    entropy = math.log(len(hull)) / n
    bound = min(unprojected, (30 * 2 * users.subgaussian.proxy * entropy) ** 0.5)
    assert float(error.mean()) + slack < bound
    assert float(error.mean()) + slack < 0.8 * unprojected
