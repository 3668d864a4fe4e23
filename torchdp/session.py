"""Data that are bound to a budget: every question spends of it, and none is answered beyond it.

>>> import pandas as pd, torchdp
>>> from torchdp import workloads
>>> towns = pd.Series(["Bern", "Basel", "Bern", "Chur"] * 500, name="town", dtype="category")
>>> session = torchdp.Session(towns.to_frame(), epsilon=1.0, delta=1e-6)
>>> found = session.ask(workloads.identity(3), "town", epsilon=0.5)
question 1, identity of 'town': CentralLaplace spends epsilon = 0.5, delta = 2.6e-34; left: epsilon = 0.5, delta = 1e-06

Who binds everybody's rows is their curator. (``torchdp.secure.Session`` is another thing: what the
parties of a sum by servers agree upon.)
"""

from dataclasses import dataclass
from typing import Any

from torchdp import checks
from torchdp.brief import Brief
from torchdp.noise import Noise
from torchdp.privacy import Budget, Guarantee
from torchdp.protocol import Estimate, Protocol
from torchdp.protocol.frames import columns_of, rows_of
from torchdp.queries import choose
from torchdp.text import aligned, say

__all__ = ["Asked", "Session"]

# Relative, of epsilon: thirds of a limit fit into it three times.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Asked(Brief):
    """A question that was answered.

    Args:
        question: as it was given.
        columns: of the data.
        protocol: by which it was answered.
    """

    question: Any
    columns: Any
    protocol: Protocol[Any]

    @property
    def name(self) -> str:
        """What was asked, of which columns."""
        name = getattr(self.question, "name", None) or type(self.question).__name__
        return name if self.columns is None else f"{name} of {self.columns!r}"


class Session(Brief):
    """Rows and what may still be told of them. ``print`` shows what was asked, and what is left.

    Args:
        data: a row for each user: a pandas Series or DataFrame, an array, a list or a tensor. Their
            number is public.
        epsilon: of all answers together; epsilons and deltas add up.
        delta: of all together, in (0, 1); tables of noise need some, were it 1e-12.
        rho: in the place of epsilon: squares of mus add up, which allows more of many answers by
            normal noise (``Budget.of``).
        budget: in the place of these, one of your own: of another model, or shared with others.
        quiet: whether answers say nothing of what they spend.

    The budget can be spent by several threads. Raises TypeError, ValueError.

    Guarantees: all answers together keep ``budget.limit``, also where questions are chosen after
        seeing answers.
    Source: that of :class:`torchdp.privacy.Budget`.
    """

    _printed = ("n", "budget", "asked")

    def __init__(
        self,
        data: Any,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        budget: Budget | None = None,
        quiet: bool = False,
    ) -> None:
        if budget is None:
            budget = Budget.of(epsilon=epsilon, delta=delta, rho=rho)
        elif (epsilon, delta, rho) != (None, None, None):
            raise ValueError("budget must be given alone, without epsilon, delta or rho")
        self.data = data
        self.n = len(data)
        self.budget = checks.instance("budget", budget, Budget)
        self.quiet = quiet
        self.asked: list[Asked] = []

    def ask(
        self,
        question: Any,
        columns: Any = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        noise: Noise | None = None,
        **how: Any,
    ) -> Estimate:
        """Chooses a protocol, spends its guarantee, and answers.

        Args:
            question: as of ``queries.choose``, or a protocol of your own choice.
            columns: of a DataFrame, a name or a list of names; None: all of the data.
            epsilon: for this answer, by default all that is left; a protocol has its own.
            delta: likewise; by default in proportion to epsilon, or the limit's where squares of
                mus add up.
            noise: None is the system's cipher.
            how: options of ``queries.choose``; trust is "curator", as of whom holds the data, and of
                its candidates the shuffled ones, of another model, are left out. ``trust="local"``
                needs a budget of that model.

        Raises TypeError, ValueError: where less is left, before the data are read; nothing is spent
        where the data do not fit the question.
        """
        protocol = question
        if not isinstance(question, Protocol):
            protocol = self._chosen(question, epsilon, delta, how)
        self.budget.check(protocol.guarantee)
        rows = rows_of(columns_of(self.data, columns), protocol.held, "data")
        protocol.validate(rows)
        left = self.budget.spend(protocol.guarantee)
        asked = Asked(question, columns, protocol)
        before = [one for one in self.asked if one.question is question and one.name == asked.name]
        self.asked.append(asked)
        if not self.quiet:
            again = " (asked before)" if before else ""
            spent = f"{type(protocol).__name__} spends {_said(protocol.guarantee)}"
            name = f"question {len(self.asked)}, {asked.name}{again}"
            say(f"{name}: {spent}; left: {_said(left)}")
        return protocol.estimate(rows, noise=noise)

    def _chosen(
        self, question: Any, epsilon: float | None, delta: float | None, how: dict[str, Any]
    ) -> Protocol[Any]:
        """Of least predicted error, among those whose guarantees the budget adds up."""
        limit = self.budget.limit
        left = self.budget.left
        if epsilon is None:
            epsilon = left.epsilon
        if not 0 < epsilon <= left.epsilon * (1 + ROUNDING):
            raise ValueError(
                f"epsilon = {epsilon:g} must be > 0 and at most what is left, {_said(left)} of "
                f"{_said(limit)}: keep what was answered, or ask for less"
            )
        if delta is None:
            share = min(1.0, epsilon / left.epsilon)
            delta = left.delta * share if limit.mu is None else left.delta
        options: dict[str, Any] = {"trust": "curator", "search": False} | how
        choice = choose(question, self.n, epsilon, delta or None, **options)
        for candidate in choice.candidates:
            guarantee = candidate.protocol.guarantee
            # What is pure costs more squares than normal noise of as much error.
            added = limit.mu is None or guarantee.mu is not None
            if added and guarantee.model is limit.model and guarantee.delta <= delta:
                return candidate.protocol
        raise ValueError(
            f"question must have a protocol that a budget of {_said(limit)}, "
            f"{limit.model.value}, adds up; take a larger delta, or one of another kind"
        )

    def __str__(self) -> str:
        rows = [("question", "protocol", "spent")]
        for one in self.asked:
            rows.append((one.name, type(one.protocol).__name__, _said(one.protocol.guarantee)))
        limit = self.budget.limit
        rows.append(("left", f"of {_said(limit)}", _said(self.budget.left)))
        return "\n".join(aligned(rows))


def _said(guarantee: Guarantee) -> str:
    delta = f", delta = {guarantee.delta:.2g}" if guarantee.delta else ""
    rho = "" if guarantee.rho is None else f", rho = {guarantee.rho:.4g}"
    return f"epsilon = {guarantee.epsilon:g}{delta}{rho}"
