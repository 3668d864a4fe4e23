"""Which mechanism answers a workload best: every candidate's exact predicted error, and a lower bound for them all."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization import factorize, least_error
from torchdp.protocol import Choice, Objective, Protocol
from torchdp.protocol.choice import Candidate
from torchdp.queries.bound import lower_bound
from torchdp.queries.fit import fitted_choice
from torchdp.queries.oracle import ORACLES, LocalFactorization, decoding
from torchdp.queries.protocol import Channel, FactoredQueries, dense
from torchdp.randomizers import PrivUnit, ShiftStrategy, StrategyMatrix, strategy_lower_bound
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.randomized_response import walsh_hadamard
from torchdp.randomizers.alphabet.strategy import SHARP
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON as MOST_EPSILON
from torchdp.randomizers.alphabet.strategy_search import SMALLEST_EPSILON as LEAST_EPSILON
from torchdp.randomizers.alphabet.translates import flips, grid_of
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread
from torchdp.workloads import Workload

# Of W, in a quarter of the free memory: at the peak about twice as many are held.
COPIES = 16
# an alpha > 0 is tried where the exact error is above this share of max abs(W - shift)
LOSSY = 0.02
# the smaller side of W up to which it is factorized: an iteration takes half a minute at 4,096
FACTORED = 1024
LARGEST_LOSSY = 512  # m + n up to which it is tried
# types up to which a strategy is optimised
CAREFUL_STRATEGY, POLISHED_STRATEGY, SHIFTED_STRATEGY = 64, 256, 4096
DESCENT = 150 * 400**3  # steps times cubed types of a matrix's descent beyond these: half a minute
FEWEST, USUAL = 60, 150  # steps of it
# times the lower bound on the variance: shifts that a descent is not tried to improve on
CLOSE = 1.2
MOST_PARITIES = 256  # that one parity a user is tried for
BOUNDED = 1024  # types up to which the lower bound is computed: a minute at 4,096
# relative excess error allowed on the worst data for lower error where few types are frequent
NEAR = 0.005
MARGIN = 1 - 1e-6  # of epsilon, for what rounding to whole chances adds
P = TypeVar("P", bound=Protocol[Any])
# steps times queries times squared types for the worst query: two seconds, or 240 steps
LEISURE = 500 * 64**3


@one_thread
def choose_linear(
    workload: Tensor | Workload,
    n: int,
    epsilon: float,
    objective: Objective = Objective.WORST,
    *,
    prior: Tensor | None = None,
    tol: float = 1e-3,
    unbiased: bool = True,
    ordered: bool = True,
) -> Choice[Channel]:
    """The local mechanism of least predicted error for n users, among all that this package has.

    Candidates: up to 1,024 types or queries factorizations by gamma_2 and gamma_F with a free shift, gamma_2 within
    the alpha of least error where that may pay; the identity and the plain answers; each with PrivUnit,
    beyond 256 types only where the singular values leave them a chance; randomized response, subset selection, OUE,
    SUE and, up to 1,024 types, Hadamard response; a strategy optimised for the workload: up to 256 types a matrix, up
    to 4,096 types a few patterns of ordered types and their shifts, of types on a grid where the queries are a
    Kronecker product, and up to 540 types a matrix where these are far from the bound.
    Types that no query tells apart count as one.

    workload: (m, k) or a :class:`Workload`; n: users; epsilon: of each; objective: what the error means, on the worst
    data or, with ``prior`` (k,), a public histogram, on data like that; it is scaled to sum 1. tol: relative gap of the
    factorizations.
    Where the queries are sums of few parities of the types' bits, one randomized parity a user is a candidate too, and
    up to 1,024 types a few patterns of bits and their translates.
    Strategies are optimised for the mean over queries and the worst type, up to 64 types from there for the worst query
    where that is the objective (in fewer steps where queries are many); with a prior also for that. A matrix is
    decoded for the data that its reports show (``LocalOracle(..., adapted=True)``).
    They take seconds, with hundreds of types up to a minute. Without a prior, among those with error at most half a
    percent more than the best on the worst data, that comes first which gains more where few types are frequent (shares
    like 1/(x + 1), from either end) than it loses there. The choice's ``bound`` is :func:`lower_bound`, up to 1,024
    types.
    unbiased: False for answers by :func:`fitted` (:class:`FittedOracle`), of a lower error and biased; ordered: whether
    types beside each other are alike. Candidates then are the three best oracles, and for ordered types the square wave
    and up to 256 types shifts tuned for a rough prior, and half of the messages by an oracle, half by the square wave.
    Their errors are simulated: on the prior, such as the histogram fitted to a pilot's reports, or in geometric mean
    over eight public histograms, drawn once; a candidate's note holds the least and the most.
    Raises TypeError, ValueError.

    Guarantees: the best's own; nothing is read from data.
    Source: McKenna, Maity, Mazumdar, Miklau (2020), on choosing by predicted variance; Cormode, Kulkarni, Srivastava
    (2018), InpHT, for parities.
    """
    W = dense(workload, COPIES)
    epsilon = checks.positive("epsilon", epsilon)
    objective = checks.instance("objective", objective, Objective)
    n, prior = checks.integer("n", n, 1), shares_of(prior, W)
    unbiased, ordered = (
        checks.instance("unbiased and ordered", each, bool) for each in (unbiased, ordered)
    )
    k, oracles = W.shape[1], list[tuple[str, FrequencyOracle]]()
    if k > 1:
        kinds = ORACLES if k <= BOUNDED else ORACLES[:-1]
        oracles = [*((kind.__name__, kind(k, epsilon)) for kind in kinds), *_parities(W, epsilon)]
    if k > 1 and LEAST_EPSILON <= epsilon <= MOST_EPSILON and bool((W != W[:, :1]).any()):
        worst = objective is Objective.WORST and prior is None
        oracles += [*_strategies(W, epsilon, worst), *_translates(W, epsilon)]
        if prior is not None:
            oracles += _strategies(W, epsilon, False, 0.98 * prior + 0.02 / k)
    reported = ranked(
        [(name, decoding(W, oracle)) for name, oracle in oracles], k, n, objective, prior
    )
    protocols: list[tuple[str, Channel]] = []
    for name, queries in _factored(W, n, epsilon, tol, reported):
        protocols.append(
            (f"{name}, PrivUnit", LocalFactorization.calibrated(queries, epsilon=epsilon))
        )
    found = ranked(protocols, k, n, objective, prior)
    least = lower_bound(W, n, epsilon, objective, prior=prior) if k <= BOUNDED else None
    choice = _choice((*found, *reported), least, n, objective, prior)
    return choice if unbiased else fitted_choice(choice, n, objective, prior, ordered)


def _choice(
    found: Sequence[Candidate[Channel]],
    bound: float | None,
    n: int,
    objective: Objective,
    prior: Tensor | None,
) -> Choice[Channel]:
    """Without a prior those near the best by the product of their errors on the worst data and on skewed, a note."""
    least = min(one.error for one in found) * (1 + NEAR)
    near = [one for one in found if one.error <= least]
    if prior is not None or len(near) == 1:
        return Choice(tuple(found), bound)
    W = near[0].protocol.workload
    zipf = 1 / torch.arange(1, W.shape[1] + 1).to(W)
    skewed = n / zipf.sum() * torch.stack([zipf, zipf.flip(0)])
    noted = []
    for one in near:
        error = _root_of(objective, one.protocol.predicted_mse(skewed))
        noted.append(
            (float(f"{one.error * error:.3e}"), replace(one, note=f"{error:.4g} on skewed data"))
        )
    first = [one for _, one in sorted(noted, key=lambda pair: pair[0])]
    return Choice((*first, *(one for one in found if one.error > least)), bound, NEAR)


def factors(W: Tensor, tol: float) -> tuple[tuple[str, FactoredQueries], ...]:
    """Exact ones: of gamma_2 and gamma_F, the identity and the plain answers."""
    even = FactoredQueries.even(W)
    if even is not None:
        return (("gamma_2", even), *_given(W))  # of gamma_F too
    return (
        ("gamma_2", FactoredQueries.of(W, factorize(W, math.inf, shift=True, tol=tol))),
        ("gamma_F", FactoredQueries.of(W, factorize(W, 2.0, shift=True, tol=tol))),
        *_given(W),
    )


def _factored(
    W: Tensor, n: int, epsilon: float, tol: float, others: Sequence[Candidate[Channel]]
) -> tuple[tuple[str, FactoredQueries], ...]:
    """Factorizations that may win: beyond 256 types none with error surely above another's.

    Over all types and queries the mean square of L R is at least ||W - W 1 1^T/k||_*^2/(k m) times the variance of the
    ball's randomizer in a direction, whatever the shift.
    """
    m, k = W.shape
    if k > POLISHED_STRATEGY and others:
        if min(m, k) > FACTORED:
            return ()
        total = torch.linalg.svdvals(W - W.mean(1, keepdim=True)).sum()
        moments = PrivUnit(min(m, k), epsilon).moments
        direction = max(0.0, moments.variance + min(0.0, moments.outer))
        if float(total) * math.sqrt(direction / (n * m * k)) > min(one.error for one in others):
            return ()
    if min(m, k) > FACTORED:
        return _given(W)
    exact = factors(W, tol)
    return (*exact, *_lossy(exact[0][1], n, epsilon, tol))


def _given(W: Tensor) -> tuple[tuple[str, FactoredQueries], ...]:
    return (("identity", FactoredQueries.identity(W)), ("plain", FactoredQueries.plain(W)))


def _lossy(
    exact: FactoredQueries, n: int, epsilon: float, tol: float
) -> tuple[tuple[str, FactoredQueries], ...]:
    """gamma_2 within the alpha of least worst error, where the exact error is large enough for an alpha to pay."""
    W = exact.workload
    if sum(W.shape) > LARGEST_LOSSY:
        return ()
    centred = W - exact.shift[:, None]
    norm = float(exact.left.norm(dim=1).max()) * exact.radius
    variance = PrivUnit(min(W.shape), epsilon).moments.variance / n
    if math.sqrt(variance) * norm < LOSSY * float(centred.abs().max()):
        return ()
    found = least_error(centred, variance, tol=max(tol, 1e-3))
    return (("gamma_2 within alpha", FactoredQueries.of(W, found, exact.shift)),)


def _strategies(
    W: Tensor, epsilon: float, worst: bool, prior: Tensor | None = None
) -> list[tuple[str, FrequencyOracle]]:
    """Optimised for the mean over queries and the worst type, or one drawn from prior; then for the worst query."""
    distinct, place, sizes = torch.unique(W, dim=1, return_inverse=True, return_counts=True)
    if len(sizes) < W.shape[1]:  # types that no query tells apart are one
        law = None if prior is None else W.new_zeros(len(sizes)).index_add_(0, place, prior)
        matrices = (
            _strategies(distinct, epsilon, worst, law) if len(sizes) <= POLISHED_STRATEGY else []
        )
        return [
            (name, one.repeated(place)) for name, one in matrices if isinstance(one, StrategyMatrix)
        ]
    k, centred, generator = (
        W.shape[1],
        W - W.mean(1, keepdim=True),
        keyed_generator(b"choose", W.device),
    )
    if k <= POLISHED_STRATEGY:
        name = "optimised strategy" if prior is None else "optimised strategy, prior"
        best = StrategyMatrix.tuned(centred, epsilon, prior, generator=generator)
        if not worst or len(W) == 1 or k > CAREFUL_STRATEGY:
            return [(name, best)]
        sharper = best.sharpened(centred, None, max(240, min(500, LEISURE // (len(W) * k**2))))
        return [(name, best), (f"{name}, worst query", sharper)]
    return _beyond(W, centred, epsilon, prior)


def _beyond(
    W: Tensor, centred: Tensor, epsilon: float, prior: Tensor | None
) -> list[tuple[str, FrequencyOracle]]:
    """Of more than 256 types: shifts, and a matrix where these are far from the bound and time allows."""
    k, generator = W.shape[1], keyed_generator(b"choose", W.device)
    found, variance = list[tuple[str, FrequencyOracle]](), math.inf
    if k <= SHIFTED_STRATEGY and prior is None:
        try:
            shift = ShiftStrategy.tuned(centred, epsilon, generator=generator, grid=grid_of(W))
            found.append(("shift strategy", shift))
            variance = (
                float(shift.workload_variance(centred).mean(0).amax())
                if k**3 * FEWEST < DESCENT
                else 0.0
            )
        except ValueError:  # the patterns found do not tell all types apart
            pass
    steps = min(USUAL, DESCENT // k**3 // (3 if epsilon > SHARP else 1))  # for the second start
    if steps >= FEWEST and variance > CLOSE * strategy_lower_bound(
        W, epsilon, prior, program=False
    ):
        best = StrategyMatrix.tuned(centred, epsilon, prior, generator=generator, steps=steps)
        found.append(("optimised strategy", best))
    return found


def _parities(W: Tensor, epsilon: float) -> list[tuple[str, StrategyMatrix]]:
    """Each user sends one parity of its bits by randomized response, for queries that are sums of few parities.

    W = A H, rows of H parities: variances add up to sum_s |a_s|^2 c^2/share_s less the squared answers, c =
    coth(epsilon/2), least for shares like |a_s|.
    """
    k = W.shape[1]
    if k & (k - 1) or not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        return []
    norms = walsh_hadamard(W).norm(dim=0)[1:]
    needed = 1 + (norms > 1e-9 * norms.max()).nonzero()[:, 0]
    if not 0 < len(needed) < min(k - 1, MOST_PARITIES):
        return []
    signs = walsh_hadamard(torch.eye(k, dtype=W.dtype, device=W.device)[needed])
    shares, growth = norms[needed - 1, None] / norms[needed - 1].sum(), math.exp(epsilon * MARGIN)
    said = (growth ** (signs > 0).to(W), growth ** (signs < 0).to(W))
    return [
        ("one parity a user", StrategyMatrix(shares.repeat(2, 1) * torch.cat(said) / (1 + growth)))
    ]


def _translates(W: Tensor, epsilon: float) -> list[tuple[str, StrategyMatrix]]:
    """Patterns of bit strings and their translates, beyond 64 types, up to 1,024, for queries of sums of parities."""
    k = W.shape[1]
    if not CAREFUL_STRATEGY < k <= BOUNDED or k & (k - 1):
        return []
    centred, generator = W - W.mean(1, keepdim=True), keyed_generator(b"choose", W.device)
    found = flips(centred / centred.abs().max(), epsilon * MARGIN, generator)
    return [] if found is None else [("translates of patterns", StrategyMatrix(found))]


def shares_of(prior: Tensor | None, W: Tensor) -> Tensor | None:
    return None if prior is None else checks.shares("prior", prior, W.shape[1]).detach().to(W)


def ranked(
    protocols: Sequence[tuple[str, P]],
    types: int,
    n: int,
    objective: Objective,
    prior: Tensor | None,
) -> tuple[Candidate[P], ...]:
    """With the error on the worst data and on flat data of so many types, or on data like the prior."""
    found = []
    for name, one in protocols:
        if prior is not None:
            found.append(Candidate(name, one, _root_of(objective, one.predicted_mse(prior * n))))
            continue
        worst = math.sqrt(float(one.worst_mse(n, objective)))
        flat = torch.full((types,), n / types, dtype=torch.float64)
        found.append(Candidate(name, one, worst, flat=_root_of(objective, one.predicted_mse(flat))))
    return tuple(found)


def _root_of(objective: Objective, mse: Tensor) -> float:
    return math.sqrt(float(objective.of(mse)))
