"""Roots of symmetric and antisymmetric matrices, and the signature form of their Kronecker products."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from torchdp.factorization.solvers.fixed_point import RANK_TOLERANCE


@dataclass(frozen=True)
class Root:
    """W = right^T K right, where K is a signed permutation: its row a holds ``sign[a]`` in column ``partner[a]``.

    right: (r, n) with r = rank(W); partner, sign: (r,). K = diag(+-1) for a symmetric W and K = [[0, -1], [1, 0]], in
    blocks of side r / 2, for an antisymmetric one: orthogonal either way, and each other's partners.
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

    With M = diag(w)^{1/2} W diag(w)^{1/2} = V S K V^T, V orthonormal, S diagonal and positive, K as in :class:`Root`:
    right = S^{-1/2} K^T V^T diag(w)^{1/2} W, so that right^T right = diag(w)^{-1/2} abs(M) diag(w)^{-1/2}.
    A symmetric M has V S K V^T by its eigenvectors. For an antisymmetric M, i M is Hermitian; an eigenvector
    (a + i b) / sqrt 2 of i M at s > 0 has M a = s b and M b = -s a, and all a and b are orthonormal.

    W: (n, n) float64, symmetric or antisymmetric; weights: (n,), not negative. W = 0 keeps one zero row.
    """
    size = W.abs().max()
    size = torch.where(size > 0, size, 1.0)
    W, scale = W / size, weights.sqrt()
    M = scale[:, None] * W * scale
    if bool((W - W.mT).norm() <= (W + W.mT).norm()):
        values, V = torch.linalg.eigh(M)
        kept = values.abs() > RANK_TOLERANCE * values.abs().max()
        kept[0] |= ~kept.any()
        values, V = values[kept], V[:, kept]
        partner = torch.arange(len(values), device=W.device)
        sign = torch.where(values < 0, -1.0, torch.ones_like(values)).to(W)
        turned = sign * V  # V K
    else:
        values, vectors = torch.linalg.eigh(1j * M)
        kept = values > RANK_TOLERANCE * values[-1]
        values, vectors = values[kept].repeat(2), math.sqrt(2) * vectors[:, kept]
        half = len(values) // 2
        partner = torch.arange(2 * half, device=W.device).roll(half)
        sign = torch.ones_like(values)
        sign[:half] = -1.0
        turned = torch.cat([vectors.imag, -vectors.real], 1)  # V K
    least = values.abs().clamp_min(torch.finfo(W.dtype).tiny)
    return Root(size.sqrt() * least.rsqrt()[:, None] * ((turned.mT * scale) @ W), partner, sign)


def signature(roots: Sequence[Root]) -> tuple[Tensor, Tensor]:
    """right (r, n) and signature (r,), entries +-1, of the Kronecker product of the roots' matrices.

    X = right_1 (x) right_2 (x) ... and K = K_1 (x) K_2 (x) ..., again a signed permutation, which is symmetric where
    an even number of the roots are antisymmetric. Rows a < b = partner(a) of X, joined by K_ab = K_ba = s, become
        (X_a + s X_b) / sqrt 2 with signature +1   and   (X_b - s X_a) / sqrt 2 with signature -1:
    a rotation, so columns keep their norms, which are the products of the roots' column norms.
    """
    X = reduce(torch.kron, [part.right for part in roots])
    sign = reduce(torch.kron, [part.sign for part in roots])
    partner = roots[0].partner
    for part in roots[1:]:
        partner = (partner[:, None] * len(part.sign) + part.partner).flatten()
    place = torch.arange(len(sign), device=sign.device)
    below = torch.where(place < partner, sign, -sign)
    turned = (X + below[:, None] * X[partner]) / math.sqrt(2)
    alone = place == partner
    return torch.where(alone[:, None], X, turned), torch.where(alone, sign, (place < partner).to(sign) * 2 - 1)
