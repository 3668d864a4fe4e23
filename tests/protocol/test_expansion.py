"""Expansions to second order: exact expectations by Gauss-Hermite's rule, diagonal forms, batches, refusals."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from laws import normal

from torchdp.protocol import Expansion

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
    half = torch.stack([z.exp() / 2, 3 * z], -1)[..., None]
    values = torch.stack([z.exp(), z**3], -1) - corrected * sigma**2 * half[..., 0]
    found = Expansion(slope, half, torch.full((len(z), 1), sigma**2, dtype=F64))
    # One coordinate: the covariance before the cut has rank one and may be indefinite by the curvature.
    told = (weights[:, None, None] * (found.linear - 2 * found.curved)).sum(0)
    return (told - covariance_of(values, weights)) / sigma**2


def test_of_smooth_functions_the_covariance_holds_to_second_order():
    """Halving the noise divides the error by 2^4 beside the first order, by 2^2 where a correction moves too."""
    plain = smooth(0.1, 0.0) / smooth(0.05, 0.0)
    corrected = smooth(0.1, 1.0) / smooth(0.05, 1.0)
    assert 14 < float(plain.amin()) and float(plain.amax()) < 18
    assert 3.6 < float(corrected.amin()) and float(corrected.amax()) < 4.4


def sides():
    """The same expansion with full and diagonal parts: a batch (2, 3) of 4 answers in 5 coordinates."""
    slope = normal(2, 3, 4, 5, seed=3)
    weights = normal(2, 3, 4, 5, seed=4)
    variances = normal(2, 3, 5, seed=5).square()
    half = normal(2, 3, 5, 5, seed=6)
    return slope, weights, variances, half @ half.mT


@pytest.mark.parametrize("squares", [2.0, 4.0])
@pytest.mark.parametrize("noise", ["full", "diagonal"])
def test_diagonal_forms_are_those_of_their_matrices(squares, noise):
    slope, weights, variances, full = sides()
    own = full if noise == "full" else variances
    made = [
        Expansion(slope, bend, each, squares)
        for bend in (weights, weights.diag_embed())
        for each in (own, full if noise == "full" else variances.diag_embed())
    ]
    offset = torch.zeros(2, 3, 4, dtype=F64)
    for other in made[1:]:
        for name in ("linear", "curved", "variance", "covariance"):
            torch.testing.assert_close(getattr(made[0], name), getattr(other, name))
        first = made[0].error(offset)
        second = other.error(offset)
        torch.testing.assert_close(first.total, second.total)
        for one, two in zip(first.margins(1.96), second.margins(1.96), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_curved_is_the_trace_and_linear_the_covariance_of_the_slopes():
    slope, _, _, noise = sides()
    bend = symmetric(2, 3, 4, 5, 5, seed=7)
    found = Expansion(slope, bend, noise)
    for i, j, a, b in product(range(2), range(3), range(4), range(4)):
        own = noise[i, j]
        trace = float((bend[i, j, a] @ own @ bend[i, j, b] @ own).trace())
        assert float(found.curved[i, j, a, b]) == pytest.approx(trace)
        assert float(found.linear[i, j, a, b]) == pytest.approx(float(slope[i, j, a] @ own @ slope[i, j, b]))


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_batch_is_its_entries(diagonal):
    slope, weights, variances, full = sides()
    bend = weights if diagonal else symmetric(2, 3, 4, 5, 5, seed=8)
    noise = variances if diagonal else full
    found = Expansion(slope, bend, noise)
    lows, highs = found.error().margins(1.96)
    for at in product(range(2), range(3)):
        one = Expansion(slope[at], bend[at], noise[at])
        torch.testing.assert_close(found.variance[at], one.variance)
        torch.testing.assert_close(found.covariance[at], one.covariance)
        low, high = one.error().margins(1.96)
        torch.testing.assert_close(lows[at], low, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(highs[at], high, rtol=1e-5, atol=1e-5)


def test_leading_dimensions_of_one_are_shared():
    slope, weights, variances, _ = sides()
    shared = Expansion(slope, weights[:1, :1], variances[:1])
    whole = Expansion(slope, weights[:1, :1].expand_as(weights), variances[:1].expand_as(variances))
    torch.testing.assert_close(shared.covariance, whole.covariance)
    torch.testing.assert_close(shared.error().total, whole.error().total)


def test_the_covariance_has_no_negative_eigenvalue_and_its_diagonal_is_not_below_the_variance():
    slope, weights, variances, _ = sides()
    cut = Expansion(0.1 * slope, weights, variances)
    assert float((cut.linear - 4 * cut.curved).diagonal(dim1=-2, dim2=-1).amin()) < 0
    assert float(torch.linalg.eigvalsh(cut.covariance).amin()) > -1e-12
    assert bool((cut.covariance.diagonal(dim1=-2, dim2=-1) > cut.variance - 1e-12).all())
    flat = Expansion(slope, None, variances)
    torch.testing.assert_close(flat.covariance, flat.linear)
    torch.testing.assert_close(flat.variance, flat.linear.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(flat.error().total, flat.variance)


def test_the_error_of_an_expansion_has_its_variance():
    """Of one answer by itself; where the curvature alone is larger than the square both cut at 0."""
    slope, weights, variances, _ = sides()
    for scale, squares in product((0.05, 5.0), (2.0, 4.0)):
        found = Expansion(scale * slope, weights, variances, squares)
        total = found.error(torch.zeros(2, 3, 4, dtype=F64)).total
        torch.testing.assert_close(total, found.variance)


def test_a_product_of_copies_has_intervals_around_its_value():
    """z1 z2 about z^2 - variance: the offset puts the interval where the product is."""
    z = 5.0
    d = 0.7
    variance = 0.4
    made = Expansion(
        torch.tensor([[2 * z]], dtype=F64), torch.ones(1, 1, dtype=F64), torch.tensor([variance], dtype=F64), 4.0
    )
    value = z**2 - d**2
    offset = torch.tensor([z**2 - variance - value], dtype=F64)
    below, above = made.error(offset).margins(1e-3)
    assert abs(float(below + above)) == pytest.approx(2e-3 * math.sqrt(float(made.variance)), rel=0.05)
    assert abs(float(above - below)) < 0.2 * math.sqrt(float(made.variance))


def test_thousands_of_independent_coordinates_need_no_square_matrix():
    slope = normal(3, 4096, seed=9)
    weights = normal(3, 4096, seed=10)
    variances = normal(4096, seed=11).square()
    found = Expansion(slope, weights, variances)
    for a, b in product(range(3), repeat=2):
        trace = math.fsum((weights[a] * weights[b] * variances.square()).tolist())
        assert float(found.curved[a, b]) == pytest.approx(trace)
    torch.testing.assert_close(found.error().total, found.variance)


def test_what_is_not_finite_has_no_covariance_and_leaves_the_others_theirs():
    slope, weights, variances, _ = sides()
    broken = slope.clone()
    broken[0, 1, 2, 3] = torch.nan
    found = Expansion(broken, weights, variances)
    whole = Expansion(slope, weights, variances)
    assert found.covariance[0, 1].isnan().all() and bool(found.variance[0, 1, 2].isnan())
    assert int(found.covariance.isnan().sum()) == 16
    torch.testing.assert_close(found.covariance[1], whole.covariance[1])


def test_shapes_that_do_not_fit_are_refused():
    slope, weights, variances, full = sides()
    uneven = weights.diag_embed() + normal(2, 3, 4, 5, 5, seed=12)
    for arguments, message in {
        (slope, weights, variances[0]): "noise must have shape",
        (slope, weights, full[..., :4]): "noise must have shape",
        (slope, weights[..., :3, :], full): "bend must have shape",
        (slope, weights[0], full): "bend must have shape",
        (slope, uneven, full): "bend must be symmetric",
        (slope[0, 0, 0], None, variances): "slope must have shape",
        (slope, weights, full, -1.0): "squares must be",
    }.items():
        with pytest.raises(ValueError, match=message):
            Expansion(*arguments)
    with pytest.raises(ValueError, match="offset must be given"):
        Expansion(slope, weights, full, 4.0).error()
    with pytest.raises(ValueError, match="squares must be 2 or 4"):
        Expansion(slope, weights, full, 3.0).error()
