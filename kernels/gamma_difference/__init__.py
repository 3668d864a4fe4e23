"""Differences of two gamma variables from a counter: users' shares of a Laplace variable, float64."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.kernels.dispatch import fuses
from torchdp.kernels.gamma_difference import reference

__all__ = ["column_sums", "draws"]


def draws(
    shape: float,
    key: int,
    users: int,
    columns: int,
    *,
    first: int = 0,
    stream: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """G - G', independent Gamma(shape) of unit scale, for each user and column: (users, columns), float64.

    Those of users first, first + 1, ...; a draw is a function of the key, the streams ``stream`` and ``stream + 1``,
    its user and its column. The draws of n users of shape 1/n add up to a Laplace variable of unit scale. key: 64
    bits, from ``philox.draw_key``. Raises ValueError.
    """
    shape, users, columns, first, stream = _checked(shape, users, columns, first, stream)
    device = torch.device(device)
    if fuses(device):
        from torchdp.kernels.gamma_difference import fused

        return fused.draws(shape, key, users, columns, first=first, stream=stream, device=device)
    return reference.draws(shape, key, users, columns, first=first, stream=stream, device=device)


def column_sums(
    shape: float,
    key: int,
    users: int,
    columns: int,
    *,
    first: int = 0,
    stream: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """``draws(...).sum(0)`` in memory that does not grow with the users: (columns,), float64. Raises ValueError."""
    shape, users, columns, first, stream = _checked(shape, users, columns, first, stream)
    device = torch.device(device)
    if fuses(device):
        from torchdp.kernels.gamma_difference import fused

        return fused.column_sums(shape, key, users, columns, first=first, stream=stream, device=device)
    return reference.column_sums(shape, key, users, columns, first=first, stream=stream, device=device)


def _checked(shape: float, users: int, columns: int, first: int, stream: int) -> tuple[float, int, int, int, int]:
    shape = checks.positive("shape", shape)
    users, first = checks.integer("users", users, 0), checks.integer("first", first, 0, 2**63 - 1)
    columns, stream = checks.integer("columns", columns, 0), checks.integer("stream", stream, 0)
    if first + users > 2**63 or columns > 2**27 or stream >= 2**30:
        raise ValueError("first + users must be at most 2^63, columns at most 2^27, and stream below 2^30")
    return shape, users, columns, first, stream
