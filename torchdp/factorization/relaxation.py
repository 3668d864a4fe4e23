"""The gradient relaxation: factors as nn.Modules, for ``train`` or any torch loop.

A module's forward() returns (left, right), differentiable in its parameters. It starts from a
decomposition of W and draws nothing at random. Parameters and buffers are plain tensors in W's
dtype and on its device, for W scaled to a largest entry of 1, so that one learning rate serves W of
any size; ``unit`` is the square root of that scale.

With a structure descent ends at what is least nearby: for several starts train
``W.expand(k, m, n)`` with modules that move their parameters at random, and take the best.

What they are trained for are functions of the squared norms of left's rows and right's columns. The
squared error that is minimised is max_k [rows(a)_k max_l columns(b)_l + offset_k]: ``columns`` is
what a user may hold, ``rows`` what the answers cost, ``offset`` what W alone adds.

Why descent reaches the least value: for left T^{-1} and T right, G = T^T T, along
G^{1/2} exp(u H) G^{1/2} every a_i and b_j is a sum of exponentials of linear functions of u, so its
logarithm is convex; sums with weights >= 0, products, powers and maxima of such functions are such
functions. So without alpha, and with an offset >= 0 or none, every local minimum in T is global.

Notation: a_i = ||left_i||^2, (*batch, m); b_j = ||right_j||^2, (*batch, n).
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

# What entries that may not be negative start at: at 0 their squares have no slope.
FILLED = 0.1

# Least squared unit of descent, relative to the mean.
FLATTEST = 1e-8


class Objective(Brief, ABC):
    """A squared error to minimise.

    ``rows`` and ``columns`` are homogeneous of degree 1 and never fall in a or b. Where both are
    convex, or ``least_columns`` is and lies below ``columns``, duality bounds the error from below.
    """

    # Whether the lower bound is the least error itself.
    tight: ClassVar[bool] = True

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
        """What proves the lower bound at a: the multipliers, or a Norm's row weights."""
        return multipliers

    def offset(self, W: Tensor) -> Tensor:
        """(*batch, k) or (), in units of W squared."""
        return W.new_zeros(())


@dataclass(frozen=True)
class Norm(Objective):
    """gamma_(p), p in [2, inf]: inf for the worst query's error, 2 for the summed squares' root."""

    p: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_exponent(self.p))

    def rows(self, a: Tensor) -> Tensor:
        if self.p == math.inf:
            return a
        return log_norm(a, self.p / 2).exp()[..., None]

    def weights(self, a: Tensor, multipliers: Tensor) -> Tensor:
        if self.p == math.inf:
            return multipliers
        relative = a / _positive(a.amax(-1, keepdim=True))
        return relative ** (self.p / 2 - 1)


def _positive(values: Tensor) -> Tensor:
    """Zero rows and columns raised, since 0 has no logarithm and no inverse."""
    return values.clamp_min(torch.finfo(values.dtype).tiny)


def log_norm(values: Tensor, order: float) -> Tensor:
    """Logarithm of the l_order norm of values >= 0 along the last dimension, differentiable."""
    values = _positive(values)
    return (order * values.log()).logsumexp(-1) / order


@dataclass(frozen=True)
class Groups(Objective):
    """gamma_(p) where a user holds every column of a group: the largest sum_j ||R_j|| counts.

    Args:
        groups: (g, n), 1 where group and column belong together and 0 elsewhere; a column in each
            group.
        p: in [2, inf].
        apart: whether columns of a group share no row, as steps of one user that are as far apart
            as ``strategy`` has bands: then the root of their squares' sum counts.

    The lower bound is of that sum, the convex envelope in b >= 0 of the other one's square (concave
    of degree 1, it is its envelope on the axes): nothing convex in b is a better bound. Without
    ``apart`` the gap stays open, at most the root of a group's size, and descent ends at the least
    error by the proof above. Raises TypeError, ValueError.
    """

    groups: Tensor
    p: float = math.inf
    apart: bool = False
    tight: ClassVar[bool] = False

    def __post_init__(self) -> None:
        groups = checks.one_matrix("groups", self.groups)
        zeros_and_ones = ((groups == 0) | (groups == 1)).all()
        if not (zeros_and_ones and groups.any(-1).all()):
            raise ValueError("groups must hold zeros and ones, with a column in every group")
        object.__setattr__(self, "groups", groups.clone())
        object.__setattr__(self, "p", check_exponent(self.p))

    def rows(self, a: Tensor) -> Tensor:
        return Norm(self.p).rows(a)

    def columns(self, b: Tensor) -> Tensor:
        if self.apart:
            return self.least_columns(b)
        norms = _positive(b).sqrt()
        return (norms @ self.groups.to(b).T).square()

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
        scaled = _keep(self, W)
        m, n = scaled.shape[-2:]
        U, S, Vh = torch.linalg.svd(scaled.mT if self.wide else scaled, full_matrices=False)
        # Singular values that are rounding would be a direction of T for nothing.
        nothing = max(m, n) * torch.finfo(S.dtype).eps * S[..., :1]
        S = torch.where(S > nothing, S, 0.0)
        ranks = (S > 0).sum(-1)
        q = max(1, int(ranks.max()))  # W = 0 keeps one zero row
        root = S[..., :q].sqrt()
        left = U[..., :q] * root[..., None, :]
        right = root[..., None] * Vh[..., :q, :]
        self.register_buffer("start_left", left.to(self.W))
        self.register_buffer("start_right", right.to(self.W))
        eye = torch.eye(q, dtype=self.W.dtype, device=self.W.device)
        T = eye.expand(*S.shape[:-1], q, q)
        self.T = nn.Parameter(T.clone())

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
        """Units of descent: of T_kl (s_k + s_l)^{-1/2}, s the relative squared row norms of R0."""
        # The curvature in T_kl is about s_k, of left's column k, plus s_l, of right's row l.
        s = self.start_right.square().sum(-1)
        s = s / _positive(s.mean(-1, keepdim=True))
        means = (s[..., :, None] + s[..., None, :]) / 2
        return {"T": means.clamp_min(FLATTEST).rsqrt()}


class Strategy(nn.Module):
    """right = C, left = W C^{-1}, for a square C with the entries of ``mask``: see ``strategy``."""

    def __init__(self, W: Tensor, mask: Tensor, toeplitz: bool, nonnegative: bool) -> None:
        super().__init__()
        n = W.shape[-1]
        if mask.shape != (n, n) or not bool(mask.diagonal().all()):
            raise ValueError(
                f"mask must be ({n}, {n}) beside W, and allow the diagonal, not {tuple(mask.shape)}"
            )
        self.W = W
        self.mask = mask.to(W)
        self.toeplitz = toeplitz
        self.nonnegative = nonnegative
        # Of a Toeplitz C the 2 n - 1 diagonals are the parameters, from the upper right corner.
        steps = torch.arange(n, device=W.device)
        self.place = steps[:, None] - steps + n - 1
        # C = I, or near it where no entry may be negative.
        start = torch.eye(n, dtype=W.dtype, device=W.device)
        if nonnegative:
            start = start.clamp_min(FILLED).sqrt()  # C is their square
        if toeplitz:
            start = torch.cat([start[0].flip(-1), start[1:, 0]])
        start = start.expand(*W.shape[:-2], *start.shape)
        self.C = nn.Parameter(start.clone())

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), of shapes (*batch, m, n) and (*batch, n, n)."""
        C: Tensor = self.C
        if self.nonnegative:
            C = C.square()
        if self.toeplitz:
            C = C[..., self.place]
        C = C * self.mask
        return torch.linalg.solve(C, self.W, left=False), C


def strategy(
    mask: Tensor | None = None,
    *,
    bands: int | None = None,
    toeplitz: bool = False,
    nonnegative: bool = False,
) -> Callable[[Tensor], nn.Module]:
    """The structure W = (W C^{-1}) C of a square strategy C: sparse, of one sign, or Toeplitz.

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
        n = W.shape[-1]
        allowed = W.new_ones(n, n, dtype=torch.bool) if mask is None else mask.to(W.device)
        if bands is not None:
            allowed = allowed.tril() & allowed.triu(1 - bands)
        return Strategy(W, allowed, toeplitz, nonnegative)

    return build


class Product(nn.Module):
    """The Kronecker product of modules' factors: of W = kron(W_1, W_2, ...), without a batch."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), the products of the modules' own."""
        left, right = self.parts[0]()
        for part in self.parts[1:]:
            next_left, next_right = part()
            # torch.kron takes no transposed factors.
            left = torch.kron(left.contiguous(), next_left)
            right = torch.kron(right.contiguous(), next_right)
        return left, right


def smooth_log_norm(left: Tensor, right: Tensor, sharpness: float, p: float = math.inf) -> Tensor:
    """The logarithm of a factorization's norm, smoothed: (*batch), differentiable.

    (log ||a||_s + log ||b||_t) / 2, t = ``sharpness`` and s = min(t, p/2): ||.||_t is the
    log-sum-exp smoothing of the maximum on the scale of log b, at temperature 1/t.

    Args:
        left: (*batch, m, r).
        right: (*batch, r, n).
        sharpness: at least 1.
        p: in [2, inf].

    Guarantees: at least the logarithm of the l_p norm of left's row norms * the largest column norm
    of right.
    """
    sharpness = checks.within("sharpness", sharpness, 1, checks.LARGEST)
    p = checks.within("p", p, 2, math.inf)
    rows = log_norm(left.square().sum(-1), min(sharpness, p / 2))
    columns = log_norm(right.square().sum(-2), sharpness)
    return (rows + columns) / 2


def _keep(module: nn.Module, W: Tensor) -> Tensor:
    """Buffers ``W`` and ``unit``, the root of W's largest size; and W / unit^2, in float64."""
    W = checks.matrix("W", W).detach().clone()
    largest = W.double().abs().amax((-2, -1), keepdim=True)
    scale = divisor(largest)
    module.register_buffer("W", W)
    module.register_buffer("unit", scale.sqrt().to(W))
    return W.double() / scale
