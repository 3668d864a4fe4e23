"""Anderson acceleration of multiplicative updates, problem by problem of a batch."""

import torch
from torch import Tensor

RIDGE = 1e-8  # of the least squares, relative


class History:
    """The last updates of weights -> weights e^update."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.points: list[Tensor] = []  # differences of the logarithms, and of the updates, (*batch, m + n)
        self.updates: list[Tensor] = []
        self.last: tuple[Tensor, Tensor] | None = None
        self.extrapolated = torch.zeros((), dtype=torch.bool)

    def next(self, weights: Tensor, update: Tensor, back: Tensor) -> Tensor:
        """Logarithms of the next weights; problems marked ``back`` return to the last point's plain update."""
        return self.mix(weights.log(), update, weights.sqrt(), back)

    def mix(self, x: Tensor, update: Tensor, measure: Tensor, back: Tensor) -> Tensor:
        """The next point after x, whose plain successor is x + update; ``measure`` weighs the coordinates."""
        self.extrapolated = torch.zeros_like(back)
        if self.memory == 0:
            return x + update
        if self.last is not None:
            if bool(back.any()):
                x, update = pick(back, self.last[0], x), pick(back, self.last[1], update)
                self.points = [pick(back, torch.zeros_like(x), d) for d in self.points]
                self.updates = [pick(back, torch.zeros_like(x), d) for d in self.updates]
            self.points.append(x - self.last[0])
            self.updates.append(update - self.last[1])
            del self.points[: -self.memory], self.updates[: -self.memory]
        self.last = (x, update)
        if not self.points:
            return x + update
        differences = torch.stack(self.updates, -1)
        weighed = measure[..., None] * differences  # (*batch, m + n, memory)
        size = torch.linalg.matrix_norm(weighed)[..., None, None]
        ridge = torch.where(size > 0, RIDGE * size, 1.0) * torch.eye(len(self.updates)).to(weighed)
        target = torch.cat([measure * update, update.new_zeros((*update.shape[:-1], len(self.updates)))], -1)
        mixture = torch.linalg.lstsq(torch.cat([weighed, ridge], -2), target[..., None]).solution
        mixture = torch.where(mixture.isfinite().all(-2, keepdim=True), mixture, 0.0)
        self.extrapolated = ~back & (mixture != 0).any(-1).any(-1)
        moved = (torch.stack(self.points, -1) + differences) @ mixture
        return x + update - moved[..., 0]


def simplex(weights: Tensor, floor: float) -> Tensor:
    """Weights >= 0 scaled to sum 1, those below ``floor`` raised to it."""
    weights = (weights / weights.sum(-1, keepdim=True)).clamp_min(floor)
    return weights / weights.sum(-1, keepdim=True)


def onto_simplex(x: Tensor) -> Tensor:
    """The nearest probability vector to each row: max(x - t, 0) with the t that makes it add up to 1.

    Source: Held, Wolfe, Crowder (1974).
    """
    falling = x.sort(-1, descending=True).values
    places = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    shifts = (falling.cumsum(-1) - 1) / places
    last = ((falling > shifts).sum(-1, keepdim=True) - 1).clamp_min(0)
    kept = (x - shifts.gather(-1, last)).clamp_min(0)
    return kept / kept.sum(-1, keepdim=True)


def pick(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """``new`` for the problems of the batch in ``mask``, ``old`` for the others."""
    return torch.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)
