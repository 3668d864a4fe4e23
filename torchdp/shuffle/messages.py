"""What travels from users to the analyst, and the shuffler in between."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks


@dataclass(frozen=True, eq=False)
class ShuffledMessages:
    """Anonymous messages of n users: the instance that each belongs to, (m,) int32, and its content, (m,) int8.

    n: how many users sent them. The shuffler counts users, since how many messages one sends may be random. A bag of
    one user tells the shuffler how many messages this user sent; the shuffler is trusted with that. Raises TypeError,
    ValueError.
    """

    n: int
    instance: Tensor
    content: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checks.integer("n", self.n, 0))
        for name, value, dtype in (
            ("instance", self.instance, torch.int32),
            ("content", self.content, torch.int8),
        ):
            if not isinstance(value, Tensor) or value.dtype != dtype:
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(f"{name} must be a tensor of {dtype}, not {kind}")
            checks.dense(name, value)
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

    def __add__(self, other: "ShuffledMessages") -> "ShuffledMessages":
        """All messages of both: what the shuffler receives from two groups of users."""
        checks.instance("other", other, ShuffledMessages)
        pairs = ((self.instance, other.instance), (self.content, other.content))
        return ShuffledMessages(self.n + other.n, *(torch.cat(pair) for pair in pairs))

    def mixed(self) -> "ShuffledMessages":
        """The shuffler: the same messages in the order of their instances and contents.

        The result is a function of the multiset of messages alone, whatever order they came in. A uniformly random
        permutation tells the analyst no more and no less: either can be made from the other without the data. Here
        nothing hangs on the quality of a generator. O(m + spread of the instances), by counting.

        Guarantees: messages that arrive in another order leave it unchanged.
        """
        if not len(self):
            return self
        first, least = self.instance.min(), self.content.min()
        width = int(self.content.max()) - int(least) + 1
        kind = (self.instance.long() - first).mul_(width).add_(self.content).sub_(least)
        counts = torch.bincount(kind)
        kinds = torch.arange(len(counts), device=counts.device)
        instance, content = (kinds // width + first).to(torch.int32), (kinds % width + least).to(torch.int8)
        return ShuffledMessages(self.n, instance.repeat_interleave(counts), content.repeat_interleave(counts))
