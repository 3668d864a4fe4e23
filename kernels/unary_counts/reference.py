"""The specification of counted unary encodings, in plain torch."""

import torch
from torch import Tensor

from torchdp.kernels import philox

# users in one word
LANES = 32
# words of one counter
DIGITS = 4
BITS_AT_ONCE = 2**20


def ratio(probability: float) -> tuple[int, int]:
    """(numerator, digits): probability = numerator / 2^digits, exactly.

    digits: a multiple of 4; 0 for the probabilities 0 and 1.
    """
    numerator, denominator = probability.as_integer_ratio()
    digits = denominator.bit_length() - 1
    padding = -digits % DIGITS
    return numerator << padding, digits + padding


def words(key: int, group: Tensor, column: Tensor, probability: float) -> Tensor:
    """32 independent bits, each 1 with this probability: of users 32 group + lane, by lanes.

    Lane l of word j of the counter (group, column, stream s) is the binary digit number 4 s + j of
    a uniform number of [0, 1); 1 stands for the digit 0. The bit is 1 where the uniform number is
    below the probability. group, column: int64, broadcast. Returns int64 in [0, 2^32).
    """
    numerator, digits = ratio(probability)
    group, column = torch.broadcast_tensors(group, column)
    undecided = torch.full_like(group, philox.reference.MASK)
    if digits == 0:
        return undecided * numerator
    result = torch.zeros_like(group)
    for place in range(0, digits, DIGITS):
        for j, fresh in enumerate(philox.words(key, group, column, place // DIGITS)):
            if numerator >> (digits - 1 - place - j) & 1:
                result |= undecided & fresh
                undecided = undecided & ~fresh
            else:
                undecided = undecided & fresh
        if not undecided.any():
            break
    return result


def messages(x: Tensor, k: int, lost: float, off: float, key: int, first: int) -> Tensor:
    """The users' bits: (n,) int64 -> (n, k), int64."""
    end = first + len(x)
    user = torch.arange(first, end, device=x.device)
    group = torch.arange(first // LANES, (end + LANES - 1) // LANES, device=x.device)
    lane = torch.arange(LANES, device=x.device)
    column = torch.arange(k, device=x.device)
    drawn = words(key, group[:, None], column, off)
    others = drawn[:, None] >> lane[:, None] & 1  # (groups, 32, k)
    others = others.flatten(0, 1)[first % LANES :][: len(x)]
    # column k of the counters is of the users' own bits
    own = ~words(key, user // LANES, torch.full_like(user, k), lost) >> user % LANES & 1
    return torch.where(column == x[:, None], own[:, None], others)


def tally(x: Tensor, k: int, lost: float, off: float, key: int, first: int = 0) -> Tensor:
    """How many users set each bit, and the users: (n,) integers -> (k + 1,), int64.

    User j of these has the number first + j >= 0; bit x[j] of its message is 0 with probability
    ``lost``, the others are 1 with probability ``off``. A message depends on that number, on x[j]
    and on the key alone: groups of users add up. Users are counted if they hold a value in [0, k),
    so the last entry is n if and only if all do. k >= 2; lost, off in [0, 1]; key: 64 bits, see
    kernels/philox.
    """
    total = torch.zeros(k + 1, dtype=torch.int64, device=x.device)
    for part in x.split(max(1, BITS_AT_ONCE // k)):
        held = part.to(torch.int64)
        total[:k] += messages(held, k, lost, off, key, first).sum(0)
        total[k] += ((held >= 0) & (held < k)).sum()
        first += len(held)
    return total
