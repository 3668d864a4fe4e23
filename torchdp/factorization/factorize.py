"""factorize: W = left right + shift 1^T with the smallest factorization norm, and a certificate."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificate import Certificate, certify, check_exponent
from torchdp.factorization.fixed_point import RANK_TOLERANCE, Solution, power_norm, solve
from torchdp.workloads import Workload


@dataclass(frozen=True)
class Factorization:
    """W = left right + shift 1^T up to certificate.residual, with a certificate of how close to optimal it is.

    left: (*batch, m, r), the decoder; right: (*batch, r, n), column x is what a user of type x is mapped to;
    shift: (*batch, m), or None where none was asked for. Balanced: the l_p norm of left's row norms equals the
    largest column norm of right, and both equal sqrt(certificate.upper) up to the residual.
    row_weights (*batch, m), column_weights (*batch, n): the dual weights behind ``certificate.lower``.
    """

    left: Tensor
    right: Tensor
    shift: Tensor | None
    row_weights: Tensor
    column_weights: Tensor
    certificate: Certificate
    iterations: int

    @property
    def sensitivity(self) -> Tensor:
        """Largest column norm of ``right``, of shape (*batch)."""
        return self.right.norm(dim=-2).amax(-1)


@dataclass(frozen=True)
class SignatureFactorization:
    """Symmetric W = right^T diag(signature) right: one vector for each type carries both sides of h^T W h.

    right: (r, n); signature: (r,), entries +-1; certificate: of gamma_2(W), for left = right^T diag(signature).
    """

    right: Tensor
    signature: Tensor
    certificate: Certificate

    @property
    def left(self) -> Tensor:
        """right^T diag(signature), of shape (n, r)."""
        return self.right.mT * self.signature


def factorize(
    W: Tensor | Workload,
    p: float = math.inf,
    shift: bool = False,
    tol: float = 1e-3,
    *,
    max_iterations: int = 10_000,
) -> Factorization:
    """The factorization W = L R (or W - v 1^T = L R, v free, with ``shift``) of least norm, with its certificate.

    Minimises (sum_i ||L_i||^p)^{1/p} * max_j ||R_j||: p = inf is gamma_2 (worst query), p = 2 is gamma_F
    (root of the summed squared error; Edmonds et al. divide it by sqrt(m), here it is not divided).

    W: (*batch, m, n), real, or a :class:`Workload`; Kronecker products are factored factor by factor.
    p: in [2, inf]. tol: relative gap at which it stops. The factors follow W's dtype (integers: float64) and
    device; the solver and the certificate run in float64, without gradients.

    Warns (RuntimeWarning) where the certified gap exceeds ``tol`` after ``max_iterations``; the result is
    still feasible and its certificate true. Raises ValueError or TypeError on bad arguments.

    Guarantees: certificate.lower <= the norm of W <= certificate.upper.
    Source: Edmonds, Nikolov, Ullman (2020), section 2; Nikolov, Tang (2023), Definition 2, Theorems 23 and 26,
    and Lemma 62 (Kronecker products).
    """
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    if not isinstance(shift, bool):
        raise TypeError(f"shift must be True or False, not {shift!r}")
    matrices = _matrices(W)
    if shift:  # the norm with a free shift is not multiplicative
        matrices = [reduce(torch.kron, matrices)] if len(matrices) > 1 else matrices
    share = (1 + tol) ** (1 / len(matrices)) - 1
    solutions = [solve(f.double(), p=p, shift=shift, tol=share, max_iterations=max_iterations) for f in matrices]
    solution = reduce(_kron, solutions)
    dense = reduce(torch.kron, matrices) if len(matrices) > 1 else matrices[0]
    result = finish(dense, solution, p)
    _warn(dense, result.certificate, tol, result.iterations)
    return result


def signature_form(
    W: Tensor | Workload, tol: float = 1e-3, *, max_iterations: int = 10_000
) -> SignatureFactorization:
    """The gamma_2 factorization of a symmetric W as R^T J R, J = diag(+-1), with its certificate.

    With equal weights w on rows and columns, diag(w)^{1/2} W diag(w)^{1/2} = V Lambda V^T and
    R = |Lambda|^{-1/2} sign(Lambda) V^T diag(w)^{1/2} W, which has rank(W) rows and largest squared column norm
    gamma_2(W) at the optimal w.

    W: (n, n) symmetric, or a :class:`Workload` whose product is symmetric and whose factors are each symmetric
    or antisymmetric. Warns and raises like :func:`factorize`.

    Guarantees: certificate.lower <= gamma_2(W) <= certificate.upper.
    Source: Linial, Mendelson, Schechtman, Shraibman (2007) for gamma_2; equal weights are optimal because the
    dual function is concave in them and unchanged when rows and columns trade places.
    """
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    matrices = _matrices(W)
    dtype = reduce(torch.promote_types, [f.dtype for f in matrices])
    matrices = [f.double() for f in matrices]
    for f in matrices:
        if f.ndim != 2 or f.shape[0] != f.shape[1] or not (_same(f, f.mT) or _same(f, -f.mT)):
            raise ValueError(
                f"W of shape {tuple(f.shape)} must be one square matrix, symmetric or antisymmetric; "
                "a quadratic form is unchanged by W -> (W + W^T) / 2"
            )
    dense = reduce(torch.kron, matrices)
    if not _same(dense, dense.mT):
        raise ValueError("W must be symmetric; a quadratic form is unchanged by W -> (W + W^T) / 2")
    share = (1 + tol) ** (1 / len(matrices)) - 1
    parts = [solve(f, tol=share, max_iterations=max_iterations) for f in matrices]
    scale = reduce(torch.kron, [part.primal_weights for part in parts]).sqrt()
    size = dense.abs().max()
    size = torch.where(size > 0, size, 1.0)
    eigenvalues, vectors = torch.linalg.eigh(scale[:, None] * (dense / size) * scale)
    kept = eigenvalues.abs() > RANK_TOLERANCE * eigenvalues.abs().max()
    kept[0] |= ~kept.any()  # W = 0 keeps one zero row
    eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
    signature = torch.where(eigenvalues < 0, -1.0, 1.0).double()
    root = eigenvalues.abs().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    right = size.sqrt() * (signature * root)[:, None] * ((vectors.mT * scale) @ (dense / size))

    right, signature = right.to(dtype), signature.to(dtype)
    weights = reduce(torch.kron, [part.column_weights for part in parts])
    certificate = certify(dense, right.mT * signature, right, weights, weights)
    _warn(dense, certificate, tol, max(part.iterations for part in parts))
    return SignatureFactorization(right, signature, certificate)


def finish(W: Tensor, solution: Solution, p: float) -> Factorization:
    """A solver's result balanced, cast to W's dtype and judged by :func:`certify`."""
    rows = power_norm(solution.left.norm(dim=-1), p)
    columns = solution.right.norm(dim=-2).amax(-1)
    scale = torch.where((rows > 0) & (columns > 0), (columns / rows).sqrt(), 1.0)[..., None, None]
    left, right = (scale * solution.left).to(W.dtype), (solution.right / scale).to(W.dtype)
    shift = None if solution.shift is None else solution.shift.to(W.dtype)
    weights = solution.row_weights, solution.column_weights
    certificate = certify(W, left, right, *weights, p=p, shift=shift)
    return Factorization(left, right, shift, *weights, certificate, solution.iterations)


def _matrices(W: Tensor | Workload) -> list[Tensor]:
    """W's Kronecker factors, without their autograd history."""
    return [checks.matrix("W", f).detach() for f in (W.factors if isinstance(W, Workload) else (W,))]


def _kron(a: Solution, b: Solution) -> Solution:
    return replace(
        a,
        left=torch.kron(a.left, b.left),
        right=torch.kron(a.right, b.right),
        row_weights=torch.kron(a.row_weights, b.row_weights),
        column_weights=torch.kron(a.column_weights, b.column_weights),
        primal_weights=torch.kron(a.primal_weights, b.primal_weights),
        iterations=max(a.iterations, b.iterations),
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12 * float(a.abs().max()))


def _warn(W: Tensor, certificate: Certificate, tol: float, iterations: int) -> None:
    gap = float(certificate.gap.max())
    # A norm that is 0 but for rounding (a single point and a free shift) has no relative gap.
    rounding = 16 * torch.finfo(W.dtype).eps * W.double().abs().amax((-2, -1))
    if not bool((certificate.upper <= certificate.lower * (1 + tol) + rounding).all()):
        warnings.warn(
            f"stopped after {iterations} iterations at a certified gap of {gap:.2e}, above tol = {tol:.2e}; "
            "raise max_iterations or tol (float32 inputs stop near 1e-6)",
            RuntimeWarning,
            stacklevel=3,
        )
