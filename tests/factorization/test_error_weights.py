"""Queries that count differently: the norm of diag(w) W, with the factors of W."""

import math
import warnings
from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import certify, factorize, gamma

CASES = [(2.0, True), (3.0, False), (math.inf, False), (math.inf, True)]


normal = partial(laws.normal, name=b"error weights")


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_factors_are_w_s_and_the_norm_is_the_weighted_one(p, shift):
    W, w = normal(6, 8), normal(6, name=b"w").abs() + 0.1
    found = factorize(W, p, shift, tol=1e-6, error_weights=w)
    product = found.left @ found.right if found.shift is None else found.left @ found.right + found.shift[:, None]
    torch.testing.assert_close(product, W, rtol=0, atol=1e-9)
    rows = torch.linalg.vector_norm(w * found.left.norm(dim=1), ord=p)
    torch.testing.assert_close(rows * found.sensitivity, found.certificate.upper)
    torch.testing.assert_close(rows, found.sensitivity)  # balanced in the weighted norm
    torch.testing.assert_close(found.certificate.lower, gamma(w[:, None] * W, p, shift), rtol=2e-6, atol=0)


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_guarantee_weighted_certificate_is_certify_s(p, shift):
    W, w = normal(6, 8), normal(6, name=b"w").abs() + 0.1
    found = factorize(W, p, shift, error_weights=w)
    factors = W, found.left, found.right, found.row_weights, found.column_weights
    again = certify(*factors, p=p, shift=found.shift, error_weights=w)
    by_hand = certify(
        w[:, None] * W,
        w[:, None] * found.left,
        *factors[2:],
        p=p,
        shift=None if found.shift is None else w * found.shift,
    )
    for name in ("upper", "lower", "residual"):
        for other in (found.certificate, by_hand):
            torch.testing.assert_close(getattr(again, name), getattr(other, name), rtol=1e-12, atol=1e-14)
    truth = factorize(w[:, None] * W, p, shift, tol=1e-6).certificate
    assert laws.overlap(again, truth)
    unweighted = certify(*factors, p=p, shift=found.shift)  # negative control: another number
    assert abs(unweighted.upper / again.upper - 1) > 1e-2


def test_diagonal_case_in_closed_form():
    """gamma_(p)(diag(w)) = ||w||_p: W = I and any weights."""
    w = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    for p in (2.0, 3.0, math.inf):
        found = factorize(torch.eye(3, dtype=torch.float64), p, tol=1e-6, error_weights=w).certificate
        torch.testing.assert_close(found.upper, torch.linalg.vector_norm(w, ord=p), rtol=2e-6, atol=0)


def test_kronecker_products_are_factored_whole_and_weighed_by_factors_where_weights_are_a_product():
    W = workloads.Workload("pair", workloads.prefix(3).factors + workloads.unequal(2).factors)
    a, b = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.5, 1.0]).double()
    whole = factorize(W, tol=1e-6, error_weights=torch.kron(a, b))
    factors = tuple(w[:, None] * f for w, f in zip((a, b), W.factors, strict=True))
    parts = factorize(workloads.Workload("weighed", factors), tol=1e-6)
    torch.testing.assert_close(whole.certificate.upper, parts.certificate.upper, rtol=2e-6, atol=0)
    torch.testing.assert_close(whole.left @ whole.right, W.dense())


def test_warns_at_an_early_stop():
    with pytest.warns(RuntimeWarning, match="certified gap") as record:
        factorize(workloads.prefix(16), max_iterations=1, error_weights=torch.ones(16))
    assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factorize(workloads.prefix(16), error_weights=torch.ones(16))
