"""A curator who sees the data and releases once."""

from abc import abstractmethod
from typing import final

from torch import Tensor

from torchdp.draws import Draws, Simulated
from torchdp.protocol.protocol import Protocol, S
from torchdp.protocol.records import Tally


class CuratorProtocol(Protocol[S]):
    """Collecting is the summary, released once. Nothing is sent, and tallies do not add."""

    @abstractmethod
    def release(self, summary: S, draws: Draws, shape: tuple[int, ...]) -> Tally:
        """The summary under its noise, ``shape`` times over."""

    @final
    def hear(self, x: Tensor, draws: Draws) -> Tally:
        return self.release(self.summary(x), draws, ())

    @final
    def drawn(self, summary: S, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.release(summary, draws, shape)
