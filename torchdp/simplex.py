"""The probability simplex: what makes a histogram of numbers that only nearly are one."""

import torch
from torch import Tensor


def onto_simplex(x: Tensor) -> Tensor:
    """The nearest probability vector to each row: max(x - t, 0) with the t that makes it add up
    to 1.

    Of decoded shares it is the one plausible histogram that plug-ins use. Cutting off at 0 and
    scaling instead shrinks a frequent type by what the noise of many absent ones adds above 0.
    Source: Held, Wolfe, Crowder (1974).
    """
    falling = x.sort(-1, descending=True).values
    places = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    shifts = (falling.cumsum(-1) - 1) / places
    last = ((falling > shifts).sum(-1, keepdim=True) - 1).clamp_min(0)
    kept = (x - shifts.gather(-1, last)).clamp_min(0)
    return kept / kept.sum(-1, keepdim=True)
