"""Matrices with bounded singular values: the operator norm's ball and its relatives."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.balls import check_order
from torchdp.domains.domain import Domain, Maximum, Proposal, climb, slack
from torchdp.domains.groups import longest
from torchdp.domains.nearest import nearest_in_ball
from torchdp.domains.relaxation import hadamard_signs
from torchdp.factorization.certificates.certificate import power_norm


@dataclass(frozen=True, eq=False)
class SchattenBall(Domain):
    """Matrices X (rows x columns), read row by row, whose singular values have l_q norm <= radius; q in [1, inf].

    q = inf is the operator norm's ball, q = 2 Frobenius', q = 1 the trace norm's. With k = min(rows, columns)
        Gamma_p = radius (rows columns)^{1/p} k^{max(0, 1/2 - 1/q)}:
    X -> S X T keeps the ball and the norm of the noise for signed permutations S and T, whose Kronecker products act
    irreducibly, so that the best covariance is a multiple of the identity.
    Oracle: ||X||_F^2 <= radius^2 k^{max(0, 1 - 2/q)} and the largest singular value of B; exact at the optimum, within
    k^{|1 - 2/q|} in general. Raises ValueError.
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
        """Points: B's right singular vectors turned into extreme points, climbed by X <- best for B^T B (X - C)."""
        _, S, Vh = torch.linalg.svd(B, full_matrices=False)
        leading = self.radius * Vh[:16]
        X = climb(self, torch.cat([leading, -leading, self._patterns()[:16].to(B)]), B, centre)
        upper = (float(S[0]) * self.longest + float((B @ centre).norm())) ** 2
        return Maximum.among(torch.cat([X, self._patterns().to(B)]), B, centre, upper)

    def spanning(self) -> Tensor:
        points = self._patterns()
        return torch.cat([points, -points])

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        d = self.dimension
        points = self._patterns()
        identity = torch.eye(d, dtype=torch.float64)
        uniform = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
        return Proposal(self.longest * identity, self.middle, points, uniform, torch.ones_like(self.middle))

    def contains(self, x: Tensor) -> Tensor:
        x = self._vectors(x)
        S = torch.linalg.svdvals(x.double().unflatten(-1, (self.rows, self.columns)))
        return power_norm(S, self.q) <= self.radius * (1 + slack(x))

    def project(self, x: Tensor) -> Tensor:
        """Singular values moved to the nearest point of the l_q ball."""
        x = self._vectors(x)
        U, S, Vh = torch.linalg.svd(x.double().unflatten(-1, (self.rows, self.columns)), full_matrices=False)
        S = nearest_in_ball(S, S.new_tensor([self.radius]), self.q)
        return ((U * S[..., None, :]) @ Vh).flatten(-2).to(x)

    def extreme(self, directions: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(directions.unflatten(-1, (self.rows, self.columns)), full_matrices=False)
        new = longest(S, ((self.rank, self.q),))
        return self.radius * ((U * new[..., None, :]) @ Vh).flatten(-2)

    def _patterns(self) -> Tensor:
        """Points of the ball whose mean square is a multiple of the identity.

        q > 2: signed cyclic patterns, every entry in one of them, signs orthogonal; else single entries.
        """
        if self.q <= 2:
            return self.radius * torch.eye(self.dimension, dtype=torch.float64)
        k, n = self.rank, max(self.rows, self.columns)
        signs = hadamard_signs(k)  # (h, k)
        short = torch.arange(k)
        points = torch.zeros(n, len(signs), k, n, dtype=torch.float64)
        for start in range(n):
            points[start, :, short, (short + start) % n] = signs
        points = points * (self.radius * k ** (-1 / self.q))
        return (points if self.rows <= self.columns else points.mT).reshape(-1, self.dimension)
