"""PrivUnitG, lifted: an unbiased private vector with the same isotropic noise at every point of the ball."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.kernels import privunitg
from torchdp.privacy import Guarantee
from torchdp.randomizers.base import LocalRandomizer, exact_local, user_counts
from torchdp.randomizers.tilted_normal import TiltedNormal


@dataclass(frozen=True)
class IsotropicMoments:
    """E Y = x, Cov Y = variance * I, and the standardised third and fourth moments along x (unit x)."""

    variance: float
    third: float
    fourth: float


@dataclass(frozen=True)
class PrivUnitG(LocalRandomizer):
    """For x in R^dim with ||x|| <= radius a message Y with E Y = x and Cov Y = (radius/k)^2 I, exactly.

    x / radius is lifted to the unit sphere of R^{dim+1}, PrivUnitG applied there at its best threshold k,
    the last coordinate dropped (derivation: kernels/privunitg/README.md). The noise does not depend on x.
    dim: a positive integer; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    Guarantees: exactly epsilon-LDP, for any two points of the ball.
    Source: Asi, Feldman, Talwar (2022), PrivUnitG; plays the role of Ghazi et al. (2023), Theorem 9 (VRand).
    """

    dim: int
    epsilon: float
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.integer("dim", self.dim, 1))
        object.__setattr__(self, "epsilon", TiltedNormal(self.epsilon).epsilon)
        object.__setattr__(self, "radius", checks.positive("radius", self.radius))

    @cached_property
    def tau(self) -> TiltedNormal:
        """The law of the noisy coordinate along x."""
        return TiltedNormal(self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        return exact_local(self.epsilon, "Asi, Feldman, Talwar (2022), PrivUnitG; density ratio c1/c0 = e^epsilon")

    @property
    def moments(self) -> IsotropicMoments:
        """Exact moments: variance (radius/k)^2, third -k, fourth 3 + k^2."""
        variance = (self.radius / self.tau.threshold) ** 2
        return IsotropicMoments(variance, self.tau.third_moment, self.tau.fourth_moment)

    @property
    def bits(self) -> int:
        """dim float64 numbers (float32 points give messages of half that length)."""
        return 64 * self.dim

    def sample(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """One message for each point: x of shape (*batch, dim), the result alike, in x's dtype.

        Raises ValueError for points outside the ball.
        """
        x = self._inside("x", x)
        generator = checks.random_source(generator, x.device)
        normals = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        lift = torch.randn(x.shape[:-1], dtype=x.dtype, device=x.device, generator=generator)
        tau = self.tau.sample(tuple(x.shape[:-1]), generator=generator)
        return privunitg.message(x, normals, lift, tau, radius=self.radius, threshold=self.tau.threshold)

    def decode_sum(self, messages: Tensor) -> Tensor:
        """Sum over the last batch dimension, in float64: (*batch, users, dim) -> (*batch, dim)."""
        messages = checks.floating("messages", messages)
        if messages.ndim < 2 or messages.shape[-1] != self.dim:
            raise ValueError(f"messages must have shape (..., users, {self.dim}), not {tuple(messages.shape)}")
        return messages.sum(-2, dtype=torch.float64)

    def sample_sum(
        self, points: Tensor, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """Sum of the messages of counts[x] users at points[x], exactly in law, at a cost free of the counts.

        With x' = points / radius and n = sum of counts, the sum is
        (radius/k) (sum_x T_x x' + N(0, n I - sum_x counts_x x' x'^T)), T_x the sum of counts[x] copies of tau.

        points: (m, dim); counts: (m,) whole numbers. Returns (*sample_shape, dim), float64: independent
        repetitions for the same counts. Cost: O(dim^3 + m dim^2) once, O(m dim) for each repetition.
        Raises ValueError, TypeError.
        """
        points = self._inside("points", points).double()
        if points.ndim != 2:
            raise ValueError(f"points must have shape (types, {self.dim}), not {tuple(points.shape)}")
        counts = user_counts(counts, points.shape[0]).to(points.device)
        generator = checks.random_source(generator, points.device)
        shape = checks.sample_shape(sample_shape)
        scaled = points / self.radius
        scaled = scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(1)
        along = self.tau.sample_sums(counts, generator=generator, sample_shape=shape)  # (*shape, m)
        gram = scaled.mT @ (counts[:, None] * scaled)
        eigenvalues, vectors = torch.linalg.eigh(gram)
        spread = (counts.sum() - eigenvalues).clamp_min(0).sqrt() * vectors  # covariance n I - gram
        normals = torch.randn((*shape, self.dim), dtype=torch.float64, device=points.device, generator=generator)
        return (along @ scaled + normals @ spread.mT) * (self.radius / self.tau.threshold)

    def _inside(self, name: str, x: Tensor) -> Tensor:
        x = checks.real(name, x)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"{name} must have shape (..., {self.dim}), not {tuple(x.shape)}")
        if x.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} must be float32 or float64, not {x.dtype}: the message needs their precision")
        norms = torch.linalg.vector_norm(x, dim=-1)  # one pass over x; NaN and infinity come through
        if not torch.isfinite(norms).all():
            raise ValueError(f"{name} holds NaN or infinite entries; remove them before the call")
        largest = float(norms.max()) if x.numel() else 0.0
        # Rounding of the norm is let through (such points are projected onto the ball), no more.
        if largest > self.radius * (1 + 4 * math.sqrt(self.dim) * torch.finfo(x.dtype).eps):
            raise ValueError(f"{name} holds points outside the ball of radius {self.radius:g}; scale or clip them")
        return x
