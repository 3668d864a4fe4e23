"""What a local mechanism for linear queries is made of, as ``choose`` tries it: strategies and
factorizations.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdp.factorization import factorize, least_error
from torchdp.protocol import Objective
from torchdp.protocol.choice import Candidate
from torchdp.queries.protocol import FactoredQueries
from torchdp.randomizers import PrivUnit, ShiftStrategy, StrategyMatrix, strategy_lower_bound
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.randomizers.alphabet.randomized_response import walsh_hadamard
from torchdp.randomizers.alphabet.strategy import SHARP
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON as MOST_EPSILON
from torchdp.randomizers.alphabet.strategy_search import SMALLEST_EPSILON as LEAST_EPSILON
from torchdp.randomizers.alphabet.translates import flips, grid_of
from torchdp.randomness import keyed_generator

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
# steps times queries times squared types for the worst query: two seconds, or 240 steps
LEISURE = 500 * 64**3


def strategies(
    W: Tensor, epsilon: float, worst: bool, prior: Tensor | None, search: bool
) -> list[tuple[str, FrequencyOracle]]:
    """Made for linear queries W, (m, k): one parity a user, and, by a search, those of least
    variance.

    worst: whether the error is that of the worst query on the worst data. prior: (k,), or None for
    the worst data.
    """
    k = W.shape[1]
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON or bool((W == W[:, :1]).all()):
        return []
    found: list[tuple[str, FrequencyOracle]] = [*_parities(W, epsilon)]
    if not search:
        return found
    found += [*_strategies(W, epsilon, worst), *_translates(W, epsilon)]
    if prior is not None:
        found += _strategies(W, epsilon, False, 0.98 * prior + 0.02 / k)
    return found


def near_first(
    found: Sequence[Candidate[Any]], W: Tensor, n: int, objective: Objective
) -> tuple[Candidate[Any], ...]:
    """Those near the least error on the worst data first, by its product with that on skewed data,
    which they note.

    Skewed: shares like 1/(x + 1), from either end.
    """
    least = min(one.error for one in found) * (1 + NEAR)
    near = [one for one in found if one.error <= least]
    if len(near) == 1:
        return tuple(found)
    zipf = 1 / torch.arange(1, W.shape[1] + 1).to(W)
    skewed = n / zipf.sum() * torch.stack([zipf, zipf.flip(0)])
    noted = []
    for one in near:
        error = math.sqrt(float(objective.of(one.protocol.predicted_mse(skewed))))
        product = float(f"{one.error * error:.3e}")
        noted.append((product, replace(one, note=f"{error:.4g} on skewed data")))
    first = [one for _, one in sorted(noted, key=lambda pair: pair[0])]
    return (*first, *(one for one in found if one.error > least))


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


def factors_below(
    W: Tensor, n: int, epsilon: float, tol: float, least: float
) -> tuple[tuple[str, FactoredQueries], ...]:
    """Factorizations whose vectors may have less error than ``least``; inf: all.

    Over all types and queries the mean square of L R is at least ||W - W 1 1^T/k||_*^2/(k m) times
    the variance of the ball's randomizer in a direction, whatever the shift.
    """
    m, k = W.shape
    if least < math.inf:
        if min(m, k) > FACTORED:
            return ()
        total = torch.linalg.svdvals(W - W.mean(1, keepdim=True)).sum()
        moments = PrivUnit(min(m, k), epsilon).moments
        direction = max(0.0, moments.variance + min(0.0, moments.outer))
        if float(total) * math.sqrt(direction / (n * m * k)) > least:
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
    """gamma_2 within the alpha of least worst error, where the exact error is large enough for an
    alpha to pay.
    """
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
    """Optimised for the mean over queries and the worst type, or one drawn from prior; then for the
    worst query.
    """
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
    """Of more than 256 types: shifts, and a matrix where these are far from the bound and time
    allows.
    """
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
    """Each user sends one parity of its bits by randomized response, for queries that are sums of
    few parities.

    W = A H, rows of H parities: variances add up to sum_s |a_s|^2 c^2/share_s less the squared
    answers, c = coth(epsilon/2), least for shares like |a_s|.
    """
    k = W.shape[1]
    if k & (k - 1):
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
    """Patterns of bit strings and their translates, beyond 64 types, up to 1,024, for queries of
    sums of parities.
    """
    k = W.shape[1]
    if not CAREFUL_STRATEGY < k <= BOUNDED or k & (k - 1):
        return []
    centred, generator = W - W.mean(1, keepdim=True), keyed_generator(b"choose", W.device)
    found = flips(centred / centred.abs().max(), epsilon * MARGIN, generator)
    return [] if found is None else [("translates of patterns", StrategyMatrix(found))]
