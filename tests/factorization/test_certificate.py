"""The evaluator: sound for any factors and any weights, and its dual weights give the gradient."""

import math

import pytest
import torch
from laws import normal

from torchdp.factorization import Certificate, certify, factorize
from torchdp.factorization.norm import FreeConstant, Gamma2Dual


def test_scale_of_weights_is_free_and_zero_weights_prove_nothing():
    W, c, P = normal(4, 5), normal(4).abs(), normal(5).abs()
    one = certify(W, W, torch.eye(5), c, P)
    other = certify(W, W, torch.eye(5), 1e200 * c, 1e-200 * P)
    torch.testing.assert_close(one.lower, other.lower)
    assert certify(W, W, torch.eye(5), 0 * c, P).lower == 0


@pytest.mark.parametrize("p", [2.0, 2.001, 400.0, 1e6, math.inf])
def test_extreme_exponents(p):
    W = 0.01 * normal(6, 5)
    certificate = factorize(W, p, tol=1e-3).certificate
    assert certificate.lower > 0 and 0 <= certificate.gap <= 1e-3


def test_gap():
    zero, one, two = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0)
    bounds = torch.stack([two, one, zero, one]), torch.stack([one, one, zero, zero])
    certificate = Certificate(*bounds, zero, rounding=0.0)
    assert certificate.gap.tolist() == [1.0, 0.0, 0.0, math.inf]
    assert certificate.closed(0.9).tolist() == [False, True, True, False]
    assert certificate.closed(1.0).tolist() == [True, True, True, False]


def number(value):
    return torch.tensor(value, dtype=torch.float64)


MAKERS = {
    "Certificate": lambda low, high: Certificate(
        number([9.0, high]), number([1.0, low]), number(0), rounding=1e-9
    ),
    "Gamma2Dual": lambda low, high: Gamma2Dual(
        number(high), number(low), *[torch.ones(1)] * 4, 1, rounding=number(1e-9)
    ),
    "FreeConstant": lambda low, high: FreeConstant(high, low, 0.0, rounding=1e-9),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_guarantee_bounds_that_contradict_each_other_are_refused_not_repaired(maker):
    make = MAKERS[maker]
    for low, high in (0.5, 0.5), (0.5, 0.5 - 5e-10), (0.0, math.inf), (-1.0, 0.0):
        assert make(low, high)
    for low, high in (0.5, 0.5 - 2e-9), (1.0, 0.0), (math.nan, 1.0), (0.0, math.nan), (math.inf, 1.0):
        with pytest.raises(ArithmeticError, match="lower bound exceeds"):
            make(low, high)


@pytest.mark.parametrize("fault", ["svdvals", "eigvalsh", "vector_norm"])
def test_an_evaluator_that_errs_by_a_ten_millionth_is_refused(fault, monkeypatch):
    """Negative control: the optimum of a permutation is known to 1e-15, so that any such error is a contradiction."""
    eye, ones = torch.eye(8, dtype=torch.float64), torch.ones(8)
    W = eye if fault == "eigvalsh" else eye[[1, 2, 0, 3, 4, 5, 6, 7]]  # mirrored or not
    assert float(certify(W, W, eye, ones, ones).rounding) < 1e-13
    right, factor = getattr(torch.linalg, fault), 1 - 1e-7 if fault == "vector_norm" else 1 + 1e-7
    monkeypatch.setattr(torch.linalg, fault, lambda *args, **kwargs: factor * right(*args, **kwargs))
    with pytest.raises(ArithmeticError, match="lower bound exceeds"):
        certify(W, W, eye, ones, ones)
