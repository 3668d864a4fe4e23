"""How many users of each class round a random wave of their vector to a one: the features never reach memory."""

import torch
from torch import Tensor

from torchdp.kernels.dispatch import Kernel, cases
from torchdp.kernels.rounded_features import reference

__all__ = ["positive_counts", "rounded_counts"]

BITS_AT_ONCE = 2**22


def rounded_counts(
    x: Tensor,
    frequencies: Tensor,
    phases: Tensor,
    labels: Tensor,
    classes: int,
    *,
    key: int,
    first: int = 0,
    repeats: int = 1,
) -> Tensor:
    """Ones among bits that are one with probability (1 + cos 2 pi t)/2, t = <w_i, x> + b_wi turns.

    x: (n, d) float32; frequencies w, in turns for each unit of length: (d, I); phases b, in turns: (waves, I), as
    many waves of each frequency; labels: (n,) int64 in [0, classes). Returns (repeats, classes, I waves) int64, number
    i waves + w in the last place. A bit is a function of (key, first + the user's row, its number, its repeat) and of
    t, so that parts of the users add up. The chance of a one is off by less than 2^-32, given the float32 cosine.
    """
    return ROUNDED(x.device, x, frequencies, phases, labels, classes, key, first, repeats)


def positive_counts(x: Tensor, frequencies: Tensor, phases: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How many users of each class have cos 2 pi t > 0: arguments as above -> (classes, I waves) int64."""
    return POSITIVE(x.device, x, frequencies, phases, labels, classes)


def _rounded(
    x: Tensor,
    frequencies: Tensor,
    phases: Tensor,
    labels: Tensor,
    classes: int,
    key: int,
    first: int,
    repeats: int,
) -> Tensor:
    """reference.rounded_counts, in parts that take little memory."""
    total = torch.zeros(repeats, classes, phases.numel(), dtype=torch.int64, device=x.device)
    for part in _parts(len(x), phases.numel()):
        some = x[part], frequencies, phases, labels[part], classes
        total += reference.rounded_counts(*some, key, first + part.start, repeats)
    return total


def _positive(x: Tensor, frequencies: Tensor, phases: Tensor, labels: Tensor, classes: int) -> Tensor:
    """reference.positive_counts, in parts that take little memory."""
    total = torch.zeros(classes, phases.numel(), dtype=torch.int64, device=x.device)
    for part in _parts(len(x), phases.numel()):
        total += reference.positive_counts(x[part], frequencies, phases, labels[part], classes)
    return total


def _parts(users: int, width: int) -> list[slice]:
    step = max(1, BITS_AT_ONCE // max(1, width))
    return [slice(start, start + step) for start in range(0, users, step)]


ROUNDED = Kernel(__name__, "rounded_counts", _rounded, cases.ROUNDED)
POSITIVE = Kernel(__name__, "positive_counts", _positive, cases.POSITIVE)
