"""The central model's baselines: MOD-SULQ, sufficient statistics perturbation and AdaSSP, each with its guarantee."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model, Neighbours, compose, gaussian_guarantee, gaussian_sigma
from torchdp.regression.errors import SecondMoments
from torchdp.regression.gram import within
from torchdp.regression.ridge import solve_ridge
from torchdp.regression.second_moment_noise import NoisyMoments, symmetric
from torchdp.regression.sensitivity import cross_sensitivity, gram_sensitivity


@dataclass(frozen=True)
class ModSulq:
    """A^T A with N(0, sigma^2) on each entry of the upper triangle, mirrored.

    The upper triangle of x x^T - x' x'^T is at most sqrt 2 B^2 long (B^2 with one column), like the whole svec, but
    the noise off the diagonal is sqrt 2 times what :class:`GramRelease` needs. columns: d; bound: B; sigma: of A^T A,
    not divided by n; delta in (0, 1). See :func:`mod_sulq`, :func:`paper_mod_sulq`. Raises ValueError.

    Guarantees: the exact epsilon of this sigma at delta, central model, for replacing one row.
    Source: Chaudhuri, Sarwate, Sinha (2013), Algorithm 1; Balle, Wang (2018), Theorem 8.
    """

    columns: int
    bound: float
    sigma: float
    delta: float

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.fraction("delta", self.delta)
        _ = self.sensitivity

    @property
    def sensitivity(self) -> float:
        """Largest distance between the upper triangles of x x^T and x' x'^T."""
        return gram_sensitivity(self.bound, self.columns)

    @property
    def guarantee(self) -> Guarantee:
        return gaussian_guarantee(self.sigma, self.delta, self.sensitivity, Model.CENTRAL, Neighbours.REPLACE_ONE)

    def release(
        self, moments: SecondMoments, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()
    ) -> NoisyMoments:
        """The noisy A^T A; its level is that of the entries off the diagonal. Raises TypeError, ValueError."""
        within(moments, self.columns, self.bound, None)
        draws, shape = source(noise, moments.matrix.device), checks.sample_shape(sample_shape)
        upper = draws.normal((*shape, self.columns, self.columns)).triu()
        gram = moments.matrix + self.sigma * (upper + upper.triu(1).mT)
        level = gram.new_full(shape, math.sqrt(2) * self.sigma)
        return NoisyMoments(gram, None, level, level)


def mod_sulq(columns: int, bound: float, epsilon: float, delta: float) -> ModSulq:
    """MOD-SULQ with the least noise for (epsilon, delta). Raises ValueError."""
    return ModSulq(columns, bound, gaussian_sigma(epsilon, delta, gram_sensitivity(bound, columns)), delta)


def paper_mod_sulq(clients: int, columns: int, bound: float, epsilon: float, delta: float) -> ModSulq:
    """MOD-SULQ with its published noise: n B^2 beta,

    beta = (d + 1)/(n epsilon) sqrt(2 ln((d^2 + d)/(2 sqrt(2 pi) delta))) + 1/(n sqrt epsilon).
    Its guarantee says how much less than epsilon it spends. Raises ValueError.

    Source: Chaudhuri, Sarwate, Sinha (2013), Algorithm 1 and Theorem 1.
    """
    n, d = checks.integer("clients", clients, 1), checks.integer("columns", columns, 1)
    epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
    logarithm = math.log(max(1.0, (d * d + d) / (2 * math.sqrt(2 * math.pi) * delta)))
    beta = (d + 1) / (n * epsilon) * math.sqrt(2 * logarithm) + 1 / (n * math.sqrt(epsilon))
    return ModSulq(d, bound, n * checks.squarable("bound", bound) ** 2 * beta, delta)


@dataclass(frozen=True)
class SufficientStatistics:
    """Sufficient statistics perturbation: A^T A and A^T b by a Gaussian mechanism each, at half of epsilon and delta.

    columns: d; bound: B; label_bound: C; epsilon > 0, delta in (0, 1). Raises ValueError.

    Guarantees: (epsilon, delta)-DP, central model, for replacing one row and label; not tight (see ``GramRelease``).
    Source: Vu, Slavkovic (2009); Balle, Wang (2018), Theorem 8, for each half.
    """

    columns: int
    bound: float
    label_bound: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.fraction("delta", self.delta)
        _ = self.gram_sigma, self.cross_sigma

    @cached_property
    def gram_sigma(self) -> float:
        """Level of the noise of A^T A."""
        return gaussian_sigma(self.epsilon / 2, self.delta / 2, gram_sensitivity(self.bound, self.columns))

    @cached_property
    def cross_sigma(self) -> float:
        """Standard deviation of each entry of A^T b."""
        return gaussian_sigma(self.epsilon / 2, self.delta / 2, cross_sensitivity(self.bound, self.label_bound))

    @property
    def guarantee(self) -> Guarantee:
        distances = gram_sensitivity(self.bound, self.columns), cross_sensitivity(self.bound, self.label_bound)
        return compose(
            gaussian_guarantee(sigma, self.delta / 2, distance, Model.CENTRAL, Neighbours.REPLACE_ONE)
            for sigma, distance in zip((self.gram_sigma, self.cross_sigma), distances, strict=True)
        )

    def release(
        self, moments: SecondMoments, *, noise: Noise | None = None, sample_shape: Sequence[int] = ()
    ) -> NoisyMoments:
        """Both statistics with their noise. Raises TypeError, ValueError."""
        within(moments, self.columns, self.bound, self.label_bound)
        draws = source(noise, moments.matrix.device)
        gram, cross = with_noise(moments, self.gram_sigma, self.cross_sigma, draws, sample_shape)
        levels = (gram.new_full(gram.shape[:-2], level) for level in (self.gram_sigma, self.cross_sigma))
        return NoisyMoments(gram, cross, *levels)


@dataclass(frozen=True)
class AdaSSP:
    """Adaptive sufficient statistics perturbation, its three Gaussian releases calibrated together.

    The smallest eigenvalue (sensitivity B^2), A^T A (sqrt 2 B^2) and A^T b (2 B C) get noise of sqrt 3/mu* times
    their sensitivity, 1/mu* = gaussian_sigma(epsilon, delta): together one Gaussian mechanism at a distance of at
    most mu*. The paper splits epsilon in three instead. Regularization: max(0, sqrt(d ln(2
    d^2/rho)) sigma - l), sigma the level of A^T A, l = the noisy eigenvalue less sqrt(2 ln(1/rho)) of its standard
    deviations, at least 0.

    columns: d; bound: B; label_bound: C; epsilon > 0, delta in (0, 1); rho in (0, 1), the chance that the bounds
    on the noise fail, for accuracy only. Raises ValueError.

    Guarantees: (epsilon, delta)-DP, central model, for replacing one row and label; the three need not be worst
    together.
    Source: Wang (2018), Algorithm 2; Dong, Roth, Su (2022), Corollary 3.3, for three Gaussian releases.
    """

    columns: int
    bound: float
    label_bound: float
    epsilon: float
    delta: float
    rho: float = 0.05

    def __post_init__(self) -> None:
        checks.fraction("rho", self.rho)
        _ = self.sigmas

    @cached_property
    def sensitivities(self) -> tuple[float, float, float]:
        """Of the smallest eigenvalue, A^T A and A^T b."""
        gram = gram_sensitivity(self.bound, self.columns)
        return self.bound**2, gram, cross_sensitivity(self.bound, self.label_bound)

    @cached_property
    def sigmas(self) -> tuple[float, float, float]:
        """Standard deviations of the three noises."""
        unit = gaussian_sigma(self.epsilon, self.delta, math.sqrt(3))
        first, second, third = (unit * sensitivity for sensitivity in self.sensitivities)
        return first, second, third

    @property
    def guarantee(self) -> Guarantee:
        distance = math.sqrt(
            sum((s / sigma) ** 2 for s, sigma in zip(self.sensitivities, self.sigmas, strict=True))
        )
        found = gaussian_guarantee(1.0, self.delta, distance, Model.CENTRAL, Neighbours.REPLACE_ONE)
        source = "Dong, Roth, Su (2022), Corollary 3.3; Balle, Wang (2018), Theorem 8"
        return Guarantee(found.epsilon, found.delta, found.model, found.neighbours, False, source)

    def solve(
        self,
        moments: SecondMoments,
        ridge: float,
        *,
        noise: Noise | None = None,
        sample_shape: Sequence[int] = (),
    ) -> Tensor:
        """Private solutions, regularized by ``ridge`` or by what the noise asks for: (*sample_shape, d).

        Raises TypeError, ValueError.
        """
        ridge = checks.non_negative("ridge", ridge)
        within(moments, self.columns, self.bound, self.label_bound)
        draws = source(noise, moments.matrix.device)
        gram, cross = with_noise(moments, self.sigmas[1], self.sigmas[2], draws, sample_shape)
        smallest = torch.linalg.eigvalsh(moments.gram)[0] + self.sigmas[0] * draws.normal(gram.shape[:-2])
        safe = (smallest - self.sigmas[0] * math.sqrt(2 * math.log(1 / self.rho))).clamp_min(0)
        norm = math.sqrt(self.columns * math.log(2 * self.columns**2 / self.rho)) * self.sigmas[1]
        extra = torch.maximum(norm - safe, torch.full_like(safe, ridge))[..., None, None]
        return solve_ridge(gram + extra * torch.eye(self.columns).to(extra), cross, 0.0)


def paper_adassp_scale(epsilon: float, delta: float) -> float:
    """sqrt(ln(6/delta))/(epsilon/3): the paper's noise of each release, over its sensitivity for adding or removing a
    row.

    One release alone exceeds delta/3 at epsilon/3 where epsilon is moderate; the three together spend less than
    (epsilon, delta). Raises ValueError.

    Source: Wang (2018), Algorithm 2.
    """
    return math.sqrt(math.log(6 / checks.fraction("delta", delta))) / (checks.positive("epsilon", epsilon) / 3)


def with_noise(
    moments: SecondMoments, gram_sigma: float, cross_sigma: float, draws: Draws, shape: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """A^T A and A^T b with independent noise of these levels, isotropic on symmetric matrices."""
    shape, d = checks.sample_shape(shape), moments.columns - 1
    words = d * (d + 1) // 2
    noise = draws.normal((*shape, words + d))
    gram = moments.gram + gram_sigma * symmetric(noise[..., :words], d)
    return gram, moments.cross + cross_sigma * noise[..., words:]
