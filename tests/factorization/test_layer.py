"""The differentiable semidefinite program: its value, its gradients, and its errors."""

import sys
from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import factorize, gamma2, gram_layer

pytest.importorskip("cvxpylayers")
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # numpy's, of cvxpylayers


normal = partial(laws.normal, name=b"layer")


UNIQUE = [  # optimal weights are unique
    ("prefix", lambda: workloads.prefix(16).dense()),
    ("unequal", lambda: workloads.unequal(8).dense()),
    ("square", lambda: normal(8, 8)),
    ("wide", lambda: normal(6, 12)),
    ("tall", lambda: normal(16, 9)),
    ("low rank", lambda: normal(8, 2) @ normal(2, 8, name=b"other")),
    ("one", lambda: torch.tensor([[-3.0]], dtype=torch.float64)),
]


@pytest.mark.parametrize("make", [make for _, make in UNIQUE], ids=[name for name, _ in UNIQUE])
def test_gradient_of_the_value_is_the_witness(make):
    """Implicit differentiation of the program against the envelope theorem on the fixed point: nothing is shared."""
    W = make().requires_grad_()
    found = gram_layer(W)
    (implicit,) = torch.autograd.grad(found.value, W)
    (envelope,) = torch.autograd.grad(gamma2(W, tol=1e-8), W)
    torch.testing.assert_close(implicit, envelope, rtol=0, atol=2e-4 * float(envelope.abs().max()))
    torch.testing.assert_close((implicit * W).sum(), found.value, rtol=1e-7, atol=0)  # homogeneous of degree 1
    assert (1.001 * implicit - envelope).abs().max() > 2e-4 * envelope.abs().max()  # a thousandth off is seen


def test_the_derivative_is_that_of_a_solution():
    """Finite differences of value and blocks where the optimum is unique; every optimal weight of W is positive."""
    W = workloads.prefix(4).dense() + 0.1 * normal(4, 4)
    found = factorize(W, tol=1e-9)
    assert min(found.row_weights.min(), found.column_weights.min()) > 0.01

    def blocks(M):
        result = gram_layer(M)
        return result.value, result.rows, result.columns

    assert torch.autograd.gradcheck(blocks, (W.requires_grad_(),), eps=1e-4, atol=1e-4, rtol=1e-4)


def test_guarantee_gram_layer_certificate_and_blocks():
    W = torch.stack([normal(5, 7), torch.zeros(5, 7).double(), 1e6 * normal(5, 7, name=b"big")])[:, None]
    found = gram_layer(W)
    exact = factorize(W, tol=1e-8).certificate
    scale = W.abs().amax((-2, -1)).clamp_min(1)
    assert found.value.shape == found.certificate.upper.shape == (3, 1)
    assert (found.certificate.lower <= exact.upper * (1 + 1e-12)).all() and (
        exact.lower <= found.certificate.upper * (1 + 1e-12)
    ).all()
    assert (found.certificate.upper - found.certificate.lower <= 1e-6 * scale).all()
    torch.testing.assert_close(found.value / scale, exact.upper / scale, rtol=0, atol=1e-6)
    whole = torch.cat([torch.cat([found.rows, W], -1), torch.cat([W.mT, found.columns], -1)], -2)
    assert (torch.linalg.eigvalsh(whole).amin(-1) >= -1e-6 * scale).all()
    assert (whole.diagonal(dim1=-2, dim2=-1) <= found.value[..., None] + 1e-6 * scale[..., None]).all()
    assert not found.certificate.upper.requires_grad


def test_a_batch_is_its_parts_and_dtype_follows():
    W = normal(2, 4, 3)
    together = W.clone().requires_grad_()
    gram_layer(together).value.sum().backward()
    for i in range(2):
        alone = W[i].clone().requires_grad_()
        gram_layer(alone).value.backward()
        torch.testing.assert_close(together.grad[i], alone.grad, rtol=0, atol=1e-5)
    single = W[0].float().requires_grad_()
    found = gram_layer(single)
    found.rows.sum().backward()
    assert found.value.dtype == found.rows.dtype == found.columns.dtype == single.grad.dtype == torch.float32
    assert found.certificate.upper.dtype == torch.float64
    with torch.no_grad():
        torch.testing.assert_close(gram_layer(W[0]).value.float(), found.value.detach())


def test_a_solution_that_is_not_optimal_is_refused(monkeypatch):
    monkeypatch.setattr(
        sys.modules[gram_layer.__module__],
        "SOLVER",
        {"solve_method": "SCS", "max_iters": 3, "acceleration_lookback": 0},
    )
    with pytest.raises(RuntimeError, match=r"certified gap of .* above 1e-06"), pytest.warns(UserWarning):
        gram_layer(normal(4, 4))


def test_solver_failure_is_an_error(monkeypatch):
    monkeypatch.setattr(sys.modules[gram_layer.__module__], "SOLVER", {"solve_method": "none such"})
    with pytest.raises(RuntimeError, match=r"SDP solver failed on W of shape \(2, 2\)"):
        gram_layer(torch.eye(2))
