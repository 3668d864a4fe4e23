"""Two kinds of protocols: users of k types whose messages are whole numbers, and several rounds."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Simulated
from torchdp.protocol.protocol import MessageProtocol, Protocol, S
from torchdp.protocol.records import Tally, users_of


class TypeProtocol(MessageProtocol[Tensor, Tensor]):
    """Users hold one of ``k`` types and send one of ``outputs`` whole numbers; a summary is counts (*batch, k)."""

    k: int

    @property
    def held(self) -> int:
        return self.k

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many messages there are."""

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """From messages, O(n) each time: for who knows no shorter way."""
        return from_messages(self, summary, draws, shape)

    @property
    def bits_per_user(self) -> int:
        return (self.outputs - 1).bit_length()

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack(checks.indices("messages", messages, self.outputs), self.bits_per_user)

    def decode(self, data: bytes) -> Tensor:
        return checks.indices("data", wire.unpack(data, self.bits_per_user), self.outputs)


def from_messages(
    protocol: MessageProtocol[Any, Any], counts: Tensor, draws: Simulated, shape: tuple[int, ...]
) -> Tally:
    """``sample_tally`` from what users of these types say, counts (*batch, k): O(n) each time.

    Repetitions of one crowd that fit beside each other speak together.
    """
    types, times = torch.arange(counts.shape[-1], device=counts.device), math.prod(shape)
    crowds = (types.repeat_interleave(each) for each in counts.reshape(-1, len(types)))
    each = [tally for x in crowds for tally in _repeated(protocol, x, draws, times)]
    parts, batch = {}, counts.shape[:-1]
    for name, (size, dtype) in protocol.layout.items():
        rows = torch.empty(math.prod(batch), times, *size, dtype=dtype, device=draws.device)
        for row, tally in zip(rows.view(-1, *size), each, strict=True):
            row.copy_(tally[name])
        parts[name] = rows.movedim(0, 1).reshape(*shape, *batch, *size)
    return Tally(users_of(counts), parts)


def _repeated(
    protocol: MessageProtocol[Any, Any], x: Tensor, draws: Simulated, times: int
) -> list[Tally]:
    beside = max(1, protocol.users_at_once // len(x))
    if beside == 1:
        return [protocol.collect_unchecked(x, draws) for _ in range(times)]
    crowds = [torch.cat([x] * min(beside, times - start)) for start in range(0, times, beside)]
    said = (
        part
        for crowd in crowds
        for part in protocol.randomize_unchecked(crowd, draws).split(len(x))
    )
    return [protocol.tally(messages) for messages in said]


class InteractiveProtocol(Protocol[S]):
    """Each round is a local protocol, a public function of the tallies before it; the same users take part in all."""

    takes_groups = False

    @property
    @abstractmethod
    def rounds(self) -> int:
        """How many."""

    @abstractmethod
    def round(self, heard: tuple[Tally, ...]) -> MessageProtocol[S, Any]:
        """The next round's protocol; batched where ``heard`` is."""

    @final
    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self._play(lambda one, first: one.collect_unchecked(x, draws))

    @final
    def sample_unchecked(self, summary: S, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self._play(
            lambda one, first: one.sample_unchecked(summary, draws, shape if first else ())
        )

    def _play(self, hear: Callable[[MessageProtocol[S, Any], bool], Tally]) -> Tally:
        heard: tuple[Tally, ...] = ()
        for _ in range(self.rounds):
            heard = (*heard, hear(self.round(heard), not heard))
        return self.joined(heard)

    @final
    def joined(self, heard: tuple[Tally, ...]) -> Tally:
        """All rounds' tallies as one: part p of round r is named r.p. Raises ValueError where the users differ."""
        if len({each.n for each in heard}) != 1:
            raise ValueError(
                f"heard must be of the same users in every round, not of {[t.n for t in heard]}"
            )
        return Tally(
            heard[0].n,
            {f"{r}.{p}": t for r, each in enumerate(heard) for p, t in each.parts.items()},
        )

    @final
    def split(self, tally: Tally) -> tuple[Tally, ...]:
        """The rounds' tallies of one that was ``joined``."""
        starts, parts = [f"{r}." for r in range(self.rounds)], tally.parts.items()
        return tuple(
            Tally(tally.n, {name[len(r) :]: t for name, t in parts if name.startswith(r)})
            for r in starts
        )
