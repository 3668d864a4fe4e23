"""Rounded normals: integer noise that keeps every promise of Gaussian noise, for the integers that leave."""

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.kernels.inversion import Table, rounded_normal

AT_ONCE = 2**15  # draws whose words and cells stay in a nearby cache
AT_ONCE_THERE = 2**24  # on a GPU, where each part costs launches and a wait
SHORT, LONG = (16, 16), (32, 20)  # bits of a draw's first part, and those of them that choose a cell of the guide
MANY = 2048  # thresholds from which on the first part is LONG: 1 cell in 32 is open at most
OPEN = -(2**15)  # a cell of the guide that holds a threshold
LOWEST = -(2**63)


@dataclass(frozen=True)
class RoundedNormal:
    """R = round(sigma g), g standard normal: P(R >= j) = P(g >= (j - 1/2)/sigma).

    X + R = round(X + sigma g) for integers X: a function of the Gaussian mechanism, whatever the dimension. sigma: from
    1/16 to 2048. Raises ValueError.

    Guarantees: independent draws, each within ``variation`` of this law in total variation, for uniform words.
    """

    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))
        _ = self._guide("cpu")

    @property
    def variation(self) -> float:
        """Largest total variation distance of one draw from the law: (thresholds + 3) 2^-129."""
        return self._guide("cpu").variation

    @property
    def variance(self) -> float:
        """Of the law: sigma^2 + 1/12, up to 4 (sigma^2 + 1) e^(-2 pi^2 sigma^2)."""
        return self._guide("cpu").variance

    def draw(self, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """int64, on the device of ``draws``: 16 or 32 bits each, and 112 or 96 more where these do not decide.

        Equal words give equal integers: however many are drawn at once, first come the first bits of all of them.
        """
        out = torch.empty(math.prod(shape), dtype=torch.int64, device=draws.device)
        self._guide(str(draws.device)).fill(out, draws)
        return out.view(shape)

    def _guide(self, device: str) -> "Guide":
        return _guide(self.sigma, device)


@dataclass(frozen=True, eq=False)
class Guide:
    """A table, and for each cell of a draw's first bits the integer that they decide, or ``OPEN``.

    high, low: 64 bits each of the rising thresholds, the sign bit flipped: compared as signed integers. cells: int16.
    """

    last: int  # what is drawn below all thresholds
    high: Tensor
    low: Tensor
    cells: Tensor
    bits: int
    variation: float
    variance: float

    @staticmethod
    def of(table: Table) -> "Guide":
        """On the table's device."""
        first, second, third, fourth = table.words[:, : table.length].flip(1)
        bits, chosen = SHORT if table.length <= MANY else LONG
        held = torch.bincount(first >> (32 - chosen), minlength=2**chosen)
        last = table.first + table.length
        cells = (last - held.cumsum(0)).masked_fill_(held > 0, OPEN).to(torch.int16)
        high, low = ((one << 32 | two) ^ LOWEST for one, two in ((first, second), (third, fourth)))
        return Guide(last, high, low, cells, bits, table.variation, _variance(table))

    def fill(self, out: Tensor, draws: Draws) -> None:
        """Draws into a contiguous int64 tensor of one dimension, part by part; what is open waits for the end."""
        step = AT_ONCE if out.device.type == "cpu" else AT_ONCE_THERE
        size = min(step, len(out) + -len(out) % 64)
        words = torch.empty(size * self.bits // 64, dtype=torch.int64, device=out.device)
        parts = words.view(torch.int16 if self.bits == 16 else torch.int32)
        index = torch.empty(size, dtype=torch.int32, device=out.device)
        shift, mask = self.bits - (len(self.cells).bit_length() - 1), len(self.cells) - 1
        places, begun = [], []
        for start in range(0, len(out), step):
            some = out[start : start + step]
            count = len(some)
            draws.fill(words[: -(-count * self.bits // 64)])
            cell = index[:count].copy_(parts[:count])
            found = self.cells.index_select(
                0, (cell.bitwise_right_shift_(shift) if shift else cell).bitwise_and_(mask)
            )
            where = (found == OPEN).nonzero()[:, 0]
            some.copy_(found)
            places.append(where + start)
            begun.append(parts[where])
        if len(out):
            where, first = torch.cat(places), torch.cat(begun).long()
            out[where] = self.decided(first, draws.words((2, len(where))))

    def decided(self, first: Tensor, rest: Tensor) -> Tensor:
        """W's first bits, (n,), signed, and two words for the others, (2, n) -> last - #{thresholds <= W}, 128 bits."""
        above, below = rest
        left = 64 - self.bits
        high = (first << left | (above >> self.bits) & ((1 << left) - 1)) ^ LOWEST
        low, passed = below ^ LOWEST, torch.searchsorted(self.high, high)
        tied = (torch.searchsorted(self.high, high, right=True) > passed).nonzero()[:, 0]
        equal = self.high == high[tied, None]
        passed[tied] += (equal & (self.low <= low[tied, None])).sum(1)
        return self.last - passed


def _variance(table: Table) -> float:
    """E R^2 = sum over j >= 1 of (2 j - 1) 2 P(R >= j), from the thresholds that are drawn."""
    ones = [2.0**-32, 2.0**-64, 2.0**-96, 2.0**-128]
    upper = table.words[:, -table.first : table.length].double()
    odd = 2 * torch.arange(1, upper.shape[1] + 1, dtype=torch.float64) - 1
    return 2 * math.fsum((odd * (torch.tensor(ones, dtype=torch.float64) @ upper)).tolist())


@functools.lru_cache(maxsize=64)
def _guide(sigma: float, device: str) -> Guide:
    if device == "cpu":
        return Guide.of(rounded_normal(sigma))
    near = _guide(sigma, "cpu")
    return replace(near, high=near.high.to(device), low=near.low.to(device), cells=near.cells.to(device))
