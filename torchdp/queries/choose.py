"""Which channel answers a question best: every candidate's predicted error.

Notation: W, (r, k), the queries of a question; n users; histograms, (j, k), public.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdp import checks
from torchdp.privacy import Model
from torchdp.protocol import Choice, Objective, Protocol
from torchdp.protocol.choice import Candidate
from torchdp.queries.answers import CentralAnswers
from torchdp.queries.bound import lower_bound
from torchdp.queries.central import CentralFactorization, CentralLaplace, ShuffledQueries
from torchdp.queries.channel import Channel, Question, histograms_of
from torchdp.queries.choose_local import (
    BOUNDED,
    COPIES,
    NEAR,
    POLISHED_STRATEGY,
    NamedFactors,
    factors,
    factors_below,
    near_first,
    strategies,
)
from torchdp.queries.fit import fitted_choice
from torchdp.queries.oracle import KINDS, LocalOracle, decoding
from torchdp.queries.protocol import FactoredQueries, dense
from torchdp.queries.release import Linear, Several, through
from torchdp.queries.servers import SecureQueries
from torchdp.queries.vectors import LocalFactorization
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomness import keyed_generator
from torchdp.shuffle import (
    Amplified,
    BoundedSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
)
from torchdp.shuffle.laws import MessageLaw
from torchdp.threads import one_thread
from torchdp.workloads import Workload

# Relative: a squared error that is rounding.
NOISELESS = 1e-20

# Steps of an answer that noise on whole numbers is tried on.
MOST_STEPS = 2**20

# Relative: what rounding makes of a step.
ROUNDED = 1e-9

# Sums of bits that a user takes part in.
MOST_BITS = 4096

# Types up to which a strategy is optimised for a question that is not linear (seconds).
LARGEST_STRATEGY = 64

# Types and coordinates up to which such a question's vectors are factorized.
FACTORED = 256

# All that torchdp.shuffle exports for messages: a test holds the list to the classes.
LAWS: tuple[type[MessageLaw], ...] = (
    BoundedSum,
    CorrelatedSum,
    PoissonSum,
    RandomizedResponseSum,
)

# Of error over a question's own histograms: so much more is worth less error on most of them.
TYPICAL = 0.05

# Of error: so much more is worth a curator, who is trusted in any case, in the place of a shuffler.
CLOSE = 0.05

TRUST = {
    "local": Model.LOCAL,
    "shuffle": Model.SHUFFLE,
    "servers": Model.LINEAR_TRANSFORM,
    "curator": Model.CENTRAL,
}


class Named(NamedTuple):
    """A protocol that is tried."""

    name: str
    protocol: Any
    note: str = ""


@one_thread
def choose(
    question: Question | Tensor | Workload | tuple[Any, ...],
    n: int,
    epsilon: float,
    delta: float | None = None,
    *,
    objective: Objective = Objective.WORST,
    trust: str = "local",
    prior: Tensor | None = None,
    tol: float = 1e-3,
    search: bool = True,
    unbiased: bool = True,
    ordered: bool = True,
) -> Choice[Protocol[Tensor]]:
    """The protocol of least predicted error for n users, among all channels of those trusted.

    Nobody ("local"): one report of each user, by each frequency oracle and by strategies optimised
    for the question, up to 64 types, for linear queries up to 4,096; of pairs also strategies on
    bins; its vector, by PrivUnit. Of linear queries more, see below. A shuffler ("shuffle"): one
    message of each user, at the local epsilon that a crowd of n hides
    (:class:`~torchdp.shuffle.Amplified`); sums of bits, one for each type, for each node of a
    binary tree, or for each coordinate that has two values, by each law of messages that
    ``torchdp.shuffle`` has and whose error is the same whatever the bits
    (:class:`ShuffledQueries`). A curator ("curator"): Gaussian noise by gamma_2, gamma_F, identity,
    binary tree, and on the plain vectors; discrete Laplace noise on the sums that are tried for a
    shuffler, on answers that are whole steps apart (:class:`CentralLaplace`), and on answers that
    one user moves by a known amount, pairwise statistics among them (:class:`CentralAnswers`). Servers that do
    not all collude ("servers"): the same noise, made by the users (:class:`SecureQueries`). A note
    says who is trusted, and what one user sends. Who trusts a curator gets the curator's best where
    no shuffled one has less than 0.95 of its error.

    Linear queries in the local model. Types that no query tells apart count as one. Vectors are
    those of factorizations by gamma_2 and gamma_F with a free shift, of gamma_2 within the alpha of
    least error where that may pay, of the identity and of the plain answers: up to 1,024 types or
    queries, and beyond 256 types only where the singular values leave them a chance. Strategies are
    optimised for the mean over queries and the worst type, up to 64 types from there for the worst
    query where that is the objective, with a ``prior`` also for that. Up to 256 types they are
    matrices, up to 4,096 types a few patterns of ordered types and their shifts, of types on a grid
    where the queries are a Kronecker product, and up to 540 types a matrix where these are far from
    the bound. Where the queries are sums of few parities of the types' bits, one randomized parity
    a user is a candidate too, and up to 1,024 types a few patterns of bits and their translates. A
    matrix is decoded for the data that its reports show (``LocalOracle(..., adapted=True)``).
    Without a prior, among those with error at most half a percent more than the best on the worst
    data, that comes first which gains more where few types are frequent (shares like 1/(x + 1),
    from either end) than it loses there. Of other questions, without a prior, that comes first of
    those within 5 % of the least error over the question's histograms whose errors on them have the
    least geometric mean. The choice's ``bound`` is :func:`lower_bound`, up to 1,024
    types.

    Args:
        question: a workload (m, k) or :class:`Workload` of linear queries, a ``PairwiseStatistic``,
            a ``ShareFunction``, or a tuple of such, which one collection answers together
            (:class:`Several`).
        n: users.
        epsilon: of each.
        delta: in (0, 1), but for "local".
        objective: what the error of several answers means.
        trust: "local", "shuffle", "servers" or "curator": who is trusted.
        prior: public histograms that the users' is like, (k,) or (j, k): the error is the root of
            the mean over them of the squared error; None: the question's own,
            ``question.histograms``, or the worst data of linear queries.
        tol: relative gap of the factorizations.
        search: False leaves out the candidates that are optimised, in about half a second for 32
            types, in a minute for hundreds: the strategies, and of a curator's the shuffled ones.
        unbiased: False for answers to linear queries by :func:`fitted` (:class:`FittedOracle`), of
            a lower error and biased, in the local model. Candidates then are the three best
            oracles, and for ordered types the square wave and up to 256 types shifts tuned for a
            rough prior, and half of the messages by an oracle, half by the square wave. Their
            errors are simulated: on the prior, such as the histogram fitted to a pilot's reports,
            or in geometric mean over eight public histograms, drawn once; a candidate's note holds
            the least and the most.
        ordered: whether types beside each other are alike, for fits.

    Raises TypeError, ValueError.
    Guarantees: the best's own; nothing is read from data.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), on choosing by predicted variance; Edmonds,
    Nikolov, Ullman (2020), section 2.5; Li, Hay, Rastogi, Miklau, McGregor (2010); Balle, Bell,
    Gascon, Nissim (2019); Cormode, Kulkarni, Srivastava (2018), InpHT, for parities.
    """
    asked = question_of(question, COPIES)
    objective = checks.instance("objective", objective, Objective)
    n = checks.integer("n", n, asked.fewest)
    epsilon = checks.positive("epsilon", epsilon)
    search = checks.instance("search", search, bool)
    model = TRUST.get(checks.instance("trust", trust, str))
    if model is None:
        raise ValueError(f"trust must be one of {', '.join(TRUST)}, not {trust!r}")
    checks.instance("unbiased", unbiased, bool)
    checks.instance("ordered", ordered, bool)
    if model is not Model.LOCAL:
        if delta is None:
            raise ValueError(f"delta must be given where trust is {trust!r}, such as 1e-6")
        delta = checks.fraction("delta", delta)
    if prior is None:
        histograms = asked.histograms
    else:
        histograms = histograms_of(prior, asked.types)
    problem = _Problem(
        asked,
        n,
        epsilon,
        delta or 0.0,
        histograms,
        objective,
        tol,
        search,
        quiet=prior is None,
    )
    if model is Model.LOCAL:
        choice = _local(problem)
        if unbiased or not problem.linear:
            return choice
        return fitted_choice(choice, n, objective, problem.prior, ordered)
    if model is Model.LINEAR_TRANSFORM:
        pure = partial(SecureQueries, clients=n, epsilon=epsilon)
        named = problem.summed(partial(pure, delta=problem.delta), pure, "servers")
        return Choice(problem.judged(named))
    named = []
    if model is Model.CENTRAL:
        gaussian = partial(CentralFactorization, epsilon=epsilon, delta=problem.delta)
        named = problem.summed(gaussian, partial(CentralLaplace, epsilon=epsilon), "a curator")
        with suppress(ValueError):  # no known amount that one user moves the answers by
            answers = CentralAnswers(asked, epsilon)
            named.append(Named("the answers, discrete Laplace", answers, "a curator, delta = 0"))
    if search or model is Model.SHUFFLE:
        named += [*_crowds(problem), *_sums(problem)]
    # By the same units, where answers have several.
    judged = Choice(problem.judged(named)).candidates
    # A curator's come first, and are taken where shuffled ones are hardly better.
    own = [one for one in judged if one.protocol.guarantee.model is model]
    others = [one for one in judged if one.protocol.guarantee.model is not model]
    return Choice((*own, *others), near=CLOSE if others else 0.0)


def question_of(question: Any, copies: int = 1) -> Question:
    """The question that a workload, or a tuple of questions, stands for.

    copies: of a workload, for which there must be memory. Raises TypeError, ValueError.
    """
    if isinstance(question, tuple | list):
        return Several(tuple(question_of(one) for one in question))
    if isinstance(question, Tensor | Workload):
        return Linear(dense(question, copies))
    return checks.instance("question", question, Question)


@dataclass(frozen=True, eq=False)
class _Problem:
    """What every channel is judged by.

    quiet: nobody named the histograms, so that classes that are rare in them are no warning.
    """

    question: Question
    n: int
    epsilon: float
    delta: float
    histograms: Tensor | None
    objective: Objective
    tol: float
    search: bool
    quiet: bool

    @cached_property
    def W(self) -> Tensor:
        """The queries of a channel that averages over all pairs of users."""
        return self.question.queries(False)

    @cached_property
    def reports(self) -> Tensor:
        """The queries of reports, whose pairs are of different users."""
        return self.question.queries(True)

    @property
    def linear(self) -> bool:
        return isinstance(self.question, Linear)

    @property
    def prior(self) -> Tensor | None:
        """(k,): the mean of the histograms; None for the worst data."""
        return None if self.histograms is None else self.histograms.mean(0).to(self.reports)

    @cached_property
    def factored(self) -> list[NamedFactors]:
        """Exact factors of the vectors, those as they are first."""
        if self.linear:
            return [*factors(self.W, self.tol)]
        vectors = ("vectors", FactoredQueries.vectors(self.W.mT))
        if max(self.W.shape) > FACTORED:
            return [vectors]
        return [vectors, *factors(self.W, self.tol)]

    def by_reports(self, client: FrequencyOracle) -> Any:
        """The protocol by an oracle.

        A strategy's reports are decoded for the data where the question is linear.
        """
        if self.linear:
            return decoding(self.reports, client)
        return through(self.question, LocalOracle(self.reports, client))

    def by_oracle(self, kind: Callable[[int, float], FrequencyOracle], epsilon: float) -> Any:
        return self.by_reports(kind(self.question.types, epsilon))

    def by_vectors(self, epsilon: float) -> Any:
        channel = LocalFactorization.calibrated(self.factored[0][1], epsilon=epsilon)
        return through(self.question, channel)

    @property
    def bound(self) -> float | None:
        """What no unbiased local protocol is below, over the histograms, or on the worst data."""
        n = self.n
        epsilon = self.epsilon
        bounds: list[float | None] = [None]
        if self.linear:
            if self.question.types > BOUNDED:
                return None
            priors = [None] if self.histograms is None else self.histograms
            bounds = [lower_bound(self.W, n, epsilon, self.objective, prior=h) for h in priors]
        elif self.histograms is not None:
            bounds = [self.question.bound(n, epsilon, h) for h in self.histograms]
        known = [bound**2 for bound in bounds if bound is not None]
        # A mean over some of the histograms alone is no bound of that over all.
        return math.sqrt(fmean(known)) if len(known) == len(bounds) else None

    def judged(self, named: list[Named]) -> tuple[Candidate[Any], ...]:
        """With the error that each predicts. Raises ValueError for none."""
        if not named:
            raise ValueError(
                "question must be of two types at least, and epsilon of a size for which there is "
                "noise: of one type there is nothing to hide, and no sum"
            )
        if self.histograms is None:
            return self._judged_on_worst(named)
        return self._judged_on(self.histograms, named)

    def _judged_on_worst(self, named: list[Named]) -> tuple[Candidate[Any], ...]:
        """By the worst data, with the error on flat ones beside."""
        types = self.question.types
        flat = torch.full((types,), self.n / types, dtype=torch.float64)
        candidates = []
        for name, protocol, note in named:
            worst = math.sqrt(float(protocol.worst_mse(self.n, self.objective)))
            even = math.sqrt(float(self.objective.of(protocol.predicted_mse(flat))))
            candidates.append(Candidate(name, protocol, worst, note, even))
        return tuple(candidates)

    def _judged_on(self, histograms: Tensor, named: list[Named]) -> tuple[Candidate[Any], ...]:
        """By the mean over the histograms; of answers of several units over the least of any.

        In the order of the geometric mean over them, to which data where errors are large count no
        more than others.
        """
        with warnings.catch_warnings():
            if self.quiet:
                warnings.simplefilter("ignore")
            mses = [one.protocol.predicted_mse(histograms * self.n) for one in named]
        units = torch.ones(())
        if self.question.relative:
            means = torch.stack([mse.mean(0) for mse in mses])
            units = means.amin(0)
            # An answer that some channel tells without noise, being constant, does not count.
            units = torch.where(units > NOISELESS * means.amax(0), units, torch.inf)
        candidates = []
        typical = []
        for (name, protocol, note), mse in zip(named, mses, strict=True):
            errors = self.objective.of(mse / units, 1)  # of each histogram
            error = math.sqrt(float(errors.mean()))
            candidates.append(Candidate(name, protocol, error, note))
            typical.append(float(errors.log().mean()))
        # Rounded, so that equal ones stay as they were named.
        order = sorted(range(len(named)), key=lambda at: round(typical[at], 6))
        return tuple(candidates[at] for at in order)

    def summed(
        self, gaussian: Callable[..., Channel], laplace: Callable[..., Channel], note: str
    ) -> list[Named]:
        """Gaussian noise on vectors, and discrete Laplace noise on sums of bits, whole answers."""
        tried: list[tuple[str, Callable[..., Channel], FactoredQueries, str]] = []
        for name, queries in self.factored:
            tried.append((name, gaussian, queries, note))
        if not _is_histogram(self.W):
            tried.append(("binary tree", gaussian, FactoredQueries.tree(self.W), note))
        for name, queries in (*_encoders(self.W), *_whole(self.W)):
            tried.append((f"{name}, discrete Laplace", laplace, queries, f"{note}, delta = 0"))
        named = []
        for name, kind, queries, said in tried:
            with suppress(ValueError):  # nothing to hide, or so wide a noise is not drawn
                named.append(Named(name, through(self.question, kind(queries)), said))
        return named


def _local(problem: _Problem) -> Choice[Any]:
    """By vectors, and by reports of every oracle and of strategies."""
    reports = _reports(problem)
    candidates = problem.judged([*_vectors(problem, reports), *reports])
    if problem.linear and problem.histograms is None:
        ordered = near_first(candidates, problem.W, problem.n, problem.objective)
        return Choice(ordered, problem.bound, NEAR)
    # Where the data are told, the error on these alone counts.
    return Choice(candidates, problem.bound, TYPICAL if problem.quiet else 0.0)


def _varied(W: Tensor) -> Tensor:
    """Whether each query tells two types from another, (m,)."""
    return (W != W[:, :1]).any(1)


def _vectors(problem: _Problem, reports: list[Named]) -> list[Named]:
    """The types' vectors; of linear queries by factorizations that may have less error."""
    W = problem.W
    epsilon = problem.epsilon
    if not problem.linear:
        if not _varied(W).any():
            return []
        return [Named("vectors, PrivUnit", problem.by_vectors(epsilon))]
    least = math.inf
    if reports and problem.question.types > POLISHED_STRATEGY:
        least = min(one.error for one in problem.judged(reports))
    named = []
    for name, queries in factors_below(W, problem.n, epsilon, problem.tol, least):
        channel = LocalFactorization.calibrated(queries, epsilon=epsilon)
        named.append(Named(f"{name}, PrivUnit", channel))
    return named


def _reports(problem: _Problem) -> list[Named]:
    """By reports of every oracle, and of strategies."""
    question = problem.question
    epsilon = problem.epsilon
    kinds = KINDS
    if problem.linear and question.types > BOUNDED:
        # Hadamard response, the last, takes longest to judge.
        kinds = KINDS[:-1]
    named = []
    for kind in kinds:
        with suppress(ValueError):  # an epsilon that the oracle does not take
            named.append(Named(kind.__name__, problem.by_oracle(kind, epsilon)))
    if problem.linear:
        worst = problem.histograms is None and problem.objective is Objective.WORST
        for name, client in strategies(problem.W, epsilon, worst, problem.prior, problem.search):
            named.append(Named(name, problem.by_reports(client)))
        return named
    if not problem.search or not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        return named
    # Under a fixed key: a choice repeats itself exactly.
    generator = keyed_generator(b"choose", problem.W.device)
    n = problem.n
    histograms = problem.histograms
    if question.types <= LARGEST_STRATEGY:
        tuned = LocalOracle.tuned(question, n, epsilon, prior=histograms, generator=generator)
        return [*named, Named("optimised strategy", tuned)]
    coarser = question.coarser(n, epsilon, histograms, generator)
    return [*named, *(Named(name, protocol) for name, protocol in coarser)]


def _crowds(problem: _Problem) -> Iterator[Named]:
    """One message of each user, through a shuffler."""
    kinds: dict[str, Callable[[float], Any]] = {}
    if problem.linear:
        kinds["gamma_2, PrivUnit"] = problem.by_vectors
    elif _varied(problem.W).any():
        kinds["vectors, PrivUnit"] = problem.by_vectors
    if problem.question.types > 1:
        kinds |= {kind.__name__: partial(problem.by_oracle, kind) for kind in KINDS}
    for name, kind in kinds.items():
        crowd = Amplified.calibrated(kind, problem.n, problem.epsilon, problem.delta)
        local = crowd.client.guarantee.epsilon
        yield Named(name, crowd, f"a shuffler, one message at epsilon {local:.3g}")


def _sums(problem: _Problem) -> Iterator[Named]:
    """Of bits, through a shuffler."""
    for name, queries in _encoders(problem.W):
        for kind in LAWS:
            with suppress(ValueError):  # so much noise is not followed, or no delta reached
                sums = ShuffledQueries.calibrated(
                    queries, kind, problem.n, problem.epsilon, problem.delta
                )
                note = f"a shuffler, {sums.messages_per_user:.4g} messages"
                yield Named(f"{name}, {kind.__name__}", through(problem.question, sums), note)


def _encoders(W: Tensor) -> Iterable[NamedFactors]:
    """Bits of which sums are taken: of types, of a binary tree, of coordinates of two values."""
    if 1 < W.shape[1] <= MOST_BITS:
        yield "sums", FactoredQueries.spanned(W)
    if _is_histogram(W):  # which is its own best strategy
        return
    tried = [("sums of a binary tree", FactoredQueries.tree(W).right)]
    low = W.amin(1, keepdim=True)
    high = W.amax(1, keepdim=True)
    if ((W == low) | (W == high)).all():
        tried.append(("sums of the answers", (W > low).to(W)))
    for name, rows in tried:
        bits = rows[_varied(rows)]  # other rows are public
        if 0 < len(bits) <= MOST_BITS:
            yield name, FactoredQueries.spanned(W, bits)


def _whole(W: Tensor) -> Iterable[NamedFactors]:
    """The answers themselves, for noise on whole numbers.

    Where all values of each query lie whole steps from another.
    """
    rows = (W - W.amin(1, keepdim=True))[_varied(W)]
    if not len(rows):
        return
    steps = rows.sort(1).values.diff()
    positive = steps > ROUNDED * rows.amax(1, keepdim=True)
    least = torch.where(positive, steps, torch.inf).amin(1, keepdim=True)
    counts = rows / least
    most = counts.max()
    rounding = (counts - counts.round()).abs().max()
    if rounding <= ROUNDED * most and 1 < float(most) <= MOST_STEPS:
        yield "whole answers", FactoredQueries.spanned(W, counts.round())


def _is_histogram(W: Tensor) -> bool:
    square = len(W) == W.shape[1]
    return square and torch.equal(W, torch.eye(len(W)).to(W))
