"""What a mechanism promises: a description, never an algorithm."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from torchdp import checks


class Model(Enum):
    """Who must be trusted."""

    LOCAL = "local"  # nobody: each user's own messages are private
    SHUFFLE = "shuffle"  # a shuffler: the unordered set of messages is private
    LINEAR_TRANSFORM = "linear-transform"  # servers that do not all collude: the published sum is private
    CENTRAL = "central"  # the curator: only the output is private


class Neighbours(Enum):
    """Which data sets must be indistinguishable."""

    REPLACE_ONE = "replace one user's value by any other; the number of users is public"
    ADD_REMOVE = "add or remove one user"


class Arithmetic(Enum):
    """What is private: the numbers that leave, or those of the theorem."""

    INTEGER = "integer"  # what is drawn and sent: its chances are integers over a power of two, from uniform words
    REAL = (
        "real"  # the theorem's real numbers: nothing is promised of each bit of floats, or of what floats decided
    )


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy: P(A) <= e^epsilon P'(A) + delta for every event A.

    model: who is trusted. neighbours: the relation between the two data sets. exact: whether (epsilon, delta)
    is attained (no smaller epsilon holds at this delta) or an upper bound. source: author, year, theorem. epsilon is
    math.inf for a reference that protects nobody. arithmetic: of what it speaks; REAL does not protect against attacks
    on the low-order bits of floats (Mironov 2012).
    """

    epsilon: float
    delta: float
    model: Model
    neighbours: Neighbours
    exact: bool
    source: str
    arithmetic: Arithmetic = Arithmetic.REAL

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, float) and self.epsilon == math.inf):
            checks.positive("epsilon", self.epsilon)
        checks.below_one("delta", self.delta)
        if not isinstance(self.model, Model) or not isinstance(self.neighbours, Neighbours):
            raise TypeError("model must be a Model and neighbours a Neighbours")
        if not isinstance(self.exact, bool) or not isinstance(self.source, str):
            raise TypeError("exact must be a bool and source a str")
        if not isinstance(self.arithmetic, Arithmetic):
            raise TypeError("arithmetic must be an Arithmetic")

    def __str__(self) -> str:
        delta = f", delta = {self.delta:g}" if self.delta else ""
        real = self.arithmetic is Arithmetic.REAL
        kind = ("" if real else "exactly ") if self.exact else "at most "
        over = ", over real numbers" if real else ""
        return f"{self.model.value} differential privacy, {kind}epsilon = {self.epsilon:g}{delta}{over}"


def compose(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Basic composition: one user's data enters every mechanism; epsilons and deltas add up.

    All must share model and neighbouring relation; other combinations are refused (ValueError), because what
    they promise together depends on how the mechanisms are joined. The result is an upper bound: the worst
    pairs of inputs of the parts need not coincide.

    Guarantees: (sum of epsilons, sum of deltas)-DP, also when later mechanisms are chosen adaptively.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006), Theorem 1; Dwork, Roth (2014), Theorem B.1.
    """
    if not isinstance(guarantees, Iterable):
        raise TypeError(f"guarantees must be several Guarantees, not {type(guarantees).__name__}")
    guarantees = list(guarantees)
    if not guarantees:
        raise ValueError("guarantees must hold at least one Guarantee")
    for other in guarantees:
        if not isinstance(other, Guarantee):
            raise TypeError(f"guarantees must hold Guarantee objects, not {type(other).__name__}")
    first = guarantees[0]
    if len(guarantees) == 1:
        return first
    for other in guarantees[1:]:
        if (other.model, other.neighbours) != (first.model, first.neighbours):
            raise ValueError(
                "guarantees of different models or neighbouring relations do not compose here: "
                f"{first.model.value}/{first.neighbours.name} with {other.model.value}/{other.neighbours.name}"
            )
    return Guarantee(
        epsilon=math.fsum(g.epsilon for g in guarantees),
        delta=math.fsum(g.delta for g in guarantees),
        model=first.model,
        neighbours=first.neighbours,
        exact=False,
        source="basic composition, Dwork et al. (2006), of: " + "; ".join(g.source for g in guarantees),
        arithmetic=weaker(guarantees),
    )


def weaker(guarantees: Iterable[Guarantee]) -> Arithmetic:
    """Of what all of them together speak: INTEGER where each one does."""
    kinds = {each.arithmetic for each in guarantees}
    return Arithmetic.INTEGER if kinds == {Arithmetic.INTEGER} else Arithmetic.REAL
