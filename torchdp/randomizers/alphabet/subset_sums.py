"""How many of n random subsets hold each value: exact in distribution, without drawing one of them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.randomizers.draws import without_replacement

TAIL = 56.0  # -log of the chance, 1e-24, that a table of picks leaves out
CELLS = 2**20  # of a table, and of the crowds that one step works on


def subset_sums(free: Tensor, bound: Tensor, w: int, draws: Draws) -> Tensor:
    """Free users hold a uniform w-subset of [0, k), those bound to v a uniform one among those that hold v.

    free: (repetitions,), bound: (repetitions, k), int64 users; returns how many hold each value, (repetitions, k).

    [0, k) is halved again and again. Of a user all that matters in a block of values is how many of them it holds: of
    those a hypergeometric number lies in the block's first half, and given their numbers its sets in the two halves
    are uniform and independent. So crowds are split, not users. A block of s values meets about s^{1/2} different
    numbers, which split into as many: O(k log k) binomials whatever w and the users, fewer where users are few.
    """
    repetitions, k = bound.shape
    size = 1 << (k - 1).bit_length()
    crowds = torch.zeros(2, repetitions, 1, w + 1, dtype=torch.int64, device=bound.device)  # the free, the bound
    crowds[0, :, 0, w], crowds[1, :, 0, w - 1] = free, bound.sum(1)
    before = torch.nn.functional.pad(bound.cumsum(1), (1, 0))
    # all blocks of ``size`` values, and a smaller last one
    whole, rest = (crowds, None) if k == size else (crowds[:, :, :0], crowds)
    while size > 1:
        half, start, done = size // 2, whole.shape[2] * size, []
        if start:
            own = before[:, : start + 1 : half].diff()  # users bound to values of each half
            done.append(torch.stack(split(whole, size, half, own[:, ::2], draws), 3).flatten(2, 3))
        if rest is not None and k - start > half:
            own = (before[:, start + half] - before[:, start])[:, None]
            left, rest = split(rest, k - start, half, own, draws)
            done.append(left)
        elif rest is not None and k - start == half:
            done, rest = [*done, rest[..., : half + 1]], None
        width = max(each.shape[-1] for each in done)
        whole, size = torch.cat([_pad(each, width) for each in done], 2), half
    return whole[0, :, :, 1] + bound


def split(crowds: Tensor, s: int, h: int, own: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Crowds of blocks of s values in those of their first h values and of the other s - h.

    crowds: (2, repetitions, blocks, r + 1), how many free and bound users hold r values of the block, a bound user's
    own not counted; own: (repetitions, blocks), users bound to one of the first h.
    """
    free, bound = crowds
    most = crowds.shape[-1] - 1
    shape = tuple(crowds.shape[:-1])
    left = crowds.new_zeros(*shape, min(h, most) + 1)
    right = crowds.new_zeros(*shape, min(s - h, most) + 1)
    first = without_replacement(bound, own, draws)
    for crowd, values, a, (kind, other) in (
        (free, s, h, (0, 0)),
        (first, s - 1, h - 1, (1, 0)),
        (bound - first, s - 1, h, (0, 1)),
    ):
        for block, r, here, users in picks(crowd, values, a, draws):
            _add(left[kind], block, here, users)
            _add(right[other], block, r - here, users)
    return left, right


def picks(crowds: Tensor, s: int, h: int, draws: Draws) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(block, r, picks, users): of r values picked from s without replacement, how many are among the first h.

    crowds: (repetitions, blocks, r + 1) users who pick r; block: of repetitions * blocks.
    """
    flat = crowds.flatten(0, 1)
    held = flat.any(0).nonzero()[:, 0]
    width = 2 * math.ceil(math.sqrt(TAIL / 2 * max(1, min(s - h, h)))) + 2
    for part in held.split(max(1, CELLS // min(width, h + 1))) if len(held) else ():
        first, sums = _hypergeometric(part, s, h)
        columns = flat[:, part[0] : part[-1] + 1] if len(part) == int(part[-1] - part[0]) + 1 else flat[:, part]
        block, row = columns.nonzero(as_tuple=True)
        users = columns[block, row]
        share = torch.bincount(users.clamp_max(width).cumsum(0) // CELLS)  # crowds that come out of each step
        for some in torch.arange(len(row), device=row.device).split(share.cpu().tolist()):
            origin, place, crowd = _descended(row[some], users[some], sums, draws)
            origin = some[origin]
            at = row[origin]
            yield block[origin], part[at], first[at] + place, crowd


def _hypergeometric(r: Tensor, s: int, h: int) -> tuple[Tensor, list[Tensor]]:
    """Least number of picks in the table of each r, and the chances of it and the next ones, added up in pairs.

    What lies farther from the mean than (TAIL/2 min(r, s - r, h, s - h))^{1/2} is left out. Source: Hoeffding (1963),
    sections 2 and 6.
    """
    reach = (TAIL / 2 * torch.minimum(r, s - r).clamp(max=min(h, s - h)).double()).sqrt().ceil().long() + 1
    mean = r * h // max(1, s)
    low = torch.maximum((r - (s - h)).clamp_min(0), mean - reach)
    high = torch.minimum(r.clamp_max(h), mean + reach)
    j = low[:, None] + torch.arange(int((high - low).max()) + 1, device=r.device)
    inside = j < high[:, None]
    up = (h - j) * (r[:, None] - j)
    down = (j + 1) * (s - h - r[:, None] + j + 1)
    steps = torch.where(inside, up.double() / down.double(), 1.0).log_()
    logs = torch.nn.functional.pad(steps[:, :-1].cumsum(1), (1, 0))
    law = torch.where(j <= high[:, None], logs - logs.amax(1, keepdim=True), -torch.inf).exp_()
    sums = [_pad(law, 1 << (law.shape[1] - 1).bit_length())]
    while sums[-1].shape[1] > 1:
        sums.append(sums[-1].unflatten(1, (-1, 2)).sum(-1))
    return low, sums


def _descended(row: Tensor, users: Tensor, sums: list[Tensor], draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
    """Crowds drawn from the rows of a table, half by half: (which crowd, column, users), where there are users."""
    origin, place = torch.arange(len(row), device=row.device), torch.zeros_like(row)
    for level in reversed(sums[:-1]):
        pair = level.view(-1, 2).index_select(0, row[origin] * (level.shape[1] // 2) + place)
        share = torch.where(pair[:, 1] > 0, pair[:, 0] / (pair[:, 0] + pair[:, 1]), 1.0)
        first = draws.binomial(users, share)
        both = torch.stack([first, users - first], -1)
        kept = both.flatten().nonzero()[:, 0]
        users, half = both.flatten()[kept], kept // 2
        origin, place = origin[half], 2 * place[half] + (kept - 2 * half)
    return origin, place, users


def _add(crowds: Tensor, block: Tensor, r: Tensor, users: Tensor) -> None:
    crowds.view(-1).index_add_(0, block * crowds.shape[-1] + r, users)


def _pad(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]))
