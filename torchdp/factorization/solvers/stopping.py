"""When a certificate is good enough, and what to say where it is not: one rule for every solver and every caller."""

import math
import warnings

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import Bounds

FIRST_LOOK, NEXT_LOOK = 50, 1.5  # iteration of the first look at an unfinished solution; ratio of the next
REFUSALS = 6  # solutions, finished as the iteration sees it, that may be refused before it ends
SMALL, STALLED = 1e-8, 0.98  # a gap below SMALL that falls by less than this in three looks is rounding


class Schedule:
    """When an iteration shows its solution to the caller, who judges it by its certificate, and when it gives up.

    within: the gap, as the iteration sees it, at which it believes to be finished; half of it after each refusal.
    """

    def __init__(self, tol: float) -> None:
        self.within = tol
        self.look, self.refusals, self.seen = FIRST_LOOK, 0, [math.inf] * 3

    def due(self, iteration: int, finished: bool) -> bool:
        """Whether to show the solution now."""
        return finished or iteration >= self.look

    def go_on(self, iteration: int, gap: float, finished: bool) -> bool:
        """Notes that the solution was refused. False where more iterations have nothing to offer."""
        if finished:
            self.refusals, self.within = self.refusals + 1, self.within / 2
            return self.refusals <= REFUSALS
        if iteration >= self.look:
            self.look = math.ceil(NEXT_LOOK * self.look)
            self.seen.append(gap)
            return not STALLED * self.seen[-4] < gap < SMALL
        return True


def closed(certificate: Bounds, tol: float, size: Tensor, dtype: torch.dtype) -> bool:
    """Whether each problem's certificate is closed, or its norm is 0 but for the rounding of factors in ``dtype``.

    size: largest absolute entry of each problem. A norm of 0 (a single point and a free shift) has no relative gap.
    """
    nothing = torch.as_tensor(certificate.upper, dtype=torch.float64) <= 16 * torch.finfo(dtype).eps * size
    return bool((certificate.closed(tol) | nothing).all())


def warn_where_open(
    certificate: Bounds,
    tol: float,
    size: Tensor,
    dtype: torch.dtype,
    iterations: int,
    max_iterations: int,
    *,
    stacklevel: int = 3,
    limit: str = "max_iterations",
) -> None:
    """RuntimeWarning, at the caller's caller, where :func:`closed` is false: more iterations help if they ran out.

    limit: the name of the argument that limits them.
    """
    if closed(certificate, tol, size, dtype):
        return
    if iterations >= max_iterations:
        remedy = f"raise {limit} or tol"
    elif dtype == torch.float64:
        remedy = "rounding is in the way: raise tol"
    else:
        remedy = "rounding is in the way (float32 factors stop near 1e-6): raise tol, or take W in float64"
    warnings.warn(
        f"stopped after {iterations} iterations at a certified gap of {float(certificate.gap.max()):.2e}, "
        f"above tol = {tol:.2e}; {remedy}",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def working(name: str, W: Tensor, *, stacklevel: int = 3) -> Tensor:
    """W; in half precision, which would leave gaps of a hundredth, W in float32, and a RuntimeWarning."""
    if W.dtype not in (torch.float16, torch.bfloat16):
        return W
    warnings.warn(
        f"{name} is in {W.dtype}, too coarse for factors: its entries are taken as they are, and the factors are "
        "float32; pass float32 or float64",
        RuntimeWarning,
        stacklevel=stacklevel,
    )
    return W.float()
