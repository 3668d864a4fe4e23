"""Curators of second moments, beside which the routes of ``torchdp.regression`` are measured, each
with its guarantee.

MOD-SULQ, sufficient statistics perturbation and AdaSSP. Imported by the scripts beside it.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_guarantee, gaussian_sigma
from torchdp.protocol import CuratorProtocol, Layout, Limits, Objective, Tally, Users
from torchdp.protocol.records import noise_limit, tensor_of
from torchdp.regression.errors import RowsProtocol, SecondMoments
from torchdp.regression.gram import gram_sensitivity
from torchdp.regression.ridge import solve_ridge
from torchdp.regression.second_moment_noise import NoisyMoments
from torchdp.symmetric import svec, triangular


class CentralMoments(RowsProtocol, CuratorProtocol[SecondMoments]):
    """A curator adds independent Gaussian noise to each number of the answer."""

    @abstractmethod
    def deviations(self) -> Tensor:
        """Of each number: (width,), float64."""

    @property
    def layout(self) -> Layout:
        return {"noisy": ((self.width,), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        exact = n * self.bound * max(self.bound, self.label_bound or 0.0)
        largest = float(self.deviations().max())
        return {"noisy": Limits.around(exact + noise_limit(largest))}

    def release(self, summary: SecondMoments, draws: Draws, shape: tuple[int, ...]) -> Tally:
        exact = self.exact(summary)
        noise = self.deviations().to(exact) * draws.normal((*shape, *exact.shape))
        return Tally(summary.n, {"noisy": exact + noise})

    def analyse(self, tally: Tally) -> NoisyMoments:
        value = self.check(tally)["noisy"]
        errors = self.deviations().to(value).expand_as(value)
        return NoisyMoments(value, errors, tally.n, columns=self.columns)

    def predicted_mse(self, summary: SecondMoments) -> Tensor:
        """The same for all data."""
        exact = self.exact(summary)
        variances = self.deviations().square()
        return variances.to(exact.device).expand(exact.shape)

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        worst = objective.of(self.deviations().square())
        return worst.expand(tensor_of(n).shape)


@dataclass(frozen=True)
class ModSulq(CentralMoments):
    """A^T A with N(0, sigma^2) on each entry of the upper triangle, mirrored.

    The upper triangle of x x^T - x' x'^T is at most sqrt 2 B^2 long (B^2 with one column), like the
    whole svec, but the noise off the diagonal is sqrt 2 times what :class:`GramRelease` needs.
    columns: d; bound: B; sigma: of A^T A, not divided by n; delta in (0, 1). Raises ValueError.

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
        checks.validated(self, "sensitivity")  # columns and a bound without one

    @staticmethod
    def calibrated(columns: int, bound: float, epsilon: float, delta: float) -> "ModSulq":
        """With the least noise for (epsilon, delta). Raises ValueError."""
        sigma = gaussian_sigma(epsilon, delta, gram_sensitivity(bound, columns))
        return ModSulq(columns, bound, sigma, delta)

    @property
    def label_bound(self) -> None:  # type: ignore[override]
        """There are no labels."""
        return None

    @property
    def sensitivity(self) -> float:
        """Largest distance between the upper triangles of x x^T and x' x'^T."""
        return gram_sensitivity(self.bound, self.columns)

    @property
    def guarantee(self) -> Guarantee:
        return gaussian_guarantee(
            self.sigma, self.delta, self.sensitivity, Model.CENTRAL, Neighbours.REPLACE_ONE
        )

    def deviations(self) -> Tensor:
        """sigma on the diagonal; sqrt 2 sigma elsewhere, where svec has sqrt 2 times the entry."""
        ones = torch.ones(self.columns, self.columns, dtype=torch.float64)
        return self.sigma * svec(ones)


@dataclass(frozen=True)
class SufficientStatistics(CentralMoments):
    """Sufficient statistics perturbation: A^T A and A^T b by a Gaussian mechanism each, at half of
    epsilon and delta.

    columns: d; bound: B; label_bound: C; epsilon > 0, delta in (0, 1). Raises ValueError.

    Guarantees: (epsilon, delta)-DP, central model, for replacing one row and label; not tight
    (see ``GramRelease``).
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
        checks.validated(self, "gram_sigma", "cross_sigma")  # bounds without a sensitivity

    @property
    def sensitivities(self) -> tuple[float, float]:
        """Of A^T A and of A^T b."""
        return gram_sensitivity(self.bound, self.columns), 2 * self.bound * self.label_bound

    @cached_property
    def gram_sigma(self) -> float:
        """Level of the noise of A^T A."""
        return gaussian_sigma(self.epsilon / 2, self.delta / 2, self.sensitivities[0])

    @cached_property
    def cross_sigma(self) -> float:
        """Standard deviation of each entry of A^T b."""
        return gaussian_sigma(self.epsilon / 2, self.delta / 2, self.sensitivities[1])

    @property
    def guarantee(self) -> Guarantee:
        """As it was split; what the two promise as one Gaussian mechanism is in its mu."""
        gram, cross = self.sensitivities
        mu = math.hypot(gram / self.gram_sigma, cross / self.cross_sigma)
        source = (
            "Balle, Wang (2018), Theorem 8, for each half; basic composition, Dwork et al. (2006)"
        )
        return Guarantee(
            self.epsilon, self.delta, Model.CENTRAL, Neighbours.REPLACE_ONE, False, source, mu=mu
        )

    def deviations(self) -> Tensor:
        gram = torch.full((triangular(self.columns),), self.gram_sigma, dtype=torch.float64)
        return torch.cat([gram, gram.new_full((self.columns,), self.cross_sigma)])


@dataclass(frozen=True)
class AdaSSP(CentralMoments):
    """Adaptive sufficient statistics perturbation, its three Gaussian releases calibrated together.

    The smallest eigenvalue (sensitivity B^2), A^T A (sqrt 2 B^2) and A^T b (2 B C) get noise of
    sqrt 3/mu* times their sensitivity, 1/mu* = gaussian_sigma(epsilon, delta): together one
    Gaussian mechanism at a distance of at most mu*. The paper splits epsilon in three instead.
    Regularization: max(0, sqrt(d ln(2 d^2/rho)) sigma - l), sigma the level of A^T A, l = the noisy
    eigenvalue less sqrt(2 ln(1/rho)) of its standard deviations, at least 0.

    The value is svec(A^T A), A^T b and the smallest eigenvalue of A^T A; ``solve`` regresses with
    it.

    columns: d; bound: B; label_bound: C; epsilon > 0, delta in (0, 1); rho in (0, 1), the chance
    that the bounds on the noise fail, for accuracy only. Raises ValueError.

    Guarantees: (epsilon, delta)-DP, central model, for replacing one row and label; the three need
    not be worst together.
    Source: Wang (2018), Algorithm 2; Dong, Roth, Su (2022), Corollary 3.3, for three Gaussian
    releases.
    """

    columns: int
    bound: float
    label_bound: float
    epsilon: float
    delta: float
    rho: float = 0.05

    def __post_init__(self) -> None:
        checks.fraction("rho", self.rho)
        checks.validated(self, "sigmas")  # epsilon, delta, and bounds without a sensitivity

    @cached_property
    def sensitivities(self) -> tuple[float, float, float]:
        """Of the smallest eigenvalue, A^T A and A^T b."""
        gram = gram_sensitivity(self.bound, self.columns)
        return self.bound**2, gram, 2 * self.bound * self.label_bound

    @cached_property
    def sigmas(self) -> tuple[float, float, float]:
        """Standard deviations of the three noises."""
        unit = gaussian_sigma(self.epsilon, self.delta, math.sqrt(3))
        smallest, gram, cross = self.sensitivities
        return unit * smallest, unit * gram, unit * cross

    @property
    def guarantee(self) -> Guarantee:
        # three Gaussian releases are one, whose means are this far apart in deviations
        ratios = [s / sigma for s, sigma in zip(self.sensitivities, self.sigmas, strict=True)]
        distance = math.sqrt(sum(ratio**2 for ratio in ratios))
        found = gaussian_guarantee(1.0, self.delta, distance, Model.CENTRAL, Neighbours.REPLACE_ONE)
        source = "Dong, Roth, Su (2022), Corollary 3.3; Balle, Wang (2018), Theorem 8"
        return replace(found, exact=False, source=source)

    @property
    def width(self) -> int:
        return super().width + 1

    def exact(self, summary: SecondMoments) -> Tensor:
        """svec(A^T A), A^T b and the smallest eigenvalue of A^T A. Raises TypeError, ValueError."""
        eigenvalues = torch.linalg.eigvalsh(summary.gram)
        return torch.cat([super().exact(summary), eigenvalues[..., :1]], -1)

    def deviations(self) -> Tensor:
        smallest, gram, cross = self.sigmas
        each = [gram] * triangular(self.columns) + [cross] * self.columns + [smallest]
        return torch.tensor(each, dtype=torch.float64)

    def solve(self, found: NoisyMoments, ridge: float) -> Tensor:
        """Solutions from an estimate, regularized by ``ridge`` or by what the noise asks for:
        (*sample_shape, d).

        Raises TypeError, ValueError.
        """
        ridge = checks.non_negative("ridge", ridge)
        value = checks.instance("found", found, NoisyMoments).value
        if value.shape[-1] != self.width or found.cross is None:
            raise ValueError(
                f"found must be an estimate of this protocol, {self.width} numbers, not {value.shape[-1]}"
            )
        sigma, gram_sigma, _ = self.sigmas
        d = self.columns
        # with probability 1 - rho each: below the smallest eigenvalue, and above the noise's norm
        below = value[..., -1] - sigma * math.sqrt(2 * math.log(1 / self.rho))
        norm = gram_sigma * math.sqrt(d * math.log(2 * d**2 / self.rho))
        extra = (norm - below.clamp_min(0)).clamp_min(ridge)[..., None, None]
        shifted = found.gram + extra * torch.eye(d).to(extra)
        return solve_ridge(shifted, found.cross, 0.0)


def published_mod_sulq(
    clients: int, columns: int, bound: float, epsilon: float, delta: float
) -> ModSulq:
    """MOD-SULQ with its published noise: n B^2 beta,

    beta = (d + 1)/(n epsilon) sqrt(2 ln((d^2 + d)/(2 sqrt(2 pi) delta))) + 1/(n sqrt epsilon).
    Its guarantee says how much less than epsilon it spends. Raises ValueError.

    Source: Chaudhuri, Sarwate, Sinha (2013), Algorithm 1 and Theorem 1.
    """
    n = checks.integer("clients", clients, 1)
    d = checks.integer("columns", columns, 1)
    epsilon = checks.positive("epsilon", epsilon)
    delta = checks.fraction("delta", delta)
    square = checks.squarable("bound", bound) ** 2
    ratio = (d * d + d) / (2 * math.sqrt(2 * math.pi) * delta)
    # where few columns meet a large delta the printed root would be of a negative number
    logarithm = math.log(max(1.0, ratio))
    beta = (d + 1) / (n * epsilon) * math.sqrt(2 * logarithm) + 1 / (n * math.sqrt(epsilon))
    return ModSulq(d, bound, n * square * beta, delta)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/regression/tables.py")
