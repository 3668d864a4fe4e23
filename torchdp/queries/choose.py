"""Which channel answers a question best: every candidate's predicted error, for each of those who
may be trusted.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import isabstract
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from torchdp import checks, shuffle
from torchdp.privacy import Model
from torchdp.protocol import Choice, Objective, Protocol
from torchdp.protocol.choice import Candidate
from torchdp.queries.bound import lower_bound
from torchdp.queries.central import CentralFactorization, CentralLaplace, ShuffledQueries
from torchdp.queries.channel import Channel, Question, histograms_of
from torchdp.queries.choose_local import (
    BOUNDED,
    COPIES,
    NEAR,
    POLISHED_STRATEGY,
    factors,
    factors_below,
    near_first,
    strategies,
)
from torchdp.queries.fit import fitted_choice
from torchdp.queries.oracle import KINDS, LocalFactorization, LocalOracle, decoding
from torchdp.queries.protocol import FactoredQueries, dense
from torchdp.queries.release import Linear, Several, through
from torchdp.queries.servers import SecureQueries
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomness import keyed_generator
from torchdp.shuffle import Amplified
from torchdp.shuffle.laws import MessageLaw
from torchdp.threads import one_thread
from torchdp.workloads import Workload

NOISELESS = 1e-20  # relative: a squared error that is rounding
MOST_STEPS = 2**20  # of an answer that noise on whole numbers is tried on
ROUNDED = 1e-9  # relative: what rounding makes of a step
MOST_BITS = 4096  # sums of bits that a user takes part in
# types up to which a strategy is optimised for a question that is not linear (seconds)
LARGEST_STRATEGY = 64
FACTORED = 256  # types and coordinates up to which such a question's vectors are factorized
# All that the package exports for messages: a new one is a candidate without more.
LAWS: tuple[type[MessageLaw], ...] = tuple(
    law
    for law in (getattr(shuffle, name) for name in shuffle.__all__)
    if isinstance(law, type) and issubclass(law, MessageLaw) and not isabstract(law)
)
# of error: so much more is worth a curator, who is trusted in any case, in the place of a shuffler
CLOSE = 0.05
TRUST = {
    "local": Model.LOCAL,
    "shuffle": Model.SHUFFLE,
    "servers": Model.LINEAR_TRANSFORM,
    "curator": Model.CENTRAL,
}
Named = tuple[str, Any, str]
"""Name, protocol, note."""


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
    """The protocol of least predicted error for n users, among all channels of those who are
    trusted.

    Nobody ("local"): one report of each user, by each frequency oracle and by strategies optimised
    for the question, up to 64 types, for linear queries up to 4,096; of pairs also strategies on
    bins; its vector, by PrivUnit. Of linear queries more, see below. A shuffler ("shuffle"): one
    message of each user, at the local epsilon that a crowd of n hides
    (:class:`~torchdp.shuffle.Amplified`); sums of bits, one for each type, for each node of a
    binary tree, or for each coordinate that has two values, by each law of messages that
    ``torchdp.shuffle`` has and whose error is the same whatever the bits
    (:class:`ShuffledQueries`). A curator ("curator"): Gaussian noise by gamma_2, gamma_F, identity,
    binary tree, and on the plain vectors; discrete Laplace noise on the sums that are tried for a
    shuffler, and on answers that are whole steps apart (:class:`CentralLaplace`). Servers that do
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
    from either end) than it loses there. The choice's ``bound`` is :func:`lower_bound`, up to 1,024
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
        search: False leaves out the candidates that take seconds, with hundreds of types up to a
            minute: the strategies, and of a curator's the shuffled ones.
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
    for name, value in (("unbiased", unbiased), ("ordered", ordered)):
        checks.instance(name, value, bool)
    if model is not Model.LOCAL:
        if delta is None:
            raise ValueError(f"delta must be given where trust is {trust!r}, such as 1e-6")
        delta = checks.fraction("delta", delta)
    family = asked.histograms if prior is None else histograms_of(prior, asked.types)
    asking = _Asking(asked, n, epsilon, delta or 0.0, family, objective, tol, search, prior is None)
    if model is Model.LOCAL:
        choice = _local(asking)
        if unbiased or not asking.linear:
            return choice
        return fitted_choice(choice, n, objective, asking.prior, ordered)
    if model is Model.LINEAR_TRANSFORM:
        pure = partial(SecureQueries, clients=n, epsilon=epsilon)
        return Choice(asking.summed(partial(pure, delta=asking.delta), pure, "servers"))
    curated: tuple[Candidate[Any], ...] = ()
    if model is Model.CENTRAL:
        gaussian = partial(CentralFactorization, epsilon=epsilon, delta=asking.delta)
        curated = asking.summed(gaussian, partial(CentralLaplace, epsilon=epsilon), "a curator")
        if not search:
            return Choice(curated)
    shuffled = asking.judged([*_crowds(asking), *_sums(asking)])
    if model is Model.SHUFFLE:
        return Choice(shuffled)
    return Choice((*Choice(curated).candidates, *Choice(shuffled).candidates), near=CLOSE)


def question_of(question: Any, copies: int = 1) -> Question:
    """The question that a workload, or a tuple of questions, stands for. Raises TypeError,
    ValueError.

    copies: of a workload, for which there must be memory.
    """
    if isinstance(question, tuple | list):
        return Several(tuple(question_of(one) for one in question))
    if isinstance(question, Tensor | Workload):
        return Linear(dense(question, copies))
    return checks.instance("question", question, Question)


@dataclass(frozen=True, eq=False)
class _Asking:
    """What every channel is asked for."""

    question: Question
    n: int
    epsilon: float
    delta: float
    family: Tensor | None
    objective: Objective
    tol: float
    search: bool
    quiet: bool  # nobody named the histograms: classes that are rare in them are no warning

    @cached_property
    def W(self) -> Tensor:
        """The queries of a channel that averages over all pairs of users."""
        return self.question.queries(False)

    @cached_property
    def reports(self) -> Tensor:
        """The queries of reports, whose pairs are of different users."""
        return self.question.queries(True)

    @cached_property
    def linear(self) -> bool:
        return isinstance(self.question, Linear)

    @cached_property
    def varied(self) -> bool:
        """Whether some query tells two types apart."""
        return bool((self.W != self.W[:, :1]).any())

    @property
    def prior(self) -> Tensor | None:
        """(k,): the mean of the histograms; None for the worst data."""
        return None if self.family is None else self.family.mean(0).to(self.reports)

    @cached_property
    def factored(self) -> list[tuple[str, FactoredQueries]]:
        """Exact factors of the vectors, those as they are first."""
        small = self.linear or max(self.W.shape) <= FACTORED
        known = [] if self.linear else [("vectors", FactoredQueries.vectors(self.W.mT))]
        return [*known, *(factors(self.W, self.tol) if small else ())]

    @property
    def vectors(self) -> list[tuple[str, FactoredQueries]]:
        """What noise on sums is tried with."""
        tree = [] if _is_histogram(self.W) else [("binary tree", FactoredQueries.tree(self.W))]
        return [*self.factored, *tree]

    def by_reports(self, client: FrequencyOracle) -> Any:
        """The protocol by an oracle; a strategy's reports are decoded for the data where the
        question is linear.
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
        """What no unbiased local protocol is below, over the family, or on the worst data."""
        n = self.n
        epsilon = self.epsilon
        if self.linear:
            if self.question.types > BOUNDED:
                return None
            priors = [None] if self.family is None else self.family
            least = [lower_bound(self.W, n, epsilon, self.objective, prior=h) for h in priors]
        elif self.family is None:
            return None
        else:
            known = [self.question.bound(n, epsilon, h) for h in self.family]
            least = [one for one in known if one is not None]
            if len(least) < len(known):
                return None
        return math.sqrt(fmean(one**2 for one in least))

    def judged(self, named: list[Named]) -> tuple[Candidate[Any], ...]:
        """With the error that each predicts: on the worst data and on flat ones, or on data like
        the family.

        Of answers of several units over the least of any candidate. Raises ValueError for none.
        """
        if not named:
            raise ValueError(
                "question must be of two types at least, and epsilon of a size for which there is noise: of one type "
                "there is nothing to hide, and no sum"
            )
        if self.family is None:
            types = self.question.types
            flat = torch.full((types,), self.n / types, dtype=torch.float64)
            return tuple(
                Candidate(
                    name,
                    one,
                    math.sqrt(float(one.worst_mse(self.n, self.objective))),
                    note,
                    math.sqrt(float(self.objective.of(one.predicted_mse(flat)))),
                )
                for name, one, note in named
            )
        with warnings.catch_warnings():
            if self.quiet:
                warnings.simplefilter("ignore")
            errors = [one.predicted_mse(self.family * self.n) for _, one, _ in named]
        units = torch.ones(())
        if self.question.relative:
            each = torch.stack([one.mean(0) for one in errors])
            units = each.amin(0)
            # An answer that some channel tells without noise, being constant, does not count.
            units = torch.where(units > NOISELESS * each.amax(0), units, torch.inf)
        roots = [math.sqrt(float(self.objective.of(each / units, 1).mean())) for each in errors]
        return tuple(
            Candidate(name, one, root, note)
            for (name, one, note), root in zip(named, roots, strict=True)
        )

    def summed(
        self, gaussian: Callable[..., Channel], laplace: Callable[..., Channel], note: str
    ) -> tuple[Candidate[Any], ...]:
        """Gaussian noise on vectors, and discrete Laplace noise on sums of bits and on whole
        answers.
        """
        bits = [*_encoders(self.W), *_whole(self.W)]
        tried = [(name, queries, gaussian, note) for name, queries in self.vectors]
        pure = f"{note}, delta = 0"
        tried += [(f"{name}, discrete Laplace", queries, laplace, pure) for name, queries in bits]
        named: list[Named] = []
        for name, queries, kind, said in tried:
            with suppress(ValueError):  # nothing to hide, or so wide a noise is not drawn
                named.append((name, through(self.question, kind(queries)), said))
        return self.judged(named)


def _local(asking: _Asking) -> Choice[Any]:
    """By vectors, and by reports of every oracle and of strategies."""
    reports = _reports(asking)
    found = asking.judged([*_vectors(asking, reports), *reports])
    if asking.linear and asking.family is None:
        ordered = near_first(found, asking.W, asking.n, asking.objective)
        return Choice(ordered, asking.bound, NEAR)
    return Choice(found, asking.bound)


def _vectors(asking: _Asking, reports: list[Named]) -> list[Named]:
    """The types' vectors; of linear queries those of factorizations that may have less error than
    the reports.
    """
    if not asking.linear:
        return [("vectors, PrivUnit", asking.by_vectors(asking.epsilon), "")] * asking.varied
    least = math.inf
    if reports and asking.question.types > POLISHED_STRATEGY:
        least = min(one.error for one in asking.judged(reports))
    found: list[Named] = []
    for name, queries in factors_below(asking.W, asking.n, asking.epsilon, asking.tol, least):
        channel = LocalFactorization.calibrated(queries, epsilon=asking.epsilon)
        found.append((f"{name}, PrivUnit", channel, ""))
    return found


def _reports(asking: _Asking) -> list[Named]:
    """By reports of every oracle, and of strategies."""
    types = asking.question.types
    found: list[Named] = []
    # Of linear queries on very many types Hadamard response, the last, takes longest to judge.
    for kind in KINDS[:-1] if asking.linear and types > BOUNDED else KINDS:
        with suppress(ValueError):  # an epsilon that the oracle does not take
            found.append((kind.__name__, asking.by_oracle(kind, asking.epsilon), ""))
    if asking.linear:
        worst = asking.family is None and asking.objective is Objective.WORST
        made = strategies(asking.W, asking.epsilon, worst, asking.prior, asking.search)
        return [*found, *((name, asking.by_reports(one), "") for name, one in made)]
    if not asking.search or not SMALLEST_EPSILON <= asking.epsilon <= LARGEST_EPSILON:
        return found
    generator = keyed_generator(b"choose", asking.W.device)
    if types <= LARGEST_STRATEGY:
        tuned = LocalOracle.tuned(
            asking.question, asking.n, asking.epsilon, prior=asking.family, generator=generator
        )
        return [*found, ("optimised strategy", tuned, "")]
    coarser = asking.question.coarser(asking.n, asking.epsilon, asking.family, generator)
    return [*found, *((name, one, "") for name, one in coarser)]


def _crowds(asking: _Asking) -> Iterator[Named]:
    """One message of each user, through a shuffler."""
    n, epsilon, delta = asking.n, asking.epsilon, asking.delta
    note = "a shuffler, one message at epsilon {:.3g}"
    kinds: dict[str, Callable[[float], Any]] = {}
    if asking.linear or asking.varied:
        kinds["gamma_2, PrivUnit" if asking.linear else "vectors, PrivUnit"] = asking.by_vectors
    if asking.question.types > 1:
        kinds |= {kind.__name__: partial(asking.by_oracle, kind) for kind in KINDS}
    for name, kind in kinds.items():
        crowd = Amplified.calibrated(kind, n, epsilon, delta)
        yield name, crowd, note.format(crowd.client.guarantee.epsilon)


def _sums(asking: _Asking) -> Iterator[Named]:
    """Of bits, through a shuffler."""
    for name, queries in _encoders(asking.W):
        for kind in LAWS:
            with suppress(ValueError):  # so much noise is not followed, or no delta reached
                sums = ShuffledQueries.calibrated(
                    queries, kind, asking.n, asking.epsilon, asking.delta
                )
                note = f"a shuffler, {sums.messages_per_user:.4g} messages"
                yield f"{name}, {kind.__name__}", through(asking.question, sums), note


def _encoders(W: Tensor) -> Iterator[tuple[str, FactoredQueries]]:
    """Bits of which sums are taken: of types, of a binary tree, of the coordinates where all have
    two values.
    """
    k = W.shape[1]
    if 1 < k <= MOST_BITS:
        yield "sums", FactoredQueries.spanned(W)
    if _is_histogram(W):  # which is its own best strategy
        return
    low = W.amin(1, keepdim=True)
    high = W.amax(1, keepdim=True)
    tried = [("sums of a binary tree", FactoredQueries.tree(W).right)]
    if bool(((W == low) | (W == high)).all()):
        tried.append(("sums of the answers", (W > low).to(W)))
    for name, every in tried:
        bits = every[(every != every[:, :1]).any(1)]  # other rows are public
        if 0 < len(bits) <= MOST_BITS:
            yield name, FactoredQueries.spanned(W, bits)


def _whole(W: Tensor) -> Iterator[tuple[str, FactoredQueries]]:
    """The answers themselves, where all of one query are whole steps apart: for noise on whole
    numbers.
    """
    rows = (W - W.amin(1, keepdim=True))[(W != W[:, :1]).any(1)]
    if not len(rows):
        return
    steps = rows.sort(1).values.diff()
    least = torch.where(steps > ROUNDED * rows.amax(1, keepdim=True), steps, torch.inf).amin(
        1, keepdim=True
    )
    counts = rows / least
    near = (counts - counts.round()).abs().max() <= ROUNDED * counts.max()
    if bool(near) and 1 < float(counts.max()) <= MOST_STEPS:
        yield "whole answers", FactoredQueries.spanned(W, counts.round())


def _is_histogram(W: Tensor) -> bool:
    return W.shape[0] == W.shape[1] and torch.equal(W, torch.eye(len(W)).to(W))
