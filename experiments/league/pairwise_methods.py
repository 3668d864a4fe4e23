"""Pairwise statistics: the chosen protocol, others of ours, and published ones."""

import functools
import math
import warnings

import numpy as np
import pairwise_peers as peers
import torch
from contest import Method, shares
from frequency_peers import Asked, norm_sub
from least_variance import least_variance

from torchdp import pairwise, queries
from torchdp.queries import LocalOracle, MessageRelease
from torchdp.randomness import keyed_generator

STATISTICS = {
    "Gini difference": lambda k: pairwise.absolute_difference(k, spacing=1 / (k - 1)),
    "Gini diversity": pairwise.unequal,
    "Kendall": lambda k: pairwise.kendall(math.isqrt(k), math.isqrt(k)),
    "AUC": lambda k: pairwise.auc(k // 2),
}
# the mean vector that is nearest to the estimated one among those of histograms
AFTERWARDS = ("consistent",)
BOUNDED = 32  # types up to which the program of the lower bound is solved


@functools.lru_cache(2)
def chosen(task, k, n, epsilon):
    """The statistic, and the choice with every setting as it comes."""
    statistic = STATISTICS[task](k)
    return statistic, queries.choose(statistic, n, epsilon)


def binned(task, k, most):
    """At most so many bins of neighbours, on each side of a grid, for either label: (bins, k)."""

    def side(types):
        return {"Kendall": math.isqrt(types), "AUC": types // 2}.get(task, types)

    b = min(side(k), max(2, side(most)))
    bins = peers.neighbours(side(k), b)
    if task == "Kendall":
        return f"{b} x {b} bins", np.kron(bins, bins)
    if task == "AUC":
        bins = np.kron(np.eye(2), bins)
    return f"{b} bins", bins


def published(cell):
    """(name, what is done that biases it, peer).

    As many bins as Bell et al. (2020) take for smooth kernels, n^(1/4) epsilon^(1/2).
    """
    statistic, _ = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    kernels = [statistic.kernel(form).cpu().numpy() for form in statistic.forms]
    offset = statistic.offset
    labels = np.arange(cell.k) // (cell.k // 2)
    for name, peer in peers.unbiased(kernels, offset, labels).items():
        yield name, "", peer
    for name, peer in peers.plug_ins(kernels, offset).items():
        yield name, "Norm-Sub", peer
    for name, bins in rule(cell):
        yield "randomized response", name, peers.randomized_response(kernels, offset, bins)


def rule(cell):
    """Bell et al. (2020): n^(1/4) epsilon^(1/2) bins, in words and (bins, k); none where these are
    all types.
    """
    if cell.task == "Gini diversity":
        return []
    most = round(cell.n**0.25 * cell.epsilon**0.5)
    name, bins = binned(cell.task, cell.k, most)
    return [(name, bins)] if len(bins) < cell.k else []


def methods(cell):
    """The chosen protocol, ours of least predicted error beside it, and the published ones."""
    statistic, choice = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    counts = cell.counts
    truth = statistic.exact(counts)
    generator = keyed_generator(cell.seed)
    rng = np.random.default_rng(list(cell.seed))
    kernel = statistic.kernel(statistic.form)
    limits = statistic.limits or (float(kernel.min()), float(kernel.max()))

    def squares(value):
        value = value.nan_to_num(statistic.offset)
        return {"": (value - truth).square(), "clipped": (value.clamp(*limits) - truth).square()}

    def ours(name, side, protocol: MessageRelease) -> Method:
        def draw(trials):
            tally = protocol.sample_tally(counts, generator=generator, sample_shape=(trials,))
            found = squares(protocol.analyse(tally).value)
            if side != "chosen":
                return found
            value = pairwise.consistent(protocol, tally, tol=1e-7).value
            found["consistent"] = squares(value)["clipped"]
            if isinstance(protocol.channel, LocalOracle):
                plausible = norm_sub(protocol.channel.shares(tally).cpu().numpy())
                found["Norm-Sub"] = squares(plugged(torch.as_tensor(plausible)))["clipped"]
            for words, bins, own in same_bins:
                held = (torch.as_tensor(bins) @ counts.double()).long()
                value = own.sample_estimate(held, generator=generator, sample_shape=(trials,)).value
                found[words] = squares(value)["clipped"]
            return found

        return Method(name, side, quietly(draw), error(protocol))

    def theirs(name, afterwards, peer: peers.Peer) -> Method:
        def draw(trials):
            asked = Asked(counts.cpu().numpy(), cell.epsilon, trials, rng)
            found = squares(torch.as_tensor(peer(asked)))
            return {afterwards: found["clipped"]} if afterwards else found

        return Method(name, "outside", draw)

    error = quietly(lambda protocol: math.sqrt(float(protocol.predicted_mse(counts))))

    def plugged(h):
        forms = [statistic.mean(h * cell.n, form) for form in statistic.forms]
        return forms[0] if len(forms) == 1 else statistic.offset + forms[0] / forms[1]

    first, *rest = choice.candidates
    same_bins = [(words, bins, quietly(alike)(cell, bins)) for words, bins in rule(cell)]
    second = min(rest, key=lambda one: error(one.protocol))
    found = [ours(first.name, "chosen", first.protocol), ours(second.name, "own", second.protocol)]
    return [*found, *(theirs(*each) for each in published(cell))], choice


def alike(cell, bins):
    """Chosen for the statistic on these bins, (bins, k)."""
    even = torch.as_tensor(bins / bins.sum(1, keepdims=True))
    if cell.task == "AUC":
        small = pairwise.auc(len(bins) // 2)
    else:
        statistic, _ = chosen(cell.task, cell.k, cell.n, cell.epsilon)
        small = pairwise.from_kernel(even @ statistic.kernel(statistic.form) @ even.mT)
    return queries.choose(small, cell.n, cell.epsilon).candidates[0].protocol


def quietly(call):
    """Without the warning that a class is rare: such cells are asked for."""

    def quiet(*arguments):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the denominator")
            return call(*arguments)

    return quiet


def bound(cell):
    """Least RMSE of all unbiased one-round protocols on such data, on average over users drawn
    alike.

    Of a ratio to first order; 0 where the first order vanishes.
    """
    statistic, _ = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    h = shares(cell.data, cell.k)
    simple = statistic.bound(cell.n, cell.epsilon, h)
    if cell.k > BOUNDED or statistic.denominator is not None or simple < 1e-9:
        return simple
    # to first order the statistic is twice the linear query f h
    query = statistic.kernel(statistic.form) @ h
    least = least_variance(query[None], cell.epsilon, h)
    return max(simple, math.sqrt(4 * least / cell.n))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/local_accuracy.py")
