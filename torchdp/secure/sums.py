"""Sums by secret sharing, whatever their noise: clients share out words, servers add.

What the parties agree upon are the fields; the ring of the words follows from them.

Notation: A: a row for each of n clients, d columns; S: the sketch, m rows, s copies; f: fraction
bits; a pair: a client and a copy, which adds the client's row to a row of S A.
"""

import hashlib
import math
import warnings
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.brief import Brief
from torchdp.draws import Draws, Shape, Simulated
from torchdp.kernels import secure_sketch
from torchdp.noise import Noise, source
from torchdp.protocol import Estimate, Layout, Limits, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.records import broadcast_users, tensor_of
from torchdp.secure.ring import Ring
from torchdp.sketching.coalition import EVERYBODY, AdaptiveCoalition
from torchdp.sketching.sketch import Sketch

# times the least variance: from here on a warning
WASTE = 1.1
# of a norm, for rounding in whoever clipped the rows; calibration leaves a hundred times as much
SLACK = 1e-12
# of a client's number
FIRST_BYTES = 8
# of messages: their noise and shares stay in the cache
WORDS_AT_ONCE = 2**18
# Between these bounds a grid of 64 bits holds the rows.
LEAST_BOUND = 2.0**-62
LARGEST_BOUND = 2.0**62


@dataclass(frozen=True, eq=False)
class Words(Brief):
    """What clients first, first + 1, ... share out: (s, k, d); each has its own column of S."""

    first: int
    values: Tensor


@dataclass(frozen=True, eq=False)
class SecureSums(MessageProtocol[Tensor, Words]):
    """Y = s^-1/2 (S A + noise) for n clients with a row of A each, by servers that see only shares.

    x: A, a row for each client, in their order. A message is a client's words before it shares them
    out; a tally is their signed total modulo 2^bits, what the servers' sums add up to. Summaries
    are the exact sums of the truncated rows, (m, d) integers. Shares, frames and servers are the
    channel: ``share``, ``servers``, ``roles``. A subclass is a noise: how clients draw it, how wide
    it is in a ring, how far the sums then get.

    Raises TypeError, ValueError before anything is drawn.
    """

    takes_groups = False  # a sum has servers and keys of its own
    NORM: ClassVar[int] = 2  # of a row, that ``bound`` and ``sensitivity`` are of

    sketch: Sketch
    columns: int
    bound: float
    epsilon: float
    _: KW_ONLY
    servers: int = 2
    coalition: AdaptiveCoalition = EVERYBODY
    bits: int = 64
    fraction_bits: int | None = None
    sensitivity: float | None = None
    entry: float | None = None

    def __post_init__(self) -> None:
        checks.instance("sketch", self.sketch, Sketch)
        checks.instance("coalition", self.coalition, AdaptiveCoalition)
        given = [name for name in ("sensitivity", "entry") if getattr(self, name) is not None]
        # 1 and 1.0: one session
        checks.keep(self, **dict.fromkeys(("bound", "epsilon", *given), checks.positive))
        bits = partial(checks.integer, least=32, most=64)
        # A header numbers servers in 16 bits and keeps 0xFFFF for the analyst: far from both.
        servers = partial(checks.integer, least=2, most=2**15 - 1)
        checks.keep(self, bits=bits, columns=checks.count, servers=servers)
        if self.entry is not None and self.entry > self.bound:
            raise ValueError(f"entry must be at most bound = {self.bound}, not {self.entry}")
        if not LEAST_BOUND <= self.bound <= LARGEST_BOUND:
            raise ValueError(
                f"bound must lie between 2^-62 and 2^62, not be {self.bound:g}: no grid of 64 bits "
                "holds such rows; measure them in a unit in which bound is about 1"
            )
        self._check_grid()

    def _check_grid(self) -> None:
        """Refuses a grid on which the data are lost; warns of one that costs noise."""
        step = 1 / self.ring.scale
        for name in ("bound", "sensitivity", "entry"):
            value = getattr(self, name)
            # Truncation toward 0 leaves of a row below one step, or of what tells two rows apart,
            # nothing but an artefact of rounding.
            if value is not None and value < step:
                raise ValueError(
                    f"{name} = {value:g} is below {step:.3g}, the step of "
                    f"{self.ring.fraction_bits} fraction bits: "
                    f"rounding and its noise swallow the data; {self._finer}"
                )
        if self.grid_factor > WASTE:
            # The caller's line: above are two __post_init__ and the dataclass's __init__.
            warnings.warn(
                f"a grid of {self.ring.fraction_bits} fraction bits in bits = {self.bits} makes the "
                f"variance of the noise {self.grid_factor:.3g} times the least; {self._finer}",
                stacklevel=5,
            )

    @property
    def _finer(self) -> str:
        """What makes the grid finer beside the noise."""
        if self.fraction_bits is not None:
            return "take more fraction_bits, or leave them out"
        other = "take bits=64" if self.bits == 32 else "measure in a smaller unit"
        return f"{other}, or state a smaller entry"

    @cached_property
    def honest(self) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64."""
        return self.coalition.honest(self.sketch)

    @cached_property
    def _pairs(self) -> tuple[list[int], Tensor]:
        """Each number of pairs that a row holds, and which of them each row has."""
        numbers, places = torch.unique(self.sketch.counts().cpu(), return_inverse=True)
        return numbers.tolist(), places

    @cached_property
    def _used(self) -> list[int]:
        """The numbers of pairs of the rows that clients use, rising.

        Raises ValueError where one may have nobody honest.
        """
        checks.validated(self, "honest")
        return [number for number in self._pairs[0] if number > 0]

    def _of_rows(self, values: list[float]) -> Tensor:
        """What each row has, by its number of pairs, 0 where it has none: (m,), float64."""
        numbers, places = self._pairs
        # the number 0, if it is there, is the first
        unused = [0.0] * (len(numbers) - len(values))
        of_numbers = torch.tensor([*unused, *values], dtype=torch.float64)
        return of_numbers[places].to(self.sketch.device)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of the noise in each word that goes to a row, in units of the data: (m,)."""

    @property
    def row_variance(self) -> Tensor:
        """Variance of an entry of each row, everybody there: c_j ``variance`` / s, (m,)."""
        return self.sketch.counts() * self.variance / self.sketch.copies

    @property
    @abstractmethod
    def grid_factor(self) -> float:
        """What the grid costs the worst row: its noise's variance over that of real numbers."""

    @abstractmethod
    def _farthest(self, ring: Ring) -> float:
        """How far from 0 a sum gets with its noise; inf where that can not be drawn."""

    @property
    def _largest(self) -> float:
        """What no entry of a row exceeds in size."""
        return self.bound if self.entry is None else self.entry

    @property
    def _apart(self) -> float:
        """What the distance of two rows does not exceed, as real numbers."""
        if self.sensitivity is None:
            return 2 * self.bound
        return min(2 * self.bound, self.sensitivity)

    def _source(self, theorems: str, apart: str) -> str:
        """What the guarantee follows from; apart: the distance of two rows, in words."""
        source = f"Burkhardt et al. (2025), {theorems}"
        if self.sensitivity is None:
            return source
        return f"{source}; for rows of a client at most {self.sensitivity:g} {apart}"

    def _wraps(self, fraction_bits: int) -> bool:
        """Whether a sum may wrap around in the ring of so many fraction bits."""
        # Two's complement ends at 2^(bits - 1): what gets there comes back with the other sign.
        # Noise that can not be drawn has an infinite distance, and counts as wrapping around.
        ring = Ring(self.bits, fraction_bits)
        return self._farthest(ring) * ring.scale >= 2.0 ** (self.bits - 1)

    @cached_property
    def ring(self) -> Ring:
        """The ring of the words.

        The finest in which no sum wraps around and noise is drawn without error, unless
        fraction_bits says otherwise.
        """
        # Each further bit makes all sums about twice as large, in words: those that fit come first.
        finest = bisect_left(range(self.bits - 1), True, key=self._wraps) - 1
        if finest < 0:
            more = "64, " if self.bits == 32 else ""
            raise ValueError(
                f"bits = {self.bits} hold no row's sum, with its noise, on any grid; take {more}a "
                f"less extreme bound (now {self.bound:g}), epsilon or delta, or fewer clients"
            )
        if self.fraction_bits is None:
            return Ring(self.bits, finest)
        ring = Ring(self.bits, self.fraction_bits)
        if self.fraction_bits > finest:
            raise ValueError(
                f"fraction_bits must be at most {finest}, not {self.fraction_bits}: or sums may "
                "wrap around, or noise be too wide to be rounded without error"
            )
        return ring

    @property
    def payload_bytes(self) -> int:
        """S (s n d + m d) bits/8: shares to every server, and what each publishes.

        Headers and tags come on top.

        Source: Burkhardt, Keller, Orlandi, Schwiegelshohn (2025), section 6.1: every entry of
        Tables 3 to 5.
        """
        sent = self.sketch.copies * self.sketch.clients + self.sketch.height
        return self.servers * sent * self.columns * self.bits // 8

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name everything the parties must agree upon."""
        public = [getattr(self, field.name) for field in fields(self) if field.name != "sketch"]
        # The ring follows from floats: a party that rounds to another one must have another digest.
        text = repr((type(self).__name__, public, self.ring, self.sketch.height))
        result = hashlib.sha256(text.encode())
        # Shares that two servers add into different rows are noise: the matrix counts to the bit.
        for array in (self.sketch.rows, self.sketch.signs):
            result.update(array.cpu().contiguous().numpy().data)
        return result.digest()

    def session(self, nonce: bytes) -> bytes:
        """16 bytes that name one run of this protocol, and its parameters.

        nonce: 16 bytes or more, public, never used twice, such as os.urandom(32).
        Raises ValueError.
        """
        # In two runs of one name a frame of one would be taken for a frame of the other.
        return hashlib.sha256(self.digest + checked_key("nonce", nonce)).digest()[:16]

    @property
    def at_once(self) -> int:
        """Clients whose words stay in the cache."""
        return max(1, WORDS_AT_ONCE // (self.sketch.copies * self.columns))

    @property
    def layout(self) -> Layout:
        return {"words": ((self.sketch.height, self.columns), self.ring.dtype)}

    def limits(self, n: Users) -> dict[str, Limits]:
        crowds = broadcast_users(n) / self.sketch.clients  # added tallies may be of more than one
        crowds = crowds.clamp_min(1) if isinstance(crowds, Tensor) else max(1.0, crowds)
        return {"words": Limits.around(crowds * self._farthest(self.ring) * self.ring.scale)}

    @property
    def held(self) -> tuple[int]:
        return (self.columns,)

    @property
    def bits_per_user(self) -> int:
        """Bits of one client's shares, to all servers."""
        return self.servers * self.sketch.copies * self.columns * self.bits

    def rows(self, x: Rows) -> Tensor:
        """x, rows (k, d) of some clients, if they keep within the stated bounds.

        Raises ValueError, TypeError.
        """
        x = super().validate(rows_of(x, self.held))
        checks.beside("x", x, "the sketch", self.sketch.device)
        # In parts: a float64 copy of all rows may be larger than the rows.
        for part in x.split(max(1, WORDS_AT_ONCE // self.columns)):
            self._check_rows(part.double(), x[0].double())
        return x

    def _check_rows(self, rows: Tensor, one: Tensor) -> None:
        norms = torch.linalg.vector_norm(rows, self.NORM, 1)
        # NaN is not
        if not (norms <= self.bound * (1 + SLACK)).all():
            checks.floating("x", rows)
            raise ValueError(
                f"x holds a row of l_{self.NORM} norm above bound = {self.bound}; clip in float64"
            )
        if self.entry is not None and (rows.abs() > self.entry * (1 + SLACK)).any():
            raise ValueError(
                f"x holds an entry above entry = {self.entry} in size; clip them, in float64"
            )
        if self.sensitivity is not None:
            # From one row alone, in linear time: what it refuses is wrong, but it does not see all
            # that is.
            distances = torch.linalg.vector_norm(rows - one, self.NORM, 1)
            if (distances > self.sensitivity * (1 + SLACK)).any():
                raise ValueError(
                    f"x holds rows more than sensitivity = {self.sensitivity} apart: the noise "
                    "would not hide a client who may hold either; state the largest distance"
                )

    def validate(self, x: Tensor) -> Tensor:
        """x, the rows (n, d) of all clients, if they keep within the stated bounds.

        Raises ValueError, TypeError.
        """
        x = self.rows(x)
        if len(x) != self.sketch.clients:
            raise ValueError(
                f"x must have {self.sketch.clients} rows, one for each client, not {len(x)}"
            )
        return x

    def summary_unchecked(self, x: Tensor) -> Tensor:
        words = self.exact_words(x.split(self.at_once))
        return self.added(words, self.sketch.device)["words"].long()

    def exact_words(self, parts: Iterable[Tensor]) -> Iterator[Words]:
        """Signed integers of clients 0, 1, ..., without noise."""
        first = 0
        for rows in parts:
            # to_words keeps |q| below 2^(bits - 1), so that no sign overflows.
            signs = self.sketch.signs[:, first : first + len(rows)].to(rows.device)
            yield Words(first, self.ring.to_words(rows) * signs[..., None])
            first += len(rows)

    def validate_summary(self, summary: Tensor) -> Tensor:
        """``summary``, whole numbers (m, d) that rows within the bounds add up to.

        Raises TypeError, ValueError.
        """
        checks.typed("summary", summary, torch.int64)
        checks.shaped("summary", summary, *self.layout["words"][0])
        entry = self._largest * (1 + SLACK) * self.ring.scale
        largest = self.sketch.counts() * entry
        if (summary.double().abs() > largest[:, None]).any():
            raise ValueError(
                "summary holds a sum beyond what its row's clients can hold; make it by summary(x)"
            )
        return summary

    def randomize(self, x: Rows, *, first: int = 0, noise: Noise | None = None) -> Words:
        """What clients first, first + 1, ... with rows x (k, d) share out.

        A client passes its own row. Raises ValueError, TypeError before any draw.
        """
        return self.speak(self.rows(x), first, noise)

    def speak(self, rows: Tensor, first: int, noise: Noise | None) -> Words:
        """``randomize`` of rows that are within the bounds. Raises ValueError."""
        if checks.integer("first", first, 0) + len(rows) > self.sketch.clients:
            raise ValueError(
                f"first = {first} and {len(rows)} rows x go beyond the "
                f"{self.sketch.clients} clients"
            )
        return self.randomize_unchecked(rows, source(noise, rows.device), first)

    @abstractmethod
    def randomize_unchecked(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        """``randomize``, unchecked, by any draws."""

    def spoken(self, parts: Iterable[Tensor], draws: Draws, first: int = 0) -> Iterator[Words]:
        """What clients first, ... share out, for each part of their rows; unchecked."""
        for rows in parts:
            yield self.randomize_unchecked(rows, draws, first)
            first += len(rows)

    @abstractmethod
    def noise_of(self, words: Tensor, shape: Shape, draws: Draws) -> Tensor:
        """Noise of sums, int64 of this shape, (..., *batch, m, d); unchecked.

        words: how many each sum is of, (*batch, m).
        """

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        noise = self.noise_of(self.sketch.counts(), (*shape, *summary.shape), draws)
        return Tally(self.sketch.clients, {"words": (summary + noise).to(self.ring.dtype)})

    def against(self, corrupt: int) -> "SecureSums":
        """This protocol with so many corrupt clients, where it leaves open how many.

        Raises ValueError.
        """
        if self.coalition.corrupt is not None:
            return self
        return replace(self, coalition=replace(self.coalition, corrupt=corrupt))

    def secure_sum(self, servers: int = 2) -> "SecureSums":
        """This protocol by so many servers. Raises TypeError, ValueError."""
        if checks.integer("servers", servers, 2) == self.servers:
            return self
        return replace(self, servers=servers)

    def released(self, found: Estimate) -> Estimate:
        """The estimate of ``secure_sum`` is this protocol's."""
        return found

    def place(self, sums: Tensor, clients: Tensor | slice, words: Tensor) -> None:
        """Add these clients' words, or shares of them, (s, k, d), into sums (m, d), in place."""
        places = self.sketch.rows[:, clients].to(sums.device).flatten()
        secure_sketch.add_rows(sums, places, words.flatten(0, 1))

    def added(self, spoken: Iterable[Words], device: torch.device) -> Tally:
        """What all these words add up to; unchecked."""
        n = 0
        sums = torch.zeros(self.layout["words"][0], dtype=self.ring.dtype, device=device)
        for words in spoken:
            count = words.values.shape[1]
            self.place(sums, slice(words.first, words.first + count), words.values)
            n += count
        return Tally(n, {"words": sums})

    def tally(self, messages: Words) -> Tally:
        words = self.ring.checked("messages", checks.instance("messages", messages, Words).values)
        checks.shaped("messages", words, self.sketch.copies, "clients", self.columns, empty=True)
        checks.integer("messages.first", messages.first, 0, self.sketch.clients - words.shape[1])
        return self.added([messages], words.device)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.gathered(len(x), x.split(self.at_once), draws)

    def gathered(self, clients: int, parts: Iterable[Tensor], draws: Draws) -> Tally:
        """The tally of clients 0, 1, ..., whose rows come in parts to one process; unchecked."""
        return self.added(self.spoken(parts, draws), draws.device)

    def analyse(self, tally: Tally) -> Estimate:
        """Y, (m, d), from the total of the servers' sums.

        Its error is that with every client's noise, heard or not. Raises TypeError, ValueError
        where so few were heard that their noise does not suffice for ``guarantee``.
        """
        clients = self.sketch.clients
        absent = self.coalition.absent
        numbers = tensor_of(self.check(tally).n)
        fewest = int(numbers.min())
        most = int(numbers.max())
        # With more clients gone, some row may hold less honest noise than the guarantee counts on.
        if not clients - absent <= fewest <= most <= clients:
            heard = fewest if fewest < clients - absent else most
            raise ValueError(
                f"tally is of {heard} clients; the noise was calibrated to {clients}, of whom "
                f"absent = {absent} may drop out: start again with those who are there"
            )
        # The total is sqrt(s) 2^f Y: to_reals takes off 2^f.
        value = self.ring.to_reals(tally["words"]) / math.sqrt(self.sketch.copies)
        errors = self.row_variance.sqrt()[:, None]
        return Estimate(value, errors.expand_as(value), tally.n, stretch=self.stretch)

    def stretch(self, level: float) -> float:
        """As in :class:`Estimate`."""
        return 1.0

    def exact(self, summary: Tensor) -> Tensor:
        """S A, (m, d), of rows truncated to the grid."""
        unit = self.ring.scale * math.sqrt(self.sketch.copies)
        return self.validate_summary(summary).double() / unit

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """(m, d); the same for all data."""
        self.validate_summary(summary)
        return self.row_variance[:, None].expand(self.layout["words"][0])

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        checks.integer("n", n, self.sketch.clients - self.coalition.absent, self.sketch.clients)
        return objective.of(self.row_variance)

    def encode(self, messages: Words) -> bytes:
        """Words before they are shared out, client by client, behind the first client's number."""
        self.tally(messages)
        # (s, k, d) to (k, s, d): what one client would send alone lies together.
        words = messages.values.transpose(0, 1).flatten()
        return messages.first.to_bytes(FIRST_BYTES, "little") + wire.pack(words, self.bits)

    def decode(self, data: bytes) -> Words:
        client_bytes = self.sketch.copies * self.columns * self.bits // 8
        checks.instance("data", data, bytes)
        # Data that are too short for the number itself give a negative count, refused below.
        clients, rest = divmod(len(data) - FIRST_BYTES, client_bytes)
        first = int.from_bytes(data[:FIRST_BYTES], "little")
        if rest or clients < 1 or first + clients > self.sketch.clients:
            raise ValueError(
                f"data must hold {FIRST_BYTES} bytes and {client_bytes} for each of at most "
                f"{self.sketch.clients} clients, not {len(data)} bytes from client {first} on"
            )
        words = wire.unpack(data[FIRST_BYTES:], self.bits, 1).to(self.ring.dtype)
        values = words.view(clients, self.sketch.copies, self.columns).transpose(0, 1)
        return Words(first, values.to(self.sketch.device))


def checked_key(name: str, key: bytes) -> bytes:
    """``key``, if it is long enough. Raises ValueError."""
    if not isinstance(key, bytes) or len(key) < 16:
        raise ValueError(f"{name} must be at least 16 random bytes, such as os.urandom(32)")
    return key
