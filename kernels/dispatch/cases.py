"""One call of each kernel: small and public to try it, large to time it; what the work is; tiles to choose among."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchdp.kernels.dispatch import trials
from torchdp.kernels.dispatch.trials import KEY, Call, wave

DIM, VALUES, FEATURES, COPIES = 64, 64, 256, 2  # of the calls timed
ROWS, SERVERS = 128, 3
BUFFERS = 4


@dataclass(frozen=True)
class Work:
    """What every form must do. bytes: read and written once; flops: of matrix products; words: of 32 random bits."""

    bytes: float = 0
    flops: float = 0
    words: float = 0


@dataclass(frozen=True)
class Case:
    """``arguments(device, n)`` for n users, rows or numbers; large: timed on a GPU; host: on a CPU.

    like: the calls of a trial, in the form of the given one. few: constants of fused.py that no machine code depends
    on, so low in a trial that few numbers pass every loop twice. tolerance: of real numbers, as a share of the largest;
    slips: in all, of integers that rounding decides. returns: what changes its first argument returns more.
    tiles: constants of fused.py and the values among which ``torchdp doctor`` chooses; all kernels of a package share
    them.
    """

    arguments: Callable[[torch.device, int], Call]
    work: Callable[[int], Work]
    large: int
    host: int
    like: Callable[..., list[Call]]
    tolerance: float = 0.0
    slips: int = 0
    returns: bool = False
    tiles: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    few: Mapping[str, int] = field(default_factory=dict)

    def agrees(self, found: Tensor, wanted: Tensor) -> bool:
        """Within the tolerance, everywhere; a number that is none does not."""
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return False
        apart = (found - wanted).double().abs()  # a sum of integers would wrap around
        if not found.is_floating_point():
            return float(apart.sum()) <= self.slips
        return bool((apart <= self.tolerance * float(wanted.abs().max())).all())


def _scattered(device: torch.device, k: int, *shape: int) -> Tensor:
    """Whole numbers in [0, k) in no order, float32."""
    generator = torch.Generator(device).manual_seed(k)
    return torch.empty(shape, device=device).random_(k, generator=generator)


def _types(device: torch.device, n: int, k: int) -> Tensor:
    return torch.arange(n, device=device) % k


def _words_key(device: torch.device) -> Tensor:
    return trials.words_key(torch.empty(8, dtype=torch.int32, device=device))


def _keystream(device: torch.device, n: int) -> Call:
    return (_words_key(device), 0, n), {}


KEYSTREAM = Case(
    _keystream,
    lambda n: Work(bytes=64 * n, words=16 * n),
    2**22,
    2**19,
    trials.keystream,
    tiles={"BLOCKS": (128, 256, 512)},
)


def _counts(device: torch.device, n: int) -> Call:
    return (_types(device, n, 16), 16, 2**58 + 3, KEY), {}


RESPONSE_COUNTS = Case(
    _counts,
    lambda n: Work(bytes=8 * n, words=2 * n),
    2**27,
    2**20,
    trials.response_counts,
    tiles={"PAIRS": (512, 1024)},  # 2048 spills at k = 1024
    few={"PROGRAMS": 2},
)


def _tally(device: torch.device, n: int) -> Call:
    return (_types(device, n, VALUES), VALUES, 0.5, 0.3, KEY), {}


UNARY_COUNTS = Case(
    # 32 users share a word; about 8 words until the last of them is decided
    _tally,
    lambda n: Work(bytes=8 * n, words=8 * (VALUES + 1) / 32 * n),
    2**22,
    2**14,
    trials.unary_counts,
    tiles={"USERS": (32, 64, 128)},
    few={"PROGRAMS": 2},
)


def _crowd(device: torch.device, n: int) -> tuple[Tensor, Tensor]:
    """Two points of the unit ball, and how many users hold each."""
    points = wave(device, 2, DIM).float() / DIM**0.5
    return points, torch.tensor([n // 3, n - n // 3], dtype=torch.int64, device=device)


def _cap_sums(device: torch.device, n: int) -> Call:
    lift, along = wave(device, 2, n)
    numbers = (2 * lift - 1, along, (1 - along.square()).sqrt())
    return (*_crowd(device, n), *numbers, KEY, 0), {"radius": 1.0, "mean": 0.3}


PRIVUNIT = Case(
    _cap_sums,
    lambda n: Work(bytes=24 * n, words=DIM * n),
    2**22,
    2**15,
    trials.privunit,
    tolerance=1e-4,
    tiles={"TILE": (128, 256, 512)},
    few={"PIECE": 2**13},
)


def _waves(device: torch.device, n: int) -> Call:
    """Multiples of powers of two, whose products add up without rounding: then the cosine alone rounds."""
    x = _scattered(device, 17, n, DIM).sub_(8).div_(8)
    frequencies = _scattered(device, 13, DIM, FEATURES).sub_(6).div_(64)
    return (x, frequencies, _scattered(device, 256, 1, FEATURES).div_(256), _types(device, n, 2), 2), {}


def _rounded(device: torch.device, n: int) -> Call:
    (tensors, _) = _waves(device, n)
    return (*tensors, KEY, 0, 1), {}


ROUNDED = Case(
    _rounded,
    lambda n: Work(bytes=4 * (DIM + 2) * n, flops=2 * DIM * FEATURES * n, words=FEATURES * n),
    2**20,
    2**12,
    trials.waves,
    slips=2,  # of 38,400 bits: one in a million lies within the rounding of its cosine
    tiles={"BLOCK_N": (32, 64), "BLOCK_I": (32, 64, 128)},  # 128 by 128 spills at d = 77 with two waves
)
POSITIVE = replace(
    ROUNDED,
    arguments=_waves,
    work=lambda n: Work(bytes=4 * (DIM + 2) * n, flops=2 * DIM * FEATURES * n),
    host=2**13,
)


def _sketch(device: torch.device, n: int) -> Call:
    columns = 16
    sums = torch.zeros(SERVERS, ROWS, columns, dtype=torch.int64, device=device)
    values = wave(device, n, columns) - 0.5
    place = torch.arange(COPIES * n, device=device).view(COPIES, n)
    rows, signs = place * 37 % ROWS, (place % 2 * 2 - 1).to(torch.int8)
    units = torch.full((ROWS,), 2.0**20, dtype=torch.float64, device=device)
    return (sums, values, rows, signs, units, _words_key(device), 0, 2.0**12), {}


SECURE_SKETCH = Case(
    # 64 bits of noise and of each mask for an entry; values, rows and signs are read once
    _sketch,
    lambda n: Work(bytes=(16 * 8 + 9 * COPIES) * n, words=2 * SERVERS * 16 * COPIES * n),
    2**20,
    2**13,
    trials.secure_sketch,
    tiles={"ENTRIES": (256, 512, 1024)},
)


def _normals(device: torch.device, n: int) -> Call:
    return (KEY, 0, n, DIM, torch.float32, 0, device), {}


NORMALS = Case(
    _normals,
    lambda n: Work(bytes=4 * DIM * n, words=DIM * n),
    2**22,
    2**14,
    trials.normals,
    tolerance=1e-4,
    tiles={"BLOCK": (128, 256, 512, 1024)},
)


def _step(device: torch.device, n: int) -> Call:
    from torchdp.kernels.correlated_noise.step import Step  # here: that package is built on this one

    state, total = wave(device, BUFFERS, n).float(), wave(device, n).float()
    gains = -torch.arange(1, BUFFERS + 1, device=device) / 8
    numbers = torch.tensor([0.75, 1.5], dtype=torch.float64, device=device)
    now = Step(gains, gains / 2, numbers, torch.zeros(1, dtype=torch.int32, device=device))
    return ((torch.empty_like(total), state), total, now, _words_key(device), 3, 5), {}


CORRELATED_NOISE = Case(
    # the state is read and written, the sum is read, the private sum written; 64 bits for a number
    _step,
    lambda n: Work(bytes=(8 * BUFFERS + 8) * n, words=2 * n),
    2**26,
    2**19,
    trials.correlated_noise,
    tolerance=1e-6,
    tiles={"NUMBERS": (512, 1024)},
)


def _guided(device: torch.device, n: int) -> Call:
    parts, cells = trials.guide(torch.empty(n, dtype=torch.int16, device=device), 2**16)
    return (torch.empty(n, dtype=torch.int64, device=device), parts, cells, 0), {}


GUIDED_DRAWS = Case(
    # first bits are read twice, integers of 64 bits written
    _guided,
    lambda n: Work(bytes=12 * n),
    2**27,
    2**20,
    trials.guided_draws,
    returns=True,
    tiles={"DRAWS": (1024, 2048, 4096)},
)
