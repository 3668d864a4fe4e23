"""Published local protocols for histograms and ranges, as their authors state them: unbiased shares of k types.

Each function draws the reports of users with these counts, in law and without a message for each user, and decodes
them: ``peer(counts (k,), epsilon, trials, rng) -> (trials, k)``. Answers to a workload are then products with these
shares, as the authors' packages leave them (pure-ldp, multi-freq-ldpy). Nothing here is imported from torchdp but the
sums of random subsets, whose law is that of the messages.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import hadamard

from torchdp.randomizers import SubsetSelection

Peer = Callable[[np.ndarray, float, int, np.random.Generator], np.ndarray]


def direct(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """k-RR (Warner 1965; Kairouz, Oh, Viswanath 2014): one's own type with e^epsilon times the chance of another."""
    k, n = len(counts), counts.sum()
    q = 1 / (math.exp(epsilon) + k - 1)
    kept = rng.binomial(counts, 1 - k * q, (trials, k))  # the others' reports are uniform over all types
    reports = kept + rng.multinomial(n - kept.sum(1), np.full(k, 1 / k))
    return (reports / n - q) / (1 - k * q)


def _bits(counts: np.ndarray, own: float, other: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """How many reports support each type, supported by its own users with chance own, by others with ``other``."""
    n, shape = counts.sum(), (trials, len(counts))
    support = rng.binomial(counts, own, shape) + rng.binomial(n - counts, other, shape)
    return (support / n - other) / (own - other)


def optimized_unary(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """OUE (Wang, Blocki, Li, Jha 2017): a bit for each type, kept with chance 1/2, set with 1/(e^epsilon + 1)."""
    return _bits(counts, 0.5, 1 / (math.exp(epsilon) + 1), trials, rng)


def symmetric_unary(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """SUE, basic RAPPOR (Erlingsson, Pihur, Korolova 2014): each bit by randomized response at epsilon/2."""
    own = 1 / (1 + math.exp(-epsilon / 2))
    return _bits(counts, own, 1 - own, trials, rng)


def local_hashing(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """OLH (Wang et al. 2017): randomized response on a hash to g = round(e^epsilon) + 1 values, a fresh one a user."""
    g = round(math.exp(epsilon)) + 1
    return _bits(counts, math.exp(epsilon) / (math.exp(epsilon) + g - 1), 1 / g, trials, rng)


def hadamard_response(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """HR (Acharya, Sun, Zhang 2019, any epsilon): B blocks of a Hadamard matrix of order b, two rows never alike."""
    k, n, growth = len(counts), int(counts.sum()), math.exp(epsilon)
    blocks = 2 ** max(0, math.ceil(math.log2(min(growth, 2 * k))) - 1)
    order = 2 ** math.ceil(math.log2(math.ceil(k / blocks) + 1))
    half = order // 2
    signs = hadamard(order)[np.arange(k) // blocks + 1]  # row of a type in its block, never the constant one
    inside = np.nonzero(signs > 0)[1].reshape(k, half) + (np.arange(k) % blocks * order)[:, None]
    total = half * growth + blocks * order - half
    shares = np.empty((trials, k))
    for each in range(trials):
        own = rng.binomial(counts, half * (growth - 1) / total)
        seen = rng.multinomial(n - own.sum(), np.full(blocks * order, 1 / (blocks * order)))
        drawn = rng.multinomial(own, np.full(half, 1 / half))
        np.add.at(seen, inside.ravel(), drawn.ravel())
        block = seen.reshape(blocks, order).sum(1)[np.arange(k) % blocks]
        shares[each] = (seen[inside].sum(1) - block / 2) / n
    return shares * 2 * total / (half * (growth - 1))


def subset_selection(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """Ye, Barg (2018): a set of about k/(e^epsilon + 1) types, likelier one that holds the user's own."""
    oracle = SubsetSelection(len(counts), epsilon)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    tally = oracle.sample_tally(torch.from_numpy(counts), generator=generator, sample_shape=(trials,))
    n, k, w = counts.sum(), len(counts), oracle.subset
    own = w * math.exp(epsilon) / (w * math.exp(epsilon) + k - w)
    other = (w - own) / (k - 1)
    return (tally["reports"].numpy() / n - other) / (own - other)


def tree(fan_out: int) -> Peer:
    """HH_B with OUE and consistency: one level of a tree a user, best linear unbiased nodes.

    Cormode, Kulkarni, Srivastava (2019), section 4; Hay, Rastogi, Miklau, Suciu (2010), section 4, for consistency.
    """

    def peer(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
        k, height = len(counts), max(1, math.ceil(round(math.log(len(counts), fan_out), 9)))
        leaves = np.pad(counts, (0, fan_out**height - k))
        split = rng.multinomial(leaves, np.full(height, 1 / height), (trials, len(leaves)))
        levels = []  # from the root's children to the leaves
        for level in range(1, height + 1):
            held = split[:, :, level - 1].reshape(trials, fan_out**level, -1).sum(-1)
            levels.append(np.stack([optimized_unary(each, epsilon, 1, rng)[0] for each in held]))
        return consistent_tree(levels, fan_out)[:, :k]

    return peer


def consistent_tree(levels: list[np.ndarray], fan_out: int) -> np.ndarray:
    """Leaves of the tree nearest to these nodes (trials, fan_out^level), all of one variance, with root 1."""
    up = [levels[-1]]
    for height, own in enumerate(reversed(levels[:-1]), 2):
        below, size = up[-1].reshape(len(own), -1, fan_out).sum(-1), float(fan_out) ** height
        share = (size - size / fan_out) / (size - 1)
        up.append(share * own + (1 - share) * below)
    best = np.ones((len(levels[0]), 1))
    for own in reversed(up):
        children = own.reshape(len(own), -1, fan_out)
        best = (children + (best - children.sum(-1))[:, :, None] / fan_out).reshape(len(own), -1)
    return best


def haar(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
    """DJW-wavelet, HaarHRR: one level of Haar coefficients a user, one Hadamard coefficient of them by one bit.

    Cormode, Kulkarni, Srivastava (2019), section 5.
    """
    k, height = len(counts), max(1, math.ceil(math.log2(len(counts))))
    leaves = np.pad(counts, (0, 2**height - k))
    flip = 1 / (1 + math.exp(epsilon))
    shares = np.ones((trials, 1))
    split = rng.multinomial(leaves, np.full(height, 1 / height), (trials, len(leaves)))
    for level in range(height):
        held = split[:, :, level].reshape(trials, 2 ** (level + 1), -1).sum(-1)
        detail = np.stack([_signed(each.reshape(-1, 2), flip, rng) for each in held])
        shares = np.stack([(shares + detail) / 2, (shares - detail) / 2], -1).reshape(trials, -1)
    return shares[:, :k]


def _signed(held: np.ndarray, flip: float, rng: np.random.Generator) -> np.ndarray:
    """Left less right share of each node, (nodes,), from one bit of each user, held (nodes, 2), by HRR."""
    nodes, n = len(held), max(1, int(held.sum()))
    signs, sums = hadamard(nodes), np.zeros(nodes)
    for side, sign in ((0, 1), (1, -1)):
        asked = rng.multinomial(held[:, side], np.full(nodes, 1 / nodes))  # (nodes, coefficients)
        wrong = rng.binomial(asked, flip)
        sums += (sign * signs * (asked - 2 * wrong)).sum(0)
    return signs @ sums / (n * (1 - 2 * flip))


def fourier(order: int) -> Peer:
    """InpHT (Cormode, Kulkarni, Srivastava 2018): one parity of at most ``order`` bits a user, by one bit.

    The other coefficients are put at 0: right for parities and marginals up to that order.
    """

    def peer(counts: np.ndarray, epsilon: float, trials: int, rng: np.random.Generator) -> np.ndarray:
        k = len(counts)
        sizes = np.array([each.bit_count() for each in range(k)])
        sets = np.nonzero((sizes > 0) & (sizes <= order))[0]
        signs = hadamard(k)[sets]  # (sets, k)
        flip, shares = 1 / (1 + math.exp(epsilon)), np.empty((trials, k))
        for each in range(trials):
            asked = rng.multinomial(counts, np.full(len(sets), 1 / len(sets))).T  # (sets, k)
            positive = np.where(signs > 0, asked, 0).sum(1)
            total = asked.sum(1)
            said = rng.binomial(positive, 1 - flip) + rng.binomial(total - positive, flip)
            means = (2 * said / np.maximum(total, 1) - 1) / (1 - 2 * flip)
            shares[each] = (1 + means @ signs) / k
        return shares

    return peer


def norm_sub(shares: np.ndarray) -> np.ndarray:
    """The nearest histogram: one number off every share, then those below 0 cut off (Wang et al. 2020, Norm-Sub)."""
    falling = -np.sort(-shares, axis=-1)
    excess = (falling.cumsum(-1) - 1) / np.arange(1, shares.shape[-1] + 1)
    last = (falling > excess).sum(-1, keepdims=True) - 1
    return np.maximum(shares - np.take_along_axis(excess, last, -1), 0)


def clipped(shares: np.ndarray) -> np.ndarray:
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
