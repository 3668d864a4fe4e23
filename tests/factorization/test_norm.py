"""The norms as losses: values, gradients, and a training loop that finds a known optimum."""

import math
from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import factorize, gamma, gamma2, gamma_F
from torchdp.factorization.norm import witness

CASES = [(math.inf, False), (math.inf, True), (2.0, False), (4.0, True)]


normal = partial(laws.normal, name=b"norm")


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_gradcheck(p, shift):
    """Finite differences of width 1e-4, all of them in one batch, against the witness; the values are good to 1e-9."""
    W = normal(4, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(gamma(W, p, shift, tol=1e-9), W)
    steps = 1e-4 * torch.eye(20, dtype=torch.float64).reshape(20, 4, 5)
    ahead, behind = gamma(torch.stack([W.detach() + steps, W.detach() - steps]), p, shift, tol=1e-9)
    slopes = ((ahead - behind) / 2e-4).reshape(4, 5)
    torch.testing.assert_close(gradient, slopes, atol=2e-5, rtol=0)
    assert (1.01 * gradient - slopes).abs().max() > 1e-4  # 1 % off is seen


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_guarantee_witness_bounds_every_other_matrix(p, shift):
    found = factorize(normal(5, 6), p, shift, tol=1e-7)
    U = witness(normal(5, 6), found.row_weights, found.column_weights, shift=shift)
    torch.testing.assert_close((normal(5, 6) * U).sum(), found.certificate.lower)
    for i in range(10):
        other = normal(5, 6, name=str(i).encode())
        assert (other * U).sum() <= factorize(other, p, shift).certificate.upper * (1 + 1e-12)
        if shift:
            torch.testing.assert_close(((other + 3) * U).sum(), (other * U).sum())
    if not shift:  # so does W itself, a hair above its norm
        assert ((1 + 1e-3) * normal(5, 6) * U).sum() > found.certificate.upper


def test_guarantee_gamma_is_a_lower_bound_and_close():
    W = torch.stack([workloads.prefix(4).dense(), workloads.unequal(4).dense()])
    assert (gamma(W, tol=1e-3) <= torch.tensor([1.326122669, 1.5 + 1e-12], dtype=torch.float64)).all()
    torch.testing.assert_close(gamma2(W), gamma(W, math.inf), rtol=1e-9, atol=0)  # one problem, solved twice
    torch.testing.assert_close(gamma(W), torch.tensor([1.326122667, 1.5]).double(), rtol=2e-6, atol=0)


def test_float32_in_float32_out():
    W = normal(3, 4).float().requires_grad_()
    value = gamma(W, tol=1e-4)
    value.backward()
    assert value.dtype == W.grad.dtype == torch.float32


def test_zero_has_gradient_zero():
    W = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    value = gamma(W)
    value.backward()
    assert value == 0 and torch.equal(W.grad, torch.zeros(3, 4).double())


@pytest.mark.parametrize("n, value", [(2, 1.144122806), (8, 1.494413653), (16, 1.689403682)])
def test_gamma_f_is_the_root_mean_square_of_edmonds_nikolov_ullman(n, value):
    """Theirs is divided by sqrt(m), Nikolov and Tang's Gamma_2 of the columns and their negatives is not."""
    W = workloads.prefix(n).dense()
    torch.testing.assert_close(gamma_F(W), torch.tensor(value).double(), rtol=2e-6, atol=0)
    torch.testing.assert_close(math.sqrt(n) * gamma_F(W), gamma(W, 2))
    torch.testing.assert_close(gamma(torch.cat([W, -W], 1), 2, shift=True), gamma(W, 2), rtol=2e-6, atol=0)
    tall = torch.cat([W, W])  # the same mean, twice the sum
    torch.testing.assert_close(gamma_F(tall), gamma_F(W), rtol=2e-6, atol=0)
    torch.testing.assert_close(gamma(tall, 2), math.sqrt(2) * gamma(W, 2), rtol=2e-6, atol=0)


def test_guarantee_gamma_f_is_a_lower_bound_and_differentiable():
    W = normal(2, 5, 4).requires_grad_()
    value = gamma_F(W, tol=1e-3)
    assert value.shape == (2,)
    assert (value <= factorize(W, 2, tol=1e-7).certificate.upper / math.sqrt(5)).all()
    assert (value <= gamma2(W, tol=1e-7) * (1 + 1e-7)).all()
    value.sum().backward()
    torch.testing.assert_close((W.grad * W).sum((-2, -1)), value, rtol=1e-9, atol=0)  # homogeneous of degree 1


def test_gamma_of_integers_is_not_rounded():
    W = torch.ones(2, 2, dtype=torch.int64).tril()
    torch.testing.assert_close(gamma(W), torch.tensor(2 / math.sqrt(3)).double(), rtol=2e-6, atol=0)
