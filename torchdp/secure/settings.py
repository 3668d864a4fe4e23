"""What the parties of a secure sum agree upon, whatever its noise."""

import hashlib
import warnings
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property, partial

from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.grid import grid_sensitivity
from torchdp.secure.ring import Ring
from torchdp.sketching.coalition import Coalition
from torchdp.sketching.noise import EVERYBODY
from torchdp.sketching.sketch import Sketch

WASTE = 1.1  # times the least variance: from here on a warning
LEFT = 1 - 2.0**-42  # the share of delta that is not kept for the bits of noise
WORDS_AT_ONCE = 2**18  # of messages: their noise and shares stay in the cache


@dataclass(frozen=True, eq=False)
class Settings(Brief, ABC):
    """The fields of every :class:`SecureSums`, and its ring. Raises ValueError, TypeError."""

    sketch: Sketch
    columns: int
    bound: float
    epsilon: float
    _: KW_ONLY
    servers: int = 2
    coalition: Coalition = EVERYBODY
    bits: int = 64
    fraction_bits: int | None = None
    sensitivity: float | None = None
    entry: float | None = None

    def __post_init__(self) -> None:
        checks.instance("sketch", self.sketch, Sketch)
        checks.instance("coalition", self.coalition, Coalition)
        given = [name for name in ("sensitivity", "entry") if getattr(self, name) is not None]
        checks.keep(self, **dict.fromkeys(("bound", "epsilon", *given), checks.positive))  # 1 and 1.0: one session
        servers = partial(checks.integer, least=2, most=2**15 - 1)
        checks.keep(self, bits=partial(checks.integer, least=32, most=64), columns=checks.count, servers=servers)
        if self.entry is not None and self.entry > self.bound:
            raise ValueError(f"entry must be at most bound = {self.bound}, not {self.entry}")
        if not 2.0**-62 <= self.bound <= 2.0**62:
            raise ValueError(
                f"bound must lie between 2^-62 and 2^62, not be {self.bound:g}: no grid of 64 bits holds such rows; "
                "measure them in a unit in which bound is about 1"
            )
        step = 1 / self.ring.scale
        for name, least in (("bound", self.bound), ("sensitivity", self.sensitivity), ("entry", self.entry)):
            if least is not None and least < step:
                raise ValueError(
                    f"{name} = {least:g} is below {step:.3g}, the step of {self.ring.fraction_bits} fraction bits: "
                    f"rounding and its noise swallow the data; {self._finer}"
                )
        if self.grid_factor > WASTE:
            warnings.warn(
                f"a grid of {self.ring.fraction_bits} fraction bits in bits = {self.bits} makes the variance of the "
                f"noise {self.grid_factor:.3g} times the least; {self._finer}",
                stacklevel=4,
            )

    @property
    def _finer(self) -> str:
        """What makes the grid finer beside the noise."""
        if self.fraction_bits is not None:
            return "take more fraction_bits, or leave them out"
        return f"{'take bits=64' if self.bits == 32 else 'measure in a smaller unit'}, or state a smaller entry"

    @property
    @abstractmethod
    def honest(self) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of the noise in each word that goes to a row: (m,), float64, in units of the data."""

    @property
    def row_variance(self) -> Tensor:
        """Variance of the noise in an entry of each row, everybody there: c_j ``variance`` / s, (m,), float64."""
        return self.sketch.counts() * self.variance / self.sketch.copies

    @property
    @abstractmethod
    def grid_factor(self) -> float:
        """What the grid costs: the noise's variance over that of real numbers, calibrated alike; the worst row's."""

    @abstractmethod
    def _farthest(self, ring: Ring) -> float:
        """How far from 0 a sum gets, with its noise; inf where that can not be drawn on this ring."""

    @property
    def _largest(self) -> float:
        """What no entry of a row exceeds in size."""
        return self.bound if self.entry is None else self.entry

    @property
    def _apart(self) -> float:
        """What the distance of two rows does not exceed, as real numbers."""
        return 2 * self.bound if self.sensitivity is None else min(2 * self.bound, self.sensitivity)

    def _distance(self, ring: Ring) -> float:
        """And on the grid."""
        return grid_sensitivity(1 / ring.scale, self.bound, self.columns, self.sensitivity)

    def _fits(self, ring: Ring) -> bool:
        """Whether no sum wraps around in this ring."""
        return self._farthest(ring) * ring.scale < 2.0 ** (self.bits - 1)

    @cached_property
    def ring(self) -> Ring:
        """The ring of the words: the finest in which no sum wraps around and noise is drawn without error, unless
        fraction_bits says otherwise."""
        # Each further bit makes all sums about twice as large, in words: those that fit come first.
        fitting = bisect_left(range(self.bits - 1), True, key=lambda f: not self._fits(Ring(self.bits, f)))
        finest = fitting - 1
        if finest < 0:
            more = "64, " if self.bits == 32 else ""
            raise ValueError(
                f"bits = {self.bits} hold no row's sum, with its noise, on any grid; take {more}a less extreme bound "
                f"(now {self.bound:g}), epsilon or delta, or fewer clients"
            )
        if self.fraction_bits is None:
            return Ring(self.bits, finest)
        ring = Ring(self.bits, self.fraction_bits)
        if ring.fraction_bits > finest:
            raise ValueError(
                f"fraction_bits must be at most {finest}, not {self.fraction_bits}: or sums may wrap around, "
                "or noise be too wide to be rounded without error"
            )
        return ring

    @property
    def payload_bytes(self) -> int:
        """S (s n d + m d) bits/8: shares to every server, and what each publishes; headers and tags come on top.

        Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.1: every entry of Tables 3 to 5.
        """
        sent = self.sketch.copies * self.sketch.clients + self.sketch.height
        return self.servers * sent * self.columns * self.bits // 8

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name everything the parties must agree upon."""
        public = [getattr(self, field.name) for field in fields(self) if field.name != "sketch"]
        result = hashlib.sha256(repr((type(self).__name__, public, self.ring, self.sketch.height)).encode())
        for array in (self.sketch.rows, self.sketch.signs):
            result.update(array.cpu().contiguous().numpy().data)
        return result.digest()

    def session(self, nonce: bytes) -> bytes:
        """16 bytes that name one run of this protocol: who has other parameters has another name for it.

        nonce: 16 bytes or more, public, never used twice, such as os.urandom(32). Raises ValueError.
        """
        if not isinstance(nonce, bytes) or len(nonce) < 16:
            raise ValueError("nonce must be at least 16 bytes, such as os.urandom(32)")
        return hashlib.sha256(self.digest + nonce).digest()[:16]

    @property
    def at_once(self) -> int:
        """Clients whose words stay in the cache."""
        return max(1, WORDS_AT_ONCE // (self.sketch.copies * self.columns))

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """Pairs of each row, honest ones and all, on the CPU: many rings are tried on them."""
        return self.honest.cpu(), self.sketch.counts().cpu()
