"""Banded strategies for a fixed order, every entry free, where W^{-1} is banded: O(steps bands^2) an evaluation."""

import math

import numpy as np
import torch
from torch import Tensor

from torchdp.descent import quasi_newton
from torchdp.threads import on_host

SHARP = (30.0, 300.0, 3000.0)  # powers of squared row norms that stand for their maximum
FLOOR = 1e-9  # share of the sensitivity that every step gets
AT_ONCE = 2**14  # steps whose blocks are held together


@on_host
def long_banded(inverse: Tensor, c: Tensor, period: int, p: float, evaluations: int) -> Tensor:
    """C as (steps, bands), entry [t, j] that of C[t, t - j], of least l_p norm of the row norms of W C^{-1}.

    Columns i, i + period, ... do not meet, len(c) <= period, and their squared norms add up to 1: no user of one fixed
    order moves C G by more than 1. Row t of W C^{-1} is as long as the standard deviation of x_t in C W^{-1} x = z, a
    banded system solved block by block, covariances and all. L-BFGS from c_{t-s}, columns of one norm.

    inverse: (steps, 3), entry [t, m] that of W^{-1}[t, t - m]. evaluations: for each power.
    """
    n, bands = len(inverse), len(c)
    place = torch.arange(n) % period
    inside = torch.arange(bands)[:, None] + torch.arange(n) < n  # entry [j, s] is C[s + j, s]
    layout = _layout(n, bands + 2)
    x = np.concatenate([c[:, None].expand(bands, n).flatten().numpy(), np.ones(n)])

    def columns(x: Tensor) -> Tensor:
        E, sizes = x[: bands * n].view(bands, n) * inside, x[bands * n :].square() + FLOOR
        whole = torch.zeros(period, dtype=x.dtype).index_add(0, place, sizes)
        return E * ((sizes / whole[place]).sqrt() / E.norm(dim=0))

    for power in [p / 2] if p < math.inf else SHARP:

        def value(point: Tensor) -> Tensor:
            rows, _ = _variances(_product(columns(point), inverse), layout)
            return (power * rows.log()).logsumexp(0) / power  # noqa: B023

        x = quasi_newton(value, x, evaluations, stop=1e-8)
    found = columns(torch.from_numpy(x))
    age = torch.arange(bands)
    past = torch.arange(n)[:, None] - age
    return torch.where(past >= 0, found[age, past.clamp_min(0)], 0.0)


def _product(E: Tensor, inverse: Tensor) -> Tensor:
    """C W^{-1}, by columns as E: (bands + 2, n)."""
    shifted = [torch.nn.functional.pad(E[:, m:] * inverse[m:, m], (0, m, m, 2 - m)) for m in range(3)]
    return torch.stack(shifted).sum(0)


def _layout(n: int, reach: int) -> tuple[Tensor, Tensor, int, int]:
    """Where the entries of a banded matrix by columns lie in block rows of two blocks, that before and its own."""
    blocks = -(-n // reach)
    column = torch.arange(n).expand(reach, n)
    row = column + torch.arange(reach)[:, None]
    within = row < n
    block = row // reach
    flat = (block * reach + row % reach) * 2 * reach + column - (block - 1) * reach
    return within, flat[within], blocks, reach


def _variances(
    F: Tensor, layout: tuple[Tensor, Tensor, int, int], before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of x in F x = z, z of variance 1: (n,); and the last block's covariance. before: that of the first block."""
    within, flat, blocks, reach = layout
    n = F.shape[1]
    whole = torch.zeros(blocks * reach * 2 * reach, dtype=F.dtype).index_put((flat,), F[within])
    whole = whole.view(blocks, reach, 2 * reach)
    past, own = whole[..., :reach], whole[..., reach:]
    if blocks * reach > n:
        rest = torch.zeros(reach, dtype=F.dtype)
        rest[reach - (blocks * reach - n) :] = 1.0
        own = torch.cat([own[:-1], (own[-1] + torch.diag(rest))[None]])
    B = torch.linalg.solve_triangular(own, torch.eye(reach, dtype=F.dtype).expand_as(own), upper=False)
    A, S = B @ past, B @ B.mT
    P = S[0] if before is None else before
    found = [P.diagonal()]
    for k in range(1, blocks):
        P = S[k] + A[k] @ P @ A[k].mT
        found.append(P.diagonal())
    return torch.cat(found)[:n], P


@on_host
def long_row_norms(C: Tensor, inverse: Tensor) -> Tensor:
    """Norms of the rows of W C^{-1}, (steps,), C as (steps or 1, bands), W^{-1} as there; some blocks at a time."""
    (n, _), bands = inverse.shape, C.shape[1]
    reach, found, P = bands + 2, [], None
    size = max(2, AT_ONCE // reach) * reach
    for start in range(0, n, size):
        first, stop = max(0, start - reach), min(start + size, n)
        place = torch.arange(first, min(stop + 2, n)) + torch.arange(bands)[:, None]  # [j, s]: row s + j
        E = C.mT.expand(-1, n).gather(1, place.clamp_max(n - 1)) * (place < n)
        F = _product(E, inverse[first : stop + 2])[:, : stop - first]
        variances, P = _variances(F, _layout(stop - first, reach), P)
        found.append(variances[start - first :])
    return torch.cat(found).sqrt()
