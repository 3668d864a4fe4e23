"""Sums of PrivUnit messages: a program holds some users' normals in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchdp.kernels.dispatch import launched
from torchdp.kernels.normals.fused import four
from torchdp.kernels.normals.pieces import pieces, power_of_two
from torchdp.kernels.philox.fused import side_by_side
from torchdp.kernels.privunit import reference

COORDINATES: tl.constexpr = tl.constexpr(reference.COORDINATES)
# users x groups of four in a tile
TILE = 256
# tiles added up in the dtype of points
STEPS = 16
# users of a program, at least
PIECE = 1024


@launched("key", "first")
def sum_kernel(
    sums,
    reaches,
    axes,
    heights,
    lifts,
    alongs,
    acrosses,
    kinds,
    starts,
    stops,
    key,
    first,
    width,
    tiny,
    Q: tl.constexpr,
    U: tl.constexpr,
    STEPS: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """sums[p, :width] (float64): over the users of piece p, S (g - a x')/N; reaches[p]: T.

    axes x' (m, width), heights (m,): of the dtype of points; lifts g0, alongs T, acrosses S:
    float64, of users first,
    ...; tiny: (1,), the least length. Q groups of four hold the whole vector.
    """
    piece = tl.program_id(0).to(tl.int64)
    kind = tl.load(kinds + piece)
    start = tl.load(starts + piece)
    stop = tl.load(stops + piece)
    group = tl.arange(0, Q)
    column = group * 4
    axis = axes + kind * width + column
    height = tl.load(heights + kind)
    least = tl.load(tiny)
    x0 = tl.load(axis, mask=column < width, other=0.0)[None, :]
    x1 = tl.load(axis + 1, mask=column + 1 < width, other=0.0)[None, :]
    x2 = tl.load(axis + 2, mask=column + 2 < width, other=0.0)[None, :]
    x3 = tl.load(axis + 3, mask=column + 3 < width, other=0.0)[None, :]
    user = start + tl.arange(0, U)
    groups = tl.zeros([U, Q], tl.int32) + group[None, :]
    zero = tl.zeros([U, Q], tl.int64)
    total0 = tl.zeros([U, Q], tl.float64)
    total1, total2, total3 = total0, total0, total0
    reach = tl.zeros([U], tl.float64)
    tiles = ((stop - start + U - 1) // U).to(tl.int32)
    for tile in range(0, tiles, STEPS):
        none = tl.zeros([U, Q], tl.float32)
        part0, part1, part2, part3 = none, none, none, none
        if DOUBLE:
            part0, part1, part2, part3 = total0, total1, total2, total3
        for _ in range(tile, tl.minimum(tile + STEPS, tiles)):
            inside = user < stop
            lift = tl.load(lifts + (user - first), mask=inside, other=0.0).to(height.dtype)
            across = tl.load(acrosses + (user - first), mask=inside, other=0.0).to(height.dtype)
            reach += tl.load(alongs + (user - first), mask=inside, other=0.0)
            g0, g1, g2, g3 = four(key, zero + user[:, None], groups, COORDINATES, DOUBLE)
            g0 = tl.where(column[None, :] < width, g0, 0.0)
            g1 = tl.where(column[None, :] + 1 < width, g1, 0.0)
            g2 = tl.where(column[None, :] + 2 < width, g2, 0.0)
            g3 = tl.where(column[None, :] + 3 < width, g3, 0.0)
            dot = tl.sum(g0 * x0 + g1 * x1 + g2 * x2 + g3 * x3, 1) + lift * height
            g0 -= dot[:, None] * x0
            g1 -= dot[:, None] * x1
            g2 -= dot[:, None] * x2
            g3 -= dot[:, None] * x3
            last = lift - dot * height
            length = tl.sqrt(tl.sum(g0 * g0 + g1 * g1 + g2 * g2 + g3 * g3, 1) + last * last)
            share = (across / tl.maximum(length, least))[:, None]  # 0 beyond the piece
            part0 += share * g0
            part1 += share * g1
            part2 += share * g2
            part3 += share * g3
            user += U
        if DOUBLE:
            total0, total1, total2, total3 = part0, part1, part2, part3
        else:
            total0 += part0.to(tl.float64)
            total1 += part1.to(tl.float64)
            total2 += part2.to(tl.float64)
            total3 += part3.to(tl.float64)
    tl.store(reaches + piece, tl.sum(reach, 0))
    total = side_by_side(tl.sum(total0, 0), tl.sum(total1, 0), tl.sum(total2, 0), tl.sum(total3, 0))
    place = tl.arange(0, 4 * Q)
    tl.store(sums + piece * width + place, total, mask=place < width)


def sums(
    points: Tensor,
    counts: Tensor,
    lift: Tensor,
    along: Tensor,
    across: Tensor,
    key: int,
    first: int,
    *,
    radius: float,
    mean: float,
) -> Tensor:
    """reference.sums."""
    width = points.shape[1]
    device = points.device
    stretch, height = reference.lifted(points, radius)
    axes = (points / stretch[:, None]).contiguous()
    tiny = points.new_tensor([torch.finfo(points.dtype).tiny])
    draws = [draw.double().contiguous() for draw in (lift, along, across)]
    q = power_of_two(triton.cdiv(width, 4))
    total = torch.zeros(width, dtype=torch.float64, device=device)
    for part in pieces(counts, first, max(1, TILE // q), PIECE).split(width):
        noise = torch.empty((len(part.type), width), dtype=torch.float64, device=device)
        reach = noise.new_empty(len(noise))
        with torch.cuda.device_of(points):
            sum_kernel[(len(noise),)](
                noise,
                reach,
                axes,
                height,
                *draws,
                part.type,
                part.start,
                part.stop,
                key,
                first,
                width,
                tiny,
                Q=q,
                U=part.rows,
                STEPS=STEPS,
                DOUBLE=points.dtype == torch.float64,
                num_warps=max(4, q // 32),  # a thread holds at most two users' groups
            )
        total += noise.sum(0) + reach @ axes.index_select(0, part.type).double()
    return total * (radius / mean)
