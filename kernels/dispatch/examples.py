"""A public call of each kernel that passes its branches: what a fused form is compared on before it
meets any data.

Each is of as many users, rows or numbers as are asked for; the default is enough for the
comparison.
"""

import torch
from torch import Tensor

from torchdp.kernels.dispatch import Call

KEY = 0x243F6A8885A308D3
FIRST = 7  # the first user is odd
DIM = 37
# Number RARE of step STEP of correlated noise under ``words_key`` takes further bits.
STEP = 40
RARE = 1010197384


def wave(device: torch.device, *shape: int) -> Tensor:
    """float64 in (0, 1): the same on every device, without a generator."""
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device=device)
    turns = (place * 0.6180339887498949 + 0.25) % 1
    return turns.clamp(2.0**-53, 1 - 2.0**-53).view(shape)


def whole(device: torch.device, k: int, *shape: int) -> Tensor:
    """float32, whole numbers in [0, k)."""
    return (wave(device, *shape) * k).floor().float()


def words_key(device: torch.device) -> Tensor:
    return torch.arange(1, 9, dtype=torch.int32, device=device) * 0x1234567


def keystream(device: torch.device, blocks: int = 300) -> Call:
    """The counter carries into its upper half."""
    return (words_key(device), 2**32 - 5, blocks, 2**32 - 7, 3), {}


def types(device: torch.device, users: int, k: int) -> Tensor:
    """In no order and a stride apart; some users hold none of the k types, on both sides."""
    return (torch.arange(2 * users, device=device) * 7919 % (k + 2) - 1)[::2]


def response_counts(device: torch.device, users: int = 3000) -> Call:
    """The multiplication finds one less of a quotient in five; half of the users report another
    type.
    """
    k = 9
    return (types(device, users, k), k, 2**66 // (16 * k + 3), KEY, FIRST), {}


def unary_counts(device: torch.device, users: int = 70) -> Call:
    """Chances of 52 binary digits and of more than a word holds."""
    return (types(device, users, 33), 33, 3 * 2.0**-72, 0.3, KEY, FIRST), {}


def crowd(device: torch.device, users: int) -> tuple[Tensor, Tensor]:
    """Points, and how many users hold each: nearly all of them the first, none the second."""
    counts = torch.tensor([users - 18, 0, *[1] * 18], dtype=torch.int64, device=device)
    return (wave(device, len(counts), DIM) / DIM**0.5).float(), counts


def privunit(device: torch.device, users: int = 618) -> Call:
    lift, along = wave(device, 2, users)
    across = (1 - along.square()).sqrt()
    return (*crowd(device, users), 2 * lift - 1, along, across, KEY, FIRST), {
        "radius": 1.0,
        "mean": 0.3,
    }


def positive(device: torch.device, users: int = 150) -> Call:
    """Products that add up without rounding; users at 0, whose bits may be sure, and infinitely far
    off.
    """
    features = 140
    x = (whole(device, 17, users, DIM) - 8) / 8
    x[0] = 0
    x[1] = torch.inf
    frequencies = (whole(device, 13, DIM, features) - 6) / 64
    phases = whole(device, 256, 2, features) / 256
    phases[0, :2] = 0
    return (x, frequencies, phases), {}


def rounded(device: torch.device, users: int = 150) -> Call:
    arguments, _ = positive(device, users)
    return (*arguments, KEY, FIRST, 2), {}


def correlated_noise(device: torch.device, size: int = 1040) -> Call:
    """Two running rows, w and u beside them; of the step's numbers one takes further bits."""
    # here: that package is built on this one
    from torchdp.kernels.correlated_noise.step import Step

    total = wave(device, size).float()
    state = (2 * wave(device, 4, size) - 1).float()
    gains = (wave(device, 4) - 0.4).float()
    decays = (wave(device, 2) - 0.7).float()
    lags = 5 * torch.arange(3, dtype=torch.int32, device=device)
    now = Step(gains, decays, 1.5 - wave(device, 4), lags, (3, 2))
    return ((torch.zeros_like(total), state), total, now, words_key(device), STEP, RARE - 501), {}


def guided_draws(device: torch.device, size: int = 13_000) -> Call:
    """One cell in eleven is open; the first bits are the highest 16 of 32."""
    place = torch.arange(max(size, 2**16), device=device)
    bits = (place[:size] * 0x9E3779B97F4A7C1).bitwise_right_shift(13).to(torch.int32)
    cells = (place[: 2**16] * 40503 % 1201 - 600).to(torch.int16)
    cells[::11] = -(2**15)
    return (place[:size].clone(), bits, cells, 5), {}
