"""The factorization norm as a semidefinite program, from the definition: slow, small; a reference and a layer."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import Certificate, certify, check_exponent
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.solvers.fixed_point import Solution

LARGEST_EXPONENT = 1e6
LARGEST = 80  # m + n; an interior point step on the cone of side s costs about s^6 operations and s^4 memory
LARGEST_LAYER = 64  # about a second at 32 x 32
TOLERANCE = 1e-6  # of the layer's certified gap
# SCS, to high accuracy: the derivative is no better than the solution. Not Clarabel: diffcp 1.1.9 returns the dual
# variables of its semidefinite cones out of order, and the derivative is wrong. LSMR for the derivative's linear
# system: where the optimum is not unique diffcp's dense solver returns anything, and its LSQR stops early.
SOLVER: dict[str, Any] = {"solve_method": "SCS", "eps_abs": 1e-10, "eps_rel": 1e-10, "max_iters": 100_000}
DERIVATIVE: dict[str, Any] = {"mode": "lsmr"}


def reference(W: Tensor, p: float = math.inf, shift: bool = False) -> Factorization:
    """The same factorization as :func:`factorize`, from a semidefinite program solved by cvxpy with Clarabel.

    minimise t  over  Z = [[A, X], [X^T, B]] >= 0,  ||diag A||_{p/2} <= t,  diag B <= t,  X = W, or W - v 1^T with
    ``shift`` (v free); A = L L^T and B = R^T R.
    The dual weights are the multipliers of the entries of diag A (p = inf) and diag B; for p < inf the rows'
    are a^{p/2 - 1} with a = diag A. The certificate is :func:`certify`'s, which charges the residual.

    W: (m, n), real, with m + n <= 80 (seconds at 32 x 32; memory grows like (m + n)^4). It is solved on the CPU;
    the factors follow W's dtype and device. ``iterations`` counts the solver's.

    Raises ValueError or TypeError on bad arguments, ImportError without cvxpy, RuntimeError where the solver
    finds no solution.

    Guarantees: certificate.lower <= the norm of W <= certificate.upper.
    Source: Lee, Shraibman, Spalek (2008) for the program at p = inf; Nikolov, Tang (2023),
    Definition 2, for p and the shift.
    """
    p = check_exponent(p)
    if LARGEST_EXPONENT < p < math.inf:
        raise ValueError(f"p must be at most {LARGEST_EXPONENT:g}, or inf, for the program; factorize takes any")
    checks.instance("shift", shift, bool)
    W = checks.matrix("W", W).detach()
    if W.ndim != 2 or sum(W.shape) > LARGEST:
        raise ValueError(
            f"W must be one (m, n) matrix with m + n <= {LARGEST}, not of shape {tuple(W.shape)}; "
            "factorize takes batches and large matrices"
        )
    with checks.needing("reference", "cvxpy"):
        import cvxpy as cp

    scale, m = float(W.double().abs().max()) or 1.0, len(W)
    program = _program(m, W.shape[1], p, shift)
    program["W"].value, problem = W.double().cpu().numpy() / scale, program["problem"]
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.SolverError as error:
        raise RuntimeError(f"the SDP solver failed on W of shape {tuple(W.shape)}: {error}") from error
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        raise RuntimeError(f"the SDP solver stopped on W of shape {tuple(W.shape)} with status {problem.status}")
    v = program["v"].value[:, 0] if shift else 0.0
    found = program["Z"].value, v, program["columns"].dual_value, program["rows"].dual_value
    Z, v, P, c = (torch.as_tensor(x, dtype=torch.float64, device=W.device) for x in found)
    if p < math.inf:
        a = Z.diagonal()[:m].clamp_min(0)
        c = (a / a.max().clamp_min(1e-300)) ** (p / 2 - 1)
    left, right = (math.sqrt(scale) * factor for factor in _factors(Z, m))
    count, P = problem.solver_stats.num_iters or 0, P.clamp_min(0)
    return finish(W, Solution(left, right, scale * v if shift else None, c.clamp_min(0), P, P, count), p)


def _program(m: int, n: int, p: float = math.inf, shift: bool = False) -> dict[str, Any]:
    """The program of (m, n) matrices, W its parameter; ``rows`` and ``columns`` bound diag A and diag B by t."""
    import cvxpy as cp

    W, v, t = cp.Parameter((m, n)), cp.Variable((m, 1)), cp.Variable()
    Z: Any = cp.Variable((m + n, m + n), PSD=True)
    half: Any = p / 2
    a: Any = cp.diag(Z)[:m]
    rows, columns = (a if p == math.inf else cp.pnorm(a, half)) <= t, cp.diag(Z)[m:] <= t
    X = W - v @ np.ones((1, n)) if shift else W
    problem = cp.Problem(cp.Minimize(t), [rows, columns, Z[:m, m:] == X])
    return {"W": W, "Z": Z, "t": t, "v": v, "rows": rows, "columns": columns, "problem": problem}


def _factors(Z: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """left and right of Z = [[L L^T, L R], [R^T L^T, R^T R]]."""
    values, vectors = torch.linalg.eigh(Z)
    both = vectors * values.clamp_min(0).sqrt()[..., None, :]  # the rows of L, then R^T
    return both[..., :m, :], both[..., m:, :].mT


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
    """The program of :func:`reference` for gamma_2 as a layer: value and optimum, differentiated implicitly.

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
    if m + n > LARGEST_LAYER:
        raise ValueError(
            f"W must be (..., m, n) with m + n <= {LARGEST_LAYER}, not of shape {tuple(W.shape)}; "
            "gamma2 takes large matrices"
        )
    layer = _layer(m, n)
    exact = W.double().cpu().reshape(-1, m, n)
    scale = exact.detach().abs().amax((-2, -1))
    scale = torch.where(scale > 0, scale, 1.0)[:, None, None]
    scaled = exact / scale
    options = SOLVER | (DERIVATIVE if torch.is_grad_enabled() and scaled.requires_grad else {})
    try:
        value, Z, *weights = layer(scaled, solver_args=options)
    except Exception as error:
        raise RuntimeError(f"the SDP solver failed on W of shape {tuple(W.shape)}: {error}") from error

    def back(tensor: Tensor, dtype: torch.dtype = W.dtype) -> Tensor:
        return tensor.reshape((*batch, *tensor.shape[1:])).to(W.device, dtype)

    left, right = (scale.sqrt() * factor for factor in _factors(Z.detach(), m))
    proof = (back(each.detach(), torch.float64) for each in (left, right, *(w.clamp_min(0) for w in weights)))
    certificate = certify(back(exact, torch.float64), *proof)
    size = back(scale[:, 0, 0], torch.float64)
    gap = float(((certificate.upper - certificate.lower) / size).max())  # the norm is max abs(W) at least
    if not gap <= TOLERANCE:
        raise RuntimeError(
            f"the SDP solver stopped on W of shape {tuple(W.shape)} at a certified gap of {gap:.2e}, above {TOLERANCE}"
        )

    rows, columns = back(scale * Z[:, :m, :m]), back(scale * Z[:, m:, m:])
    return GramFactorization(back(scale[:, 0, 0] * value), rows, columns, certificate)


@lru_cache(maxsize=16)
def _layer(m: int, n: int) -> Any:
    """The layer of (m, n) matrices: W -> (t, Z, multipliers of diag A <= t and of diag B <= t)."""
    with checks.needing("gram_layer", "cvxpylayers", "cvxpy"):
        from cvxpylayers.torch import CvxpyLayer

        program = _program(m, n)
    multipliers = [program[name].dual_variables[0] for name in ("rows", "columns")]
    return CvxpyLayer(program["problem"], [program["W"]], [program["t"], program["Z"], *multipliers])
