"""The optimal shape of Gaussian noise for a domain, by column generation, with its certificate.

One evaluator, :func:`enclose` and :func:`dual_value`, judges closed forms and solvers alike.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.domains.domain import EPS, FLAT, Domain, Proposal, climb
from torchdp.factorization import Certificate
from torchdp.factorization.certificates.certificate import check_exponent, conjugate
from torchdp.factorization.solvers.fixed_point import solve
from torchdp.threads import one_thread

NOTHING = 1e-8  # of the largest weight: the solver keeps weights above 0
LIGHT = 1e-4  # of the largest weight: points below are dropped, and found again where they matter
CLOSE = 1e-5  # of the set's reach: points that differ by less are one
ROUNDS = 300  # calls of the oracle
PROGRESS = 0.02  # of the gap
PATIENCE = 6  # rounds without a better bound
SHARE = 0.25  # of tol: what the solver may lose on the points it has
ROUGH = 0.2  # of how far points stuck out: what it may lose before the last rounds
# of the largest coordinate, of the norm: what float64 may cost
ROUNDING, RELATIVE, TINY = 64 * EPS, 1e-10, 1e-300
WIDE = 0.26  # a gap above what the semidefinite bound of a zonotope may lose, (pi/2)^{1/2} - 1
LARGEST = 1e100  # coordinates whose squares are far from the ends of float64
THIN = 1e-7  # of the longest axis: shorter ones of a proposal are mostly rounding,
ROOM = 1e3  # and are made so many times what the domain needs, which costs 1e-6


@dataclass(frozen=True)
class Enclosed:
    """{v + root u: ||u|| <= 1} holds the domain; upper: the l_p norm of root's row norms, inf where
    that is not proved.

    inverse: root^+, (r, d). residual: how far spanning points stick out of v + range(root); found:
    points (k, d) far out in the ellipsoid; overshoot: the largest squared norm of u among them in
    the ellipsoid that was given.
    """

    root: Tensor
    inverse: Tensor
    upper: float
    residual: float
    found: Tensor
    overshoot: float


def hull(points: Tensor, origin: Tensor) -> Tensor:
    """An orthonormal basis (d, r) of the linear hull of points - origin, float64; r = 0 where all
    are the origin.

    Directions along which the points (k, d) reach no further than rounding are left out: 1e-12 of
    the farthest from the origin, and what the points' own coordinates are rounded by. The identity
    where that leaves none out.
    """
    z = points - origin
    size = float(z.abs().max())
    rounded = 8 * EPS * float(points.abs().max())
    if size <= rounded:
        return z.new_zeros(z.shape[1], 0)
    z = z / size
    _, _, Vh = torch.linalg.svd(
        torch.linalg.qr(z, mode="r").R if len(z) > z.shape[1] else z, full_matrices=False
    )
    kept = (z @ Vh.mT).abs().amax(0) > FLAT + rounded / size
    return torch.eye(z.shape[1]).to(z) if int(kept.sum()) == z.shape[1] else Vh[kept].mT


def enclose(domain: Domain, basis: Tensor, root: Tensor, centre: Tensor, p: float) -> Enclosed:
    """The ellipsoid {centre + root u} within the hull of K, scaled until it provably holds K.

    basis: (d, r), of :func:`hull`. root's part in it is completed where it has axes below 1e-7 of
    the longest: they become 1000 times as long as spanning points reach. With A, its axes for
    columns, scale^2 = the oracle's upper bound on max ||A^+ (x - v)||^2 over K. residual is how far
    spanning points stick out of v + the hull; upper is inf where that is more than rounding
    (1e-8 of the largest distance from v, 64 eps of v).

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
    """Trace norm of diag(c)^{1/2} (x_1 - mu, ..., x_k - mu) diag(P)^{1/2}: a lower bound on
    Gamma_p(K).

    c = row_weights scaled to norm 1 in l_{p/(p-2)}, P = weights scaled to sum 1. mu = the point
    about which K is symmetric, where there is one, else the mean under P; 0 without shift.
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


def on_points(
    points: Tensor, middle: Tensor | None, p: float, tol: float, max_iterations: int = 3000
) -> Proposal:
    """The best ellipsoid around the points (k, d): about ``middle``, or with a centre of its own
    where that is None.
    """
    origin = points[0] if middle is None else middle
    W = (points - origin).mT
    solution = solve(W, p=p, shift=middle is None, tol=tol, max_iterations=max_iterations)
    root = solution.left * solution.right.norm(dim=-2).max()
    centre = origin + W @ solution.primal_weights if middle is None else middle
    weights = solution.column_weights
    kept = weights > NOTHING * weights.max()
    return Proposal(root, centre, points[kept], weights[kept], solution.row_weights)


def heavy(proposal: Proposal) -> Tensor:
    """The points that carry weight, the heaviest 4 d (d + 1) at most: an optimum needs an eighth of
    them.
    """
    weights, d = proposal.weights, proposal.points.shape[1]
    order = torch.argsort(weights, descending=True)[: 4 * d * (d + 1)]
    return proposal.points[order[weights[order] > LIGHT * weights.max()]]


def merged(start: Tensor, proposal: Proposal, found: Tensor, middle: Tensor | None) -> Tensor:
    """The next points: those to start from, those with weight and those found, one of two mirror
    images.
    """
    points = torch.cat([start, heavy(proposal), found])
    z = points - (points[0] if middle is None else middle)
    if middle is not None:
        lead = z.gather(
            -1, (z.abs() > 1e-9 * z.abs().max()).to(torch.uint8).argmax(-1, keepdim=True)
        )
        z = torch.where(lead < 0, -z, z)
    grid = (z / (CLOSE * z.abs().max().clamp_min(TINY))).round()
    distinct, place = torch.unique(grid, dim=0, return_inverse=True)
    first = torch.zeros(len(distinct), dtype=torch.int64, device=z.device)
    return points[first.scatter(0, place, torch.arange(len(z), device=z.device))]


@dataclass(frozen=True)
class NoiseShape(Brief):
    """An ellipsoid {v + A u: ||u||_2 <= 1} that holds the domain K; noise N(0, sigma^2 A A^T) has
    its shape.

    root: A, (d, r) float64, of full column rank (r = 0: K is a single point); centre: v, (d,)
    float64. support (k, d), points of K, weights (k,), a probability vector, and row_weights (d,):
    the dual measure behind ``certificate.lower``. certificate: lower <= Gamma_p(K) <= upper = the
    l_p norm of A's row norms (without shift: of the norm whose ellipsoids are centred at 0);
    residual: how far K - v sticks out of the range of A (rounding).
    """

    root: Tensor
    centre: Tensor
    support: Tensor
    weights: Tensor
    row_weights: Tensor
    p: float
    certificate: Certificate

    def __post_init__(self) -> None:
        checks.own(self)

    @property
    def upper(self) -> float:
        """sqrt(tr_{p/2}(A A^T)), the l_p norm of the noise's standard deviations at sigma = 1."""
        return float(self.certificate.upper)

    @property
    def dimension(self) -> int:
        """d."""
        return self.root.shape[0]


def noise_shape(domain: Domain, p: float, *, shift: bool = True, tol: float = 1e-4) -> NoiseShape:
    """The ellipsoid around the domain K with the least l_p norm of row norms, and a certificate of
    how good it is.

    Gamma_p(K) = min { sqrt(tr_{p/2}(A A^T)): K - v inside {A u: ||u||_2 <= 1}, v free (with
    ``shift``) or 0 }.

    First what the domain knows of itself (closed forms, the best ellipsoid that its relaxation
    proves); where that is not within ``tol``, column generation: the fixed point of
    :func:`factorize` on the points found so far, whose ellipsoid the oracle then tries to leave.
    Both bounds are recomputed by :func:`enclose` and :func:`dual_value` from the ellipsoid, and
    from the weights and points found.

    p: in [2, inf]. tol: relative gap. Where the oracle is exact (``domain.factor`` 1) the gap gets
    below tol; else theory promises sqrt(domain.factor) - 1 for the best points, and the certificate
    says what it is. Flat sets get flat ellipsoids, of the rank of K's affine hull
    (without shift, of its linear hull). Warns (RuntimeWarning) where the gap is above tol although
    the oracle is exact, or above 0.26: images of the trace norm's ball end at 0.12 to 0.71. Raises
    ValueError, TypeError; ArithmeticError where the bounds contradict each other by more than 1e-10
    of the norm and 64 eps of the largest coordinate.

    Guarantees: certificate.lower <= Gamma_p(K) <= certificate.upper; K lies in the ellipsoid.
    Source: Nikolov, Tang (2023), Definition 2, Theorems 26 and 30.
    """
    p, tol = check_exponent(p), checks.positive("tol", tol)
    if not isinstance(shift, bool):
        raise TypeError(f"shift must be True or False, not {shift!r}")
    shape = searched(domain, p, shift, tol)
    exact, gap = domain.factor == 1, float(shape.certificate.gap)
    if not bool(shape.certificate.closed(tol)) and (exact or gap > WIDE):
        above = f"above tol = {tol:.2e}; raise tol" if exact else "for an oracle that is not exact"
        warnings.warn(
            f"stopped at a certified gap of {gap:.2e}, {above}", RuntimeWarning, stacklevel=2
        )
    return shape


@one_thread
def searched(domain: Domain, p: float, shift: bool, tol: float) -> NoiseShape:
    """:func:`noise_shape`, unchecked and without a warning: for parts, of which the whole is
    judged.
    """
    start = _spanning(domain)
    middle = domain.middle if shift else torch.zeros_like(start[0])
    basis = hull(start, start.mean(0) if middle is None else middle)
    if basis.shape[1] == 0:
        return _single(start, p)
    search = _Search(domain, p, shift, tol, start, middle, basis)
    for _ in range(ROUNDS):
        if search.settled():
            break
        search.improve()
    return search.shape()


def _spanning(domain: Domain) -> Tensor:
    """The domain's spanning points. Raises TypeError, ValueError."""
    if not isinstance(domain, Domain):
        raise TypeError(f"domain must be a torchdp.domains.Domain, not {type(domain).__name__}")
    points = domain.spanning()
    largest = float(points.abs().max())
    if largest > 0 and not 1 / LARGEST <= largest <= LARGEST:
        raise ValueError(
            f"domain's coordinates are up to {largest:.1g}, out of 1e-100 to 1e100; change their unit"
        )
    return points


class _Search:
    """Column generation: the best ellipsoid and the best dual measure so far, and the latest
    proposal.
    """

    def __init__(
        self,
        domain: Domain,
        p: float,
        shift: bool,
        tol: float,
        start: Tensor,
        middle: Tensor | None,
        basis: Tensor,
    ) -> None:
        self.domain, self.p, self.shift, self.tol = domain, p, shift, tol
        self.start, self.middle, self.basis = start, middle, basis
        self.rounding = ROUNDING * float(start.abs().max())
        # to which a proposal is the best around its points
        self.finest, self.tolerance = SHARE * tol, math.inf
        first = domain.proposal(p, shift, self.finest)
        if first is None:
            self.tolerance = max(self.finest, ROUGH)
            first = on_points(start, middle, p, self.tolerance)
        self.proposal = self.holder = self.dual = first
        self.latest = self.best = self._enclosed(first)
        self.lower = dual_value(domain, first, p, shift)
        self.step = math.inf  # a bound that moves by less has not moved
        self.idle = 0  # rounds without a better bound

    def settled(self) -> bool:
        """Whether the bounds are within tol, or nothing more is to be had; else refines where it
        must.
        """
        close = self.best.upper <= self.lower * (1 + self.tol) + self.rounding
        if close or self.idle >= PATIENCE:
            return True
        gap = self.best.upper / max(self.lower, TINY) - 1
        self.step = max(self.finest, PROGRESS * gap)
        if max(self._beyond, self.tolerance) > (
            self.finest if self.domain.factor == 1 else self.step
        ):
            return False
        self.finest /= 4
        return self.domain.factor > 1  # the oracle finds nothing that would raise the lower bound

    def improve(self) -> None:
        """The best ellipsoid around the points that carry weight and those that stick out."""
        step, beyond, before = self.step, self._beyond, self.proposal
        climbed = climb(self.domain, heavy(before), self.latest.inverse, before.centre, steps=5)
        points = merged(self.start, before, torch.cat([self.latest.found, climbed]), self.middle)
        self.tolerance = max(
            self.finest, ROUGH * beyond, step / 4 if self.domain.factor > 1 else 0.0
        )
        self.proposal = on_points(points, self.middle, self.p, self.tolerance)
        self.latest = self._enclosed(self.proposal)
        value, bound = self.latest.upper, dual_value(self.domain, self.proposal, self.p, self.shift)
        moved = value < self.best.upper * (1 - step) or bound > self.lower * (1 + step)
        self.idle = 0 if moved else self.idle + 1
        if value < self.best.upper:
            self.best, self.holder = self.latest, self.proposal
        if bound > self.lower:
            self.lower, self.dual = bound, self.proposal

    def shape(self) -> NoiseShape:
        """With its certificate."""
        bounds = (
            self.start.new_tensor(value)
            for value in (self.best.upper, self.lower, self.best.residual)
        )
        certificate = Certificate(*bounds, rounding=self.rounding + RELATIVE * self.lower)
        root, centre, dual = self.best.root, self.holder.centre, self.dual
        weights = dual.weights / dual.weights.sum()
        return NoiseShape(root, centre, dual.points, weights, dual.row_weights, self.p, certificate)

    def _enclosed(self, proposal: Proposal) -> Enclosed:
        return enclose(self.domain, self.basis, proposal.root, proposal.centre, self.p)

    @property
    def _beyond(self) -> float:
        """How far points stick out of the proposed ellipsoid."""
        return math.sqrt(max(self.latest.overshoot, 1.0)) - 1


def _single(points: Tensor, p: float) -> NoiseShape:
    """No noise around a single point."""
    zero = points.new_zeros(())
    certificate = Certificate(zero, zero, zero, rounding=0.0)
    flat, rows = points.new_zeros(points.shape[1], 0), torch.ones_like(points[0])
    return NoiseShape(flat, points[0], points[:1], points.new_ones(1), rows, p, certificate)
