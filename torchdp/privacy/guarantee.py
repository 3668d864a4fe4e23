"""What a mechanism promises: a description, never an algorithm."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from torchdp import checks
from torchdp.brief import Brief, html_table

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Model(Enum):
    """Who must be trusted."""

    LOCAL = "local"  # no trusted party: each user's own messages are private
    SHUFFLE = "shuffle"  # a shuffler: the unordered set of messages is private
    # servers that do not all collude: the published sum is private
    LINEAR_TRANSFORM = "linear-transform"
    CENTRAL = "central"  # the curator: only the output is private


class Neighbours(Enum):
    """Which data sets must be indistinguishable."""

    REPLACE_ONE = "replace one user's value by any other; the number of users is public"
    ADD_REMOVE = "add or remove one user"


class Arithmetic(Enum):
    """What is private: the numbers that leave, or those of the theorem."""

    # what is drawn and sent: its chances are integers over a power of two, from uniform words
    INTEGER = "integer"
    # what is drawn and sent: a real mechanism's integers; delta includes their table's error
    ROUNDED = "rounded"
    # the theorem's real numbers: nothing is promised of floats' bits, or of what floats decided
    REAL = "real"


@dataclass(frozen=True)
class Guarantee(Brief):
    """(epsilon, delta)-differential privacy: P(A) <= e^epsilon P'(A) + delta for every event A.

    Args:
        epsilon: math.inf for a reference without privacy, 0 for what shows nothing, up to delta.
        delta: in [0, 1).
        model: who is trusted.
        neighbours: the relation between the two data sets.
        exact: whether (epsilon, delta) is attained (no smaller epsilon holds at this delta) or an
            upper bound.
        source: author, year, theorem.
        arithmetic: what it refers to; REAL does not protect against attacks on the low-order bits
            of floats (Mironov 2012).
        mu: where it is known, neighbours are no easier to distinguish than N(0, 1) from N(mu, 1):
            mu-Gaussian privacy, and mu^2/2-zCDP.
        variation: total variation distance of the output's distribution from such a mechanism's; 0
            but where ROUNDED, and where many clients' rounded noise stands for normal noise.
    """

    epsilon: float
    delta: float
    model: Model
    neighbours: Neighbours
    exact: bool
    source: str
    arithmetic: Arithmetic = Arithmetic.REAL
    mu: float | None = None
    variation: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, float) and self.epsilon == math.inf):
            checks.non_negative("epsilon", self.epsilon)
        checks.below_one("delta", self.delta)
        if not isinstance(self.model, Model) or not isinstance(self.neighbours, Neighbours):
            raise TypeError("model must be a Model and neighbours a Neighbours")
        if not isinstance(self.exact, bool) or not isinstance(self.source, str):
            raise TypeError("exact must be a bool and source a str")
        if not isinstance(self.arithmetic, Arithmetic):
            raise TypeError("arithmetic must be an Arithmetic")
        if self.mu is not None:
            checks.non_negative("mu", self.mu)
        checks.below_one("variation", self.variation)

    def __str__(self) -> str:
        delta = f", delta = {self.delta:g}" if self.delta else ""
        over = ", over real numbers" if self.arithmetic is Arithmetic.REAL else ""
        attained = {Arithmetic.INTEGER: "exactly ", Arithmetic.REAL: ""}
        kind = attained.get(self.arithmetic, "at most ") if self.exact else "at most "
        epsilon = f"{kind}epsilon = {self.epsilon:g}"
        return f"{self.model.value} differential privacy, {epsilon}{delta}{over}"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("guarantee", str(self)),
            ("neighbours", self.neighbours.value),
            ("source", self.source),
        ]
        if self.mu is not None:
            rows.append(("mu", self.mu))
        return html_table(rows)

    def rounded(self, variation: float, delta: float) -> "Guarantee":
        """That of integers distributed within ``variation`` of a function of this one's output.

        Args:
            variation: total variation distance of all that is released at once.
            delta: of the integers' guarantee: this one's, and (1 + e^epsilon) variation.

        Raises ValueError where delta is less.

        Guarantees: P(A) <= P*(A) + v <= e^epsilon P*'(A) + self.delta + v, and P*'(A) <= P'(A) + v.
        """
        added = (1 + math.exp(min(self.epsilon, 700.0))) * checks.non_negative(
            "variation", variation
        )
        left = checks.fraction("delta", delta) - self.delta
        # A margin for the rounding of both sides; "not": NaN fails every comparison.
        if not added * (1 + 1e-9) <= left:
            raise ValueError(
                f"delta = {delta:g} leaves {left:g} for the tables' distance from it, which needs "
                f"{added:g}; take a larger delta, less epsilon or fewer numbers"
            )
        variation += self.variation
        return replace(
            self, delta=delta, exact=False, arithmetic=Arithmetic.ROUNDED, variation=variation
        )

    def leaving(self, variation: float, delta: float) -> "Guarantee":
        """``rounded``; of real numbers where delta does not pay for tables. Raises ValueError."""
        try:
            return self.rounded(variation, delta)
        except ValueError:
            return replace(self, delta=delta, exact=False)

    @property
    def rho(self) -> float | None:
        """mu^2/2, up to ``variation``: rho-zero-concentrated privacy. None where mu is not known.

        Source: Bun, Steinke (2016), Lemma 2.4.
        """
        return None if self.mu is None else self.mu**2 / 2

    @property
    def pure(self) -> bool:
        """Whether all of delta is what ``variation`` costs: one of delta = 0 is that near."""
        return self.delta <= (1 + math.exp(min(self.epsilon, 700.0))) * self.variation * (1 + 1e-5)

    def event(self) -> "DpEvent":
        """The event for accountants of dp_accounting whose relation is this one's ``neighbours``.

        Gaussian noise where mu is known: the package's multiplier is per bound of one user's part,
        which replacing a user moves by twice the bound. Randomized response where it is ``pure``,
        the worst such mechanism. Raises ValueError where the package has no event, ImportError.

        Guarantees: what the event promises, this does, up to ``variation``.
        Source: Kairouz, Oh, Viswanath (2015), Theorem 3.3, for delta = 0.
        """
        from dp_accounting import dp_event

        replaced = self.neighbours is Neighbours.REPLACE_ONE
        if self.epsilon > 700.0:  # the chance of a lie is no float
            return dp_event.NonPrivateDpEvent()
        if self.mu == 0 or self.epsilon == self.delta == 0:
            return dp_event.NoOpDpEvent()
        if self.mu is not None:
            return dp_event.GaussianDpEvent((2 if replaced else 1) / self.mu)
        # Uniform with this chance p, else the truth: the ratio (2 - p)/p is e^epsilon.
        if self.pure and replaced:
            return dp_event.RandomizedResponseDpEvent(2 / (1 + math.exp(self.epsilon)), 2)
        raise ValueError(
            f"dp_accounting has no event for {self}; compose it by torchdp.privacy.compose"
        )


def weakest_arithmetic(guarantees: Iterable[Guarantee]) -> Arithmetic:
    """That of all of them together: REAL where one is, else ROUNDED where one is."""
    kinds = {guarantee.arithmetic for guarantee in guarantees}
    # The members stand in order, from the strongest promise to the weakest.
    return max(kinds, key=list(Arithmetic).index, default=Arithmetic.REAL)


def alike(guarantees: Sequence[Guarantee]) -> Guarantee:
    """The first of them, where all have one model and one neighbouring relation.

    Raises TypeError, ValueError.
    """
    for other in guarantees:
        if not isinstance(other, Guarantee):
            raise TypeError(f"guarantees must hold Guarantee objects, not {type(other).__name__}")
    first = guarantees[0]
    for other in guarantees[1:]:
        if (other.model, other.neighbours) != (first.model, first.neighbours):
            raise ValueError(
                "guarantees of different models or neighbouring relations do not compose here: "
                f"{first.model.value}/{first.neighbours.name} with "
                f"{other.model.value}/{other.neighbours.name}"
            )
    return first
