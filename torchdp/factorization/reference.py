"""The factorization norm as a semidefinite program: slow, small, and written from the definition."""

import math
from types import ModuleType

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.solvers.fixed_point import Solution
from torchdp.threads import on_host

LARGEST_EXPONENT = 1e6
LARGEST = 80  # m + n; an interior point step on the cone of side s costs about s^6 operations and s^4 memory


def reference(W: Tensor, p: float = math.inf, shift: bool = False) -> Factorization:
    """The same factorization as :func:`factorize`, from a semidefinite program solved by cvxpy with Clarabel.

    minimise (||diag A||_{p/2} + max diag B) / 2  over  Z = [[A, X], [X^T, B]] >= 0,  X = W, or W - v 1^T with
    ``shift`` (v free); A = L L^T and B = R^T R, and at the optimum both terms are equal, by scaling.
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
    if not isinstance(shift, bool):
        raise TypeError(f"shift must be True or False, not {shift!r}")
    W = checks.matrix("W", W).detach()
    if W.ndim != 2 or sum(W.shape) > LARGEST:
        raise ValueError(
            f"W must be one (m, n) matrix with m + n <= {LARGEST}, not of shape {tuple(W.shape)}; "
            "factorize takes batches and large matrices"
        )
    with checks.needing("reference", "cvxpy"):
        import cvxpy as cp

    scale = float(W.double().abs().max()) or 1.0
    Z, v, column_weights, row_weights, iterations = _optimum(cp, W.double().cpu() / scale, p, shift)
    Z, v, P, c = (x.to(W.device) for x in (Z, v, column_weights, row_weights))
    values, vectors = torch.linalg.eigh(Z)
    both = math.sqrt(scale) * vectors * values.clamp_min(0).sqrt()  # (m + n, r): the rows of L, then R^T
    left, right = both[: len(W)], both[len(W) :].mT
    return finish(W, Solution(left, right, scale * v if shift else None, c, P, P, iterations), p)


@on_host
def _optimum(cp: ModuleType, W: Tensor, p: float, shift: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Z, v, the weights of the columns and of the rows at the optimum, float64, and the solver's iterations."""
    m, n = W.shape
    Z, v = cp.Variable((m + n, m + n), PSD=True), cp.Variable((m, 1))
    a, b = cp.diag(Z)[:m], cp.diag(Z)[m:]
    row_bound, column_bound = cp.Variable(), cp.Variable()
    rows = a <= row_bound if p == math.inf else cp.pnorm(a, p / 2) <= row_bound
    columns = b <= column_bound
    target = W.numpy()
    cross = Z[:m, m:] == (target - v @ torch.ones(1, n, dtype=W.dtype).numpy() if shift else target)
    problem = cp.Problem(cp.Minimize((row_bound + column_bound) / 2), [rows, columns, cross])
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.SolverError as error:
        raise RuntimeError(f"the SDP solver failed on W of shape {tuple(W.shape)}: {error}") from error
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        raise RuntimeError(f"the SDP solver stopped on W of shape {tuple(W.shape)} with status {problem.status}")
    found = Z.value, v.value[:, 0] if shift else target[:, 0], columns.dual_value
    Z, v, column_weights, row_weights = (
        torch.tensor(x, dtype=torch.float64) for x in (*found, rows.dual_value if p == math.inf else a.value)
    )
    row_weights = row_weights.clamp_min(0)
    if p < math.inf:
        row_weights = (row_weights / row_weights.max().clamp_min(1e-300)) ** (p / 2 - 1)
    return Z, v, column_weights.clamp_min(0), row_weights, problem.solver_stats.num_iters or 0
