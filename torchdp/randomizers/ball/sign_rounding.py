"""One number, rounded to a sign that is kept by chance: the ball of one dimension."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.randomizers.alphabet.chances import at_least, exponential
from torchdp.randomizers.ball.ball import BallMoments, BallRandomizer
from torchdp.randomizers.ball.subgaussian import SubGaussian, largest, psi2
from torchdp.randomizers.base import exact_local


@dataclass(frozen=True)
class DuchiJordanWainwright(BallRandomizer):
    """For x in [-radius, radius] the message B or -B, B = radius coth(epsilon/2), with E Y = x and Var Y = B^2 - x^2.

    x is rounded to the sign of x or the opposite one without bias, and the rounded sign kept with probability
    e^epsilon/(e^epsilon + 1): P(Y = B) = (1 + x tanh(epsilon/2)/radius)/2. Up to epsilon = 1.044 it has less variance
    at x = 0 than :class:`PrivUnit`, which takes vectors too.
    dim: 1; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``sample_tally`` draws a binomial number for each type in a repetition.

    Guarantees: exactly epsilon-LDP, for any two points of the ball.
    Source: Duchi, Jordan, Wainwright (2018), in one dimension.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim != 1:
            raise ValueError(f"dim must be 1, not {self.dim}; for vectors take PrivUnit, which has less noise")

    @property
    def guarantee(self) -> Guarantee:
        source = "Duchi, Jordan, Wainwright (2018); P(sign kept) = e^epsilon/(e^epsilon + 1)"
        return exact_local(self.epsilon, source)

    @property
    def bias(self) -> float:
        """tanh(epsilon/2) = P(sign kept) - P(sign lost)."""
        return math.tanh(self.epsilon / 2)

    @property
    def entry_limit(self) -> float:
        return self.radius / self.bias

    def disagreement(self, sizes: Tensor) -> Tensor:
        """P(Y x < 0) for points x of these sizes, in units of the radius."""
        sizes = sizes.double().clamp_max(1)
        return (1 - sizes) / 2 + sizes / (math.exp(self.epsilon) + 1)

    def _behind(self, sizes: Tensor) -> Tensor:
        """``disagreement`` in whole numbers of 2^63, rounded up: the private side."""
        least = at_least(1 / (exponential(self.epsilon) + 1))  # at the ends, without rounding errors
        return (self.disagreement(sizes).clamp_min(least) * 2.0**63).ceil().to(torch.int64)

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments: variance B^2, outer -1; those of a coin of variance sinh(epsilon/2)^-2 at the ends."""
        odds = math.sinh(self.epsilon / 2) ** 2
        return BallMoments(self.radius**2 * (1 + 1 / odds), -2 * math.sqrt(odds), 1 + 4 * odds, outer=-1.0)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """psi2 at the worst x, by search; proxy by Hoeffding's lemma, attained at 0."""
        sides = np.array([1.0, -1.0])

        def at(mean: float) -> float:
            return psi2((sides - mean, (1 + mean * sides) / 2))

        sure = min(self.bias, 1 - 1e-9)  # a sure sign has no noise to measure
        return SubGaussian(self.entry_limit * largest(at, 0.0, sure, 9), self.entry_limit**2)

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        lost = draws.integers((len(users),)) < self._behind(users[:, 0].abs() / self.radius)
        positive = (users < 0) == lost[:, None]
        return torch.where(positive, 1.0, -1.0).to(users) * self.entry_limit

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        users = counts.expand(*shape, *counts.shape)
        behind = draws.binomial(users, self.disagreement(points[..., 0].abs()))
        ahead = torch.where(points[..., 0] < 0, 2 * behind - users, users - 2 * behind)
        return ahead.sum(-1, keepdim=True).double() / self.bias
