"""Expansions to second order: exact expectations by Gauss-Hermite's rule, batches."""

from itertools import product

import numpy as np
import pytest
import torch
from laws import normal

from torchdp.protocol.expansion import Expansion

F64 = torch.float64


def nodes(dimension, count):
    """Points (p, dimension) and weights (p,) that give E f(e) of standard normals for polynomials below 2 count."""
    x, w = np.polynomial.hermite_e.hermegauss(count)
    points = torch.tensor(list(product(x, repeat=dimension)), dtype=F64)
    weights = torch.tensor(list(product(w / w.sum(), repeat=dimension)), dtype=F64).prod(-1)
    return points, weights


def covariance_of(values, weights):
    centred = values - weights @ values
    return (weights[:, None] * centred).mT @ centred


def symmetric(*shape, seed):
    half = normal(*shape, seed=seed)
    return half + half.mT


S = torch.tensor([3.0, -2.0, 4.0], dtype=F64)
FORMS = symmetric(2, 3, 3, seed=1)
ROOT = 0.3 * normal(3, 3, seed=2)
N = ROOT @ ROOT.mT


def of_squares(z):
    return Expansion(
        2 * (FORMS @ z[:, None, :, None])[..., 0], FORMS.expand(len(z), 2, 3, 3), N.expand(len(z), 3, 3)
    )


def test_guarantee_the_covariance_of_squares_is_unbiased():
    e, weights = nodes(3, 5)
    z = S + e @ ROOT.mT
    found = of_squares(z)
    truth = covariance_of(torch.einsum("pi,aij,pj->pa", z, FORMS, z), weights)
    told = (weights[:, None, None] * found.covariance).sum(0)
    torch.testing.assert_close(told, truth, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(weights @ found.variance, truth.diagonal(), rtol=1e-11, atol=1e-11)
    naive = (weights[:, None, None] * (found.linear + 2 * found.curved)).sum(0)
    assert float((naive / truth - 1).abs().amin()) > 1e-3  # with the slope's own noise it is too large


def test_guarantee_the_covariance_of_products_is_unbiased():
    e, weights = nodes(6, 3)
    first = S + 2**0.5 * e[:, :3] @ ROOT.mT
    second = S + 2**0.5 * e[:, 3:] @ ROOT.mT
    truth = covariance_of(torch.einsum("pi,aij,pj->pa", first, FORMS, second), weights)
    middle = of_squares((first + second) / 2)
    found = Expansion(middle.slope, middle.bend, middle.noise, squares=4.0)
    told = (weights[:, None, None] * found.covariance).sum(0)
    torch.testing.assert_close(told, truth, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(weights @ found.variance, truth.diagonal(), rtol=1e-11, atol=1e-11)
    assert float((weights @ middle.variance / truth.diagonal() - 1).abs().amin()) > 1e-3


def smooth(sigma, corrected):
    """What the covariance of (exp z, z^3) at s = 1.2 is told to be, less what it is, over its size."""
    e, weights = nodes(1, 24)
    z = 1.2 + sigma * e[:, 0]
    slope = torch.stack([z.exp(), 3 * z**2], -1)[..., None]
    half = torch.stack([z.exp() / 2, 3 * z], -1)
    values = torch.stack([z.exp(), z**3], -1) - corrected * sigma**2 * half
    found = Expansion(slope, half[..., None, None], torch.full((len(z), 1, 1), sigma**2, dtype=F64))
    # One coordinate: the covariance before the cut has rank one and may be indefinite by the curvature.
    told = (weights[:, None, None] * (found.linear - 2 * found.curved)).sum(0)
    return (told - covariance_of(values, weights)) / sigma**2


def test_of_smooth_functions_the_covariance_holds_to_second_order():
    """Halving the noise divides the error by 2^4 beside the first order, by 2^2 where a correction moves too."""
    plain = smooth(0.1, 0.0) / smooth(0.05, 0.0)
    corrected = smooth(0.1, 1.0) / smooth(0.05, 1.0)
    assert 14 < float(plain.amin()) and float(plain.amax()) < 18
    assert 3.6 < float(corrected.amin()) and float(corrected.amax()) < 4.4


def of_a_batch(scale=1.0):
    """A batch (2, 3) of 4 answers in 5 coordinates."""
    half = normal(2, 3, 5, 5, seed=6)
    return Expansion(scale * normal(2, 3, 4, 5, seed=3), symmetric(2, 3, 4, 5, 5, seed=7), half @ half.mT)


def test_curved_is_the_trace_and_linear_the_covariance_of_the_slopes():
    found = of_a_batch()
    for i, j, a, b in product(range(2), range(3), range(4), range(4)):
        own = found.noise[i, j]
        bend = found.bend[i, j]
        slope = found.slope[i, j]
        assert float(found.curved[i, j, a, b]) == pytest.approx(float((bend[a] @ own @ bend[b] @ own).trace()))
        assert float(found.linear[i, j, a, b]) == pytest.approx(float(slope[a] @ own @ slope[b]))


def test_the_covariance_has_no_negative_eigenvalue_and_its_diagonal_is_not_below_the_variance():
    cut = of_a_batch(0.1)
    assert float((cut.linear - 4 * cut.curved).diagonal(dim1=-2, dim2=-1).amin()) < 0
    assert float(torch.linalg.eigvalsh(cut.covariance).amin()) > -1e-9
    assert bool((cut.covariance.diagonal(dim1=-2, dim2=-1) > cut.variance - 1e-9).all())


def test_the_error_of_an_expansion_has_its_variance():
    """Of one answer by itself; where the curvature alone is larger than the square both cut at 0."""
    for scale in (0.05, 5.0):
        found = of_a_batch(scale)
        torch.testing.assert_close(found.error().total, found.variance)


def test_what_is_not_finite_has_no_covariance_and_leaves_the_others_theirs():
    whole = of_a_batch()
    slope = whole.slope.clone()
    slope[0, 1, 2, 3] = torch.nan
    found = Expansion(slope, whole.bend, whole.noise)
    assert found.covariance[0, 1].isnan().all() and bool(found.variance[0, 1, 2].isnan())
    assert int(found.covariance.isnan().sum()) == 16
    torch.testing.assert_close(found.covariance[1], whole.covariance[1])
