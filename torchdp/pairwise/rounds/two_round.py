"""Two rounds: a noisy mean vector, then each user's own vector times it.

Notation: s is the sum of the users' vectors u, b = s + Z the noisy one, v the variance of one
message, J the diagonal matrix of the form's weights, t the ``weight``, p = 2 (1 - t), q = 1 - 2 t.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.forms import Form, one_kernel
from torchdp.pairwise.rounds.interactive import Extremes, PairsInRounds, extremes
from torchdp.pairwise.rounds.round import Question, ask
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.queries.pair_variance import NoiseMoments, noise_moments
from torchdp.randomizers.base import LARGEST_EPSILON, SMALLEST_EPSILON

# Logits of the first round's share of epsilon that are tried.
LOGITS = np.linspace(-4, 7, 23)
# The least weight that a search may find.
LIGHTEST = 1e-6


@dataclass(frozen=True)
class TwoRound(PairsInRounds):
    """Round one: b = s + Z, a noisy mean vector. Round two: each user's <u_x, 2 t J b>.

    With a the mean answer the estimate is a + (1 - 2t)(b^T J b - v tr J/n), whose error is
    2 (1 - t) s^T J Z + (1 - 2t)(Z^T J Z - v tr J/n) + the answers' noise. At t = 1 the first term
    is gone, and with it gamma_2 from the leading error; t = 1/2 removes the second
    (the reduction to linear queries); t -> 0 is one message. With v, z_i and s, here the sum of the
    vectors, as of one message, p = 2 (1 - t) and q = 1 - 2t, exactly but for the last term,
    n^4 Var = p^2 n v ||J s||^2 + 2 q^2 n^2 v^2 sum weights^2 + sum_i {2 p q E[s^T J z_i z_i^T J
    z_i]
    + q^2 (Var(z_i^T J z_i) - 2 v^2 sum weights^2)} + n^2 E half_width^2 sum_users (variance of a
      response).
    half_width is at most ``clip``; the default clips nothing, and then the estimate is unbiased.

    Args:
        first: epsilon of round one, the rest is for round two; ``tuned`` chooses it.
        weight: t, in (0, 1]; ``tuned`` chooses it.

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
        most = extremes(one_kernel(statistic))
        counts = None
        if prior is not None:
            counts = n * checks.shares("prior", prior, statistic.types).to(statistic.points)
        shares = 1 / (1 + np.exp(-LOGITS))
        smaller = np.minimum(shares, 1 - shares) * epsilon
        larger = np.maximum(shares, 1 - shares) * epsilon
        taken = (smaller >= SMALLEST_EPSILON * (1 + 1e-9)) & (larger <= LARGEST_EPSILON)
        grid = shares[taken].tolist()
        if not grid:
            raise ValueError(
                f"epsilon must lie in [{4 * SMALLEST_EPSILON:g}, {LARGEST_EPSILON:g}] here, "
                f"not {epsilon!r}"
            )

        def least(share: float) -> tuple[float, float]:
            """The least error at this share of the first round, and its weight."""
            error = cls(statistic, epsilon, share * epsilon)._error_of_weights(n, most, counts)
            low = error(0.5)
            high = error(1.0)
            # The minimum of the parabola through three weights: errors are nearly quadratic.
            bend = low - 2 * error(0.75) + high
            # Without a minimum inside t = 1 is proposed, where the first term is gone.
            best = 0.75 - 0.25 * (high - low) / (2 * bend) if bend > 0 else 1.0
            weight = min(max(best, LIGHTEST), 1.0)
            return error(weight), weight

        errors = [least(share)[0] for share in grid]
        best = int(np.argmin(errors))
        # The grid keeps the search out of other local minima.
        bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        between = minimize_scalar(
            lambda share: least(share)[0], bounds=bounds, method="bounded", options={"xatol": 1e-3}
        )
        share = float(between.x) if between.fun < errors[best] else grid[best]
        return cls(statistic, epsilon, share * epsilon, least(share)[1])

    def _error_of_weights(
        self, n: int, most: Extremes, counts: Tensor | None
    ) -> Callable[[float], float]:
        """This protocol's ``worst`` by its weight, now 1, or the variance for these counts."""
        if counts is None:
            return lambda weight: self._worst(float(n), most, weight)
        answers = float(self.analyst.expected_answers(counts, self.statistic.form))
        # Half widths go with the weight.
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
        # E Z^T J Z = v tr J/n: left in the square of b it would be a bias.
        of_noise = self._v * weights.sum() / n
        square = (weights * means[0].square()).sum(-1)
        return (1 - 2 * self.weight) * (square - of_noise)

    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        return self._published(counts, self.weight)

    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Without the terms of the third and fourth moments, which vanish as n grows."""
        of_noise = self._v * form.weights.square().sum() / n
        turned = form.weights * means[0]
        # ||J b||^2 holds the noise's own part, which comes off on average.
        square = turned.square().sum(-1) - of_noise
        return self._variance(n**2 * square.clamp_min(0), n, self.weight)

    def worst(self, n: float, most: Extremes) -> float:
        """A bound of the variance of the mean over all pairs, nothing clipped.

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
        higher = self._noise.beyond_normal(unit, slope, weights, 2 * (1 - weight), 1 - 2 * weight)
        normal = self._variance(slope.square().sum(), n, weight)
        return normal + counts @ higher / n**4

    def _variance(self, square: Tensor | float, n: Tensor | float, weight: float) -> Tensor:
        """For normal noise; ``square``: ||J s||^2, s the sum of the vectors."""
        p = 2 * (1 - weight)
        q = 1 - 2 * weight
        squares = self.statistic.form.weights.square().sum()
        linear = p**2 * self._v * square / n**3
        quadratic = 2 * q**2 * self._v**2 * squares / n**2
        return linear + quadratic

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
        mixed = self._noise.mixed_third
        # s^T J P J u is s^T J^2 u less (s^T J u) (u^T J u)
        third = abs(self._noise.third - 2 * mixed) * along * own
        size = along * across + 2 * most.longest**2 / radius
        third += abs(mixed) * size
        higher = 2 * p * abs(q) * third / n**2 + float(fourth.amax()) / n**3
        noise = most.noise * (self._v / n) ** 0.5
        half_width = 2 * weight * (most.half + noise)
        # A response's variance is largest at the value 0.
        answers = half_width**2 * self.responses[0].moments.variance / n
        published = float(self._variance((most.longest * n) ** 2, n, weight))
        return published + higher + answers
