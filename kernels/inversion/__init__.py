"""Integers of a tabulated law, by inversion from a counter: the same on every device; sums that store no cell."""

from torch import Tensor

from torchdp import checks
from torchdp.kernels.dispatch import Kernel, cases
from torchdp.kernels.inversion import reference
from torchdp.kernels.inversion.tables import (
    Table,
    binomial,
    cut_geometric,
    discrete_normal,
    logarithmic,
    negative_binomial,
    poisson,
    rounded_normal,
)

__all__ = [
    "Table",
    "binomial",
    "column_sums",
    "cut_geometric",
    "discrete_normal",
    "draws",
    "logarithmic",
    "negative_binomial",
    "poisson",
    "rounded_normal",
]

DRAWS = Kernel(__name__, "draws", reference.draws, cases.INVERSION)
COLUMN_SUMS = Kernel(__name__, "column_sums", reference.column_sums, cases.INVERSION_SUMS)


def draws(table: Table, key: int, users: int, columns: int, *, first: int = 0, stream: int = 0) -> Tensor:
    """One draw for each user and column: (users, columns), int64, on the table's device.

    Those of users first, first + 1, ...: a draw is a function of the key, the stream, its user and its column, so
    parts make up the whole. key: 64 bits, from ``philox.draw_key``. Raises ValueError.
    """
    users, columns, first, stream = _checked(users, columns, first, stream)
    return DRAWS(table.device, table, key, users, columns, first=first, stream=stream)


def column_sums(table: Table, key: int, users: int, columns: int, *, first: int = 0, stream: int = 0) -> Tensor:
    """``draws(...).sum(0)`` in memory that does not grow with the users: (columns,), int64. Raises ValueError."""
    users, columns, first, stream = _checked(users, columns, first, stream)
    return COLUMN_SUMS(table.device, table, key, users, columns, first=first, stream=stream)


def _checked(users: int, columns: int, first: int, stream: int) -> tuple[int, int, int, int]:
    users, first = checks.integer("users", users, 0), checks.integer("first", first, 0, 2**63 - 1)
    columns, stream = checks.integer("columns", columns, 0), checks.integer("stream", stream, 0)
    if first + users > 2**63 or columns > 2**31 or stream >= reference.SECOND:
        raise ValueError("first + users must be at most 2^63, columns at most 2^31, and stream below 2^30")
    return users, columns, first, stream
