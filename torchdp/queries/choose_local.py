"""What a local mechanism for linear queries is made of: the strategies and factorizations tried.

Notation: W, (m, k), the queries; n users; centred, W less its row means, for which strategies are
optimised: the shares of types sum to 1.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
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
from torchdp.randomizers.alphabet.strategy_search import LARGEST_EPSILON, SMALLEST_EPSILON
from torchdp.randomizers.alphabet.translates import flips, grid_of
from torchdp.randomness import keyed_generator

# Of W, in a quarter of the free memory: at the peak about twice as many are held.
COPIES = 16

# An alpha > 0 is tried where the exact error is above this share of max abs(W - shift): what it
# gains falls with the share's square.
LOSSY = 0.05

# m + n up to which it is tried.
LARGEST_LOSSY = 512

# The smaller side of W up to which it is factorized: an iteration takes half a minute at 4,096.
FACTORED = 1024

# Types up to which a strategy is optimised: also for the worst query; as a matrix; as shifts.
CAREFUL_STRATEGY = 64
POLISHED_STRATEGY = 256
SHIFTED_STRATEGY = 4096

# Steps times cubed types of a matrix's descent beyond POLISHED_STRATEGY types: half a minute.
DESCENT = 150 * 400**3

# Steps of that descent.
FEWEST = 60
USUAL = 150

# Times the lower bound on the variance: shifts that a descent is not tried to improve on.
CLOSE = 1.2

# Parities up to which one parity a user is tried.
MOST_PARITIES = 256

# Types up to which the lower bound is computed: a minute at 4,096.
BOUNDED = 1024

# Relative excess error allowed on the worst data for a lower error where most types are rare.
NEAR = 0.005

# Of epsilon, for what rounding to whole chances adds.
MARGIN = 1 - 1e-6

# Steps times queries times squared types for the worst query: two seconds, or 240 steps.
LEISURE = 500 * 64**3
FEWEST_SHARPENED = 240
MOST_SHARPENED = 500

# Steps for the mean where those for the worst query follow: more gain nothing.
BLUNT = 250

# Share of a prior that is spread evenly: data are only like it.
EVEN = 0.02

NamedOracle = tuple[str, FrequencyOracle]
NamedFactors = tuple[str, FactoredQueries]


def strategies(
    W: Tensor, epsilon: float, worst: bool, prior: Tensor | None, search: bool
) -> list[NamedOracle]:
    """Made for linear queries: one parity a user, and, by a search, those of least variance.

    worst: whether the error is that of the worst query on the worst data. prior: (k,), or None for
    the worst data.
    """
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON or (W == W[:, :1]).all():
        return []
    found = _parities(W, epsilon)
    if not search:
        return found
    found += _strategies(W, epsilon, worst)
    found += _translates(W, epsilon)
    if prior is not None:
        found += _strategies(W, epsilon, False, (1 - EVEN) * prior + EVEN / W.shape[1])
    return found


def near_first(
    found: Sequence[Candidate[Any]], W: Tensor, n: int, objective: Objective
) -> tuple[Candidate[Any], ...]:
    """Those near the least error on the worst data first, by its product with that on skewed data.

    Skewed: shares like 1/(x + 1), from either end. A note holds the error there.
    """
    limit = min(one.error for one in found) * (1 + NEAR)
    near = [one for one in found if one.error <= limit]
    if len(near) == 1:
        return tuple(found)
    zipf = 1 / torch.arange(1, W.shape[1] + 1).to(W)
    skewed = n / zipf.sum() * torch.stack([zipf, zipf.flip(0)])
    products = []
    noted = []
    for one in near:
        mse = one.protocol.predicted_mse(skewed)
        error = math.sqrt(float(objective.of(mse)))
        # Rounded, so that what the last digits say does not change the order.
        products.append(float(f"{one.error * error:.3e}"))
        noted.append(replace(one, note=f"{error:.4g} on skewed data"))
    order = sorted(range(len(near)), key=products.__getitem__)
    return (*(noted[i] for i in order), *(one for one in found if one.error > limit))


def factors(W: Tensor, tol: float) -> tuple[NamedFactors, ...]:
    """Exact ones: of gamma_2 and gamma_F, the identity and the plain answers."""
    even = FactoredQueries.even(W)
    if even is not None:  # the best of gamma_F too
        return (("gamma_2", even), *_given(W))
    worst = factorize(W, math.inf, shift=True, tol=tol)
    mean = factorize(W, 2.0, shift=True, tol=tol)
    return (
        ("gamma_2", FactoredQueries.of(W, worst)),
        ("gamma_F", FactoredQueries.of(W, mean)),
        *_given(W),
    )


def factors_below(
    W: Tensor, n: int, epsilon: float, tol: float, least: float
) -> tuple[NamedFactors, ...]:
    """Factorizations whose vectors may have less error than ``least``; inf: all.

    Over all types and queries the mean square of L R is at least ||W - W 1 1^T/k||_*^2/(k m) times
    the variance of the ball's randomizer in a direction, whatever the shift.
    """
    m, k = W.shape
    large = min(m, k) > FACTORED
    if least < math.inf:
        if large:
            return ()
        nuclear = torch.linalg.svdvals(W - W.mean(1, keepdim=True)).sum()
        moments = PrivUnit(min(m, k), epsilon).moments
        direction = max(0.0, moments.variance + min(0.0, moments.outer))
        if float(nuclear) * math.sqrt(direction / (n * m * k)) > least:
            return ()
    if large:
        return _given(W)
    exact = factors(W, tol)
    return (*exact, *_lossy(exact[0][1], n, epsilon, tol))


def _given(W: Tensor) -> tuple[NamedFactors, ...]:
    return (("identity", FactoredQueries.identity(W)), ("plain", FactoredQueries.plain(W)))


def _lossy(exact: FactoredQueries, n: int, epsilon: float, tol: float) -> tuple[NamedFactors, ...]:
    """gamma_2 within the alpha of least worst error, where an alpha may pay.

    That is where the exact error is large.
    """
    W = exact.workload
    if sum(W.shape) > LARGEST_LOSSY:
        return ()
    centred = W - exact.shift[:, None]
    norm = float(exact.left.norm(dim=1).max()) * exact.radius
    variance = PrivUnit(min(W.shape), epsilon).moments.variance / n
    if math.sqrt(variance) * norm < LOSSY * float(centred.abs().max()):
        return ()
    approximation = least_error(centred, variance, tol=max(tol, 1e-3))
    return (("gamma_2 within alpha", FactoredQueries.of(W, approximation, exact.shift)),)


def _strategies(
    W: Tensor, epsilon: float, worst: bool, prior: Tensor | None = None
) -> list[NamedOracle]:
    """Optimised for the mean over queries and the worst type, or one drawn from prior.

    Then for the worst query.
    """
    distinct, place, sizes = torch.unique(W, dim=1, return_inverse=True, return_counts=True)
    k = len(sizes)
    if k < W.shape[1]:
        # Types that no query tells from another are one.
        if k > POLISHED_STRATEGY:
            return []
        if prior is not None:
            prior = W.new_zeros(k).index_add_(0, place, prior)
        repeated: list[NamedOracle] = []
        for name, matrix in _strategies(distinct, epsilon, worst, prior):
            if isinstance(matrix, StrategyMatrix):
                repeated.append((name, matrix.repeated(place)))
        return repeated
    centred = W - W.mean(1, keepdim=True)
    if k > POLISHED_STRATEGY:
        return _large_strategies(W, centred, epsilon, prior)
    generator = keyed_generator(b"choose", W.device)
    name = "optimised strategy" if prior is None else "optimised strategy, prior"
    sharpen = worst and len(W) > 1 and k <= CAREFUL_STRATEGY
    start = BLUNT if sharpen else None
    best = StrategyMatrix.tuned(centred, epsilon, prior, generator=generator, steps=start)
    if not sharpen:
        return [(name, best)]
    steps = max(FEWEST_SHARPENED, min(MOST_SHARPENED, LEISURE // (len(W) * k**2)))
    sharper = best.improved(centred, None, Objective.WORST, steps)
    return [(name, best), (f"{name}, worst query", sharper)]


def _large_strategies(
    W: Tensor, centred: Tensor, epsilon: float, prior: Tensor | None
) -> list[NamedOracle]:
    """Of more than 256 types: shifts, and a matrix where these are far from the bound.

    And where time allows it.
    """
    k = W.shape[1]
    generator = keyed_generator(b"choose", W.device)
    cube = k**3
    found: list[NamedOracle] = []
    variance = math.inf
    if k <= SHIFTED_STRATEGY and prior is None:
        with suppress(ValueError):  # the patterns found do not tell all types from another
            shift = ShiftStrategy.tuned(centred, epsilon, generator=generator, grid=grid_of(W))
            found.append(("shift strategy", shift))
            if cube * FEWEST < DESCENT:
                variance = float(shift.workload_variance(centred).mean(0).amax())
            else:
                variance = 0.0
    budget = DESCENT // cube
    if epsilon > SHARP:  # the search starts a second time
        budget //= 3
    steps = min(USUAL, budget)
    if steps < FEWEST:
        return found
    bound = strategy_lower_bound(W, epsilon, prior)
    if variance > CLOSE * bound:
        best = StrategyMatrix.tuned(centred, epsilon, prior, generator=generator, steps=steps)
        found.append(("optimised strategy", best))
    return found


def _parities(W: Tensor, epsilon: float) -> list[NamedOracle]:
    """Each user sends one parity of its bits by randomized response.

    For queries that are sums of a small number of parities. W = A H, rows of H parities: variances
    add up to sum_s |a_s|^2 c^2/share_s less the squared answers, c = coth(epsilon/2), least for
    shares like |a_s|.
    """
    k = W.shape[1]
    if k & (k - 1):
        return []
    # Without the parity of no bits, which is public.
    norms = walsh_hadamard(W).norm(dim=0)[1:]
    needed = (norms > 1e-9 * norms.max()).nonzero()[:, 0]
    if not 0 < len(needed) < min(k - 1, MOST_PARITIES):
        return []
    signs = walsh_hadamard(torch.eye(k).to(W)[1 + needed])
    shares = norms[needed, None] / norms[needed].sum()
    growth = math.exp(epsilon * MARGIN)
    likely = growth ** (signs > 0).to(W)
    unlikely = growth ** (signs < 0).to(W)
    chances = shares.repeat(2, 1) * torch.cat([likely, unlikely]) / (1 + growth)
    return [("one parity a user", StrategyMatrix(chances))]


def _translates(W: Tensor, epsilon: float) -> list[NamedOracle]:
    """Patterns of bit strings and their translates, for queries of sums of parities.

    Beyond 64 types, up to 1,024.
    """
    k = W.shape[1]
    if not CAREFUL_STRATEGY < k <= BOUNDED or k & (k - 1):
        return []
    centred = W - W.mean(1, keepdim=True)
    generator = keyed_generator(b"choose", W.device)
    matrix = flips(centred / centred.abs().max(), epsilon * MARGIN, generator)
    return [] if matrix is None else [("translates of patterns", StrategyMatrix(matrix))]
