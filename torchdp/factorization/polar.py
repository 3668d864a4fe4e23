"""The polar factor of a matrix from products alone, to the accuracy that a bound can use.

Notation:
    M: the matrix, (*batch, m, n); X: an iterate, whose singular values tend to 1.
    gram: X^T X.
"""

import math

import torch
from torch import Tensor

# The steps leave the largest singular value at 2.6 CUSHION at least: rounding must not carry it
# past 0.
CUSHION = 0.02


def polar(M: Tensor, loss: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Q = U f(S) V^T for M = U S V^T, with 0 <= f <= 1 and <M, Q> >= (1 - loss) * trace norm of M.

    M is scaled by nu = ||M^T M||_F^{1/2} >= ||M||_2. A cubic step takes X to rho X
    (3 - rho^2 X^T X) / 2, which sends l and 1 to the same value for rho^2 = 3 / (1 + l + l^2),
    where all singular values but the smallest lie in [l, 1] (the first steps take CUSHION for l): a
    small one grows 2.6 times for two products, none passes 1, and those in [l, 1] end in
    [1 - loss/2, 1]. Those below l nu at first, with l = loss / 2r, r = min(m, n), may end anywhere
    in [0, 1]; together they are at most r l nu <= loss/2 of the trace norm, since that is at
    least ||M||_F^2 / nu >= nu. So no rank is ever decided. Nothing is read back from M's device.

    Args:
        M: float64.
        loss: in (0, 1).
        dtype: of the steps but the last, which is float64's: float32 loses some 1e-6 more, and
            blurs singular values below 1e-6 of the largest.

    Products alone, 2 (2 steps + 1) r m n operations, in about 1.05 ln(1 / l) + 5 steps.

    Guarantees: ||Q||_2 <= 1 to the rounding of float64, and the loss.
    Source: Newton-Schulz with the scaling of Chen, Chow (2014), the best cubic of each step; Amsel,
    Persson, Musco, Gower (2025, Polar Express) prove that such greedy steps compose to the best
    composition.
    """
    if M.shape[-2] < M.shape[-1]:
        return polar(M.mT, loss, dtype).mT
    X, gram = _scaled(M, dtype)
    steps = _steps(loss / (2 * M.shape[-1]), loss / 2)
    for rho in steps[:-1]:
        X = _cubic(X, gram, rho)
        gram = X.mT @ X
    if X.dtype != torch.float64:
        X = X.double()
        gram = X.mT @ X
    return _cubic(X, gram, steps[-1])


def _steps(low: float, error: float) -> list[float]:
    """rho of the steps that bring [low, 1] into [1 - error, 1]; at least one."""
    steps: list[float] = []
    while low < 1 - max(error, 1e-15) or not steps:
        cushioned = max(low, CUSHION)
        rho = math.sqrt(3 / (1 + cushioned + cushioned**2))
        steps.append(rho)
        # Where the cubic takes the lower end.
        low = min(1.0, 0.5 * rho * low * (3 - (rho * low) ** 2))
    return steps


def _scaled(M: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """X = M / nu and X^T X in ``dtype``."""
    size = M.abs().amax((-2, -1), keepdim=True)
    X = (M / torch.where(size > 0, size, 1.0)).to(dtype)
    gram = X.mT @ X
    bound = torch.linalg.matrix_norm(gram)[..., None, None]  # >= ||X||_2^2
    bound = torch.where(bound > 0, bound, 1.0)
    return X / bound.sqrt(), gram / bound


def _cubic(X: Tensor, gram: Tensor, rho: float) -> Tensor:
    """rho X (3 - rho^2 X^T X) / 2."""
    return torch.add(1.5 * rho * X, X @ gram, alpha=-0.5 * rho**3)
