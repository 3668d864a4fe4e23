"""What an iteration of the fixed point needs of a weighted matrix: by decompositions, or by matrix products."""

import math
from typing import Protocol

import torch
from torch import Tensor

from torchdp.factorization.polar import polar

RANK_TOLERANCE = 1e-14  # singular values below this share of the largest are cut off
# Eigenvalues of a Gram matrix are squares: below this share of the largest they are mostly rounding.
SQUARE_TOLERANCE = 1e-10
# What an inexact polar factor may cost, as a share of the gap so far: more slows the iteration down.
SHARE = 1 / 256
# ... and of the lightest weight, relative to the mean. A row or column of weight w has a singular value of about w:
# one that is not resolved makes the norms of a row that has no weight too large, and that row grow.
LIGHT = 1e-5
SINGLE = 1e-2  # gap down to which float32 is tried
LARGE = 256  # short side from which a GPU takes matrix products: its eigenvectors come one matrix after the other

# Maps (inner, across), a, b, trace norm, row norms of what the factors miss: see Spectrum.step.
Step = tuple[tuple[Tensor, Tensor], Tensor, Tensor, Tensor, Tensor]


class Spectrum(Protocol):
    """The weighted matrix diag(c)^{1/2} X diag(P)^{1/2} = U S V^T, as far as an iteration needs it."""

    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        """What one iteration needs, with r = min(m, n) the short side of X (*batch, m, n).

        Returns the maps (inner, across), both (*batch, r, r), from which :func:`factors` makes left and right;
        a (*batch, m) and b (*batch, n), the squared row norms of left and column norms of right; the trace norm
        (*batch), or less; the row norms of X - left right (*batch, m). ``gap`` is the largest relative gap so far.
        """

    def refine(self) -> bool:
        """As accurate as float64 allows from now on; whether the trace norms so far may have been too large."""


def choose(W: Tensor) -> Spectrum:
    """Matrix products for large matrices on a GPU, decompositions elsewhere: on a CPU eigh costs five products."""
    large = min(W.shape[-2:]) >= LARGE
    return Iterated() if W.is_cuda and large else Decomposed()


def factors(X: Tensor, inner: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
    """left (*batch, m, r) and right (*batch, r, n) with left right = X.

    The short side's factor is ``across``, the long side's X times ``inner``, where inner across^T = I:
    their product is X whatever the rounding of the singular values. Up to a rotation, across = diag(short)^{-1/2} V
    S^{1/2} and inner = diag(short)^{1/2} V S^{-1/2}.
    """
    if X.shape[-2] >= X.shape[-1]:
        return X @ inner, across.mT
    return across, (X.mT @ inner).mT


def triangle(W: Tensor) -> Tensor:
    """Square T with T^T T = W^T W: Cholesky's while its pivots are accurate, else that of the QR decomposition."""
    gram = W.mT @ W
    T, failed = torch.linalg.cholesky_ex(gram, upper=True)
    pivots, lengths = (M.diagonal(dim1=-2, dim2=-1) for M in (T, gram))
    if not failed.any() and bool((pivots.square() > SQUARE_TOLERANCE * lengths).all()):
        return T
    return torch.linalg.qr(W, mode="r").R


class Decomposed:
    """Singular vectors: eigenvectors of the smaller Gram matrix while they are accurate, then always the SVD."""

    def __init__(self) -> None:
        self.precise = False

    def refine(self) -> bool:
        rough, self.precise = not self.precise, True
        return rough

    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        del gap
        tall = X.shape[-2] >= X.shape[-1]
        long, short = (c, P) if tall else (P, c)
        Y = X if tall else X.mT  # (*batch, long, short)
        S, V = self._right(Y, long, short)
        kept = S > RANK_TOLERANCE * S[..., :1]
        inverse = torch.where(kept, S.rsqrt(), 0.0)[..., None, :]
        inner = short.sqrt()[..., None] * V * inverse
        across = V * torch.where(kept, S, 0.0).sqrt()[..., None, :] / short.sqrt()[..., None]
        a, b = _squares(Y, inner, across, tall)
        missing = torch.zeros_like(c)
        if not bool(kept.all()):
            left, right = factors(X, inner, across)
            missing = (X - left @ right).square().sum(-1).sqrt()
        return (inner, across), a, b, S.sum(-1), missing

    def _right(self, Y: Tensor, long: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
        """Singular values, descending, and right singular vectors of diag(long)^{1/2} Y diag(short)^{1/2}."""
        scale = short.sqrt()[..., None, :]
        if not self.precise:
            gram = scale.mT * ((long[..., None] * Y).mT @ Y) * scale
            values, V = torch.linalg.eigh(gram)
            if bool((values[..., 0] > SQUARE_TOLERANCE * values[..., -1]).all()):
                return values.flip(-1).sqrt(), V.flip(-1)
            self.precise = True
        M = long.sqrt()[..., None] * Y * scale
        square = torch.linalg.qr(M, mode="r").R if M.shape[-2] > M.shape[-1] else M
        _, S, Vh = torch.linalg.svd(square, full_matrices=False)
        return S, Vh.mT


class Iterated:
    """The polar factor Q of M = diag(long)^{1/2} Y diag(short)^{1/2} by matrix products, no closer than the gap asks.

    Any contraction Q proves <M, Q> <= trace norm, and any H > 0 gives factors of X: C^T C = H, left = Y
    diag(short)^{1/2} C^{-1}, right = C diag(short)^{-1/2}. So both bounds hold at whatever accuracy. H is the symmetric
    part of Q^T M plus loss trace diag(short), which adds loss trace to each squared norm on the short side and takes
    from those on the long side. ``loss`` follows the gap and the lightest weight. The steps run in float32
    until the gap is below SINGLE, or does not fall, or Cholesky's factor fails; where it fails in float64, the
    decompositions take over.
    """

    def __init__(self) -> None:
        self.dtype = torch.float32
        self.gap = math.inf
        self.decomposed: Decomposed | None = None

    def refine(self) -> bool:
        self.dtype = torch.float64
        return self.decomposed is not None and self.decomposed.refine()

    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        if gap < SINGLE or self.gap <= gap < math.inf:
            self.dtype = torch.float64
        self.gap = gap
        lightest = min(float((w.amin(-1) / w.mean(-1)).min()) for w in (c, P))
        loss = max(1e-14, min(SHARE * gap, LIGHT * lightest))
        while self.decomposed is None:
            found = self._attempt(X, c, P, loss)
            if found is not None:
                return found
            if self.dtype == torch.float64:
                self.decomposed = Decomposed()
            self.dtype = torch.float64
        return self.decomposed.step(X, c, P, gap)

    def _attempt(self, X: Tensor, c: Tensor, P: Tensor, loss: float) -> Step | None:
        tall = X.shape[-2] >= X.shape[-1]
        long, short = (c, P) if tall else (P, c)
        Y = X if tall else X.mT  # (*batch, long, short)
        M = long.sqrt()[..., None] * Y * short.sqrt()[..., None, :]
        if M.shape[-2] > 2 * M.shape[-1]:
            M = triangle(M)
        H = polar(M, loss, self.dtype).mT @ M
        H = (H + H.mT) / 2
        trace = H.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)
        nonzero = (trace > 0)[..., None]
        H.diagonal(dim1=-2, dim2=-1).add_(short * torch.where(nonzero, loss * trace[..., None], 1.0))
        C, failed = torch.linalg.cholesky_ex(H, upper=True)
        if bool(failed.any()):
            return None
        root = short.sqrt()
        eye = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device)
        inner = root[..., None] * torch.linalg.solve_triangular(C, eye, upper=True)
        across = (C / root[..., None, :]).mT * nonzero[..., None]
        a, b = _squares(Y, inner, across, tall)
        return (inner, across), a, b, trace, torch.zeros_like(c)


def _squares(Y: Tensor, inner: Tensor, across: Tensor, tall: bool) -> tuple[Tensor, Tensor]:
    """Squared row norms of left and squared column norms of right."""
    along, side = (Y @ inner).square_().sum(-1), across.square().sum(-1)
    return (along, side) if tall else (side, along)
