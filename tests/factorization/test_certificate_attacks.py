"""The evaluator under attack: bad factors, bad weights, bad shapes; no gap below the true one, no raw traceback."""

import math
from functools import partial

import laws
import pytest
import torch

from torchdp.factorization import (
    certify,
    factorize,
    gamma_ellipsoid,
)
from torchdp.factorization.norm import witness

CASES = [(2.0, True), (3.0, False), (math.inf, False), (math.inf, True)]


normal = partial(laws.normal, name=b"attacks")


def judge(found, W, p=math.inf, **changes):
    names = ("left", "right", "row_weights", "column_weights", "shift")
    arguments = {name: getattr(found, name) for name in names}
    return certify(W, **{**arguments, **changes}, p=p)


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_guarantee_no_weights_prove_too_much(p, shift):
    W = normal(6, 9)
    best = factorize(W, p, shift, tol=1e-8)
    other = factorize(normal(6, 9, name=b"another matrix"), p, shift)
    one_row, one_column = torch.eye(6).double()[0], torch.eye(9).double()[0]
    graded = 10.0 ** -torch.arange(0, 300, 34).double()  # nine weights over 272 decades
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
        certificate = judge(best, W, p, row_weights=c, column_weights=P)
        assert 0 <= certificate.lower <= best.certificate.upper * (1 + 1e-12)
        assert certificate.gap >= 0


def test_subnormal_weights_keep_their_ratios():
    """Divided by an l_3 norm that is subnormal, 4 grains for 4.14, they would prove 1.7 % too much."""
    W = torch.eye(5, dtype=torch.float64)
    grains = torch.tensor([1.0, 2.0, 2.0, 3.0, 3.0]).double()
    lower = [certify(W, W, W, scale * grains, grains, p=3).lower for scale in (1.0, 5e-324)]
    torch.testing.assert_close(lower[1], lower[0], rtol=1e-14, atol=0)


def test_the_largest_numbers():
    W = torch.tensor([[1.7e308, -1.7e308], [1.7e308, 1.7e308]], dtype=torch.float64)
    eye, half = torch.eye(2).double(), torch.ones(2)
    shifted = certify(W / 2, W / 2, eye, half, half, shift=torch.zeros(2))
    assert 0 < shifted.lower <= shifted.upper < math.inf
    signs, weights = W / 1.7e308, (half / 2, torch.tensor([0.1, 0.9]))
    torch.testing.assert_close(witness(W, *weights, shift=True), witness(signs, *weights, shift=True))
    torch.testing.assert_close(gamma_ellipsoid(W / 2), 0.85e308 * gamma_ellipsoid(signs))


def test_factors_that_overflow_prove_nothing_above():
    W, huge = normal(3, 4), torch.full((3, 3), 1e200, dtype=torch.float64)
    for p in (2.0, 3.0, math.inf):
        for sign in (huge, torch.tensor([1.0, -1.0, 1.0]).double() * huge):  # inf, and inf - inf
            certificate = certify(W, sign, 1e200 * torch.ones(3, 4).double(), torch.ones(3), torch.ones(4), p=p)
            assert certificate.upper == certificate.gap == certificate.residual == math.inf
            assert 0 < certificate.lower < math.inf


def test_batches_broadcast_to_w_s():
    W = normal(2, 3, 4, 5)
    right, c, P, v = normal(4, 5, name=b"r"), torch.ones(3, 4), torch.ones(2, 1, 5), normal(4, name=b"v")
    w = normal(3, 4, name=b"w").abs()
    left = (W - v[:, None]) @ torch.linalg.pinv(right)
    batch = certify(W, left, right, c, P, p=3, shift=v, error_weights=w)
    assert batch.upper.shape == batch.lower.shape == batch.residual.shape == batch.gap.shape == (2, 3)
    one = certify(W[1, 2], left[1, 2], right, c[2], P[1, 0], p=3, shift=v, error_weights=w[2])
    for name in ("upper", "lower", "residual"):
        torch.testing.assert_close(getattr(batch, name)[1, 2], getattr(one, name))
