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
    """Points z, ||z||_2 = 1, with large ||G z + g||^2, and the maximum up to rounding.

    Method: with G^T G = Q Lambda Q^T and b = Q^T G^T g, for every mu > lambda_max
        max ||G z + g||^2 <= mu + sum_i b_i^2 / (mu - lambda_i) + ||g||^2,
    with equality at the mu for which z = Q (mu - Lambda)^{-1} b has length 1; where there is none
    (b has no part along the largest eigenvalue) at mu = lambda_max, z completed along that
    eigenvector. The other eigenvectors, both ways, are returned too: at the best ellipsoid all of
    them are maxima.

    Args:
        G: (d, N).
        g: (d,).

    Returns: points (k, N), and the bound, which the best of them attains.
    Source: Moré, Sorensen (1983).
    """
    values, Q = torch.linalg.eigh(G.mT @ G)
    # Of a Gram matrix: what is below 0 is rounding.
    values = values.clamp_min(0)
    b = Q.mT @ (G.mT @ g)
    top = float(values[-1])
    frame = torch.cat([Q.mT, -Q.mT])
    size = float(b.norm())
    if size <= 1e-14 * max(top, 1e-300):  # centred: eigenvectors are the maxima
        return frame, top + 2 * size + float(g @ g)

    def excess(mu: Tensor) -> Tensor:
        return (b / (mu - values)).norm() - 1

    mu = float(between(excess, values[-1], top + size, TINY))  # ||z|| <= 1 at top + size
    inverse = torch.where(values < mu, 1 / (mu - values), 0.0)
    z = b * inverse
    upper = mu + float((b.square() * inverse).sum()) + float(g @ g)
    # the hard case: what z lacks in length lies along the largest eigenvector
    missing = max(0.0, 1 - float(z @ z)) ** 0.5
    ends = torch.stack([z, z])
    ends[0, -1] += missing
    ends[1, -1] -= missing
    ends = ends / ends.norm(dim=-1, keepdim=True)
    return torch.cat([ends @ Q.mT, frame]), upper


class BallImage(Domain):
    """{m + F z: ||z_b||_{q_b} <= 1 for every block z_b of z}: its oracle, and its best ellipsoid.

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
        """Size and order q in [1, inf] of each block, here a single one; the sizes sum to N."""
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
        N = self.generators.shape[1]
        orders = [q for _, q in self.groups]
        if orders in ([1.0], [2.0]) or (set(orders) == {math.inf} and N < ENUMERATED):
            return 1.0
        # the l_2 ball around an l_q ball of order q < 2 is N^{2/q - 1} times as large, squared
        lost = max(size ** (2 / min(q, 2.0) - 1) for size, q in self.groups)
        if len(orders) == 1 and orders[0] < 2:
            return lost
        return lost * math.pi / 2

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        F = self.generators
        z, upper = self._maximise(B @ F, B @ (self.middle - centre))
        return Maximum.among(self.middle + z @ F.mT, B, centre, upper)

    def _maximise(self, G: Tensor, g: Tensor) -> tuple[Tensor, float]:
        """Points z of the balls with large ||G z + g||^2, and a bound."""
        groups = self.groups
        q = groups[0][1]
        if len(groups) > 1 or q > 2:
            return maximise_image(G, g, groups)
        z, upper = maximise_on_sphere(G, g)  # the l_2 ball holds the others
        z = moved_inside(z, groups)
        if q == 2:
            return z, upper
        basis = torch.eye(len(z[0])).to(z)
        corners = torch.cat([basis, -basis])
        if q == 1:
            values = (corners @ G.mT + g).square().sum(-1)
            upper = float(values.max())  # a convex form is largest at a corner
        return torch.cat([corners, z]), upper

    def extreme(self, directions: Tensor) -> Tensor:
        slope = directions @ self.generators
        z = longest(slope.abs(), self.groups)
        signed = torch.where(slope < 0, -z, z)
        return self.middle + signed @ self.generators.mT

    def spanning(self) -> Tensor:
        columns = self.generators.mT
        return torch.cat([self.middle + columns, self.middle - columns])

    def corners(self, most: int) -> Tensor | None:
        z = corners(self.groups, most)
        return None if z is None else self.middle + z.to(self.generators) @ self.generators.mT

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        """Root F diag(y)^{-1/2}, y from :func:`split`.

        A point that is no shift counts as one more generator. Optimal where F has one entry in each
        column and row: the norm is then sign-invariant in the coordinates.
        """
        F = self.generators
        m = self.middle
        groups = self.groups
        lifted = not shift and bool(m.any())
        if lifted:
            F = torch.cat([F, m[:, None]], 1)
            groups = (*groups, (1, math.inf))
        y, c = split(F.square(), p, groups)
        # A column of zeros has y = 0, and stays zero whatever divides it.
        root = F * torch.where(y > 0, y, 1.0).rsqrt()
        z, weights = _dual_measure(c.sqrt()[:, None] * F, groups)
        z = moved_inside(z, groups)
        if lifted:
            # The last entry is the sign of m: turned by it, the point m + F z lies in the set.
            z = z[:, :-1] * z[:, -1:]
            F = F[:, :-1]
        centre = m if shift else torch.zeros_like(m)
        return Proposal(root, centre, m + z @ F.mT, weights, c)


def _dual_measure(scaled: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Points z (k, N) and weights (k,) of the dual measure; scaled: diag(c)^{1/2} F.

    Mean squares of z are those of the best y, and signs those of the columns' products.
    """
    length = scaled.norm(dim=0)
    radius = longest(length, tuple((size, max(q, 2.0)) for size, q in groups))
    cosines = scaled / torch.where(length > 0, length, 1.0)
    gram = cosines.mT @ cosines
    off_diagonal = gram - torch.diag(gram.diagonal())
    orthogonal = bool(off_diagonal.abs().max() <= 1e-12)
    if len(groups) == 1 and groups[0][1] <= 2:
        return _spectrum(radius * gram * radius[:, None], diagonal=orthogonal)
    N = scaled.shape[1]
    # columns of Hadamard signs are orthogonal, as those of F are: no rounding is lost
    if orthogonal:
        z = radius * hadamard_signs(N).to(scaled)
    else:
        z = rounded(cosines, radius, groups, 4 * N)
    return z, torch.full_like(z[:, 0], 1 / len(z))


def _spectrum(Z: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Rows of eigenvectors and eigenvalues of Z = sum_k w_k z_k z_k^T."""
    if diagonal:
        return torch.eye(len(Z)).to(Z), Z.diagonal()
    values, vectors = torch.linalg.eigh(Z)
    # Smaller eigenvalues are rounding, and may be negative: no weights.
    kept = values > 1e-14 * values[-1]
    return vectors.mT[kept], values[kept]
