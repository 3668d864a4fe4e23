"""The probability simplex: what makes a histogram of numbers that only nearly are one."""

import torch
from torch import Tensor


def onto_simplex(x: Tensor) -> Tensor:
    """The nearest probability vector to each row: max(x - t, 0), t such that it adds up to 1.

    Of decoded shares it is the one plausible histogram that plug-ins use. Cutting off at 0 and
    scaling instead shrinks a frequent type by what the noise of many absent ones adds above 0.
    Source: Held, Wolfe, Crowder (1974).
    """
    descending = x.sort(-1, descending=True).values
    counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    # the t at which the largest 1, 2, ... entries alone add up to 1
    shifts = (descending.cumsum(-1) - 1) / counts
    support = (descending > shifts).sum(-1, keepdim=True)
    t = shifts.gather(-1, (support - 1).clamp_min(0))
    kept = (x - t).clamp_min(0)
    # The sum is 1 but for rounding, which is divided out.
    return kept / kept.sum(-1, keepdim=True)
