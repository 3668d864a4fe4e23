"""Pairwise statistics: the chosen protocol, others of ours, and published ones."""

import functools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pairwise_peers as peers
import torch
from contest import Cell, Method, Squares, shares

from torchdp import pairwise
from torchdp.pairwise import OneMessagePairs, PairwiseProtocol, PairwiseStatistic, SubsetPairs
from torchdp.protocol import Choice
from torchdp.randomizers import strategy_lower_bound
from torchdp.randomness import keyed_generator

STATISTICS: dict[str, Callable[[int], PairwiseStatistic]] = {
    "Gini difference": lambda k: pairwise.absolute_difference(k, spacing=1 / (k - 1)),
    "Gini diversity": pairwise.unequal,
    "Kendall": lambda k: pairwise.kendall(math.isqrt(k), math.isqrt(k)),
    "AUC": lambda k: pairwise.auc(k // 2),
}
AFTERWARDS = ("consistent",)  # the mean vector that is nearest to the estimated one among those of histograms
EACH_MESSAGE = (OneMessagePairs, SubsetPairs)  # their law is drawn from the messages of all users
MESSAGES = 2**28  # numbers in all their messages: fewer trials
BOUNDED = 32  # types up to which the program of the lower bound is solved
BINS = (4, 8, 16, 64)  # tried in hindsight


@functools.lru_cache(2)
def chosen(task: str, k: int, n: int, epsilon: float) -> tuple[PairwiseStatistic, Choice]:
    """The statistic, and the choice with every setting as it comes."""
    statistic = STATISTICS[task](k)
    return statistic, pairwise.choose(statistic, n, epsilon)


def binned(task: str, k: int, most: int) -> tuple[str, np.ndarray]:
    """At most so many bins of neighbours, on each side of a grid, for either label: (bins, k)."""
    side = {"Kendall": math.isqrt(k), "AUC": k // 2}.get(task, k)
    b = min(side, max(2, {"Kendall": math.isqrt(most), "AUC": most // 2}.get(task, most)))
    one = peers.neighbours(side, b)
    if task == "Kendall":
        return f"{b} x {b} bins", np.kron(one, one)
    return f"{b} bins", np.kron(np.eye(2), one) if task == "AUC" else one


def published(cell: Cell) -> list[tuple[str, str, str, peers.Peer]]:
    """(name, side, what is done that biases it, peer).

    As many bins as Bell et al. (2020) take for smooth kernels, n^(1/4) epsilon^(1/2), and others in hindsight.
    """
    statistic, _ = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    kernels, offset = [statistic.kernel(form).numpy() for form in statistic.forms], statistic.offset
    every = peers.unbiased(kernels, offset, np.arange(cell.k) // (cell.k // 2))
    found = [(name, "outside", "", peer) for name, peer in every.items()]
    for name, peer in peers.plug_ins(kernels, offset).items():
        found.append((name, "outside", "Norm-Sub", peer))
    if cell.task == "Gini diversity":
        return found
    rule, tried = round(cell.n**0.25 * cell.epsilon**0.5), set()
    for most in (rule, *BINS):
        name, bins = binned(cell.task, cell.k, most)
        if len(bins) < cell.k and name not in tried:
            tried.add(name)
            side = "outside" if most == rule else "hindsight"
            found.append(("randomized response", side, name, peers.randomized_response(kernels, offset, bins)))
    return found


def methods(cell: Cell) -> tuple[list[Method], Choice]:
    """The chosen protocol, ours of least predicted error beside it on these data, and the published ones."""
    statistic, choice = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    counts, generator = cell.counts, keyed_generator(cell.seed)
    truth, rng = statistic.exact(counts), np.random.default_rng(list(cell.seed))
    kernel = statistic.kernel(statistic.form)
    limits = statistic.limits or (float(kernel.min()), float(kernel.max()))

    def squares(value: torch.Tensor) -> Squares:
        value = value.nan_to_num(statistic.offset)
        return {"": (value - truth).square(), "clipped": (value.clamp(*limits) - truth).square()}

    def ours(name: str, side: str, protocol: PairwiseProtocol) -> Method:
        def draw(trials: int) -> Squares:
            if isinstance(protocol, EACH_MESSAGE):
                trials = max(50, min(trials, MESSAGES // (cell.n * cell.k)))
            tally = protocol.sample_tally(counts, generator=generator, sample_shape=(trials,))
            found = squares(protocol.analyse(tally).value)
            if side != "chosen":
                return found
            value = pairwise.consistent(protocol, tally, tol=1e-7, max_iterations=200).value
            found["consistent"] = squares(value)["clipped"]
            return found

        return Method(name, side, quietly(draw), error(protocol))

    def theirs(name: str, side: str, afterwards: str, peer: peers.Peer) -> Method:
        def draw(trials: int) -> Squares:
            found = squares(torch.from_numpy(peer(counts.numpy(), cell.epsilon, trials, rng)))
            return {afterwards: found["clipped"]} if afterwards else found

        return Method(name, side, draw)

    error = quietly(lambda protocol: math.sqrt(float(protocol.predicted_mse(counts))))
    first, *rest = choice.candidates
    drawn = [one for one in rest if not isinstance(one.protocol, EACH_MESSAGE)]
    second = min(drawn, key=lambda one: error(one.protocol))
    found = [ours(first.name, "chosen", first.protocol), ours(second.name, "own", second.protocol)]
    return [*found, *(theirs(*each) for each in published(cell))], choice


def quietly(call: Callable) -> Callable:
    """Without the warning that a class is rare: such cells are asked for."""

    def quiet(*arguments):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the denominator")
            return call(*arguments)

    return quiet


def bound(cell: Cell) -> float | None:
    """Least RMSE of all unbiased one-round protocols for a mean on such data, to first order in 1/n.

    With all other users' data fixed, an unbiased estimate is one of 2 (F h)_x/n from user i's report plus a constant:
    its variance is at least the sum over users of what one report's own unbiased estimate of that query has
    (Hoeffding 1948), and that is bounded by :func:`strategy_lower_bound`.
    """
    statistic, _ = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    if cell.k > BOUNDED or statistic.denominator is not None:
        return None
    h = shares(cell.data, cell.k)
    query = statistic.kernel(statistic.form) @ h
    if float(query.max() - query.min()) < 1e-9 * float(query.abs().max()):
        return None  # the first order vanishes
    return math.sqrt(4 * strategy_lower_bound(query[None], cell.epsilon, h) / cell.n)
