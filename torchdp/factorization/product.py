"""Kronecker products, never formed, and the signature form of symmetric ones.

Notation: (x): the Kronecker product; K: a signed permutation; J: a diagonal of signs;
w: weights of the rows and columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import (
    Certificate,
    certify,
    certify_kronecker,
    divisor,
    rounded,
)
from torchdp.factorization.factorize import (
    Factorization,
    Matrix,
    factors,
    kronecker,
    matrices_of,
    rounding_of,
    size_of,
    warn,
)
from torchdp.factorization.solvers.fixed_point import RANK_TOLERANCE, attempts
from torchdp.factorization.solvers.iteration import closed
from torchdp.threads import one_thread
from torchdp.workloads import Workload

# Of an entry of a symmetric W, relative to the largest one.
ASYMMETRIC = 1e-12


@dataclass(frozen=True)
class ProductFactorization(Brief):
    """W_1 (x) W_2 (x) ... = (L_1 (x) L_2 (x) ...) (R_1 (x) R_2 (x) ...), held as its factors.

    Type x is the mixed-radix index of its coordinates, the first factor's counting most, as in
    :class:`Workload`.

    Args:
        factors: factorizations of single matrices W_i, all for the same p and none with a shift.
    """

    factors: tuple[Factorization, ...]

    @property
    def certificate(self) -> Certificate:
        """Bounds on the norm of the product, from the factors' (:func:`certify_kronecker`)."""
        return certify_kronecker([factor.certificate for factor in self.factors])

    @property
    def sensitivity(self) -> Tensor:
        """Largest column norm of R, the product of the factors' sensitivities; a scalar."""
        return torch.stack([factor.sensitivity for factor in self.factors]).prod()

    def dense(self) -> Factorization:
        """L and R formed: (m, r) and (r, n). Its certificate charges the products' rounding."""
        return kronecker(self.factors)


def factorize_product(
    W: Workload, p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 10_000
) -> ProductFactorization:
    """The factorization of least gamma_(p) norm of a Kronecker product, factor by factor.

    The norm is multiplicative, so the product of optimal factorizations is optimal, and certified
    by its factors; nothing of the size of W is formed. A free shift is not multiplicative:
    :func:`factorize` takes that, densely.

    Args:
        W: a :class:`Workload` with any number of factors.
        p: in [2, inf].
        tol: relative gap of the product.
        max_iterations: of each factor.

    Warns and raises like :func:`factorize`.

    Guarantees: certificate.lower <= gamma_(p)(W) <= certificate.upper.
    Source: Nikolov, Tang (2023), Lemma 62; Lee, Shraibman, Spalek (2008) for p = inf.
    """
    matrices = matrices_of(checks.instance("W", W, Workload))
    result = ProductFactorization(factors(matrices, p, False, tol, max_iterations))
    iterations = max(factor.iterations for factor in result.factors)
    warn(matrices, result.certificate, tol, iterations, max_iterations)
    return result


@dataclass(frozen=True)
class Root:
    """W = right^T K right, where K is a signed permutation.

    K = diag(+-1) for a symmetric W and K = [[0, -1], [1, 0]], in blocks of side r / 2, for an
    antisymmetric one: orthogonal either way, and each other's partners.

    Args:
        right: (r, n) with r = rank(W).
        partner: (r,), K's row a is 0 but in column partner[a].
        sign: (r,), what it holds there.
    """

    right: Tensor
    partner: Tensor
    sign: Tensor

    @property
    def left(self) -> Tensor:
        """right^T K, of shape (n, r)."""
        return (self.sign[:, None] * self.right)[self.partner].mT

    def to(self, dtype: torch.dtype) -> "Root":
        """The same root with its numbers in ``dtype``."""
        return replace(self, right=self.right.to(dtype), sign=self.sign.to(dtype))


def root(W: Tensor, weights: Tensor) -> Root:
    """The root of W with the least column norms in the metric of ``weights``.

    With M = diag(w)^{1/2} W diag(w)^{1/2} = V S K V^T, V orthonormal, S diagonal and positive, K as
    in :class:`Root`: right = S^{-1/2} K^T V^T diag(w)^{1/2} W, so that right^T right =
    diag(w)^{-1/2} abs(M) diag(w)^{-1/2}. A symmetric M has V S K V^T by its eigenvectors. For an
    antisymmetric M, i M is Hermitian; an eigenvector (a + i b) / sqrt 2 of i M at s > 0 has M a = s
    b and M b = -s a, and all a and b are orthonormal.

    W: (n, n) float64, symmetric or antisymmetric; weights: (n,), not negative. W = 0 keeps one zero
    row.
    """
    # To size 1, so that neither M's eigenvalues nor their roots underflow.
    size = divisor(W.abs().max())
    W = W / size
    scale = weights.sqrt()
    M = scale[:, None] * W * scale
    if bool((W - W.mT).norm() <= (W + W.mT).norm()):
        values, V = torch.linalg.eigh(M)
        kept = values.abs() > RANK_TOLERANCE * values.abs().max()
        kept[0] |= ~kept.any()  # W = 0
        values = values[kept]
        partner = torch.arange(len(values), device=W.device)
        sign = torch.where(values < 0, -1.0, torch.ones_like(values))
        turned = sign * V[:, kept]  # V K
    else:
        values, vectors = torch.linalg.eigh(1j * M)
        kept = values > RANK_TOLERANCE * values[-1]
        # The negative eigenvalues are those of the conjugate vectors: a and b serve for both.
        values = values[kept].repeat(2)
        vectors = math.sqrt(2) * vectors[:, kept]
        half = len(values) // 2
        partner = torch.arange(2 * half, device=W.device).roll(half)
        sign = torch.ones_like(values)
        sign[:half] = -1.0
        turned = torch.cat([vectors.imag, -vectors.real], 1)  # V K
    inverse = values.abs().clamp_min(torch.finfo(W.dtype).tiny).rsqrt()
    right = size.sqrt() * inverse[:, None] * ((turned.mT * scale) @ W)
    return Root(right, partner, sign)


def signature(roots: Sequence[Root]) -> tuple[Tensor, Tensor]:
    """right (r, n) and signature (r,), entries +-1, of the Kronecker product of the roots'
    matrices.

    X = right_1 (x) right_2 (x) ... and K = K_1 (x) K_2 (x) ..., again a signed permutation, which
    is symmetric where an even number of the roots are antisymmetric. Rows a < b = partner(a) of X,
    joined by K_ab = K_ba = s, become
        (X_a + s X_b) / sqrt 2 with signature +1   and   (X_b - s X_a) / sqrt 2 with signature -1:
    a rotation, so columns keep their norms, which are the products of the roots' column norms.
    """
    X = reduce(torch.kron, [part.right for part in roots])
    sign = reduce(torch.kron, [part.sign for part in roots])
    partner = roots[0].partner
    for part in roots[1:]:
        blocks = partner[:, None] * len(part.sign)
        partner = (blocks + part.partner).flatten()
    # Of each pair a < b the first row becomes the sum, of signature +1, the second the difference.
    place = torch.arange(len(sign), device=sign.device)
    below = torch.where(place < partner, sign, -sign)
    turned = (X + below[:, None] * X[partner]) / math.sqrt(2)
    alone = place == partner
    first_of_pair = (place < partner).to(sign) * 2 - 1
    return torch.where(alone[:, None], X, turned), torch.where(alone, sign, first_of_pair)


@dataclass(frozen=True)
class SignatureFactorization(Brief):
    """Symmetric W = right^T diag(signature) right: one vector for each type, on both sides.

    Args:
        right: (r, n).
        signature: (r,), entries +-1.
        certificate: of gamma_2(W), for left = right^T diag(signature).
    """

    right: Tensor
    signature: Tensor
    certificate: Certificate

    @property
    def left(self) -> Tensor:
        """right^T diag(signature), of shape (n, r)."""
        return self.right.mT * self.signature


def signature_form(
    W: Matrix, tol: float = 1e-3, *, max_iterations: int = 10_000
) -> SignatureFactorization:
    """The gamma_2 factorization of a symmetric W as R^T J R, J = diag(+-1), with its certificate.

    With equal weights w on rows and columns, diag(w)^{1/2} W diag(w)^{1/2} = V Lambda V^T and
    R = |Lambda|^{-1/2} sign(Lambda) V^T diag(w)^{1/2} W, which has rank(W) rows and largest squared
    column norm gamma_2(W) at the optimal w. A Kronecker product is put together from its factors'
    roots, and certified by them.

    Args:
        W: (n, n) symmetric, or a :class:`Workload` whose product is symmetric and whose factors are
            each symmetric or antisymmetric.
        tol: relative gap of the product.
        max_iterations: of each factor.

    Warns and raises like :func:`factorize`.

    Guarantees: certificate.lower <= gamma_2(W) <= certificate.upper.
    Source: Linial, Mendelson, Schechtman, Shraibman (2007) for gamma_2; equal weights are optimal
    because the dual function is concave in them and unchanged when rows and columns trade places.
    """
    tol = checks.positive("tol", tol)
    max_iterations = checks.integer("max_iterations", max_iterations, 1)
    matrices = matrices_of(W)
    dtype = reduce(torch.promote_types, [f.dtype for f in matrices])
    matrices = [f.double() for f in matrices]
    antisymmetric = 0
    for f in matrices:
        square = f.ndim == 2 and f.shape[0] == f.shape[1]
        if not square or not (_same(f, f.mT) or _same(f, -f.mT)):
            raise ValueError(
                f"W of shape {tuple(f.shape)} must be one square matrix, symmetric or "
                "antisymmetric; a quadratic form is unchanged by W -> (W + W^T) / 2"
            )
        antisymmetric += not _same(f, f.mT)
    if not all(f.any() for f in matrices):
        # Zero is symmetric, whatever the other factors are.
        matrices = [torch.zeros_like(f) for f in matrices]
        antisymmetric = 0
    if antisymmetric % 2:
        raise ValueError("W must be symmetric; a quadratic form is unchanged by W -> (W + W^T) / 2")
    share = math.expm1(math.log1p(tol) / len(matrices))
    roots = [_root(f, dtype, share, max_iterations) for f in matrices]
    right, signs = signature([root for root, _, _ in roots])
    certificate = certify_kronecker([certificate for _, certificate, _ in roots])
    certificate = rounded(certificate, right.shape[-1], rounding_of(len(roots), dtype))
    iterations = max(count for _, _, count in roots)
    warn([f.to(dtype) for f in matrices], certificate, tol, iterations, max_iterations)
    return SignatureFactorization(right, signs, certificate)


@one_thread
def _root(
    W: Tensor, dtype: torch.dtype, tol: float, max_iterations: int
) -> tuple[Root, Certificate, int]:
    """The best root of W in ``dtype``, its certificate, and the iterations."""
    for solution in attempts(W, tol=tol, max_iterations=max_iterations):
        best = root(W, solution.primal_weights).to(dtype)
        weights = solution.column_weights
        certificate = certify(W, best.left, best.right, weights, weights)
        if closed(certificate, tol, size_of([W]), dtype):
            break
    return best, certificate, solution.iterations


def _same(a: Tensor, b: Tensor) -> bool:
    atol = ASYMMETRIC * float(a.abs().max())
    return torch.allclose(a, b, rtol=0, atol=atol)
