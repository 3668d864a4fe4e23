"""Expansions to second order: exact expectations by Gauss-Hermite's rule, batches."""

from itertools import product

import numpy as np
import torch
from laws import normal

from torchdp.protocol.expansion import joint_covariance

F64 = torch.float64


def nodes(dimension, count):
    """Points (p, dimension) and weights (p,) that give E f(e) of standard normals for polynomials
    below 2 count.
    """
    x, w = np.polynomial.hermite_e.hermegauss(count)
    points = torch.tensor(list(product(x, repeat=dimension)), dtype=F64)
    weights = w / w.sum()
    weights = torch.tensor(list(product(weights, repeat=dimension)), dtype=F64).prod(-1)
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


def told(slope, bend, noise, squares=2.0):
    part = (slice(0, slope.shape[-1]), slope, bend)
    return joint_covariance([part], noise, squares)


def of_squares(z, squares=2.0):
    slope = 2 * (FORMS @ z[:, None, :, None])[..., 0]
    return told(
        slope,
        FORMS.expand(len(z), 2, 3, 3),
        N.expand(len(z), 3, 3),
        squares,
    )


def test_guarantee_the_covariance_of_squares_is_unbiased():
    e, weights = nodes(3, 5)
    z = S + e @ ROOT.mT
    truth = covariance_of(torch.einsum("pi,aij,pj->pa", z, FORMS, z), weights)
    mean = (weights[:, None, None] * of_squares(z)).sum(0)
    torch.testing.assert_close(mean, truth, rtol=1e-11, atol=1e-11)
    # with the slope's own noise, 4 T
    naive = (weights[:, None, None] * of_squares(z, 6.0)).sum(0)
    assert float((naive / truth - 1).abs().amin()) > 1e-3


def test_guarantee_the_covariance_of_products_is_unbiased():
    e, weights = nodes(6, 3)
    first = S + 2**0.5 * e[:, :3] @ ROOT.mT
    second = S + 2**0.5 * e[:, 3:] @ ROOT.mT
    truth = covariance_of(torch.einsum("pi,aij,pj->pa", first, FORMS, second), weights)
    middle = (first + second) / 2
    mean = (weights[:, None, None] * of_squares(middle, 4.0)).sum(0)
    torch.testing.assert_close(mean, truth, rtol=1e-11, atol=1e-11)
    square = (weights[:, None, None] * of_squares(middle)).sum(0)
    assert float((square / truth - 1).abs().amin()) > 1e-3


def smooth(sigma, corrected):
    """What the variance of exp z at s = 1.2 is told to be, less what it is, over its size."""
    e, weights = nodes(1, 24)
    z = 1.2 + sigma * e[:, 0]
    half = z.exp()[:, None] / 2
    values = z.exp()[:, None] - corrected * sigma**2 * half
    # known and the same for all
    noise = torch.full((len(z), 1, 1), sigma**2, dtype=F64)
    found = told(z.exp()[:, None, None], half[..., None, None], noise)
    mean = (weights[:, None, None] * found).sum(0)
    return float((mean - covariance_of(values, weights)) / sigma**2)


def test_of_smooth_functions_the_covariance_holds_to_second_order():
    """Halving the noise divides the error by 2^4 beside the first order, by 2^2 where a correction
    moves too.
    """
    assert 14 < smooth(0.1, 0.0) / smooth(0.05, 0.0) < 18
    assert 3.6 < smooth(0.1, 1.0) / smooth(0.05, 1.0) < 4.4


def of_a_batch(scale=1.0):
    """A batch (2, 3) of 4 answers in 5 coordinates: slope, bend, noise."""
    half = normal(2, 3, 5, 5, seed=6)
    return (
        scale * normal(2, 3, 4, 5, seed=3),
        symmetric(2, 3, 4, 5, 5, seed=7),
        half @ half.mT,
    )


def test_answers_of_blocks_are_those_of_all_coordinates():
    """Two answers of the first three coordinates, one of the next two, a linear one of the last
    two.
    """
    slope, bend, noise = of_a_batch(40.0)
    mask = torch.zeros(4, 5)
    mask[:2, :3] = 1
    mask[2, 3:] = 1
    mask[3, 3:] = 1
    bend = bend * mask[:, :, None] * mask[:, None]
    bend[..., 3, :, :] = 0
    whole = told(slope * mask, bend, noise)
    ends = slice(3, 5)
    blocks = [
        (slice(0, 3), slope[..., :2, :3], bend[..., :2, :3, :3]),
        (ends, slope[..., 2:3, ends], bend[..., 2:3, ends, ends]),
        (ends, slope[..., 3:, ends], None),
    ]
    torch.testing.assert_close(joint_covariance(blocks, noise), whole)
    # by the definition
    i = (1, 2)
    J = bend[i]
    rows = [[(a @ noise[i] @ b @ noise[i]).trace() for b in J] for a in J]
    T = torch.tensor(rows, dtype=F64)
    by_hand = (slope * mask)[i] @ noise[i] @ (slope * mask)[i].mT - 2 * T
    torch.testing.assert_close(whole[i], by_hand)


def test_the_covariance_has_no_negative_eigenvalue():
    found = told(*of_a_batch(0.1))
    assert float(torch.linalg.eigvalsh(found).amin()) > -1e-9


def test_what_is_not_finite_has_no_covariance_and_leaves_the_others_theirs():
    slope, bend, noise = of_a_batch()
    broken = slope.clone()
    broken[0, 1, 2, 3] = torch.nan
    found = told(broken, bend, noise)
    assert int(found.isnan().sum()) == 16
    torch.testing.assert_close(found[1], told(slope, bend, noise)[1])
