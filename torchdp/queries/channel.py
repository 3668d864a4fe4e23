"""Questions and channels: what is asked of users' types, and who is trusted with them.

A user of type x holds the vector u_x in R^r. A :class:`Channel` tells the mean s of the users'
vectors with noise, z = s + e, E e = 0; with u_x the columns of a workload W these are its linear
queries, s = W h. A :class:`Question` is a function of s; its :class:`Analyst` reads the answer and
its error off what the channel tells.

Notation: n users; h, (k,), the shares of the types; W, (r, k), or (m, k) where only linear queries
are meant; J = diag(weights) and l, linear, of a quadratic form.
"""

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.protocol import Estimate, Objective, Protocol, Tally, Users
from torchdp.protocol.interval import Error, Range
from torchdp.protocol.records import broadcast_users

Fits = tuple[Tensor, Tensor, Tensor, Tensor]
"""Histograms (fits, b, k), half of what their estimated risks are below that of the unbiased
histogram (fits, b), their covariances with the unbiased answers, tr Cov(W h, u) (fits, b), and what
the log likelihood of the last may lack, (b,)."""

# Of the squared distance to the hull of the vectors, relative to the largest squared norm.
NEAR = 1e-6


class Analyst(typing.Protocol):
    """From a tally to the answer, with its error: one question, through one channel."""

    def analyse(self, tally: Tally) -> Estimate:
        """Raises TypeError, ValueError for what these users can not have sent."""

    def exact(self, summary: Tensor) -> Tensor:
        """What is estimated, (*batch, *answer), of counts (*batch, k). Not private."""

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """E (value - exact)^2, (*batch, *answer), of counts (*batch, k), real numbers allowed."""

    def worst_mse(self, n: Users, objective: Objective) -> Tensor:
        """The largest ``objective.of(predicted_mse)`` over all data of n users, or a bound.

        inf: none known.
        """

    def expansion(self, tally: Tally) -> tuple[Tensor, Tensor | None]:
        """Slope and bend of g(z + e) = g(z) + slope . e + e^T bend e, the answers near z.

        slope: (*batch, a, r). bend: (*batch, a, r, r), or None where g is linear.
        """


class Channel(Protocol[Tensor]):
    """Answers z, unbiased but for ``bias``, to the linear queries s = W h.

    h are the shares (k,) of the n users' types. x: (n,) types; a summary is counts (k,). Squares
    mix over types, because errors add up: the mean squared error of query i is (sum_x h_x
    bias_ix)^2 + sum_x h_x variance_ix / n^power.

    What a question of second order needs of it are means over pairs of users of w . (u * v), for
    weights w of coordinates, and of a linear part l . s beside: ``form``, unbiased, its exact
    variance and its error as intervals need it. weights and linear are (*answer, r), or
    (*batch, *answer, r); a tally or counts then have dimensions of one in the place of ``answer``,
    and results are (*batch, *answer).

    workload: W, (r, k), float64. distinct: whether ``form`` averages over pairs of different users,
    else over all. power: 1 where every user adds noise of its own, 2 where it is added to the sum.
    """

    workload: Tensor
    distinct: ClassVar[bool] = False
    # How often tr(J Cov J Cov) counts in a variance: of a square; 4 of a product of two copies.
    squares: ClassVar[float] = 2.0
    power: ClassVar[int] = 1

    @property
    @abstractmethod
    def bias(self) -> Tensor:
        """(r, k): the error of query i for users of type x."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(r, k): of query i's answer from one user of type x."""

    @abstractmethod
    def fits(self, tally: Tally, ordered: bool) -> Fits:
        """Histograms of falling smoothness that make a tally (b, ...) likely.

        If not ordered the last one alone.
        """

    @classmethod
    def queries_of(cls, question: "Question") -> Tensor:
        """W of a question, as this channel is asked it. Raises TypeError."""
        return checks.instance("question", question, Question).queries(cls.distinct)

    @property
    def possible(self) -> Range:
        """The least and the largest that each answer can be, (r,)."""
        return self.workload.amin(1), self.workload.amax(1)

    @property
    def points(self) -> Tensor:
        """u_x, (k, r)."""
        return self.workload.mT

    @property
    def known_noise(self) -> bool:
        """Whether the analyst knows Cov z for the data of a tally, as second order needs it."""
        return True

    @abstractmethod
    def mean(self, tally: Tally) -> Tensor:
        """z, (*batch, r). Unchecked."""

    @abstractmethod
    def covariance(self, counts: Tensor) -> Tensor:
        """Cov z for counts (*batch, k), real numbers allowed, exactly: (*batch, r, r)."""

    @abstractmethod
    def plausible(self, tally: Tally) -> Tensor:
        """Cov z as the analyst knows it, (*batch, r, r)."""

    @abstractmethod
    def form(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """Unbiased estimate of mean over pairs w . (u * v) + l . s."""

    @abstractmethod
    def form_variance(self, counts: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """Variance of ``form`` for counts (*batch, k), real numbers allowed."""

    @abstractmethod
    def worst_form(self, n: float | Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        """A bound of ``form_variance`` over all data of n users."""

    @abstractmethod
    def form_plug_in(self, tally: Tally, weights: Tensor, linear: Tensor) -> Tensor:
        """Estimate of that variance from the tally alone."""

    @abstractmethod
    def form_errors(self, tally: Tally) -> Callable[[Tensor, Tensor, Tensor], Error]:
        """What makes, of weights, a linear part and the value of ``form``, its error."""

    def third(self, counts: Tensor, T: Tensor) -> Tensor | None:
        """T(kappa), kappa the third cumulant of n z: (*batch); counts may be negative.

        Affine in the counts of n users. None: not known. T: (r, r, r), symmetric.
        """
        return None

    def shares(self, tally: Tally) -> Tensor | None:
        """Unbiased shares of the types, (*batch, k); None where the tally does not tell each."""
        return None

    def nearest(self, tally: Tally, tol: float = NEAR) -> Tensor:
        """The histogram of the mean vector nearest to z, even over types of one vector."""
        return nearest(self.points, self.mean(tally), tol)

    @property
    def held(self) -> int:
        return self.workload.shape[1]

    @property
    def home(self) -> torch.device:
        """The workload's."""
        return self.workload.device

    def exact(self, summary: Tensor) -> Tensor:
        h, _ = self._shares(summary)
        return h @ self.workload.mT

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Of each query, (*batch, m), for counts (*batch, k). Raises TypeError, ValueError."""
        h, n = self._shares(summary)
        # Biases of users add up before they are squared, variances after.
        squared_bias = (h @ self.bias.mT).square()
        return squared_bias + h @ self.variance.mT / n**self.power

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """At data of a single type, by convexity: () or, of a batch of n, (*batch)."""
        users = broadcast_users(n, 2)
        mse = self.bias.square() + self.variance / users**self.power
        if objective is Objective.WORST:
            return mse.amax((-2, -1))
        return mse.mean(-2).amax(-1)

    def flat(self, tally: Tally, batch: tuple[int, ...]) -> Tally:
        """A tally (*batch, ...) as one (b, ...), of as many users each."""
        n = tally.n
        if isinstance(n, Tensor):
            n = n.expand(batch).flatten()
        parts = {}
        for name, (shape, _) in self.layout.items():
            parts[name] = tally[name].reshape(-1, *shape)
        return Tally(n, parts)

    def _shares(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """Shares of types (*batch, k) and numbers of users (*batch, 1), which need not be whole."""
        # Real numbers are allowed: predictions are made for shares of public histograms.
        counts = checks.users("summary", summary, self.workload.shape[1]).to(self.workload)
        n = counts.sum(-1, keepdim=True)
        return counts / n, n

    def expansion(self, tally: Tally) -> tuple[Tensor, None]:
        """The answers near z as an ``Analyst`` tells them: linear, with the identity as slope."""
        return torch.eye(len(self.workload)).to(self.workload), None

    @abstractmethod
    def narrowed(self, rows: slice) -> Any:
        """The same messages, read for some of the queries alone."""


class Bounded(NamedTuple):
    """What a curator's noise on the answers themselves needs of a question.

    exact: counts (*batch, k) -> the answers, (*batch, *answer); moved: n times the most that one of
    n users moves each by, (*answer); size: the largest that each can be, (*answer); terms: n,
    (*batch) -> how many times 2^-52 of ``size`` float64 misses ``exact`` by, at most, likewise;
    limits: what each answer can be.
    """

    exact: Callable[[Tensor], Tensor]
    moved: Tensor
    size: Tensor
    terms: Callable[[Tensor], Tensor]
    limits: Range


class Question(ABC):
    """Numbers that are functions of the users' types, whoever is trusted. A frozen dataclass."""

    @property
    @abstractmethod
    def types(self) -> int:
        """k."""

    @abstractmethod
    def queries(self, distinct: bool) -> Tensor:
        """W, (r, k): the linear queries that a channel is asked.

        distinct: which pairs the channel averages over.
        """

    @abstractmethod
    def analyst(self, channel: Channel) -> Analyst:
        """Who reads the answer off a channel of these queries."""

    def aims(self, n: int, family: Tensor | None, covariance: Tensor) -> Tensor:
        """Linear queries (q, k) whose mean variance is the error to first order.

        A strategy is optimised for them. family: histograms (j, k), or None. covariance: of one
        user's decoded vector, (r, r), as it is so far.
        """
        return self.queries(True)

    def bound(self, n: int, epsilon: float, histogram: Tensor) -> float | None:
        """No unbiased local protocol has a smaller root mean squared error on such data.

        None: none known.
        """
        return None

    def coarser(
        self, n: int, epsilon: float, family: Tensor | None, generator: torch.Generator
    ) -> Iterable[tuple[str, Any]]:
        """Further local protocols of very many types, with names: such as strategies on bins."""
        return ()

    @property
    def fewest(self) -> int:
        """Users whose answer is defined."""
        return 1

    @property
    def held(self) -> int:
        """What one user holds: one of so many types."""
        return self.types

    def validate(self, x: Tensor) -> Tensor:
        """Types as users may have them: all below ``types``. Raises TypeError, ValueError."""
        return x

    @property
    def bounded(self) -> Bounded | None:
        """How far one user moves the answers; None: not known."""
        return None

    # Whether answers are of several units, so that errors count relatively.
    relative: ClassVar[bool] = False

    @property
    def histograms(self) -> Tensor | None:
        """(j, k): public ones that channels are judged by without a prior; None: the worst data."""
        return None


def histograms_of(prior: Tensor, types: int, name: str = "prior") -> Tensor:
    """The prior, (k,), or a number of them, each normalised: (j, k).

    Raises TypeError, ValueError.
    """
    rows = checks.instance(name, prior, Tensor)
    if rows.ndim < 2:
        rows = rows[None]
    if rows.ndim != 2 or not len(rows):
        raise ValueError(
            f"{name} must be ({types},) or a few such rows, not of shape {tuple(rows.shape)}"
        )
    return torch.stack([checks.shares(name, row, types) for row in rows]).detach()


def nearest(points: Tensor, z: Tensor, tol: float) -> Tensor:
    """The histogram h, (*batch, k), whose mean vector U^T h is nearest to z (*batch, r).

    Even over types of one vector. points: U, (k, r). tol: of the squared distance, relative to the
    largest squared norm.
    """
    # No mean vector tells types of one vector from another: they are one until the end.
    rows, place = torch.unique(points, dim=0, return_inverse=True)
    centre = rows.mean(0)
    centred = rows - centre
    largest = centred.square().sum(1).max()
    pull = (z - centre) @ centred.mT
    h, _ = nearest_histogram(centred @ centred.mT, pull, tol * float(largest))
    return (h / torch.bincount(place))[..., place]
