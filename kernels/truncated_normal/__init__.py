"""N(0, 1) on a half line, by inversion: explicit uniforms or a counter, full relative accuracy far in the tail."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.kernels.dispatch import Kernel, cases
from torchdp.kernels.truncated_normal import reference
from torchdp.kernels.truncated_normal.reference import HalfLine

__all__ = ["HalfLine", "above", "draws"]

ABOVE = Kernel(__name__, "above", reference.above, cases.ABOVE)
DRAWS = Kernel(__name__, "draws", reference.draws, cases.HALF_LINES)


def above(tail: Tensor, threshold: float) -> Tensor:
    """N(0, 1) given >= threshold from uniforms ``tail`` in (0, 1), float64: decreasing, P(N > X) = tail P(N >= k).

    threshold k in [-40, 40]. Given <= threshold it is -above(tail, -threshold). Raises TypeError, ValueError.
    """
    HalfLine(threshold)
    if not isinstance(tail, Tensor) or tail.dtype != torch.float64:
        raise TypeError("tail must be a tensor of float64; uniforms of fewer bits cut the tail off")
    return ABOVE(tail.device, tail, threshold)


def draws(
    key: int, size: int, threshold: float, *, first: int = 0, stream: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Normals given >= threshold in [-40, 40], the numbers first, ..., first + size - 1 of the key: (size,) float64.

    A number depends on the key, the stream and itself: parts of a range add up to the whole. Raises ValueError.
    """
    HalfLine(threshold)
    size, first = checks.integer("size", size, 0), checks.integer("first", first, 0, 2**63 - 1)
    stream, device = checks.integer("stream", stream, 0), torch.device(device)
    return DRAWS(device, key, size, threshold, first=first, stream=stream, device=device)
