"""Strategies of a matrix mechanism for training: a lower triangular C, one row for each step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdp import checks, workloads
from torchdp.factorization import EpochFactorization, Factorization


def iterates(steps: int, *, momentum: float = 0.0, learning_rates: Sequence[float] | None = None) -> Tensor:
    """What training by gradient descent asks for: row t of W G is how far the parameters are from their start.

    x_t = x_0 - sum_{s <= t} eta_s m_s, m_s = momentum m_{s-1} + g_s, so W[t, j] = sum_{s=j}^t eta_s momentum^{s-j};
    with momentum 0 and learning rates 1, prefix sums.

    steps: at least 1; momentum: in [0, 1); learning_rates: positive, one for each step, or None for 1. (steps, steps),
    lower triangular, float64. Raises ValueError.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), section 4, momentum and learning rates as a workload.
    """
    W = workloads.prefix(steps).dense()
    momentum = checks.below_one("momentum", momentum)
    if learning_rates is not None:
        checks.instance("learning_rates", learning_rates, (Sequence, Tensor))
        rates = [checks.positive("learning_rates", rate) for rate in learning_rates]
        if len(rates) != steps:
            raise ValueError(f"learning_rates must hold {steps} numbers, one for each step, not {len(rates)}")
        W = W * torch.tensor(rates, dtype=torch.float64)
    step = torch.arange(steps)
    return W @ (momentum ** (step[:, None] - step).clamp_min(0).double()).tril()


def causal_strategy(W: Tensor, factorization: Factorization | EpochFactorization | Tensor) -> Tensor:
    """The lower triangular C whose mechanism W (G + C^{-1} Z) has the law of W G + left Z', Z and Z' standard normal.

    left = T Q, T lower triangular and Q Q^T = I (LQ decomposition), and C = T^{-1} W. Each step needs earlier noise
    only, whatever ``left`` is, and W G is answered exactly even where the factors miss W.

    W: (steps, steps), lower triangular, its diagonal not 0. factorization: of W (for users who come back in every epoch
    ``factorize_epochs``), or ``left`` itself, (steps, r) of full row rank. C is float64, (steps, steps). Raises
    TypeError, ValueError.

    Guarantees: (W C^{-1}) (W C^{-1})^T = left left^T; where left right = W no column of C is longer than right's.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), Theorem 2.1's proof; the norms since C = Q right.
    """
    W = lower_triangular("W", W)
    kinds = (Factorization, EpochFactorization)
    left = factorization.left if isinstance(factorization, kinds) else factorization
    left = checks.matrix("left", left).detach().double()
    if left.ndim != 2 or len(left) != len(W) or left.shape[1] < len(W) or left.device != W.device:
        raise ValueError(
            f"left must be one ({len(W)}, r) matrix on W's device with r >= {len(W)}, not {tuple(left.shape)}"
        )
    T = torch.linalg.qr(left.mT, mode="r").R.mT
    size = T.diagonal().abs()
    if not size.min() > 1e-12 * size.max():
        raise ValueError("left must have full row rank: some answers would have no noise; add rows to right")
    C = torch.linalg.solve_triangular(T, W, upper=False)
    return C * C.diagonal().sign()[:, None]  # C Z and C with other signs have one law


def standard_errors(W: Tensor, strategy: Tensor) -> Tensor:
    """Standard deviation of each number of row t of W (G + C^{-1} Z): the row norms of W C^{-1}, (steps,), float64.

    For noise of one standard deviation in Z; multiply by ``CorrelatedNoise.sigma``. W: (queries, steps); strategy: C.
    Raises TypeError, ValueError.
    Guarantees: exact.
    """
    C, W = lower_triangular("strategy", strategy), checks.matrix("W", W).detach().double()
    if W.ndim != 2 or W.shape[1] != len(C) or W.device != C.device:
        raise ValueError(f"W must be one (queries, {len(C)}) matrix on strategy's device, not {tuple(W.shape)}")
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)


def lower_triangular(name: str, value: Tensor) -> Tensor:
    """``value`` as a lower triangular, invertible float64 matrix. Raises TypeError, ValueError."""
    value = checks.matrix(name, value).detach().double()
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.triu(1).any():
        raise ValueError(f"{name} must be one square lower triangular matrix, not of shape {tuple(value.shape)}")
    if (value.diagonal() == 0).any():
        raise ValueError(f"{name} must have no 0 on its diagonal: a step's own gradient must count")
    return value
