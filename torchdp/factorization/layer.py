"""gamma_2 as a differentiable semidefinite program: small, exact, and differentiable in its factors too."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import Certificate, certify

LARGEST = 64  # m + n; about a second at 32 x 32
TOLERANCE = 1e-6  # of the certified gap
# SCS, to high accuracy: the derivative is no better than the solution. Not Clarabel: diffcp 1.1.9 returns the dual
# variables of its semidefinite cones out of order, and the derivative is wrong. LSMR for the derivative's linear
# system: where the optimum is not unique diffcp's dense solver returns anything, and its LSQR stops early.
SOLVER: dict[str, Any] = {"solve_method": "SCS", "eps_abs": 1e-10, "eps_rel": 1e-10, "max_iters": 100_000}
DERIVATIVE: dict[str, Any] = {"mode": "lsmr"}


@dataclass(frozen=True)
class GramFactorization(Brief):
    """gamma_2(W) and the Gram blocks of optimal factors, differentiable in W: rows = L L^T and columns = R^T R.

    value: (*batch), the program's; rows: (*batch, m, m); columns: (*batch, n, n), diagonals at most ``value``.
    certificate: of gamma_2(W), for factors read off the blocks; it has no gradient.
    """

    value: Tensor
    rows: Tensor
    columns: Tensor
    certificate: Certificate


def gram_layer(W: Tensor) -> GramFactorization:
    """The semidefinite program of gamma_2 as a layer: its value and its optimum, differentiated implicitly.

    minimise t  over  Z = [[A, W], [W^T, B]] >= 0 with diag Z <= t;  A = L L^T, B = R^T R.
    d value / dW is the witness, as in :func:`gamma2`, which is the loss to train the norm itself with, at any size.
    d A / dW and d B / dW are what only this offers; they mean something where the optimum is unique. A query or a type
    without dual weight leaves its own diagonal entry free below t.

    W: (*batch, m, n), real, m + n <= 64. It is solved on the CPU in float64; the results follow W's dtype and device.
    First order only.

    Raises ValueError or TypeError on bad arguments, ImportError without cvxpylayers, RuntimeError where the solver
    fails or the certified gap of its solution exceeds 1e-6.

    Guarantees: certificate.lower <= gamma_2(W) <= certificate.upper <= certificate.lower + 1e-6 max abs(W).
    Source: Lee, Shraibman, Spalek (2008) for the program; Agrawal, Amos, Barratt, Boyd, Diamond, Kolter (2019) for the
    derivative.
    """
    W = checks.matrix("W", W)
    *batch, m, n = W.shape
    if m + n > LARGEST:
        raise ValueError(
            f"W must be (..., m, n) with m + n <= {LARGEST}, not of shape {tuple(W.shape)}; "
            "gamma2 takes large matrices"
        )
    program = _program(m, n)
    exact = W.double().cpu().reshape(-1, m, n)
    scale = exact.detach().abs().amax((-2, -1))
    scale = torch.where(scale > 0, scale, 1.0)[:, None, None]
    scaled = exact / scale
    options = SOLVER | (DERIVATIVE if torch.is_grad_enabled() and scaled.requires_grad else {})
    try:
        value, Z, weights = program(scaled, solver_args=options)
    except Exception as error:
        raise RuntimeError(f"the SDP solver failed on W of shape {tuple(W.shape)}: {error}") from error

    certificate = _judge(scaled.detach(), Z.detach(), weights.detach().clamp_min(0))
    gap = float((certificate.upper - certificate.lower).max())  # at max abs(W) = 1, so the norm is 1 at least
    if not gap <= TOLERANCE:
        raise RuntimeError(
            f"the SDP solver stopped on W of shape {tuple(W.shape)} at a certified gap of {gap:.2e}, above {TOLERANCE}"
        )

    def back(tensor: Tensor, dtype: torch.dtype = W.dtype) -> Tensor:
        tensor = tensor * scale.reshape(-1, *(1,) * (tensor.ndim - 1))
        return tensor.reshape((*batch, *tensor.shape[1:])).to(W.device, dtype)

    bounds = ("upper", "lower", "residual", "rounding")
    certificate = Certificate(**{name: back(getattr(certificate, name), torch.float64) for name in bounds})
    return GramFactorization(back(value), back(Z[:, :m, :m]), back(Z[:, m:, m:]), certificate)


@lru_cache(maxsize=16)
def _program(m: int, n: int) -> Any:
    """The layer of (m, n) matrices: W -> (t, Z, multipliers of diag Z <= t)."""
    with checks.needing("gram_layer", "cvxpylayers", "cvxpy"):
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

    W, Z, t = cp.Parameter((m, n)), cp.Variable((m + n, m + n), PSD=True), cp.Variable()
    bounded = cp.diag(Z) <= t
    problem = cp.Problem(cp.Minimize(t), [bounded, Z[:m, m:] == W])
    return CvxpyLayer(problem, [W], [t, Z, bounded.dual_variables[0]])


def _judge(W: Tensor, Z: Tensor, weights: Tensor) -> Certificate:
    m = W.shape[-2]
    eigenvalues, vectors = torch.linalg.eigh(Z)
    both = vectors * eigenvalues.clamp_min(0).sqrt()[..., None, :]  # the rows of L, then R^T
    return certify(W, both[:, :m], both[:, m:].mT, weights[:, :m], weights[:, m:])
