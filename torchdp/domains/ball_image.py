"""Images of products of l_q balls: one oracle, one best ellipsoid."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from torchdp.domains.domain import Domain, Maximum, Proposal
from torchdp.domains.relaxation import (
    ENUMERATED,
    TINY,
    Groups,
    corners,
    hadamard_signs,
    longest,
    maximise_image,
    moved_inside,
    rounded,
    split,
)
from torchdp.root import between


def maximise_on_sphere(G: Tensor, g: Tensor) -> tuple[Tensor, float]:
    """Points z, ||z||_2 = 1, with large ||G z + g||^2, and a proved upper bound on the maximum,
    attained by the best.

    With G^T G = Q Lambda Q^T and b = Q^T G^T g, for every mu > lambda_max
        max ||G z + g||^2 <= mu + sum_i b_i^2 / (mu - lambda_i) + ||g||^2,
    with equality at the mu for which z = Q (mu - Lambda)^{-1} b has length 1; where there is none
    (b has no part along the largest eigenvalue) at mu = lambda_max, z completed along that
    eigenvector. The other eigenvectors, both ways, are returned too: at the best ellipsoid all of
    them are maxima.

    G: (d, N); g: (d,). Returns points (k, N) and the bound.
    Source: Moré, Sorensen (1983).
    """
    values, Q = torch.linalg.eigh(G.mT @ G)
    values = values.clamp_min(0)
    b = Q.mT @ (G.mT @ g)
    top = float(values[-1])
    frame = torch.cat([Q.mT, -Q.mT])
    size = float(b.norm())
    if size <= 1e-14 * max(top, 1e-300):
        return frame, top + 2 * size + float(g @ g)
    high = top + size  # ||z(mu)|| <= 1 here
    high = float(between(lambda mu: (b / (mu - values)).norm() - 1, values[-1], high, TINY))
    inverse = torch.where(values < high, 1 / (high - values), 0.0)
    part = b * inverse
    upper = high + float((b.square() * inverse).sum()) + float(g @ g)
    rest = max(0.0, 1 - float(part @ part)) ** 0.5
    ends = torch.stack([part, part])
    ends[0, -1] += rest
    ends[1, -1] -= rest
    ends = ends / ends.norm(dim=-1, keepdim=True)
    return torch.cat([ends @ Q.mT, frame]), upper


class BallImage(Domain):
    """{m + F z: ||z_b||_{q_b} <= 1 for every block z_b of z}: its oracle, and the best ellipsoid
    that it proves.

    One block, q = 2: exact (a trust-region problem); q = 1: exact, z runs over +-e_j; 1 < q < 2:
    inside the image of the l_2 ball, within N^{2/q - 1}. Else the semidefinite relaxation of
    :func:`maximise_image`: within pi/2 where every q_b >= 2, and exact for at most 23 signs.
    """

    centre: Tensor
    q: float

    @property
    @abstractmethod
    def generators(self) -> Tensor:
        """F, (d, N) float64."""

    @property
    def groups(self) -> Groups:
        """Size and order q in [1, inf] of each block; the sizes add up to N. Here a single
        block.
        """
        return ((self.generators.shape[1], self.q),)

    @property
    def middle(self) -> Tensor:
        """m, (d,) float64."""
        return self.centre

    @property
    def dimension(self) -> int:
        return self.generators.shape[0]

    def balls(self) -> "BallImage":
        return self

    @property
    def factor(self) -> float:
        N, orders = self.generators.shape[1], [q for _, q in self.groups]
        if orders in ([1.0], [2.0]) or (set(orders) == {math.inf} and N < ENUMERATED):
            return 1.0
        lost = max(size ** (2 / min(q, 2.0) - 1) for size, q in self.groups)
        return lost if len(orders) == 1 and orders[0] < 2 else lost * math.pi / 2

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        F, groups = self.generators, self.groups
        G, g = B @ F, B @ (self.middle - centre)
        if len(groups) > 1 or groups[0][1] > 2:
            z, upper = maximise_image(G, g, groups)
        else:
            z, upper = maximise_on_sphere(G, g)
            z = moved_inside(z, groups)
            if groups[0][1] < 2:
                basis = torch.eye(F.shape[1]).to(F)
                corners = torch.cat([basis, -basis])
                z = torch.cat([corners, z])
                if groups[0][1] == 1:
                    upper = float((corners @ G.mT + g).square().sum(-1).max())
        return Maximum.among(self.middle + z @ F.mT, B, centre, upper)

    def extreme(self, directions: Tensor) -> Tensor:
        slope = directions @ self.generators
        z = longest(slope.abs(), self.groups)
        return self.middle + torch.where(slope < 0, -z, z) @ self.generators.mT

    def spanning(self) -> Tensor:
        return torch.cat([self.middle + self.generators.mT, self.middle - self.generators.mT])

    def corners(self, most: int) -> Tensor | None:
        z = corners(self.groups, most)
        return None if z is None else self.middle + z.to(self.generators) @ self.generators.mT

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        """Root F diag(y)^{-1/2}, y from :func:`split`; a point that is no shift counts as one more
        generator.

        Optimal where F has one entry in each column and row: the norm is then sign-invariant in the
        coordinates.
        """
        F, m, groups = self.generators, self.middle, self.groups
        lifted = not shift and bool(m.any())
        if lifted:
            F, groups = torch.cat([F, m[:, None]], 1), (*groups, (1, math.inf))
        y, c = split(F.square(), p, groups)
        root = F * torch.where(y > 0, y, 1.0).rsqrt()
        scaled = c.sqrt()[:, None] * F
        length = scaled.norm(dim=0)
        radius = longest(length, tuple((size, max(q, 2.0)) for size, q in groups))
        cosines = scaled / torch.where(length > 0, length, 1.0)
        gram = cosines.mT @ cosines
        orthogonal = bool((gram - torch.diag(gram.diagonal())).abs().max() <= 1e-12)
        if len(groups) == 1 and groups[0][1] <= 2:
            weights, z = _spectrum(radius * gram * radius[:, None], diagonal=orthogonal)
        elif orthogonal:
            z = radius * hadamard_signs(F.shape[1]).to(F)
            weights = torch.full_like(z[:, 0], 1 / z.shape[0])
        else:
            z = rounded(cosines, radius, groups, 4 * F.shape[1])
            weights = torch.full_like(z[:, 0], 1 / z.shape[0])
        z = moved_inside(z, groups)
        if lifted:
            z, F = z[:, :-1] * z[:, -1:], F[:, :-1]
        centre = m if shift else torch.zeros_like(m)
        return Proposal(root, centre, m + z @ F.mT, weights, c)


def _spectrum(Z: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues and rows of eigenvectors of Z = sum_k w_k z_k z_k^T."""
    if diagonal:
        return Z.diagonal(), torch.eye(Z.shape[0]).to(Z)
    values, vectors = torch.linalg.eigh(Z)
    kept = values > 1e-14 * values[-1]
    return values[kept], vectors.mT[kept]
