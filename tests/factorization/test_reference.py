"""The fixed point against the semidefinite program."""

import pytest
import torch
from laws import overlap

from torchdp import workloads
from torchdp.factorization import factorize, reference

pytest.importorskip("cvxpy")
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def random_matrix(seed):
    """One of ten kinds (full, low rank, zero, doubled or opposite rows and columns, signs, sparse, graded ...)."""
    generator = torch.Generator().manual_seed(seed)
    m, n = (int(torch.randint(2, 17, (), generator=generator)) for _ in range(2))
    W = torch.randn(m, n, dtype=torch.float64, generator=generator)
    match seed % 10:
        case 1:
            W = W[:, :2] @ torch.randn(2, n, dtype=torch.float64, generator=generator)
        case 2:
            W[0], W[:, -1] = 0, 0
        case 3:
            W[1], W[:, 1] = W[0], -W[:, 0]
        case 4:
            W = W.sign()
        case 5:
            W = W * (torch.rand(m, n, generator=generator) < 0.3)
        case 6:
            W = W * torch.logspace(0, -4, n, dtype=torch.float64)
        case 7:
            W = (W > 0).double()
        case 8:
            W = W.cumsum(0) * 1e6
        case 9:
            W = W[:1]
    return W


@pytest.mark.parametrize("seed", range(20))
def test_random_matrices_of_ten_kinds(seed):
    W = random_matrix(seed)
    fast, slow = factorize(W, tol=1e-5).certificate, reference(W).certificate
    assert slow.gap <= 1e-5
    torch.testing.assert_close(fast.upper, slow.upper, rtol=1e-4, atol=0)
    assert overlap(fast, slow)


def test_guarantee_reference_does_not_take_the_solvers_word():
    """Scale and dtype are handled; the residual left by the solver is charged."""
    W = workloads.prefix(6).dense().float()
    result = reference(W)
    assert result.left.dtype == torch.float32 and result.certificate.upper.dtype == torch.float64
    assert result.certificate.residual > 0 and result.iterations > 0
    tiny = reference(W.double() * 1e-100).certificate
    torch.testing.assert_close(tiny.upper * 1e100, result.certificate.upper, rtol=1e-6, atol=0)


def test_solver_failure_is_an_error(monkeypatch):
    import cvxpy

    def fail(self, **_):
        raise cvxpy.SolverError("no")

    monkeypatch.setattr(cvxpy.Problem, "solve", fail)
    with pytest.raises(RuntimeError, match="SDP solver failed"):
        reference(torch.eye(2))
