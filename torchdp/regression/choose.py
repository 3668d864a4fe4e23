"""Routes to regression or low rank in the linear-transformation model, by their predicted errors and words."""

import math
from collections.abc import Callable
from dataclasses import replace

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
    """Gram route, sketch of the best height, or local noise, solved either way: the phi of each for data like these.

    A name ends with the function that solves, ``adaptive_ridge`` or ``cautious_ridge``. An error is the mean of phi
    over 64 releases drawn from ``moments``: what the two really give, also where noise is large and no first-order
    formula holds. A sketch's rows are drawn as normal with these moments; its height is the best to first order.

    moments: a *public* guess of the data's, n among them, labels last (of an earlier or a synthetic table); a choice
    made from private moments is not private. ridge >= 0; bound, label_bound: B and C; generator: draws the public
    sketch and what is predicted from. The sketch has one copy (one word for each column and the label) and exact noise.
    Local noise is left out at an epsilon that its randomizer does not take (``GaussianVector``). Raises TypeError,
    ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: the errors are measured, the height is of ``predicted_phi_of_sketch``.
    """
    n, d = single(checked(moments).n), moments.columns - 1
    within(moments, d, bound, label_bound)
    gram = GramRelease(n, d, bound, epsilon, delta, label_bound=label_bound)
    local = _local(d, bound, epsilon, delta, label_bound)
    longest = math.hypot(bound, label_bound)
    V = entry_variance(longest, epsilon=epsilon, delta=delta)

    def sketched(height: int) -> float:
        return float(predicted_phi_of_sketch(moments, ridge, height, V))

    shown = _sketch(sketched, d + 2, V, gram, longest, generator)
    height = shown.protocol.sketch.height
    drawn: list[tuple[Candidate[Release], NoisyMoments]] = [
        (Candidate("gram", gram, 0.0, _gram_note(gram)), _released(gram, moments, generator)),
        (shown, _normal_sketch(moments, height, V, generator)),
    ]
    if local is not None:
        alone = Candidate("local", local, 0.0, _local_note(local, n))
        drawn.append((alone, _released(local, moments, generator)))
    candidates = []
    for one, noisy in drawn:
        for solve in (adaptive_ridge, cautious_ridge):
            error = float(phi(moments, solve(noisy, ridge), ridge).mean())
            candidates.append(replace(one, name=f"{one.name}, {solve.__name__}", error=error))
    return Choice(tuple(candidates))


def _released(
    protocol: GramRelease | LocalRows, moments: SecondMoments, generator: torch.Generator
) -> NoisyMoments:
    found = protocol.sample_estimate(moments, generator=generator, sample_shape=(DRAWN,))
    return checks.instance("estimate", found, NoisyMoments)


def _normal_sketch(moments: SecondMoments, height: int, V: float, generator: torch.Generator) -> NoisyMoments:
    """Debiased moments of sketches of rows that are normal with these second moments, with noise V in each entry."""
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
    """Gram route, sketch of the best height, or local noise: the predicted psi of each for data like these.

    Routes whose prediction ends at that of a random space are ties, in the order Gram, sketch, local.

    moments: a *public* guess, without labels; rank: k; the rest as in :func:`choose_regression`. Raises TypeError,
    ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: first-order errors (predicted_psi, predicted_psi_of_sketch).
    """
    n, d = single(checked(moments).n), moments.columns
    within(moments, d, bound, None)
    gram = GramRelease(n, d, bound, epsilon, delta)
    local = _local(d, bound, epsilon, delta, None)
    V = entry_variance(bound, epsilon=epsilon, delta=delta)
    trace = float(moments.matrix.trace()) / d

    def sketched(height: int) -> float:
        return float(predicted_psi_of_sketch(moments, rank, height, V))

    whole = Candidate("gram", gram, float(predicted_psi(moments, rank, gram.gram_sigma)), _gram_note(gram))
    candidates: list[Candidate[Release]] = [whole, _sketch(sketched, rank + 1, V, gram, bound, generator)]
    if local is not None:
        level = math.sqrt(2 * n * local.sigma**4 + 4 * local.sigma**2 * trace)
        alone = Candidate("local", local, float(predicted_psi(moments, rank, level)), _local_note(local, n))
        candidates.append(alone)
    return Choice(tuple(candidates))


def _local(d: int, bound: float, epsilon: float, delta: float, label_bound: float | None) -> LocalRows | None:
    """None where its randomizer takes no such epsilon or delta; the other routes have checked all arguments."""
    try:
        return LocalRows(d, bound, epsilon, delta, label_bound)
    except ValueError:
        return None


def _sketch(
    error: Callable[[int], float],
    least: int,
    V: float,
    gram: GramRelease,
    bound: float,
    generator: torch.Generator,
) -> Candidate[SecureSketch]:
    """Of least predicted error over heights least, 2 least, 4 least, ... up to n."""
    heights = [least]
    while heights[-1] * 2 <= gram.clients:
        heights.append(heights[-1] * 2)
    best, height = min((error(height), height) for height in heights)
    sketch = balanced_count_sketch(gram.clients, height, generator=generator)
    protocol = SecureSketch(sketch, gram.columns + gram.labelled, bound, gram.epsilon, gram.delta)
    level, off = math.sqrt(height) * V, gram.gram_sigma / math.sqrt(2)
    note = f"{protocol.columns} words; noise of an entry of A^T A: at least {level:.3g}, {level / off:.3g} times gram's"
    return Candidate(f"sketch, {height} rows", protocol, best, note)


def _gram_note(gram: GramRelease) -> str:
    return f"{gram.words} words; noise of an entry of A^T A: {gram.gram_sigma / math.sqrt(2):.3g}"


def _local_note(local: LocalRows, clients: int) -> str:
    level = math.sqrt(clients) * local.sigma**2
    return f"{local.size} words; noise of an entry of A^T A: at least {level:.3g}; no servers to trust"
