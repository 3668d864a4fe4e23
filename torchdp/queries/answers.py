"""A curator's noise on the answers themselves, where a user moves each by a known amount.

Notation: g, the answers of n users; D, n times the most that one user's type moves each.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from torchdp import checks
from torchdp import discrete_laplace as laplace
from torchdp.draws import Draws, Shape
from torchdp.privacy import Guarantee
from torchdp.protocol import (
    Crowd,
    CuratorProtocol,
    Estimate,
    Layout,
    Limits,
    Objective,
    Tally,
    Users,
)
from torchdp.protocol.frames import Held
from torchdp.protocol.interval import ErrorParts, laplace_stretch
from torchdp.protocol.protocol import counts_on
from torchdp.protocol.records import broadcast_users, noise_limit, tensor_of, users_of, users_on
from torchdp.queries.central import laplace_guarantee
from torchdp.queries.channel import Bounded
from torchdp.queries.release import Answers, Several

# Whole steps that one user moves an answer by, at most, as real numbers.
STEPS = 2**20
# Of them beside: what rounding to steps and to floats adds, 1/4096.
SPARE = 2**8
# Answers whose noise is drawn together: 64 MiB for each number of a cluster.
AT_ONCE = 2**18
# Relative rounding of one operation, twice over.
EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class CentralAnswers(CuratorProtocol[Any]):
    """The curator answers g + step Z, Z discrete Laplace noise: pure privacy.

    For each answer step = D/(2^20 n), and what leaves is round(g/step) + Z, P(Z = z) in proportion
    to e^(-rate |z|). One user moves g by D/n at most, 2^20 steps; floats are off by 127 steps at
    most and rounding by a half, so that the a answers move by a (2^20 + 2^8) steps together at
    most: rate is epsilon over that. The variance of an answer is 2 (a D/(epsilon n))^2 nearly: it
    falls like 1/n^2 and hangs neither on the data nor on the number of types. ``of_population``
    adds D^2/(4 n), the most that answers of a sample vary: they are a function of independent
    users. A channel of counts tells more of the sampling, and has narrower intervals of a population
    where noise is small.

    Args:
        question: linear queries, a pairwise statistic that is no ratio, a statistic of some degree,
            or several of such; none of its answers constant. Or a statistic of rows as they are,
            such as ``pairwise.RowKendall()``.
        epsilon: > 0, up to 700.

    Raises ValueError, TypeError, also for so many users that floats are not exact enough.

    Guarantees: epsilon-DP in the central model, for replacing one user's value, n public; delta is
    what the distance of the tables' draws costs, ``Guarantee.pure``.
    Source: Dwork, McSherry, Nissim, Smith (2006), Proposition 1; Ghosh, Roughgarden, Sundararajan
    (2012); Higham (2002), section 3.1, for the rounding of sums; Efron, Stein (1981), for samples.
    """

    question: Any
    epsilon: float

    def __post_init__(self) -> None:
        checks.keep(self, epsilon=checks.positive)
        if not (self._bounded.moved > 0).all():
            raise ValueError("question must have no constant answers: there is nothing to hide")
        least = laplace.LEAST_RATE * self._moved
        checks.within("epsilon", self.epsilon, least, 700.0, ": wider noise is not drawn exactly")

    @cached_property
    def _bounded(self) -> Bounded:
        return _bounded(self.question)

    @property
    def _moved(self) -> int:
        """Steps of all answers together."""
        return self._bounded.moved.numel() * (STEPS + SPARE)

    @property
    def rate(self) -> float:
        """epsilon over the steps that a user moves, rounded down."""
        # A smaller rate is wider noise: rounding is to the private side.
        return math.nextafter(self.epsilon / self._moved, 0.0)

    @cached_property
    def guarantee(self) -> Guarantee:
        return laplace_guarantee(self.epsilon, self._bounded.moved.numel(), self.rate)

    @property
    def home(self) -> torch.device:
        return self._bounded.moved.device

    @property
    def held(self) -> Held:
        return self.question.held

    def validate(self, x: Tensor) -> Tensor:
        """x, what users hold. Raises TypeError, ValueError."""
        return self.question.validate(super().validate(x))

    @property
    def subject(self) -> Any:
        """What is asked: answers to the same question may be compared."""
        return self.question

    @property
    def layout(self) -> Layout:
        return {"answer": (tuple(self._bounded.moved.shape), torch.int64)}

    def step(self, n: Users) -> Tensor:
        """Of n users, (*batch, *answer)."""
        moved = self._bounded.moved
        users = broadcast_users(users_on(moved.device, n), moved.ndim)
        return moved / (users * STEPS)

    def limits(self, n: Users) -> dict[str, Limits]:
        reach = self._reach * n * STEPS + SPARE
        noise = noise_limit(math.sqrt(laplace.variance(self.rate)), 1 / self.rate)
        return {"answer": Limits.around(reach + noise)}

    def release(self, summary: Any, draws: Draws, shape: Shape) -> Tally:
        n = summary.n if isinstance(summary, Crowd) else users_of(summary)
        self._check_users(n)
        exact = self._bounded.exact(summary).to(draws.device)
        whole = (exact / self.step(n)).round().long()
        # Each of the releases draws noise of its own, in place.
        answers = whole.expand((*shape, *whole.shape)).clone(memory_format=torch.contiguous_format)
        # So fine a noise is a sum of some thirty clusters: they are held for a part at a time.
        for part in answers.view(-1).split(AT_ONCE):
            laplace.add_shares(part, 1.0, self.rate, draws)
        return Tally(n, {"answer": answers})

    def _check_users(self, n: Users) -> None:
        """Raises ValueError for so few that no answer is defined, and so many that floats are off.

        By n alone, which is public: a refusal tells nothing of what users hold.
        """
        users = tensor_of(n)
        few = users < self.question.fewest
        if few.any():
            raise ValueError(f"x must be of {self.question.fewest} users at least{checks.at(few)}")
        # Of the largest answer over its step, n STEPS size/D.
        off = self._bounded.terms(users.double()) * EPS * users * STEPS * self._reach
        many = off > SPARE / 2 - 1
        if many.any():
            raise ValueError(
                f"x must be of fewer users{checks.at(many)}: float64 does not tell the answers of "
                "so many within a part of their noise; take a channel, such as "
                "CentralLaplace.of(question, epsilon)"
            )

    @cached_property
    def _reach(self) -> float:
        """The largest of what an answer can be over its D."""
        return float((self._bounded.size / self._bounded.moved).max())

    def exact(self, summary: Any) -> Tensor:
        self._users(summary)
        return self._bounded.exact(counts_on(self.home, summary))

    def _users(self, summary: Any) -> Users:
        """n of a summary, of counts which need not be whole. Raises TypeError, ValueError."""
        if isinstance(self.held, int):
            return checks.users("summary", summary, self.held).sum(-1).to(self.home)
        return self.validate_summary(summary).n

    def _mse(self, n: Users) -> Tensor:
        return laplace.variance(self.rate) * self.step(n).square()

    def predicted_mse(self, summary: Any) -> Tensor:
        return self._mse(self._users(summary))

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """The error is the same on all data."""
        return objective.of(self._mse(n), tensor_of(n).ndim)

    def analyse(self, tally: Tally) -> Estimate:
        """The value is within half a step of one without bias."""
        tally = self.check(tally, self.question.fewest)
        n = tally.n
        value = tally["answer"] * self.step(n)
        variance = self._mse(n).expand(value.shape)
        answer = self._bounded.moved.ndim
        # Efron and Stein: the sum over users of what each makes them vary, D^2/(4 n^2) at most.
        sampling = (self._bounded.moved.square() / (4 * broadcast_users(n, answer))).expand(
            value.shape
        )
        if not isinstance(self.question, Several):
            return _told(self.question, value, variance, sampling, n)
        each = []
        start = 0
        for question in self.question.questions:
            shape = _bounded(question).moved.shape
            cut = partial(_cut, start=start, shape=shape)
            each.append(_told(question, cut(value), cut(variance), cut(sampling), n))
            start += shape.numel()
        batch = value.ndim - answer
        return Answers.beside(tuple(each), batch, partial(torch.diag_embed, variance))


def _bounded(question: Any) -> Bounded:
    """Raises ValueError for a question that has none."""
    bounded = getattr(question, "bounded", None)
    if bounded is None:
        raise ValueError(
            "question must be of answers that one user moves by a known amount, such as a mean "
            f"over pairs, not {type(question).__name__}: take a channel of the users' shares, "
            "such as CentralLaplace"
        )
    return bounded


def _cut(answers: Tensor, start: int, shape: torch.Size) -> Tensor:
    """One question's part, (*batch, *shape), of all answers, (*batch, a)."""
    part = answers[..., start : start + shape.numel()]
    return part.reshape((*answers.shape[:-1], *shape))


def _told(question: Any, value: Tensor, variance: Tensor, sampling: Tensor, n: Users) -> Estimate:
    """The estimate of one question's answers, (*batch, *answer), under independent noise."""
    bounded = _bounded(question)
    batch = value.shape[: value.ndim - bounded.moved.ndim]
    flat = variance.reshape((*batch, bounded.moved.numel()))
    estimate = Estimate(
        value,
        variance.sqrt(),
        n,
        error=ErrorParts.normal(variance),
        limits=bounded.limits,
        stretch=laplace_stretch,
        covariance=partial(torch.diag_embed, flat),
    )
    return replace(estimate, population=partial(estimate.with_sampling, sampling))
