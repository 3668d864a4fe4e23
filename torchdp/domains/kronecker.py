"""Kronecker products of domains: moments of two vectors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain, Maximum, Proposal, beside, slack
from torchdp.domains.noise_shape import searched
from torchdp.root import between

STEPS = 30  # of the local search
FLOOR = 1e-12  # of the largest eigenvalue


@dataclass(frozen=True, eq=False)
class KroneckerProduct(Domain):
    """{x (x) y: x in K, y in L}, entries x_i y_j read row by row. left: K; right: L; at least one
    of them symmetric.

    Gamma_p is the product of the unshifted norms of K and L, and so is the ellipsoid.
    Oracle: B^T B <= s (M (x) N), the nearest Kronecker product, s the least: exact where B^T B is
    one and K's and L's oracles are exact; no factor is proved elsewhere. contains: for K and L that
    hold t x for every x of theirs and t in [0, 1]. Raises ValueError.
    Source: Nikolov, Tang (2023), Lemma 62; Van Loan, Pitsianis (1993) for the nearest product.
    """

    left: Domain
    right: Domain

    def __post_init__(self) -> None:
        checks.instance("left", self.left, Domain)
        checks.instance("right", self.right, Domain)
        if not (self.left.symmetric or self.right.symmetric):
            raise ValueError(
                "left or right must be symmetric, K = -K, for the product to be; "
                "for finite sets make a FiniteSet of the products, or centre one of them"
            )

    @property
    def dimension(self) -> int:
        return self.left.dimension * self.right.dimension

    @property
    def factor(self) -> float:
        return math.inf

    @property
    def middle(self) -> Tensor:
        return torch.zeros(self.dimension).to(self.left.spanning())

    def maximise(self, B: Tensor, centre: Tensor) -> Maximum:
        roots, inverses = [], []
        for part in self._nearest(B.mT @ B):
            values, vectors = torch.linalg.eigh(part)
            deviations = values.clamp_min(FLOOR * values[-1].clamp_min(1e-300)).sqrt()
            roots.append(deviations[:, None] * vectors.mT)
            inverses.append(vectors / deviations)
        scale = float(torch.linalg.matrix_norm(B @ torch.kron(*inverses), 2))
        found = [
            part.maximise(root, torch.zeros_like(root[0]))
            for part, root in zip((self.left, self.right), roots, strict=True)
        ]
        x, y = beside([each.points for each in found], b"torchdp.mean.kronecker.climb")
        points = [_products(x, y)]
        for _ in range(STEPS):  # each in turn to the best of the linearised form
            x, y = self._turn((_products(x, y) - centre) @ B.mT @ B, y)
        points.append(_products(x, y))
        reach = scale * math.sqrt(found[0].upper * found[1].upper) + float((B @ centre).norm())
        return Maximum.among(torch.cat(points), B, centre, reach**2)

    def extreme(self, directions: Tensor) -> Tensor:
        """Large <x (x) y, direction>, by turns in x and y from the singular vectors: not always the
        largest.
        """
        theta = directions.unflatten(-1, (self.left.dimension, self.right.dimension))
        _, _, Vh = torch.linalg.svd(theta, full_matrices=False)
        y = self.right.extreme(Vh[:, 0])
        for _ in range(STEPS):
            x, y = self._turn(directions, y)
        return _products(x, y)

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        """Exact for directions a (x) b; else the sum of those of a singular value decomposition."""
        theta = directions.unflatten(-1, (self.left.dimension, self.right.dimension))
        U, S, Vh = torch.linalg.svd(theta, full_matrices=False)
        lengths = (_largest_products(part, z) for part, z in ((self.left, U.mT), (self.right, Vh)))
        return S.mul(next(lengths)).mul(next(lengths)).sum(-1) - directions @ centre

    def spanning(self) -> Tensor:
        x, y = self.left.spanning(), self.right.spanning()
        return torch.kron(x, y)

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        share = math.sqrt(1 + tol) - 1
        x, y = (searched(part, p, False, share) for part in (self.left, self.right))
        return Proposal(
            torch.kron(x.root, y.root),
            self.middle,
            torch.kron(x.support, y.support),
            torch.kron(x.weights, y.weights),
            torch.kron(x.row_weights, y.row_weights),
        )

    def contains(self, x: Tensor) -> Tensor:
        """Rank one, x = s u (x) v: with a u as far out in K as it goes, is (s / a) v in L? And so
        for -u, -v.
        """
        x = self._vectors(x)
        U, S, Vh = torch.linalg.svd(
            x.double().unflatten(-1, (self.left.dimension, self.right.dimension))
        )
        size = float(self.spanning().norm(dim=-1).max())
        rest = S[..., 1] if S.shape[-1] > 1 else torch.zeros_like(S[..., 0])
        inside = S[..., 0] <= 1e-12 * size
        for sign in (1.0, -1.0):
            u, v, s = sign * U[..., :, 0], sign * Vh[..., 0, :], S[..., :1]
            longest = float(self.left.spanning().norm(dim=-1).max()) * self.left.dimension + 1e-300
            outside = lambda a: 0.5 - self.left.contains(-a * u)[..., None].double()  # noqa: E731, B023
            far = -between(outside, torch.full_like(s, -longest), torch.zeros_like(s), 0.0)
            y = (1 - slack(x)) * s / far.clamp_min(1e-300) * v
            inside = inside | ((far[..., 0] > 0) & self.right.contains(y))
        return inside & (rest <= slack(x) * size)

    def project(self, x: Tensor) -> Tensor:
        raise NotImplementedError(
            "no projection on a Kronecker product is at hand; project its factors"
        )

    def _turn(self, directions: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The best x for y, then the best y for x, of <x (x) y, direction>."""
        theta = directions.unflatten(-1, (self.left.dimension, self.right.dimension))
        x = self.left.extreme((theta @ y[..., None])[..., 0])
        return x, self.right.extreme((x[..., None, :] @ theta)[..., 0, :])

    def _nearest(self, M: Tensor) -> tuple[Tensor, Tensor]:
        """Positive semidefinite matrices whose Kronecker product is nearest to M."""
        m, n = self.left.dimension, self.right.dimension
        rearranged = M.reshape(m, n, m, n).permute(0, 2, 1, 3).reshape(m * m, n * n)
        U, S, Vh = torch.linalg.svd(rearranged, full_matrices=False)
        A, B = U[:, 0].reshape(m, m), S[0] * Vh[0].reshape(n, n)
        sign = 1.0 if float(A.trace()) >= 0 else -1.0
        return sign * (A + A.mT) / 2, sign * (B + B.mT) / 2


def _largest_products(part: Domain, directions: Tensor) -> Tensor:
    """max |<direction, x>| over the part, (k, r) for directions (k, r, d)."""
    rows = directions.flatten(0, -2)
    zero = torch.zeros_like(rows[0])
    return torch.maximum(part.supports(rows, zero), part.supports(-rows, zero)).view(
        directions.shape[:-1]
    )


def _products(x: Tensor, y: Tensor) -> Tensor:
    return (x[..., :, None] * y[..., None, :]).flatten(-2)
