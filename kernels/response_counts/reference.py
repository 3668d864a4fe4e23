"""The specification of counted randomized response, in plain torch."""

import torch
from torch import Tensor

from torchdp.kernels import philox

USERS_AT_ONCE = 2**18


def report(number: Tensor, x: Tensor, k: int, step: int) -> Tensor:
    """floor(number / step) where that is below k, else x.

    Of 2^63 integers each value owns ``step``, x the rest.
    """
    value = number.div(step, rounding_mode="floor")
    return torch.where(value < k, value, x)


def numbers(key: int, first: int, n: int, device: torch.device | str = "cpu") -> Tensor:
    """The integers in [0, 2^63) of users first, ..., first + n - 1: (n,), int64."""
    # two users share one counter
    pairs = torch.arange(first // 2, (first + n + 1) // 2, device=device)
    a, b, c, d = philox.words(key, pairs)
    even = a << 31 | b >> 1
    odd = c << 31 | d >> 1
    return torch.stack([even, odd], -1).flatten()[first % 2 :][:n]


def counts(x: Tensor, k: int, step: int, key: int, first: int = 0) -> Tensor:
    """How many users report each value: (n,) integers -> (k,), int64.

    User j of these has the number first + j >= 0, and its report depends on that, on x[j] and on
    the key alone: groups of users add up. Who holds no value in [0, k) is not counted, so the
    counts sum to n if and only if all do. k >= 2; 1 <= step, (k - 1) step <= 2^63; key: 64 bits,
    see kernels/philox.
    """
    total = torch.zeros(k + 1, dtype=torch.int64, device=x.device)
    for part in x.split(USERS_AT_ONCE):
        held = part.to(torch.int64)
        reports = report(numbers(key, first, len(held), x.device), held, k, step)
        reports = torch.where((held >= 0) & (held < k), reports, k)
        total += torch.bincount(reports, minlength=k + 1)
        first += len(held)
    return total[:k]
