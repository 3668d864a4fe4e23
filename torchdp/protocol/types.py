"""Two kinds of protocols: users of k types whose messages are whole numbers, and several rounds."""

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
    """Users hold one of ``k`` types and send one of ``outputs`` whole numbers; a summary is counts
    (*batch, k).
    """

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
    """``sample_tally`` from what users of these types say, counts (*batch, k): O(n) each time."""
    types = torch.arange(counts.shape[-1], device=counts.device)
    batch = (*shape, *counts.shape[:-1])
    crowds = counts.expand(*batch, len(types)).reshape(-1, len(types))
    parts = {
        name: torch.empty(len(crowds), *size, dtype=dtype, device=draws.device)
        for name, (size, dtype) in protocol.layout.items()
    }
    for row, crowd in enumerate(crowds):
        tally = protocol.collect_unchecked(types.repeat_interleave(crowd), draws)
        for name, part in parts.items():
            part[row] = tally[name]
    return Tally(
        users_of(counts), {name: part.view(*batch, *part.shape[1:]) for name, part in parts.items()}
    )


class InteractiveProtocol(Protocol[S]):
    """Each round is a local protocol, a public function of the tallies before it; the same users
    take part in all.
    """

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
        """All rounds' tallies as one: part p of round r is named r.p. Raises ValueError where the
        users differ.
        """
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
