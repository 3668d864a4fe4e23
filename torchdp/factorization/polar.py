"""The polar factor of a matrix from products and Cholesky's factors, to the accuracy that a bound can use."""

import math

import torch
from torch import Tensor

# The cubic steps leave the largest singular value at 2.6 CUSHION at least: rounding must not carry it past 0.
CUSHION = 0.02
# Least l of a Halley step: its Cholesky factor loses about eps c, c < 4 l^{-4/3}.
LEAST = {torch.float64: 1e-4, torch.float32: 0.05}
# operations of a step, in units of m n^2 for m = n: two products; one, Cholesky, two solves
CUBIC, HALLEY = 4.0, 13 / 3
LARGE = 256  # short side from which these operations tell the time: those of small factors wait for each other
Step = tuple[float, ...]  # (rho,) of a cubic step, (a, b, c) of a Halley step


def polar(M: Tensor, loss: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Q = U f(S) V^T for M = U S V^T, with 0 <= f <= 1 and <M, Q> >= (1 - loss) * trace norm of M.

    M is scaled by nu = ||M^T M||_F^{1/2} >= ||M||_2. A cubic step takes X to rho X (3 - rho^2 X^T X) / 2, which
    sends l and 1 to the same value for rho^2 = 3 / (1 + l + l^2), where all singular values but the smallest lie in
    [l, 1] (the first steps take CUSHION for l): a small one grows 2.6 times for two products, none passes 1, and those
    in [l, 1] end in [1 - loss/2, 1]. Those below l nu at first, with l = loss ||M||_F^2 / (2 r nu^2), r = min(m, n),
    may end anywhere in [0, 1]; together they are at most r l nu <= loss/2 of the trace norm, since that is at
    least ||M||_F^2 / nu. So no rank is ever decided.

    M: (*batch, m, n) float64; loss: in (0, 1). The steps but the last run in ``dtype``: float32 loses some 1e-6 more,
    and blurs singular values below 1e-6 of the largest. The last one is float64's. By cubic steps alone 2 (2 steps + 1)
    r m n operations, in about 1.05 ln(1 / l) + 5 steps. From r = 256 on most are Halley's, see :func:`plan`: for
    l = 1e-6 and 1e-12 and a loss of 2e-9, 21 and 30 n^3 operations instead of 76 and 132.

    Guarantees: ||Q||_2 <= 1 to the rounding of float64, and the loss.
    Source: Newton-Schulz with the scaling of Chen, Chow (2014), the best cubic of each step; Amsel, Persson, Musco,
    Gower (2025, Polar Express) prove that such greedy steps compose to the best composition.
    """
    if M.shape[-2] < M.shape[-1]:
        return polar(M.mT, loss, dtype).mT
    X, gram, share = _scaled(M, dtype)
    return _climb(X, gram, polar_steps(loss, M.shape[-1], float(share), dtype))


def contraction(M: Tensor, steps: list[Step], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """:func:`polar` of M (*batch, m, n), m >= n, by steps chosen before; and the share that chooses the next, ().

    Whatever the steps of :func:`polar_steps`: ||Q||_2 <= 1 to the rounding of float64, the last step's.
    Nothing is read back from M's device.
    """
    X, gram, share = _scaled(M, dtype)
    return _climb(X, gram, steps), share


def polar_steps(loss: float, n: int, share: float, dtype: torch.dtype) -> list[Step]:
    """The steps of :func:`polar` for a short side of n, where ||M||_F^2 >= share nu^2; share = 1 is always true."""
    return plan(loss * share / (2 * n), loss / 2, LEAST[dtype] if n >= LARGE else 1.0)


def plan(low: float, error: float, least: float) -> list[Step]:
    """Steps that bring [low, 1] into [1 - error, 1], Halley's first, the last a cubic one, of fewest operations.

    A Halley step takes x to x (a + b x^2) / (1 + c x^2), the best such map of [l, 1], l = max(low, ``least``), with 1
    kept at 1: a small x grows about 1.6 l^{-2/3} times. ``least`` = 1: cubic steps alone.
    Source: Nakatsukasa, Bai, Gygi (2010), QDWH, in the form by Cholesky's factor.
    """
    halley: list[Step] = []
    best: list[Step] = [(rho,) for rho in scalings(low, error)]
    while least < 1 and low < 0.99:
        a, b, c = _halley(max(low, least))
        low = min(1.0, low * (a + b * low**2) / (1 + c * low**2))
        halley.append((a, b, c))
        best = min(best, halley + [(rho,) for rho in scalings(low, error)], key=operations)
    return best


def operations(steps: list[Step]) -> float:
    """Of these steps, in units of n^3 for a square matrix."""
    return sum(CUBIC if len(step) == 1 else HALLEY for step in steps)


def _halley(low: float) -> tuple[float, float, float]:
    d = (4 * (1 - low**2) / low**4) ** (1 / 3)
    a = math.sqrt(1 + d) + math.sqrt(max(0.0, 8 - 4 * d + 8 * (2 - low**2) / (low**2 * math.sqrt(1 + d)))) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1


def _scaled(M: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """X = M / nu and X^T X in ``dtype``, and the least ||M||_F^2 / nu^2 of the batch."""
    size = M.abs().amax((-2, -1), keepdim=True)
    X = (M / torch.where(size > 0, size, 1.0)).to(dtype)
    gram = X.mT @ X
    bound = torch.linalg.matrix_norm(gram)[..., None, None]  # >= ||X||_2^2
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    share = torch.where(bound > 0, squares / bound, 1.0).amin()
    bound = torch.where(bound > 0, bound, 1.0)
    return X / bound.sqrt(), gram / bound, share


def _climb(X: Tensor, gram: Tensor, steps: list[Step]) -> Tensor:
    for step in steps[:-1]:
        X = _cubic(X, gram, *step) if len(step) == 1 else _rational(X, gram, *step)
        gram = X.mT @ X
    if X.dtype != torch.float64:
        X = X.double()
        gram = X.mT @ X
    return _cubic(X, gram, *steps[-1])


def _rational(X: Tensor, gram: Tensor, a: float, b: float, c: float) -> Tensor:
    """X (a + b X^T X) (1 + c X^T X)^{-1} = (b / c) X + (a - b / c) X (C^T C)^{-1}, C^T C = 1 + c X^T X."""
    gram = c * gram
    gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
    C = torch.linalg.cholesky_ex(gram, upper=True)[0]
    Y = torch.linalg.solve_triangular(C, X, upper=True, left=False)
    Y = torch.linalg.solve_triangular(C.mT, Y, upper=False, left=False)
    return torch.add(b / c * X, Y, alpha=a - b / c)


def _cubic(X: Tensor, gram: Tensor, rho: float) -> Tensor:
    """rho X (3 - rho^2 X^T X) / 2."""
    if X.ndim == 2:
        return torch.addmm(X, X, gram, beta=1.5 * rho, alpha=-0.5 * rho**3)
    batch, flat = X.shape, X.reshape(-1, *X.shape[-2:])
    gram = gram.reshape(-1, *gram.shape[-2:])
    return torch.baddbmm(flat, flat, gram, beta=1.5 * rho, alpha=-0.5 * rho**3).reshape(batch)


def scalings(low: float, error: float) -> list[float]:
    """rho of each step x -> rho x (3 - rho^2 x^2) / 2 that brings [low, 1] into [1 - error, 1]; at least one."""
    steps: list[float] = []
    while low < 1 - max(error, 1e-15) or not steps:
        cushioned = max(low, CUSHION)
        rho = math.sqrt(3 / (1 + cushioned + cushioned**2))
        low = min(1.0, 0.5 * rho * low * (3 - (rho * low) ** 2))
        steps.append(rho)
    return steps
