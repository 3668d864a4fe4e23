"""Exact draws from finite distributions, many at a time: packed bits, splits and subsets of crowds.

Bit j of a packed message is bit j % 64 of its word j // 64.
"""

import math

import torch
from torch import Tensor

from torchdp.draws import Draws

WORD = 64  # bits of an int64

# Digits of the probability that every word sees; later ones only words still undecided.
WHOLE_ROUNDS = 7

# Words that stay in a nearby cache.
CACHED = 2**15

# Binomials held in memory by one split of a crowd.
DRAWS_AT_ONCE = 2**24

# People that are missing from a subset: up to here they are picked one by one.
SINGLE = 4


def words_for(bits: int) -> int:
    """Words that hold this many bits."""
    return -(-bits // WORD)


def bernoulli_words(shape: tuple[int, ...], probability: float, draws: Draws) -> Tensor:
    """int64 words whose 64 bits are independent, each 1 with this probability.

    Exactly: a float is a dyadic number. A bit is 1 where a uniform number lies below the
    probability; their binary digits are compared from the first on, 64 numbers in one word, until
    every pair differs: about 8 random words for each word returned.
    """
    numerator, denominator = probability.as_integer_ratio()
    length = denominator.bit_length() - 1
    if numerator == denominator:
        return torch.full(shape, -1, dtype=torch.int64, device=draws.device)
    result = torch.zeros(shape, dtype=torch.int64, device=draws.device).flatten()
    words = result
    undecided = torch.full_like(result, -1)
    where = None  # of the words still at work; None: all, in place
    for place in range(length - 1, -1, -1):
        fresh = draws.words(tuple(words.shape))  # 1: the uniform number's digit is 0
        if (numerator >> place) & 1:
            fresh &= undecided
            words |= fresh
            undecided ^= fresh
        else:
            undecided &= fresh
        if length - place >= WHOLE_ROUNDS:
            left = undecided.nonzero()[:, 0]
            if where is None:
                where = left
            else:
                result[where] = words
                where = where[left]
            words = result[where]
            undecided = undecided[left]
            if not len(where):
                break
    if where is not None:
        result[where] = words
    # Undecided to the end: the number is not below the probability, and the bit stays 0.
    return result.view(shape)


def bernoulli(size: int, probability: float, draws: Draws) -> Tensor:
    """Independent bits, 1 with this probability, exactly: (size,), int64."""
    return unpack(bernoulli_words((words_for(size),), probability, draws))[:size]


def column_counts(words: Tensor) -> Tensor:
    """How many rows have each bit set: (n, words) packed -> (64 * words,), int64.

    The rows are added in pairs, bit-sliced: plane j holds digit j of 64 counts in each word.
    """
    if not len(words):
        return words.new_zeros(WORD * words.shape[-1])
    planes = [words]
    while len(planes[0]) > 1:
        if len(planes[0]) % 2:
            planes = [torch.nn.functional.pad(plane, (0, 0, 0, 1)) for plane in planes]
        half = len(planes[0]) // 2
        carry = torch.zeros_like(planes[0][:half])
        sums = []
        for plane in planes:  # a full adder of binary digits
            x = plane[:half]
            y = plane[half:]
            differ = x ^ y
            sums.append(differ ^ carry)
            carry = (x & y) | (differ & carry)
        planes = [*sums, carry]
    bits = torch.stack([unpack(plane[0]) for plane in planes])  # (digits, 64 * words)
    place = torch.arange(len(planes), device=words.device)
    return (bits << place[:, None]).sum(0)


def unpack(words: Tensor) -> Tensor:
    """(..., words) packed -> (..., 64 * words), int64 zeros and ones."""
    return ((words[..., None] >> torch.arange(WORD, device=words.device)) & 1).flatten(-2)


def popcount(words: Tensor) -> Tensor:
    """Number of set bits of each word."""
    # Counts in fields of 2, 4, 8 bits; the product then adds the eight bytes in the highest one.
    # It is at most 64: the sign bit stays clear, and the arithmetic shift is harmless.
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (words * 0x0101010101010101) >> 56


def halved(counts: Tensor, draws: Draws) -> Tensor:
    """Binomial(counts, 1/2), int64: for fewer than 64 coins those of one word."""
    flat = counts.reshape(-1)
    result = torch.empty_like(flat)
    for some, crowd in zip(result.split(CACHED), flat.split(CACHED), strict=True):
        # At most 63 coins: an int64 has no shift by 64. Larger crowds are drawn again below.
        coins = (1 << crowd.clamp_max(WORD - 1)) - 1
        heads = draws.words(tuple(crowd.shape)).bitwise_and_(coins)
        some.copy_(popcount(heads))
    large = (flat >= WORD).nonzero()[:, 0]
    result[large] = draws.binomial(flat[large], 0.5)
    return result.view(counts.shape)


def multinomial(counts: Tensor, laws: Tensor, draws: Draws) -> Tensor:
    """Outcomes of counts[..., x] draws from laws[x], summed over x: (*batch, m), int64.

    Each crowd is split into the two halves of its outcomes again and again. O(k m) binomials,
    whatever the counts.

    Args:
        counts: (*batch, k), int64.
        laws: chances of the m outcomes, up to a factor, (k, m).
        draws: of the splits.
    """
    m = laws.shape[-1]
    # Types that nobody holds cost no binomials.
    held = counts.reshape(-1, counts.shape[-1]).any(0)
    counts = counts[..., held]
    laws = laws[held]
    # A full binary tree of outcomes: those that pad it have no chance.
    padded = 1 << (m - 1).bit_length()
    levels = [torch.nn.functional.pad(laws.double(), (0, padded - m))]
    while levels[-1].shape[-1] > 1:
        levels.append(levels[-1].unflatten(-1, (-1, 2)).sum(-1))
    flat = counts.reshape(math.prod(counts.shape[:-1]), laws.shape[0])
    result = torch.zeros(len(flat), m, dtype=torch.int64, device=counts.device)
    at_once = max(1, DRAWS_AT_ONCE // max(1, levels[0].numel()))
    # Crowds of one row, (rows, k, blocks of outcomes).
    for crowds, out in zip(flat[..., None].split(at_once), result.split(at_once), strict=True):
        for level in reversed(levels[:-1]):
            left = level[..., 0::2]
            right = level[..., 1::2]
            # Exactly 1 where the right half is empty: nobody reaches an outcome of the padding.
            share = torch.where(right > 0, left / (left + right), 1.0)
            first = draws.binomial(crowds, share)
            crowds = torch.stack([first, crowds - first], -1).flatten(-2)
        torch.sum(crowds[..., :m], -2, out=out)
    return result.reshape(*counts.shape[:-1], m)


def without_replacement(crowds: Tensor, sizes: Tensor, draws: Draws) -> Tensor:
    """How many of each crowd are among ``sizes`` people picked from all without replacement.

    Binomial picks miss the size by about its root; the miss is made good in the same way, by picks
    from those left out or from those picked, and the last few one by one. A uniform subset of a
    uniform subset, or of the rest, is uniform: the distribution is exact.

    Args:
        crowds: (*batch, s), int64.
        sizes: (*batch,), int64.
        draws: of the picks.

    Returns: (*batch, s), int64.
    """
    picked = torch.zeros_like(crowds)
    while True:
        missing = sizes - picked.sum(-1)
        if not missing.any():
            return picked
        source = torch.where((missing > 0)[..., None], crowds - picked, picked)
        total = source.sum(-1)
        many = missing.abs() > SINGLE
        share = missing.abs() / total.clamp_min(1).double()
        share = torch.where(many, share, 0.0)
        some = draws.binomial(source, share[..., None])
        uniform = draws.uniform(tuple(total.shape))
        # The product may round up to the total, which is nobody.
        person = torch.minimum((uniform * total).long(), total - 1)
        crowd = torch.searchsorted(source.cumsum(-1), person[..., None], right=True)
        single = torch.zeros_like(source).scatter_(-1, crowd, 1)
        # The sign of 0 keeps those of the right size as they are.
        some = torch.where(many[..., None], some, single)
        picked = picked + missing.sign()[..., None] * some
