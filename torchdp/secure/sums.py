"""Sums by secret sharing, whatever their noise: clients share out words, servers add, anyone adds up."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.draws import Draws, Simulated
from torchdp.kernels import secure_sketch
from torchdp.noise import Noise, source
from torchdp.protocol import Estimate, Layout, Limits, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.users import beside, tensor_of
from torchdp.secure.settings import WORDS_AT_ONCE, Settings

SLACK = 1e-12  # of a norm, for rounding in whoever clipped the rows; calibration leaves a hundred times as much
FIRST_BYTES = 8  # of a client's number


@dataclass(frozen=True, eq=False)
class Words(Brief):
    """What clients first, first + 1, ... share out: (s, k, d). Who sends matters: each has its own column."""

    first: int
    values: Tensor


@dataclass(frozen=True, eq=False)
class SecureSums(Settings, MessageProtocol[Tensor, Words]):
    """Y = s^-1/2 (S A + noise) for n clients who each hold one row of A, computed by servers that see only shares.

    x: A, a row for each client, in their order. A message is a client's words before it shares them out; a tally is
    their signed total modulo 2^bits, what the servers' sums add up to. Summaries are the exact sums of the truncated
    rows, (m, d) integers. Shares, frames and servers are the channel: ``share``, ``servers``, ``roles``. What noise
    clients add, and which servers, is the subclass's.
    """

    NORM: ClassVar[int] = 2  # of a row, that ``bound`` and ``sensitivity`` are of

    @property
    def layout(self) -> Layout:
        return {"words": ((self.sketch.height, self.columns), self.ring.dtype)}

    def limits(self, n: Users) -> dict[str, Limits]:
        crowds = beside(n) / self.sketch.clients  # added tallies may be of more than one
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
        """x, rows (k, d) of some clients, if they keep within the stated bounds. Raises ValueError, TypeError."""
        x = super().validate(rows_of(x, self.held))
        if x.device != self.sketch.device:
            raise ValueError(f"x is on {x.device}, the sketch on {self.sketch.device}; move one of them")
        for part in x.split(max(1, WORDS_AT_ONCE // self.columns)):
            self._check_rows(part.double(), x[0].double())
        return x

    def _check_rows(self, rows: Tensor, one: Tensor) -> None:
        norms = torch.linalg.vector_norm(rows, self.NORM, 1)
        if not bool((norms <= self.bound * (1 + SLACK)).all()):  # NaN is not
            checks.floating("x", rows)
            raise ValueError(f"x holds a row of l_{self.NORM} norm above bound = {self.bound}; clip in float64")
        if self.entry is not None and bool((rows.abs() > self.entry * (1 + SLACK)).any()):
            raise ValueError(f"x holds an entry above entry = {self.entry} in size; clip them, in float64")
        if self.sensitivity is not None:
            apart = torch.linalg.vector_norm(rows - one, self.NORM, 1)
            if bool((apart > self.sensitivity * (1 + SLACK)).any()):
                raise ValueError(
                    f"x holds rows more than sensitivity = {self.sensitivity} apart: the noise would not hide a "
                    "client who may hold either; state the largest distance"
                )

    def validate(self, x: Tensor) -> Tensor:
        """x, the rows (n, d) of all clients, if they keep within the stated bounds. Raises ValueError, TypeError."""
        x = self.rows(x)
        if len(x) != self.sketch.clients:
            raise ValueError(f"x must have {self.sketch.clients} rows, one for each client, not {len(x)}")
        return x

    def summary(self, x: Tensor) -> Tensor:
        sums = torch.zeros(self.sketch.height, self.columns, dtype=torch.int64, device=self.sketch.device)
        for part in self.sketch.parts(self.columns):
            sums += self.sketch.part(part).sums(self.ring.to_words(x[part]).long())
        return sums

    def validate_summary(self, summary: Tensor) -> Tensor:
        """``summary``, whole numbers (m, d) that rows within the bounds add up to. Raises TypeError, ValueError."""
        checks.shaped("summary", checks.typed("summary", summary, torch.int64), *self.layout["words"][0])
        longest = self._largest * (1 + SLACK) * self.ring.scale
        if bool((summary.double().abs() > (self.sketch.counts() * longest)[:, None]).any()):
            raise ValueError("summary holds a sum beyond what its row's clients can hold; make it by summary(x)")
        return summary

    def randomize(self, x: Rows, *, first: int = 0, noise: Noise | None = None) -> Words:
        """What clients first, first + 1, ... with rows x (k, d) share out; a client passes its own row.

        Raises ValueError, TypeError before any draw.
        """
        return self.speak(self.rows(x), first, noise)

    def speak(self, rows: Tensor, first: int, noise: Noise | None) -> Words:
        """``randomize`` of rows that are within the bounds. Raises ValueError."""
        if checks.integer("first", first, 0) + len(rows) > self.sketch.clients:
            raise ValueError(f"first = {first} and {len(rows)} rows x go beyond the {self.sketch.clients} clients")
        return self.randomize_unchecked(rows, source(noise, rows.device), first)

    @abstractmethod
    def randomize_unchecked(self, x: Tensor, draws: Draws, first: int = 0) -> Words:
        """``randomize``, unchecked, by any draws."""

    def spoken(self, parts: Iterable[Tensor], draws: Draws, first: int = 0) -> Iterator[Words]:
        """What clients first, ... share out, for each part of their rows; as ``collect`` draws it; unchecked."""
        for rows in parts:
            yield self.randomize_unchecked(rows, draws, first)
            first += len(rows)

    @abstractmethod
    def noise_of(self, words: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """Noise of sums of so many words each, (*batch, m): int64 of this shape, (..., *batch, m, d); unchecked."""

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        noise = self.noise_of(self.sketch.counts(), (*shape, *summary.shape), draws)
        return Tally(self.sketch.clients, {"words": (summary + noise).to(self.ring.dtype)})

    def secure_sum(self, servers: int = 2) -> "SecureSums":
        """This protocol by so many servers. Raises TypeError, ValueError."""
        return replace(self, servers=servers) if checks.integer("servers", servers, 2) != self.servers else self

    def released(self, found: Estimate) -> Estimate:
        """The estimate of ``secure_sum`` is this protocol's."""
        return found

    def place(self, sums: Tensor, clients: Tensor | slice, words: Tensor) -> None:
        """Add these clients' words, or shares of them, (s, k, d), into a server's sums (m, d), in place."""
        places = self.sketch.rows[:, clients].to(sums.device).flatten()
        secure_sketch.add_rows(sums, places, words.flatten(0, 1))

    def added(self, spoken: Iterable[Words], device: torch.device) -> Tally:
        """What all these words add up to; unchecked."""
        n, sums = 0, torch.zeros(self.layout["words"][0], dtype=self.ring.dtype, device=device)
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

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        raise ValueError("x must be of the clients of one sum, which has servers and keys of its own")

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.gathered(len(x), x.split(self.at_once), draws)

    def gathered(self, clients: int, parts: Iterable[Tensor], draws: Draws) -> Tally:
        """The tally of clients 0, ..., clients - 1, whose rows come in parts to one process; unchecked."""
        return self.added(self.spoken(parts, draws), draws.device)

    def analyse(self, tally: Tally) -> Estimate:
        """Y, (m, d), from the total of the servers' sums; its error with every client's noise, heard or not.

        Raises TypeError, ValueError where so few were heard that their noise does not suffice for ``guarantee``.
        """
        clients, absent = self.sketch.clients, self.coalition.absent
        fewest, most = map(int, tensor_of(self.check(tally).n).aminmax())
        if not clients - absent <= fewest <= most <= clients:
            heard = fewest if fewest < clients - absent else most
            raise ValueError(
                f"tally is of {heard} clients; the noise was calibrated to {clients}, of whom absent = {absent} may "
                "drop out: start again with those who are there"
            )
        value = self.ring.to_reals(tally["words"]) / math.sqrt(self.sketch.copies)
        return Estimate(value, self.row_variance.sqrt()[:, None].expand_as(value), tally.n, stretch=self.stretch)

    def stretch(self, level: float) -> float:
        """As in :class:`Estimate`."""
        return 1.0

    def exact(self, summary: Tensor) -> Tensor:
        """S A, (m, d), of rows truncated to the grid."""
        return self.validate_summary(summary).double() / (self.ring.scale * math.sqrt(self.sketch.copies))

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """(m, d); the same for all data."""
        self.validate_summary(summary)
        return self.row_variance[:, None].expand(self.layout["words"][0])

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        checks.integer("n", n, self.sketch.clients - self.coalition.absent, self.sketch.clients)
        return checks.instance("objective", objective, Objective).of(self.row_variance)

    def encode(self, messages: Words) -> bytes:
        """Words before they are shared out, client by client, behind the first client's number."""
        self.tally(messages)
        words = messages.values.transpose(0, 1).cpu().contiguous().numpy().astype(f"<i{self.bits // 8}")
        return messages.first.to_bytes(FIRST_BYTES, "little") + words.tobytes()

    def decode(self, data: bytes) -> Words:
        each = self.sketch.copies * self.columns * self.bits // 8
        checks.instance("data", data, bytes)
        clients, rest = divmod(len(data) - FIRST_BYTES, each)
        first = int.from_bytes(data[:FIRST_BYTES], "little")
        if rest or clients < 1 or first + clients > self.sketch.clients:
            raise ValueError(
                f"data must hold {FIRST_BYTES} bytes and {each} for each of at most {self.sketch.clients} clients, "
                f"not {len(data)} bytes from client {first} on"
            )
        words = np.frombuffer(data, f"<i{self.bits // 8}", offset=FIRST_BYTES).astype(f"=i{self.bits // 8}")
        values = torch.from_numpy(words).view(clients, self.sketch.copies, self.columns).transpose(0, 1)
        return Words(first, values.to(self.sketch.device))
