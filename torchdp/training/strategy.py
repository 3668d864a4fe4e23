"""Strategies of a matrix mechanism for training, and the workloads that they are made for.

Notation: C (steps x steps) is the strategy, lower triangular; G the gradients, one row a step; W
what training uses of them; the outputs are W (G + C^{-1} Z), Z normal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import BandedStrategy, Factorization, StreamStrategy
from torchdp.factorization.solvers.banded_solver import long_row_norms
from torchdp.factorization.streams.recurrence import Recurrence
from torchdp.threads import on_host
from torchdp.workloads import RunningSums

Strategy = Tensor | StreamStrategy

# Steps of a matrix that is formed.
MOST_DENSE = 4096

# Of the largest diagonal entry of left's triangle: below it, left has no full row rank.
SINGULAR = 1e-12


@dataclass(frozen=True)
class Iterates(Brief):
    """The iterates of gradient descent as linear queries.

    Row t of W G is how far gradients have moved the parameters:
    x_t = x_{t-1} - eta_t m_t, m_t = momentum m_{t-1} + g_t + weight_decay x_{t-1}:
    ``torch.optim.SGD``'s steps; -W G is x_t less what it would be without gradients, its start
    where weight_decay is 0. With momentum and weight decay 0 and learning rates 1, prefix sums.
    Nothing of size steps x steps is held.

    Their error is exact where sums are released. For training it is the error on a flat loss, which
    never damps noise: plans of least error then learn worse than DP-SGD's where epsilon is small;
    see :class:`Descent`.

    Args:
        steps: at least 1.
        momentum: in [0, 1).
        weight_decay: at least 0.
        learning_rates: positive, one for each step, or None for 1.

    Raises TypeError, ValueError.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), section 4, momentum and learning rates
    as a workload.
    """

    steps: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: Tensor | Sequence[float] | None = None

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(
            self, steps=checks.count, momentum=checks.below_one, weight_decay=checks.non_negative
        )
        given = self.learning_rates
        if given is None:
            return
        checks.instance("learning_rates", given, (Sequence, Tensor))
        if len(given) != self.steps:
            raise ValueError(
                f"learning_rates must hold {self.steps} numbers, one a step, not {len(given)}"
            )
        rates = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
        checks.floating("learning_rates", rates)
        if rates.ndim != 1 or not (rates > 0).all():
            raise ValueError("learning_rates must be positive numbers, one for each step")
        object.__setattr__(self, "learning_rates", rates)

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, steps)."""
        return self.steps, self.steps

    @property
    @on_host
    def rates(self) -> Tensor:
        """(steps,), float64."""
        if self.learning_rates is None:
            return torch.ones(self.steps, dtype=torch.float64)
        return torch.as_tensor(self.learning_rates, dtype=torch.float64)

    @property
    def constant(self) -> bool:
        """Whether W[t, j] depends on t - j alone: learning rates do not change."""
        rates = self.rates
        return bool((rates == rates[0]).all())

    def sums(self) -> tuple[float, RunningSums] | None:
        """rate, S with W = rate S, up to rounding.

        None where weights decay at learning rates that change, or swing.
        (1 - decay x)(1 - momentum' x) = 1 - (1 + momentum - rate weight_decay) x + momentum x^2 has
        real roots with 0 < decay where rate weight_decay <= (1 - sqrt(momentum))^2; without
        momentum, where it is below 1.
        """
        if not self.constant:
            if self.weight_decay:
                return None
            return 1.0, RunningSums(self.steps, 1.0, self.momentum, self.rates)
        rate = float(self.rates[0])
        loss = rate * self.weight_decay
        # (1 + momentum - loss)^2 - 4 momentum, without its cancellation near momentum 1.
        discriminant = (1 - self.momentum) ** 2 - loss * (2 * (1 + self.momentum) - loss)
        if loss >= 1 or discriminant < 0:
            return None
        # The larger root, (1 + momentum - loss + discriminant^{1/2})/2, as a distance from 1.
        decay = 1 - (1 - self.momentum + loss - math.sqrt(discriminant)) / 2
        return rate, RunningSums(self.steps, decay, self.momentum / decay)

    @on_host
    def first(self, steps: int) -> Tensor:
        """The first column of W for ``steps`` steps at the mean learning rate, (steps,).

        It is all of W where that is constant.
        """
        from scipy.signal import lfilter

        rate = float(self.rates.mean())
        impulse = torch.eye(1, steps, dtype=torch.float64)[0]
        # x_t - (1 + momentum - rate decay) x_{t-1} + momentum x_{t-2} = rate g_t
        recurrence = [1.0, rate * self.weight_decay - 1 - self.momentum, self.momentum]
        return torch.from_numpy(lfilter([rate], recurrence, impulse.numpy()))

    def inverse(self) -> Tensor:
        """W^{-1} as its three diagonals, (steps, 3): [t, m] is that of row t, column t - m."""
        rates = self.rates
        before = torch.cat([rates[:1], rates[:-1]])
        swing = self.momentum / before
        return torch.stack([1 / rates, self.weight_decay - 1 / rates - swing, swing], 1)

    def dense(self) -> Tensor:
        """W itself, (steps, steps), lower triangular, float64."""
        checks.fits("W", self.steps, self.steps)
        W = torch.eye(self.steps, dtype=torch.float64)
        x = m = torch.zeros(self.steps, dtype=torch.float64)
        for row, rate in zip(W, self.rates.tolist(), strict=True):
            m = self.momentum * m + row - self.weight_decay * x
            x = x + rate * m
            row.copy_(x)
        return W


@dataclass(frozen=True)
class Descent(Brief):
    """Training by gradient descent: what noise adds to the losses of networks, which are curved.

    Weighed is the loss that noise adds to quadratic functions, every curvature alike: of each c =
    1, 1/2, 1/4, ..., down to 1 / steps, which is the share of the way to its optimum that a step
    takes off a number, the noise of the iterates, squared, times c. A step's own noise counts there
    as much as that of all steps together.

    Args:
        steps: at least 1.
        momentum: that of ``torch.optim.SGD``, in [0, 1); 0 for Adam and its kin, whatever their
            betas: they divide by the size of single steps, so that momentum does not hide a step's
            own noise.
        learning_rates: positive, one for each step, or None for equal ones.

    Raises TypeError, ValueError.
    Source: ours; measured by ``experiments/training/optimizers.py``.
    """

    steps: int
    momentum: float = 0.0
    learning_rates: Tensor | Sequence[float] | None = None

    def __post_init__(self) -> None:
        checks.own(self)
        flat = self._flat()
        for name in ("steps", "momentum", "learning_rates"):
            object.__setattr__(self, name, getattr(flat, name))

    def _flat(self) -> Iterates:
        return Iterates(self.steps, self.momentum, 0.0, self.learning_rates)

    def curvatures(self) -> dict[float, Iterates]:
        """c, and what a loss of this curvature makes of the gradients.

        That is weight decay, the same at the mean learning rate.
        """
        flat = self._flat()
        unit = (1 - flat.momentum) / float(flat.rates.mean())
        powers = [2.0**-k for k in range(flat.steps.bit_length())]
        return {c: replace(flat, weight_decay=c * unit) for c in powers}


def as_strategy(strategy: Strategy) -> StreamStrategy:
    """C, a matrix as its coefficients. Raises TypeError, ValueError."""
    if isinstance(strategy, StreamStrategy):
        return strategy
    return BandedStrategy.of(lower_triangular("strategy", strategy))


def causal_strategy(W: Tensor, factorization: Factorization | Tensor) -> Tensor:
    """The lower triangular C whose mechanism W (G + C^{-1} Z) has a factorization's errors.

    It is distributed as W G + left Z', Z and Z' normal. left = T Q, T lower triangular and
    Q Q^T = I (LQ decomposition), and C = T^{-1} W. Each step needs earlier noise only, whatever
    ``left`` is, and W G is answered exactly even where the factors miss W.

    Args:
        W: (steps, steps), lower triangular, its diagonal not 0.
        factorization: of W (for users who come back in every epoch ``factorize_epochs``), or
            ``left`` itself, (steps, r) of full row rank.

    Returns C, float64, (steps, steps). Raises TypeError, ValueError.

    Guarantees: (W C^{-1}) (W C^{-1})^T = left left^T; where left right = W no column of C is longer
    than right's.
    Source: Denisov, McMahan, Rush, Smith, Thakurta (2022), Theorem 2.1's proof; the norms since C =
    Q right.
    """
    W = lower_triangular("W", W)
    left = factorization.left if isinstance(factorization, Factorization) else factorization
    left = checks.matrix("left", left).detach().double()
    if left.ndim != 2 or len(left) != len(W) or left.shape[1] < len(W) or left.device != W.device:
        raise ValueError(
            f"left must be ({len(W)}, r) on W's device, r >= {len(W)}, not {tuple(left.shape)}"
        )
    T = torch.linalg.qr(left.mT, mode="r").R.mT
    size = T.diagonal().abs()
    # ``not >``: NaN is refused as well.
    if not size.min() > SINGULAR * size.max():
        raise ValueError(
            "left must have full row rank: some answers would have no noise; add rows to right"
        )
    C = torch.linalg.solve_triangular(T, W, upper=False)
    # C Z has one distribution whatever the signs of C's rows: those of a positive diagonal.
    return C * C.diagonal().sign()[:, None]


def standard_errors(W: Tensor | Iterates | Descent, strategy: Strategy) -> Tensor:
    """Standard deviation of each number of row t of W (G + C^{-1} Z): the row norms of W C^{-1}.

    For noise of one standard deviation in Z; multiply by ``CorrelatedNoise.sigma``.

    Args:
        W: (queries, steps), or :class:`Iterates`, which are never formed for bands,
            O(steps bands^2), and any Toeplitz strategy without buffers where learning rates are
            constant, O(steps bands). Of :class:`Descent`, the roots of the sums over c of c times
            their squares.
        strategy: C; others than these of more than 4,096 steps are refused.

    Returns (queries,), float64. Raises TypeError, ValueError.
    Guarantees: exact, up to rounding.
    """
    if isinstance(W, Descent):
        losses = [c * standard_errors(V, strategy).square() for c, V in W.curvatures().items()]
        return torch.stack(losses).sum(0).sqrt()
    if isinstance(W, Iterates) and not isinstance(strategy, Tensor):
        errors = _unformed_errors(W, as_strategy(strategy).recurrence)
        if errors is not None:
            return errors
    C = strategy if isinstance(strategy, Tensor) else _formed("strategy", strategy)
    C = lower_triangular("strategy", C)
    if isinstance(W, Iterates):
        W = _formed("W", W).to(C.device)
    W = checks.matrix("W", W).detach().double()
    if W.ndim != 2 or W.shape[1] != len(C) or W.device != C.device:
        raise ValueError(
            f"W must be one (queries, {len(C)}) matrix on strategy's device, not {tuple(W.shape)}"
        )
    return torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)


def _unformed_errors(W: Iterates, C: Recurrence) -> Tensor | None:
    """The row norms of W C^{-1}, neither of them formed; None where they must be."""
    from scipy.signal import lfilter

    if W.steps != C.steps:
        raise ValueError(f"strategy must be of {W.steps} steps, as W, not of {C.steps}")
    if W.constant and C.even and not len(C.gains):
        # W C^{-1} depends on t - s alone, by one row: C^{-1} = V F / D as power series. The norms
        # are running sums of the row's squares.
        V, F, D = C.polynomials()
        row = lfilter(F, [1.0], lfilter(V, D, W.first(W.steps).numpy()))
        return torch.from_numpy(row).square().cumsum(0).sqrt().to(C.scale.device)
    if C.memory == C.of_w.shape[1] and C.feeds.shape[1] == 1:
        # Bands: scale_t w_t = feeds_t z_t + sum_j of_w[t, j] w_{t-1-j}, for z_t, is C w = z.
        scale = C.scale[None].expand(-1, C.steps)
        earlier = -C.of_w.mT.expand(-1, C.steps)
        coefficients = torch.cat([scale, earlier]) / C.feeds.mT
        return long_row_norms(coefficients.mT.cpu(), W.inverse()).to(C.scale.device)
    return None


def _formed(name: str, value: Iterates | StreamStrategy) -> Tensor:
    """The matrix of not too many steps. Raises TypeError, ValueError."""
    checks.instance(name, value, (Iterates, StreamStrategy))
    if value.steps > MOST_DENSE:
        raise ValueError(
            f"{name} has {value.steps} steps: above {MOST_DENSE} the errors are those of Iterates "
            "under a BandedStrategy of one row; of a BufferedStrategy, "
            "factorize_buffered(...).row_norms"
        )
    return value.dense()


def lower_triangular(name: str, value: Tensor) -> Tensor:
    """``value`` as a lower triangular, invertible float64 matrix. Raises TypeError, ValueError."""
    value = checks.matrix(name, value).detach().double()
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.triu(1).any():
        raise ValueError(
            f"{name} must be one square lower triangular matrix, not of shape {tuple(value.shape)}"
        )
    if (value.diagonal() == 0).any():
        raise ValueError(f"{name} must have no 0 on its diagonal: a step's own gradient must count")
    return value
