"""Which mechanism answers a workload best where somebody is trusted: a curator, or a shuffler of messages."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isabstract

import torch
from torch import Tensor

from torchdp import checks, shuffle
from torchdp.privacy import Model
from torchdp.protocol import Choice, Objective
from torchdp.protocol.choice import Candidate
from torchdp.queries.central import CentralFactorization, CentralLaplace, ShuffledQueries
from torchdp.queries.choose import CAREFUL_STRATEGY, COPIES, MARGIN, factors, ranked, shares_of
from torchdp.queries.oracle import KINDS, LocalFactorization, LocalOracle, decoding
from torchdp.queries.protocol import FactoredQueries, QueryProtocol, dense
from torchdp.randomizers import StrategyMatrix
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomness import keyed_generator
from torchdp.shuffle import Amplified
from torchdp.shuffle.laws import MessageLaw
from torchdp.threads import one_thread
from torchdp.workloads import Workload

MOST_BITS = 4096  # sums of bits that a user takes part in
# All that the package exports for messages: a new one is a candidate without more.
LAWS: tuple[type[MessageLaw], ...] = tuple(
    law
    for law in (getattr(shuffle, name) for name in shuffle.__all__)
    if isinstance(law, type) and issubclass(law, MessageLaw) and not isabstract(law)
)
CLOSE = 0.05  # of error: so much more is worth a curator, who is trusted in any case, in the place of a shuffler
ROUNDS = 2  # of strategy optimisation
Trusted = QueryProtocol | Amplified
Named = tuple[str, Trusted, str]
Crowd = tuple[str, Amplified]
Kind = Callable[[float], LocalOracle | LocalFactorization]


@one_thread
def choose_trusted(
    workload: Tensor | Workload,
    n: int,
    epsilon: float,
    delta: float,
    objective: Objective = Objective.WORST,
    *,
    trust: Model = Model.CENTRAL,
    prior: Tensor | None = None,
    tol: float = 1e-3,
) -> Choice[Trusted]:
    """The mechanism of least predicted error for n users who trust a curator, or a shuffler alone.

    Candidates that need a shuffler: one message of each user, at the local epsilon that a crowd of n hides
    (:class:`~torchdp.shuffle.Amplified`), from each frequency oracle, from PrivUnit with gamma_2 and, where a shuffler
    is all that is trusted, up to 64 types from a strategy optimised for that epsilon, in some seconds; sums of bits,
    one for each type, for each node of a binary tree, or for each query of zeros and ones, by each law of messages
    that ``torchdp.shuffle`` has and whose error is the same whatever the bits (:class:`ShuffledQueries`). Those that
    need a curator: Gaussian noise by gamma_2, gamma_F, identity, binary tree, and on the plain answers; discrete
    Laplace noise on the sums that are tried for a shuffler (:class:`CentralLaplace`). A note says who
    is trusted, and what one user sends. Who trusts a curator gets the curator's best where no shuffled one has less
    than 0.95 of its error.

    trust: ``Model.CENTRAL`` or ``Model.SHUFFLE``, the most that is trusted; delta in (0, 1); the others as in
    :func:`choose`. Raises TypeError, ValueError.
    Guarantees: the best's own; nothing is read from data.
    Source: Edmonds, Nikolov, Ullman (2020), section 2.5; Li, Hay, Rastogi, Miklau, McGregor (2010); Balle, Bell,
    Gascon, Nissim (2019).
    """
    W = dense(workload, COPIES)
    objective = checks.instance("objective", objective, Objective)
    n, prior = checks.integer("n", n, 1), shares_of(prior, W)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    if checks.instance("trust", trust, Model) not in (Model.CENTRAL, Model.SHUFFLE):
        raise ValueError(
            f"trust must be Model.CENTRAL or Model.SHUFFLE, not {trust}; where no one is, take choose"
        )
    exact = factors(W, tol)
    crowds = list(_crowds(W, exact[0][1], n, epsilon, delta))
    if trust is Model.SHUFFLE and W.shape[1] <= CAREFUL_STRATEGY and bool((W != W[:, :1]).any()):
        with suppress(ValueError):  # beyond the epsilons of strategies
            crowds.append(("optimised strategy", _optimised(W, dict(crowds)["SubsetSelection"], prior)))
    note = "a shuffler, one message at epsilon {:.3g}"
    shuffled: list[Named] = [(name, one, note.format(one.client.guarantee.epsilon)) for name, one in crowds]
    shuffled += _sums(W, n, epsilon, delta)
    judged = partial(_judged, types=W.shape[1], n=n, objective=objective, prior=prior)
    if trust is Model.SHUFFLE:
        return Choice(judged(shuffled))
    tree = [] if _is_histogram(W) else [("binary tree", FactoredQueries.tree(W))]
    curated: list[Named] = [
        (name, CentralFactorization(one, epsilon, delta), "a curator") for name, one in (*exact, *tree)
    ]
    curated += [
        (
            f"{name}, discrete Laplace",
            CentralLaplace(FactoredQueries.spanned(W, bits), epsilon),
            "a curator, delta = 0",
        )
        for name, bits in _encoders(W)
    ]
    return Choice((*Choice(judged(curated)).candidates, *Choice(judged(shuffled)).candidates), near=CLOSE)


def _judged(
    named: list[Named], types: int, n: int, objective: Objective, prior: Tensor | None
) -> tuple[Candidate[Trusted], ...]:
    found = ranked([(name, one) for name, one, _ in named], types, n, objective, prior)
    return tuple(replace(one, note=note) for one, (*_, note) in zip(found, named, strict=True))


def _crowds(W: Tensor, exact: FactoredQueries, n: int, epsilon: float, delta: float) -> Iterator[Crowd]:
    """One message of each user, through a shuffler."""
    k = W.shape[1]

    def reports(oracle: Callable[[int, float], FrequencyOracle], local: float) -> LocalOracle:
        return decoding(W, oracle(k, local))

    def vectors(local: float) -> LocalFactorization:
        return LocalFactorization.calibrated(exact, epsilon=local)

    kinds: list[tuple[str, Kind]] = [("gamma_2, PrivUnit", vectors)]
    if k > 1:
        kinds += [(oracle.__name__, partial(reports, oracle)) for oracle in KINDS]
    for name, kind in kinds:
        yield name, Amplified.calibrated(kind, n, epsilon, delta)


def _optimised(W: Tensor, crowd: Amplified, prior: Tensor | None) -> Amplified:
    """By a strategy for the local epsilon of another crowd, then one for that which its own crowd hides."""
    law, centred = None if prior is None else 0.98 * prior + 0.02 / W.shape[1], W - W.mean(1, keepdim=True)
    for _ in range(ROUNDS):
        generator, local = keyed_generator(b"choose_trusted", W.device), crowd.client.guarantee.epsilon
        kind = partial(_weakened, W, StrategyMatrix.tuned(centred, local, law, generator=generator))
        crowd = Amplified.calibrated(kind, crowd.users, crowd.guarantee.epsilon, crowd.delta, largest=local)
    return crowd


def _weakened(W: Tensor, made: StrategyMatrix, local: float) -> LocalOracle:
    """Its message is drawn whatever the type with the least chance t that leaves this epsilon.

    (1 - t) high + t law <= e^epsilon ((1 - t) low + t law) for each output.
    """
    growth, (low, high) = math.exp(local * MARGIN), made.matrix.aminmax(dim=1)
    beyond = (high - growth * low).clamp_min(0)
    t = (beyond / (beyond + made.law * (growth - 1))).amax()
    return decoding(W, StrategyMatrix((1 - t) * made.matrix + t * made.law[:, None], made.prior))


def _sums(W: Tensor, n: int, epsilon: float, delta: float) -> Iterator[Named]:
    """Of bits, through a shuffler."""
    for name, bits in _encoders(W):
        for law in LAWS:
            with suppress(ValueError):  # so much noise is not followed, or no delta reached
                sums = ShuffledQueries.calibrated(W, law, n, epsilon, delta, bits)
                yield f"{name}, {law.__name__}", sums, f"a shuffler, {sums.messages_per_user:.4g} messages"


def _encoders(W: Tensor) -> Iterator[tuple[str, Tensor | None]]:
    """Bits of which sums are taken: of types (None), of a binary tree, of the answers."""
    k = W.shape[1]
    if 1 < k <= MOST_BITS:
        yield "sums", None
    if _is_histogram(W):  # which is its own best strategy
        return
    for name, every in (("sums of a binary tree", FactoredQueries.tree(W).right), ("sums of the answers", W)):
        bits = every[(every != every[:, :1]).any(1)]  # other rows are public
        if 0 < len(bits) <= MOST_BITS and bool(((bits == 0) | (bits == 1)).all()):
            yield name, bits


def _is_histogram(W: Tensor) -> bool:
    return W.shape[0] == W.shape[1] and torch.equal(W, torch.eye(len(W)).to(W))
