"""Users of k types whose messages are whole numbers."""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Simulated
from torchdp.protocol.protocol import MessageProtocol
from torchdp.protocol.records import Tally
from torchdp.protocol.users import users_of


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


def _repeated(protocol: MessageProtocol[Any, Any], x: Tensor, draws: Simulated, times: int) -> list[Tally]:
    beside = max(1, protocol.users_at_once // len(x))
    if beside == 1:
        return [protocol.collect_unchecked(x, draws) for _ in range(times)]
    crowds = [torch.cat([x] * min(beside, times - start)) for start in range(0, times, beside)]
    said = (part for crowd in crowds for part in protocol.randomize_unchecked(crowd, draws).split(len(x)))
    return [protocol.tally(messages) for messages in said]
