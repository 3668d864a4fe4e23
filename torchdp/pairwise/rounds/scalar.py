"""What a user runs on one number of [-1, 1]: the two randomizers of a one-dimensional ball, with their exact sums."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee
from torchdp.randomizers import DuchiJordanWainwright, PrivUnitG
from torchdp.randomizers.ball.ball import BallRandomizer


@dataclass(frozen=True)
class ScalarResponse(ABC):
    """An unbiased private message about a number in [-1, 1], and sums of many of them for numbers in batches."""

    epsilon: float

    @property
    @abstractmethod
    def randomizer(self) -> BallRandomizer:
        """What a user runs, on the ball [-1, 1]."""

    @property
    def guarantee(self) -> Guarantee:
        return self.randomizer.guarantee

    def variance(self, values: Tensor) -> Tensor:
        """Var of one message about each value; a concave function."""
        moments = self.randomizer.moments
        return moments.variance + moments.outer * values.square()

    def randomize_unchecked(self, values: Tensor, draws: Draws) -> Tensor:
        """One message for each value of (n,)."""
        return self.randomizer.randomize_unchecked(values[..., None], draws)[..., 0]

    @abstractmethod
    def sums(self, values: Tensor, counts: Tensor, draws: Simulated) -> Tensor:
        """Sum over types of the messages of counts[x] users who hold values[..., x]: (*batch, k), (k,) -> (*batch,).

        Exact in distribution; the cost does not depend on the counts.
        """


@dataclass(frozen=True)
class SignResponse(ScalarResponse):
    """+-coth(epsilon/2), one bit: + with probability (1 + value tanh(epsilon/2))/2. Var = coth(epsilon/2)^2 - value^2.

    Guarantees: exactly epsilon-LDP.
    Source: Duchi, Jordan, Wainwright (2018), in one dimension.
    """

    @cached_property
    def randomizer(self) -> DuchiJordanWainwright:
        return DuchiJordanWainwright(1, self.epsilon)

    def sums(self, values: Tensor, counts: Tensor, draws: Simulated) -> Tensor:
        """The number of plus signs of each type is binomial."""
        bias = self.randomizer.bias
        plus = (1 + values.clamp(-1, 1) * bias) / 2
        drawn = draws.binomial(counts, plus)
        return (2 * drawn - counts).double().sum(-1) / bias


@dataclass(frozen=True)
class TiltedResponse(ScalarResponse):
    """value + noise of variance 1/k^2, k the threshold of the tilted normal: the smaller one at large epsilon.

    Guarantees: epsilon-LDP, but for the delta that arithmetic costs.
    Source: Asi, Feldman, Talwar (2022), PrivUnitG, in one dimension.
    """

    @cached_property
    def randomizer(self) -> PrivUnitG:
        return PrivUnitG(1, self.epsilon)

    def sums(self, values: Tensor, counts: Tensor, draws: Simulated) -> Tensor:
        """Sum of values_x tau + N(0, 1 - values_x^2): along the value the tilted normal, across it a normal."""
        tau, values = self.randomizer.tau, values.clamp(-1, 1)
        along = tau.sums(counts, tuple(values.shape[:-1]), draws)
        across = (counts * (1 - values.square())).sum(-1).sqrt()
        return ((along * values).sum(-1) + across * draws.normal(tuple(across.shape))) / tau.threshold


def scalar_response(epsilon: float) -> ScalarResponse:
    """The response with the smaller variance at its worst value: the sign up to epsilon = 1.845, then the other."""
    epsilon = checks.positive("epsilon", epsilon)
    sign, tilted = SignResponse(epsilon), TiltedResponse(epsilon)
    worst = torch.zeros((), dtype=torch.float64)
    return sign if float(sign.variance(worst)) <= float(tilted.variance(worst)) else tilted


def worst_variance(epsilon: float) -> float:
    """Var of ``scalar_response`` at value 0, where it is largest."""
    return min(1 / math.tanh(epsilon / 2) ** 2, PrivUnitG(1, epsilon).moments.variance)
