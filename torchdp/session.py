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

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.noise import Noise
from torchdp.privacy import Budget, Guarantee
from torchdp.protocol import Estimate, Protocol
from torchdp.protocol.frames import columns_of, rows_of
from torchdp.queries.choose import TRUST, choose
from torchdp.text import aligned, say
from torchdp.workloads import Workload

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
        left: of the budget, behind it.
    """

    question: Any
    columns: Any
    protocol: Protocol[Any]
    left: Guarantee

    @property
    def name(self) -> str:
        """What was asked, of which columns."""
        question = self.question
        name = type(question).__name__
        if isinstance(question, Workload):
            name = question.name
        elif isinstance(question, Tensor):
            name = f"queries of shape {tuple(question.shape)}"
        return name if self.columns is None else f"{name} of {self.columns!r}"

    def repeats(self, other: "Asked") -> bool:
        """Whether both ask the same of the same columns, as far as they print themselves."""
        if self.name != other.name:
            return False
        if isinstance(self.question, Tensor):
            return torch.equal(self.question, other.question)
        return repr(self.question) == repr(other.question)


class Session(Brief):
    """Rows and what may still be told of them. ``print`` shows what was asked, and what is left.

    Args:
        data: a row for each user: a pandas Series or DataFrame, an array, a list or a tensor. Their
            number is public.
        epsilon: of all answers together; epsilons and deltas add up.
        delta: of all together, in (0, 1); tables of noise need some, were it 1e-12.
        rho: in the place of epsilon: squares of mus add up, which allows more of many answers by
            normal noise (``Budget.of``).
        budget: in the place of these, one of your own, such as what other releases have left.
        trust: as of ``queries.choose``: "curator" is who holds the data; of the others the rows
            are randomized as each user would.
        quiet: whether answers say nothing of what they spend.

    The budget can be spent by several threads. Raises TypeError, ValueError.

    Guarantees: all answers together keep ``budget.limit``, also where questions are chosen after
        seeing answers.
    Source: that of :class:`torchdp.privacy.Budget`.
    """

    _printed = ("n", "trust", "budget", "asked")

    def __init__(
        self,
        data: Any,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        budget: Budget | None = None,
        trust: str = "curator",
        quiet: bool = False,
    ) -> None:
        model = TRUST.get(checks.instance("trust", trust, str))
        if model is None:
            raise ValueError(f"trust must be one of {', '.join(TRUST)}, not {trust!r}")
        if budget is None:
            budget = Budget.of(epsilon=epsilon, delta=delta, rho=rho, model=model)
        elif (epsilon, delta, rho) != (None, None, None):
            raise ValueError("budget must be given alone, without epsilon, delta or rho")
        self.data = data
        self.n = len(data)
        self.budget = checks.instance("budget", budget, Budget)
        if budget.limit.model is not model:
            raise ValueError(
                f"trust = {trust!r} must be that of the budget, {budget.limit.model.value}"
            )
        self.trust = trust
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
            epsilon: for this answer; by default all that is left.
            delta: likewise; by default in proportion to epsilon, or the limit's where squares of
                mus add up.
            noise: None is the system's cipher.
            how: options of ``queries.choose``: objective, prior, tol, unbiased, ordered.

        Raises TypeError, ValueError: where less is left, before the data are read; nothing is spent
        where the data do not fit the question.
        """
        if isinstance(question, Protocol):
            protocol: Protocol[Any] = question
        else:
            protocol = self._chosen(question, epsilon, delta, how)
        self.budget.check(protocol.guarantee)
        rows = rows_of(columns_of(self.data, columns), protocol.held, "data")
        protocol.validate(rows)
        left = self.budget.spend(protocol.guarantee)
        asked = Asked(question, columns, protocol, left)
        before = [number for number, one in enumerate(self.asked, 1) if one.repeats(asked)]
        self.asked.append(asked)
        if not self.quiet:
            again = f" (asked before, as question {before[0]})" if before else ""
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
            share = 1.0 if limit.mu is not None else min(1.0, epsilon / left.epsilon)
            delta = left.delta * share
        # Of a curator's candidates the shuffled ones are left out: another model.
        how = {"search": self.trust != "curator"} | how
        choice = choose(question, self.n, epsilon, delta or None, trust=self.trust, **how)
        fitting = []
        for candidate in choice.candidates:
            guarantee = candidate.protocol.guarantee
            if guarantee.model is limit.model and guarantee.delta <= delta:
                fitting.append(candidate.protocol)
        # What is pure costs more squares than normal noise of as much error.
        normal = [protocol for protocol in fitting if protocol.guarantee.mu is not None]
        if limit.mu is not None and normal:
            return normal[0]
        if not fitting:
            raise ValueError(f"no protocol keeps delta = {delta:g} here; take a larger delta")
        return fitting[0]

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
