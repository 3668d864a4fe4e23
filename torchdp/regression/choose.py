"""Routes to regression or low rank in the linear-transformation model, by error and by words.

Notation: [A b]: rows and labels; B, C: their bounds; V: the variance of the noise in an entry of a
sketch Y of [A b].
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from torchdp import checks
from torchdp.draws import Simulated
from torchdp.protocol import Choice, Estimate
from torchdp.protocol.choice import Candidate
from torchdp.protocol.records import single
from torchdp.regression.errors import SecondMoments, checked, phi, within
from torchdp.regression.gram import GramRelease
from torchdp.regression.local import LocalRows
from torchdp.regression.ridge import (
    adaptive_ridge,
    cautious_ridge,
    predicted_phi_of_sketch,
    predicted_psi,
    predicted_psi_of_sketch,
)
from torchdp.regression.second_moment_noise import NoisyMoments, debiased
from torchdp.secure.protocol import SecureSketch
from torchdp.sketching.constructions import balanced_count_sketch
from torchdp.sketching.noise import entry_variance
from torchdp.threads import one_thread

Release = GramRelease | SecureSketch | LocalRows
# Releases that an error is the mean of: an eighth of one release's deviation is left.
DRAWN = 64


@one_thread
def choose_regression(
    moments: SecondMoments,
    ridge: float,
    bound: float,
    label_bound: float,
    *,
    epsilon: float,
    delta: float,
    generator: torch.Generator,
) -> Choice[Release]:
    """Gram route, sketch or local noise, solved either way: the phi of each for data like these.

    A name ends with the function that solves, ``adaptive_ridge`` or ``cautious_ridge``. An error is
    the mean of phi over 64 releases drawn from ``moments``: what the two really give, also where
    noise is large and no first-order formula holds. A sketch's rows are drawn as normal with these
    moments; its height is the best to first order. The sketch has one copy (one word for each
    column and the label) and exact noise. Local noise is left out at an epsilon that its randomizer
    does not take (``GaussianVector``).

    Args:
        moments: a *public* guess of the data's, n among them, labels last (of an earlier or a
            synthetic table); a choice made from private moments is not private.
        ridge: >= 0.
        bound: B, the largest l_2 norm of a row.
        label_bound: C, the largest label.
        epsilon: of each route.
        delta: of each route.
        generator: draws the public sketch and what is predicted from.

    Raises TypeError, ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: the errors are measured, the height is of ``predicted_phi_of_sketch``.
    """

    def sketch_error(height: int, V: float) -> float:
        return float(predicted_phi_of_sketch(moments, ridge, height, V))

    # The prediction divides by m - d - 1, where the columns are d + 1: the first height it takes.
    least = checked(moments).columns + 1
    label_bound = checks.positive("label_bound", label_bound)  # here None is no bound
    routes = _routes(moments, sketch_error, least, bound, label_bound, epsilon, delta, generator)
    candidates = []
    for route in routes:
        if isinstance(route.protocol, SecureSketch):
            # A sketch depends on more of the rows than their moments: normal rows stand in for
            # them.
            noisy = _normal_sketch(moments, route.protocol, generator)
        else:
            released = route.protocol.sample_estimate(
                moments, generator=generator, sample_shape=(DRAWN,)
            )
            noisy = cast(NoisyMoments, released)
        for solve in (adaptive_ridge, cautious_ridge):
            error = float(phi(moments, solve(noisy, ridge), ridge).mean())
            name = f"{route.name}, {solve.__name__}"
            candidates.append(replace(route, name=name, error=error))
    return Choice(tuple(candidates))


def _normal_sketch(
    moments: SecondMoments, secure: SecureSketch, generator: torch.Generator
) -> NoisyMoments:
    """Debiased moments of this sketch of rows that are normal with these second moments."""
    height = secure.sketch.height
    V = entry_variance(secure.bound, epsilon=secure.epsilon, delta=secure.delta)
    sigma = math.sqrt(V)
    # With one copy a row of S [A b] is a signed sum of n/m clients' rows: mean 0, second moments
    # M/m.
    values, vectors = torch.linalg.eigh(moments.matrix / height)
    # Rounding can leave the eigenvalues of a singular M below 0.
    root = values.clamp_min(0).sqrt()[:, None] * vectors.mT
    draws = Simulated(generator)
    Z = draws.normal((DRAWN, height, moments.columns)) @ root
    Y = Z + sigma * draws.normal(tuple(Z.shape))
    return debiased(Estimate(Y, torch.full_like(Y, sigma), moments.n))


@one_thread
def choose_low_rank(
    moments: SecondMoments,
    rank: int,
    bound: float,
    *,
    epsilon: float,
    delta: float,
    generator: torch.Generator,
) -> Choice[Release]:
    """Gram route, sketch or local noise: the predicted psi of each for data like these.

    Routes whose prediction ends at that of a random space are ties, in the order Gram, sketch,
    local.

    Args:
        moments: a *public* guess, without labels.
        rank: k.
        bound: as in :func:`choose_regression`, and the rest.
        epsilon: of each route.
        delta: of each route.
        generator: draws the public sketch.

    Raises TypeError, ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: first-order errors (predicted_psi, predicted_psi_of_sketch).
    """
    rank = checks.integer("rank", rank, 1, checked(moments).columns)

    def sketch_error(height: int, V: float) -> float:
        return float(predicted_psi_of_sketch(moments, rank, height, V))

    candidates = []
    for route in _routes(moments, sketch_error, rank + 1, bound, None, epsilon, delta, generator):
        protocol = route.protocol
        if isinstance(protocol, SecureSketch):
            # Its error was predicted when its height was chosen.
            candidates.append(route)
            continue
        if isinstance(protocol, GramRelease):
            sigma = protocol.gram_sigma
        else:
            # svec's entries have 2 n sigma^4 + 2 sigma^2 (M_ii + M_jj), here in the mean
            mean_square = float(moments.matrix.trace()) / moments.columns
            variance = protocol.sigma**2
            squared = 2 * single(moments.n) * variance**2 + 4 * variance * mean_square
            sigma = math.sqrt(squared)
        candidates.append(replace(route, error=float(predicted_psi(moments, rank, sigma))))
    return Choice(tuple(candidates))


def _routes(
    moments: SecondMoments,
    sketch_error: Callable[[int, float], float],
    least: int,
    bound: float,
    label_bound: float | None,
    epsilon: float,
    delta: float,
    generator: torch.Generator,
) -> list[Candidate[Release]]:
    """Gram route, sketch, local rows, of which the sketch has its error, and the others 0.

    Local rows are left out where their randomizer takes no such epsilon or delta.

    Args:
        moments: of the data.
        sketch_error: that of a sketch, by its height and V.
        least: the first height; the best of it and its multiples by 2, 4, ... up to n is taken.
        bound: B.
        label_bound: C, None without labels.
        epsilon: of each route.
        delta: of each route.
        generator: draws the sketch.
    """
    n = single(moments.n)
    d = moments.columns - (label_bound is not None)
    gram = GramRelease(n, d, bound, epsilon, delta, label_bound=label_bound)
    # After GramRelease, which checks the bounds. Rows that clipping would change are other data.
    within(moments, d, bound, label_bound)
    # Sketches and local noise hide a row and its label as one vector.
    longest = math.hypot(bound, label_bound or 0.0)
    V = entry_variance(longest, epsilon=epsilon, delta=delta)
    # Doubled each time: log2 n predictions in place of n.
    heights = [least]
    while heights[-1] * 2 <= n:
        heights.append(heights[-1] * 2)
    # Pairs: of equal errors, such as those that end at x = 0, the smallest sketch is taken.
    error, height = min((sketch_error(height, V), height) for height in heights)
    sketch = balanced_count_sketch(n, height, generator=generator)
    secure = SecureSketch(sketch, moments.columns, longest, epsilon, delta)
    # noise on the diagonal is sqrt 2 as large as elsewhere
    gram_noise = gram.gram_sigma / math.sqrt(2)
    # N^T N alone, N the noise in m rows, has variance m V^2 off the diagonal.
    sketch_noise = math.sqrt(height) * V
    entry = "words; noise of an entry of A^T A:"
    ratio = f"{sketch_noise / gram_noise:.3g} times gram's"
    sketch_note = f"{secure.columns} {entry} at least {sketch_noise:.3g}, {ratio}"
    routes: list[Candidate[Release]] = [
        Candidate("gram", gram, 0.0, f"{gram.words} {entry} {gram_noise:.3g}"),
        Candidate(f"sketch, {height} rows", secure, error, sketch_note),
    ]
    try:
        local = LocalRows(d, bound, epsilon, delta, label_bound)
    except ValueError:  # the other routes have checked all arguments
        return routes
    # The same of n rows, each entry of variance sigma^2.
    local_noise = math.sqrt(n) * local.sigma**2
    local_note = f"{local.size} {entry} at least {local_noise:.3g}; no servers to trust"
    routes.append(Candidate("local", local, 0.0, local_note))
    return routes
