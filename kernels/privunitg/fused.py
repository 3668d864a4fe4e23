"""Sums of PrivUnitG messages without the messages: sums of what they are linear in, for pieces of users of one type."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch.launches import launched
from torchdp.kernels.normals.fused import four
from torchdp.kernels.normals.pieces import on, pieces, power_of_two
from torchdp.kernels.philox.fused import side_by_side, unit, words
from torchdp.kernels.privunitg import reference
from torchdp.kernels.privunitg.quantile import tilted

COORDINATES: tl.constexpr = tl.constexpr(reference.COORDINATES)
LIFT: tl.constexpr = tl.constexpr(reference.LIFT)
TAU: tl.constexpr = tl.constexpr(reference.TAU)
MOST_ROWS = 64  # users in a tile
TILE = 256  # users x groups of four in a tile
STEPS = 16  # tiles added up in the dtype of points
PIECE = 1024  # users of a program, at least


@launched("key", "across")
def normals_kernel(
    sums,
    starts,
    stops,
    key,
    width,
    across: tl.int32,
    Q: tl.constexpr,
    U: tl.constexpr,
    STEPS: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """sums[p, :width] (float64): over the users of piece p, their ``width`` normals.

    Q groups of four a program, ``across`` programs a piece.
    """
    piece = (tl.program_id(0) // across).to(tl.int64)
    start, stop = tl.load(starts + piece), tl.load(stops + piece)
    group = (tl.program_id(0) % across) * Q + tl.arange(0, Q)
    groups = tl.zeros([U, Q], tl.int32) + group[None, :]
    user = tl.zeros([U, Q], tl.int64) + start + tl.arange(0, U)[:, None]
    total0 = tl.zeros([U, Q], tl.float64)
    total1, total2, total3 = total0, total0, total0
    tiles = ((stop - start + U - 1) // U).to(tl.int32)
    for tile in range(0, tiles, STEPS):
        zero = tl.zeros([U, Q], tl.float32)
        part0, part1, part2, part3 = zero, zero, zero, zero
        if DOUBLE:
            part0, part1, part2, part3 = total0, total1, total2, total3
        for _ in range(tile, tl.minimum(tile + STEPS, tiles)):
            a, b, c, d = four(key, user, groups, COORDINATES, DOUBLE)
            inside = user < stop
            part0 += tl.where(inside, a, 0.0)
            part1 += tl.where(inside, b, 0.0)
            part2 += tl.where(inside, c, 0.0)
            part3 += tl.where(inside, d, 0.0)
            user += U
        if DOUBLE:
            total0, total1, total2, total3 = part0, part1, part2, part3
        else:
            total0 += part0.to(tl.float64)
            total1 += part1.to(tl.float64)
            total2 += part2.to(tl.float64)
            total3 += part3.to(tl.float64)
    total = side_by_side(tl.sum(total0, 0), tl.sum(total1, 0), tl.sum(total2, 0), tl.sum(total3, 0))
    column = (tl.program_id(0) % across) * (4 * Q) + tl.arange(0, 4 * Q)
    tl.store(sums + piece * width + column, total, mask=column < width)


@launched("key")
def scalars_kernel(lifts, taus, starts, stops, law, key, U: tl.constexpr, DOUBLE: tl.constexpr):
    """lifts[p], taus[p] (float64): over the users of piece p, g0 and tau. law: threshold, upper, survival, float64."""
    piece = tl.program_id(0).to(tl.int64)
    start, stop = tl.load(starts + piece), tl.load(stops + piece)
    threshold, upper, survival = tl.load(law), tl.load(law + 1), tl.load(law + 2)
    user, zero = start + tl.arange(0, U), tl.zeros([U], tl.int32)
    lift, tau = tl.zeros([U], tl.float64), tl.zeros([U], tl.float64)
    tiles = ((stop - start + U - 1) // U).to(tl.int32)
    for _ in range(tiles):
        inside = user < stop
        g, _b, _c, _d = four(key, user, zero, LIFT, DOUBLE)
        lift += tl.where(inside, g.to(tl.float64), 0.0)
        a, b, c, d = words(key, user, zero, TAU)
        tau += tl.where(inside, tilted(unit(a, b), unit(c, d), threshold, upper, survival), 0.0)
        user += U
    tl.store(lifts + piece, tl.sum(lift, 0))
    tl.store(taus + piece, tl.sum(tau, 0))


def sums(
    points: Tensor,
    counts: Tensor,
    key: int,
    first: int,
    *,
    radius: float,
    threshold: float,
    upper: float,
    survival: float,
) -> Tensor:
    """reference.sums."""
    (_, width), device, double = points.shape, points.device, points.dtype == torch.float64
    law = torch.tensor([threshold, upper, survival], dtype=torch.float64, device=device)
    total = torch.zeros(width, dtype=torch.float64, device=device)
    for part in pieces(counts, first, MOST_ROWS, PIECE).split(width):
        size, ends = len(part.type), (part.start, part.stop)
        groups = triton.cdiv(width, 4)
        q = min(power_of_two(groups), max(1, TILE // part.rows))
        g = torch.empty((size, width), dtype=torch.float64, device=device)
        lift, tau = g.new_empty(size), g.new_empty(size)
        with on(device):
            across = triton.cdiv(groups, q)
            grid = (size * across,)  # one axis: the others end at 65535, at a million coordinates
            normals_kernel[grid](g, *ends, key, width, across, Q=q, U=part.rows, STEPS=STEPS, DOUBLE=double)
            warps = max(1, part.rows // 32)
            scalars_kernel[(size,)](lift, tau, *ends, law, key, U=part.rows, DOUBLE=double, num_warps=warps)
        x = points.index_select(0, part.type).double()
        total += reference.message(x, g, lift, tau, radius=radius, threshold=threshold).sum(0)
    return total
