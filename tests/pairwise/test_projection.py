"""The projection on a hull: against a reference solver, by its gap, and as a mechanism for linear queries."""

import math

import pytest
import torch

from torchdp.pairwise.rounds.three_round import project
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator
from torchdp.simplex import onto_simplex


def normals(key, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=keyed_generator(key.encode()))


def reference(vertices, target):
    cvxpy = pytest.importorskip("cvxpy")
    weights = cvxpy.Variable(len(vertices), nonneg=True)
    distance = cvxpy.norm(vertices.numpy().T @ weights - target.numpy())
    cvxpy.Problem(cvxpy.Minimize(distance), [cvxpy.sum(weights) == 1]).solve(solver="CLARABEL")
    return torch.from_numpy(vertices.numpy().T @ weights.value)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("types, r", [(1, 3), (2, 5), (6, 3), (8, 8)])
def test_projection_agrees_with_a_reference_solver(types, r, symmetric):
    vertices = normals(f"points {types} {r}", types, r)
    vertices = torch.cat([vertices, -vertices]) if symmetric else vertices
    target = vertices.mean(0) + torch.tensor([[0.1], [1.0], [5.0]]) * normals("targets", 3, r)
    found = project(vertices, target, tol=1e-10)
    for each in range(3):
        torch.testing.assert_close(
            found.point[each], reference(vertices, target[each]), atol=2e-4, rtol=0
        )


def test_guarantee_the_gap_bounds_the_squared_distance_to_the_projection():
    vertices, target = normals("points", 60, 10), normals("targets", 50, 10)
    best = project(vertices, target, tol=1e-12).point
    seen = []
    for tol in (3e-1, 1e-2, 1e-4):
        found = project(vertices, target, tol=tol, most_steps=100)
        distance = (found.point - best).square().sum(-1)
        assert bool((distance <= found.gap + 1e-10).all())
        seen.append(float((distance / found.gap.clamp_min(1e-300)).max()))
    # the bound is not idle: half of it, say, would be near to failing somewhere
    assert max(seen) > 1e-3


def test_points_of_the_hull_stay_and_a_single_vertex_takes_all():
    vertices = normals("points", 5, 3)
    weights = torch.rand(4, 5, dtype=torch.float64, generator=keyed_generator(b"weights"))
    inside = weights / weights.sum(-1, keepdim=True) @ vertices
    torch.testing.assert_close(
        project(vertices, inside, tol=1e-12).point, inside, atol=1e-5, rtol=0
    )
    alone = project(vertices[:1], inside)
    torch.testing.assert_close(alone.point, vertices[:1].expand(4, 3))
    assert float(alone.gap.abs().max()) < 1e-12
    assert (
        project(torch.zeros(3, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
        .point.abs()
        .max()
        == 0
    )


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
    """Linear queries: E ||mu - R h||^2 <= min(r v, C (2 proxy n log m)^{1/2})/n, Ghazi et al. (2023), Theorem 19."""
    points = normals("points", 30, 30).sign()
    hull = torch.cat([points, -points]) if symmetric else points
    users, counts = PrivUnit(30, 1.0, 30**0.5), torch.tensor([n // 2, n - n // 2])
    drawn = users.sample_tally(
        Crowd(points[3:5], counts), generator=keyed_generator(b"error"), sample_shape=(300,)
    )
    found = project(hull, drawn["sum"] / n)
    error = (found.point - (points[3] + points[4]) / 2).square().sum(-1)
    slack = 5 * float(error.std()) / 300**0.5
    unprojected = 30 * users.moments.variance / n
    bound = min(unprojected, (30 * 2 * users.subgaussian.proxy * math.log(len(hull)) / n) ** 0.5)
    assert float(error.mean()) + slack < bound + float(found.gap.max())
    assert float(error.mean()) + slack < 0.8 * unprojected
