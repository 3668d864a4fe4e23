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
    """{x (x) y: x in K, y in L}, entries x_i y_j read row by row.

    Args:
        left: K.
        right: L; at least one of the two symmetric.

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
        roots = []
        inverses = []
        for factor in self._nearest(B.mT @ B):
            values, vectors = torch.linalg.eigh(factor)
            # A floor below the eigenvalues: the bound holds for any positive definite factors.
            deviations = values.clamp_min(FLOOR * values[-1].clamp_min(1e-300)).sqrt()
            roots.append(deviations[:, None] * vectors.mT)
            inverses.append(vectors / deviations)
        # B^T B <= scale^2 (M (x) N): with M = R^T R and N likewise, the largest ratio of the forms
        scale = float(torch.linalg.matrix_norm(B @ torch.kron(*inverses), 2))
        # The form factors about 0 alone: the centre enters below by the triangle inequality.
        origin = torch.zeros_like(centre)
        left = self.left.maximise(roots[0], origin[: self.left.dimension])
        right = self.right.maximise(roots[1], origin[: self.right.dimension])
        x, y = beside([left.points, right.points], b"torchdp.mean.kronecker.climb")
        start = _products(x, y)
        for _ in range(STEPS):  # each in turn to the best of the linearised form
            x, y = self._turn((_products(x, y) - centre) @ B.mT @ B, y)
        points = torch.cat([start, _products(x, y)])
        # the form of M (x) N at x (x) y is the product of two
        reach = scale * math.sqrt(left.upper * right.upper) + float((B @ centre).norm())
        return Maximum.among(points, B, centre, reach**2)

    def extreme(self, directions: Tensor) -> Tensor:
        """Large <x (x) y, direction>, by turns in x and y from singular vectors on."""
        _, _, Vh = torch.linalg.svd(self._matrices(directions), full_matrices=False)
        y = self.right.extreme(Vh[:, 0])
        for _ in range(STEPS):
            x, y = self._turn(directions, y)
        return _products(x, y)

    def supports(self, directions: Tensor, centre: Tensor) -> Tensor:
        """Exact for directions a (x) b; else the sum of those of a singular value decomposition."""
        U, S, Vh = torch.linalg.svd(self._matrices(directions), full_matrices=False)
        # <x (x) y, theta> = sum_r s_r <x, u_r> <y, v_r>: each factor by its own largest value
        left = _largest_products(self.left, U.mT)
        right = _largest_products(self.right, Vh)
        return (S * left * right).sum(-1) - directions @ centre

    def spanning(self) -> Tensor:
        return torch.kron(self.left.spanning(), self.right.spanning())

    def proposal(self, p: float, shift: bool, tol: float) -> Proposal | None:
        share = math.sqrt(1 + tol) - 1  # of the gap, which is a product of two
        x = searched(self.left, p, False, share)
        y = searched(self.right, p, False, share)
        return Proposal(
            root=torch.kron(x.root, y.root),
            centre=self.middle,
            points=torch.kron(x.support, y.support),
            weights=torch.kron(x.weights, y.weights),
            row_weights=torch.kron(x.row_weights, y.row_weights),
        )

    def contains(self, x: Tensor) -> Tensor:
        """Rank one, x = s u (x) v: with a u as far out in K as it goes, is (s / a) v in L?"""
        x = self._vectors(x)
        U, S, Vh = torch.linalg.svd(self._matrices(x.double()))
        size = float(self.spanning().norm(dim=-1).max())
        first = S[..., :1]
        # Zero has no singular direction, and sets that hold t x for t in [0, 1] hold it.
        inside = S[..., 0] <= 1e-12 * size
        for sign in (1.0, -1.0):  # s u (x) v is also s (-u) (x) (-v)
            u = sign * U[..., :, 0]
            v = sign * Vh[..., 0, :]
            reach = self._reach(u)
            # Shrunk by the slack: the SVD must not round a product of the boundary out of L.
            y = (1 - slack(x)) * first / reach.clamp_min(1e-300) * v
            inside = inside | ((reach[..., 0] > 0) & self.right.contains(y))
        rest = S[..., 1:2].sum(-1)  # the second singular value, 0 where there is none
        return inside & (rest <= slack(x) * size)

    def _reach(self, u: Tensor) -> Tensor:
        """The largest a, (..., 1), with a u in K, by bisection of membership."""

        # ``between`` takes a falling function: in -a the vector goes from outside to inside.
        def outside(minus_a: Tensor) -> Tensor:
            return 0.5 - self.left.contains(-minus_a * u)[..., None].double()

        # d times the longest spanning point: where the search ends
        span = self.left.spanning().norm(dim=-1)
        longest = float(span.max()) * self.left.dimension + 1e-300
        low = torch.full_like(u[..., :1], -longest)
        return -between(outside, low, torch.zeros_like(low), 0.0)

    def project(self, x: Tensor) -> Tensor:
        raise NotImplementedError(
            "no projection on a Kronecker product is at hand; project its factors"
        )

    def _turn(self, directions: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The best x for y, then the best y for x, of <x (x) y, direction>."""
        theta = self._matrices(directions)
        x = self.left.extreme((theta @ y[..., None])[..., 0])
        y = self.right.extreme((x[..., None, :] @ theta)[..., 0, :])
        return x, y

    def _matrices(self, x: Tensor) -> Tensor:
        """Vectors (..., m n) as matrices (..., m, n)."""
        return x.unflatten(-1, (self.left.dimension, self.right.dimension))

    def _nearest(self, M: Tensor) -> tuple[Tensor, Tensor]:
        """Positive semidefinite matrices whose Kronecker product is nearest to M."""
        m = self.left.dimension
        n = self.right.dimension
        # A (x) B is of rank one with its entries in this order: the best of that rank is nearest.
        rearranged = M.reshape(m, n, m, n).permute(0, 2, 1, 3).reshape(m * m, n * n)
        U, S, Vh = torch.linalg.svd(rearranged, full_matrices=False)
        A = U[:, 0].reshape(m, m)
        B = S[0] * Vh[0].reshape(n, n)
        # The decomposition leaves a common sign of A and B open; both are to be semidefinite.
        sign = 1.0 if float(A.trace()) >= 0 else -1.0
        return sign * (A + A.mT) / 2, sign * (B + B.mT) / 2


def _largest_products(part: Domain, directions: Tensor) -> Tensor:
    """max |<direction, x>| over the part, (k, r) for directions (k, r, d)."""
    rows = directions.flatten(0, -2)
    origin = torch.zeros_like(rows[0])
    largest = torch.maximum(part.supports(rows, origin), part.supports(-rows, origin))
    return largest.view(directions.shape[:-1])


def _products(x: Tensor, y: Tensor) -> Tensor:
    return (x[..., :, None] * y[..., None, :]).flatten(-2)
