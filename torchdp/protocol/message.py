"""Protocols with a client half: users speak once, each on its own."""

from abc import abstractmethod
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

from torchdp.draws import Draws
from torchdp.noise import Noise, source
from torchdp.protocol.protocol import Protocol, S
from torchdp.protocol.records import Tally

M = TypeVar("M")  # what users send: a tensor with a row for each, or a bag


class MessageProtocol(Protocol[S], Generic[S, M]):
    """Users speak once; tallies of different users add."""

    users_at_once: int = 2**18  # whose messages ``collect`` holds

    @property
    @abstractmethod
    def bits_per_user(self) -> float:
        """Bits that one user sends, in the mean where their number is random."""

    @abstractmethod
    def speak(self, x: Tensor, draws: Draws) -> M:
        """``randomize``, unchecked, by any draws."""

    @abstractmethod
    def tally(self, messages: M) -> Tally:
        """Raises TypeError, ValueError for what no user sends."""

    @abstractmethod
    def encode(self, messages: M) -> bytes:
        """Messages as bytes: bits_per_user each, rounded up to bytes."""

    @abstractmethod
    def decode(self, data: bytes) -> M:
        """Raises ValueError for bytes that no ``encode`` made."""

    def randomize(self, x: Tensor, *, noise: Noise | None = None) -> M:
        """What these users send: the client half, for one row as for a million. Raises TypeError, ValueError."""
        x = self.admit(x).detach()
        return self.speak(x, source(noise, x.device))

    def hear(self, x: Tensor, draws: Draws) -> Tally:
        tallies = [self.tally(self.speak(part, draws)) for part in x.split(self.users_at_once)]
        return tallies[0] if len(tallies) == 1 else self.add(*tallies)

    @property
    def empty(self) -> Tally:
        """Before the first user, on the CPU."""
        parts = self.layout.items()
        return Tally(0, {name: torch.zeros(shape, dtype=dtype, device="cpu") for name, (shape, dtype) in parts})

    @final
    def add(self, *tallies: Tally) -> Tally:
        """One tally of all these users, on the device of the first that has any. Raises TypeError, ValueError."""
        checked = [self.check(each, 0) for each in (tallies or (self.empty,))]
        first = next((each for each in checked if each.n), checked[0])
        n, parts = first.n, dict(first.parts)
        for each in checked:
            if each is not first:
                n += each.n
                parts = {name: part + each[name].to(part.device) for name, part in parts.items()}
        return Tally(n, parts)


class LocalProtocol(MessageProtocol[S, M]):
    """Each message hides its sender by itself: tallies may be kept, added and looked at as they come."""

    @property
    def subject(self) -> object:
        """What is asked, a frozen dataclass: answers to the same may be compared. The whole protocol, unless said."""
        return self
