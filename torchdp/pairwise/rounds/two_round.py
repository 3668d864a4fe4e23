"""Two rounds: a noisy mean vector is published, then each user reports its own vector's product
with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.forms import Form, histogram_of
from torchdp.pairwise.rounds.interactive import Extremes, PairsInRounds, extremes
from torchdp.pairwise.rounds.round import Question, ask
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.queries.pair_variance import NoiseMoments, noise_moments
from torchdp.randomizers.base import LARGEST_EPSILON, SMALLEST_EPSILON


@dataclass(frozen=True)
class TwoRound(PairsInRounds):
    """Round one: b = s + Z, a noisy mean vector. Round two: each user's <u_x, 2 t J b>, t the
    ``weight``.

    With a the mean answer the estimate is a + (1 - 2t)(b^T J b - v tr J/n), whose error is
    2 (1 - t) s^T J Z + (1 - 2t)(Z^T J Z - v tr J/n) + the answers' noise. At t = 1 the first term
    is gone, and with it gamma_2 from the leading error; t = 1/2 removes the second
    (the reduction to linear queries); t -> 0 is one message. With v, z_i and s, here the sum of the
    vectors, as of one message, p = 2 (1 - t) and q = 1 - 2t, exactly but for the last term,
    n^4 Var = p^2 n v ||J s||^2 + 2 q^2 n^2 v^2 sum weights^2 + sum_i {2 p q E[s^T J z_i z_i^T J
    z_i]
    + q^2 (Var(z_i^T J z_i) - 2 v^2 sum weights^2)} + n^2 E half_width^2 sum_users (variance of a
      response).
    first: epsilon of round one, the rest is for round two. weight: in (0, 1]. half_width is at most
    ``clip``; the default clips nothing, and then the estimate is unbiased. ``tuned`` chooses the
    first two.

    Guarantees: epsilon-LDP for each user (adaptive composition of the two rounds).
    Source: derived here; t = 1/2 is Ghazi et al. (2023), section 1.2; at t = 1 the leading term is
    their Theorem 24's.
    """

    schedule = ((0,), ()), ((), (1,))
    first: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        checks.keep(self, epsilon=checks.positive, first=checks.positive, weight=checks.positive)
        if self.first >= self.epsilon:
            raise ValueError(
                f"first must be below the whole budget {self.epsilon:g}, not {self.first!r}"
            )
        if self.weight > 1:
            raise ValueError(f"weight must lie in (0, 1], not {self.weight!r}")
        super().__post_init__()

    @classmethod
    def tuned(
        cls, statistic: PairwiseStatistic, n: int, epsilon: float, *, prior: Tensor | None = None
    ) -> "TwoRound":
        """The budgets and the weight that have the least predicted MSE for n users.

        prior: the (k,) shares that are expected, public; without it ``worst`` is made least. Raises
        ValueError.
        """
        n = checks.integer("n", n, 2)
        epsilon = checks.positive("epsilon", epsilon)
        most = extremes(statistic)
        expected = histogram_of(prior, statistic)
        shares = 1 / (1 + np.exp(-np.linspace(-4, 7, 23)))
        smaller, larger = np.minimum(shares, 1 - shares), np.maximum(shares, 1 - shares)
        taken = (smaller * epsilon >= SMALLEST_EPSILON * (1 + 1e-9)) & (
            larger * epsilon <= LARGEST_EPSILON
        )
        grid = shares[taken].tolist()
        if not grid:
            raise ValueError(
                f"epsilon must lie in [{4 * SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}] here, not {epsilon!r}"
            )

        def least(share: float) -> tuple[float, float]:
            """The least error at this share of the first round, and its weight, nearly by a
            parabola.
            """
            error = cls(statistic, epsilon, share * epsilon)._error_of_weights(n, most, expected)
            low, middle, high = error(0.5), error(0.75), error(1.0)
            bend = low - 2 * middle + high
            best = 0.75 - 0.25 * (high - low) / (2 * bend) if bend > 0 else 1.0
            weight = min(max(best, 1e-6), 1.0)
            return error(weight), weight

        errors = [least(share)[0] for share in grid]
        at = int(np.argmin(errors))
        bounds = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
        found = minimize_scalar(
            lambda x: least(x)[0], bounds=bounds, method="bounded", options={"xatol": 1e-3}
        )
        share = float(found.x) if found.fun < errors[at] else grid[at]
        return cls(statistic, epsilon, share * epsilon, least(share)[1])

    def _error_of_weights(
        self, n: int, most: Extremes, expected: Tensor | None
    ) -> Callable[[float], float]:
        """What this protocol, of weight 1, has with other weights: ``worst``, or the variance for
        these shares.
        """
        if expected is None:
            return partial(self._worst, float(n), most)
        counts = expected * n
        answers = float(self.analyst.expected_answers(counts, self.statistic.form))
        # half widths go with the weight
        return lambda weight: float(self._published(counts, weight)) + weight**2 * answers

    @property
    def message_budgets(self) -> tuple[float, ...]:
        return self.first, self.epsilon - self.first

    @cached_property
    def _noise(self) -> NoiseMoments:
        return noise_moments(self.randomizers[0])

    def questions(self, means: tuple[Tensor, ...]) -> tuple[Question, ...]:
        turned = self.statistic.form.weights * means[0]
        return (ask(self.statistic.points, 2 * self.weight * turned, self.clip),)

    def offset(self, means: tuple[Tensor, ...], n: float) -> Tensor:
        weights = self.statistic.form.weights
        own = self._v * weights.sum() / n  # the noise's own square
        return (1 - 2 * self.weight) * ((weights * means[0].square()).sum(-1) - own)

    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        return self._published(counts, self.weight)

    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Leaves out the terms of the third and fourth moments: a fraction that vanishes as n
        grows.
        """
        noise = self._v * form.weights.square().sum() / n
        square = ((form.weights * means[0]).square().sum(-1) - noise).clamp_min(0)
        return self._variance(n**2 * square, n, self.weight)

    def worst(self, n: float, most: Extremes) -> float:
        """A bound of the variance of the mean over all pairs, whatever the data of n users, nothing
        clipped.

        ||J s|| is at most n times the largest ||J u_x||; half_width <= 2 t (D + M), D the kernel's
        half range and M that of the noise, joined by Minkowski's inequality (M for normal noise).
        Of the moments of order three, affine in s, each term has its largest size; of those of
        order four, which do not depend on s, the worst type counts.
        """
        return self._worst(n, most, self.weight)

    @property
    def _v(self) -> float:
        """v, of one message."""
        return self.randomizers[0].moments.variance

    def _published(self, counts: Tensor, weight: float) -> Tensor:
        points = self.statistic.points
        counts = counts.to(points)
        n = counts.sum()
        weights = self.statistic.form.weights
        slope = weights * (counts @ points)  # J s
        unit = points / self.statistic.radius
        p = 2 * (1 - weight)
        q = 1 - 2 * weight
        beyond = self._noise.beyond_normal(unit, slope, weights, p, q)
        return self._variance(slope.square().sum(), n, weight) + counts @ beyond / n**4

    def _variance(self, square: Tensor | float, n: Tensor | float, weight: float) -> Tensor:
        """For normal noise; ``square``: ||J s||^2, s the sum of the vectors."""
        p = 2 * (1 - weight)
        q = 1 - 2 * weight
        squares = self.statistic.form.weights.square().sum()
        return p**2 * self._v * square / n**3 + 2 * q**2 * self._v**2 * squares / n**2

    def _worst(self, n: float, most: Extremes, weight: float) -> float:
        p = 2 * (1 - weight)
        q = 1 - 2 * weight
        radius = self.statistic.radius
        weights = self.statistic.form.weights
        unit = self.statistic.points / radius
        fourth = self._noise.beyond_normal(unit, torch.zeros_like(unit[0]), weights, p, q)
        own = most.own / radius**2
        along = most.largest / radius  # |s^T J u_x|/n
        across = abs(float(weights.sum())) + own  # |trace of J across u_x|
        mixed = abs(self._noise.mixed_third)
        # s^T J P J u is s^T J^2 u less (s^T J u) (u^T J u)
        third = abs(self._noise.third - 2 * self._noise.mixed_third) * along * own
        third += mixed * (along * across + 2 * most.longest**2 / radius)
        beyond = 2 * p * abs(q) * third / n**2 + float(fourth.amax()) / n**3
        half = 2 * weight * (most.half + most.noise * (self._v / n) ** 0.5)
        answers = half**2 * self.responses[0].moments.variance / n  # largest at the value 0
        published = float(self._variance((most.longest * n) ** 2, n, weight))
        return published + beyond + answers
