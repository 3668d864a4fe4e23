"""Calls of every fused kernel in its forms: each makes machine code of its own, or takes a branch of its own.

tests/kernels/test_trials.py plants a fault in each branch and names the call that meets it by its place here; on a GPU
first_day.py holds each call to its reference.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchdp.kernels import (
    chacha,
    correlated_noise,
    guided_draws,
    normals,
    privunit,
    response_counts,
    rounded_features,
    secure_sketch,
    unary_counts,
)
from torchdp.kernels.dispatch import Kernel, trials
from torchdp.kernels.dispatch.every import KERNELS

Form = tuple[Kernel, tuple[Any, ...], dict[str, Any]]  # an operation, its arguments and options
BITS, SHORT, LONG = torch.int64, torch.float32, torch.float64


def wave(*shape: int) -> Tensor:
    return trials.wave(torch.get_default_device(), *shape)


def key() -> Tensor:
    return torch.arange(3, 11, dtype=torch.int32)


def reports(k: int, dtype: torch.dtype = BITS, key: int = 5, first: int = 0, step: int = 1) -> tuple:
    x = (torch.arange(300) % k).to(dtype)[::step]
    return response_counts.COUNTS, (x, k, 2**63 // (k + 3), key, first)


def bits(k: int, lost: float = 0.3, off: float = 0.2, first: int = 0) -> tuple:
    return unary_counts.TALLY, (torch.arange(40) % k, k, lost, off, -5, first)


def vectors(kernel: Kernel, width: int, users: list[int], dtype: torch.dtype = SHORT) -> tuple:
    points, counts, law = wave(len(users), width).to(dtype) / width, torch.tensor(users), {"radius": 1.0}
    if kernel is privunit.SUMS:
        return kernel, (points, counts, *wave(3, sum(users)) / 2, 3, 2**40), law | {"mean": 0.5}
    return kernel, (points, counts, 3, 2**40), law | {"threshold": 0.7, "upper": 0.6, "survival": 0.242}


def features(kernel: Kernel, d: int, count: int, classes: int, *drawn: int, users: int = 40) -> tuple:
    x, frequencies = ((wave(*shape) * 8).floor().to(SHORT) for shape in ((users, d), (d, 70)))
    phases = wave(count, 70).to(SHORT)
    return kernel, (x, frequencies, phases, torch.arange(users) % classes, classes, *drawn)


def sketch(
    servers: int,
    columns: int,
    copies: int = 2,
    ring: torch.dtype = BITS,
    real: torch.dtype = SHORT,
    clients: int = 5,
    first: int = 0,
) -> tuple:
    place = torch.arange(copies * clients).view(copies, clients)
    sums, values = torch.zeros(servers, 6, columns, dtype=ring), wave(clients, columns).to(real)
    call = (
        sums,
        values,
        place % 6,
        (place % 2 * 2 - 1).to(torch.int8),
        torch.ones(6, dtype=LONG),
        key(),
        first,
        8.0,
    )
    return secure_sketch.ADD, call


def noise(
    running: int,
    kept: int = 0,
    dtype: torch.dtype = SHORT,
    draws: int = 1,
    size: int = 40,
    step: int = 9,
    alias: bool = False,
    slots: tuple[int, int] | None = None,
) -> tuple:
    memory = running + kept
    total, state, rates = (wave(*shape).to(dtype) for shape in ((size,), (memory, size), (memory,)))
    numbers = torch.tensor([0.8, 1.7, -0.6, 0.3][: draws + 1], dtype=LONG)
    lags = torch.tensor([0, 2, 4][:draws], dtype=torch.int32)
    changed = total if alias else torch.zeros_like(total), state
    now = correlated_noise.Step(
        rates, rates[:running] / 3, numbers, lags, slots or (memory - 1 if kept else -1, -1)
    )
    return correlated_noise.ADD, (changed, total, now, key(), step, 3)


def guided(size: int, kind: torch.dtype, bits: int, times: int = 0, first: int = 0) -> tuple:
    parts, cells = trials.guide(torch.empty(size, dtype=kind), 2**bits)
    return guided_draws.FILL, (torch.arange(first, first + size), parts, cells, times)


def every() -> dict[str, list[Form]]:
    """Of each kernel of torchdp.kernels.dispatch.every, by package; on torch's default device."""
    calls = [
        (chacha.KEYSTREAM, (key(), 2**40, 5, 2**31 + 1, 2)),
        *(reports(2), reports(40, torch.uint8), reports(1024, torch.int32), reports(1500), reports(70_000)),
        *(reports(16, first=7), reports(1500, step=2), reports(1500, step=16), reports(300, torch.uint8)),
        reports(3, key=2**64 - 5, first=2**40),
        *(bits(2), bits(5, 0.0, 0.25, 9), bits(17), bits(100, 0.5)),
        *(
            vectors(privunit.SUMS, *each)
            for each in ((1, [3]), (3, [1, 1]), (4, [40]), (16, [3, 0, 2]), (17, [70]))
        ),
        *(vectors(privunit.SUMS, *each) for each in ((48, [9, 8]), (70, [40], LONG))),
        features(rounded_features.ROUNDED, 5, 1, 2, 3, 0, 1),
        features(rounded_features.ROUNDED, 64, 2, 17, 3, 2**40, 3),
        features(rounded_features.ROUNDED, 1, 3, 1, 2**63 - 1, 7, 1),
        features(rounded_features.POSITIVE, 5, 1, 2),
        features(rounded_features.POSITIVE, 33, 3, 16, users=48),
        *(sketch(2, 1, 1), sketch(3, 7), sketch(2, 16, 1, torch.int32, LONG, 16), sketch(2, 48, first=11)),
        *(noise(0), noise(3, size=48), noise(2, alias=True, dtype=LONG)),
        *(noise(0, 4), noise(0, 1, step=2**31 + 5), noise(2, draws=3), noise(1, 4, slots=(2, 4))),
        *(guided(70, torch.int16, 16), guided(5000, torch.int16, 16, 37), guided(1, torch.int16, 16)),
        *(guided(2048, torch.int32, 20), guided(3001, torch.int32, 20, 900, 2**40)),
        *(
            (normals.DRAWS, (3, 1, 5, width, dtype, 2, torch.get_default_device()))
            for width in (1, 3, 4, 16, 17, 64, 70, 128)
            for dtype in (SHORT, LONG)
        ),
    ]
    found: dict[str, list[Form]] = {kernel.name.partition(".")[0]: [] for kernel in KERNELS}
    for call in calls:
        found[call[0].name.partition(".")[0]].append((*call, {})[:3])
    return found


def answered(
    kernel: Kernel, form: Callable[..., Tensor | None], arguments: Iterable[Any], options: dict[str, Any]
) -> Tensor:
    """What a form returns or has changed, or both, of arguments that are copied."""
    each = [tuple(t.clone() for t in a) if isinstance(a, tuple) else a for a in arguments]
    each = [t.clone() if isinstance(t, torch.Tensor) and t.is_contiguous() else t for t in each]
    found = form(*each, **options)
    changed = torch.cat([t.flatten() for t in each[0]]) if isinstance(each[0], tuple) else each[0]
    if found is not None and kernel.case.returns:
        return torch.cat([changed, found])
    return changed if found is None else found


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/bench/first_day.py --help")
