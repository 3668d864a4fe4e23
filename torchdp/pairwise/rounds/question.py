"""What the analyst asks in a round."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Question:
    """What the analyst publishes: each user is to answer <u_x, vector>, clipped to center +- half_width.

    vector: (*batch, r); center, half_width: (*batch,). All come from earlier messages, so all are public.
    """

    vector: Tensor
    center: Tensor
    half_width: Tensor

    def shown(self, points: Tensor) -> Tensor:
        """What a user of each type feeds its randomizer: numbers in [-1, 1], (*batch, k)."""
        width = torch.where(self.half_width > 0, self.half_width, 1.0)
        return ((self.vector @ points.mT - self.center[..., None]) / width[..., None]).clamp(-1, 1)

    def clipping(self, points: Tensor) -> Tensor:
        """What clipping adds to the value of each type, (*batch, k): public, and 0 where nothing is clipped."""
        values = self.vector @ points.mT - self.center[..., None]
        wide = self.half_width[..., None]
        return torch.minimum(torch.maximum(values, -wide), wide) - values

    def mean(self, total: Tensor, n: float) -> Tensor:
        """Mean of the users' values, from the sum of their messages."""
        return self.center + self.half_width * total / n


def ask(points: Tensor, vector: Tensor, clip: float) -> Question:
    """The question about ``vector`` that clips no type, unless half the range of its values is above ``clip``.

    The range over all types is known to everyone, so knowing it costs no privacy and clipping is never needed; it can
    still pay, because a message's variance grows with half_width^2.
    """
    values = vector @ points.mT
    low, high = values.amin(-1), values.amax(-1)
    return Question(vector, (low + high) / 2, ((high - low) / 2).clamp_max(clip))


def check_clip(value: float) -> float:
    """``value``, a half width > 0. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"clip must be a number > 0 (math.inf clips nothing), not {value!r}")
    return value
