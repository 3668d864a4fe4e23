"""Public calls of the form of a given one: they compile to the same machine code and pass every branch of it.

Of the given call the dtypes, the alignment, the kinds of strides and the constants of compilation are copied, and of
its numbers nothing else: those are chosen so that every mask cuts, every loop is passed twice and every rare case is
met. No value of a tensor of the caller's is read, but for how many users hold each point, which the form depends on.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchdp.kernels.dispatch import launches

Call = tuple[tuple[Any, ...], dict[str, Any]]
KEY, FIRST = 0x243F6A8885A308D3, 7  # public; the first user is odd
STEP, RARE = 40, 1010197384  # of correlated noise: number RARE of this step takes further bits


def told(number: int) -> tuple[bool, bool]:
    """What the value of a number tells the compiler."""
    return number == 1, number % 16 == 0


def least(given: int, start: int, trait: Callable[[int], Any] = told) -> int:
    """The least number from ``start`` on, else from 1 on, that has the given one's trait."""
    return next(
        number for number in (*range(start, 2**13), *range(1, start), given) if trait(number) == trait(given)
    )


def groups(width: int) -> int:
    """How many groups of four hold so many numbers, rounded up to a power of two."""
    return power_of_two((width + 3) // 4)


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def alike(public: Tensor, given: Tensor) -> Tensor:
    """``public`` in the dtype, alignment and kinds of strides (1, a multiple of 16, neither) of ``given``."""
    strides = [1] * public.ndim
    extent = 1
    steps = launches.strides(given)
    for axis in sorted(range(public.ndim), key=lambda axis: steps[axis] or math.inf):  # 0 is a multiple of 16
        step = steps[axis]
        if step % 16 == 0:
            strides[axis] = -(-extent // 16) * 16
        elif step != 1:
            strides[axis] = extent + (extent == 1 or extent % 16 == 0)
        extent = max(extent, strides[axis] * public.shape[axis])
    shift = given.data_ptr() % 16 // given.element_size()
    buffer = torch.empty(shift + extent, dtype=given.dtype, device=given.device)
    return buffer.as_strided(public.shape, strides, shift).copy_(public)


def aligned(public: Tensor, given: Tensor) -> Tensor:
    """``public`` in the dtype and alignment of ``given``, contiguous, as a launcher asks that takes addresses alone."""
    shift = given.data_ptr() % 16 // given.element_size()
    buffer = torch.empty(shift + public.numel(), dtype=given.dtype, device=given.device)
    return buffer[shift:].view(public.shape).copy_(public)


def wave(device: torch.device, *shape: int) -> Tensor:
    """float64 in (0, 1): the same on every device, without a generator."""
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device=device)
    return ((place * 0.6180339887498949 + 0.25) % 1).clamp(2.0**-53, 1 - 2.0**-53).view(shape)


def types(x: Tensor, n: int, k: int) -> Tensor:
    """Of n users, in no order; some hold none of the k types, on both sides, where the dtype of x has such numbers."""
    held, most = torch.arange(n, device=x.device) * 7919 % k, torch.iinfo(x.dtype)
    held[::97], held[1::97] = k, -1
    return alike(held.clamp(most.min, most.max), x)


def keystream(key: Tensor, first: int, blocks: int, group: int = 0, stream: int = 0) -> list[Call]:
    """The counter carries into its upper half."""
    return [((words_key(key), 2**32 - 5, 300, 2**32 - 7, 3), {})]


def words_key(given: Tensor) -> Tensor:
    return alike(torch.arange(1, 9, dtype=torch.int32, device=given.device) * 0x1234567, given)


def response_counts(x: Tensor, k: int, step: int, key: int, first: int = 0) -> list[Call]:
    """Half of the users report another value than their own."""
    k = least(k, 9, lambda k: max(32, power_of_two(min(k, 1025))))
    step = 2**66 // (16 * k + 3)  # of a quotient in five the multiplication finds one less
    return [((types(x, 3000, k), k, step, KEY, FIRST), {})]


def unary_counts(x: Tensor, k: int, lost: float, off: float, key: int, first: int = 0) -> list[Call]:
    """Chances of no binary digit, of 52 and of more than a word holds."""
    k = least(k, 33 if k > 16 else 2, lambda k: min(32, power_of_two(k)))
    chances = (0.6, 0.3), (1.0, 0.0), (0.0, 1.0), (0.3, 3 * 2.0**-72)
    return [((types(x, 70, k), k, *each, KEY, FIRST), {}) for each in chances]


def crowd(points: Tensor, rows: int, steps: int, width: int) -> tuple[Tensor, Tensor]:
    """Points, and how many users hold each: ``steps`` tiles of ``rows`` users and half a one; nobody; one user."""
    held = [steps * rows + rows // 2 + 1, 0, *[1] * (33 if rows < 64 else 16)] if rows > 1 else [1, 0, 1]
    counts = torch.tensor(held, dtype=torch.int64, device=points.device)  # of as many users in the mean
    return alike(wave(points.device, len(held), width) / width**0.5, points), counts


def privunit(
    points: Tensor, counts: Tensor, lift: Tensor, along: Tensor, across: Tensor, key: int, first: int, **law: float
) -> list[Call]:
    from torchdp.kernels.normals.pieces import tile
    from torchdp.kernels.privunit.fused import STEPS, TILE

    width = least(points.shape[1], 2, lambda width: (told(width), groups(width)))
    points, counts = crowd(points, tile(counts, max(1, TILE // groups(width))), STEPS, width)
    height, turn = wave(points.device, 2, int(counts.sum()))
    draws = alike(2 * height - 1, lift), alike(turn, along), alike((1 - turn.square()).sqrt(), across)
    return [((points, counts, *draws, KEY, FIRST), {"radius": 1.0, "mean": 0.3})]


def waves(x: Tensor, frequencies: Tensor, phases: Tensor, labels: Tensor, classes: int, *drawn: int) -> list[Call]:
    """Products that add up without rounding; nobody at 0, whose bits are sure, and nobody who is infinitely far off.

    drawn: key, first, repeats, where bits are drawn.
    """
    device, users, features = x.device, least(len(x), 150), 140
    d, count, classes = least(x.shape[1], 37), least(len(phases), 2), least(classes, 17)
    whole = lambda k, *shape: (wave(device, *shape) * k).floor()  # noqa: E731
    public = (whole(17, users, d) - 8) / 8
    public[0], public[1:2] = 0, torch.inf
    turns = whole(256, count, features) / 256
    turns[0, :2] = 0
    held = torch.arange(users, device=device) % classes
    held[held == 1] = 0
    call = alike(public, x), alike((whole(13, d, features) - 6) / 64, frequencies), alike(turns, phases)
    more = (KEY, FIRST, least(drawn[2], 2)) if drawn else ()
    return [((*call, alike(held, labels), classes, *more), {})]


def secure_sketch(
    sums: Tensor, values: Tensor, rows: Tensor, signs: Tensor, units: Tensor, key: Tensor, first: int, scale: float
) -> list[Call]:
    """Rows that meet, and entries of two programs, of which the first begins before its first client."""
    (servers, height, columns), copies, clients = sums.shape, least(len(rows), 2), 130
    size, columns = height * columns, least(columns, 5)
    height = next(rows for rows in (3, 16, 1) if told(rows * columns) == told(size))
    place = torch.arange(copies * clients, device=sums.device).view(copies, clients)
    call = (
        alike(torch.zeros(servers * height * columns), sums.view(-1)).view(servers, height, columns),
        alike(wave(sums.device, clients, columns) - 0.5, values),
        *(alike(place * 37 % height, rows), alike(place // 3 % 2 * 2 - 1, signs)),
        alike(torch.full((height,), 2.0**20, dtype=torch.float32), units),
    )
    return [((*call, words_key(key), 3, 2.0**12), {})]


def normals(
    key: int, first: int, size: int, width: int, dtype: torch.dtype, stream: int, device: torch.device
) -> list[Call]:
    """Numbers of several programs, rows that end within one."""
    width = least(width, 5, lambda width: (told(width), told(-(-width // 4)), width % 4 == 0))
    return [((KEY, FIRST, 2100 // (width + 3) * 4 + 3, width, dtype, 3, device), {})]


def correlated_noise(
    changed: tuple[Tensor, Tensor], total: Tensor, now: Any, key: Tensor, step: int, first: int
) -> list[Call]:
    """Two programs, two rows beyond the running ones, where any, which w and u take; further bits are taken.

    One number where the rows of a state of several lie side by side, as rows of one number alone do.
    """
    (out, state), running, device = changed, len(now.decays), total.device
    size, rare = (1, 0) if launches.strides(state)[0] == 1 else (1040, 501)
    rings, draws = 2 * (len(state) > running), 3 if len(now.lags) > 1 else 1
    sum_, kept = alike(wave(device, size), total), alike(2 * wave(device, running + rings, size) - 1, state)
    made = sum_ if out.data_ptr() == total.data_ptr() else alike(torch.zeros(size), out)
    public = {"gains": wave(device, running + rings) - 0.4, "decays": wave(device, running) - 0.7}
    public |= {"numbers": 1.5 - wave(device, 1 + draws), "lags": 5 * torch.arange(draws, device=device)}
    tables = {name: alike(x, getattr(now, name)) for name, x in public.items()}
    given = replace(now, **tables, slots=(running + 1, running) if rings else (-1, -1))
    return [(((made, kept), sum_, given, words_key(key), STEP, RARE - rare), {})]


def guide(parts: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Random first bits in the form of the given ones, and a guide of which one cell in eleven is open."""
    place = torch.arange(max(len(parts), cells), device=parts.device)
    bits = place[: len(parts)] * 0x9E3779B97F4A7C1  # modulo 2^64: every bit changes
    held = (place[:cells] * 40503 % 1201 - 600).to(torch.int16)
    held[::11], held[1] = -(2**15), 2**15 - 1
    return bits.bitwise_right_shift_(13).to(parts.dtype), held


def guided_draws(out: Tensor, parts: Tensor, cells: Tensor, times: int = 0) -> list[Call]:
    """Three programs and a part of one; open draws in each, and none is where they would be without the last."""
    bits, held = guide(parts[:1].expand(13_000), len(cells))
    start = wave(out.device, len(bits)).mul_(1000).long()
    return [((aligned(start, out), aligned(bits, parts), aligned(held, cells), 5 if times else 0), {})]
