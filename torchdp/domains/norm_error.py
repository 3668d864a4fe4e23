"""How large Gaussian noise is in l_p: closed forms, quadrature, Monte Carlo with its error where neither is exact."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.special import gammaln, log_ndtr
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.memory import rows_at_once
from torchdp.randomness import keyed_generator

DRAWS = 1 << 18  # of the noise
MOST_POWER = 300.0  # of a normal whose moment is a float


@dataclass(frozen=True)
class Measured:
    """A number and its standard error; 0.0 where it is exact up to quadrature, better than 1e-8 relative."""

    value: float
    standard_error: float = 0.0


def normal_moment(p: float) -> float:
    """E |g|^p = 2^{p/2} Gamma((p + 1)/2) / sqrt(pi) for a standard normal g and p in (0, 300]. Raises ValueError."""
    if checks.positive("p", p) > MOST_POWER:
        raise ValueError(f"p must be at most {MOST_POWER:g}, or infinite, not {p!r}: the moment is no float")
    return math.exp(p / 2 * math.log(2) + float(gammaln((p + 1) / 2)) - math.log(math.pi) / 2)


@dataclass(frozen=True)
class NormError:
    """The l_p norm of Z = root g, g a standard normal vector: what noise of covariance root root^T costs.

    floor <= root_mean_square <= ceiling, all of one unit: that of root. root: (d, r), float64; p in [2, inf].
    Source: Nikolov, Tang (2023), Lemma 33 for the floor and Theorem 15 for the ceiling, with its constants.
    """

    root: Tensor
    p: float

    def __post_init__(self) -> None:
        root = checks.floating("root", self.root)
        if root.ndim != 2 or root.shape[0] == 0:
            raise ValueError(f"root must have shape (d, r) with d >= 1, not {tuple(root.shape)}")
        object.__setattr__(self, "root", root.detach().double())
        object.__setattr__(self, "p", check_exponent(self.p))

    @cached_property
    def deviations(self) -> Tensor:
        """Standard deviation of each coordinate, (d,)."""
        return self.root.norm(dim=1)

    @cached_property
    def floor(self) -> float:
        """sqrt(tr_{p/2}(root root^T)), the l_p norm of the deviations: (E ||Z||_p^2)^{1/2} at p = 2, else less."""
        return float(torch.linalg.vector_norm(self.deviations, ord=self.p))

    @cached_property
    def ceiling(self) -> float:
        """A proved upper bound of (E ||Z||_p^2)^{1/2}, for any dependence between the coordinates.

        (E ||Z||_p^p)^{1/p} = (E |g|^p)^{1/p} floor for finite p, or the largest deviation times
        (2 log(2 d) + 2)^{1/2}, or this at q > p through ||Z||_p <= ||Z||_q d^{1/p - 1/q}: whichever is smaller.
        """
        # P(max |Z_i| > t) <= min(1, 2 d e^{-t^2/(2 s^2)}), s the largest deviation; integrated against 2 t dt.
        d = len(self.deviations)
        largest = float(self.deviations.max()) * math.sqrt(2 * math.log(2 * d) + 2)
        if self.p == math.inf:
            return largest
        return min(normal_moment(self.p) ** (1 / self.p) * self.floor, largest * d ** (1 / self.p))

    @cached_property
    def root_mean_square(self) -> Measured:
        """(E ||Z||_p^2)^{1/2}: exact at p = 2 and, for independent coordinates, at p = inf; else by Monte Carlo."""
        if self.p == 2 or self.floor == 0:
            return Measured(self.floor)
        covariance = self.root @ self.root.mT
        off = (covariance - covariance.diagonal().diag()).abs().max()
        independent = self.p == math.inf and float(off) <= 1e-13 * float(covariance.abs().max())
        second = self._largest() if independent else self._monte_carlo()
        value = math.sqrt(second.value)
        return Measured(value, second.standard_error / (2 * value))

    def _largest(self) -> Measured:
        """E max_i Z_i^2 of independent coordinates: the integral of 2 t P(max > t)."""
        deviations = self.deviations[self.deviations > 0].numpy(force=True)
        top = float(deviations.max())
        nodes, weights = np.polynomial.legendre.leggauss(64)
        total = 0.0
        # From 0 to a largest deviation's 1e-17 quantile, in panels; the scale 1/8 resolves the steepest maximum.
        for low in np.arange(0.0, 10.0 + math.sqrt(2 * math.log(len(deviations))), 0.5):
            t = low + (nodes + 1) / 4
            within = np.log1p(-2 * np.exp(log_ndtr(-t[:, None] * top / deviations))).sum(1)
            total += float(weights @ (2 * t * -np.expm1(within))) / 4
        return Measured(top**2 * total)

    def _monte_carlo(self) -> Measured:
        """E ||Z||_p^2; for finite p with ||Z||_p^p, whose mean is known, as control variate."""
        generator = keyed_generator(b"torchdp.mean.norm_error", self.root.device)
        rows = rows_at_once(max(self.root.shape))
        parts = [self._drawn(min(rows, DRAWS - at), generator) for at in range(0, DRAWS, rows)]
        norms = torch.cat(parts) / self.floor
        wanted = norms.square()
        if self.p < math.inf:
            control = norms**self.p - normal_moment(self.p)
            centred = wanted - wanted.mean()
            wanted = wanted - (centred @ control) / (control @ control) * control
        scale = self.floor**2
        return Measured(scale * float(wanted.mean()), scale * float(wanted.std()) / math.sqrt(DRAWS))

    def _drawn(self, count: int, generator: torch.Generator) -> Tensor:
        """The norms of so many draws."""
        shape = (count, self.root.shape[1])
        normals = torch.randn(shape, dtype=torch.float64, device=self.root.device, generator=generator)
        return torch.linalg.vector_norm(normals @ self.root.mT, ord=self.p, dim=1)
