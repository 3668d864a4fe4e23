"""What an adversary who sees the bits looks for: events that came often on one user's data and seldom on another's.

Low-order bits, holes of the support, tails, and single values. Source: Mironov (2012); Haney, Desfontaines, Hartman,
Shrestha, Hay (2022).
"""

import math

import torch
from scipy.stats import beta

SURE = 1e-9  # chance that a bound of a probability is wrong
TAILS, VALUES = 40, 4096


def certified(here, there, times, delta):
    """A lower bound of log((P(A) - delta)/P'(A)) from how often A came in so many releases of each."""
    low = beta.ppf(SURE, here, times - here + 1) if here else 0.0
    high = beta.ppf(1 - SURE, there + 1, times - there) if there < times else 1.0
    return math.log(max(low - delta, 1e-300) / high)


def events(one, two):
    """How often each event came: pairs (in one, in two). one, two: (times,), whole numbers or floats of one dtype."""
    bits = [each.view(torch.int64) if each.is_floating_point() else each for each in (one, two)]
    sizes = [each.double().abs() for each in (one, two)]
    middle = float(torch.cat(sizes).quantile(0.5)) or 1.0
    for a in range(-10, 4):  # |N| below some size, and a power of two divides its integer, or does not
        inside = [size < middle * 2.0**a for size in sizes]
        for b in range(9):
            even = [each & (1 << b) - 1 == 0 for each in bits]
            yield [int((i & e).sum()) for i, e in zip(inside, even, strict=True)]
            yield [int((i & ~e).sum()) for i, e in zip(inside, even, strict=True)]
    both = torch.cat([one, two]).double()
    for end in torch.unique(both[torch.linspace(0, len(both) - 1, TAILS).long()]):
        yield [int((each >= end).sum()) for each in (one, two)]
        yield [int((each < end).sum()) for each in (one, two)]
    values, which = torch.unique(torch.cat([one, two]), return_inverse=True)
    if len(values) <= VALUES:
        counts = [torch.bincount(part, minlength=len(values)).tolist() for part in which.split(len(one))]
        yield from (list(pair) for pair in zip(*counts, strict=True))


def strongest(one, two, delta=0.0):
    """The most certain log ratio of all events, either way round, in any column of (times,) or (times, columns)."""
    found, times = -math.inf, len(one)
    for first, second in zip(one.reshape(times, -1).mT, two.reshape(times, -1).mT, strict=True):
        pairs = {tuple(pair) for pair in events(first.contiguous(), second.contiguous())}
        likely = [pair for pair in pairs if max(pair) > 1]
        found = max([found, *(certified(*each, times, delta) for a, b in likely for each in ((a, b), (b, a)))])
    return found
