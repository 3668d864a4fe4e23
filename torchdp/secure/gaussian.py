"""Gaussian noise of its own in every word of a secure sketch: what follows from its settings."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.grid import grid_sigma, grid_variation
from torchdp.kernels.secure_sketch import SURE, VARIATION
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.secure.ring import Ring, farthest_sum
from torchdp.secure.settings import LEFT, Settings
from torchdp.sketching.gaussian_noise import GaussianNoise

GAINED = 1e-6  # of sigma: for less than that mu is kept without a variation


@dataclass(frozen=True, eq=False)
class GaussianSettings(Settings):
    """The fields of :class:`SecureSketch`, and its noise. Raises ValueError, TypeError."""

    delta: float

    def __post_init__(self) -> None:
        checks.fraction("delta", self.delta)
        self._set("delta", checks.positive("delta", self.delta))
        super().__post_init__()

    @cached_property
    def honest(self) -> Tensor:
        """Honest pairs that each row holds at least: (m,), int64."""
        return self.coalition.honest(self.sketch, self.delta)

    @cached_property
    def sigma(self) -> Tensor:
        """Standard deviation of one client's noise in each row, in units of the data, before rounding: (m,), float64.

        That of real numbers at D, the sensitivity on the grid, where the noise of a client is wide enough on the grid
        (``grid_variation``); else sigma_j^2 = s cost_j / mu*^2, cost_j = D^2/h_j + d h_j 4^-f/4 (``row_cost``: the
        second term is what rounding costs). 0 in rows that no client uses.
        """
        return self._sigma(self.ring).to(self.sketch.device)

    @cached_property
    def variation(self) -> float:
        """Total variation distance of all noise that hides a client from a function of Gaussian noise; 0: none."""
        return self._smooth(self.ring)[1]

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), an upper bound because the grid costs a little; mu where delta pays for no coalition.

        Of the words that are sent on a CPU, where noise is rounded without error; a GPU's floats decide it.
        """
        mu = None if self.coalition.slack(self.delta) else self._mu if self.variation == 0 else self._real_mu
        source = "Burkhardt et al. (2025), Theorem 4.4; Balle, Wang (2018), Theorem 8"
        words = self.sketch.clients * self.sketch.copies * self.columns * VARIATION
        return self._on_wire(self.delta, mu, source, self.variation, words)

    @cached_property
    def row_variance(self) -> Tensor:
        """Variance of the noise in each entry of a row: c_j (sigma_j^2 + 4^-f/12) / s, (m,), float64.

        c_j: all pairs of the row, none of which failed. Rounding adds 1/12 square unit where sigma is not below one
        unit.
        """
        return self.sketch.counts() * (self.sigma**2 + 1 / (12 * self.ring.scale**2)) / self.sketch.copies

    @cached_property
    def grid_factor(self) -> float:
        """What the grid costs: the noise's variance over that of real numbers, calibrated alike; the worst row's."""
        counts = self.sketch.counts()
        used = counts > 0
        least = counts[used] * (self._apart * self._real.to(counts.device)[used]) ** 2 / self.sketch.copies
        return float((self.row_variance[used] / least).max())

    @cached_property
    def _mu(self) -> float:
        return 1 / gaussian_sigma(self.epsilon, self.delta * LEFT - self.coalition.slack(self.delta))

    @cached_property
    def _real(self) -> Tensor:
        """Of real numbers, for two rows at distance 1, 2^-40 of delta apart: (m,), on the CPU."""
        delta = self.delta * ROUNDED
        noise = GaussianNoise.calibrated(
            self.sketch, 0.5, epsilon=self.epsilon, delta=delta, coalition=self.coalition
        )
        return torch.as_tensor(noise.sigma, dtype=torch.float64).cpu()

    @property
    def _real_mu(self) -> float:
        return 1 / gaussian_sigma(self.epsilon, self.delta * ROUNDED)

    @cached_property
    def _surely(self) -> Tensor | None:
        """Honest pairs of each row but with a chance that 2^-41 of delta pays for; None: there may be none."""
        try:
            return self.coalition.surely(self.sketch, self.delta).cpu()
        except ValueError:
            return None

    def _smooth(self, ring: Ring) -> tuple[Tensor | None, float]:
        """The sigma of real numbers on this grid and what it is off by, where that costs 2^-41 of delta at most and it
        is less than ``grid_sigma``; else None and 0."""
        honest, counts = self._surely, self._rows[1]
        if honest is None:
            return None, 0.0
        distance = self._distance(ring)
        used, sigma = counts > 0, self._real * distance
        pairs = self.sketch.copies * self.columns
        variation = pairs * float(grid_variation(honest[used].double(), sigma[used] * ring.scale).max())
        if (1 + math.exp(min(self.epsilon, 700.0))) * variation > self.delta * (1 - ROUNDED) / 4:
            return None, 0.0
        coarse = self._on_any_grid(ring)
        if bool((coarse[used] <= sigma[used] * (1 + GAINED)).all()):
            return None, 0.0
        return sigma, variation

    def _on_any_grid(self, ring: Ring) -> Tensor:
        copies, step, distance = self.sketch.copies, 1 / ring.scale, self._distance(ring)
        return grid_sigma(self._rows[0], copies, self.columns, step, distance, self._mu)

    def _sigma(self, ring: Ring) -> Tensor:
        smooth = self._smooth(ring)[0]
        return torch.where(self._rows[1] > 0, self._on_any_grid(ring) if smooth is None else smooth, 0.0)

    def _farthest(self, ring: Ring) -> float:
        sigma = self._sigma(ring)
        if float(sigma.max()) * ring.scale > SURE:
            return math.inf
        return farthest_sum(self._rows[1], self._largest, sigma, 1 / ring.scale)
