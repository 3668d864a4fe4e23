"""Routes to regression or low rank in the linear-transformation model, by their predicted errors and words."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torchdp import checks
from torchdp.regression.errors import SecondMoments, checked
from torchdp.regression.gram import GramRelease, within
from torchdp.regression.local import LocalRows
from torchdp.regression.low_rank import predicted_psi, predicted_psi_of_sketch
from torchdp.regression.ridge import predicted_phi, predicted_phi_of_sketch
from torchdp.sketching.gaussian_noise import entry_variance


@dataclass(frozen=True)
class Route:
    """One way, its predicted error (phi or psi), the numbers a client sends to each server, and what its noise is."""

    name: str
    error: float
    words: int
    reason: str


@dataclass(frozen=True)
class RouteChoice:
    """The routes that fit, least predicted error first; printing it shows the table that the choice was made from."""

    routes: tuple[Route, ...]

    @property
    def best(self) -> Route:
        """The route of least predicted error."""
        return self.routes[0]

    def __str__(self) -> str:
        width = max(len(route.name) for route in self.routes)
        return "\n".join(
            f"{r.name:<{width}}  {r.error:<10.5g}  {r.words:>6} words  {r.reason}" for r in self.routes
        )


def choose_regression(
    moments: SecondMoments,
    ridge: float,
    bound: float,
    label_bound: float,
    *,
    epsilon: float,
    delta: float,
    most_words: int | None = None,
) -> RouteChoice:
    """Gram route, sketch of the best height, or local noise: the predicted phi of each for data like these.

    The Gram route is first wherever ``most_words`` allows it, as far as tried: what is to be read here is by how much,
    and what is left with fewer words. The figures are those of ``predicted_phi``: of the plain solution, while its
    noise is small. ``adaptive_ridge`` errs less where noise is large. A prediction that ends at phi(0) says only that
    noise hides everything; such routes are ties, in the order Gram, sketch, local.

    moments: a *public* guess of the data's, n among them, labels last (of an earlier or a synthetic table); a choice
    made from private moments is not private. ridge >= 0; bound, label_bound: B and C; most_words: numbers that a
    client may send to each server, None for any. The sketch has one copy (one word for each column and the label) and
    exact noise. Raises TypeError, ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: first-order errors (predicted_phi, predicted_phi_of_sketch).
    """
    n, d = checked(moments).clients, moments.columns - 1
    within(moments, d, bound, label_bound)
    gram = GramRelease(n, d, bound, epsilon, delta, label_bound=label_bound)
    local = LocalRows(d, bound, epsilon, delta, label_bound)
    V = entry_variance(math.hypot(bound, label_bound), epsilon=epsilon, delta=delta)
    trace, square = float(moments.gram.trace()) / d, moments.label_square
    levels = math.sqrt(2 * n * local.sigma**4 + 4 * local.sigma**2 * trace)
    cross = math.sqrt(n * local.sigma**4 + local.sigma**2 * (trace + square))

    def sketched(height: int) -> float:
        return predicted_phi_of_sketch(moments, ridge, height, V)

    return _ranked(
        gram,
        predicted_phi(moments, ridge, gram.gram_sigma, gram.cross_sigma),
        _best_height(sketched, d + 2, n),
        V,
        Route("local", predicted_phi(moments, ridge, levels, cross), d + 1, _local_reason(local.sigma, n)),
        most_words,
    )


def choose_low_rank(
    moments: SecondMoments,
    rank: int,
    bound: float,
    *,
    epsilon: float,
    delta: float,
    most_words: int | None = None,
) -> RouteChoice:
    """Gram route, sketch of the best height, or local noise: the predicted psi of each for data like these.

    Routes whose prediction ends at that of a random space are ties, in the order Gram, sketch, local.

    moments: a *public* guess, without labels; rank: k; the rest as in :func:`choose_regression`. Raises TypeError,
    ValueError.

    Guarantees: each route's own, at (epsilon, delta); nothing is read but the arguments.
    Source: first-order errors (predicted_psi, predicted_psi_of_sketch).
    """
    n, d = checked(moments).clients, moments.columns
    within(moments, d, bound, None)
    gram = GramRelease(n, d, bound, epsilon, delta)
    local = LocalRows(d, bound, epsilon, delta)
    V = entry_variance(bound, epsilon=epsilon, delta=delta)
    trace = float(moments.matrix.trace()) / d
    level = math.sqrt(2 * n * local.sigma**4 + 4 * local.sigma**2 * trace)

    def sketched(height: int) -> float:
        return predicted_psi_of_sketch(moments, rank, height, V)

    return _ranked(
        gram,
        predicted_psi(moments, rank, gram.gram_sigma),
        _best_height(sketched, rank + 1, n),
        V,
        Route("local", predicted_psi(moments, rank, level), d, _local_reason(local.sigma, n)),
        most_words,
    )


def _best_height(error: Callable[[int], float], least: int, clients: int) -> tuple[float, int]:
    """The least predicted error over heights least, 2 least, 4 least, ... up to n, and where it is."""
    heights = [least]
    while heights[-1] * 2 <= clients:
        heights.append(heights[-1] * 2)
    return min((error(height), height) for height in heights)


def _ranked(
    gram: GramRelease,
    gram_error: float,
    sketch: tuple[float, int],
    V: float,
    local: Route,
    most_words: int | None,
) -> RouteChoice:
    error, height = sketch
    off = gram.gram_sigma / math.sqrt(2)
    times = math.sqrt(height) * V / off
    words = gram.columns + (gram.label_bound is not None)
    routes = [
        Route("gram", gram_error, gram.words, f"noise of an entry of A^T A: {off:.3g}"),
        Route(
            f"sketch, {height} rows",
            error,
            words,
            f"noise of an entry of A^T A: at least {math.sqrt(height) * V:.3g}, {times:.3g} times the Gram route's",
        ),
        local,
    ]
    if most_words is not None:
        checks.integer("most_words", most_words, 1)
        routes = [route for route in routes if route.words <= most_words]
        if not routes:
            raise ValueError(f"most_words must be at least {words}: every route sends its row or more")
    return RouteChoice(tuple(sorted(routes, key=lambda route: route.error)))


def _local_reason(sigma: float, clients: int) -> str:
    return f"noise of an entry of A^T A: at least {math.sqrt(clients) * sigma**2:.3g}; no servers to trust"
