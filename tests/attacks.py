"""What an adversary who sees the bits looks for: events that came often on one user's data and
seldom on another's.

Low-order bits, holes of the support, tails, and single values. Source: Mironov (2012); Haney,
Desfontaines, Hartman, Shrestha, Hay (2022).
"""

import math

import numpy as np
import torch
from scipy.special import betaincinv

# chance that a bound of a probability is wrong
SURE = 1e-9
TAILS = 40
VALUES = 4096
# powers of two below which a number may lie; low-order bits
LEVELS = 20
BITS = 12


def certified(here, there, times, delta):
    """Lower bounds of log((P(A) - delta)/P'(A)) from how often each A came in so many releases of
    each.
    """
    low = np.where(
        here > 0,
        betaincinv(np.maximum(here, 1), times - here + 1, SURE),
        0.0,
    )
    high = np.where(
        there < times, betaincinv(there + 1, np.maximum(times - there, 1), 1 - SURE), 1.0
    )
    return np.log(np.maximum(low - delta, 1e-300) / high)


def events(one, two):
    """How often each event came, (events, 2). one, two: (times,), whole numbers or floats of one
    dtype.
    """
    both = torch.cat([one, two]).double()
    some = both[:: max(1, len(both) // TAILS)]
    ends = torch.unique(torch.cat([some, one.max()[None], two.max()[None], both.min()[None]]))
    middle = float(both.abs().median()) or 1.0
    found = []
    for each in (one, two):
        low = low_bits(each, middle)
        cells = torch.bucketize(each.double(), ends, right=True)
        tails = torch.bincount(cells, minlength=len(ends) + 1).cumsum(0)
        found.append(torch.cat([low, tails, len(each) - tails]))
    values = torch.unique(both[: 4 * VALUES])
    if len(values) <= VALUES:
        values, which = torch.unique(both, return_inverse=True)
        single = [torch.bincount(part, minlength=len(values)) for part in which.split(len(one))]
        found = [torch.cat(parts) for parts in zip(found, single, strict=True)]
    return torch.stack(found, 1)


def low_bits(numbers, middle):
    """How many lie below each power of two times ``middle`` and are, or are not, divisible by each
    power of two.
    """
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}.get(numbers.dtype)
    words = numbers if whole is None else numbers.view(whole).long()
    # a bit above all others: zero is divisible by every power of two
    bits = words | 1 << BITS
    lowest = (bits & -bits).double()
    zeros = lowest.log2().long()
    power = torch.frexp(numbers.double().abs() / middle).exponent
    size = (power + LEVELS - 4).clamp(0, LEVELS).long()
    shape = LEVELS + 1, BITS + 1
    cells = size * shape[1] + zeros
    table = torch.bincount(cells, minlength=math.prod(shape)).view(shape)
    inside = table.cumsum(0)
    backwards = inside.flip(1)
    divided = backwards.cumsum(1).flip(1)
    others = inside.sum(1, keepdim=True) - divided
    return torch.cat([divided.flatten(), others.flatten()])


def strongest(one, two, delta=0.0):
    """The most certain log ratio of all events, either way round, in any column of (times,) or
    (times, columns).
    """
    found = -math.inf
    times = len(one)
    for columns in zip(one.reshape(times, -1).mT, two.reshape(times, -1).mT, strict=True):
        counts = events(*(column.contiguous() for column in columns))
        pairs = np.unique(counts.numpy(), axis=0)
        likely = pairs[pairs.max(1) > 1]
        both = np.concatenate([likely, likely[:, ::-1]])
        ratios = certified(*both.T, times, delta)
        found = max([found, *ratios.tolist()])
    return found
