"""The gradient of gamma_2 against the semidefinite program as a layer of cvxpylayers, differentiated implicitly."""

from functools import partial

import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import gamma2

cp = pytest.importorskip("cvxpy")
cvxpylayers = pytest.importorskip("cvxpylayers.torch")
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # numpy's, of cvxpylayers
# SCS, to high accuracy: the derivative is no better than the solution. Not Clarabel: diffcp 1.1.9 returns the dual
# variables of its semidefinite cones out of order, and the derivative is wrong. LSMR for the derivative's linear
# system: where the optimum is not unique diffcp's dense solver returns anything, and its LSQR stops early.
SOLVER = {"solve_method": "SCS", "eps_abs": 1e-10, "eps_rel": 1e-10, "max_iters": 100_000, "mode": "lsmr"}


normal = partial(laws.normal, name=b"layer")


def by_layer(W):
    """The least t with Z = [[A, W], [W^T, B]] >= 0 and diagonals of A and B at most t (Lee, Shraibman, Spalek 2008)."""
    m, n = W.shape
    given, t = cp.Parameter((m, n)), cp.Variable()
    Z = cp.Variable((m + n, m + n), PSD=True)
    problem = cp.Problem(cp.Minimize(t), [cp.diag(Z) <= t, Z[:m, m:] == given])
    layer = cvxpylayers.CvxpyLayer(problem, [given], [t, Z])
    value, _ = layer(W, solver_args=SOLVER)
    return value


UNIQUE = [  # optimal weights are unique
    ("prefix", lambda: workloads.prefix(16).dense()),
    ("wide", lambda: normal(6, 12)),
    ("low rank", lambda: normal(8, 2) @ normal(2, 8, name=b"other")),
]


@pytest.mark.parametrize("make", [make for _, make in UNIQUE], ids=[name for name, _ in UNIQUE])
def test_gradient_of_the_value_is_the_witness(make):
    """Implicit differentiation of the program against the envelope theorem on the fixed point: nothing is shared."""
    W = make().requires_grad_()
    value = by_layer(W)
    (implicit,) = torch.autograd.grad(value, W)
    (envelope,) = torch.autograd.grad(gamma2(W, tol=1e-8), W)
    torch.testing.assert_close(implicit, envelope, rtol=0, atol=2e-4 * float(envelope.abs().max()))
    torch.testing.assert_close((implicit * W).sum(), value, rtol=1e-7, atol=0)  # homogeneous of degree 1
    assert (1.001 * implicit - envelope).abs().max() > 2e-4 * envelope.abs().max()  # a thousandth off is seen
