"""Skew-circulant matrices: their factorization norms in closed form, and what the literature makes of them.

Imported by the scripts beside it.
"""

import math

import torch
from torch import Tensor

from torchdp import workloads
from torchdp.factorization import Factorization
from torchdp.factorization.constructive import at_uniform_weights


def skew_circulant(first: Tensor, p: float = math.inf) -> Factorization:
    """The optimal factorization of the skew-circulant matrix c_{i-j} for i >= j, -c_{n+i-j} above, into two such.

    left has the eigenvalues abs(v)^{1/2} and right v abs(v)^{-1/2}, v = fft(c t), t_j = e^{-i pi j / n}. Shifting rows
    and columns together, with a change of sign, leaves the matrix as it is, so uniform weights are optimal.
    first: (n,), c. All ones: +1 on and below the diagonal, -1 above; (0, 1, ..., 1): sgn(i - j).

    Guarantees: optimal for every p: both bounds equal n^{1/p - 1} sum_k abs(v_k), up to rounding.
    Source: Lee, Shraibman, Spalek (2008) for gamma_2 under a group; the power of n from the row weights n^{-(p-2)/p}.
    """
    first = first.double()
    angle = torch.arange(len(first), dtype=torch.float64, device=first.device) * (-math.pi / len(first))
    twist = torch.polar(torch.ones_like(angle), angle)
    values = torch.fft.fft(first * twist)
    root = values.abs().sqrt()
    phase = torch.where(root > 0, values / torch.where(root > 0, root, 1.0), 0.0)
    left, right = (_spread((torch.fft.ifft(v) * twist.conj()).real) for v in (root, phase))
    return at_uniform_weights(_spread(first), left, right, p)


def _spread(first: Tensor) -> Tensor:
    n = len(first)
    place = torch.arange(n, device=first.device)
    matrix = first[(place[:, None] - place) % n]
    return torch.where(place[:, None] < place, -matrix, matrix)


def gamma_sign_triangular(n: int, p: float = math.inf) -> float:
    """gamma_(p) of +1 on and below the diagonal and -1 above it, n x n: n^{1/p - 1} sum_j csc((2j-1) pi/2n).

    Source: Mathias (1993); the eigenvalues of the skew-circulant matrix with first column 1.
    """
    return n ** (1 / p - 1) * sum(1 / math.sin((2 * j - 1) * math.pi / (2 * n)) for j in range(1, n + 1))


def gamma_sign(n: int, p: float = math.inf) -> float:
    """gamma_(p) of sgn(i - j), zero on the diagonal: n^{1/p - 1} sum_j abs(cot((2j-1) pi/2n)).

    Source: the eigenvalues of the skew-circulant matrix with first column (0, 1, ..., 1).
    """
    return n ** (1 / p - 1) * sum(abs(1 / math.tan((2 * j - 1) * math.pi / (2 * n))) for j in range(1, n + 1))


def group_algebra(k: int, p: float = math.inf) -> Factorization:
    """Prefix sums as (S + 1 1^T) / 2, S with +1 on and below the diagonal and -1 above: S is skew-circulant.

    gamma_2's upper bound is (gamma_2(S) + 1) / 2 (:func:`gamma_sign_triangular`), ln k / pi + 0.981 as k grows.
    Source: Mathias (1993) for the bound; Henzinger, Upadhyay (2025) for the factorization.
    """
    W = workloads.prefix(k).dense()
    S = skew_circulant(torch.ones(k, dtype=torch.float64, device=W.device))
    one = torch.ones(k, 1, dtype=torch.float64, device=W.device)
    left, right = torch.cat([S.left, one], 1), torch.cat([S.right, one.mT])
    return at_uniform_weights(W, left / math.sqrt(2), right / math.sqrt(2), p)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/factorization/structured.py")
