"""Norms in closed form beside the solver, and formulas with a wrong exponent beside the right ones."""

import math

import pytest
import torch
from laws import normal
from scipy.linalg import hadamard

from torchdp import workloads
from torchdp.factorization import factorize, gamma_box, gamma_ellipsoid, gamma_sign, gamma_sign_triangular
from torchdp.factorization.structure.closed_forms import (
    box_axes,
    circulant,
    gamma_block_diagonal,
    gamma_circulant,
    gamma_product_domain,
    gamma_skew_circulant,
    group_invariant,
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
    for value, skew in ((gamma_circulant(first, p), False), (gamma_skew_circulant(first, p), True)):
        solved = factorize(cyclic(first, skew), p, tol=1e-8).certificate
        assert inside(value, solved)
        if n > 1 and p != 2:
            assert not inside(value * n ** (1 / 2 - 1 / p), solved, 1e-3)  # the power of n for p = 2


def circulant_is_exact(build, formula, skew, p):
    first = normal(2, 9, seed=3)
    found = build(first, p)
    for b in range(2):
        W = cyclic(first[b], skew)
        torch.testing.assert_close(found.left[b] @ found.right[b], W, rtol=0, atol=1e-13)
    assert found.certificate.gap.max() <= 1e-12
    torch.testing.assert_close(found.certificate.upper, formula(first, p), rtol=1e-12, atol=0)
    assert build(first[0].float(), p).right.dtype == torch.float32
    zero = build(torch.zeros(4), p)
    assert zero.certificate.upper == zero.certificate.gap == 0
    torch.testing.assert_close(build(1e200 * first, p).certificate.upper, 1e200 * formula(first, p))


@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_circulant_is_optimal(p):
    circulant_is_exact(circulant, gamma_circulant, False, p)


@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_skew_circulant_is_optimal(p):
    circulant_is_exact(skew_circulant, gamma_skew_circulant, True, p)


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
        assert float(gamma_skew_circulant(first, p)) == pytest.approx(value, rel=1e-13, abs=1e-13)
        assert inside(value, factorize(W, p, tol=1e-8).certificate, 1e-8) or value < 1e-15
    assert gamma_sign_triangular(16) == pytest.approx(2.727778, abs=1e-6)


def distances(d):
    """A function of the Hamming distance of d bits."""
    x = torch.arange(2**d)
    weight = torch.tensor([bin(i).count("1") for i in range(2**d)])
    return torch.tensor([1.0, 0.7, -0.3, 0.1, 2.0])[: d + 1].double()[weight[x[:, None] ^ x]]


@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_group_invariant_is_optimal_or_refuses(p):
    for W in (
        cyclic(normal(6), False),
        distances(4),
        workloads.unequal(7).dense(),
        workloads.parities(4, 2).dense(),
        torch.tensor(hadamard(8)).double(),
        torch.ones(3, 5, dtype=torch.float64),
        torch.zeros(2, 3, dtype=torch.float64),
    ):
        found = group_invariant(W, p)
        m, n = W.shape
        exact = m ** (1 / p) * float(torch.linalg.svdvals(W).sum()) / math.sqrt(m * n)
        assert found.certificate.gap <= 1e-10
        assert float(found.certificate.upper) == pytest.approx(exact, rel=1e-12)
        torch.testing.assert_close(found.left @ found.right, W, rtol=0, atol=1e-12)
        assert inside(exact, factorize(W, p, tol=1e-6).certificate)
    assert group_invariant(torch.stack([distances(3), -distances(3)]), p).certificate.gap.max() <= 1e-10
    assert group_invariant(distances(3).float(), p).left.dtype == torch.float32
    for W in (
        workloads.prefix(5).dense(),
        torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 1.0, 1.01]))]),
    ):
        with pytest.raises(ValueError, match="not optimal at uniform weights"):
            group_invariant(W, p)


@pytest.mark.parametrize("p", EXPONENTS)
def test_block_diagonal_matrices_have_the_l_p_norm_of_their_norms(p):
    blocks = [normal(3, 3), normal(2, 4, seed=1)]
    whole = factorize(torch.block_diag(*blocks), p, tol=1e-7).certificate
    norms = torch.stack([factorize(block, p, tol=1e-7).certificate.upper for block in blocks])
    assert inside(gamma_block_diagonal(norms, p), whole, 1e-6)
    assert not inside(gamma_product_domain(norms, p), whole, 1e-3)  # one point of each set is more than one point


@pytest.mark.parametrize("p", EXPONENTS)
def test_product_domains_have_the_norm_of_lemma_60(p):
    first, second = normal(2, 5), normal(3, 4, seed=1)
    # every column of one above every other's
    pairs = torch.cat([first.repeat_interleave(4, 1), second.repeat(1, 5)])
    norms = torch.stack([factorize(K, p, True, tol=1e-7).certificate.upper for K in (first, second)])
    whole = factorize(pairs, p, True, tol=1e-7).certificate
    assert inside(gamma_product_domain(norms, p), whole, 1e-6)
    assert not inside(gamma_block_diagonal(norms, p), whole, 1e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_boxes_and_the_ellipsoid_around_them(p):
    low, high = torch.tensor([-1.0, 0.0, 2.0, 5.0]).double(), torch.tensor([0.0, 3.0, 2.5, 5.0]).double()
    corners = torch.cartesian_prod(*torch.stack([low, high], 1)).T
    value = gamma_box(low, high, p)
    assert inside(value, factorize(corners, p, True, tol=1e-7).certificate, 1e-7)
    axes = box_axes(low, high, p)
    torch.testing.assert_close(torch.linalg.vector_norm(axes, ord=p), value)
    reach = torch.where(high > low, (high - low) / 2 / axes, 0.0).norm()
    assert float(reach) == pytest.approx(1)  # the corners touch it: none smaller of this shape holds the box
    sides = torch.full((3, 4), 2.0, dtype=torch.float64)
    torch.testing.assert_close(gamma_box(-sides / 2, sides / 2, p), 4 ** (1 / 2 + 1 / p) * torch.ones(3).double())
    assert (box_axes(low, low, p) == 0).all() and gamma_box(low, low, p) == 0


@pytest.mark.parametrize("p", EXPONENTS)
def test_ellipsoids_between_polygons(p):
    A, N = normal(2, 2), 60
    angle = torch.arange(N, dtype=torch.float64) * (2 * math.pi / N)
    polygon = A @ torch.stack([angle.cos(), angle.sin()]) + normal(2, 1, seed=1)
    found = factorize(polygon, p, True, tol=1e-6).certificate
    value = gamma_ellipsoid(A, p)
    assert found.lower <= value * (1 + 1e-9) and value * math.cos(math.pi / N) <= found.upper
    assert not found.lower <= 0.99 * value


def test_closed_forms_are_differentiable_and_batched():
    first = normal(3, 6).requires_grad_()
    gamma_circulant(first).sum().backward()
    assert first.grad.shape == (3, 6) and bool((first.grad != 0).any())
    assert gamma_ellipsoid(normal(2, 5, 3, 4)).shape == (2, 5)
    assert not circulant(first).left.requires_grad
