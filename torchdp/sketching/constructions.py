"""Random sketches: OSNAP, CountSketch, dense Rademacher, the plain sum. None sees the data.

Notation: n clients, m rows (``height``), s copies.
"""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.sketching.sketch import Sketch


def osnap(clients: int, height: int, copies: int, *, generator: torch.Generator) -> Sketch:
    """Each column: ``copies`` distinct rows, uniformly, and fair independent signs.

    Raises ValueError, TypeError.
    Source: Nelson, Nguyen (2013), OSNAP, with fully independent columns.
    """
    n, m, s = _sizes(clients, height, copies)
    device = checks.random_source(generator).device
    rows = torch.empty(s, n, dtype=torch.int64, device=device)
    for c in range(s):  # Floyd (1987): a uniform subset, one random number for each member
        last = m - s + c
        pick = torch.randint(last + 1, (n,), generator=generator, device=device)
        # ``last`` is above all earlier picks, so it is free wherever ``pick`` is not.
        taken = (rows[:c] == pick).any(0)
        rows[c] = torch.where(taken, last, pick)
    # Floyd's picks are not uniform one by one: the last one is m - 1 with probability s/m. In
    # random order the row of every copy is.
    order = torch.rand(s, n, generator=generator, device=device).argsort(0)
    return Sketch(rows.gather(0, order), _signs(s, n, generator), m)


def balanced_osnap(clients: int, height: int, copies: int, *, generator: torch.Generator) -> Sketch:
    """The block construction, every row of a block of floor or ceil of n s/m clients.

    Each copy deals a random permutation of the clients round its block's rows. Two clients meet in
    a copy with probability at most s/m, less than where rows are drawn independently. Raises
    ValueError, TypeError.

    Source: Nelson, Nguyen (2013), block construction.
    """
    n, m, s = _sizes(clients, height, copies)
    if m % s:
        raise ValueError(f"height must be a multiple of copies = {s}, such as {m - m % s}, not {m}")
    block = m // s
    device = checks.random_source(generator).device
    # In float32, which has 24 random bits, keys of 10^5 clients would tie, and ties are not
    # shuffled.
    keys = torch.rand(s, n, generator=generator, dtype=torch.float64, device=device)
    # Copy c owns the c-th block of rows, so that a client's rows are distinct by construction.
    first = torch.arange(s, device=device)[:, None] * block
    return Sketch(keys.argsort(1) % block + first, _signs(s, n, generator), m)


def count_sketch(clients: int, height: int, *, generator: torch.Generator) -> Sketch:
    """One nonzero in each column: a uniform row and a fair sign. Raises ValueError, TypeError.

    Source: Charikar, Chen, Farach-Colton (2002); Clarkson, Woodruff (2013).
    """
    n, m, _ = _sizes(clients, height, 1)
    device = checks.random_source(generator).device
    rows = torch.randint(m, (1, n), generator=generator, device=device)
    return Sketch(rows, _signs(1, n, generator), m)


def balanced_count_sketch(clients: int, height: int, *, generator: torch.Generator) -> Sketch:
    """One nonzero in each column, every row filled alike. Raises ValueError, TypeError."""
    return balanced_osnap(clients, height, 1, generator=generator)


def rademacher(clients: int, height: int, *, generator: torch.Generator) -> Sketch:
    """Dense signs over sqrt(m), cut into m copies by a Latin square.

    Copy c puts client k into row (k + c) mod m: every copy is balanced and every row holds every
    client. Raises ValueError, TypeError.

    Source: Achlioptas (2003).
    """
    n, m, _ = _sizes(clients, height, 1)
    checks.fits("the sketch", n, m)
    device = checks.random_source(generator).device
    copies = torch.arange(m, device=device)[:, None]
    rows = (torch.arange(n, device=device) + copies) % m
    return Sketch(rows, _signs(m, n, generator), m)


def ones(clients: int, *, device: torch.device | str | None = None) -> Sketch:
    """One row of +1: the plain sum of all clients. Raises ValueError."""
    n = checks.integer("clients", clients, 1)
    device = device and checks.device("device", device)
    # expanded: one number is stored for all clients
    rows = torch.zeros(1, 1, dtype=torch.int64, device=device).expand(1, n)
    signs = torch.ones(1, 1, dtype=torch.int8, device=device).expand(1, n)
    return Sketch(rows, signs, 1)


def _sizes(clients: int, height: int, copies: int) -> tuple[int, int, int]:
    n = checks.integer("clients", clients, 1)
    m = checks.integer("height", height, 1)
    s = checks.integer("copies", copies, 1)
    checks.fits("the sketch", s, n)
    if s > m:
        raise ValueError(
            f"copies must be at most height = {m}: a column has distinct rows, not {s}"
        )
    return n, m, s


def _signs(s: int, n: int, generator: torch.Generator) -> Tensor:
    fair = torch.randint(2, (s, n), generator=generator, dtype=torch.int8, device=generator.device)
    return 2 * fair - 1
