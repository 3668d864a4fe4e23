"""Boxes, weighted l_q balls, ellipsoids, zonotopes, sums of them, and balls of matrices."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.ball_image import BallImage
from torchdp.domains.domain import Domain, Maximum, Proposal, climb, rounding, slack
from torchdp.domains.nearest import nearest_in_ball, nearest_in_ellipsoid, span
from torchdp.domains.relaxation import Groups, hadamard_signs, longest
from torchdp.factorization.certificates.certificate import power_norm


@dataclass(frozen=True, eq=False)
class Box(BallImage):
    """[low_1, high_1] x ... x [low_d, high_d]. Raises ValueError, TypeError.

    Args:
        low: (d,).
        high: (d,), low <= high.

    Source: Nikolov, Tang (2023), equation (26): Gamma_p = ||high - low||_{2p/(p+2)} / 2.
    """

    low: Tensor
    high: Tensor
    q = math.inf

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, low=_vector, high=_vector)
        if self.low.shape != self.high.shape or bool((self.low > self.high).any()):
            raise ValueError(
                "low and high must have the same shape (d,), low at most high in every coordinate"
            )

    @property
    def generators(self) -> Tensor:
        return torch.diag((self.high - self.low) / 2)

    @property
    def middle(self) -> Tensor:
        return (self.low + self.high) / 2

    def contains(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        largest = torch.maximum(self.low.abs(), self.high.abs())
        # each side has a width of its own; rounding is that of the coordinates, wherever the box is
        room = slack(x) * (self.high - self.low) + rounding(x, largest)
        return ((x >= self.low - room) & (x <= self.high + room)).all(-1)

    def project(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        return x.clamp(self.low.to(x), self.high.to(x))


@dataclass(frozen=True, eq=False)
class LpBall(BallImage):
    """{x: ||(x - centre) / axes||_q <= 1}, q in [1, inf].

    Args:
        axes: (d,), positive.
        q: in [1, inf].
        centre: (d,).

    ``lp_ball(d, q, radius)`` makes the round one. Raises ValueError, TypeError. Gamma_p =
    ||axes||_t, 1/t = 1/p + max(0, 1/2 - 1/q): by symmetry under sign changes the best ellipsoid has
    its axes along the coordinates, and Hoelder's inequality does the rest.
    Source: derived; q = inf is Nikolov, Tang (2023), equation (26), q = 2 their Lemma 19.
    """

    axes: Tensor
    q: float
    centre: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, axes=_vector, centre=_vector, q=check_order)
        if self.axes.shape != self.centre.shape or not bool((self.axes > 0).all()):
            raise ValueError("axes must be positive and of the shape (d,) of centre")

    @property
    def generators(self) -> Tensor:
        return torch.diag(self.axes)

    def contains(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        distance = (x.double() - self.centre).abs()
        # what rounding may have moved a coordinate by counts nothing
        off = (distance - rounding(x, self.centre.abs())).clamp_min(0)
        return power_norm(off / self.axes, self.q) <= 1 + slack(x)

    def project(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        z = nearest_in_ball(x.double() - self.centre, self.axes, self.q)
        return (self.centre + z).to(x)


@dataclass(frozen=True, eq=False)
class Ellipsoid(BallImage):
    """{centre + root u: ||u||_2 <= 1}. root: (d, r); centre: (d,). Raises ValueError, TypeError.

    Source: Nikolov, Tang (2023), Lemma 19: Gamma_p = the l_p norm of root's row norms.
    """

    root: Tensor
    centre: Tensor
    q = 2.0

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, centre=_vector, root=checks.one_matrix)
        _beside(self.root, self.centre)

    @property
    def generators(self) -> Tensor:
        return self.root

    def contains(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        z = x.double() - self.centre
        rounded = rounding(x, self.centre.abs())
        U, S = span(self.root)
        # in the ellipsoid's axes, and off the subspace that they span
        along = z @ U
        off = (z - along @ U.mT).norm(dim=-1)
        flat = off <= slack(x) * self.root.norm() + rounded.norm()
        reach = 1 + slack(x) + (rounded @ U.abs() / S).norm()
        return ((along / S).norm(dim=-1) <= reach) & flat

    def project(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        z = nearest_in_ellipsoid(x.double() - self.centre, self.root)
        return (self.centre + z).to(x)


@dataclass(frozen=True, eq=False)
class Zonotope(BallImage):
    """{centre + sum_j z_j g_j: -1 <= z_j <= 1}, the image of the sign cube.

    Args:
        columns: (d, N), the g_j.
        centre: (d,).
    Gamma_2 is between sqrt(2/pi) and 1 times sum_j ||g_j||, and the ellipsoid given is the best
    that a semidefinite bound can prove; for at most 23 generators all corners are tried instead and
    Gamma_p is certified. Raises ValueError, TypeError.
    Source: Nesterov (1998); Nikolov, Tang (2023), Theorem 32.
    """

    columns: Tensor
    centre: Tensor
    q = math.inf

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, centre=_vector, columns=checks.one_matrix)
        _beside(self.columns, self.centre)

    @property
    def generators(self) -> Tensor:
        return self.columns


@dataclass(frozen=True, eq=False)
class BallSum(BallImage):
    """{centre + sum_b F_b z_b: ||z_b||_{q_b} <= 1}: a Minkowski sum of images of balls.

    Args:
        columns: F = (F_1, F_2, ...), (d, N).
        blocks: ((N_1, q_1), (N_2, q_2), ...), q_b in [1, inf].
        centre: (d,).

    ``linear_image``, ``minkowski_sum`` and ``Product`` make them. Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Theorem 32 (3).
    """

    columns: Tensor
    blocks: Groups
    centre: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, centre=_vector, columns=checks.one_matrix, blocks=_blocks)
        _beside(self.columns, self.centre)
        if sum(size for size, _ in self.blocks) != self.columns.shape[1]:
            raise ValueError(
                f"the sizes in blocks must add up to the {self.columns.shape[1]} columns"
            )

    @property
    def generators(self) -> Tensor:
        return self.columns

    @property
    def groups(self) -> Groups:
        return self.blocks


def lp_ball(d: int, q: float, radius: float = 1.0) -> LpBall:
    """{x in R^d: ||x||_q <= radius}, q in [1, inf].

    Gamma_p = radius d^{1/p + max(0, 1/2 - 1/q)}.
    """
    d = checks.integer("d", d, 1, 2**30)
    radius = checks.positive("radius", radius)
    axes = torch.full((d,), radius, dtype=torch.float64)
    return LpBall(axes, q, torch.zeros_like(axes))


def check_order(name: str, value: float) -> float:
    """``value`` as a float in [1, inf]. Raises ValueError."""
    return checks.within(name, value, 1, math.inf)


def _vector(name: str, value: Tensor) -> Tensor:
    value = checks.floating(name, checks.as_tensor(name, value)).detach().double()
    if value.ndim != 1 or value.numel() == 0:
        raise ValueError(
            f"{name} must be a non-empty (d,) tensor, not of shape {tuple(value.shape)}"
        )
    return value


def _blocks(name: str, value: Groups) -> Groups:
    return tuple((checks.integer(name, size, 1), check_order(name, q)) for size, q in value)


def _beside(columns: Tensor, centre: Tensor) -> None:
    if len(columns) != len(centre):
        raise ValueError(
            f"a matrix must be (d, N) beside centre of shape (d,), not {tuple(columns.shape)}"
        )


@dataclass(frozen=True, eq=False)
class SchattenBall(Domain):
    """Matrices X, read row by row, whose singular values have l_q norm <= radius.

    Args:
        rows: of X.
        columns: of X.
        q: in [1, inf]; inf is the operator norm's ball, 2 Frobenius', 1 the trace norm's.
        radius: positive.

    With k = min(rows, columns)
        Gamma_p = radius (rows columns)^{1/p} k^{max(0, 1/2 - 1/q)}:
    X -> S X T keeps the ball and the norm of the noise for signed permutations S and T, whose
    Kronecker products act irreducibly, so that the best covariance is a multiple of the identity.
    Oracle: ||X||_F^2 <= radius^2 k^{max(0, 1 - 2/q)} and the largest singular value of B; exact at
    the optimum, within k^{|1 - 2/q|} in general. Raises ValueError.
    Source: derived by symmetry; Nikolov, Tang (2023), Theorem 32 (5), (6) has a constant factor.
    """

    rows: int
    columns: int
    q: float = math.inf
    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.integer("rows", self.rows, 1)
        checks.integer("columns", self.columns, 1)
        checks.positive("radius", self.radius)
        checks.keep(self, q=check_order)

    @property
    def dimension(self) -> int:
        return self.rows * self.columns

    @property
    def rank(self) -> int:
        """The most singular values that a point has."""
        return min(self.rows, self.columns)

    @property
    def factor(self) -> float:
        return self.rank ** abs(1 - 2 / self.q)

    @property
    def middle(self) -> Tensor:
        return torch.zeros(self.dimension, dtype=torch.float64)

    @property
    def longest(self) -> float:
        """The largest Frobenius norm in the ball."""
        return self.radius * self.rank ** max(0.0, 1 / 2 - 1 / self.q)

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        """Points: B's right singular vectors and the patterns, climbed on the quadratic form."""
        _, S, Vh = torch.linalg.svd(B, full_matrices=False)
        leading = self.radius * Vh[:16]
        patterns = self._patterns().to(B)
        start = torch.cat([leading, -leading, patterns[:16]])
        X = climb(self, start, B, centre)
        # ||B (x - c)|| <= the largest singular value times the largest Frobenius norm, and ||B c||
        of_points = float(S[0]) * self.longest
        of_centre = float((B @ centre).norm())
        upper = (of_points + of_centre) ** 2
        return Maximum.among(torch.cat([X, patterns]), B, centre, upper)

    def spanning(self) -> Tensor:
        points = self._patterns()
        return torch.cat([points, -points])

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        points = self._patterns()
        # By symmetry the best ellipsoid is a ball; the patterns, whose mean square is a multiple of
        # the identity, prove it.
        root = self.longest * torch.eye(self.dimension, dtype=torch.float64)
        uniform = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
        return Proposal(root, self.middle, points, uniform, torch.ones_like(self.middle))

    def contains(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        S = torch.linalg.svdvals(self._matrices(x.double()))
        return power_norm(S, self.q) <= self.radius * (1 + slack(x))

    def project(self, x: Tensor) -> Tensor:
        """Singular values moved to the nearest point of the l_q ball."""
        x = self._vectors(x)
        # Ball and distance are invariant under rotations from both sides: singular vectors stay.
        U, S, Vh = torch.linalg.svd(self._matrices(x.double()), full_matrices=False)
        nearest = nearest_in_ball(S, S.new_tensor([self.radius]), self.q)
        X = (U * nearest[..., None, :]) @ Vh
        return X.flatten(-2).to(x)

    def extreme(self, directions: Tensor) -> Tensor:
        # Von Neumann's trace inequality: the best X has the singular vectors of the direction.
        U, S, Vh = torch.linalg.svd(self._matrices(directions), full_matrices=False)
        farthest = longest(S, ((self.rank, self.q),))
        X = (U * farthest[..., None, :]) @ Vh
        return self.radius * X.flatten(-2)

    def _matrices(self, x: Tensor) -> Tensor:
        """Vectors (..., rows columns) as matrices."""
        return x.unflatten(-1, (self.rows, self.columns))

    def _patterns(self) -> Tensor:
        """Points of the ball whose mean square is a multiple of the identity.

        q > 2: signed cyclic patterns, every entry in one of them, signs orthogonal; else single
        entries.
        """
        if self.q <= 2:
            return self.radius * torch.eye(self.dimension, dtype=torch.float64)
        k = self.rank
        n = max(self.rows, self.columns)
        signs = hadamard_signs(k)  # (h, k)
        short = torch.arange(k)
        # a point of rank k: one entry in each row, in each column at most one, cyclically shifted
        points = torch.zeros(n, len(signs), k, n, dtype=torch.float64)
        for start in range(n):
            points[start, :, short, (short + start) % n] = signs.to(points)
        points = points * (self.radius * k ** (-1 / self.q))
        wide = points if self.rows <= self.columns else points.mT
        return wide.reshape(-1, self.dimension)
