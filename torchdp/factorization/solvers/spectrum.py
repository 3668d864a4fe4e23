"""What an iteration of the fixed point needs of a weighted matrix: by decompositions, or by matrix
products.

W (*batch, m, n) may be symmetric, or W J, J the reversal of an index (as of every Toeplitz matrix):
then W J takes W's place. The dual value, the trace norm of diag(c)^{1/2} W diag(P)^{1/2}, is
concave in the weights together, and a transposition moves weights without changing it. So some best
weights are c = P, and the multiplicative update keeps such weights.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm
from torchdp.factorization.polar import polar

RANK_TOLERANCE = 1e-14  # singular values below this share of the largest are cut off
# share of a Gram matrix's largest eigenvalue, a square, below which one is rounding
SQUARE_TOLERANCE = 1e-10
# of the gap so far, that an inexact polar factor may cost: more slows the iteration down
SHARE = 1 / 256
# of the lightest weight w, the same: with a singular value of some w unresolved, a row of no weight
# grows
LIGHT = 1e-5
SINGLE = 1e-2  # gap down to which float32 is tried for matrix products
# short side from which a GPU takes matrix products: its eigenvectors come one matrix after the
# other
LARGE = 256

Maps = tuple[Tensor, Tensor]


class Step(NamedTuple):
    """What one iteration needs, with r = min(m, n) the short side of X (*batch, m, n).

    parts: what ``maps(parts, short side's weights)`` makes (inner, across) of, both (*batch, r, r):
    see :func:`factors`; a (*batch, m) and b (*batch, n): the squared row norms of left and column
    norms of right; trace: the trace norm (*batch), or less; missing: row norms of X - left right
    (*batch, m), None for 0.
    """

    parts: tuple[Tensor, Tensor]
    maps: Callable[[tuple[Tensor, Tensor], Tensor], Maps]
    a: Tensor
    b: Tensor
    trace: Tensor
    missing: Tensor | None


class Spectrum(ABC):
    """The weighted matrix diag(c)^{1/2} X diag(P)^{1/2} = U S V^T, as far as an iteration
    needs it.
    """

    @abstractmethod
    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        """One iteration's numbers, accurate enough to be of use. ``gap`` is the largest relative
        gap so far.
        """

    def refine(self) -> bool:
        """As accurate as float64 allows from now on; whether the trace norms so far may have been
        too large.
        """
        return False


def choose(W: Tensor, mirrored: bool = False) -> Spectrum:
    """Matrix products for large matrices on a GPU, decompositions elsewhere: on a CPU eigh costs
    five products.
    """
    if W.is_cuda and min(W.shape[-2:]) >= LARGE:
        return Iterated()
    return Mirrored() if mirrored else Decomposed()


def factors(X: Tensor, inner: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
    """left (*batch, m, r) and right (*batch, r, n) with left right = X.

    The short side's factor is ``across``, the long side's X times ``inner``, where inner across^T =
    I: their product is X whatever the rounding of the singular values. Up to a rotation, across =
    diag(short)^{-1/2} V S^{1/2} and inner = diag(short)^{1/2} V S^{-1/2}.
    """
    if X.shape[-2] >= X.shape[-1]:
        return X @ inner, across.mT
    return across, (X.mT @ inner).mT


def triangle(W: Tensor) -> Tensor:
    """Square T with T^T T = W^T W: Cholesky's while its pivots are accurate, else that of the QR
    decomposition.
    """
    gram = W.mT @ W
    T, failed = torch.linalg.cholesky_ex(gram, upper=True)
    pivots, lengths = (M.diagonal(dim1=-2, dim2=-1) for M in (T, gram))
    if not failed.any() and bool((pivots.square() > SQUARE_TOLERANCE * lengths).all()):
        return T
    return torch.linalg.qr(W, mode="r").R


class Decomposed(Spectrum):
    """Singular vectors: eigenvectors of the smaller Gram matrix while they are accurate, then
    always the SVD.

    Problem by problem of a batch: one that is ill-conditioned does not make the others wait for its
    SVD.
    """

    def __init__(self) -> None:
        self.precise: Tensor | None = None  # which problems take the SVD, (*batch)
        self.all = False

    def refine(self) -> bool:
        rough, self.all = not self.all, True
        return rough

    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        M, short, tall = _weighed(X, c, P)  # (*batch, long, short)
        S, V = self._vectors(M)
        svd = self.all or self.precise is not None
        kept = _kept(S) if svd else None
        inverse = S.reciprocal() if kept is None else torch.where(kept, S.reciprocal(), 0.0)
        along, side = (
            ((M @ V).square_() @ inverse[..., None])[..., 0],
            (V.square() @ S[..., None])[..., 0],
        )
        a, b = (along / c, side / P) if tall else (side / c, along / P)
        missing = None
        if kept is not None and not bool(kept.all()):
            left, right = factors(X, *_singular_maps((V, S), short))
            missing = (X - left @ right).square().sum(-1).sqrt()
        return Step((V, S), _singular_maps, a, b, S.sum(-1), missing)

    def _vectors(self, M: Tensor) -> tuple[Tensor, Tensor]:
        if self.all:
            return right_vectors(M)
        values, V = torch.linalg.eigh(M.mT @ M)
        poor = torch.sub(values[..., 0], values[..., -1], alpha=SQUARE_TOLERANCE) <= 0
        if self.precise is not None:
            poor = poor & ~self.precise
        if bool(poor.any()):
            self.precise = poor if self.precise is None else self.precise | poor
            self.all = bool(self.precise.all())
            return self._vectors(M)
        S = values.sqrt()
        if self.precise is not None:
            S[self.precise], V[self.precise] = right_vectors(M[self.precise])
        return S, V


def right_vectors(M: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors, to the accuracy of float64."""
    square = torch.linalg.qr(M, mode="r").R if M.shape[-2] > M.shape[-1] else M
    _, S, Vh = torch.linalg.svd(square, full_matrices=False)
    return S, Vh.mT


class Mirrored(Spectrum):
    """A symmetric X with the same weights c on rows and columns: its eigenvectors, without
    products.

    diag(c)^{1/2} X diag(c)^{1/2} = V Lambda V^T has singular values abs(Lambda), which are not
    squared; a = b. Where one of them is lost in rounding :class:`Decomposed` takes over.
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.dtype = dtype
        self.general: Decomposed | None = None

    def refine(self) -> bool:
        return self.general is not None and self.general.refine()

    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        if self.general is not None:
            return self.general.step(X, c, P, gap)
        values, V = torch.linalg.eigh(_weighed(X, c, P)[0].to(self.dtype))
        S = values.abs()
        if not bool((S.amin(-1) > SQUARE_TOLERANCE * S.amax(-1)).all()):
            self.general = Decomposed()
            return self.general.step(X, c, P, gap)
        norms = (V.square() @ S[..., None])[..., 0] / c
        return Step((V, S), _singular_maps, norms, norms, S.sum(-1), None)


class Iterated(Spectrum):
    """The polar factor Q of M = diag(long)^{1/2} Y diag(short)^{1/2} by matrix products, no closer
    than the gap asks.

    Any contraction Q proves <M, Q> <= trace norm, and any H > 0 gives factors of X: C^T C = H,
    left = Y diag(short)^{1/2} C^{-1}, right = C diag(short)^{-1/2}. So both bounds hold at whatever
    accuracy. H is the symmetric part of Q^T M plus loss trace diag(short), which adds loss trace to
    each squared norm on the short side and takes from those on the long side. ``loss`` follows the
    gap and the lightest weight. The steps run in float32 until the gap is below SINGLE, or does not
    fall, or Cholesky's factor fails; where it fails in float64, the decompositions take over.
    """

    def __init__(self) -> None:
        self.dtype = torch.float32
        self.gap = math.inf
        self.lightest = 1.0  # weight, relative to the mean, one step ago
        self.decomposed: Decomposed | None = None

    def refine(self) -> bool:
        self.dtype = torch.float64
        return self.decomposed is not None and self.decomposed.refine()

    def step(self, X: Tensor, c: Tensor, P: Tensor, gap: float) -> Step:
        if gap < SINGLE or self.gap <= gap < math.inf:
            self.dtype = torch.float64
        self.gap = gap
        while self.decomposed is None:
            found = self._attempt(X, c, P, max(1e-14, min(SHARE * gap, LIGHT * self.lightest)))
            if found is not None:
                return found
            if self.dtype == torch.float64:
                self.decomposed = Decomposed()
            self.dtype = torch.float64
        return self.decomposed.step(X, c, P, gap)

    def _attempt(self, X: Tensor, c: Tensor, P: Tensor, loss: float) -> Step | None:
        """None where Cholesky's factor fails."""
        M, short, tall = _weighed(X, c, P)
        Y = M
        if M.shape[-2] > 2 * M.shape[-1]:
            M = triangle(M)
        H = polar(M, loss, self.dtype).mT @ M
        H = (H + H.mT) / 2
        trace = H.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)
        nonzero = (trace > 0)[..., None]
        H.diagonal(dim1=-2, dim2=-1).add_(
            short * torch.where(nonzero, loss * trace[..., None], 1.0)
        )
        C, failed = torch.linalg.cholesky_ex(H, upper=True)
        along = torch.linalg.solve_triangular(C, Y, upper=True, left=False).square_().sum(-1)
        side = C.square().sum(-2) * nonzero
        a, b = (along / c, side / P) if tall else (side / c, along / P)
        lightest = torch.minimum((c.amin(-1) / c.mean(-1)).amin(), (P.amin(-1) / P.mean(-1)).amin())
        fails, self.lightest = torch.stack([failed.any().double(), lightest]).tolist()
        return None if fails else Step((C, nonzero), _triangular_maps, a, b, trace, None)


def _weighed(X: Tensor, c: Tensor, P: Tensor) -> tuple[Tensor, Tensor, bool]:
    """diag(c)^{1/2} X diag(P)^{1/2}, its longer side first; the weights of the shorter side;
    whether X is tall.
    """
    M = c.sqrt()[..., None] * X * P.sqrt()[..., None, :]
    return (M, P, True) if X.shape[-2] >= X.shape[-1] else (M.mT, c, False)


def _kept(S: Tensor) -> Tensor:
    return S > RANK_TOLERANCE * S.amax(-1, keepdim=True)


def _singular_maps(parts: tuple[Tensor, Tensor], short: Tensor) -> Maps:
    """(inner, across) from singular vectors V and values S."""
    V, S = (part.double() for part in parts)
    kept, root = _kept(S), short.sqrt()[..., None]
    inner = root * V * torch.where(kept, S.rsqrt(), 0.0)[..., None, :]
    return inner, V * torch.where(kept, S, 0.0).sqrt()[..., None, :] / root


def _triangular_maps(parts: tuple[Tensor, Tensor], short: Tensor) -> Maps:
    """(inner, across) from C, and whether the norm is not 0."""
    C, nonzero = parts
    root = short.sqrt()
    eye = torch.eye(C.shape[-1], dtype=C.dtype, device=C.device)
    inner = root[..., None] * torch.linalg.solve_triangular(C, eye, upper=True)
    return inner, (C / root[..., None, :]).mT * nonzero[..., None]


class Found(NamedTuple):
    """One iteration's numbers: primal (parts of the maps, and dual weights) is what factors come
    of.
    """

    value: Tensor  # of the factors, (*batch)
    trace: Tensor  # norm, or less, (*batch)
    norms: Tensor  # squared, of left's rows and right's columns, (*batch, k, L)
    primal: tuple[Tensor, ...]
    maps: Callable[..., tuple[Tensor, Tensor]]
    steady: Tensor  # problems whose trace norm did not fall


class Problem:
    """W, symmetric or not, and how to look at it.

    Weights are held as (*batch, k, L), k = 1 where W is symmetric, else 2, rows first; L = the
    longer side. ``inside`` (k, L): 1, and 0 beyond the shorter side.
    """

    def __init__(self, W: Tensor, symmetric: bool, p: float, shift: bool) -> None:
        self.W, self.symmetric, self.p, self.shift = W, symmetric, p, shift
        self.q = 1 / conjugate(p)  # exponent: ||c||_{1/q} = 1 for c = s^q
        m, n = W.shape[-2:]
        places = torch.arange(max(m, n), device=W.device)
        self.inside = torch.stack(
            [(places < side).double() for side in ((m,) if symmetric else (m, n))]
        )

    def split(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the rows, (*batch, m), and of the columns, (*batch, n)."""
        m, n = self.W.shape[-2:]
        return weights[..., 0, :m], weights[..., -1, :n]

    def joined(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(*batch, k, L) from numbers of the rows and of the columns."""
        if self.symmetric:
            return rows[..., None, :]
        if rows.shape != columns.shape:
            length = self.inside.shape[-1]
            rows, columns = (
                torch.nn.functional.pad(x, (0, length - x.shape[-1])) for x in (rows, columns)
            )
        return torch.stack([rows, columns], -2)

    def dual(self, weights: Tensor) -> Tensor:
        """c and P from the weights s and P, (*batch, k, L)."""
        if self.q == 1.0:
            return weights
        return torch.stack([weights[..., 0, :] ** self.q, weights[..., 1, :]], -2)

    def centred(self, dual: Tensor) -> Tensor:
        """What the weights are weighed on: W, or with a shift W less its mean column."""
        return self.W - self.W @ self.split(dual)[1][..., None] if self.shift else self.W

    def look(self, weights: Tensor, previous: Tensor, spectrum: Spectrum, gap: float) -> Found:
        """One iteration's numbers at these weights, after those of trace norm ``previous``."""
        dual = self.dual(weights)
        step = spectrum.step(self.centred(dual), *self.split(dual), gap)
        norms = self.joined(step.a, step.b)
        if self.p == math.inf:
            value = norms.amax(-1).prod(-1).sqrt() if norms.shape[-2] == 2 else norms.amax((-2, -1))
        else:
            value = power_norm(step.a.sqrt(), self.p) * step.b.amax(-1).sqrt()
        if step.missing is not None:
            value = value + power_norm(step.missing, self.p)
        steady = step.trace >= previous * (1 - 1e-12)
        return Found(value, step.trace, norms, (*step.parts, dual), step.maps, steady)


def symmetry_of(W: Tensor, p: float, shift: bool) -> tuple[bool, bool]:
    """Whether W or W J is symmetric, and whether it is W J; by exact comparison, for all of a
    batch, p = inf alone.
    """
    if p < math.inf or shift or W.shape[-2] != W.shape[-1]:
        return False, False
    turned = not torch.equal(W, W.mT) and torch.equal(W.flip(-2, -1), W.mT)
    return turned or torch.equal(W, W.mT), turned
