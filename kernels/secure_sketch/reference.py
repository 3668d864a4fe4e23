"""The words of the keyed secure sketch: all noise from ChaCha20 under one key.

Entry e = (i s + c) d + l belongs to client i, copy c, column l. Its noise takes the e-th 64 bits of
the stream (group 0, NOISE).

Noise is round(unit G) of real normals: float64 computes unit G and a bound on its error, what is
not drawn of its uniform numbers included. Where a half lies within the bound, 192 further bits of
each uniform number, of the stream (group 0, FURTHER), and arithmetic of 448 bits decide: the
integers are a function of the key alone.
"""

import math

import numpy as np
import torch
from scipy.sparse import csc_array
from torch import Tensor

from torchdp.kernels.chacha import keystream
from torchdp.kernels.normals.exact import arithmetic, joined, two_normals

# streams: the last word of ChaCha20's nonce
NOISE, FURTHER = 0, 2
# units of one client's noise, at most
SURE = 2.0**28
# units up to which rounding is decided without error; beyond, floats decide
FARTHEST = 2.0**46
# of one entry's noise from a rounded normal, for uniform words and units of 2^-20 to SURE
VARIATION = 2.0**-200
# of the error bound
MARGIN = 4
UNIT = 2.0**-53
# |dG| <= ROUNDINGS UNIT r + rest/r, logarithm, sine, cosine to 4 units in the last place
ROUNDINGS = 64
# in which C++ defines sums modulo 2^bits
UNSIGNED = {torch.int32: np.uint32, torch.int64: np.uint64}
LOW = 2**12 - 1
MIDDLE = 2**52 - 1


def integers(
    key: Tensor, first: int, count: int, dtype: torch.dtype, group: int, stream: int
) -> Tensor:
    """Entries first, ..., first + count - 1 of the keystream, low bytes first: (count,)."""
    held = 64 // dtype.itemsize  # by one block
    start = first // held
    stop = (first + count + held - 1) // held
    words = keystream(key, start, stop - start, group, stream)
    return words.view(dtype)[first - start * held :][:count]


def _polar(key: Tensor, first: int, count: int) -> tuple[Tensor, Tensor, int]:
    """Radii and angles of the pairs that hold some entries, float64; the first one's entry.

    Box and Muller (1958): entries 2 j and 2 j + 1 of N(0, 1) share a radius, of 76 bits, at most
    10.34, and an angle, of 52: (b + 1/2)/2^bits, b of the pair's 128 bits.
    """
    start = first // 2 * 2
    stop = (first + count + 1) // 2 * 2
    drawn = integers(key, start, stop - start, torch.int64, 0, NOISE)
    one, two = drawn.view(-1, 2).unbind(-1)
    high = (one >> 12 & MIDDLE).double() * 2.0**-52
    bits = (one & LOW) << 12 | two & LOW
    low = (bits.double() + 0.5) * 2.0**-76
    # by abs no -0, whose error would have no bound
    radius = high.add_(low).log_().abs_().mul_(2).sqrt_()
    turns = (two >> 12 & MIDDLE).double().add_(0.5).mul_(2.0**-52)
    return radius, turns.mul_(2 * math.pi), start


def rounded_normals(key: Tensor, first: int, units: Tensor) -> Tensor:
    """round(unit G) of entries first, first + 1, ...: units (count,) float64 -> (count,) int64.

    Guarantees: each entry is within total variation ``VARIATION`` of a rounded normal, by uniform
    words, up to ``SURE``
        units; within unit/``SURE`` times that up to ``FARTHEST``.
    """
    radius, angle, start = _polar(key, first, len(units))
    t = _across(radius, angle)[first - start :][: len(units)] * units
    whole = t.round()
    widest = float(units.max()) if len(units) else math.inf
    if widest > FARTHEST:
        return whole.long()
    distance = t.sub_(whole).abs_()
    # by the largest error of all entries, then by their own: what is near a half is decided anew
    largest = widest * float(_error(radius.amax(), radius.amin()))
    near = (~(distance < 0.5 - largest)).nonzero()[:, 0]  # NaN is near
    own = radius[(near + (first - start)) // 2]
    near = near[~(distance[near] < 0.5 - units[near] * _error(own, own))]
    for entry, unit in zip(near.cpu().tolist(), units[near].cpu().tolist(), strict=True):
        whole[entry] = exactly(key, first + entry, unit)
    return whole.long()


def exactly(key: Tensor, entry: int, unit: float) -> int:
    """The same for one entry, by arithmetic of 448 bits."""
    # 268 bits of U and 244 of the angle, by 192 further ones each
    one, two = integers(key, entry // 2 * 2, 2, torch.int64, 0, NOISE).cpu().tolist()
    further = integers(key, entry // 2 * 8, 6, torch.int64, 0, FURTHER).cpu().tolist()
    context = arithmetic()
    radius = joined(further[:3], (one >> 12 & MIDDLE) << 24 | (one & LOW) << 12 | two & LOW)
    angle = joined(further[3:], two >> 12 & MIDDLE)
    share = context.ldexp(2 * radius + 1, -269)
    turn = context.ldexp(2 * angle + 1, -244)
    both = two_normals(context, share, turn)
    return int(context.nint(both[entry % 2] * unit))


def _error(longest: Tensor, shortest: Tensor) -> Tensor:
    """Bound on |dG| for radii between."""
    # what is not drawn of U moves log U by e^{r^2/2} 2^-77
    rest = (longest.square() / 2).exp() * 2.0**-77 + 2 * UNIT
    return MARGIN * (ROUNDINGS * UNIT * longest + rest / shortest)


def _across(radius: Tensor, angle: Tensor) -> Tensor:
    """Box and Muller's pairs, one after the other."""
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1).view(-1)


def words(
    values: Tensor,
    rows: Tensor,
    signs: Tensor,
    units: Tensor,
    key: Tensor,
    first: int,
    scale: float,
    dtype: torch.dtype,
) -> Tensor:
    """sign (trunc(value scale) + round(unit_j G)), j = rows[c, i], modulo 2^bits.

    Args:
        values: (k, d), of clients first, first + 1, ...
        rows: (s, k), of the sketch.
        signs: (s, k).
        units: (m,), a client's noise in each row.
        key: (8,) int32.
        first: the first client's number.
        scale: 2^f.
        dtype: of the words.

    Returns: (k, s, d), client by client.
    """
    shape = (len(values), len(rows), values.shape[1])
    deviations = units[rows.mT][..., None].expand(shape).reshape(-1)
    whole = rounded_normals(key, first * math.prod(shape[1:]), deviations).view(shape)
    whole += (values.double() * scale).long()[:, None]  # toward zero
    return whole.mul_(signs.mT[..., None]).to(dtype)


def add_rows(table: Tensor, places: Tensor, words: Tensor) -> None:
    """table[places[p]] += words[p] in place, modulo 2^bits: (m, d), (p,), (p, d).

    On a CPU the sum of all of them, or a product with a sparse matrix of ones: the integers of
    ``index_add_`` in less time.
    """
    count = len(places)
    if len(table) == 1 and table.device.type == "cpu":
        table += words.sum(0, dtype=table.dtype)
        return
    if table.device.type != "cpu" or table.dtype not in UNSIGNED or count < len(table):
        table.index_add_(0, places, words)
        return
    unsigned = UNSIGNED[table.dtype]
    ones = np.ones(count, unsigned)
    matrix = csc_array((ones, places.numpy(), np.arange(count + 1)), shape=(len(table), count))
    sums = matrix @ words.contiguous().numpy().view(unsigned)
    table += torch.from_numpy(sums.view(words.numpy().dtype))
