"""factorize: W = left right + shift 1^T with the smallest factorization norm, and a certificate.

And the same from the definition, as a semidefinite program: slow, small.

Notation: c, P: dual weights of the rows and columns; w: weights of the errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import (
    Certificate,
    certify,
    certify_kronecker,
    check_exponent,
    power_norm,
    rounded,
    row_norm,
)
from torchdp.factorization.running import RunningFactorization, factorize_running
from torchdp.factorization.solvers.fixed_point import Solution, attempts
from torchdp.factorization.solvers.iteration import closed, warn_where_open
from torchdp.threads import one_thread
from torchdp.workloads import RunningSums, Workload

Matrix = Tensor | Workload | np.ndarray | Sequence[Sequence[float]]  # what functions of one take

# Factors in half precision would leave gaps of a hundredth.
HALF_PRECISION = (torch.float16, torch.bfloat16)

# p of the semidefinite program.
LARGEST_EXPONENT = 1e6

# m + n: an interior point step on the cone of side s costs about s^6 operations and s^4 memory.
LARGEST = 80

# A diagonal entry of the program below it counts as it.
SMALLEST = 1e-300


@dataclass(frozen=True)
class Factorization(Brief):
    """W = left right + shift 1^T up to certificate.residual, and how close to optimal it is.

    Balanced: the l_p norm of left's row norms equals the largest column norm of right, and both
    equal sqrt(certificate.upper) up to the residual. With error weights w left and the certificate
    are those of the weighted norm: diag(w) left is what is balanced.

    Args:
        left: (*batch, m, r), the decoder.
        right: (*batch, r, n), column x is what a user of type x is mapped to.
        shift: (*batch, m), or None where none was asked for.
        row_weights: c, (*batch, m), with P the dual weights behind ``certificate.lower``.
        column_weights: P, (*batch, n).
        certificate: of the norm.
        iterations: of the solver.
        witness: of W within alpha: what the weights are the proof of, (*batch, m, n), as
            ``certify_approximate`` takes it; for users who return what :func:`factorize_epochs`
            says; else None.
    """

    left: Tensor
    right: Tensor
    shift: Tensor | None
    row_weights: Tensor
    column_weights: Tensor
    certificate: Certificate
    iterations: int
    witness: Tensor | None = None

    @property
    def sensitivity(self) -> Tensor:
        """Largest column norm of ``right``, of shape (*batch)."""
        return self.right.norm(dim=-2).amax(-1)

    @property
    def norm(self) -> Tensor:
        """The largest row norm of left * column norm of right, (*batch), float64; for gamma_2."""
        rows = row_norm(self.left.double(), math.inf)
        return rows * row_norm(self.right.double().mT, math.inf)


@overload
def factorize(
    W: RunningSums,
    p: float = ...,
    shift: bool = ...,
    tol: float = ...,
    *,
    max_iterations: int = ...,
) -> RunningFactorization: ...


@overload
def factorize(
    W: Matrix,
    p: float = ...,
    shift: bool = ...,
    tol: float = ...,
    *,
    max_iterations: int = ...,
) -> Factorization: ...


def factorize(
    W: Matrix | RunningSums,
    p: float = math.inf,
    shift: bool = False,
    tol: float = 1e-3,
    *,
    max_iterations: int = 10_000,
) -> Factorization | RunningFactorization:
    """The factorization W = L R of least norm, with its certificate.

    With ``shift`` of W - v 1^T = L R, v free. Minimises (sum_i ||L_i||^p)^{1/p} * max_j ||R_j||. p
    = inf is gamma_2 (the worst query), p = 2 the root of the summed squared errors, sqrt(m) times
    gamma_F. For errors that weigh w factor ``w[:, None] * W`` and divide the rows of left by w.

    Args:
        W: (*batch, m, n), real, numpy arrays and lists too, or a :class:`Workload`, or
            :class:`RunningSums` (with learning rates too, without momentum), which are never
            formed: in memory for a few vectors, without ``shift``, as a
            :class:`RunningFactorization`. A Kronecker product is factored factor by factor, but
            whole with ``shift``.
        p: in [2, inf].
        shift: whether v is free.
        tol: relative gap at which it stops.
        max_iterations: of each matrix.

    The factors follow W's dtype (integers: float64; half precision: float32) and device; the solver
    and the certificate run in float64, without gradients. It stops where the certificate of what it
    returns is closed.

    Warns (RuntimeWarning) where the certified gap exceeds ``tol``, after ``max_iterations`` or
    where rounding is in the way; the result is still feasible and its certificate true. Raises
    ValueError or TypeError on bad arguments.

    Guarantees: certificate.lower <= the norm of W <= certificate.upper.
    Source: Edmonds, Nikolov, Ullman (2020), section 2; Nikolov, Tang (2023), Definition 2, Theorems
    23 and 26, and Lemma 62 (Kronecker products).
    """
    checks.instance("shift", shift, bool)
    if isinstance(W, RunningSums):
        if shift:
            raise ValueError("shift needs the matrix itself: pass RunningSums(...).dense()")
        running = factorize_running(W, p, tol, max_iterations)
        size = torch.ones((), dtype=torch.float64, device="cpu")
        warn_where_open(
            running.certificate, tol, size, size.dtype, running.iterations, max_iterations
        )
        return running
    matrices = matrices_of(W)
    if shift:  # its norm is not multiplicative
        matrices = [reduce(torch.kron, matrices)]
    parts = factors(matrices, p, shift, tol, max_iterations)
    # A single part keeps its own certificate, without the rounding of a product.
    result = kronecker(parts) if len(parts) > 1 else parts[0]
    warn(matrices, result.certificate, tol, result.iterations, max_iterations)
    return result


@one_thread
def factors(
    matrices: Sequence[Tensor], p: float, shift: bool, tol: float, max_iterations: int
) -> tuple[Factorization, ...]:
    """A factorization of each matrix; the relative gap ``tol`` of their product is shared out."""
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    # The ratios upper / lower multiply.
    share = math.expm1(math.log1p(tol) / len(matrices))
    results = []
    for W in matrices:
        for solution in attempts(
            W.double(), p=p, shift=shift, tol=share, max_iterations=max_iterations
        ):
            result = finish(W, solution, p)
            if closed(result.certificate, share, size_of([W]), W.dtype):
                break
        results.append(result)
    return tuple(results)


def finish(W: Tensor, solution: Solution, p: float) -> Factorization:
    """A solver's result balanced, cast to W's dtype and judged by :func:`certify`."""
    rows = power_norm(solution.left.norm(dim=-1), p)
    columns = solution.right.norm(dim=-2).amax(-1)
    scale = balance(rows, columns)
    # torch.kron takes no transposed factors.
    left = (scale * solution.left).to(W.dtype).contiguous()
    right = (solution.right / scale).to(W.dtype).contiguous()
    shift = None if solution.shift is None else solution.shift.to(W.dtype)
    c = solution.row_weights
    P = solution.column_weights
    certificate = certify(W, left, right, c, P, p=p, shift=shift)
    return Factorization(left, right, shift, c, P, certificate, solution.iterations)


def matrices_of(W: Matrix) -> list[Tensor]:
    """W's Kronecker factors, without their autograd history; half precision becomes float32."""
    given = W.factors if isinstance(W, Workload) else (checks.as_tensor("W", W),)
    matrices = [checks.matrix("W", factor).detach() for factor in given]
    return [f.float() if f.dtype in HALF_PRECISION else f for f in matrices]


def matrix_of(W: Matrix) -> Tensor:
    """W itself, the product of :func:`matrices_of`."""
    return reduce(torch.kron, matrices_of(W))


def balance(rows: Tensor, columns: Tensor) -> Tensor:
    """The scale of left, (*batch, 1, 1), that makes both norms one; 1 where one is 0."""
    # Where a norm is 0 so is the product, whatever the scale.
    both = (rows > 0) & (columns > 0)
    return torch.where(both, (columns / rows).sqrt(), 1.0)[..., None, None]


def kronecker(parts: Sequence[Factorization]) -> Factorization:
    """The dense factorization of the Kronecker product, certified by the parts' certificates."""
    names = ("left", "right", "row_weights", "column_weights")
    dense = {name: reduce(torch.kron, [getattr(part, name) for part in parts]) for name in names}
    right = dense["right"]
    certificate = certify_kronecker([part.certificate for part in parts])
    certificate = rounded(certificate, right.shape[-1], rounding_of(len(parts), right.dtype))
    iterations = max(part.iterations for part in parts)
    return replace(parts[0], **dense, certificate=certificate, iterations=iterations)


def rounding_of(parts: int, dtype: torch.dtype) -> float:
    """Relative error of a product of ``parts`` numbers, the signature form's rotation included."""
    return 4 * (parts - 1) * torch.finfo(dtype).eps


def warn(
    matrices: Sequence[Tensor],
    certificate: Certificate,
    tol: float,
    iterations: int,
    max_iterations: int,
) -> None:
    """RuntimeWarning, at the caller's caller, where the product's gap exceeds ``tol``."""
    size = size_of(matrices)
    warn_where_open(certificate, tol, size, matrices[0].dtype, iterations, max_iterations)


def size_of(matrices: Sequence[Tensor]) -> Tensor:
    """Largest absolute entry of the Kronecker product, (*batch)."""
    sizes = [f.double().abs().amax((-2, -1)) for f in matrices]
    return reduce(torch.mul, sizes)


def reference(W: Tensor, p: float = math.inf, shift: bool = False) -> Factorization:
    """The same factorization as :func:`factorize`, from a semidefinite program.

    minimise t  over  Z = [[A, X], [X^T, B]] >= 0,  ||diag A||_{p/2} <= t,  diag B <= t,  X = W, or
    W - v 1^T with ``shift`` (v free); A = L L^T and B = R^T R.

    Args:
        W: (m, n), real, with m + n <= 80 (seconds at 32 x 32; memory grows like (m + n)^4).
        p: in [2, 1e6], or inf.
        shift: whether v is free.

    The dual weights are the multipliers of the entries of diag A (p = inf) and diag B; for p < inf
    the rows' are a^{p/2 - 1} with a = diag A. The certificate is :func:`certify`'s, which charges
    the residual. It is solved on the CPU by cvxpy with Clarabel; the factors follow W's dtype and
    device. ``iterations`` counts the solver's.

    Raises ValueError or TypeError on bad arguments, ImportError without cvxpy, RuntimeError where
    the solver finds no solution.

    Guarantees: certificate.lower <= the norm of W <= certificate.upper.
    Source: Lee, Shraibman, Spalek (2008) for the program at p = inf; Nikolov, Tang (2023),
    Definition 2, for p and the shift.
    """
    p = check_exponent(p)
    if LARGEST_EXPONENT < p < math.inf:
        raise ValueError(
            f"p must be at most {LARGEST_EXPONENT:g}, or inf, for the program; factorize takes any"
        )
    checks.instance("shift", shift, bool)
    W = checks.matrix("W", W).detach()
    if W.ndim != 2 or sum(W.shape) > LARGEST:
        raise ValueError(
            f"W must be one (m, n) matrix with m + n <= {LARGEST}, not of shape {tuple(W.shape)}; "
            "factorize takes batches and large matrices"
        )
    with checks.needing("reference", "cvxpy"):
        import cvxpy as cp

    # The program's tolerances are for entries of size 1.
    scale = float(size_of([W])) or 1.0
    m, n = W.shape
    program = _program(m, n, p, shift)
    program["W"].value = W.double().cpu().numpy() / scale
    problem = program["problem"]
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.SolverError as error:
        raise RuntimeError(
            f"the SDP solver failed on W of shape {tuple(W.shape)}: {error}"
        ) from error
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        raise RuntimeError(
            f"the SDP solver stopped on W of shape {tuple(W.shape)} with status {problem.status}"
        )

    def read(value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float64, device=W.device)

    Z = read(program["Z"].value)
    P = read(program["columns"].dual_value).clamp_min(0)
    c = read(program["rows"].dual_value).clamp_min(0)
    if p < math.inf:
        a = Z.diagonal()[:m].clamp_min(0)
        largest = a.max().clamp_min(SMALLEST)
        c = (a / largest) ** (p / 2 - 1)
    left, right = _factors(Z, m)
    half = math.sqrt(scale)
    v = scale * read(program["v"].value[:, 0]) if shift else None
    iterations = problem.solver_stats.num_iters or 0
    return finish(W, Solution(half * left, half * right, v, c, P, P, iterations), p)


def _program(m: int, n: int, p: float = math.inf, shift: bool = False) -> dict[str, Any]:
    """The program of (m, n) matrices, W its parameter; ``rows`` and ``columns`` bound by t."""
    import cvxpy as cp

    W = cp.Parameter((m, n))
    v = cp.Variable((m, 1))
    t = cp.Variable()
    Z: Any = cp.Variable((m + n, m + n), PSD=True)
    a: Any = cp.diag(Z)[:m]
    half: Any = p / 2
    rows = (a if p == math.inf else cp.pnorm(a, half)) <= t
    columns = cp.diag(Z)[m:] <= t
    X = W - v @ np.ones((1, n)) if shift else W
    constraints = [rows, columns, Z[:m, m:] == X]
    problem = cp.Problem(cp.Minimize(t), constraints)
    return {"W": W, "Z": Z, "v": v, "rows": rows, "columns": columns, "problem": problem}


def _factors(Z: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """left and right of Z = [[L L^T, L R], [R^T L^T, R^T R]]."""
    values, vectors = torch.linalg.eigh(Z)
    root = vectors * values.clamp_min(0).sqrt()[..., None, :]  # the rows of L, then R^T
    return root[..., :m, :], root[..., m:, :].mT
