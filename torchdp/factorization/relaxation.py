"""The gradient relaxation: factors as nn.Modules, for ``train`` or any loss in an ordinary torch
loop.

A module's forward() returns (left, right), differentiable in its parameters. It starts from a
decomposition of W and draws nothing at random. Parameters and buffers are plain tensors in W's
dtype and on its device, for W scaled to a largest entry of 1, so that one learning rate serves W of
any size; ``unit`` is the square root of that scale.

With a structure descent ends at what is least nearby: for several starts train
``W.expand(k, m, n)`` with modules that move their parameters at random, and take the best.

What they are trained for are functions of the squared norms of left's rows and right's columns. The
squared error that is minimised is max_k [rows(a)_k max_l columns(b)_l + offset_k],
a_i = ||left_i||^2 and b_j = ||right_j||^2: ``columns`` is what a user may hold, ``rows`` what the
answers cost, ``offset`` what W alone adds. Why descent reaches the least value: for left T^{-1} and
T right, G = T^T T, along G^{1/2} exp(u H) G^{1/2} every a_i and b_j is a sum of exponentials of
linear functions of u, so its logarithm is convex; sums with weights >= 0, products, powers and
maxima of such functions are such functions. So without alpha, and with an offset >= 0 or none,
every local minimum in T is global.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import check_exponent, divisor

FILLED = 0.1  # what entries that may not be negative start at: at 0 their squares have no slope
# singular values below it start with their weight on one factor: two zero factors have no gradient
FAINT = 1e-3


class Objective(Brief, ABC):
    """A squared error to minimise; ``rows`` and ``columns`` are homogeneous of degree 1 and never
    fall in a or b.

    Where both are convex, or ``least_columns`` is and lies below ``columns``, duality bounds the
    error from below.
    """

    tight: ClassVar[bool] = True  # whether the lower bound meets the least error

    @abstractmethod
    def rows(self, a: Tensor) -> Tensor:
        """(*batch, m) squared row norms to (*batch, k) values, of which the largest counts."""

    def columns(self, b: Tensor) -> Tensor:
        """(*batch, n) squared column norms to (*batch, l) values, of which the largest counts."""
        return b

    def least_columns(self, b: Tensor) -> Tensor:
        """A convex function at most ``columns``, for the lower bound."""
        return self.columns(b)

    def weights(self, a: Tensor, multipliers: Tensor) -> Tensor:
        """What proves the lower bound at squared row norms a: the multipliers, or a Norm's row
        weights.
        """
        return multipliers

    def offset(self, W: Tensor) -> Tensor:
        """(*batch, k) or (), in units of W squared."""
        return W.new_zeros(())


@dataclass(frozen=True)
class Norm(Objective):
    """gamma_(p): p = inf the worst query's error (gamma_2), p = 2 the root of the summed squares; p
    in [2, inf].
    """

    p: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_exponent(self.p))

    def rows(self, a: Tensor) -> Tensor:
        return a if self.p == math.inf else log_norm(a, self.p / 2).exp()[..., None]

    def weights(self, a: Tensor, multipliers: Tensor) -> Tensor:
        if self.p == math.inf:
            return multipliers
        return (a / a.amax(-1, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)) ** (
            self.p / 2 - 1
        )


def log_norm(values: Tensor, order: float) -> Tensor:
    """Logarithm of the l_order norm of values >= 0 along the last dimension, differentiable, of any
    order.
    """
    # a zero row or column has no logarithm
    values = values.clamp_min(torch.finfo(values.dtype).tiny)
    return (order * values.log()).logsumexp(-1) / order


@dataclass(frozen=True)
class Groups(Objective):
    """gamma_(p) where a user holds every column of a group: sensitivity max over groups of
    sum_j ||R_j||.

    groups: (g, n), 1 where group and column belong together and 0 elsewhere; a column in each
    group. apart: whether columns of a group share no row, as steps of one user that are as far
    apart as ``strategy`` has bands: then the root of their squares' sum counts. The lower bound is
    of that sum, the convex envelope in b >= 0 of the other one's square (concave of degree 1, it is
    its envelope on the axes): nothing convex in b is a better bound. Without ``apart`` the gap
    stays open, at most the root of a group's size, and descent ends at the least error by the proof
    above. Raises TypeError, ValueError.
    """

    groups: Tensor
    p: float = math.inf
    apart: bool = False
    tight: ClassVar[bool] = False

    def __post_init__(self) -> None:
        groups = checks.one_matrix("groups", self.groups)
        if not bool(((groups == 0) | (groups == 1)).all() and (groups > 0).any(-1).all()):
            raise ValueError("groups must hold zeros and ones, with a column in every group")
        object.__setattr__(self, "groups", groups.clone())
        object.__setattr__(self, "p", check_exponent(self.p))

    def rows(self, a: Tensor) -> Tensor:
        return Norm(self.p).rows(a)

    def columns(self, b: Tensor) -> Tensor:
        sums = (b.clamp_min(torch.finfo(b.dtype).tiny).sqrt() @ self.groups.to(b).T).square()
        return self.least_columns(b) if self.apart else sums

    def least_columns(self, b: Tensor) -> Tensor:
        return b @ self.groups.to(b).T


class Relaxation(nn.Module):
    """left right = W at every value of the parameters.

    With W = U S V^T, L0 = U S^{1/2} and R0 = S^{1/2} V^T (m >= n; a wide W is transposed, and its
    factors with it),
        right = T R0,  left = L0 T^{-1}.
    T (q x q), q the rank of W (the largest of a batch), starts at the identity.

    W: (*batch, m, n), real; each problem of the batch has its own parameters. Raises ValueError,
    TypeError.
    Guarantees: left right = W up to rounding.
    """

    W: Tensor
    unit: Tensor
    start_left: Tensor
    start_right: Tensor

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        W, _, scaled = _prepare(self, W)
        tall = scaled.mT if self.wide else scaled
        U, S, Vh = torch.linalg.svd(tall, full_matrices=False)
        S = torch.where(S > max(W.shape[-2:]) * torch.finfo(S.dtype).eps * S[..., :1], S, 0.0)
        q = max(1, int((S > 0).sum(-1).max()))
        root = S[..., :q].sqrt()
        self.register_buffer("start_left", (U[..., :q] * root[..., None, :]).to(W))
        self.register_buffer("start_right", (root[..., None] * Vh[..., :q, :]).to(W))
        eye = torch.eye(q, dtype=W.dtype, device=W.device)
        self.T = nn.Parameter(eye.expand(*W.shape[:-2], q, q).clone())

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), of shapes (*batch, m, q) and (*batch, q, n)."""
        left = self.unit * torch.linalg.solve(self.T, self.start_left, left=False)
        right = self.unit * (self.T @ self.start_right)
        return (right.mT, left.mT) if self.wide else (left, right)

    @property
    def wide(self) -> bool:
        """Whether W has more columns than rows."""
        return self.W.shape[-2] < self.W.shape[-1]

    @property
    def flatness(self) -> dict[str, Tensor]:
        """Of T_kl, (s_k + s_l)^{-1/2} for the squared row norms s of R0, relative: a unit of
        descent there.
        """
        s = self.start_right.square().sum(-1)
        s = s / s.mean(-1, keepdim=True).clamp_min(torch.finfo(s.dtype).tiny)
        return {"T": ((s[..., :, None] + s[..., None, :]) / 2).clamp_min(1e-8).rsqrt()}


class LowRankRelaxation(nn.Module):
    """left right of rank at most ``rank``, near W: both factors are parameters and start at the
    truncated SVD of W.

    With ``symmetric`` left = right^T diag(weights), one vector for each type: the parameters are
    ``right`` (*batch, rank, n) and ``weights`` (*batch, rank), which start at the eigenvectors of
    the eigenvalues of largest size and at their signs. Nothing keeps the product near W but the
    loss, and no rank below W's can reach it.

    W: (*batch, m, n), real; symmetric where ``symmetric`` says so. rank: at least 1; min(m, n)
    serves for more. Raises ValueError, TypeError.
    """

    W: Tensor
    unit: Tensor
    weights: nn.Parameter  # None where it is not symmetric

    def __init__(self, W: Tensor, rank: int, symmetric: bool = False) -> None:
        super().__init__()
        W, _, scaled = _prepare(self, W)
        rank = checks.integer("rank", rank, 1)
        if checks.instance("symmetric", symmetric, bool):
            if W.shape[-1] != W.shape[-2] or not torch.allclose(
                scaled, scaled.mT, rtol=0, atol=1e-6
            ):
                raise ValueError(
                    "W must be symmetric; a quadratic form is unchanged by W -> (W + W^T) / 2"
                )
            S, U = torch.linalg.eigh(scaled)
            order = S.abs().argsort(-1, descending=True)
            S, U = S.gather(-1, order), U.take_along_dim(order[..., None, :], -1)
            Vh = U.mT
        else:
            U, S, Vh = torch.linalg.svd(scaled, full_matrices=False)
        U, S, Vh = U[..., :rank], S[..., :rank], Vh[..., :rank, :]
        root = S.abs().clamp_min(FAINT).sqrt()
        self.left = None if symmetric else nn.Parameter((U * (S / root)[..., None, :]).to(W))
        self.right = nn.Parameter((root[..., None] * Vh).to(W))
        self.register_parameter(
            "weights", nn.Parameter((S / root.square()).to(W)) if symmetric else None
        )

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), of shapes (*batch, m, rank) and (*batch, rank, n)."""
        right = self.unit * self.right
        return right.mT * self.weights[
            ..., None, :
        ] if self.left is None else self.unit * self.left, right


class Strategy(nn.Module):
    """right = C, left = W C^{-1}, for a square C with the entries of ``mask``; see
    :func:`strategy`.
    """

    def __init__(self, W: Tensor, mask: Tensor, toeplitz: bool, nonnegative: bool) -> None:
        super().__init__()
        n = W.shape[-1]
        if mask.shape != (n, n) or not bool(mask.diagonal().all()):
            raise ValueError(
                f"mask must be ({n}, {n}) beside W, and allow the diagonal, not {tuple(mask.shape)}"
            )
        start = torch.eye(n, dtype=W.dtype, device=W.device)
        start = start.clamp_min(FILLED) if nonnegative else start
        self.place = (
            torch.arange(n, device=W.device)[:, None] - torch.arange(n, device=W.device) + n - 1
        )
        self.W, self.mask, self.nonnegative, self.toeplitz = W, mask.to(W), nonnegative, toeplitz
        diagonals = torch.cat([start[0].flip(-1), start[1:, 0]])
        start = (
            (diagonals if toeplitz else start).sqrt()
            if nonnegative
            else diagonals
            if toeplitz
            else start
        )
        self.C = nn.Parameter(start.expand(*W.shape[:-2], *start.shape).clone())

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), of shapes (*batch, m, n) and (*batch, n, n)."""
        C = self.C.square() if self.nonnegative else self.C
        C = (C[..., self.place] if self.toeplitz else C) * self.mask
        return torch.linalg.solve(C, self.W, left=False), C


def strategy(
    mask: Tensor | None = None,
    *,
    bands: int | None = None,
    toeplitz: bool = False,
    nonnegative: bool = False,
) -> Callable[[Tensor], nn.Module]:
    """The structure W = (W C^{-1}) C of a square strategy C with few entries, all of one sign, or
    equal on diagonals.

    Args:
        mask: (n, n), which entries of C may be other than 0, the diagonal among them: sparse, in
            blocks; None: all.
        bands: of C lower triangular: the diagonal and bands - 1 below it.
        toeplitz: whether C is constant along its diagonals.
        nonnegative: whether no entry of C is negative.

    Raises TypeError, ValueError.
    """
    if mask is not None:
        mask = checks.matrix("mask", mask) != 0
    if bands is not None:
        bands = checks.integer("bands", bands, 1)
    toeplitz = checks.instance("toeplitz", toeplitz, bool)
    nonnegative = checks.instance("nonnegative", nonnegative, bool)

    def build(W: Tensor) -> nn.Module:
        allowed = (
            W.new_ones(W.shape[-1], W.shape[-1], dtype=torch.bool)
            if mask is None
            else mask.to(W.device)
        )
        allowed = allowed if bands is None else allowed.tril() & allowed.triu(1 - bands)
        return Strategy(W, allowed, toeplitz, nonnegative)

    return build


class Product(nn.Module):
    """The Kronecker product of the factors of ``modules``: of W = kron(W_1, W_2, ...), without a
    batch.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), the products of the modules' own."""
        left, right = self.parts[0]()
        for part in self.parts[1:]:
            factors = part()
            left, right = (
                torch.kron(left.contiguous(), factors[0]),
                torch.kron(right.contiguous(), factors[1]),
            )
        return left, right


def smooth_log_norm(left: Tensor, right: Tensor, sharpness: float, p: float = math.inf) -> Tensor:
    """The logarithm of a factorization's norm, smoothed: (*batch), differentiable.

    (log ||a||_s + log ||b||_t) / 2 with a_i = ||left_i||^2, b_j = ||right_j||^2, t = ``sharpness``
    and s = min(t, p/2):
    ||.||_t is the log-sum-exp smoothing of the maximum on the scale of log b, at temperature 1/t.
    Guarantees: at least the logarithm of the l_p norm of left's row norms * the largest column norm
    of right.
    """
    sharpness, p = (
        checks.within("sharpness", sharpness, 1, checks.LARGEST),
        checks.within("p", p, 2, math.inf),
    )
    rows = log_norm(left.square().sum(-1), min(sharpness, p / 2))
    return (rows + log_norm(right.square().sum(-2), sharpness)) / 2


def _prepare(module: nn.Module, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W as the module keeps it, its scale max abs(W), (*batch, 1, 1), and W / scale, both
    float64.
    """
    W = checks.matrix("W", W).detach().clone()
    scale = W.double().abs().amax((-2, -1), keepdim=True)
    scale = divisor(scale)
    module.register_buffer("W", W)
    module.register_buffer("unit", scale.sqrt().to(W))
    return W, scale, W.double() / scale
