"""Users in groups: which is whose is public, as the groups' sizes are."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol.frames import Held, Rows, rows_of, types_in
from torchdp.protocol.records import Layout, Tally


def grouped(
    x: Rows, held: Held, groups: Rows | None, size: int | None
) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
    """Rows of users, the group of each, and the batch that the groups make; None, () of one group.

    A tensor (*batch, n, ...) has groups of n users. held: by each of them. groups: (n,) whole numbers below ``size``,
    by default all categories, or all up to the largest. Raises TypeError, ValueError.
    """
    given = x
    x = rows_of(given, held)
    row = 0 if isinstance(held, int) else len(held)
    if groups is None:
        if size is not None:
            raise ValueError(f"size = {size!r} must come with groups, the number of each user's group")
        batch = tuple(x.shape[: max(0, x.ndim - 1 - row)]) if isinstance(given, Tensor) else ()
        if not batch:
            return x, None, ()
        number = torch.arange(math.prod(batch), device=x.device)
        return checks.dense("x", x).flatten(0, len(batch)), number.repeat_interleave(x.shape[len(batch)]), batch
    if size is None:
        size = types_in(groups)
    groups = rows_of(groups, checks.MOST if size is None else size, "groups")
    if checks.integers("groups", groups).shape != x.shape[:1]:
        raise ValueError(f"groups must have shape (n,), a number for each user of x, not {tuple(groups.shape)}")
    if size is None:
        size = max(1, int(groups.max()) + 1) if groups.numel() else 1
    return x, checks.indices("groups", groups, checks.integer("size", size, 1)), (size,)


def in_turn(collect: Callable[[Tensor], Tally], layout: Layout, x: Tensor, groups: Tensor, size: int) -> Tally:
    """What ``collect`` hears of each group's rows, in their order; the parts of an empty group are 0."""
    n = torch.bincount(groups, minlength=size)
    parts = {name: x.new_zeros(size, *shape, dtype=dtype) for name, (shape, dtype) in layout.items()}
    for at, some in enumerate(x[groups.argsort(stable=True)].split(n.tolist())):
        for name, part in collect(some).parts.items() if len(some) else ():
            parts[name][at] = part
    return Tally(n, parts)
