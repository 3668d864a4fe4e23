"""The factorization norm as a semidefinite program, from the definition: slow, small."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.solvers.fixed_point import Solution

LARGEST_EXPONENT = 1e6
LARGEST = 80  # m + n; an interior point step on the cone of side s costs about s^6 operations and s^4 memory


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
