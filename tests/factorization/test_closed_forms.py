"""Norms in closed form beside the solver, and formulas with a wrong exponent beside the right ones."""

import math

import pytest
import torch
from laws import normal

from torchdp.factorization import factorize, gamma_box, gamma_ellipsoid
from torchdp.factorization.structure.constructive import gamma_product_domain

EXPONENTS = [2.0, 3.0, math.inf]


def inside(value, certificate, slack=1e-9):
    return certificate.lower * (1 - slack) <= value <= certificate.upper * (1 + slack)


@pytest.mark.parametrize("p", EXPONENTS)
def test_block_diagonal_matrices_have_the_l_p_norm_of_their_norms(p):
    blocks = [normal(3, 3), normal(2, 4, seed=1)]
    whole = factorize(torch.block_diag(*blocks), p, tol=1e-7).certificate
    norms = torch.stack([factorize(block, p, tol=1e-7).certificate.upper for block in blocks])
    assert inside(torch.linalg.vector_norm(norms, ord=p), whole, 1e-6)
    assert not inside(gamma_product_domain(norms, p), whole, 1e-3)  # one point of each set is more than one point


@pytest.mark.parametrize("p", EXPONENTS)
def test_product_domains_have_the_norm_of_lemma_60(p):
    first, second = normal(2, 5), normal(3, 4, seed=1)
    # every column of one above every other's
    pairs = torch.cat([first.repeat_interleave(4, 1), second.repeat(1, 5)])
    norms = torch.stack([factorize(K, p, True, tol=1e-7).certificate.upper for K in (first, second)])
    whole = factorize(pairs, p, True, tol=1e-7).certificate
    assert inside(gamma_product_domain(norms, p), whole, 1e-6)
    assert not inside(torch.linalg.vector_norm(norms, ord=p), whole, 1e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_boxes(p):
    low, high = torch.tensor([-1.0, 0.0, 2.0, 5.0]).double(), torch.tensor([0.0, 3.0, 2.5, 5.0]).double()
    corners = torch.cartesian_prod(*torch.stack([low, high], 1)).T
    value = gamma_box(low, high, p)
    assert inside(value, factorize(corners, p, True, tol=1e-7).certificate, 1e-7)
    sides = torch.full((3, 4), 2.0, dtype=torch.float64)
    torch.testing.assert_close(gamma_box(-sides / 2, sides / 2, p), 4 ** (1 / 2 + 1 / p) * torch.ones(3).double())
    assert gamma_box(low, low, p) == 0


@pytest.mark.parametrize("p", EXPONENTS)
def test_ellipsoids_between_polygons(p):
    A, N = normal(2, 2), 60
    angle = torch.arange(N, dtype=torch.float64) * (2 * math.pi / N)
    polygon = A @ torch.stack([angle.cos(), angle.sin()]) + normal(2, 1, seed=1)
    found = factorize(polygon, p, True, tol=1e-6).certificate
    value = gamma_ellipsoid(A, p)
    assert found.lower <= value * (1 + 1e-9) and value * math.cos(math.pi / N) <= found.upper
    assert not found.lower <= 0.99 * value


def test_closed_forms_are_batched():
    assert gamma_ellipsoid(normal(2, 5, 3, 4)).shape == (2, 5)
