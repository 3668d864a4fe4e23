"""Which channel answers a question best: every candidate's predicted error, for each of those who may be trusted."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
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
from torchdp.queries.central import CentralFactorization, CentralLaplace, ShuffledQueries
from torchdp.queries.channel import Question, histograms_of
from torchdp.queries.choose_local import (
    CAREFUL_STRATEGY,
    COPIES,
    MARGIN,
    choose_linear,
    factors,
    ranked,
)
from torchdp.queries.oracle import KINDS, ORACLES, LocalFactorization, LocalOracle, decoding
from torchdp.queries.protocol import FactoredQueries, dense
from torchdp.queries.release import Linear, Several, through
from torchdp.queries.servers import SecureQueries
from torchdp.randomizers import StrategyMatrix
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
ROUNDS = 2  # of strategy optimisation
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
    """The protocol of least predicted error for n users, among all channels of those who are trusted.

    Nobody ("local"): one report of each user, by each frequency oracle and, up to 64 types, by a strategy optimised for
    the question; its vector, by PrivUnit; of linear queries what :func:`choose_linear` tries, of pairs also strategies
    on bins. A shuffler ("shuffle"): one message of each user, at the local epsilon that a crowd of n hides
    (:class:`~torchdp.shuffle.Amplified`); sums of bits, one for each type, for each node of a binary tree, or for each
    coordinate that has two values, by each law of messages that ``torchdp.shuffle`` has and whose error is the same
    whatever the bits (:class:`ShuffledQueries`). A curator ("curator"): Gaussian noise by gamma_2, gamma_F, identity,
    binary tree, and on the plain vectors; discrete Laplace noise on the sums that are tried for a shuffler, and on
    answers that are whole steps apart (:class:`CentralLaplace`). Servers that do not all collude ("servers"): the same
    noise, made by the users
    (:class:`SecureQueries`). A note says who is trusted, and what one user sends. Who trusts a curator gets the
    curator's best where no shuffled one has less than 0.95 of its error.

    Args:
        question: a workload (m, k) or :class:`Workload` of linear queries, a ``PairwiseStatistic``, a
            ``ShareFunction``, or a tuple of such, which one collection answers together (:class:`Several`).
        n: users.
        epsilon: of each.
        delta: in (0, 1), but for "local".
        objective: what the error of several answers means.
        trust: "local", "shuffle", "servers" or "curator": who is trusted.
        prior: public histograms that the users' is like, (k,) or (j, k): the error is the root of the mean over them of
            the squared error; None: the question's own, ``question.histograms``, or the worst data of linear queries.
        tol: relative gap of the factorizations.
        search: False leaves out the candidates that take seconds: the strategies, and of a curator's the shuffled ones.
        unbiased: of linear queries, as in :func:`choose_linear`.
        ordered: likewise.

    Raises TypeError, ValueError.
    Guarantees: the best's own; nothing is read from data.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), on choosing by predicted variance; Edmonds, Nikolov, Ullman (2020),
    section 2.5; Li, Hay, Rastogi, Miklau, McGregor (2010); Balle, Bell, Gascon, Nissim (2019).
    """
    if isinstance(question, Tensor | Workload):
        dense(question, COPIES)
    asked = question_of(question)
    objective = checks.instance("objective", objective, Objective)
    n = checks.integer("n", n, asked.fewest)
    epsilon = checks.positive("epsilon", epsilon)
    search = checks.instance("search", search, bool)
    model = TRUST.get(checks.instance("trust", trust, str))
    if model is None:
        raise ValueError(f"trust must be one of {', '.join(TRUST)}, not {trust!r}")
    if model is Model.LOCAL and isinstance(asked, Linear):
        one = None if prior is None else histograms_of(prior, asked.types)[0]
        return choose_linear(
            asked.workload,
            n,
            epsilon,
            objective,
            prior=one,
            tol=tol,
            unbiased=unbiased,
            ordered=ordered,
        )
    if model is not Model.LOCAL:
        if delta is None:
            raise ValueError(f"delta must be given where trust is {trust!r}, such as 1e-6")
        delta = checks.fraction("delta", delta)
    family = asked.histograms if prior is None else histograms_of(prior, asked.types)
    asking = _Asking(asked, n, epsilon, delta or 0.0, family, objective, tol, search, prior is None)
    if model is Model.LOCAL:
        return Choice(asking.judged(_local(asking)), asking.bound)
    if model is Model.LINEAR_TRANSFORM:
        served = list(_served(asking))
        if not served:
            raise ValueError(
                "question must be of two types at least: of one there is nothing to hide, and no sum"
            )
        return Choice(asking.judged(served))
    curated = asking.judged(list(_curated(asking))) if model is Model.CENTRAL else ()
    if curated and not search:
        return Choice(curated)
    shuffled = asking.judged([*_crowds(asking), *_sums(asking)])
    if model is Model.SHUFFLE:
        return Choice(shuffled)
    return Choice((*Choice(curated).candidates, *Choice(shuffled).candidates), near=CLOSE)


def question_of(question: Any) -> Question:
    """The question that a workload, or a tuple of questions, stands for. Raises TypeError, ValueError."""
    if isinstance(question, tuple | list):
        return Several(tuple(question_of(one) for one in question))
    if isinstance(question, Tensor | Workload):
        return Linear(dense(question))
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
        """The protocol by an oracle; a strategy's reports are decoded for the data where the question is linear."""
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
        """What no unbiased local protocol is below, over the family."""
        if self.family is None:
            return None
        each = [self.question.bound(self.n, self.epsilon, h) for h in self.family]
        known = [one for one in each if one is not None]
        return math.sqrt(fmean(one**2 for one in known)) if len(known) == len(each) else None

    def judged(self, named: list[Named]) -> tuple[Candidate[Any], ...]:
        """With the error that each predicts; of answers of several units over the least of any candidate."""
        protocols = [(name, one) for name, one, _ in named]
        if self.family is None:
            found = ranked(protocols, self.question.types, self.n, self.objective, None)
            return tuple(
                replace(one, note=note) for one, (*_, note) in zip(found, named, strict=True)
            )
        with warnings.catch_warnings():
            if self.quiet:
                warnings.simplefilter("ignore")
            errors = [one.predicted_mse(self.family * self.n) for _, one in protocols]
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


def _local(asking: _Asking) -> list[Named]:
    """By reports of every oracle and of a strategy, and by vectors."""
    found: list[Named] = []
    if bool((asking.W != asking.W[:, :1]).any()):
        found.append(("vectors, PrivUnit", asking.by_vectors(asking.epsilon), ""))
    for kind in ORACLES:
        with suppress(ValueError):  # an epsilon that the oracle does not take
            found.append((kind.__name__, asking.by_oracle(kind, asking.epsilon), ""))
    if not asking.search or not SMALLEST_EPSILON <= asking.epsilon <= LARGEST_EPSILON:
        return found
    generator = keyed_generator(b"choose", asking.W.device)
    if asking.question.types <= LARGEST_STRATEGY:
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
    if asking.linear or bool((asking.W != asking.W[:, :1]).any()):
        kinds["gamma_2, PrivUnit" if asking.linear else "vectors, PrivUnit"] = asking.by_vectors
    if asking.question.types > 1:
        kinds |= {kind.__name__: partial(asking.by_oracle, kind) for kind in KINDS}
    crowds = {name: Amplified.calibrated(kind, n, epsilon, delta) for name, kind in kinds.items()}
    searched = asking.search and 1 < asking.question.types <= CAREFUL_STRATEGY
    if searched and asking.linear and bool((asking.W != asking.W[:, :1]).any()):
        with suppress(ValueError):  # beyond the epsilons of strategies
            crowds["optimised strategy"] = _optimised(asking, crowds["SubsetSelection"])
    for name, crowd in crowds.items():
        yield name, crowd, note.format(crowd.client.guarantee.epsilon)


def _optimised(asking: _Asking, crowd: Amplified) -> Amplified:
    """By a strategy for the local epsilon of another crowd, then one for that which its own crowd hides."""
    W = asking.reports
    law = None if asking.family is None else 0.98 * asking.family.mean(0) + 0.02 / W.shape[1]
    centred = W - W.mean(1, keepdim=True)
    for _ in range(ROUNDS):
        generator = keyed_generator(b"choose_trusted", W.device)
        local = crowd.client.guarantee.epsilon
        made = StrategyMatrix.tuned(centred, local, law, generator=generator)
        kind = partial(_weakened, W, made)
        crowd = Amplified.calibrated(
            kind, crowd.users, crowd.guarantee.epsilon, crowd.delta, largest=local
        )
    return crowd


def _weakened(W: Tensor, made: StrategyMatrix, local: float) -> LocalOracle:
    """Its message is drawn whatever the type with the least chance t that leaves this epsilon.

    (1 - t) high + t law <= e^epsilon ((1 - t) low + t law) for each output.
    """
    growth = math.exp(local * MARGIN)
    low, high = made.matrix.aminmax(dim=1)
    beyond = (high - growth * low).clamp_min(0)
    t = (beyond / (beyond + made.law * (growth - 1))).amax()
    return decoding(W, StrategyMatrix((1 - t) * made.matrix + t * made.law[:, None], made.prior))


def _sums(asking: _Asking) -> Iterator[Named]:
    """Of bits, through a shuffler."""
    for name, queries in _encoders(asking.W):
        for kind in LAWS:
            with suppress(ValueError):  # so much noise is not followed, or no delta reached
                sums = ShuffledQueries.least(queries, kind, asking.n, asking.epsilon, asking.delta)
                note = f"a shuffler, {sums.messages_per_user:.4g} messages"
                yield f"{name}, {kind.__name__}", through(asking.question, sums), note


def _served(asking: _Asking) -> Iterator[Named]:
    """Sums by servers that do not all collude, of vectors and of bits."""
    for name, queries in asking.vectors:
        with suppress(ValueError):  # nothing to hide, or a grid too coarse beside so wide a noise
            channel = SecureQueries(queries, asking.n, asking.epsilon, asking.delta)
            yield name, through(asking.question, channel), "servers"
    for name, queries in (*_encoders(asking.W), *_whole(asking.W)):
        with suppress(ValueError):
            laplace = SecureQueries(queries, asking.n, asking.epsilon)
            yield (
                f"{name}, discrete Laplace",
                through(asking.question, laplace),
                "servers, delta = 0",
            )


def _curated(asking: _Asking) -> Iterator[Named]:
    """Gaussian noise on vectors, and discrete Laplace noise on sums of bits."""
    for name, queries in asking.vectors:
        channel = CentralFactorization(queries, asking.epsilon, asking.delta)
        yield name, through(asking.question, channel), "a curator"
    for name, queries in (*_encoders(asking.W), *_whole(asking.W)):
        with suppress(ValueError):  # so wide is no noise drawn
            laplace = CentralLaplace(queries, asking.epsilon)
            yield (
                f"{name}, discrete Laplace",
                through(asking.question, laplace),
                "a curator, delta = 0",
            )


def _encoders(W: Tensor) -> Iterator[tuple[str, FactoredQueries]]:
    """Bits of which sums are taken: of types, of a binary tree, of the coordinates where all have two values."""
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
    """The answers themselves, where all of one query are whole steps apart: for noise on whole numbers."""
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
