"""Published local protocols for means over pairs of users, as their authors state them.

Each is ``peer(asked) -> (trials,)``, the mean of f over pairs i != j, or for a ratio the mean of f
over that of g. f, g: symmetric (k, k), each of one value on its diagonal.
"""

import math
from dataclasses import replace

import frequency_peers as frequency
import numpy as np
import torch
from frequency_peers import Peer

from torchdp.factorization import factorize
from torchdp.protocol import Crowd
from torchdp.randomizers import PrivUnit


def divided(above, below, otherwise):
    return np.divide(above, below, out=np.full(len(above), otherwise), where=below != 0)


def over(peers: list[Peer], offset):
    """The first over the second; estimates of a denominator that is 0 count as one half."""

    def peer(asked):
        half = replace(asked, epsilon=asked.epsilon / 2)
        return offset + divided(*(each(half) for each in peers), 0.5 - offset)

    return peer


def all_pairs(shares, f):
    return ((shares @ f) * shares).sum(-1)


def randomized_response(kernels, offset, bins):
    """Bell, Bellet, Gascon, Kulkarni (2020), Algorithm 1: bins, k-RR, pairs of decoded reports.

    bins: (bins, k), which types a bin holds; the kernels' means over them stand for the types.
    """
    even = bins / bins.sum(1, keepdims=True)
    small = [even @ f @ even.T for f in kernels]

    def peer(asked):
        n = asked.n
        b = len(bins)
        q = 1 / (asked.growth + b - 1)
        gain = 1 - b * q
        counts = (bins @ asked.counts).astype(np.int64)
        shares = frequency.direct(replace(asked, counts=counts))
        reports = (shares * gain + q) * n
        found = []
        for f in small:
            # of a report with itself
            own = (np.diag(f) - 2 * q * f.sum(1) + q * q * f.sum()) / gain**2
            found.append((n * n * all_pairs(shares, f) - reports @ own) / (n * (n - 1)))
        return found[0] if len(found) == 1 else offset + found[0] / found[1]

    return peer


def plug_in(kernels: list[np.ndarray], offset, histogram: Peer):
    """The statistic of a histogram that a frequency oracle and Norm-Sub give: what one does with a
    package of them.
    """

    def peer(asked):
        n = asked.n
        shares = frequency.norm_sub(histogram(asked))
        found = [(n * all_pairs(shares, f) - f[0, 0]) / (n - 1) for f in kernels]
        return found[0] if len(found) == 1 else offset + divided(*found, 0.0)

    return peer


def two_messages(f):
    """Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11: W = L^T R, a noisy column of each
    at epsilon/2.

    Their randomizer of vectors is any; this one has less variance than those that they cite.
    """
    factors = factorize(torch.from_numpy(f), math.inf, tol=1e-3)
    sides = [factors.left.contiguous(), factors.right.mT.contiguous()]  # (k, r) each

    def peer(asked):
        n = asked.n
        sums = []
        for points in sides:
            radius = float(points.norm(dim=1).max()) * (1 + 1e-12)
            client = PrivUnit(points.shape[1], asked.epsilon / 2, radius)
            crowd = Crowd(points, torch.from_numpy(asked.counts))
            generator = asked.generator()
            tally = client.sample_tally(crowd, generator=generator, sample_shape=(asked.trials,))
            sums.append(tally["sum"].numpy())
        return ((sums[0] * sums[1]).sum(-1) / n - f[0, 0]) / (n - 1)

    return peer


def class_sizes(labels):
    """Share of pairs of unlike labels (times 1/2, as the AUC's denominator) by Warner's randomized
    response.
    """

    def peer(asked):
        held = np.bincount(labels, asked.counts, 2).astype(np.int64)
        positive = frequency.direct(replace(asked, counts=held))[:, 1]
        return asked.n / (asked.n - 1) * positive * (1 - positive)

    return peer


def neighbours(k, bins):
    """k types in so many bins of neighbours: (bins, k)."""
    return (np.arange(bins)[:, None] == np.arange(k) * bins // k).astype(float)


def unbiased(kernels: list[np.ndarray], offset, labels):
    """By name; unbiased for a mean. labels: of the types, for a ratio."""
    two = two_messages(kernels[0])
    return {
        "randomized response": randomized_response(kernels, offset, np.eye(len(labels))),
        "two messages": two if len(kernels) == 1 else over([two, class_sizes(labels)], offset),
    }


def plug_ins(kernels: list[np.ndarray], offset):
    """By the name of the frequency oracle."""
    oracles = {"OUE": frequency.optimized_unary, "subset selection": frequency.subset_selection}
    return {name: plug_in(kernels, offset, oracle) for name, oracle in oracles.items()}


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/local_accuracy.py")
