"""Two kinds of protocols: users of k types whose messages are whole numbers, and several rounds."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Shape, Simulated
from torchdp.protocol.protocol import MessageProtocol, Protocol, S
from torchdp.protocol.records import Tally, users_of

V = TypeVar("V")


class TypeProtocol(MessageProtocol[Tensor, Tensor]):
    """Users hold one of ``k`` types and send one of ``outputs`` whole numbers.

    A summary is counts (*batch, k).
    """

    k: int

    @property
    def held(self) -> int:
        return self.k

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many messages there are."""

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        """From messages, O(n) each time: for who knows no shorter way."""
        return from_messages(self, summary, draws, shape)

    @property
    def bits_per_user(self) -> int:
        # Of the largest number, outputs - 1.
        return (self.outputs - 1).bit_length()

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack(checks.indices("messages", messages, self.outputs), self.bits_per_user)

    def decode(self, data: bytes) -> Tensor:
        return checks.indices("data", wire.unpack(data, self.bits_per_user), self.outputs)


def from_messages(
    protocol: MessageProtocol[Any, Any], counts: Tensor, draws: Simulated, shape: Shape
) -> Tally:
    """``sample_tally`` from what users of these types say, counts (*batch, k): O(n) each time."""
    types = torch.arange(counts.shape[-1], device=counts.device)
    batch = (*shape, *counts.shape[:-1])
    crowds = counts.expand(*batch, len(types))
    parts = {}
    for name, (size, dtype) in protocol.layout.items():
        parts[name] = torch.empty(*batch, *size, dtype=dtype, device=draws.device)
    # In any order: a tally is the sum of messages, each of which hangs on its own user's type.
    for row in np.ndindex(batch):
        tally = protocol.collect_unchecked(types.repeat_interleave(crowds[row]), draws)
        for name, part in parts.items():
            part[row] = tally[name]
    return Tally(users_of(counts), parts)


class InteractiveProtocol(Protocol[S]):
    """Each round is a local protocol, a public function of the tallies of the same users before."""

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
        tallies: tuple[Tally, ...] = ()
        for _ in range(self.rounds):
            tallies = (*tallies, self.round(tallies).collect_unchecked(x, draws))
        return self.joined(tallies)

    @final
    def sample_unchecked(self, summary: S, draws: Simulated, shape: Shape) -> Tally:
        tallies: tuple[Tally, ...] = ()
        for _ in range(self.rounds):
            following = self.round(tallies)
            # The rounds after the first have its batch by their questions.
            own = () if tallies else shape
            tallies = (*tallies, following.sample_unchecked(summary, draws, own))
        return self.joined(tallies)

    @final
    def joined(self, heard: tuple[Tally, ...]) -> Tally:
        """All rounds' tallies as one: part p of round r is named r.p.

        Raises ValueError where the users differ.
        """
        users = [tally.n for tally in heard]
        if len(set(users)) != 1:
            raise ValueError(f"heard must be of the same users in every round, not of {users}")
        return Tally(users[0], of_rounds([tally.parts for tally in heard]))

    @final
    def split(self, tally: Tally) -> tuple[Tally, ...]:
        """The rounds' tallies of one that was ``joined``."""
        parts: list[dict[str, Tensor]] = [{} for _ in range(self.rounds)]
        for name, part in tally.parts.items():
            # The first dot: a part of a round of rounds has one in its own name.
            r, own = name.split(".", 1)
            parts[int(r)][own] = part
        return tuple(Tally(tally.n, own) for own in parts)


def of_rounds(parts: list[Mapping[str, V]]) -> dict[str, V]:
    """What belongs to each part of the rounds' tallies, by its name in that of all rounds."""
    return {f"{r}.{name}": value for r, own in enumerate(parts) for name, value in own.items()}
