"""What every mechanism for linear queries offers: answers, and their exact error."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from scipy.special import ndtri
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee


class Objective(Enum):
    """What "error" means for many queries at once; both are roots of mean squared errors, on the worst data."""

    WORST_QUERY = "largest root mean squared error of a query"
    AVERAGE_QUERY = "root of the mean over queries of the mean squared error"


@dataclass(frozen=True)
class Answers:
    """Private answers to the queries, (*sample_shape, m), and the standard error of each.

    ``standard_error`` is computed from the messages and the mechanism alone; ``bias`` (m,) bounds what the
    mechanism's approximation of the workload may add, and is 0 where there is none.
    """

    value: Tensor
    standard_error: Tensor
    bias: Tensor
    n: int

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Normal confidence interval for the answers on these users' data, widened by ``bias``."""
        half = float(ndtri((1 + checks.fraction("level", level)) / 2)) * self.standard_error + self.bias
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Errors:
    """The error of a mechanism on data where all users hold one type: squares mix over types, because errors add up.

    bias: (m, k), what query i is off by for users of type x. variance: (m, k), of query i's answer from one user of
    type x (local), or from all of them together (central). With h the histogram and n users the mean squared error of
    query i is (sum_x h_x bias_ix)^2 + sum_x h_x variance_ix / n^power; power = 1 for local noise, 2 for central.
    """

    bias: Tensor
    variance: Tensor
    power: int

    def mse(self, counts: Tensor, n: int) -> Tensor:
        """Mean squared error of each query for counts (*batch, k) of n users: (*batch, m).

        The counts may be expected ones, and no whole numbers. Raises TypeError, ValueError.
        """
        n = checks.integer("n", n, 1)
        h = checks.floating("counts", counts).double() / n
        if h.ndim == 0 or h.shape[-1] != self.bias.shape[1]:
            raise ValueError(f"counts must have shape (..., {self.bias.shape[1]}), not {tuple(counts.shape)}")
        if bool((h < 0).any()) or bool(((h.sum(-1) - 1).abs() > 1e-6).any()):
            raise ValueError(f"counts must hold no negative numbers and sum to n = {n}")
        return (h @ self.bias.mT).square() + h @ self.variance.mT / float(n) ** self.power

    def worst(self, n: int, objective: Objective) -> float:
        """Root of the largest mean squared error over all data of n users: at data of a single type, by convexity.

        Raises TypeError, ValueError.
        """
        n, objective = checks.integer("n", n, 1), check_objective(objective)
        each = self.bias.square() + self.variance / float(n) ** self.power
        each = each if objective is Objective.WORST_QUERY else each.mean(0, keepdim=True)
        return math.sqrt(float(each.max()))


class QueryMechanism(ABC):
    """Answers W h to the m linear queries of a workload, h the normalised histogram of the n users' types.

    ``answer`` is what is published, from one type for each user; ``answer_histogram`` draws the same law from the
    counts alone, for simulations: a generator's draws hide nobody. workload: W, (m, k), float64.
    """

    workload: Tensor

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What a user is promised."""

    @property
    @abstractmethod
    def errors(self) -> Errors:
        """Exact bias and variance of every query for every type."""

    def answer(self, types: Tensor, *, noise: Noise | None = None) -> Answers:
        """Answers for users of these types, (n,), integers in [0, k); noise: the system's where None.

        Raises TypeError, ValueError.
        """
        types = checks.indices("types", types, self.workload.shape[1])
        if types.ndim != 1 or len(types) == 0:
            raise ValueError(f"types must have shape (n,) with n >= 1, not {tuple(types.shape)}")
        return self._answer(types, source(noise, types.device))

    @abstractmethod
    def _answer(self, types: Tensor, noise: Noise) -> Answers:
        """``answer`` for types that are checked."""

    @abstractmethod
    def answer_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Answers:
        """Answers for counts[x] users of type x; independent repetitions of shape ``sample_shape``.

        Raises TypeError, ValueError.
        """

    def predicted_mse(self, counts: Tensor) -> Tensor:
        """Exact mean squared error of each query for counts (k,) of users, over the privacy noise: (m,)."""
        counts = checks.counts("counts", counts, self.workload.shape[1])
        return self.errors.mse(counts, users(counts))

    def worst_error(self, n: int, objective: Objective = Objective.WORST_QUERY) -> float:
        """Root of the mean squared error on the worst data of n users, of the worst query or of the average one."""
        return self.errors.worst(n, objective)


def users(counts: Tensor) -> int:
    """The number of users in ``counts``, at least 1. Raises ValueError."""
    n = int(counts.sum())
    if n < 1:
        raise ValueError("counts must hold at least one user")
    return n


def check_objective(value: Objective) -> Objective:
    """``value``, an :class:`Objective`. Raises TypeError."""
    if not isinstance(value, Objective):
        raise TypeError(f"objective must be an Objective such as Objective.WORST_QUERY, not {value!r}")
    return value
