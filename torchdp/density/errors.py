"""Mean squared errors in closed form: random features, rounding to bits, privacy noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.family import NUMBERS_AT_ONCE, Family, OneTermFamily
from torchdp.shuffle import BitLaw


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
    x, y = family.validate(x).detach(), family.queries(y).detach()
    weights = torch.ones_like(x[:, 0]) if counts is None else checks.counts("counts", counts, len(x))
    total, size = (
        torch.zeros(len(y), dtype=torch.float64, device=x.device),
        max(1, NUMBERS_AT_ONCE // max(1, len(y))),
    )
    for part, weight in zip(x.split(size), weights.double().split(size), strict=True):
        total += weight @ family.k(part, y.to(part)).double()
    return total / weights.sum()


def expected_mse(family: OneTermFamily, repetitions: int, law: BitLaw, x: Tensor, y: Tensor) -> MeanSquaredError:
    """E (K~(y) - mean_u k(x_u, y))^2 over the features too: (n, d), (q, d) -> (q,). O(n^2 q d), not private.

    feature: (1/I) (mean_{u, v} E <f(x_u), g> <f(x_v), g> - K(y)^2); rounding: (1/(n I)) mean_u (R^2 E g^2 -
    E <f(x_u), g>^2), none with a curator; privacy: (1/I) (2 R rmse/n)^2 E g^2, exact where the law's variance does
    not depend on the data, else its largest. Raises ValueError, TypeError.
    Source: Wagner (2025), section A.1, with the terms kept apart and exact.
    """
    repetitions = checks.integer("repetitions", repetitions, 1)
    family, law = checks.instance("family", family, OneTermFamily), checks.instance("law", law, BitLaw)
    if law.levels > 1:
        raise ValueError("law must round to bits, levels = 1; for others take density_mse of the features drawn")
    x, y = family.validate(x).detach().double(), family.queries(y).detach().double()
    n = len(x)
    pairs, own = torch.zeros((2, len(y)), dtype=torch.float64, device=x.device)
    for part in x.split(max(1, NUMBERS_AT_ONCE // max(1, n * len(y) * family.dimension))):
        pairs += family.cross_moment(part[:, None, None], x[None, :, None], y).sum((0, 1))
        own += family.cross_moment(part[:, None], part[:, None], y).sum(0)
    feature = pairs / n**2 - kernel_means(family, x, y).square()
    query = family.query_moment(y)
    rounding = (family.bound**2 * query - own / n).clamp_min(0) / n * (not law.takes_numbers)
    privacy = (2 * family.bound / n) ** 2 * law.rmse**2 * query
    return MeanSquaredError(*(part / repetitions for part in (feature, rounding, privacy)))
