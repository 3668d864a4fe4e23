"""The projection on a hull: against a reference solver, by its gap, and as a mechanism for linear queries."""

import math

import pytest
import torch
from scipy.stats import ks_2samp

from torchdp.noise import SeededNoise
from torchdp.pairwise import ProjectedQueries, project
from torchdp.pairwise.projection import onto_simplex
from torchdp.privacy import Model
from torchdp.randomizers import PrivUnitG
from torchdp.randomness import keyed_generator


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
        torch.testing.assert_close(found.point[each], reference(vertices, target[each]), atol=2e-4, rtol=0)


def test_weights_are_probabilities_and_give_the_point():
    vertices, target = normals("points", 7, 4), normals("targets", 2, 5, 4)
    found = project(vertices, target)
    assert found.point.shape == (2, 5, 4) and found.weights.shape == (2, 5, 7) and found.gap.shape == (2, 5)
    assert bool((found.weights >= 0).all())
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    torch.testing.assert_close(found.weights @ vertices, found.point)
    assert float(found.gap.max()) <= 1e-7 * float(vertices.norm(dim=1).max()) ** 2


def test_guarantee_the_gap_bounds_the_squared_distance_to_the_projection():
    vertices, target = normals("points", 60, 10), normals("targets", 50, 10)
    best = project(vertices, target, tol=1e-12).point
    seen = []
    for tol in (3e-1, 1e-2, 1e-4):
        found = project(vertices, target, tol=tol, most_steps=100)
        distance = (found.point - best).square().sum(-1)
        assert bool((distance <= found.gap + 1e-10).all())
        seen.append(float((distance / found.gap.clamp_min(1e-300)).max()))
    assert max(seen) > 1e-3  # the bound is not idle: half of it, say, would be near to failing somewhere


def test_points_of_the_hull_stay_and_a_single_vertex_takes_all():
    vertices = normals("points", 5, 3)
    weights = torch.rand(4, 5, dtype=torch.float64, generator=keyed_generator(b"weights"))
    inside = weights / weights.sum(-1, keepdim=True) @ vertices
    torch.testing.assert_close(project(vertices, inside, tol=1e-12).point, inside, atol=1e-5, rtol=0)
    alone = project(vertices[:1], inside)
    torch.testing.assert_close(alone.point, vertices[:1].expand(4, 3))
    assert float(alone.gap.abs().max()) < 1e-12
    assert (
        project(torch.zeros(3, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)).point.abs().max() == 0
    )


def test_the_simplex_projection_meets_its_optimality_conditions():
    x = 3 * normals("simplex", 100, 6)
    found = onto_simplex(x)
    torch.testing.assert_close(found.sum(-1), torch.ones(100, dtype=torch.float64))
    # (x - p) is a constant where p > 0, and no more than it elsewhere
    shift = (x - found).masked_fill(found == 0, -math.inf).amax(-1, keepdim=True)
    assert bool(((x - found - shift).abs()[found > 0] < 1e-12).all())
    assert bool((x <= shift + 1e-12)[found == 0].all())


def test_guarantee_projected_queries_are_those_of_the_randomizer():
    points = normals("points", 6, 4)
    for mechanism in (ProjectedQueries.convex(points, 1.5), ProjectedQueries.symmetric(points, 1.5)):
        assert mechanism.guarantee.epsilon == 1.5 and mechanism.guarantee.model is Model.LOCAL
        assert mechanism.randomizer == PrivUnitG(4, 1.5, float(points.norm(dim=1).max()))
        # what is published is a function of the sum of the messages alone
        types = torch.tensor([0, 5, 5, 2])
        found = mechanism.answer(types, noise=SeededNoise.of(keyed_generator(b"same")))
        users = points[types.sort().values]  # sums are made type by type
        messages = mechanism.randomizer.sample(users, noise=SeededNoise.of(keyed_generator(b"same")))
        again = project(mechanism.vertices, messages.mean(0))
        torch.testing.assert_close(found.point, again.point)


@pytest.mark.parametrize("n", [100, 100_000])
@pytest.mark.parametrize("hull", ["convex", "symmetric"])
def test_squared_error_is_below_its_bound_and_below_that_without_projection(hull, n):
    points = normals("points", 30, 30).sign()
    mechanism = getattr(ProjectedQueries, hull)(points, 1.0)
    counts = torch.zeros(30, dtype=torch.int64)
    counts[3], counts[4] = n // 2, n - n // 2
    found = mechanism.answer_histogram(counts, generator=keyed_generator(b"error"), sample_shape=(300,))
    error = (found.point - (points[3] + points[4]) / 2).square().sum(-1)
    slack = 5 * float(error.std()) / 300**0.5
    unprojected = 30 * mechanism.randomizer.moments.variance / n
    assert float(error.mean()) + slack < mechanism.error_bound(n) + float(found.gap.max())
    assert float(error.mean()) + slack < 0.8 * unprojected
    assert mechanism.error_bound(n) <= unprojected
    assert ProjectedQueries.convex(points, 1.0).error_bound(n) <= mechanism.error_bound(n)


def test_projected_answers_are_biased():
    points = torch.eye(4, dtype=torch.float64)
    counts = torch.tensor([1000, 0, 0, 0])
    found = ProjectedQueries.convex(points, 1.0).answer_histogram(
        counts, generator=keyed_generator(b"bias"), sample_shape=(500,)
    )
    z = (found.point - points[0]).mean(0) / (found.point.std(0) / 500**0.5)
    assert float(z[0]) < -6 and float(z[1:].min()) > 6


def test_both_paths_have_one_law():
    points, counts = normals("points", 4, 3), torch.tensor([0, 1, 3, 20])
    mechanism, generator = ProjectedQueries.convex(points, 3.0), keyed_generator(b"paths")
    types = torch.arange(4).repeat_interleave(counts)
    users = torch.stack([mechanism.answer(types, noise=SeededNoise.of(generator)).point for _ in range(120)])
    sums = mechanism.answer_histogram(counts, generator=generator, sample_shape=(4000,)).point
    other = mechanism.answer_histogram(counts.flip(0), generator=generator, sample_shape=(4000,)).point
    for column in range(3):
        assert ks_2samp(users[:, column].round(decimals=9), sums[:, column].round(decimals=9)).pvalue > 1e-6
    assert min(ks_2samp(users[:, column], other[:, column]).pvalue for column in range(3)) < 1e-6


def test_bad_input_is_refused():
    points = normals("points", 4, 3)
    with pytest.raises(ValueError, match="target"):
        project(points, torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="target"):
        project(points, torch.tensor([math.nan, 0.0, 0.0]))
    with pytest.raises(ValueError, match="tol"):
        project(points, points, tol=0)
    with pytest.raises(ValueError, match="points"):
        ProjectedQueries.convex(points.float(), 1.0)
    with pytest.raises(ValueError, match="vertices"):
        ProjectedQueries(points, 1.0, points[:, :2])
    with pytest.raises(ValueError, match="epsilon"):
        ProjectedQueries.convex(points, -1.0)
    mechanism = ProjectedQueries.convex(points, 1.0)
    with pytest.raises(ValueError, match="types"):
        mechanism.answer(torch.zeros(0, dtype=torch.int64), noise=SeededNoise.of(keyed_generator(b"none")))
    with pytest.raises(ValueError, match="counts"):
        mechanism.answer_histogram(torch.zeros(4, dtype=torch.int64), generator=keyed_generator(b"none"))
