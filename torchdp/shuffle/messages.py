"""What travels from users to the analyst, and the shuffler in between."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks


@dataclass(frozen=True, eq=False)
class Messages:
    """Anonymous messages, one row each: the instance it belongs to, (m,) int32, and its content, (m,) int8.

    Raises TypeError, ValueError.
    """

    instance: Tensor
    content: Tensor

    def __post_init__(self) -> None:
        for name, value, dtype in (
            ("instance", self.instance, torch.int32),
            ("content", self.content, torch.int8),
        ):
            if not isinstance(value, Tensor) or value.dtype != dtype:
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(f"{name} must be a tensor of {dtype}, not {kind}")
        if self.instance.ndim != 1 or self.instance.shape != self.content.shape:
            raise ValueError(
                "instance and content must have one shape (m,), one row for each message, not "
                f"{tuple(self.instance.shape)} and {tuple(self.content.shape)}"
            )
        if self.instance.device != self.content.device:
            raise ValueError(
                f"instance and content must be on one device, not {self.instance.device} and {self.content.device}"
            )

    def __len__(self) -> int:
        return len(self.instance)


def join(parts: Iterable[Messages]) -> Messages:
    """All messages of several parts: what the shuffler receives from several groups of users."""
    parts = [checks.instance("parts", part, Messages) for part in parts]
    if not parts:
        raise ValueError("parts must hold at least one Messages")
    return Messages(torch.cat([part.instance for part in parts]), torch.cat([part.content for part in parts]))


def shuffle(messages: Messages) -> Messages:
    """The shuffler: the same messages in the order of their instances and contents.

    Its output is a function of the multiset of messages alone, whatever order they came in. A uniformly random
    permutation tells the analyst no more and no less: either can be made from the other without the data. Here
    nothing hangs on the quality of a generator. O(m + spread of the instances), by counting.

    Guarantees: messages that arrive in another order leave it unchanged.
    """
    if not len(checks.instance("messages", messages, Messages)):
        return messages
    first, least = messages.instance.min(), messages.content.min()
    width = int(messages.content.max()) - int(least) + 1
    kind = (messages.instance.long() - first).mul_(width).add_(messages.content).sub_(least)
    counts = torch.bincount(kind)
    kinds = torch.arange(len(counts), device=counts.device)
    instance, content = (kinds // width + first).to(torch.int32), (kinds % width + least).to(torch.int8)
    return Messages(instance.repeat_interleave(counts), content.repeat_interleave(counts))
