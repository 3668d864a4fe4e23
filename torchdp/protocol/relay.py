"""The users of one protocol, the analyst of another."""

import math
from typing import Generic, TypeVar

from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.memory import rows_at_once
from torchdp.privacy import Guarantee
from torchdp.protocol.message import M, MessageProtocol
from torchdp.protocol.protocol import S
from torchdp.protocol.records import Crowd, Layout, Limits, Tally

C = TypeVar("C", bound=MessageProtocol)


class Relay(MessageProtocol[S, M], Generic[S, M, C]):
    """Users speak as ``client``'s do, of ``shown(x)``; a class adds the analyst. It keeps the client's guarantee.

    Here users hold rows and show points of the client, part by part.
    """

    client: C

    def shown(self, x: Tensor) -> Tensor:
        """The client's data of these users: x itself where nothing else is said."""
        return x

    @property
    def guarantee(self) -> Guarantee:
        return self.client.guarantee

    @property
    def layout(self) -> Layout:
        return self.client.layout

    def limits(self, n: int) -> dict[str, Limits]:
        return self.client.limits(n)

    def impossible(self, tally: Tally) -> str | None:
        return self.client.impossible(tally)

    @property
    def bits_per_user(self) -> float:
        return self.client.bits_per_user

    def speak(self, x: Tensor, draws: Draws) -> M:
        return self.client.speak(self.shown(x), draws)

    def tally(self, messages: M) -> Tally:
        return self.client.tally(messages)

    def encode(self, messages: M) -> bytes:
        return self.client.encode(messages)

    def decode(self, data: bytes) -> M:
        return self.client.decode(data)

    def hear(self, x: Tensor, draws: Draws) -> Tally:
        parts = x.split(rows_at_once(sum(math.prod(shape) for shape, _ in self.layout.values())))
        return self.add(*(self.client.hear(self.shown(part), draws) for part in parts))

    def drawn(self, summary: S, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        crowd = checks.instance("summary", summary, Crowd)
        return self.client.drawn(Crowd(self.shown(crowd.values), crowd.counts), draws, shape)
