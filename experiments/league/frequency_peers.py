"""Published local protocols for histograms and ranges, as their authors state them: unbiased shares
of k types.

Each function draws the reports of the users that it is asked about, in distribution and without a
message for each user, and decodes them: ``peer(asked) -> (trials, k)``. Answers to a workload are
then products with these shares, as the authors' packages leave them (pure-ldp, multi-freq-ldpy).
Nothing here is imported from torchdp but the sums of random subsets, whose distribution is that of
the messages.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.linalg import hadamard

from torchdp.randomizers import SubsetSelection


@dataclass(frozen=True)
class Asked:
    """counts (k,): users of each type; so many trials of all their reports at epsilon, drawn by
    rng.
    """

    counts: np.ndarray
    epsilon: float
    trials: int
    rng: np.random.Generator

    @property
    def k(self):
        return len(self.counts)

    @property
    def n(self):
        return int(self.counts.sum())

    @property
    def growth(self):
        return math.exp(self.epsilon)

    @property
    def flip(self):
        """Of one bit by randomized response."""
        return 1 / (1 + self.growth)

    def generator(self):
        return torch.Generator().manual_seed(int(self.rng.integers(2**62)))

    def levels(self, fan_out, height):
        """Users of each node of a tree, (trials, fan_out^level) from the root's children on: one
        level a user.
        """
        leaves = np.pad(self.counts, (0, fan_out**height - self.k))
        chances = np.full(height, 1 / height)
        split = self.rng.multinomial(leaves, chances, (self.trials, len(leaves)))
        nodes = []
        for level in range(height):
            own = split[:, :, level].reshape(self.trials, fan_out ** (level + 1), -1)
            nodes.append(own.sum(-1))
        return nodes


Peer = Callable[[Asked], np.ndarray]


def direct(asked):
    """k-RR (Warner 1965; Kairouz, Oh, Viswanath 2014): e^epsilon times likelier one's own type."""
    k = asked.k
    n = asked.n
    q = 1 / (asked.growth + k - 1)
    kept = asked.rng.binomial(asked.counts, 1 - k * q, (asked.trials, k))
    # the others' reports are uniform over all types
    uniform = asked.rng.multinomial(n - kept.sum(1), np.full(k, 1 / k))
    return ((kept + uniform) / n - q) / (1 - k * q)


def _bits(asked, own, other):
    """From how many reports support each type: its users' with chance own, others' with other."""
    counts = asked.counts
    n = asked.n
    shape = (asked.trials, asked.k)
    support = asked.rng.binomial(counts, own, shape) + asked.rng.binomial(n - counts, other, shape)
    return (support / n - other) / (own - other)


def optimized_unary(asked):
    """OUE (Wang, Blocki, Li, Jha 2017): a bit for each type, kept with chance 1/2, set with
    1/(e^epsilon + 1).
    """
    return _bits(asked, 0.5, asked.flip)


def symmetric_unary(asked):
    """SUE, basic RAPPOR (Erlingsson, Pihur, Korolova 2014): each bit by randomized response at
    epsilon/2.
    """
    own = 1 / (1 + math.exp(-asked.epsilon / 2))
    return _bits(asked, own, 1 - own)


def local_hashing(asked):
    """OLH (Wang et al. 2017): randomized response on a hash to g = round(e^epsilon) + 1 values, a
    fresh one a user.
    """
    g = round(asked.growth) + 1
    return _bits(asked, asked.growth / (asked.growth + g - 1), 1 / g)


def hadamard_response(asked):
    """HR (Acharya, Sun, Zhang 2019, any epsilon): B blocks of a Hadamard matrix of order b, two
    rows never alike.
    """
    k = asked.k
    n = asked.n
    rng = asked.rng
    growth = asked.growth
    types = np.arange(k)
    blocks = 2 ** max(0, math.ceil(math.log2(min(growth, 2 * k))) - 1)
    order = 2 ** math.ceil(math.log2(math.ceil(k / blocks) + 1))
    half = order // 2
    outputs = blocks * order
    block = types % blocks
    # row of a type in its block, never the constant one
    signs = hadamard(order)[types // blocks + 1]
    inside = np.nonzero(signs > 0)[1].reshape(k, half) + (block * order)[:, None]
    total = half * growth + outputs - half
    shares = np.empty((asked.trials, k))
    for trial in range(asked.trials):
        own = rng.binomial(asked.counts, half * (growth - 1) / total)
        reports = rng.multinomial(n - own.sum(), np.full(outputs, 1 / outputs))
        np.add.at(reports, inside, rng.multinomial(own, np.full(half, 1 / half)))
        of_block = reports.reshape(blocks, order).sum(1)[block]
        shares[trial] = (reports[inside].sum(1) - of_block / 2) / n
    return shares * 2 * total / (half * (growth - 1))


def subset_selection(asked):
    """Ye, Barg (2018): a set of about k/(e^epsilon + 1) types, likelier one that holds the user's
    own.
    """
    oracle = SubsetSelection(asked.k, asked.epsilon)
    counts = torch.from_numpy(asked.counts)
    generator = asked.generator()
    tally = oracle.sample_tally(counts, generator=generator, sample_shape=(asked.trials,))
    reports = tally["reports"].numpy()
    w = oracle.subset
    likelier = w * asked.growth
    own = likelier / (likelier + asked.k - w)
    other = (w - own) / (asked.k - 1)
    return (reports / asked.n - other) / (own - other)


def tree(fan_out):
    """HH_B with OUE and consistency: one level of a tree a user, best linear unbiased nodes.

    Cormode, Kulkarni, Srivastava (2019), section 4; Hay, Rastogi, Miklau, Suciu (2010), section 4,
    for consistency.
    """

    def peer(asked):
        height = max(1, math.ceil(round(math.log(asked.k, fan_out), 9)))
        nodes = []
        for level in asked.levels(fan_out, height):
            trials = [optimized_unary(replace(asked, counts=own, trials=1)) for own in level]
            nodes.append(np.concatenate(trials))
        return consistent_tree(nodes, fan_out)[:, : asked.k]

    return peer


def consistent_tree(levels: list[np.ndarray], fan_out):
    """Leaves of the tree nearest to these nodes (trials, fan_out^level), all of one variance, with
    root 1.
    """
    up = [levels[-1]]
    for height, own in enumerate(reversed(levels[:-1]), 2):
        below = up[-1].reshape(len(own), -1, fan_out).sum(-1)
        size = float(fan_out) ** height
        # the weight by variance of a node's own estimate beside the sum of its children
        share = (size - size / fan_out) / (size - 1)
        up.append(share * own + (1 - share) * below)
    best = np.ones((len(levels[0]), 1))
    for own in reversed(up):
        children = own.reshape(len(own), -1, fan_out)
        missing = best - children.sum(-1)
        best = (children + missing[:, :, None] / fan_out).reshape(len(own), -1)
    return best


def haar(asked):
    """DJW-wavelet, HaarHRR: one level of Haar coefficients a user, one Hadamard coefficient of them
    by one bit.

    Cormode, Kulkarni, Srivastava (2019), section 5.
    """
    shares = np.ones((asked.trials, 1))
    for held in asked.levels(2, max(1, math.ceil(math.log2(asked.k)))):
        detail = np.stack([_signed(trial.reshape(-1, 2), asked) for trial in held])
        halves = np.stack([(shares + detail) / 2, (shares - detail) / 2], -1)
        shares = halves.reshape(asked.trials, -1)
    return shares[:, : asked.k]


def _signed(held, asked):
    """Left less right share of each node, (nodes,), from one bit of each user, held (nodes, 2), by
    HRR.
    """
    nodes = len(held)
    n = max(1, int(held.sum()))
    signs = hadamard(nodes)
    sums = np.zeros(nodes)
    for side, sign in ((0, 1), (1, -1)):
        # (nodes, coefficients)
        bits = asked.rng.multinomial(held[:, side], np.full(nodes, 1 / nodes))
        wrong = asked.rng.binomial(bits, asked.flip)
        sums += (sign * signs * (bits - 2 * wrong)).sum(0)
    return signs @ sums / (n * (1 - 2 * asked.flip))


def fourier(order):
    """InpHT (Cormode, Kulkarni, Srivastava 2018): one parity of at most ``order`` bits a user, by
    one bit.

    The other coefficients are put at 0: right for parities and marginals up to that order.
    """

    def peer(asked):
        sizes = np.array([each.bit_count() for each in range(asked.k)])
        sets = np.nonzero((sizes > 0) & (sizes <= order))[0]
        signs = hadamard(asked.k)[sets]  # (sets, k)
        shares = np.empty((asked.trials, asked.k))
        chances = np.full(len(sets), 1 / len(sets))
        flip = asked.flip
        for trial in range(asked.trials):
            users = asked.rng.multinomial(asked.counts, chances).T  # (sets, k)
            total = users.sum(1)
            positive = np.where(signs > 0, users, 0).sum(1)
            kept = asked.rng.binomial(positive, 1 - flip)
            flipped = asked.rng.binomial(total - positive, flip)
            means = (2 * (kept + flipped) / np.maximum(total, 1) - 1) / (1 - 2 * flip)
            shares[trial] = (1 + means @ signs) / asked.k
        return shares

    return peer


def norm_sub(shares):
    """The nearest histogram: one number off every share, then those below 0 cut off
    (Wang et al. 2020, Norm-Sub).
    """
    falling = -np.sort(-shares, axis=-1)
    excess = (falling.cumsum(-1) - 1) / np.arange(1, shares.shape[-1] + 1)
    last = (falling > excess).sum(-1, keepdims=True) - 1
    return np.maximum(shares - np.take_along_axis(excess, last, -1), 0)


def clipped(shares):
    """Shares below 0 put at 0 (Base-Pos)."""
    return np.maximum(shares, 0)


HISTOGRAMS: dict[str, Peer] = {
    "k-RR": direct,
    "OUE": optimized_unary,
    "SUE": symmetric_unary,
    "OLH": local_hashing,
    "subset selection": subset_selection,
}
SMALL_HISTOGRAMS: dict[str, Peer] = {"Hadamard response": hadamard_response}
RANGES: dict[str, Peer] = {"HH_2": tree(2), "HH_4": tree(4), "HH_8": tree(8), "HaarHRR": haar}
AFTERWARDS = {"norm-sub": norm_sub, "clipped": clipped}


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/league/local_accuracy.py")
