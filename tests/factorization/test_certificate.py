"""The evaluator under attack: bad factors, bad weights, bad shapes; no bound that contradicts
another.
"""

import math
from functools import partial

import laws
import pytest
import torch
from laws import normal
from torch.testing import assert_close

from torchdp.factorization import Certificate, certify, factorize, gamma_ellipsoid
from torchdp.factorization.norm import FreeConstant, Gamma2Dual, witness

CASES = [
    (2.0, True),
    (3.0, False),
    (math.inf, False),
    (math.inf, True),
]


random = partial(laws.normal, name=b"attacks")


def test_scale_of_weights_is_free_and_zero_weights_prove_nothing():
    W = normal(4, 5)
    c = normal(4).abs()
    P = normal(5).abs()
    one = certify(
        W,
        W,
        torch.eye(5),
        c,
        P,
    )
    other = certify(
        W,
        W,
        torch.eye(5),
        1e200 * c,
        # scales at the ends of the range of floats
        1e-200 * P,
    )
    assert_close(one.lower, other.lower)
    assert certify(W, W, torch.eye(5), 0 * c, P).lower == 0


@pytest.mark.parametrize("p", [2.0, 2.001, 400.0, 1e6, math.inf])
def test_extreme_exponents(p):
    W = 0.01 * normal(6, 5)
    certificate = factorize(W, p, tol=1e-3).certificate
    assert certificate.lower > 0
    assert 0 <= certificate.gap <= 1e-3


def test_gap():
    zero = torch.tensor(0.0)
    one = torch.tensor(1.0)
    two = torch.tensor(2.0)
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
    for low, high in (
        (0.5, 0.5),
        (0.5, 0.5 - 5e-10),
        (0.0, math.inf),
        (
            -1.0,
            0.0,
        ),
    ):
        assert make(low, high)
    for low, high in (
        (0.5, 0.5 - 2e-9),
        (1.0, 0.0),
        (math.nan, 1.0),
        (0.0, math.nan),
        (math.inf, 1.0),
    ):
        with pytest.raises(ArithmeticError, match="lower bound exceeds"):
            make(low, high)


@pytest.mark.parametrize("fault", ["svdvals", "eigvalsh", "vector_norm"])
def test_an_evaluator_that_errs_by_a_ten_millionth_is_refused(fault, monkeypatch):
    """Negative control: the optimum of a permutation is known to 1e-15, so that any such error is a
    contradiction.
    """
    eye = torch.eye(8).double()
    ones = torch.ones(8)
    # mirrored or not
    W = eye if fault == "eigvalsh" else eye[[1, 2, 0, 3, 4, 5, 6, 7]]
    # an evaluator without a fault loses next to nothing
    assert float(certify(W, W, eye, ones, ones).rounding) < 1e-13
    right = getattr(torch.linalg, fault)
    factor = 1 - 1e-7 if fault == "vector_norm" else 1 + 1e-7
    monkeypatch.setattr(
        torch.linalg, fault, lambda *args, **kwargs: factor * right(*args, **kwargs)
    )
    with pytest.raises(ArithmeticError, match="lower bound exceeds"):
        certify(W, W, eye, ones, ones)


def judged(found, W, p=math.inf, **changes):
    names = ("left", "right", "row_weights", "column_weights", "shift")
    arguments = {name: getattr(found, name) for name in names}
    return certify(W, **{**arguments, **changes}, p=p)


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_guarantee_no_weights_prove_too_much(p, shift):
    W = random(6, 9)
    best = factorize(W, p, shift, tol=1e-8)
    other = factorize(random(6, 9, name=b"another matrix"), p, shift)
    one_row = torch.eye(6).double()[0]
    one_column = torch.eye(9).double()[0]
    # nine weights over 272 decades
    graded = 10.0 ** -torch.arange(0, 300, 34).double()
    for c, P in [
        (torch.ones(6), torch.ones(9)),
        (one_row, torch.ones(9)),
        (torch.ones(6), one_column),
        (one_row, one_column),
        (other.row_weights, other.column_weights),
        (best.row_weights, graded),
        (graded[:6], best.column_weights),
        (best.row_weights.float(), best.column_weights.half()),
        (1e-320 * best.row_weights, 1e300 * best.column_weights),
    ]:
        certificate = judged(
            best,
            W,
            p,
            row_weights=c,
            column_weights=P,
        )
        assert 0 <= certificate.lower <= best.certificate.upper * (1 + 1e-12)
        assert certificate.gap >= 0


def test_subnormal_weights_keep_their_ratios():
    """Divided by an l_3 norm that is subnormal, 4 grains for 4.14, they would prove 1.7 % too
    much.
    """
    W = torch.eye(5).double()
    grains = torch.tensor([1.0, 2.0, 2.0, 3.0, 3.0]).double()
    lower = [certify(W, W, W, scale * grains, grains, p=3).lower for scale in (1.0, 5e-324)]
    # ratios to the last digits
    assert_close(lower[1], lower[0], rtol=1e-14, atol=0)


def test_the_largest_numbers():
    W = torch.tensor([[1.7e308, -1.7e308], [1.7e308, 1.7e308]], dtype=torch.float64)
    eye = torch.eye(2).double()
    half = torch.ones(2)
    shifted = certify(
        W / 2,
        W / 2,
        eye,
        half,
        half,
        shift=torch.zeros(2),
    )
    assert 0 < shifted.lower <= shifted.upper < math.inf
    signs = W / 1.7e308
    weights = (half / 2, torch.tensor([0.1, 0.9]))
    assert_close(witness(W, *weights, shift=True), witness(signs, *weights, shift=True))
    assert_close(gamma_ellipsoid(W / 2), 0.85e308 * gamma_ellipsoid(signs))


def test_factors_that_overflow_prove_nothing_above():
    W = random(3, 4)
    huge = torch.full((3, 3), 1e200, dtype=torch.float64)
    for p in (2.0, 3.0, math.inf):
        # inf, and inf - inf
        for sign in (huge, torch.tensor([1.0, -1.0, 1.0]).double() * huge):
            left = 1e200 * torch.ones(3, 4).double()
            certificate = certify(
                W,
                sign,
                left,
                torch.ones(3),
                torch.ones(4),
                p=p,
            )
            assert certificate.upper == certificate.gap == certificate.residual == math.inf
            assert 0 < certificate.lower < math.inf


def test_batches_broadcast_to_w_s():
    W = random(2, 3, 4, 5)
    right = random(4, 5, name=b"r")
    c = torch.ones(3, 4)
    P = torch.ones(2, 1, 5)
    v = random(4, name=b"v")
    left = (W - v[:, None]) @ torch.linalg.pinv(right)
    batch = certify(
        W,
        left,
        right,
        c,
        P,
        p=3,
        shift=v,
    )
    assert (
        batch.upper.shape == batch.lower.shape == batch.residual.shape == batch.gap.shape == (2, 3)
    )
    one = certify(
        W[1, 2],
        left[1, 2],
        right,
        c[2],
        P[1, 0],
        p=3,
        shift=v,
    )
    for name in ("upper", "lower", "residual"):
        assert_close(getattr(batch, name)[1, 2], getattr(one, name))
