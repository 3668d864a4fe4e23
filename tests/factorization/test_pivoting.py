"""The nearest histogram is exact: against all supports by brute force, and its own gap."""

import itertools

import laws
import pytest
import torch
from torch.testing import assert_close

from torchdp.factorization.solvers.pivoting import nearest_histogram


def drawn(key, *shape):
    return laws.normal(*shape, name=key.encode())


def by_all_supports(points, z):
    """The least squared distance from z to the points' hull."""
    best = torch.inf
    for size in range(1, len(points) + 1):
        for support in itertools.combinations(range(len(points)), size):
            P = points[list(support)] - z
            ones = torch.ones(size, 1).double()
            upper = torch.cat([P @ P.T, ones], 1)
            lower = torch.cat([ones.T, 0 * ones[:1]], 1)
            system = torch.cat([upper, lower])
            right = torch.eye(size + 1).double()[-1]
            h = (torch.linalg.pinv(system, rtol=1e-12) @ right)[:size]
            if bool((h >= -1e-10).all()) and abs(float(h.sum()) - 1) < 1e-8:
                weights = h.clamp_min(0) / h.clamp_min(0).sum()
                best = min(best, float((weights @ P).square().sum()))
    return best


@pytest.mark.parametrize(
    "kind", ["general", "low rank", "twins", "collinear", "inside", "integers", "one point"]
)
def test_it_is_the_best_of_all_supports(kind):
    for trial in range(12):
        k = 2 + trial % 5
        r = 1 + trial % 4
        points = drawn(f"{kind} {trial}", k, k if kind == "general" else r)
        if kind == "twins":
            twins = k - k // 2
            points[k // 2 :] = points[:twins].clone()
        if kind == "collinear":
            points = torch.arange(k)[:, None] * points[:1] + points[1:2]
        if kind == "integers":
            points = points.sign() * (points.abs() > 0.5)
        if kind == "one point":
            points = points[:1].expand(k, -1)
        z = (
            points.mean(0)
            if kind == "inside"
            else drawn(f"z {trial}", r if kind != "general" else k) * 10.0 ** (trial % 5 - 2)
        )
        centred = points - points.mean(0)
        far = z - points.mean(0)
        spread = centred.square().sum(1).max()
        size = float(spread) + float(far.square().sum())
        h, _ = nearest_histogram(centred @ centred.T, far @ centred.T, 1e-13 * size)
        assert (h >= 0).all()
        assert float(h.sum()) == pytest.approx(1, abs=1e-12)
        distance = float((h @ points - z).square().sum())
        assert distance - by_all_supports(points, z) <= 1e-12 * size


@pytest.mark.parametrize("kind", ["few dimensions", "smooth"])
def test_more_types_than_dimensions_and_smooth_kernels_end_near_the_hull(kind):
    """Pivoting alone ended at distances of .3 and .8, where a descent ends within 1e-6 and 1e-3."""
    points = drawn(kind, 128, 20)
    if kind == "smooth":
        x = torch.linspace(0, 1, 128, dtype=torch.float64)
        kernel = torch.exp(-50 * (x[:, None] - x).square())
        points = torch.linalg.cholesky(kernel + 1e-9 * torch.eye(128).double())
    z = points.mean(0) + 0.5 * drawn("z", 2, points.shape[1])
    longest = points.square().sum(1).max()
    limit = 1e-9 * float(longest)
    h, gap = nearest_histogram(points @ points.T, z @ points.T, limit)
    slope = (h @ points - z) @ points.T
    assert_close((slope * h).sum(-1) - slope.amin(-1), gap, rtol=1e-3, atol=limit)
    assert gap.max() <= (1e-5 if kind == "smooth" else limit)
