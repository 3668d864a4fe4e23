"""The one evaluator of noise shapes: it judges closed forms and solvers alike, and shares nothing with either."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.mean.domain import Candidate, Domain

TINY = 1e-300
RANGE = 1e-10  # smaller shares of the largest singular value are not part of an ellipsoid


@dataclass(frozen=True)
class Enclosed:
    """{v + root u: ||u|| <= 1} holds the domain; upper: the l_p norm of root's row norms, inf where that is not proved.

    residual: how far spanning points stick out of v + range(root); found: points (k, d) far out in the ellipsoid;
    overshoot: the largest squared norm of u among them in the ellipsoid that was given.
    """

    root: Tensor
    upper: float
    residual: float
    found: Tensor
    overshoot: float


def enclose(domain: Domain, root: Tensor, centre: Tensor, p: float) -> Enclosed:
    """The ellipsoid {centre + root u} scaled until it provably holds the domain.

    scale^2 = the oracle's upper bound on max (x - v)^T (A^+)^T A^+ (x - v) over K. Its range must hold K too: residual
    is how far the domain's spanning points stick out of it, and upper is inf where that is more than rounding (1e-8 of
    the largest distance from v, 1e-13 of v). The new root is orthogonal: left singular vectors times singular values.

    Guarantees: Gamma_p(K) <= upper.
    """
    U, S, _ = torch.linalg.svd(root, full_matrices=False)
    kept = S > RANGE * S[0].clamp_min(TINY)
    U, S = U[:, kept], S[kept]
    z = domain.spanning() - centre
    size = float(z.norm(dim=-1).max())
    residual = float((z - (z @ U) @ U.mT).norm(dim=-1).max())
    inverse = U / S
    most = domain.maximise(inverse @ inverse.mT, centre)
    A = U * (S * math.sqrt(max(most.upper, 0.0)))
    upper = float(torch.linalg.vector_norm(A.norm(dim=-1), ord=p))
    rounding = 1e-8 * size + 1e-13 * float(centre.norm())
    return Enclosed(A, upper if residual <= rounding else math.inf, residual, most.points, most.value)


def dual_value(domain: Domain, proposal: Candidate, p: float, shift: bool) -> float:
    """Trace norm of diag(c)^{1/2} (x_1 - mu, ..., x_k - mu) diag(P)^{1/2}: a lower bound on Gamma_p(K).

    c = row_weights scaled to norm 1 in l_{p/(p-2)}, P = weights scaled to sum 1. mu = the point about which K is
    symmetric, where there is one, else the mean under P; 0 without shift.
    The proposal's points must lie in the domain.
    Source: Nikolov, Tang (2023), Theorem 26, equations (4) and (5).
    """
    points, weights, row_weights = proposal.points, proposal.weights, proposal.row_weights
    P = weights / weights.sum()
    if not bool(row_weights.any()):
        return 0.0
    c = row_weights / row_weights.max()
    order = 1.0 if p == math.inf else math.inf if p == 2 else p / (p - 2)
    c = c / torch.linalg.vector_norm(c, ord=order)
    mu = torch.zeros_like(points[0])
    if shift:
        mu = P @ points if domain.middle is None else domain.middle
    matrix = c.sqrt() * (points - mu) * P.sqrt()[:, None]
    return float(torch.linalg.svdvals(matrix).sum())
