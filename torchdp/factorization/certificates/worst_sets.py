"""The worst set of steps under min-separation participation: exact where the search ends, else an
upper bound.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NODES = 20_000  # prefixes that the search looks at, at most
KEPT = 2**24  # numbers that it keeps of them, at most
TABLE = 2**21  # numbers in a table of several rows
CLOSE = 1e-12  # relative: bounds this close to a set's sum are rounding

Array = NDArray[np.float64]


def worst_separated(sizes: Array, gap: int, times: int) -> tuple[float, list[int]]:
    """The largest sum of ``sizes`` over pi x pi, pi at most ``times`` steps that are ``gap`` apart:
    a bound and a set.

    sizes: (n, n), symmetric, entries >= 0. The set attains the bound, up to rounding, where only
    neighbours of a set meet (no entry 2 gap or more off the diagonal) and where branch and bound
    ends within its limits. In general the problem is NP-hard: gap = 1 and the adjacency of a graph
    ask for its densest part of ``times`` points.
    """
    gap = min(gap, len(sizes))
    times = min(times, -(-len(sizes) // gap))
    if times == 1:
        return float(sizes.diagonal().max()), [int(sizes.diagonal().argmax())]
    if not np.triu(sizes, 2 * gap).any():
        return _neighbours(sizes, gap, times)
    return _Search(sizes, gap, times).run()


def most_apart(squares: Array, gap: int, times: int) -> float:
    """The largest sum of ``squares`` >= 0, (n,), over at most ``times`` steps that are ``gap``
    apart; O(n times).
    """
    gap = min(gap, len(squares))
    return float(_most(squares, gap, min(times, -(-len(squares) // gap))))


def _neighbours(sizes: Array, gap: int, times: int) -> tuple[float, list[int]]:
    """By the last step j: F_m[j] = Z_jj + max(0, max_{i <= j - gap} F_{m-1}[i] + 2 Z_ij);
    O(n gap times).
    """
    n, own = len(sizes), sizes.diagonal()
    # the i for which Z_ij may count, (n, gap)
    near = np.arange(n)[:, None] - 2 * gap + 1 + np.arange(gap)
    links = np.where(near >= 0, 2 * sizes[near.clip(0), np.arange(n)[:, None]], -np.inf)
    best, came = own, [np.full(n, -1)]
    for _ in range(1, times):
        reach = links + best[near.clip(0)]
        step = reach.argmax(1)
        gain, before = reach[np.arange(n), step], near[np.arange(n), step]
        top = np.maximum.accumulate(best)
        first = np.searchsorted(top, top)  # where the running maximum was reached
        far = np.arange(n) - 2 * gap
        beyond = np.where(far >= 0, top[far.clip(0)], -np.inf)
        gain, before = np.where(beyond > gain, [beyond, first[far.clip(0)]], [gain, before])
        came.append(np.where(gain > 0, before, -1).astype(np.int64))
        best = own + np.maximum(gain, 0)
    last = int(best.argmax())
    chosen = [last]
    for back in came[::-1]:
        if back[chosen[-1]] < 0:
            break
        chosen.append(int(back[chosen[-1]]))
    return float(best[last]), chosen[::-1]


@dataclass(frozen=True)
class _Prefix:
    """The first steps of a set; what each further step adds with it, and a bound for each choice of
    the next one.
    """

    value: float
    chosen: list[int]
    gains: Array  # (n,): Z_jj + 2 sum of Z_ij over the chosen i
    order: NDArray[np.int64]  # the next steps, the largest bound first
    bounds: Array


class _Search:
    """Branch and bound, the largest bound first; a bound counts each pair of steps at its earlier
    one.
    """

    def __init__(self, sizes: Array, gap: int, times: int) -> None:
        self.sizes, self.gap, self.times = sizes, gap, times
        self.free = times == -(
            -len(sizes) // gap
        )  # the number is no limit: one table serves all steps that remain
        self.ahead = _ahead(sizes, gap, None if self.free else times)
        self.best, self.found = 0.0, [0]

    def run(self) -> tuple[float, list[int]]:
        """The bound and the best set."""
        sizes, ties, root = (
            self.sizes,
            itertools.count(),
            self._prefix(0.0, [], self.sizes.diagonal()),
        )
        heap = [(-float(root.bounds[0]), next(ties), root, 0)] if len(root.order) else []
        for _ in range(min(NODES, KEPT // len(sizes))):
            if not heap or -heap[0][0] <= self.best * (1 + CLOSE):
                break
            _, _, node, rank = heapq.heappop(heap)
            if rank + 1 < len(node.order):
                heapq.heappush(heap, (-float(node.bounds[rank + 1]), next(ties), node, rank + 1))
            step = int(node.order[rank])
            child = self._prefix(
                node.value + node.gains[step], [*node.chosen, step], node.gains + 2 * sizes[step]
            )
            if len(child.order):
                heapq.heappush(heap, (-float(child.bounds[0]), next(ties), child, 0))
        open_bound = -heap[0][0] if heap else 0.0
        if open_bound > self.best * (1 + CLOSE):
            open_bound = min(open_bound, _two_stages(sizes, self.gap, self.times))
        return max(self.best * (1 + CLOSE), open_bound), self.found

    def _prefix(self, value: float, chosen: list[int], gains: Array) -> _Prefix:
        """Tables over the steps from ``start`` on, and the set that they suggest, which may be the
        best one so far.
        """
        n, gap, times = len(self.sizes), self.gap, self.times
        start, left = (chosen[-1] + gap if chosen else 0), times - len(chosen)
        if start >= n or left == 0:
            return _Prefix(value, chosen, gains, np.empty(0, np.int64), np.empty(0))
        values = gains[start:] + 2 * self.ahead[:, start:]
        tables = [_table(values[0], None, gap)] if self.free else [np.zeros(n - start + gap)]
        for m in range(1, 1 if self.free else left):
            tables.append(_table(values[m - 1], tables[-1], gap))
        bounds = value + values[-1 if self.free else left - 1] + tables[-1][gap:]
        whole = _followed(
            tables[::-1] * (left if self.free else 1), int(bounds.argmax()), gap, n - start
        )
        whole = [*chosen, *(start + step for step in whole)]
        total = float(self.sizes[np.ix_(whole, whole)].sum())
        if total > self.best:
            self.best, self.found = total, whole
        order = bounds.argsort()[::-1]
        order = order[bounds[order] > self.best * (1 + CLOSE)]
        return _Prefix(value, chosen, gains, start + order, bounds[order])


def _followed(tables: list[Array], first: int, gap: int, n: int) -> list[int]:
    """The steps that the tables suggest after the first one."""
    steps = [first]
    for table in tables:
        here = steps[-1] + gap
        if here >= n or table[here] == 0:
            break
        steps.append(here + int((table[here:] >= table[here]).sum()) - 1)
    return steps


def _ahead(sizes: Array, gap: int, times: int | None) -> Array:
    """[m, i]: the largest sum of Z_ij over at most m steps j >= i + gap, m < times; for None any
    number, (1, n).
    """
    found = np.zeros((times or 1, len(sizes)))
    for first, rows in _parts(sizes):
        later, table = np.triu(rows, first + gap), np.zeros((len(rows), len(sizes) + gap))
        for m in range(1, times) if times else [0]:
            table = _table(later, table if times else None, gap)
            found[m, first : first + len(rows)] = table[:, 0]
    return found


def _two_stages(sizes: Array, gap: int, times: int) -> float:
    """The largest sum over a set of the rows' own largest sums. Source: Choquette-Choo et al.
    (2023), Algorithm 4.
    """
    own = np.empty(len(sizes))
    for first, rows in _parts(sizes):
        own[first : first + len(rows)] = _most(rows, gap, times)
    return float(_most(own, gap, times))


def _most(values: Array, gap: int, times: int) -> Array:
    """The largest sum of values >= 0 over at most ``times`` steps: (..., n) -> (...)."""
    if times >= -(-values.shape[-1] // gap):
        return _table(values, None, gap)[..., 0]
    table = np.zeros((*values.shape[:-1], values.shape[-1] + gap))
    for _ in range(times):
        table = _table(values, table, gap)
    return table[..., 0]


def _table(values: Array, beyond: Array | None, gap: int) -> Array:
    """[i]: the most of values_j + beyond_{j + gap} over j >= i, 0 for i >= n: (..., n) ->
    (..., n + gap).

    beyond: such a table of one step less; None: this table itself, so that any number of steps is
    taken.
    """
    n = values.shape[-1]
    table = np.zeros((*values.shape[:-1], n + gap))
    width = gap if beyond is None else n
    for start in range((n - 1) // width * width, -1, -width):
        stop = min(start + width, n)
        taken = (
            values[..., start:stop]
            + (table if beyond is None else beyond)[..., start + gap : stop + gap]
        )
        taken[..., -1] = np.maximum(taken[..., -1], table[..., stop])
        table[..., start:stop] = np.maximum.accumulate(taken[..., ::-1], -1)[..., ::-1]
    return table


def _parts(sizes: Array) -> Iterator[tuple[int, Array]]:
    """Some rows at a time, with the number of the first, so that tables stay small."""
    count = max(1, TABLE // len(sizes))
    for first in range(0, len(sizes), count):
        yield first, sizes[first : first + count]
