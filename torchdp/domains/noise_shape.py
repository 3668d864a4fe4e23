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
ROUNDING = 64 * EPS  # of the largest coordinate: what float64 may cost
RELATIVE = 1e-10  # of the norm, likewise
TINY = 1e-300  # keeps a quotient of two zeros at zero
WIDE = 0.26  # a gap above what the semidefinite bound of a zonotope may lose, (pi/2)^{1/2} - 1
LARGEST = 1e100  # coordinates whose squares are far from the ends of float64
THIN = 1e-7  # of the longest axis: shorter ones of a proposal are mostly rounding,
ROOM = 1e3  # and are made so many times what the domain needs, which costs 1e-6


@dataclass(frozen=True)
class Enclosed:
    """{v + root u: ||u|| <= 1} holds the domain.

    Args:
        root: (d, r).
        inverse: root^+, (r, d).
        upper: the l_p norm of root's row norms, inf where that is not proved.
        residual: how far spanning points stick out of v + range(root).
        farthest: points (k, d) far out in the ellipsoid.
        overshoot: the largest squared norm of u among them in the ellipsoid that was given.
    """

    root: Tensor
    inverse: Tensor
    upper: float
    residual: float
    farthest: Tensor
    overshoot: float


def hull(points: Tensor, origin: Tensor) -> Tensor:
    """An orthonormal basis (d, r) of the linear hull of points - origin, float64.

    Directions along which the points (k, d) reach no further than rounding are left out: 1e-12 of
    the farthest from the origin, and what the points' own coordinates are rounded by. The identity
    where that leaves none out; r = 0 where all are the origin.
    """
    z = points - origin
    d = z.shape[1]
    size = float(z.abs().max())
    rounded = 8 * EPS * float(points.abs().max())
    if size <= rounded:
        return z.new_zeros(d, 0)
    z = z / size
    # QR first: the singular vectors of many points are those of a square matrix.
    shorter = torch.linalg.qr(z, mode="r").R if len(z) > d else z
    _, _, Vh = torch.linalg.svd(shorter, full_matrices=False)
    kept = (z @ Vh.mT).abs().amax(0) > FLAT + rounded / size
    if int(kept.sum()) == d:
        return torch.eye(d).to(z)
    return Vh[kept].mT


def enclose(domain: Domain, basis: Tensor, root: Tensor, centre: Tensor, p: float) -> Enclosed:
    """The ellipsoid {centre + root u} within the hull of K, scaled until it provably holds K.

    root's part in the hull is completed where it has axes below 1e-7 of the longest: they become
    1000 times as long as spanning points reach. With A, its axes for columns, scale^2 = the
    oracle's upper bound on max ||A^+ (x - v)||^2 over K. residual is how far spanning points stick
    out of v + the hull; upper is inf where that is more than rounding (1e-8 of the largest distance
    from v, 64 eps of v).

    Args:
        domain: K.
        basis: (d, r), of :func:`hull`.
        root: (d, k).
        centre: v, (d,).
        p: in [2, inf].

    Guarantees: Gamma_p(K) <= upper, up to 1e-10 of it and 64 eps of the largest coordinate.
    """
    z = domain.spanning() - centre
    inside = z @ basis
    inner = basis.mT @ root
    missing = inner.new_zeros(len(inner), max(0, len(inner) - inner.shape[1]))
    U, S, _ = torch.linalg.svd(torch.cat([inner, missing], 1), full_matrices=False)
    needed = ROOM * (inside @ U).abs().amax(0)
    S = torch.where(S > THIN * S.amax(), S, torch.maximum(S, needed)).clamp_min(TINY)
    axes = basis @ U
    # The ellipsoid is scaled by what the oracle proves, not by what it found.
    maximum = domain.maximise(axes.mT / S[:, None], centre)
    lengths = S * math.sqrt(maximum.upper)
    A = axes * lengths
    outside = z - inside @ basis.mT
    residual = float(outside.norm(dim=-1).max())
    longest = float(z.norm(dim=-1).max())
    upper = math.inf
    if residual <= 1e-8 * longest + 64 * EPS * float(centre.norm()):
        upper = float(torch.linalg.vector_norm(A.norm(dim=-1), ord=p))
    return Enclosed(
        root=A,
        inverse=axes.mT / lengths[:, None],
        upper=upper,
        residual=residual,
        farthest=maximum.points,
        overshoot=maximum.value,
    )


def dual_value(domain: Domain, proposal: Proposal, p: float, shift: bool) -> float:
    """A lower bound on Gamma_p(K): a trace norm of the proposal's points, which K must hold.

    It is that of diag(c)^{1/2} (x_1 - mu, ..., x_k - mu) diag(P)^{1/2}, c = row_weights scaled to
    norm 1 in l_{p/(p-2)}, P = weights scaled to sum 1. mu = the point about which K is symmetric,
    where there is one, else the mean under P; 0 without shift.
    Source: Nikolov, Tang (2023), Theorem 26, equations (4) and (5).
    """
    row_weights = proposal.row_weights
    if not bool(row_weights.any()):
        return 0.0
    P = proposal.weights / proposal.weights.sum()
    # Scaled first: near p = 2 the norm is of a high order, whose powers would underflow.
    c = row_weights / row_weights.max()
    c = c / torch.linalg.vector_norm(c, ord=conjugate(p))
    z = proposal.points
    # The mean needs a point near it as origin first: far away it has no digits.
    if shift:
        middle = domain.middle
        z = z - (z[0] if middle is None else middle)
        if middle is None:
            z = z - P @ z
    matrix = c.sqrt() * z * P.sqrt()[:, None]
    return float(torch.linalg.svdvals(matrix).sum())


def on_points(
    points: Tensor, middle: Tensor | None, p: float, tol: float, max_iterations: int = 3000
) -> Proposal:
    """The best ellipsoid around points (k, d), about ``middle`` or, for None, its own centre."""
    origin = points[0] if middle is None else middle
    W = (points - origin).mT
    solution = solve(W, p=p, shift=middle is None, tol=tol, max_iterations=max_iterations)
    centre = origin + W @ solution.primal_weights if middle is None else middle
    weights = solution.column_weights
    kept = weights > NOTHING * weights.max()
    # W = left right: a point is left times a column of right, of this length at most.
    radius = solution.right.norm(dim=-2).max()
    return Proposal(
        root=solution.left * radius,
        centre=centre,
        points=points[kept],
        weights=weights[kept],
        row_weights=solution.row_weights,
    )


def heavy(proposal: Proposal) -> Tensor:
    """The points that carry weight, the heaviest 4 d (d + 1) at most.

    An optimum needs an eighth of them.
    """
    weights = proposal.weights
    d = proposal.points.shape[1]
    order = torch.argsort(weights, descending=True)[: 4 * d * (d + 1)]
    carrying = weights[order] > LIGHT * weights.max()
    return proposal.points[order[carrying]]


def merged(start: Tensor, proposal: Proposal, farthest: Tensor, middle: Tensor | None) -> Tensor:
    """The next points: the first ones, those with weight and the farthest, without doublets.

    Of two mirror images about ``middle`` one is kept.
    """
    points = torch.cat([start, heavy(proposal), farthest])
    z = points - (points[0] if middle is None else middle)
    if middle is not None:
        # the sign of the first coordinate that is not 0
        nonzero = z.abs() > 1e-9 * z.abs().max()
        place = nonzero.to(torch.uint8).argmax(-1, keepdim=True)
        z = torch.where(z.gather(-1, place) < 0, -z, z)
    # points of one cell of a fine grid are one: the solver's Gram matrix would be singular
    cell = CLOSE * z.abs().max().clamp_min(TINY)
    grid = (z / cell).round()
    distinct, place = torch.unique(grid, dim=0, return_inverse=True)
    first = torch.zeros(len(distinct), dtype=torch.int64, device=z.device)
    return points[first.scatter(0, place, torch.arange(len(z), device=z.device))]


@dataclass(frozen=True)
class NoiseShape(Brief):
    """An ellipsoid {v + A u: ||u||_2 <= 1} that holds K: noise N(0, sigma^2 A A^T) has its shape.

    Args:
        root: A, (d, r) float64, of full column rank (r = 0: K is a single point).
        centre: v, (d,) float64.
        support: (k, d), points of K, which with the weights prove ``certificate.lower``.
        weights: (k,), a probability vector.
        row_weights: (d,).
        p: of the norm, in [2, inf].
        certificate: lower <= Gamma_p(K) <= upper = the l_p norm of A's row norms (without shift: of
            the norm whose ellipsoids are centred at 0); residual: how far K - v sticks out of the
            range of A (rounding).
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
    """The ellipsoid around K with the least l_p norm of row norms, and a certificate of that.

    Gamma_p(K) = min { sqrt(tr_{p/2}(A A^T)): K - v inside {A u: ||u||_2 <= 1}, v free (with
    ``shift``) or 0 }.

    Method: first what the domain knows of itself (closed forms, the best ellipsoid that its
    relaxation proves); where that is not within ``tol``, column generation: the fixed point of
    :func:`factorize` on the points found so far, whose ellipsoid the oracle then tries to leave.
    Both bounds are recomputed by :func:`enclose` and :func:`dual_value` from the ellipsoid, and
    from the weights and points found.

    Args:
        domain: K.
        p: in [2, inf].
        shift: whether the centre v is free; else it is 0.
        tol: relative gap. Where the oracle is exact (``domain.factor`` 1) the gap gets below tol;
            else theory promises sqrt(domain.factor) - 1 for the best points, and the certificate
            says what it is.

    Flat sets get flat ellipsoids, of the rank of K's affine hull (without shift, of its linear
    hull). Warns (RuntimeWarning) where the gap is above tol although the oracle is exact, or above
    0.26: images of the trace norm's ball end at 0.12 to 0.71. Raises ValueError, TypeError;
    ArithmeticError where the bounds contradict each other by more than 1e-10 of the norm and 64 eps
    of the largest coordinate.

    Guarantees: certificate.lower <= Gamma_p(K) <= certificate.upper; K lies in the ellipsoid.
    Source: Nikolov, Tang (2023), Definition 2, Theorems 26 and 30.
    """
    p = check_exponent(p)
    tol = checks.positive("tol", tol)
    if not isinstance(shift, bool):
        raise TypeError(f"shift must be True or False, not {shift!r}")
    shape = searched(domain, p, shift, tol)
    exact = domain.factor == 1
    gap = float(shape.certificate.gap)
    if not bool(shape.certificate.closed(tol)) and (exact or gap > WIDE):
        above = f"above tol = {tol:.2e}; raise tol" if exact else "for an oracle that is not exact"
        warnings.warn(
            f"stopped at a certified gap of {gap:.2e}, {above}", RuntimeWarning, stacklevel=2
        )
    return shape


@one_thread
def searched(domain: Domain, p: float, shift: bool, tol: float) -> NoiseShape:
    """:func:`noise_shape` without checks and warning: for parts, of which the whole is judged."""
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
            f"domain's coordinates are up to {largest:.1g}, out of 1e-100 to 1e100; "
            "change their unit"
        )
    return points


class _Search:
    """Column generation: the best ellipsoid and dual measure so far, and the latest proposal."""

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
        self.domain = domain
        self.p = p
        self.shift = shift
        self.tol = tol
        self.start = start
        self.middle = middle
        self.basis = basis
        self.exact = domain.factor == 1
        self.rounding = ROUNDING * float(start.abs().max())
        self.finest = SHARE * tol  # to which a proposal is the best around its points, in the end
        self.tolerance = math.inf  # to which the latest is
        first = domain.proposal(p, shift, self.finest)
        if first is None:
            self.tolerance = max(self.finest, ROUGH)
            first = on_points(start, middle, p, self.tolerance)
        self.proposal = first
        self.latest = self._enclosed(first)
        self.best = self.latest  # the ellipsoid of the least upper bound,
        self.holder = first  # and the proposal that led to it
        self.lower = dual_value(domain, first, p, shift)
        self.dual = first  # the proposal of the largest lower bound
        self.step = math.inf  # a bound that moves by less has not moved
        self.idle = 0  # rounds without a better bound

    def settled(self) -> bool:
        """Whether the bounds are within tol, or nothing more is to be had; else refines."""
        close = self.best.upper <= self.lower * (1 + self.tol) + self.rounding
        if close or self.idle >= PATIENCE:
            return True
        gap = self.best.upper / max(self.lower, TINY) - 1
        self.step = max(self.finest, PROGRESS * gap)
        if max(self._overshoot, self.tolerance) > (self.finest if self.exact else self.step):
            return False
        # The bounds wait for the solver: it gets nearer to the best around its points.
        self.finest /= 4
        return not self.exact  # the oracle finds nothing that would raise the lower bound

    def improve(self) -> None:
        """The best ellipsoid around the points that carry weight and those that stick out."""
        step = self.step
        before = self.proposal
        # An inexact oracle misses maxima near the points that carry weight: a few steps find them.
        climbed = climb(self.domain, heavy(before), self.latest.inverse, before.centre, steps=5)
        farthest = torch.cat([self.latest.farthest, climbed])
        points = merged(self.start, before, farthest, self.middle)
        # As finely as points stick out: a better fit to the old points alone would be lost.
        self.tolerance = max(self.finest, ROUGH * self._overshoot)
        if not self.exact:
            self.tolerance = max(self.tolerance, step / 4)
        proposal = on_points(points, self.middle, self.p, self.tolerance)
        self.proposal = proposal
        self.latest = self._enclosed(proposal)
        upper = self.latest.upper
        lower = dual_value(self.domain, proposal, self.p, self.shift)
        moved = upper < self.best.upper * (1 - step) or lower > self.lower * (1 + step)
        self.idle = 0 if moved else self.idle + 1
        if upper < self.best.upper:
            self.best = self.latest
            self.holder = proposal
        if lower > self.lower:
            self.lower = lower
            self.dual = proposal

    def shape(self) -> NoiseShape:
        """With its certificate."""
        dual = self.dual
        scalar = self.start.new_tensor
        # The two bounds may stem from different rounds: each is proved by itself.
        certificate = Certificate(
            scalar(self.best.upper),
            scalar(self.lower),
            scalar(self.best.residual),
            rounding=self.rounding + RELATIVE * self.lower,
        )
        return NoiseShape(
            root=self.best.root,
            centre=self.holder.centre,
            support=dual.points,
            weights=dual.weights / dual.weights.sum(),
            row_weights=dual.row_weights,
            p=self.p,
            certificate=certificate,
        )

    def _enclosed(self, proposal: Proposal) -> Enclosed:
        return enclose(self.domain, self.basis, proposal.root, proposal.centre, self.p)

    @property
    def _overshoot(self) -> float:
        """How far points stick out of the proposed ellipsoid."""
        return math.sqrt(max(self.latest.overshoot, 1.0)) - 1


def _single(points: Tensor, p: float) -> NoiseShape:
    """No noise around a single point."""
    zero = points.new_zeros(())
    return NoiseShape(
        root=points.new_zeros(points.shape[1], 0),
        centre=points[0],
        support=points[:1],
        weights=points.new_ones(1),
        row_weights=torch.ones_like(points[0]),
        p=p,
        certificate=Certificate(zero, zero, zero, rounding=0.0),
    )
