"""The worst set of steps under min-separation participation.

Exact where the search ends, else an upper bound: by a recursion where only neighbours of a set
meet, else by branch and bound.

Notation:
    Z: sizes, (n, n), symmetric, entries >= 0; a set of steps is worth the sum of Z over its pairs.
    gap: between two steps of a set, at least; times: steps of a set, at most.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Prefixes that the search looks at, at most.
NODES = 20_000
# Numbers that it keeps of them, at most.
KEPT = 2**24
# Numbers in a table of several rows.
TABLE = 2**21
# Relative: bounds this close to a set's sum are rounding.
CLOSE = 1e-12

Array = NDArray[np.float64]
Steps = NDArray[np.int64]


def worst_separated(sizes: Array, gap: int, times: int) -> tuple[float, list[int]]:
    """The largest sum of ``sizes`` over pi x pi, pi a set of steps: a bound and a set.

    The set attains the bound, up to rounding, where only neighbours of a set meet (no entry 2 gap
    or more off the diagonal) and where branch and bound ends within its limits. In general the
    problem is NP-hard: gap = 1 and the adjacency of a graph ask for its densest part of ``times``
    points.

    Args:
        sizes: Z.
        gap: at least 1.
        times: at least 1.
    """
    gap = min(gap, len(sizes))
    times = min(times, -(-len(sizes) // gap))
    if times == 1:
        own = sizes.diagonal()
        return float(own.max()), [int(own.argmax())]
    if not np.triu(sizes, 2 * gap).any():
        return _neighbours(sizes, gap, times)
    return _Search(sizes, gap, times).run()


def most_apart(squares: Array, gap: int, times: int) -> float:
    """The largest sum of ``squares`` >= 0, (n,), over a set of steps; O(n times)."""
    gap = min(gap, len(squares))
    return float(_most(squares, gap, min(times, -(-len(squares) // gap))))


def _neighbours(sizes: Array, gap: int, times: int) -> tuple[float, list[int]]:
    """By the last step j: F_m[j] = Z_jj + max(0, max_{i <= j - gap} F_{m-1}[i] + 2 Z_ij).

    O(n gap times).
    """
    n = len(sizes)
    own = sizes.diagonal()
    step = np.arange(n)
    # the i for which Z_ij may count, (n, gap)
    near = step[:, None] - 2 * gap + 1 + np.arange(gap)
    near_or_0 = near.clip(0)
    links = np.where(near >= 0, 2 * sizes[near_or_0, step[:, None]], -np.inf)
    far = step - 2 * gap
    best = own
    befores = []
    for _ in range(1, times):
        reach = links + best[near_or_0]
        nearest = reach.argmax(1)
        near_gain = reach[step, nearest]
        # Of the steps further back, which meet j no more, the best so far.
        top = np.maximum.accumulate(best)
        reached = np.searchsorted(top, top)
        far_gain = np.where(far >= 0, top[far.clip(0)], -np.inf)
        gain = np.maximum(far_gain, near_gain)
        before = np.where(far_gain > near_gain, reached[far.clip(0)], near[step, nearest])
        befores.append(np.where(gain > 0, before, -1))
        best = own + np.maximum(gain, 0)
    last = int(best.argmax())
    chosen = [last]
    for before in befores[::-1]:
        if before[chosen[-1]] < 0:
            break
        chosen.append(int(before[chosen[-1]]))
    return float(best[last]), chosen[::-1]


@dataclass(frozen=True)
class _Prefix:
    """The first steps of a set, and a bound for each choice of the next one.

    value: the sum of Z over them.
    gains: (n,), what each further step adds with them, Z_jj + 2 sum of Z_ij over the chosen i.
    order: the next steps, the largest bound first.
    bounds: of the sets that begin so.
    """

    value: float
    chosen: list[int]
    gains: Array
    order: Steps
    bounds: Array


class _Search:
    """Branch and bound, the largest bound first.

    A bound counts each pair of steps at its earlier one.
    """

    def __init__(self, sizes: Array, gap: int, times: int) -> None:
        self.sizes = sizes
        self.gap = gap
        self.times = times
        # Where their number is no limit one table serves all steps that remain.
        self.free = times == -(-len(sizes) // gap)
        self.ahead = _ahead(sizes, gap, None if self.free else times)
        self.best = 0.0
        self.found = [0]
        self.ties = itertools.count()
        self.heap: list[tuple[float, int, _Prefix, int]] = []

    def run(self) -> tuple[float, list[int]]:
        """The bound and the best set."""
        sizes = self.sizes
        self._push(self._prefix(0.0, [], sizes.diagonal()), 0)
        for _ in range(min(NODES, KEPT // len(sizes))):
            if self._open() <= self.best * (1 + CLOSE):
                break
            _, _, prefix, rank = heapq.heappop(self.heap)
            self._push(prefix, rank + 1)
            step = int(prefix.order[rank])
            value = prefix.value + prefix.gains[step]
            gains = prefix.gains + 2 * sizes[step]
            self._push(self._prefix(value, [*prefix.chosen, step], gains), 0)
        open_bound = self._open()
        if open_bound > self.best * (1 + CLOSE):
            open_bound = min(open_bound, _two_stages(sizes, self.gap, self.times))
        return max(self.best * (1 + CLOSE), open_bound), self.found

    def _push(self, prefix: _Prefix, rank: int) -> None:
        """Into the heap, with its next step of that rank; the earlier first where bounds tie."""
        if rank < len(prefix.order):
            bound = float(prefix.bounds[rank])
            heapq.heappush(self.heap, (-bound, next(self.ties), prefix, rank))

    def _open(self) -> float:
        """The largest bound in the heap."""
        return -self.heap[0][0] if self.heap else 0.0

    def _prefix(self, value: float, chosen: list[int], gains: Array) -> _Prefix:
        """Bounds from tables over the steps that may follow; the set that they suggest is tried."""
        n = len(self.sizes)
        gap = self.gap
        start = chosen[-1] + gap if chosen else 0
        left = self.times - len(chosen)
        if start >= n or left == 0:
            return _Prefix(value, chosen, gains, np.empty(0, np.int64), np.empty(0))
        values = gains[start:] + 2 * self.ahead[:, start:]
        if self.free:
            tables = [_table(values[0], None, gap)]
            last = values[0]
        else:
            tables = [np.zeros(n - start + gap)]
            for row in values[: left - 1]:
                tables.append(_table(row, tables[-1], gap))
            last = values[left - 1]
        bounds = value + last + tables[-1][gap:]
        tables = tables * left if self.free else tables[::-1]
        followed = _followed(tables, int(bounds.argmax()), gap, n - start)
        suggested = [*chosen, *(start + step for step in followed)]
        total = float(self.sizes[np.ix_(suggested, suggested)].sum())
        if total > self.best:
            self.best = total
            self.found = suggested
        order = bounds.argsort()[::-1]
        order = order[bounds[order] > self.best * (1 + CLOSE)]
        return _Prefix(value, chosen, gains, start + order, bounds[order])


def _followed(tables: list[Array], first: int, gap: int, n: int) -> list[int]:
    """The steps that the tables suggest after the first one."""
    steps = [first]
    for table in tables:
        start = steps[-1] + gap
        if start >= n or table[start] == 0:
            break
        # A table falls: it keeps its value up to the step that gives it.
        equal = table[start:] >= table[start]
        steps.append(start + int(equal.sum()) - 1)
    return steps


def _ahead(sizes: Array, gap: int, times: int | None) -> Array:
    """[m, i]: the largest sum of Z_ij over at most m steps j >= i + gap, m < times.

    For None any number, (1, n).
    """
    largest = np.zeros((times or 1, len(sizes)))
    for first, rows in _parts(sizes):
        later = np.triu(rows, first + gap)
        stop = first + len(rows)
        if times is None:
            largest[0, first:stop] = _table(later, None, gap)[:, 0]
            continue
        table = np.zeros((len(rows), len(sizes) + gap))
        for m in range(1, times):
            table = _table(later, table, gap)
            largest[m, first:stop] = table[:, 0]
    return largest


def _two_stages(sizes: Array, gap: int, times: int) -> float:
    """The largest sum over a set of the rows' own largest sums.

    Source: Choquette-Choo et al. (2023), Algorithm 4.
    """
    own = [_most(rows, gap, times) for _, rows in _parts(sizes)]
    return float(_most(np.concatenate(own), gap, times))


def _most(values: Array, gap: int, times: int) -> Array:
    """The largest sum of values >= 0 over at most ``times`` steps: (..., n) -> (...)."""
    if times >= -(-values.shape[-1] // gap):
        return _table(values, None, gap)[..., 0]
    table = np.zeros((*values.shape[:-1], values.shape[-1] + gap))
    for _ in range(times):
        table = _table(values, table, gap)
    return table[..., 0]


def _table(values: Array, later: Array | None, gap: int) -> Array:
    """[i]: the most of values_j + later_{j + gap} over j >= i, 0 for i >= n.

    Args:
        values: (..., n).
        later: such a table of one step less, (..., n + gap); None: this table itself, so that any
            number of steps is taken.
        gap: between two steps.

    Returns:
        (..., n + gap).
    """
    n = values.shape[-1]
    table = np.zeros((*values.shape[:-1], n + gap))
    width = n
    if later is None:
        # By blocks from the end, each of which needs the ones behind it alone.
        later = table
        width = gap
    for start in range((n - 1) // width * width, -1, -width):
        stop = min(start + width, n)
        taken = values[..., start:stop] + later[..., start + gap : stop + gap]
        taken[..., -1] = np.maximum(taken[..., -1], table[..., stop])
        backwards = np.maximum.accumulate(taken[..., ::-1], -1)
        table[..., start:stop] = backwards[..., ::-1]
    return table


def _parts(sizes: Array) -> Iterator[tuple[int, Array]]:
    """Some rows at a time, with the number of the first, so that tables stay small."""
    count = max(1, TABLE // len(sizes))
    for first in range(0, len(sizes), count):
        yield first, sizes[first : first + count]
