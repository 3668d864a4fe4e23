"""What stands beside the scripts of factorizations: skew-circulant matrices, and prefix sums made of them."""

import math

import pytest
import torch
from laws import normal
from scripts import loaded

from torchdp import workloads
from torchdp.factorization import factorize, square_root
from torchdp.factorization.constructive import normalised_square_root

with loaded("factorization/cyclic.py") as cyclic:
    pass

EXPONENTS = [2.0, 3.0, math.inf]


def written_out(first):
    n = len(first)
    return torch.stack(
        [torch.stack([first[(i - j) % n] * (-1 if i < j else 1) for j in range(n)]) for i in range(n)]
    )


@pytest.mark.parametrize("n", [1, 2, 7, 12])
@pytest.mark.parametrize("p", EXPONENTS)
def test_guarantee_skew_circulant_is_optimal(n, p):
    """Exact, of the norm n^{1/p - 1} times the trace norm, and of the solver's; another power of n is not."""
    first = normal(n, seed=n)
    W, found = written_out(first), cyclic.skew_circulant(first, p)
    torch.testing.assert_close(found.left @ found.right, W, rtol=0, atol=1e-13)
    value, solved = float(found.certificate.upper), factorize(W, p, tol=1e-8).certificate
    assert float(found.certificate.gap) <= 1e-12
    assert value == pytest.approx(float(torch.linalg.svdvals(W).sum()) * n ** (1 / p - 1), rel=1e-12)
    assert solved.lower * (1 - 1e-9) <= value <= solved.upper * (1 + 1e-9)
    if n > 1 and p != 2:
        wrong = value * n ** (1 / 2 - 1 / p)
        assert not solved.lower * (1 - 1e-3) <= wrong <= solved.upper * (1 + 1e-3)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("p", EXPONENTS)
def test_sign_matrices_by_cosecants_and_cotangents(n, p):
    ones, last = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    last[0] = 0
    for value, first, W in (
        (cyclic.gamma_sign_triangular(n, p), ones, 2 * workloads.prefix(n).dense() - 1),
        (cyclic.gamma_sign(n, p), last, workloads.sign(n).dense()),
    ):
        torch.testing.assert_close(written_out(first), W)
        found = float(cyclic.skew_circulant(first, p).certificate.upper)
        assert found == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert cyclic.gamma_sign_triangular(16) == pytest.approx(2.727778, abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5, 16, 31, 100])
def test_group_algebra(k):
    """Exact, at its published value, between the two square roots."""
    W, found = workloads.prefix(k).dense(), cyclic.group_algebra(k)
    torch.testing.assert_close(found.left @ found.right, W, rtol=0, atol=1e-12)
    value = float(found.certificate.upper)
    assert value == pytest.approx((cyclic.gamma_sign_triangular(k) + 1) / 2, rel=1e-12)
    assert factorize(W, tol=1e-4).certificate.lower <= value * (1 + 1e-9)
    if k >= 5:
        bounds = (float(build(k).certificate.upper) for build in (normalised_square_root, square_root))
        assert next(bounds) < value < next(bounds)
    if k == 100:
        assert value - math.log(k) / math.pi == pytest.approx(0.9813, abs=1e-3)
