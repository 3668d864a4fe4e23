"""Kronecker products: factored and certified part by part; symmetric matrices as R^T J R."""

import math

import pytest
import torch
from laws import normal, overlap
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import certify, factorize, factorize_product, signature_form
from torchdp.factorization.certificates.certificate import Certificate, certify_kronecker
from torchdp.workloads import Workload

EXPONENTS = [2.0, 3.0, math.inf]
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def three(p=math.inf, tol=1e-5):
    """A product whose factors differ in everything: sizes, rank, shape."""
    low_rank = normal(3, 1, seed=1) @ normal(1, 4, seed=2)
    prefix = workloads.prefix(3).dense()
    W = Workload("three", (normal(4, 3), low_rank, prefix))
    return W, factorize_product(W, p, tol)


@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_factorize_product_brackets_the_norm_of_the_dense_product(p):
    W, product = three(p)
    whole = factorize(W.dense(), p, tol=1e-5).certificate
    certificate = product.certificate
    assert certificate.gap <= 1e-5
    assert overlap(certificate, whole)
    dense = product.dense()
    assert_close(dense.left @ dense.right, W.dense(), rtol=0, atol=1e-12)
    assert_close(product.sensitivity, dense.sensitivity)
    weights = dense.row_weights, dense.column_weights
    again = certify(
        W.dense(),
        dense.left,
        dense.right,
        *weights,
        p=p,
    )
    assert_close(again.upper, dense.certificate.upper, rtol=1e-11, atol=0)
    assert_close(again.lower, dense.certificate.lower, rtol=1e-11, atol=0)
    assert again.residual <= dense.certificate.residual


def test_quarter_of_a_million_types_without_their_matrix():
    product = factorize_product(workloads.kendall(512, 512))
    # the spectrum of the sign matrix in closed form
    angles = [(2 * j - 1) * math.pi / 1024 for j in range(1, 513)]
    cotangents = sum(abs(1 / math.tan(angle)) for angle in angles)
    assert float(product.certificate.upper) == pytest.approx((cotangents / 512) ** 2, rel=1e-9)
    assert product.certificate.gap <= 1e-9


def test_product_follows_dtype_and_charges_for_it():
    factors = tuple(normal(5, 6, seed=s).float() for s in (1, 2, 3))
    W = Workload("single", factors)
    product = factorize_product(W, tol=1e-3)
    dense = product.dense()
    assert dense.left.dtype == torch.float32
    doubles = tuple(f.double() for f in factors)
    exact = Workload("double", doubles).dense()
    single = dense.left.double() @ dense.right.double()
    missing = (exact - single).abs().max()
    assert 0 < missing <= dense.certificate.residual <= 1e-2
    assert (
        product.certificate.upper < dense.certificate.upper < product.certificate.upper * (1 + 1e-4)
    )


def test_guarantee_kronecker_certificate_charges_factors_that_miss():
    """I (x) I from left = I / 2: the factors' value is 1/4, and what is missing makes up for it."""
    eye = torch.eye(3).double()
    weights = torch.ones(3).double()
    half = certify(eye, eye / 2, eye, weights, weights)
    product = certify_kronecker([half, half])
    rows = (eye / 2).norm(dim=1)
    value = rows.max() ** 2
    # without the charge it would certify nonsense
    assert value < 1 <= product.upper
    assert product.lower == pytest.approx(1)
    both = torch.kron(eye, eye)
    ones = torch.ones(9).double()
    dense = certify(both, both / 4, both, ones, ones)
    assert 0 < dense.residual <= product.residual
    # the product of the residuals is not a bound
    assert product.residual > 2 * half.residual * half.residual
    infinite = Certificate(
        torch.tensor(math.inf), torch.tensor(1.0), torch.tensor(math.inf), rounding=0.0
    )
    assert (
        certify_kronecker([infinite, half]).upper
        == certify_kronecker([half, infinite]).residual
        == math.inf
    )


@pytest.mark.parametrize("kinds", ["aa", "asa", "sasa", "ss", "aaaa"])
def test_signature_of_products_in_any_order(kinds):
    squares = [normal(n, n, seed=n) for n in (3, 2, 4, 2)]
    chosen = zip(squares, kinds, strict=False)
    factors = tuple(A - A.mT if kind == "a" else A + A.mT for A, kind in chosen)
    W = Workload(kinds, factors)
    dense = W.dense()
    form = signature_form(W, tol=1e-4)
    size = float(dense.abs().max())
    assert_close(form.left @ form.right, dense, rtol=0, atol=1e-9 * size)
    assert form.signature.abs().eq(1).all()
    assert len(form.signature) == torch.linalg.matrix_rank(dense)
    ones = torch.ones(len(dense)).double()
    again = certify(
        dense,
        form.left,
        form.right,
        ones,
        ones,
    )
    assert_close(again.upper, form.certificate.upper, rtol=1e-10, atol=0)
    assert again.residual <= form.certificate.residual
    whole = signature_form(dense, tol=1e-4).certificate
    assert overlap(form.certificate, whole)


def test_signature_of_a_product_with_a_zero_factor_and_in_float32():
    nothing = torch.zeros(2, 2).double()
    zero = Workload("zero", (workloads.sign(3).dense(), nothing))
    form = signature_form(zero)
    assert form.right.shape == (1, 6)
    assert form.certificate.upper == form.certificate.gap == 0
    kendall = workloads.kendall(5, 4)
    factors = tuple(f.float() for f in kendall.factors)
    single = signature_form(Workload("kendall", factors))
    assert single.right.dtype == torch.float32
    product = single.left.double() @ single.right.double()
    missing = (product - kendall.dense()).abs().max()
    assert 0 < missing <= single.certificate.residual < 1e-4


def test_early_stops_are_reported_where_they_are_called():
    with pytest.warns(RuntimeWarning, match="certified gap") as record:
        pair = Workload("pair", workloads.prefix(16).factors * 2)
        factorize_product(pair, max_iterations=1)
    assert record[0].filename == __file__


def random_symmetric():
    W = normal(9, 9)
    return Workload("random", (W + W.T,))


def low_rank():
    W = normal(9, 2, seed=1)
    signs = torch.diag(torch.tensor([1.0, -1.0]).double())
    return Workload("low rank", (W @ signs @ W.T,))


KERNELS = [
    workloads.unequal(12),
    workloads.absolute_difference(10),
    workloads.absolute_difference(10, spacing=1 / 9),
    workloads.kendall(4, 5),
    workloads.auc(6),
    workloads.identity(3),
    random_symmetric(),
    low_rank(),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_guarantee_signature_form_of_kernels(kernel):
    W = kernel.dense()
    form = signature_form(kernel, tol=1e-5)
    R = form.right
    J = torch.diag(form.signature)
    slack = 1e-9 * float(W.abs().max())
    assert_close(R.T @ J @ R, W, rtol=0, atol=slack)
    assert_close(form.left @ R, W, rtol=0, atol=slack)
    assert form.signature.abs().eq(1).all()
    assert R.shape[0] == torch.linalg.matrix_rank(W)
    columns = R.square().sum(0)
    assert_close(columns.max(), form.certificate.upper, rtol=1e-8, atol=0)
    general = factorize(kernel, tol=1e-5).certificate
    assert_close(form.certificate.upper, general.upper, rtol=3e-5, atol=0)
    assert overlap(form.certificate, general)
