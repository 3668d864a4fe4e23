"""A histogram of categories that nobody listed: which of them may be named, and how often.

Notation: n, the users of a category; X, its noise; K, its reach; a = e^-rate.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.brief import Brief
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours
from torchdp.privacy.gaussian import ROUNDED
from torchdp.rounded import Guide

if TYPE_CHECKING:
    import pandas as pd

# What int16 cells hold, on either side.
WIDEST = 2**15 - 2


@dataclass(frozen=True, eq=False)
class UnknownCategories(Brief):
    """The curator names each category whose noisy count is above K, with that count.

    Noise is discrete Laplace cut at K on both sides, P(X = j) = c a^|j|, c = (1 - a)/(1 + a -
    2 a^(K + 1)): a category of nobody is never named, and one user more moves a count to what was
    impossible with chance P(X = K) = c a^K. K is the least whole number for which this is at most
    delta. Where it equals delta no mechanism names a category more often, whatever its count.

    Args:
        epsilon: > 0, up to 700, of all that a user adds.
        delta: in (0, 1), likewise.
        contributions: categories that one user counts in, at most: each is private at epsilon and
            delta over so many.

    Raises ValueError.

    Guarantees: (epsilon, delta)-DP in the central model for adding or removing one user, and so
    (2 epsilon, 2 delta)-DP for replacing one: its old and new categories are so many, of
    independent noise.
    Source: Desfontaines, Voss, Gipson, Mandayam (2022), Theorem 2 and section 4; the proof for
    counts above.
    """

    epsilon: float
    delta: float
    contributions: int = 1

    def __post_init__(self) -> None:
        checks.keep(self, epsilon=checks.positive, delta=checks.fraction)
        checks.within("epsilon", self.epsilon, 0.0, 700.0)
        checks.integer("contributions", self.contributions, 1)
        checks.validated(self, "reach", "guarantee")

    @property
    def rate(self) -> float:
        """Of one category, rounded down: wider noise is to the private side."""
        return math.nextafter(self.epsilon / self.contributions, 0.0)

    @cached_property
    def reach(self) -> int:
        """K, the least with c a^K <= delta/contributions."""
        share = self.delta * ROUNDED / self.contributions
        a = math.exp(-self.rate)
        # a^K (1 - a + 2 a share) <= share (1 + a)
        least = math.log((-math.expm1(-self.rate) + 2 * a * share) / (share * (1 + a))) / self.rate
        reach = max(1, math.ceil(least * (1 + 1e-12)))
        name = "reach of the noise, of so small an epsilon or so many contributions,"
        return checks.integer(name, reach, 1, WIDEST)

    @cached_property
    def guarantee(self) -> Guarantee:
        """Of the categories that are named, and of their counts."""
        source = "Desfontaines, Voss, Gipson, Mandayam (2022), section 4"
        kept = self.delta * ROUNDED
        real = Guarantee(self.epsilon, kept, Model.CENTRAL, Neighbours.ADD_REMOVE, False, source)
        # Draws of categories that a user is not in are the same in both worlds.
        return real.leaving(self.contributions * self._noise.variation, self.delta)

    @cached_property
    def _noise(self) -> Guide:
        return laplace.truncated(self.rate, self.reach)

    @cached_property
    def _tails(self) -> Tensor:
        """P(X > K - i), i = 0, ..., 2 K + 1."""
        sizes = torch.arange(-self.reach, self.reach + 1).abs().double()
        chances = (-self.rate * sizes).exp()
        return torch.nn.functional.pad((chances / chances.sum()).cumsum(0), (1, 0))

    def chance(self, n: Tensor) -> Tensor:
        """P(a category of n users is named), of the shape of ``n``."""
        return self._tails[n.clamp(max=2 * self.reach + 1)]

    def estimate(
        self, x: Any, users: Any | None = None, *, level: float = 0.95, noise: Noise | None = None
    ) -> "pd.DataFrame":
        """The categories that may be named, the most frequent first; each call is a release.

        Args:
            x: a category for each user, (n,): a Series, an array, a list; missing ones do not count.
            users: whose each row is, (n,), where a user has several: of each ``contributions`` of
                its categories are drawn. None: each row is of another user.
            level: of the intervals of counts, for each category whether it is named or not.
            noise: None is the system's cipher.

        The k most frequent are the first k rows.

        Returns:
            value (a count), standard_error, low, high of each category, which are the index.

        Raises TypeError, ValueError.
        """
        import pandas as pd

        level = checks.fraction("level", level)
        cells = np.asarray(x, object)
        if cells.ndim != 1:
            raise ValueError(f"x must be one column of categories, not of shape {cells.shape}")
        labels = pd.Series(cells, name=getattr(x, "name", "category"))
        if users is not None:
            rows = pd.DataFrame({0: np.asarray(users, object), 1: labels}).dropna()
            shuffled = rows.drop_duplicates().sample(frac=1, random_state=np.random.default_rng())
            labels = shuffled.groupby(0).head(self.contributions)[1].rename(labels.name)
        elif self.contributions > 1:
            raise ValueError("users must be given where contributions are more than 1")
        # In an order of their own: that of the rows would tell who came first.
        counts = labels.value_counts().sort_index(key=lambda index: index.map(repr))
        drawn = torch.empty(len(counts), dtype=torch.int64)
        self._noise.fill(drawn, source(noise, drawn.device))
        noisy = counts + drawn.numpy()
        value = noisy[noisy > self.reach].sort_values(ascending=False, kind="stable")
        # P(|X| > t) <= 1 - level: of one side half.
        half = self.reach + 1 - int((self._tails <= (1 - level) / 2).sum())
        columns = {
            "value": value,
            "standard_error": math.sqrt(self._noise.variance),
            # Whoever is named has one user at least.
            "low": (value - half).clip(lower=1),
            "high": value + half,
        }
        return pd.DataFrame(columns)
