"""The norms as differentiable functions of W, and the free constant of a quadratic form."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchdp import checks
from torchdp.factorization.certificates.certificate import Bounds, fitting, magnitude
from torchdp.factorization.factorize import factorize
from torchdp.factorization.solvers.lines import least
from torchdp.workloads import RunningSums

ROUNDING = 1e-13  # of the largest entry of W


def witness(W: Tensor, row_weights: Tensor, column_weights: Tensor, *, shift: bool = False) -> Tensor:
    """The dual witness U of weights c, P: <W, U> is their lower bound, and U its gradient in W.

    U = diag(c)^{1/2} A diag(P)^{1/2}, where diag(c)^{1/2} W diag(P)^{1/2} = A H, A a partial isometry and H >= 0 (polar
    decomposition). With shift W - W P 1^T takes W's place and U becomes U - U 1 P^T, whose rows sum to 0.

    W: (*batch, m, n); row_weights: (*batch, m); column_weights: (*batch, n), not negative and of norm 1, as in
    :class:`Factorization`. U has W's dtype. Raises ValueError or TypeError on other shapes and on entries that are not
    finite.
    Guarantees: <W', U> <= the norm of W' for every W' (gamma_2*(U) <= 1 for p = inf).
    Source: Edmonds, Nikolov, Ullman (2020), Lemmas 12 and 13.
    """
    W = checks.matrix("W", W)
    c, P = fitting(W, row_weights=row_weights, column_weights=column_weights)
    c, P = c.sqrt()[..., None], P[..., None, :]
    scaled = W.double() / magnitude(W.double())  # U is that of every multiple of W
    centred = scaled - scaled @ P.mT if shift else scaled
    A, S, Bh = torch.linalg.svd(c * centred * P.sqrt(), full_matrices=False)
    kept = S > 1e-12 * S[..., :1]
    U = c * ((A * kept[..., None, :]) @ Bh) * P.sqrt()
    return (U - U.sum(-1, keepdim=True) * P if shift else U).to(W.dtype)


def gamma(W: Tensor | RunningSums, p: float = math.inf, shift: bool = False, *, tol: float = 1e-6) -> Tensor:
    """gamma_(p)(W), or min_v gamma_(p)(W + v 1^T) with ``shift``, differentiable in W; p = inf is gamma_2.

    Returns the certified lower bound, within ``tol`` (relative) of the norm, of shape (*batch). Its gradient is the
    witness U of the weights found: a subgradient of the norm up to ``tol``, and the gradient where the optimum is
    unique. First order only.

    For the weighted norm of :func:`factorize`: gamma(error_weights[:, None] * W).

    W: (*batch, m, n), real, or :class:`RunningSums`, without a gradient. Warns and raises like :func:`factorize`.
    Guarantees: the value is a lower bound on the norm; gamma(W') >= <W', U> up to ``tol`` for every W'.
    Source: the envelope theorem on the dual of Edmonds, Nikolov, Ullman (2020), Lemma 12.
    """
    if isinstance(W, RunningSums):
        return factorize(W, p, shift, tol).certificate.lower
    return _Gamma.apply(checks.matrix("W", W), p, shift, tol)


def gamma2(W: Tensor | RunningSums, *, tol: float = 1e-6) -> Tensor:
    """gamma_2(W) = :func:`gamma` (W, inf), differentiable: a loss for training factorized queries."""
    return gamma(W, tol=tol)


def gamma_F(W: Tensor | RunningSums, *, tol: float = 1e-6) -> Tensor:
    """gamma_F(W) = :func:`gamma` (W, 2) / sqrt(m), differentiable: the root mean squared error of the m queries.

    min ||L||_F max_j ||R_j|| / sqrt(m) over W = L R, so gamma_F <= gamma_2. Nikolov and Tang's norms, Gamma_p, are not
    divided: Gamma_2 of the points +-w_1, ..., +-w_n, the columns of W, is gamma(W, 2) = sqrt(m) gamma_F(W).

    W, shape and errors as in :func:`gamma`.
    Guarantees: the value is a lower bound on gamma_F.
    Source: Edmonds, Nikolov, Ullman (2020), section 2; Nikolov, Tang (2023), Definition 2 and Theorem 23.
    """
    return gamma(W, 2, tol=tol) / math.sqrt(W.shape[-2])


class _Gamma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, W: Tensor, p: float, shift: bool, tol: float) -> Tensor:
        found = factorize(W, p, shift, tol)
        U = witness(W.detach().double(), found.row_weights, found.column_weights, shift=shift)
        ctx.save_for_backward(U.to(W.dtype))
        return found.certificate.lower.to(W.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (U,) = ctx.saved_tensors
        return gradients[0][..., None, None] * U, None, None, None


@dataclass(frozen=True)
class FreeConstant(Bounds):
    """min over c of gamma_2(W + c 1 1^T) lies in [lower, upper]; ``constant`` attains upper."""

    constant: float


def free_constant(W: Tensor, *, tol: float = 1e-3) -> FreeConstant:
    """The constant that, added to every entry of W, makes gamma_2 least, with bounds on that least value.

    gamma_2(W + c 1 1^T) is convex in c, and every witness U gives a line below it, <W, U> + c sum U: :func:`least`
    goes by them, from the middle of W's range. Stops at the relative gap ``tol`` or after 60 factorizations.

    W: (m, n), real. Raises ValueError, TypeError.
    Guarantees: lower <= min over c of gamma_2(W + c 1 1^T) <= upper.
    Source: Edmonds, Nikolov, Ullman (2020), Lemma 12, for the lines; Kelley (1960) for the method.
    """
    W = checks.one_matrix("W", W)
    tol, low, high = checks.positive("tol", tol), W.min(), W.max()

    def look(c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = factorize(W + c, tol=tol / 4)
        U = witness(W + c, found.row_weights, found.column_weights)
        return found.certificate.upper, ((W + c) * U).sum(), U.sum()

    rounding = ROUNDING * W.abs().max()
    best, upper, lower = least(look, -(high + low) / 2, high - low, (-math.inf, math.inf), tol, rounding).tolist()
    return FreeConstant(upper, lower, best, rounding=float(rounding))
