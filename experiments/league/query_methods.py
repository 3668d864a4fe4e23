"""Linear queries: the chosen mechanism, others of ours, and published protocols."""

import functools
import math

import frequency_peers as peers
import numpy as np
import torch
from contest import Method, shares
from least_variance import least_variance
from torch import Tensor

from torchdp import workloads
from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.protocol import Objective
from torchdp.queries import LocalOracle, choose, lower_bound
from torchdp.queries.protocol import Channel
from torchdp.randomizers import ShiftStrategy, StrategyMatrix
from torchdp.randomness import keyed_generator

WORKLOADS = {
    "histogram": workloads.identity,
    "prefix": workloads.prefix,
    "ranges": workloads.all_ranges,
    "parities": lambda k: workloads.parities(k.bit_length() - 1, 2),
    "marginals": lambda k: workloads.marginal_tables(k.bit_length() - 1, 2),
}
AFTERWARDS = ("consistent", "")  # what is done to our answers; nothing beyond ``CONSISTENT`` types
CONSISTENT = 1024
BOUNDED = 32  # types up to which the program of the lower bound is solved
# types up to which all answers are made consistent and the optimiser of McKenna et al. is run
OPTIMISED = 64
DRAWN = 2**24  # outputs times types
LARGE = 256  # types beyond which the slowest peer is left out


@functools.lru_cache(2)
def chosen(task, k, n, epsilon):
    """The workload, and the choice with every setting as it comes."""
    W = WORKLOADS[task](k).dense()
    return W, choose(W, n, epsilon, objective=Objective.MEAN)


@functools.lru_cache(2)
def mckenna(task, k, epsilon):
    """From random rows, 4k outputs, for the mean over queries and types; by our descent, which ends
    below theirs.
    """
    W = WORKLOADS[task](k).dense()
    generator = keyed_generator(b"random rows")
    return StrategyMatrix.tuned(W, epsilon, torch.ones(k), generator=generator)


def published(cell) -> dict[str, peers.Peer]:
    found = dict(peers.HISTOGRAMS)
    if cell.k <= LARGE:
        found |= peers.SMALL_HISTOGRAMS
    if cell.task in ("prefix", "ranges"):
        found |= peers.RANGES
    if cell.task in ("parities", "marginals"):
        found["InpHT"] = peers.fourier(2)
    return found


def methods(cell):
    """The chosen mechanism, ours of least predicted error beside it on these data, and the
    published ones.
    """
    W, choice = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    counts = cell.counts
    truth = counts.double() @ W.mT / cell.n
    generator = keyed_generator(cell.seed)
    rng = np.random.default_rng(list(cell.seed))

    def squares(answers, histogram: Tensor | None, ours):
        found = {"": answers}
        if histogram is not None:
            for name, mend in peers.AFTERWARDS.items():
                found[name] = torch.as_tensor(mend(histogram.cpu().numpy())) @ W.mT
        if cell.k <= (CONSISTENT if ours else OPTIMISED):
            found["consistent"] = consistent(W, answers)
        return {name: (each - truth).square().mean(-1) for name, each in found.items()}

    def ours(name, side, protocol: Channel) -> Method:
        def draw(trials):
            tally = protocol.sample_tally(counts, generator=generator, sample_shape=(trials,))
            return squares(
                protocol.analyse(tally).value, decoded(protocol, tally), side == "chosen"
            )

        return Method(name, side, draw, error(protocol))

    def theirs(name, peer: peers.Peer) -> Method:
        def draw(trials):
            asked = peers.Asked(counts.cpu().numpy(), cell.epsilon, trials, rng)
            histogram = torch.as_tensor(peer(asked))
            return squares(histogram @ W.mT, histogram, False)

        return Method(name, "outside", draw)

    def error(protocol: Channel):
        return math.sqrt(float(protocol.predicted_mse(counts).mean()))

    first, *rest = choice.candidates
    second = min(
        (one for one in rest if drawable(one.protocol)), key=lambda one: error(one.protocol)
    )
    found = [ours(first.name, "chosen", first.protocol), ours(second.name, "own", second.protocol)]
    found += [theirs(name, peer) for name, peer in published(cell).items()]
    if cell.k <= OPTIMISED:
        optimised = LocalOracle(W, mckenna(cell.task, cell.k, cell.epsilon))
        found.append(ours("McKenna et al. 2020", "outside", optimised))
    return found, choice


def consistent(W, answers):
    """The nearest answers that some histogram gives."""
    middle = W.mean(1)
    W = W - middle[:, None]
    tol = 1e-7 * float(W.abs().max() ** 2) * len(W)
    h, _ = nearest_histogram(W.mT @ W, (answers - middle) @ W, tol)
    return h @ W.mT + middle


def drawable(protocol: Channel):
    """Not shifts of very many types: each output is drawn for each of these."""
    client = getattr(protocol, "client", None)
    return not isinstance(client, ShiftStrategy) or client.outputs * client.k < DRAWN


def decoded(protocol: Channel, tally):
    """Shares of the types, unbiased where the reports tell all types apart, else the smallest that
    fit.
    """
    if not isinstance(protocol, LocalOracle):
        return None
    client = protocol.client
    if isinstance(client, StrategyMatrix):
        return tally["reports"].double() @ client.inverse.mT / tally.n
    return client.totals(tally) / tally.n


def bound(cell):
    """Least RMSE of all unbiased local protocols on such data, on average over users drawn
    alike.
    """
    W, _ = chosen(cell.task, cell.k, cell.n, cell.epsilon)
    h = shares(cell.data, cell.k)
    simple = lower_bound(W, cell.n, cell.epsilon, prior=h)
    if cell.k > BOUNDED:
        return simple
    return max(simple, math.sqrt(least_variance(W, cell.epsilon, h) / cell.n))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/local_accuracy.py")
