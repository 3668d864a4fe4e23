"""The one evaluator of noise shapes: it judges closed forms and solvers alike, and shares nothing with either."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp.domains.domain import EPS, FLAT, Domain, Proposal
from torchdp.factorization.certificates.certificate import conjugate

TINY = 1e-300
THIN = 1e-7  # of the longest axis: shorter ones of a proposal are mostly rounding,
ROOM = 1e3  # and are made so many times what the domain needs, which costs 1e-6


@dataclass(frozen=True)
class Enclosed:
    """{v + root u: ||u|| <= 1} holds the domain; upper: the l_p norm of root's row norms, inf where that is not proved.

    inverse: root^+, (r, d). residual: how far spanning points stick out of v + range(root); found: points (k, d) far
    out in the ellipsoid; overshoot: the largest squared norm of u among them in the ellipsoid that was given.
    """

    root: Tensor
    inverse: Tensor
    upper: float
    residual: float
    found: Tensor
    overshoot: float


def hull(points: Tensor, origin: Tensor) -> Tensor:
    """An orthonormal basis (d, r) of the linear hull of points - origin, float64; r = 0 where all are the origin.

    Directions along which the points (k, d) reach no further than rounding are left out: 1e-12 of the farthest from the
    origin, and what the points' own coordinates are rounded by. The identity where that leaves none out.
    """
    z = points - origin
    size = float(z.abs().max())
    rounded = 8 * EPS * float(points.abs().max())
    if size <= rounded:
        return z.new_zeros(z.shape[1], 0)
    z = z / size
    _, _, Vh = torch.linalg.svd(torch.linalg.qr(z, mode="r").R if len(z) > z.shape[1] else z, full_matrices=False)
    kept = (z @ Vh.mT).abs().amax(0) > FLAT + rounded / size
    return torch.eye(z.shape[1]).to(z) if int(kept.sum()) == z.shape[1] else Vh[kept].mT


def enclose(domain: Domain, basis: Tensor, root: Tensor, centre: Tensor, p: float) -> Enclosed:
    """The ellipsoid {centre + root u} within the hull of K, scaled until it provably holds K.

    basis: (d, r), of :func:`hull`. root's part in it is completed where it has axes below 1e-7 of the longest: they
    become 1000 times as long as spanning points reach. With A, its axes for columns, scale^2 = the oracle's upper bound
    on max ||A^+ (x - v)||^2 over K. residual is how far spanning points stick out of v + the hull; upper is inf where
    that is more than rounding (1e-8 of the largest distance from v, 64 eps of v).

    Guarantees: Gamma_p(K) <= upper, up to 1e-10 of it and 64 eps of the largest coordinate.
    """
    z = domain.spanning() - centre
    inside = z @ basis
    inner = basis.mT @ root
    missing = inner.new_zeros(len(inner), max(0, len(inner) - inner.shape[1]))
    U, S, _ = torch.linalg.svd(torch.cat([inner, missing], 1), full_matrices=False)
    reach = (inside @ U).abs().amax(0)
    S = torch.where(S > THIN * S.amax(), S, torch.maximum(S, ROOM * reach)).clamp_min(TINY)
    axes = basis @ U
    most = domain.maximise(axes.mT / S[:, None], centre)
    lengths = S * math.sqrt(most.upper)
    A = axes * lengths
    upper = float(torch.linalg.vector_norm(A.norm(dim=-1), ord=p))
    residual = float((z - inside @ basis.mT).norm(dim=-1).max())
    rounding = 1e-8 * float(z.norm(dim=-1).max()) + 64 * EPS * float(centre.norm())
    return Enclosed(
        A,
        axes.mT / lengths[:, None],
        upper if residual <= rounding else math.inf,
        residual,
        most.points,
        most.value,
    )


def dual_value(domain: Domain, proposal: Proposal, p: float, shift: bool) -> float:
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
    c = c / torch.linalg.vector_norm(c, ord=conjugate(p))
    z = points
    if shift:
        z = points - (points[0] if domain.middle is None else domain.middle)
        z = z - P @ z if domain.middle is None else z
    matrix = c.sqrt() * z * P.sqrt()[:, None]
    return float(torch.linalg.svdvals(matrix).sum())
