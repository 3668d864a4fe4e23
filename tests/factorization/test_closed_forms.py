"""Norms in closed form beside the solver, and formulas with a wrong exponent beside the right ones."""

import math

import pytest
import torch
from laws import normal

from torchdp import workloads
from torchdp.factorization import factorize, gamma_box, gamma_ellipsoid
from torchdp.factorization.structure.closed_forms import (
    circulant,
    gamma_product_domain,
    gamma_sign,
    gamma_sign_triangular,
    skew_circulant,
)

EXPONENTS = [2.0, 3.0, math.inf]


def inside(value, certificate, slack=1e-9):
    return certificate.lower * (1 - slack) <= value <= certificate.upper * (1 + slack)


def cyclic(first, skew):
    n = len(first)
    return torch.stack(
        [torch.stack([first[(i - j) % n] * (-1 if skew and i < j else 1) for j in range(n)]) for i in range(n)]
    )


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("p", EXPONENTS)
def test_circulants_of_both_signs_beside_the_solver(n, p):
    first = normal(n, seed=n)
    for build, skew in ((circulant, False), (skew_circulant, True)):
        value = build(first, p).certificate.upper
        solved = factorize(cyclic(first, skew), p, tol=1e-8).certificate
        assert inside(value, solved)
        if n > 1 and p != 2:
            assert not inside(value * n ** (1 / 2 - 1 / p), solved, 1e-3)  # the power of n for p = 2


def circulant_is_exact(build, skew, p):
    first = normal(2, 9, seed=3)
    value = torch.stack([torch.linalg.svdvals(cyclic(each, skew)).sum() * 9 ** (1 / p - 1) for each in first])
    found = build(first, p)
    for b in range(2):
        W = cyclic(first[b], skew)
        torch.testing.assert_close(found.left[b] @ found.right[b], W, rtol=0, atol=1e-13)
    assert found.certificate.gap.max() <= 1e-12
    torch.testing.assert_close(found.certificate.upper, value, rtol=1e-12, atol=0)
    assert build(first[0].float(), p).right.dtype == torch.float32
    zero = build(torch.zeros(4), p)
    assert zero.certificate.upper == zero.certificate.gap == 0
    torch.testing.assert_close(build(1e200 * first, p).certificate.upper, 1e200 * value)


@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_circulant_is_optimal(p):
    circulant_is_exact(circulant, False, p)


@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_skew_circulant_is_optimal(p):
    circulant_is_exact(skew_circulant, True, p)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("p", EXPONENTS)
def test_sign_matrices_by_cosecants_and_cotangents(n, p):
    ones, last = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    last[0] = 0
    for value, first, W in (
        (gamma_sign_triangular(n, p), ones, 2 * workloads.prefix(n).dense() - 1),
        (gamma_sign(n, p), last, workloads.sign(n).dense()),
    ):
        torch.testing.assert_close(cyclic(first, True), W)
        assert float(skew_circulant(first, p).certificate.upper) == pytest.approx(value, rel=1e-12, abs=1e-12)
        assert inside(value, factorize(W, p, tol=1e-8).certificate, 1e-8) or value < 1e-15
    assert gamma_sign_triangular(16) == pytest.approx(2.727778, abs=1e-6)


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


def test_closed_forms_are_batched_and_circulants_have_no_history():
    assert gamma_ellipsoid(normal(2, 5, 3, 4)).shape == (2, 5)
    assert not circulant(normal(3, 6).requires_grad_()).left.requires_grad
