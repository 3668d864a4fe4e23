"""Privacy budgets, for mechanisms that are chosen adaptively.

Sums: let (e, d) remain of the limit, the next promise be (e1, d1), and let what follows each output
y keep the rest, f(y) <= min(1, e^(e - e1) g(y)) + d - d1, f and g the chances of an event on the
two data sets. The first term lies in [0, 1], so its mean is at most e^e1 times the other data's
mean of it, plus d1: E f <= e^e E g + d. By induction from the last release on, whatever was chosen
in between.

Squares: a mechanism of mu_i is a function of a normal variable of mean 0 or mu_i (Blackwell 1951),
hence of a Brownian motion, whose drift is 0 or 1, during a time of mu_i^2. The next mu is chosen
from what was seen, and all times together are at most mu^2: all outputs are a function of the
motion up to there, N(0, mu^2) against N(mu^2, mu^2) at its end, which is mu. The trade-off curve of
a response at epsilon is two straight lines that meet at alpha = beta = 1/(1 + e^epsilon); the
convex curve of mu lies below both where it passes below that corner.
"""

import math
import threading
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn, cast

from scipy.special import ndtri_exp

from torchdp import checks
from torchdp.brief import Brief
from torchdp.privacy.gaussian import ROUNDED, gaussian_epsilon, gaussian_guarantee, gaussian_sigma
from torchdp.privacy.guarantee import (
    Arithmetic,
    Guarantee,
    Model,
    Neighbours,
    alike,
    weakest_arithmetic,
)

# Three thirds of a limit fit into it, whatever their floats are rounded to.
_WHOLE = 1 + Fraction(1, 10**9)
# The delta at which a limit of rho states its epsilon where none is said.
STATED = 1e-6


class Budget(Brief):
    """A privacy budget. Spend before a release; if it refuses, release nothing.

    Args:
        limit: a Guarantee; what is left of it is ``left``.

    A limit without mu adds up epsilons and deltas. A limit with mu adds up the squares of the mus:
    of Gaussian noise, at whatever delta it was stated, and of mechanisms with delta = 0, mu = 2
    Phi^{-1}(e^epsilon/(1 + e^epsilon)). ``Budget.of`` makes both. Integers that are
    rounded spend their variation too, the total variation between what is drawn and the real
    mechanism, where the limit is of rounded ones. One rule holds throughout: it never switches to a
    tighter one adaptively.

    It holds no data, and any number of threads may spend. It belongs to one process: copies and
    pickles raise TypeError, and a forked child needs a budget of its own. Raises TypeError,
    ValueError.

    Guarantees: what it let pass keeps ``limit``, to 1e-9 of epsilon, delta or mu^2, also where
    mechanisms *and their guarantees* are chosen after seeing earlier outputs.
    Source: Rogers, Roth, Ullman, Vadhan (2016), for sums; Smith, Thakurta (2022), for mu; the
    proofs above.
    """

    _printed = ("limit", "left")

    def __init__(self, limit: Guarantee) -> None:
        if not isinstance(limit, Guarantee):
            raise TypeError(
                f"limit must be a Guarantee, not {type(limit).__name__}; Budget.of(epsilon=..., "
                "delta=..., model=..., neighbours=...) makes one of numbers, with the model and "
                "neighbours of the releases' guarantees"
            )
        if limit.epsilon == math.inf:
            raise ValueError("limit must have a finite epsilon: an infinite one refuses nothing")
        self.limit = limit
        if limit.mu is not None:
            epsilon = self._curve(limit.mu, limit.variation)
            # mu is what is spent: an epsilon that does not follow from it would be exceeded.
            if epsilon > limit.epsilon * (1 + 1e-9):
                raise ValueError(
                    f"limit must follow from its mu = {limit.mu:g}, whose epsilon is larger: "
                    f"{limit}"
                )
        self._lock = threading.Lock()
        self._limits = self._costs(limit)
        # Fractions: float sums of many small costs could be rounded below what was spent.
        self._spent = [Fraction(0)] * len(self._limits)

    @classmethod
    def of(
        cls,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        squares: bool = False,
        model: Model = Model.CENTRAL,
        neighbours: Neighbours = Neighbours.REPLACE_ONE,
    ) -> "Budget":
        """A budget by its numbers, of real numbers' privacy and what implies it.

        Args:
            epsilon: epsilons and deltas add up.
            delta: of all releases; without one 0, or with ``rho`` 1e-6, at which it is stated.
            rho: in the place of epsilon: squares of mus add up, to 2 rho.
            squares: whether they do so for epsilon and delta, too, to those of one Gaussian
                mechanism; this allows more, smaller releases by normal noise, and less by other.
            model: who is trusted.
            neighbours: the relation.

        Raises TypeError, ValueError.
        """
        if (epsilon is None) == (rho is None):
            raise ValueError("epsilon or rho must be given, one of the two")
        if epsilon is None:
            mu = math.sqrt(2 * checks.positive("rho", cast(float, rho)))
        elif squares:
            mu = 1 / gaussian_sigma(epsilon, cast(float, delta))
        else:
            source = "the limit of a budget"
            return cls(Guarantee(epsilon, delta or 0.0, model, neighbours, True, source))
        stated = STATED if delta is None else delta
        return cls(gaussian_guarantee(1 / mu, stated, 1.0, model, neighbours))

    def spend(self, guarantee: Guarantee) -> Guarantee:
        """Takes ``guarantee`` off, and returns what is left.

        Raises ValueError, and takes nothing, where less is left, or where model, neighbours or
        arithmetic are not the limit's; TypeError.
        """
        # Compared and taken in one step: two threads can not both get what is left.
        with self._lock:
            self._spent = self._after(guarantee)
            return self._left()

    def check(self, guarantee: Guarantee) -> None:
        """Raises what ``spend`` would raise now; takes nothing."""
        with self._lock:
            self._after(guarantee)

    @property
    def left(self) -> Guarantee:
        """The remaining budget."""
        with self._lock:
            return self._left()

    def _after(self, guarantee: Guarantee) -> list[Fraction]:
        """What is spent together with this one; under the lock. Raises ValueError, TypeError."""
        alike([self.limit, guarantee])
        # What holds of real numbers only must not be let pass by a limit of integers.
        if weakest_arithmetic([self.limit, guarantee]) is not self.limit.arithmetic:
            raise ValueError(
                "guarantee must have the kind of privacy that the limit has, "
                f"{self.limit.arithmetic}: {guarantee}"
            )
        costs = self._costs(guarantee)
        spent = [before + cost for before, cost in zip(self._spent, costs, strict=True)]
        if any(total > most * _WHOLE for total, most in zip(spent, self._limits, strict=True)):
            left = self._left()
            said = f"{left}"
            if self.limit.variation:
                said += f", variation = {left.variation:g}"
            raise ValueError(
                f"guarantee spends more than the budget has left: {guarantee}, left: {said}"
            )
        return spent

    def _costs(self, guarantee: Guarantee) -> list[Fraction]:
        """What is added up, exactly: the square of mu and the variation, or epsilon and delta."""
        if guarantee.epsilon == math.inf:
            raise ValueError("guarantee must have a finite epsilon to be spent")
        if self.limit.mu is None:
            return [Fraction(guarantee.epsilon), Fraction(guarantee.delta)]
        mu = guarantee.mu
        if mu is None:
            if not guarantee.pure:
                raise ValueError(
                    "guarantee must have a mu, or delta = 0, to be spent of a limit with mu: "
                    f"{guarantee}"
                )
            # mu = -2 Phi^{-1}(1/(1 + e^epsilon)); the logarithm does not underflow
            log_share = -math.log1p(math.exp(-guarantee.epsilon)) - guarantee.epsilon
            mu = -2 * float(ndtri_exp(log_share))
        return [Fraction(mu) ** 2, Fraction(self._varies(guarantee))]

    def _varies(self, guarantee: Guarantee) -> float:
        """The total variation that it spends, or that the limit has to spend.

        A distribution that is v away in total variation adds (1 + e^epsilon) v to delta. A limit of
        real numbers keeps the share 1 - ROUNDED of its delta for that: for tables that are read in
        place of real mechanisms, whose variation they state.
        """
        limit = self.limit
        if limit.arithmetic is not Arithmetic.REAL:
            return guarantee.variation
        if guarantee is limit:
            return limit.delta * (1 - ROUNDED) / (1 + math.exp(min(limit.epsilon, 700.0)))
        return guarantee.variation if guarantee.arithmetic is Arithmetic.REAL else 0.0

    def _left(self) -> Guarantee:
        limit = self.limit
        left = [
            max(most - spent, Fraction(0))
            for most, spent in zip(self._limits, self._spent, strict=True)
        ]
        epsilon, delta = map(float, left)
        mu = None
        variation = 0.0
        if limit.mu is not None:
            mu = math.sqrt(left[0])
            # of a limit of real numbers the 2^-40 of delta that is kept for tables is no variation
            if limit.arithmetic is not Arithmetic.REAL:
                variation = float(left[1])
            epsilon = self._curve(mu, variation)
            delta = limit.delta
        return replace(
            limit,
            epsilon=epsilon,
            delta=delta,
            exact=False,
            source=f"what is left of: {limit.source}",
            mu=mu,
            variation=variation,
        )

    def _curve(self, mu: float, variation: float) -> float:
        """Epsilon at the limit's delta."""
        return gaussian_epsilon(mu, checks.fraction("delta", self.limit.delta), variation)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Budget can not be copied or pickled: the copy could be spent again; "
            "hand on what is left"
        )
