"""Rank reduction of a factorization: random projection, its guarantee, and truncation.

What comes out is a factorization of gamma_2(W; alpha), alpha = certificate.residual: how far it is from W, at most.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.objective_certificate import certify_approximate
from torchdp.factorization.factorize import Factorization, balance
from torchdp.factorization.norm import witness

LEAST = 1e-6  # of ``relative``: below it t - log(1 + t) has few digits left
ROUNDING = 1e-14  # singular values below this share of the largest are cut off


def truncate(factorization: Factorization, rank: int) -> Factorization:
    """The best approximation of rank ``rank`` in the Frobenius norm weighed by the factorization's dual weights.

    X = left right, c and P the dual weights of its rows and columns, diag(c)^{1/2} X diag(P)^{1/2} = U S V^T; with the
    ``rank`` largest singular values kept,
        left' = X diag(P)^{1/2} V S^{-1/2},  right' = S^{-1/2} U^T diag(c)^{1/2} X.
    Where no weight is 0, left' right' is the matrix of that rank with the least sum_ij c_i P_j (X - left' right')_ij^2.
    Its rows and columns are those of the spectral factors of X with coordinates dropped, so at optimal weights its norm
    is at most gamma_2(X).

    rank: at least 1; from the factorization's own rank on, its factors come back as they are. A shift stays apart:
    what is approximated is W - shift 1^T. Batched; its residual counts the factorization's own.
    Raises ValueError.

    Guarantees: certificate.residual >= max abs(W - shift 1^T - left right) up to rounding, and certificate.lower <=
    gamma_2(W - shift 1^T; certificate.residual) <= certificate.upper = norm.
    Source: Eckart, Young (1936); the weights by Nikolov, Tang (2023), Theorem 26.
    """
    rank = checks.integer("rank", rank, 1)
    checks.instance("factorization", factorization, Factorization)
    if rank >= factorization.left.shape[-1]:
        return factorization
    X = factorization.left.double() @ factorization.right.double()
    rows, columns = factorization.row_weights.sqrt()[..., None], factorization.column_weights.sqrt()[..., None, :]
    U, S, Vh = torch.linalg.svd(rows * X * columns, full_matrices=False)
    U, S, Vh = U[..., :rank], S[..., :rank], Vh[..., :rank, :]
    inverse = torch.where(S > ROUNDING * S[..., :1], S, math.inf).rsqrt()
    left = X @ (columns * Vh).mT * inverse[..., None, :]
    right = inverse[..., None] * ((rows * U).mT @ X)
    return _near(factorization, left, right)


def johnson_lindenstrauss(factorization: Factorization, rank: int, *, generator: torch.Generator) -> Factorization:
    """Both factors projected by one Gaussian matrix: left A and A^T right, A (r x rank) with E A A^T = I.

    The entries of A are independent N(0, 1/rank), one A for each problem of a batch, so left A A^T right is unbiased
    for left right. :func:`jl_rank` says which rank keeps every entry close; here the error is measured.

    rank: at least 1; from the factorization's own rank on, its factors come back as they are (a projection would
    only add error). A shift stays apart, as in :func:`truncate`. Raises ValueError, TypeError.

    Guarantees: residual and bounds as of :func:`truncate`.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemmas 12 and 13.
    """
    rank = checks.integer("rank", rank, 1)
    checks.instance("factorization", factorization, Factorization)
    left, right = factorization.left.double(), factorization.right.double()
    generator = checks.random_source(generator, left.device)
    if rank >= left.shape[-1]:
        return factorization
    shape = (*left.shape[:-2], left.shape[-1], rank)
    A = torch.randn(shape, dtype=torch.float64, device=left.device, generator=generator) / math.sqrt(rank)
    return _near(factorization, left @ A, A.mT @ right)


def jl_rank(m: int, n: int, relative: float, *, failure: float = 0.5) -> int:
    """A rank at which a Gaussian projection of any factors keeps all m n entries and all norms, with high probability.

    rank = ceil(2 log((2 m n + m + n) / failure) / (relative - log(1 + relative))): then, with probability 1 - failure,
        max abs(W - left right) <= relative * norm  and  norm' <= (1 + relative) * norm,
    norm the factors' own (largest row norm * largest column norm) and norm' that of the projected ones. For an error
    alpha take relative = alpha / gamma_2(W): the paper's gamma_2(W)^2 log(k) / alpha^2, with its constant.

    Why: for unit u, v with <u, v> = rho, log E exp(rank theta (<A^T u, A^T v> - rho)) is
    rank (h(theta (1 + rho)) + h(-theta (1 - rho))) / 2, h(x) = -log(1 - x) - x. It is convex in rho, hence largest at
    rho = 1, which is the chi-square distribution; Chernoff's bound there is exp(-rank (t - log(1 + t)) / 2) for a
    deviation t, on either side. There are 2 m n such events, and m + n of norms that grow by more than sqrt(1 + t).
    The paper's proof goes through norms of sums and differences, and bounds by 2 beta C^2 in its last line what the
    parallelogram law bounds by beta C^2: it projects for half of alpha, which at small alpha quadruples the rank.

    m, n: positive. relative: in [1e-6, 1e150]. failure: in (0, 1). Raises ValueError.
    Guarantees: the two inequalities, with probability 1 - failure at least, for any factors of any m x n matrix.
    Source: Ghazi et al. (2023), Lemma 12; the constant is derived here.
    """
    m, n = checks.integer("m", m, 1), checks.integer("n", n, 1)
    t, failure = checks.within("relative", relative, LEAST, checks.LARGEST), checks.fraction("failure", failure)
    return math.ceil(2 * math.log((2 * m * n + m + n) / failure) / (t - math.log1p(t)))


def _near(factorization: Factorization, left: Tensor, right: Tensor) -> Factorization:
    """Balanced, in the factorization's dtype, and certified.

    The product X of the factorization's own factors is within r, its residual, of W: so what misses X by d misses W by
    at most d + r, and gamma_2(W; d + r) >= gamma_2(X; d + 2 r).
    """
    scale = balance(left.double().norm(dim=-1).amax(-1), right.double().norm(dim=-2).amax(-1))
    dtype, r = factorization.left.dtype, factorization.certificate.residual
    left, right = (scale * left).to(dtype), (right / scale).to(dtype)
    X = factorization.left.double() @ factorization.right.double()
    d = (X - left.double() @ right.double()).abs().amax((-2, -1))
    weights = factorization.row_weights, factorization.column_weights
    U = witness(X, *weights)
    judged = certify_approximate(X, d + 2 * r, left, right, U, *weights)
    return replace(factorization, left=left, right=right, witness=U, certificate=replace(judged, residual=d + r))
