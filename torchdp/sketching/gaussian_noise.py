"""Gaussian noise in parts: the least of all at given (epsilon, delta), and what it promises, exactly."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.sketching.coalition import EVERYBODY, AdaptiveCoalition, honest_pairs
from torchdp.sketching.noise import DivisibleNoise
from torchdp.sketching.sketch import Sketch


@entrywise(of_floats=True, bound=checks.squarable, epsilon=checks.positive, delta=checks.fraction)
def entry_variance(bound: Numbers, *, epsilon: Numbers, delta: Numbers) -> Numbers:
    """V = (2 B/mu*)^2, 1/mu* = gaussian_sigma(epsilon, delta): the least variance of iid Gaussian noise on S A.

    bound: B, the largest l_2 norm of a client's row. Numbers, or batches that broadcast. Raises TypeError, ValueError.

    Guarantees: S A + N(0, V) is (epsilon, delta)-DP, exactly, for the sketch's every s, m, n and d.
    Source: Balle, Wang (2018), Theorem 8, at sensitivity |S_i (a_i - a_i')^T|_F = |a_i - a_i'|_2 <= 2 B.
    """
    return gaussian_sigma(epsilon, delta, 2 * bound) ** 2


@dataclass(frozen=True, eq=False)
class GaussianNoise(DivisibleNoise):
    """N(0, sigma_j^2) in each entry that goes to row j, independently in every copy.

    sigma: (m,), or one number for every row. Raises ValueError, TypeError.

    Guarantees: epsilon at delta, exact where everybody is honest, and with one copy for each kind of coalition.
    Source: replacing row a_i changes sqrt(s) S A by sgn_ic (a_i - a_i') in row j = rows[c, i] of each copy c, the noise
        of row j is N(0, h_j sigma_j^2 I), and rows are independent: the pair is two Gaussians at distance
        mu_i^2 = |a_i - a_i'|^2 sum_c 1/(h_j sigma_j^2) <= 4 B^2 sum_c 1/(h_j sigma_j^2), with equality for a_i' = -a_i;
        Balle, Wang (2018), Theorem 8.
    """

    sigma: Tensor | float

    def __post_init__(self) -> None:
        checks.own(self)
        given = checks.floating("sigma", self.sigma) if isinstance(self.sigma, Tensor) else self.sigma
        if not isinstance(given, Tensor):
            given = torch.tensor(checks.positive("sigma", given), dtype=torch.float64)
        sigma = given.double()
        if sigma.ndim > 1 or not sigma.numel() or not (sigma > 0).all() or not torch.isfinite(sigma).all():
            raise ValueError(
                f"sigma must be finite, > 0, one number or one for each row, not of shape {tuple(sigma.shape)}"
            )
        object.__setattr__(self, "sigma", sigma)

    @staticmethod
    def calibrated(
        sketch: Sketch,
        bound: float,
        *,
        epsilon: float,
        delta: float,
        coalition: AdaptiveCoalition = EVERYBODY,
        rows: bool = True,
    ) -> "GaussianNoise":
        """The least noise for (epsilon, delta), with a sigma for each row or, without ``rows``, one for all.

        sigma_j^2 = s V/h_j, h_j the row's honest pairs: every entry of the release has variance V (``entry_variance``)
        where all are honest. One for all: sigma^2 = V max_i sum_c 1/h_j, j = rows[c, i]. Empty rows count as rows of
        one client. bound: B, the largest l_2 norm of a client's row. Raises ValueError, TypeError.

        Guarantees: (epsilon, delta)-DP; exact where everybody is honest, and with one copy for each kind of coalition.
        Source: mu_i^2 = 4 B^2 sum_c 1/(h_j sigma_j^2) = mu*^2 for every client.
        """
        honest = honest_pairs(sketch, coalition)
        if checks.instance("rows", rows, bool):
            shape = honest.clamp_min(1).double().rsqrt()
        else:
            shape = torch.ones(sketch.height, dtype=torch.float64, device=sketch.device)
        distance = 2 * checks.squarable("bound", bound) * _distance(sketch, honest, shape)
        factor = gaussian_sigma(epsilon, delta, distance)
        return GaussianNoise(factor * shape if rows else factor)

    def sums_of(self, sketch: Sketch, shape: tuple[int, ...], draws: Draws) -> Tensor:
        return draws.normal(shape) * (sketch.counts().sqrt() * self._rows(sketch))[:, None]

    def variance(self, sketch: Sketch) -> Tensor:
        checks.instance("sketch", sketch, Sketch)
        return sketch.counts() * self._rows(sketch) ** 2 / sketch.copies

    def guarantee(
        self, sketch: Sketch, bound: float, *, delta: float, coalition: AdaptiveCoalition = EVERYBODY
    ) -> Guarantee:
        """What S A plus this noise promises to each honest client. Raises TypeError, ValueError."""
        honest = honest_pairs(sketch, coalition)
        distance = 2 * checks.squarable("bound", bound) * _distance(sketch, honest, self._rows(sketch))
        kind = Model.LINEAR_TRANSFORM, Neighbours.REPLACE_ONE
        found = gaussian_guarantee(1.0, delta, distance, *kind)
        return replace(found, exact=found.exact and coalition.exact(sketch))

    def _rows(self, sketch: Sketch) -> Tensor:
        sigma = torch.as_tensor(self.sigma, dtype=torch.float64, device=sketch.device)
        if sigma.ndim and len(sigma) != sketch.height:
            raise ValueError(f"sigma has {len(sigma)} rows, the sketch {sketch.height}")
        return sigma.expand(sketch.height)


def _distance(sketch: Sketch, honest: Tensor, sigma: Tensor) -> float:
    """The largest distance, in deviations, of two releases whose rows are 1 apart: (max_i sum_c 1/(h_j sigma_j^2))^1/2.

    honest, sigma: (m,). j = rows[c, i].
    """
    loss = torch.where(sketch.counts() > 0, 1 / (honest * sigma.square()), 0.0)
    return math.sqrt(float(loss[sketch.kinds].sum(0).max()))
