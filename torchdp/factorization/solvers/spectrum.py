"""What an iteration of the fixed point needs of a weighted matrix, by decompositions.

W (*batch, m, n) may be symmetric, or W J, J the reversal of an index (as of every Toeplitz matrix):
then W J takes W's place. The dual value, the trace norm of diag(c)^{1/2} W diag(P)^{1/2}, is
concave in the weights together, and a transposition moves weights without changing it. So some best
weights are c = P, and the multiplicative update keeps such weights.

Notation:
    X: W, or W less its mean column; c, P: weights of its rows (*batch, m) and columns (*batch, n).
    M = diag(c)^{1/2} X diag(P)^{1/2} = U S V^T, transposed if it is wide: (*batch, l, r), l >= r.
    short, long: the weights of the side of length r and of that of length l.
    a, b: squared row norms of left, (*batch, m), and column norms of right, (*batch, n).

Problem says what the weights are and looks at W by a Spectrum: Decomposed or Mirrored.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm

# Singular values below this share of the largest are cut off.
RANK_TOLERANCE = 1e-14
# Share of a Gram matrix's largest eigenvalue, a square, below which one is rounding.
SQUARE_TOLERANCE = 1e-10

Pair = tuple[Tensor, Tensor]


class Step(NamedTuple):
    """What one iteration needs."""

    parts: Pair  # V and S, what :func:`maps` makes (inner, across) of
    a: Tensor
    b: Tensor
    trace: Tensor  # norm (*batch)
    missing: Tensor | None  # row norms of X - left right (*batch, m), None for 0


class Spectrum(ABC):
    """M = U S V^T, as far as an iteration needs it."""

    @abstractmethod
    def step(self, X: Tensor, c: Tensor, P: Tensor) -> Step:
        """One iteration's numbers, accurate enough to be of use."""

    def refine(self) -> bool:
        """As accurate as float64 allows from now on.

        Returns:
            Whether the trace norms so far may have been too large.
        """
        return False


def factors(X: Tensor, inner: Tensor, across: Tensor) -> Pair:
    """left (*batch, m, r) and right (*batch, r, n) with left right = X.

    The short side's factor is ``across``, the long side's X times ``inner``, where inner across^T =
    I: their product is X whatever the rounding of the singular values. Up to a rotation, across =
    diag(short)^{-1/2} V S^{1/2} and inner = diag(short)^{1/2} V S^{-1/2}.
    """
    if X.shape[-2] >= X.shape[-1]:
        return X @ inner, across.mT
    return across, (X.mT @ inner).mT


def triangle(W: Tensor) -> Tensor:
    """Square T with T^T T = W^T W, of Cholesky's or the QR decomposition."""
    gram = W.mT @ W
    T, failed = torch.linalg.cholesky_ex(gram, upper=True)
    pivots = T.diagonal(dim1=-2, dim2=-1).square()
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    # Cholesky's while its pivots are accurate.
    if not failed.any() and bool((pivots > SQUARE_TOLERANCE * lengths).all()):
        return T
    return torch.linalg.qr(W, mode="r").R


class Decomposed(Spectrum):
    """Singular vectors: eigenvectors of the Gram matrix while they are accurate, then the SVD.

    Problem by problem of a batch: one that is ill-conditioned does not make the others wait for its
    SVD.
    """

    def __init__(self) -> None:
        self.precise: Tensor | None = None  # which problems take the SVD, (*batch)
        self.all = False

    def refine(self) -> bool:
        rough = not self.all
        self.all = True
        return rough

    def step(self, X: Tensor, c: Tensor, P: Tensor) -> Step:
        weighed = _Weighed.of(X, c, P)
        S, V = self._vectors(weighed.M)
        inverse = S.reciprocal()
        missing = None
        # Eigenvectors that are accurate have no singular value to be cut off.
        if self.all or self.precise is not None:
            kept = _kept(S)
            inverse = torch.where(kept, inverse, 0.0)
            if not bool(kept.all()):
                left, right = factors(X, *maps(V, S, weighed.short))
                squares = (X - left @ right).square()
                missing = squares.sum(-1).sqrt()
        along = ((weighed.M @ V).square_() @ inverse[..., None])[..., 0]
        across = (V.square() @ S[..., None])[..., 0]
        a, b = weighed.norms(along, across)
        return Step((V, S), a, b, S.sum(-1), missing)

    def _vectors(self, M: Tensor) -> Pair:
        """S and V."""
        if self.all:
            return right_vectors(M)
        squares, V = torch.linalg.eigh(M.mT @ M)
        poor = torch.sub(squares[..., 0], squares[..., -1], alpha=SQUARE_TOLERANCE) <= 0
        if self.precise is not None:
            poor = poor & ~self.precise
        if bool(poor.any()):
            self.precise = poor if self.precise is None else self.precise | poor
            self.all = bool(self.precise.all())
            return self._vectors(M)
        S = squares.sqrt()
        if self.precise is not None:
            S[self.precise], V[self.precise] = right_vectors(M[self.precise])
        return S, V


def right_vectors(M: Tensor) -> Pair:
    """Singular values and right singular vectors, to the accuracy of float64."""
    if M.shape[-2] > M.shape[-1]:
        M = torch.linalg.qr(M, mode="r").R
    _, S, Vh = torch.linalg.svd(M, full_matrices=False)
    return S, Vh.mT


class Mirrored(Spectrum):
    """A symmetric X with the same weights c on rows and columns: eigenvectors, without products.

    diag(c)^{1/2} X diag(c)^{1/2} = V Lambda V^T has singular values abs(Lambda), which are not
    squared; a = b. Where one of them is lost in rounding :class:`Decomposed` takes over.
    """

    def __init__(self) -> None:
        self.general: Decomposed | None = None

    def refine(self) -> bool:
        return self.general is not None and self.general.refine()

    def step(self, X: Tensor, c: Tensor, P: Tensor) -> Step:
        if self.general is None:
            M = _Weighed.of(X, c, P).M
            values, V = torch.linalg.eigh(M)
            S = values.abs()
            if bool((S.amin(-1) > SQUARE_TOLERANCE * S.amax(-1)).all()):
                norms = (V.square() @ S[..., None])[..., 0] / c
                return Step((V, S), norms, norms, S.sum(-1), None)
            self.general = Decomposed()
        return self.general.step(X, c, P)


class _Weighed(NamedTuple):
    """M, its longer side first, and both sides' weights."""

    M: Tensor
    long: Tensor
    short: Tensor
    tall: bool

    @classmethod
    def of(cls, X: Tensor, c: Tensor, P: Tensor) -> "_Weighed":
        M = c.sqrt()[..., None] * X * P.sqrt()[..., None, :]
        if X.shape[-2] >= X.shape[-1]:
            return cls(M, c, P, tall=True)
        return cls(M.mT, P, c, tall=False)

    def norms(self, along: Tensor, across: Tensor) -> Pair:
        """a and b from the squared norms of the factors of M, of the long and the short side."""
        along = along / self.long
        across = across / self.short
        return (along, across) if self.tall else (across, along)


def _kept(S: Tensor) -> Tensor:
    return S > RANK_TOLERANCE * S.amax(-1, keepdim=True)


def maps(V: Tensor, S: Tensor, short: Tensor) -> Pair:
    """(inner, across) from singular vectors V and values S, see :func:`factors`."""
    kept = _kept(S)
    root = short.sqrt()[..., None]
    inner = root * V * torch.where(kept, S.rsqrt(), 0.0)[..., None, :]
    across = V * torch.where(kept, S, 0.0).sqrt()[..., None, :] / root
    return inner, across


class Found(NamedTuple):
    """One iteration's numbers."""

    value: Tensor  # of the factors, (*batch)
    trace: Tensor  # norm, (*batch)
    norms: Tensor  # squared, of left's rows and right's columns, (*batch, k, L)
    primal: tuple[Tensor, ...]  # parts of the maps, and dual weights: what factors come of
    steady: Tensor  # problems whose trace norm did not fall


class Problem:
    """W, symmetric or not, and how to look at it.

    Weights are held as (*batch, k, L), k = 1 where W is symmetric, else 2, rows first; L = the
    longer side. ``inside`` (k, L): 1, and 0 beyond the shorter side.
    """

    def __init__(self, W: Tensor, symmetric: bool, p: float, shift: bool) -> None:
        self.W = W
        self.symmetric = symmetric
        self.p = p
        self.shift = shift
        self.q = 1 / conjugate(p)  # exponent: ||c||_{1/q} = 1 for c = s^q
        m, n = W.shape[-2:]
        place = torch.arange(max(m, n), device=W.device)
        sides = [m] if symmetric else [m, n]
        self.inside = torch.stack([(place < side).double() for side in sides])

    def split(self, weights: Tensor) -> Pair:
        """Weights of the rows, (*batch, m), and of the columns, (*batch, n)."""
        m, n = self.W.shape[-2:]
        return weights[..., 0, :m], weights[..., -1, :n]

    def joined(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(*batch, k, L) from numbers of the rows and of the columns."""
        if self.symmetric:
            return rows[..., None, :]
        m, n = self.W.shape[-2:]
        rows = torch.nn.functional.pad(rows, (0, max(n - m, 0)))
        columns = torch.nn.functional.pad(columns, (0, max(m - n, 0)))
        return torch.stack([rows, columns], -2)

    def dual(self, weights: Tensor) -> Tensor:
        """c and P from the weights s and P, (*batch, k, L)."""
        if self.q == 1.0:
            return weights
        return torch.stack([weights[..., 0, :] ** self.q, weights[..., 1, :]], -2)

    def look(self, weights: Tensor, previous: Tensor, spectrum: Spectrum) -> Found:
        """One iteration's numbers at these weights, after those of trace norm ``previous``."""
        dual = self.dual(weights)
        c, P = self.split(dual)
        X = self.W - self.W @ P[..., None] if self.shift else self.W
        step = spectrum.step(X, c, P)
        largest = step.b.amax(-1)
        if self.p == math.inf:
            value = (step.a.amax(-1) * largest).sqrt()
        else:
            value = power_norm(step.a.sqrt(), self.p) * largest.sqrt()
        if step.missing is not None:
            value = value + power_norm(step.missing, self.p)
        return Found(
            value=value,
            trace=step.trace,
            norms=self.joined(step.a, step.b),
            primal=(*step.parts, dual),
            steady=step.trace >= previous * (1 - 1e-12),
        )


def symmetry_of(W: Tensor, p: float, shift: bool) -> tuple[bool, bool]:
    """Whether W or W J is symmetric, and whether it is W J.

    By exact comparison, for all of a batch, for p = inf without shift alone.
    """
    if p < math.inf or shift or W.shape[-2] != W.shape[-1]:
        return False, False
    symmetric = torch.equal(W, W.mT)
    turned = not symmetric and torch.equal(W.flip(-2, -1), W.mT)
    return symmetric or turned, turned
