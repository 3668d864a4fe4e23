"""Users in parts, on disk or on a cluster: each part adds to one tally, so no place holds them all.

>>> import torch
>>> from torchdp import distributed, queries, workloads
>>> protocol = queries.CentralLaplace.of(queries.Linear(workloads.prefix(4).dense()), epsilon=1.0)
>>> parts = (torch.randint(4, (1_000,)) for _ in range(10))  # batches of a file, for instance
>>> protocol.analyse(distributed.collect(protocol, parts)).value.shape
torch.Size([4])
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from torchdp import checks
from torchdp.noise import source
from torchdp.privacy import Model
from torchdp.protocol import CuratorProtocol, Protocol, Tally
from torchdp.protocol.frames import Rows, categories, rows_of
from torchdp.protocol.protocol import MessageProtocol

Labels = tuple[Any, ...]
"""Of each column its categories, or None."""


class Part(NamedTuple):
    """What some users add.

    tally: the messages' of these users; without noise, and so not private, where a curator adds it.
    """

    tally: Tally
    labels: Labels


def collect(protocol: Protocol[Any], parts: Any) -> Tally:
    """``protocol.collect`` of users who come in parts, one after the other or on a cluster.

    A local or shuffled protocol's messages are made where the part is; what a curator adds up is
    added without noise, which is drawn once, here. Memory is that of one part, and of a tally.

    Args:
        protocol: of messages, or a curator's of types or of a mean (``GaussianMean``).
        parts: an iterable of what ``protocol.collect`` takes: slices of a ``numpy.memmap``, batches
            of a file (also tables with ``to_pandas``, as pyarrow has them); or a Dask DataFrame,
            Series or Array of one chunk of columns, whose partitions its workers read. A part
            without rows adds nothing. Categories must be the same in all parts.

    Returns: the tally, for ``protocol.analyse``.

    Raises TypeError, ValueError, and what Dask raises.

    Guarantees: the protocol's own, of the tally that is returned. The cluster sees the parts: it is
    trusted like the holder of the data. A worker that Dask replaces draws its messages anew, and
    those of the lost one are in no tally.
    """
    _check(protocol)
    if hasattr(parts, "to_delayed"):
        total = _on_dask(protocol, parts)
    else:
        checks.instance("parts", parts, Iterable)
        total = None
        for rows in parts:
            total = added(protocol, total, told(protocol, rows))
    return released(protocol, total)


def _check(protocol: Protocol[Any]) -> None:
    """Raises TypeError for a protocol that does not take users in parts."""
    checks.instance("protocol", protocol, Protocol)
    known = isinstance(protocol, CuratorProtocol | MessageProtocol)
    # Clients of secure sums have numbers, and signs of a sketch by these.
    if not known or protocol.guarantee.model is Model.LINEAR_TRANSFORM:
        raise TypeError(
            f"protocol must be of messages or a curator's, not {type(protocol).__name__}: it asks "
            "all users together"
        )


def told(protocol: Protocol[Any], rows: Any) -> Part | None:
    """What a part of the users adds, for ``added`` and ``released``; None of no rows.

    Args:
        protocol: as in :func:`collect`.
        rows: what ``protocol.collect`` takes.

    Raises TypeError, ValueError.
    Guarantees: none where a curator adds it: it is as secret as the rows.
    """
    _check(protocol)
    if hasattr(rows, "to_pandas"):
        rows = rows.to_pandas()
    if not len(rows):
        return None
    labels = _labels(rows)
    if isinstance(protocol, CuratorProtocol):
        x = protocol.validate(rows_of(rows, protocol.held)).detach()
        return Part(protocol.added(x), labels)
    return Part(protocol.collect(rows), labels)


def _labels(rows: Rows) -> Labels:
    if getattr(rows, "ndim", 0) == 2 and hasattr(rows, "items"):
        columns = [cells for _, cells in rows.items()]
    else:
        columns = [rows]
    stated = [categories(cells) for cells in columns]
    return tuple(None if labels is None else tuple(labels) for labels in stated)


def added(protocol: Protocol[Any], one: Part | None, other: Part | None) -> Part | None:
    """What both parts add. Raises ValueError where their categories differ."""
    if one is None or other is None:
        return one or other
    if one.labels != other.labels:
        raise ValueError(
            f"parts must have the same categories, not {one.labels} and {other.labels}: state them, "
            ".astype(pandas.CategoricalDtype([...])), since those of a part are read from its data"
        )
    if isinstance(protocol, MessageProtocol):
        return Part(protocol.add(one.tally, other.tally), one.labels)
    sums = {name: part + other.tally[name] for name, part in one.tally.parts.items()}
    return Part(Tally(one.tally.n + other.tally.n, sums), one.labels)


def released(protocol: Protocol[Any], total: Part | None) -> Tally:
    """The tally of all users, with a curator's noise, for ``protocol.analyse``.

    Raises TypeError, ValueError.
    Guarantees: the protocol's own, if it is called once.
    """
    _check(protocol)
    if total is None:
        raise ValueError("parts must hold one user at least")
    tally = total.tally
    if not isinstance(protocol, CuratorProtocol):
        return tally
    device = protocol.drawn_on(next(iter(tally.parts.values())).device)
    return protocol.noised(tally, source(None, device))


def _on_dask(protocol: Any, parts: Any) -> Part | None:
    """By a tree of sums, so that no worker holds many tallies."""
    with checks.needing("users in a Dask collection", "dask"):
        import dask
    # pure=False: two calls on equal rows draw noise of their own.
    tell = dask.delayed(partial(told, protocol), pure=False)
    add = dask.delayed(partial(added, protocol), pure=False)
    pieces = [tell(piece) for piece in _pieces(parts)]
    while len(pieces) > 1:
        pairs = zip(pieces[::2], pieces[1::2], strict=False)
        last = pieces[-1:] if len(pieces) % 2 else []
        pieces = [add(*pair) for pair in pairs] + last
    (total,) = dask.compute(*pieces)
    return total


def _pieces(parts: Any) -> list[Any]:
    """The partitions. Raises ValueError for an array that is cut between columns."""
    delayed = parts.to_delayed()
    if not hasattr(delayed, "shape"):
        return list(delayed)
    if any(count != 1 for count in delayed.shape[1:]):
        raise ValueError(
            "parts must have whole rows in each chunk: parts.rechunk({1: -1}) joins the columns"
        )
    return list(delayed.ravel())
