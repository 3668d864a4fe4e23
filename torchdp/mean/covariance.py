"""Covariance without bias from one joint release, and the biased projection that wins for few users."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.domains.domain import Domain
from torchdp.domains.encoding import Encoding, admitted, encoding
from torchdp.domains.noise_shape import NoiseShape
from torchdp.mean.moments import apply_to_each, symmetrised, tensor_sum
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma


@dataclass(frozen=True)
class CovarianceEstimate:
    """Private mean (*sample_shape, d) and covariance (*sample_shape, d, d), symmetric, of n users' vectors.

    Both are unbiased for those users' own mean and covariance (divisor n), so the covariance may have eigenvalues
    below 0; :func:`project_covariance` takes them away, at the price of a bias.
    """

    mean: Tensor
    covariance: Tensor
    n: int


@dataclass(frozen=True)
class GaussianCovariance:
    """The curator releases mean and second moment together, and from them the covariance without bias.

    With w = A^+ (x - c) / R in the unit ball one Gaussian release of (w w^T, t w), symmetric noise on the first,
    carries both: ||w w^T - v v^T||_F^2 + t^2 ||w - v||^2 = |w|^4 + |v|^4 - 2 s^2 + t^2 (|w|^2 + |v|^2 - 2 s) with s =
    <w, v> is largest over all s at -t^2/2, where it is at most 2 (1 + t^2/2)^2. From S and m, with noise of deviation
    tau = multiplier 2^{1/2} (1 + t^2/2) / n in S and tau/t in m, the covariance is B (S - m m^T + (tau/t)^2 I) B^T,
    B = R A, without bias. t is the one that is best where the mean is as far from c as it may be.

    multiplier > 0; delta in (0, 1): where the guarantee is stated. :func:`gaussian_covariance` finds the multiplier.

    Guarantees: (epsilon, delta)-DP in the central model for replacing one user's point, n public; unbiased.
    Source: Nikolov, Tang (2023), Theorem 15 and the text after Theorem 6; the joint release is derived here.
    """

    domain: Domain
    shape: NoiseShape
    multiplier: float
    delta: float

    def __post_init__(self) -> None:
        encoding(self.domain, self.shape)
        object.__setattr__(self, "multiplier", checks.positive("multiplier", self.multiplier))
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))

    @cached_property
    def encoding(self) -> Encoding:
        """How points become vectors of a ball."""
        return encoding(self.domain, self.shape)

    @cached_property
    def root(self) -> Tensor:
        """B = R A, (d, r)."""
        return self.encoding.radius * self.shape.root

    @cached_property
    def mean_weight(self) -> float:
        """t: minimises (1 + t^2/2)^2 (H + C/t^2), H = (tr(G)^2 + tr(G^2))/2, C = 2 g (tr G + g), g = ||G||, G = B B^T.

        At most 2^{1/2}, beyond which more weight on the mean makes its own noise larger.
        """
        eigenvalues = torch.linalg.svdvals(self.root).square()
        if not eigenvalues.any():
            return math.sqrt(2)  # a single point: there is no noise
        trace, square, top = (float(v) for v in (eigenvalues.sum(), eigenvalues.square().sum(), eigenvalues.max()))
        H, C = (trace**2 + square) / 2, 2 * top * (trace + top)
        return math.sqrt(min(2.0, (-C / 2 + math.sqrt(C**2 / 4 + 4 * H * C)) / (2 * H)))

    @property
    def guarantee(self) -> Guarantee:
        """At ``delta``, by the exact curve of Gaussian noise."""
        found = gaussian_guarantee(self.multiplier, self.delta, 1.0, Model.CENTRAL, Neighbours.REPLACE_ONE)
        source = f"Nikolov, Tang (2023), Theorem 15; {found.source}"
        return Guarantee(found.epsilon, found.delta, found.model, found.neighbours, False, source)

    def moment_noise(self, n: int) -> float:
        """tau, the standard deviation on the diagonal of S; beside it tau / 2^{1/2}."""
        sensitivity = math.sqrt(2) * (1 + self.mean_weight**2 / 2)
        return self.multiplier * sensitivity / checks.integer("n", n, 1)

    def root_mean_square(self, n: int, mean: Tensor) -> float:
        """(E ||covariance - exact||_F^2)^{1/2} over the noise, exactly, for n users whose mean is ``mean`` (d,).

        tau^2 H + 2 (tau/t)^2 (|b|^2 tr G + b^T G b) + (tau/t)^4 (tr(G)^2 + tr(G^2)), b = mean - c.
        """
        G = self.root @ self.root.mT
        b = mean.double() - self.encoding.centre
        trace, square = float(G.trace()), float(G.square().sum())
        tau = self.moment_noise(n)
        nu = (tau / self.mean_weight) ** 2
        cross = 2 * nu * (float(b @ b) * trace + float(b @ G @ b))
        return math.sqrt(tau**2 * (trace**2 + square) / 2 + cross + nu**2 * (trace**2 + square))

    def estimate(
        self, x: Tensor, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()
    ) -> CovarianceEstimate:
        """Mean and covariance of x, (n, d); noise: the system's where None.

        sample_shape: repetitions, for simulations: each is a release of its own, and the guarantee is that of one.
        Raises TypeError, ValueError (for points outside the domain).
        """
        x = admitted("x", x, self.domain, self.shape)
        draws, shape = source(noise, x.device), checks.sample_shape(sample_shape)
        n, r = len(x), self.root.shape[1]
        tau = self.moment_noise(n)
        second, first = self.root.new_zeros(r, r), self.root.new_zeros(r)
        for u in self.encoding.chunks(x):
            w = u / (self.encoding.radius or 1.0)
            second, first = second + tensor_sum(w, 2), first + w.sum(0)
        S = second / n + tau * symmetrised(draws.normal((*shape, r, r)), 2)
        m = first / n + tau / self.mean_weight * draws.normal((*shape, r))
        correction = (tau / self.mean_weight) ** 2 * torch.eye(r).to(S)
        covariance = apply_to_each(self.root, S - m[..., :, None] * m[..., None, :] + correction, 2)
        return CovarianceEstimate(self.encoding.centre + m @ self.root.mT, covariance, n)


def gaussian_covariance(domain: Domain, shape: NoiseShape, epsilon: float, delta: float) -> GaussianCovariance:
    """The mechanism with the least noise that is (epsilon, delta)-DP. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP.
    Source: Balle, Wang (2018), Theorem 8.
    """
    return GaussianCovariance(domain, shape, gaussian_sigma(epsilon, delta), delta)


def project_second_moment(matrix: Tensor, radius: float = 1.0) -> Tensor:
    """The nearest mean of x x^T with ||x|| <= radius: biased, and much closer than an unbiased estimate for few users.

    The nearest positive semidefinite matrix of trace at most radius^2: eigenvalues cut at 0 and, where their sum is
    too large, shifted down together. matrix: (*batch, d, d), symmetric. Post-processing: as private as its input.
    Source: Nikolov, Talwar, Zhang (2016), the projection mechanism, for the ball's second moments.
    """
    matrix, total = _square(matrix), checks.squarable("radius", radius) ** 2
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    falling = values.flip(-1)
    places = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    levels = (falling.cumsum(-1) - total) / places
    # The shift is the level of the last place whose eigenvalue is still above it, where it is positive.
    last = (falling > levels).sum(-1, keepdim=True).clamp_min(1)
    shift = levels.gather(-1, last - 1).clamp_min(0.0)
    return (vectors * (values - shift).clamp_min(0)[..., None, :]) @ vectors.mT


def project_covariance(matrix: Tensor) -> Tensor:
    """The nearest positive semidefinite matrix: biased upwards, never further from a covariance than its input."""
    matrix = _square(matrix)
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    return (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT


def _square(matrix: Tensor) -> Tensor:
    """(*batch, d, d), at least float32."""
    matrix = checks.matrix("matrix", matrix)
    if matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix must have shape (..., d, d), not {tuple(matrix.shape)}")
    return matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()


def projection_bound(tau: float, dimension: int, radius: float = 1.0) -> float:
    """An upper bound on the projected second moment's (E ||error||_F^2)^{1/2}, whatever the data.

    radius (tau ((2 d)^{1/2} + (2 pi d)^{-1/2}))^{1/2}; symmetric noise N, tau on the diagonal, tau/2^{1/2} beside it.
    The projection P of M + N on a convex set has ||P - M||^2 <= <N, P - M>, and E <N, P> <= radius^2 E max(0,
    lambda_max(N)); E lambda_max <= tau (2 d)^{1/2} by Sudakov-Fernique (||w w^T - v v^T||^2 <= 2 ||w - v||^2 on the
    sphere), and lambda_max >= tr(N)/d, of standard deviation tau d^{-1/2}.

    Guarantees: an upper bound for every data set.
    Source: Nikolov, Talwar, Zhang (2016), Lemma on the projection's error; derived here with constants.
    """
    tau, radius = checks.positive("tau", tau), checks.positive("radius", radius)
    d = checks.integer("dimension", dimension, 1)
    return radius * math.sqrt(tau * (math.sqrt(2 * d) + 1 / math.sqrt(2 * math.pi * d)))
