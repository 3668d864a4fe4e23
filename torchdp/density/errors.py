"""Mean squared errors: random features, rounding to bits, privacy noise; and the exact density."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import NUMBERS_AT_ONCE, Family


@dataclass(frozen=True, eq=False)
class MeanSquaredError:
    """Its three parts at each query, (q,); they add up."""

    feature: Tensor
    rounding: Tensor
    privacy: Tensor

    @property
    def total(self) -> Tensor:
        """(q,)."""
        return self.feature + self.rounding + self.privacy


def kernel_means(family: Family, x: Tensor, y: Tensor, *, counts: Tensor | None = None) -> Tensor:
    """The exact density, not private: mean_u k(x_u, y), (n, d), (q, d) -> (q,), float64, part by part.

    counts: how many users hold each row, (n,); None: one each. Raises TypeError, ValueError.
    """
    family = checks.instance("family", family, Family)
    x, y = family.admit(x).detach(), family.queries(y).detach()
    weights = torch.ones_like(x[:, 0]) if counts is None else checks.counts("counts", counts, len(x))
    total, size = (
        torch.zeros(len(y), dtype=torch.float64, device=x.device),
        max(1, NUMBERS_AT_ONCE // max(1, len(y))),
    )
    for part, weight in zip(x.split(size), weights.double().split(size), strict=True):
        total += weight @ family.k(part, y.to(part)).double()
    return total / weights.sum()
