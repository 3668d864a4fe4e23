"""Routes to regression or low rank in the linear-transformation model, by their predicted errors
and words.
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
DRAWN = 64  # releases that an error is measured by


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
    """Gram route, sketch of the best height, or local noise, solved either way: the phi of each for
    data like these.

    A name ends with the function that solves, ``adaptive_ridge`` or ``cautious_ridge``. An error is
    the mean of phi over 64 releases drawn from ``moments``: what the two really give, also where
    noise is large and no first-order formula holds. A sketch's rows are drawn as normal with these
    moments; its height is the best to first order.

    moments: a *public* guess of the data's, n among them, labels last (of an earlier or a synthetic
    table); a choice made from private moments is not private. ridge >= 0; bound, label_bound: B and
    C; generator: draws the public sketch and what is predicted from. The sketch has one copy
    (one word for each column and the label) and exact noise. Local noise is left out at an epsilon
    that its randomizer does not take (``GaussianVector``). Raises TypeError, ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: the errors are measured, the height is of ``predicted_phi_of_sketch``.
    """

    def sketched(height: int, V: float) -> float:
        return float(predicted_phi_of_sketch(moments, ridge, height, V))

    least = checked(moments).columns + 1
    label_bound = checks.positive("label_bound", label_bound)  # here None is no bound
    routes, V = _routes(moments, sketched, least, bound, label_bound, epsilon, delta, generator)
    candidates = []
    for one in routes:
        if isinstance(one.protocol, SecureSketch):
            noisy = _normal_sketch(moments, one.protocol.sketch.height, V, generator)
        else:
            released = one.protocol.sample_estimate(
                moments, generator=generator, sample_shape=(DRAWN,)
            )
            noisy = cast(NoisyMoments, released)
        for solve in (adaptive_ridge, cautious_ridge):
            error = float(phi(moments, solve(noisy, ridge), ridge).mean())
            candidates.append(replace(one, name=f"{one.name}, {solve.__name__}", error=error))
    return Choice(tuple(candidates))


def _normal_sketch(
    moments: SecondMoments, height: int, V: float, generator: torch.Generator
) -> NoisyMoments:
    """Debiased moments of sketches of rows that are normal with these second moments, with noise V
    in each entry.
    """
    values, vectors = torch.linalg.eigh(moments.matrix / height)
    root = values.clamp_min(0).sqrt()[:, None] * vectors.mT
    draws = Simulated(generator)
    Y = draws.normal((DRAWN, height, moments.columns)) @ root
    Y = Y + math.sqrt(V) * draws.normal(tuple(Y.shape))
    return debiased(Estimate(Y, torch.full_like(Y, math.sqrt(V)), moments.n))


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
    """Gram route, sketch of the best height, or local noise: the predicted psi of each for data
    like these.

    Routes whose prediction ends at that of a random space are ties, in the order Gram, sketch,
    local.

    moments: a *public* guess, without labels; rank: k; the rest as in :func:`choose_regression`.
    Raises TypeError, ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: first-order errors (predicted_psi, predicted_psi_of_sketch).
    """
    rank = checks.integer("rank", rank, 1, checked(moments).columns)

    def sketched(height: int, V: float) -> float:
        return float(predicted_psi_of_sketch(moments, rank, height, V))

    routes, _ = _routes(moments, sketched, rank + 1, bound, None, epsilon, delta, generator)
    trace = float(moments.matrix.trace()) / moments.columns
    candidates = []
    for one in routes:
        if isinstance(one.protocol, GramRelease):
            one = replace(one, error=float(predicted_psi(moments, rank, one.protocol.gram_sigma)))
        elif isinstance(one.protocol, LocalRows):
            sigma = one.protocol.sigma
            level = math.sqrt(2 * single(moments.n) * sigma**4 + 4 * sigma**2 * trace)
            one = replace(one, error=float(predicted_psi(moments, rank, level)))
        candidates.append(one)
    return Choice(tuple(candidates))


def _routes(
    moments: SecondMoments,
    sketched: Callable[[int, float], float],
    least: int,
    bound: float,
    label_bound: float | None,
    epsilon: float,
    delta: float,
    generator: torch.Generator,
) -> tuple[list[Candidate[Release]], float]:
    """Gram route, sketch, local rows, of which the sketch has its error; and the variance of a
    sketch's entry.

    sketched: the error of a sketch by its height, and this variance; the height is the best of
    least, 2 least, 4 least, ... up to n. Local rows are left out where their randomizer takes no
    such epsilon or delta.
    """
    n = single(moments.n)
    d = moments.columns - (label_bound is not None)
    gram = GramRelease(n, d, bound, epsilon, delta, label_bound=label_bound)
    within(moments, d, bound, label_bound)
    longest = math.hypot(bound, label_bound or 0.0)
    V = entry_variance(longest, epsilon=epsilon, delta=delta)
    heights = [least]
    while heights[-1] * 2 <= n:
        heights.append(heights[-1] * 2)
    error, height = min((sketched(height, V), height) for height in heights)
    sketch = balanced_count_sketch(n, height, generator=generator)
    secure = SecureSketch(sketch, moments.columns, longest, epsilon, delta)
    off = gram.gram_sigma / math.sqrt(2)
    level = math.sqrt(height) * V
    entry = "words; noise of an entry of A^T A:"
    note = f"{secure.columns} {entry} at least {level:.3g}, {level / off:.3g} times gram's"
    routes: list[Candidate[Release]] = [
        Candidate("gram", gram, 0.0, f"{gram.words} {entry} {off:.3g}"),
        Candidate(f"sketch, {height} rows", secure, error, note),
    ]
    try:
        local = LocalRows(d, bound, epsilon, delta, label_bound)
    except ValueError:  # the other routes have checked all arguments
        return routes, V
    note = f"{local.size} {entry} at least {math.sqrt(n) * local.sigma**2:.3g}; no servers to trust"
    routes.append(Candidate("local", local, 0.0, note))
    return routes, V
