"""PrivUnitG, lifted: an unbiased private vector with the same isotropic noise at every point; its private number."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.draws import MOST, Draws
from torchdp.kernels import privunitg
from torchdp.kernels.dispatch import keyed
from torchdp.kernels.normals.exact import arithmetic
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.randomizers.alphabet.chances import TOTAL, exponential
from torchdp.randomizers.ball.ball import BallMoments, gaussian_sums
from torchdp.randomizers.ball.lattice import UNIT, LatticeRandomizer, Lifted, Mixture
from torchdp.randomizers.ball.logit_beta import panel_rule
from torchdp.randomizers.ball.subgaussian import SubGaussian, constants
from torchdp.randomizers.ball.truncated_sums import truncated_sums
from torchdp.randomizers.base import ball_epsilon, real_local

TAU = 700  # units of 2^-53 in tau: 1.26 x 8 by its chance, 16 x 40 by the quantile, of error 7 |tau| at most


class Tilted(ABC):
    """A distribution of which a set of share s is made e^epsilon times as likely as the rest."""

    epsilon: float

    @property
    @abstractmethod
    def survival(self) -> float:
        """s."""

    @cached_property
    def low_density(self) -> float:
        """c0 = 1/(1 + (e^epsilon - 1) s), the density off the set relative to the distribution as it was."""
        return 1 / (1 + math.expm1(self.epsilon) * self.survival)

    @cached_property
    def high_density(self) -> float:
        """c1 = e^epsilon c0, on the set."""
        return math.exp(self.epsilon) * self.low_density

    @cached_property
    def upper(self) -> float:
        """c1 s, the chance of the set."""
        return self.high_density * self.survival


@dataclass(frozen=True)
class TiltedNormal(Tilted):
    """N(0, 1) reweighted by e^epsilon above a threshold k: density c1 phi on [k, inf), c0 phi below.

    c1 = e^epsilon c0 and c0 = 1/(1 + (e^epsilon - 1) Phibar(k)); the threshold is the fixed point k = E tau,
    which makes E tau as large as possible and Var tau = 1.
    epsilon in [1e-6, 50]. Raises ValueError.

    Source: Asi, Feldman, Talwar (2022), PrivUnitG; the fixed point: kernels/privunitg/README.md.
    """

    epsilon: float

    def __post_init__(self) -> None:
        checks.keep(self, epsilon=ball_epsilon)

    @cached_property
    def threshold(self) -> float:
        """k, the fixed point of k -> E tau."""
        return threshold(self.epsilon)

    @cached_property
    def survival(self) -> float:
        """Phibar(k), the standard normal's mass above the threshold, to the nearest float."""
        return float(upper_tail(arithmetic(), self.threshold))

    @property
    def third_moment(self) -> float:
        """E (tau - k)^3 = -k."""
        return -self.threshold

    @property
    def fourth_moment(self) -> float:
        """E (tau - k)^4 = 3 + k^2."""
        return 3 + self.threshold**2

    def draw(self, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """Independent copies of tau, float64."""
        return tilted(shape, draws, self.threshold, self.chance, self.survival)

    @cached_property
    def chance(self) -> int:
        """Of 2^63 integers those that lead beyond k, rounded down: the private side."""
        share = upper_tail(arithmetic(), self.threshold)
        return cap_chance(self.epsilon, Fraction(int(share * 2**320) - 1, 2**320))  # hardly less

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights for expectations under this distribution, with an edge at k."""
        grid, weights = panel_rule(48)
        reach = 38.0  # the normal density underflows there
        t = np.concatenate([self.threshold - reach * grid, self.threshold + reach * grid])
        density = np.repeat([self.low_density, self.high_density], len(grid)) * np.exp(-t * t / 2)
        return t, np.tile(weights, 2) * reach * density / math.sqrt(2 * math.pi)

    def sums(self, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """For each entry n of ``counts`` the sum of n independent copies of tau: (*shape, *counts.shape).

        tau is N(0, 1) with probability c0 and N(0, 1) given >= k otherwise, so the sum is N(0, n - B) plus B
        truncated normals, B ~ Binomial(n, 1 - c0). The cost does not depend on n.
        """
        above = draws.binomial(counts.expand(*shape, *counts.shape), 1 - self.low_density)
        free = (counts - above).double().sqrt() * draws.normal(tuple(above.shape))
        return free + truncated_sums(self.threshold, above, draws)


@dataclass(frozen=True)
class PrivUnitG(LatticeRandomizer):
    """For x in R^dim with ||x|| <= radius a message Y with E Y = x and Cov Y = (radius/k)^2 I, before it is rounded.

    x / radius is lifted to the unit sphere of R^{dim+1}, PrivUnitG applied there at its best threshold k,
    the last coordinate dropped (derivation: kernels/privunitg/README.md). The noise does not depend on x.
    dim: a positive integer; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``sample_tally`` costs O(dim^3 + m dim^2) once and O(m dim) for each repetition, whatever the number of users.

    Guarantees: epsilon-LDP of the numbers that are sent, for any two points of the ball, but for the delta that
        arithmetic costs (``variation``).
    Source: Asi, Feldman, Talwar (2022), PrivUnitG; plays the role of Ghazi et al. (2023), Theorem 9 (VRand).
    """

    _own = 2  # the side and the end to count from; the place

    @cached_property
    def tau(self) -> TiltedNormal:
        """The distribution of the noisy coordinate along x."""
        return TiltedNormal(self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        source = "Asi, Feldman, Talwar (2022), PrivUnitG, rounded; density ratio c1/c0 = e^epsilon"
        return self.sent(real_local(self.epsilon, source))

    @staticmethod
    @entrywise(epsilon=ball_epsilon)
    def unit_variance(epsilon: Numbers) -> Numbers:
        """1/k^2, of an entry at radius 1 before it is rounded, in any dimension; a number or a batch of them."""
        return 1 / threshold(epsilon) ** 2

    @property
    def blanket(self) -> Blanket:
        """Half-spaces beyond the middle: those of opposite points share nothing."""
        return Blanket.two_level(self.guarantee.epsilon, self.tau.survival)

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments: variance (radius/k)^2 (1 + h^2/6); third -k, fourth 3 + k^2, but for h^2."""
        variance = self._unit**2 + self.step**2 / 6
        return BallMoments(variance, self.tau.third_moment, self.tau.fourth_moment)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """Those of (tau - k) radius/k: no direction is worse than along x on the sphere (kernels/privunitg)."""
        t, weights = self.tau.quadrature()
        return constants(((t - self.tau.threshold) * self.radius / self.tau.threshold, weights))

    @property
    def _unit(self) -> float:
        return self.radius / self.tau.threshold

    def _mixture(self, own: Tensor, lifted: Lifted) -> Mixture:
        """V = g + (tau - <G, u>) x'."""
        tau, near = sided(own, self.tau.threshold, self.tau.chance, self.tau.survival)
        dot, error = lifted.along
        return Mixture(None, tau - dot, error + near.reciprocal().mul_(2.0**-64) + TAU * UNIT)

    def _exactly(self, context: Any, own: list[int], G: list[Any], u: list[Any]) -> tuple[Any, Any]:
        above, outer = placed(context, own, self.tau.chance)
        survival = upper_tail(context, self.tau.threshold)
        share = outer * (survival if above else 1 - survival)
        tau = upper_quantile(context, share) * (1 if above else -1)
        return context.mpf(1), tau - context.fdot(G, u)

    def _collect(self, points: Tensor, counts: Tensor, draws: Draws) -> Tensor:
        key = draws.kernel_key() if keyed(points.device) else None
        if key is None:
            return super()._collect(points, counts, draws)
        law = {name: getattr(self.tau, name) for name in ("threshold", "upper", "survival")}
        return privunitg.sums(points, counts, key, radius=self.radius, **law)

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        along = self.tau.sums(counts, shape, draws)  # (*shape, m)
        return gaussian_sums(points, along, counts, shape, draws, 1 + self.grid**2 / 6) / self.tau.threshold


def cap_chance(epsilon: float, survival: Fraction | float) -> int:
    """Of 2^63 integers those that lead to a set of this share, e^epsilon times as likely as the rest; rounded down."""
    growth, share = exponential(epsilon), Fraction(survival)
    return math.floor(TOTAL * growth * share / (1 + (growth - 1) * share))


def tilted(shape: tuple[int, ...], draws: Draws, threshold: float, chance: int, survival: float) -> Tensor:
    """N(0, 1) given >= threshold with probability chance/2^63, given < threshold otherwise; float64, by inversion.

    The uniform number within either part has 126 bits near both of its ends, so that no tail ends before 2^-127 of it
    and none is cut off at the threshold. survival: P(N(0, 1) >= threshold).
    """
    word = draws.words(shape)
    near = draws.exponential(shape).neg_().exp_().mul_(0.5)
    return inverted(word.bitwise_and(TOTAL - 1) < chance, word < 0, near, threshold, survival)


def inverted(above: Tensor, ends_here: Tensor, near: Tensor, threshold: float, survival: float) -> Tensor:
    """N(0, 1) on either side of the threshold at a share ``near`` < 1/2 of that side's mass from one of its ends.

    ends_here: from infinity; else from the threshold.
    """
    far = 1 - near
    outer, inner = torch.where(ends_here, near, far), torch.where(ends_here, far, near)
    beyond = torch.where(above, outer * survival, outer * (1 - survival))  # P(|N| further out on its side)
    before = survival + inner * (1 - survival)  # P(N > z), below the threshold
    lower = ~above & (beyond > 0.5)
    z = torch.special.ndtri(torch.where(lower, before, beyond))
    return torch.where(above, (-z).clamp_min(threshold), torch.where(lower, -z, z).clamp_max(threshold))


def upper_tail(context: Any, z: Any) -> Any:
    """P(N(0, 1) >= z) in the context's arithmetic."""
    return context.erfc(z / context.sqrt(2)) / 2


def upper_quantile(context: Any, share: Any) -> Any:
    """z with P(N(0, 1) >= z) = share: Newton's method from a float, which squares the error four times."""
    small = min(share, 1 - share)
    z = context.mpf(-float(ndtri(float(small))))
    for _ in range(4):
        z += (upper_tail(context, z) - small) * context.sqrt(2 * context.pi) * context.exp(z * z / 2)
    return z if small == share else -z


@entrywise(epsilon=ball_epsilon)
def threshold(epsilon: Tensor) -> Tensor:
    """k, the fixed point of k -> E tau: Newton's method on a concave function, monotone and quadratic."""
    growth, k = log_excess(epsilon), torch.zeros_like(epsilon)
    while True:
        odds = growth + torch.special.log_ndtr(-k)
        more = odds.clamp_min(0) + torch.log1p((-odds.abs()).exp())  # log(1 + e^odds)
        mean = (growth - k * k / 2 - math.log(2 * math.pi) / 2 - more).exp()
        rising = mean > k * (1 + 1e-15)
        if not bool(rising.any()):
            return k
        k = torch.where(rising, mean, k)


def log_excess(epsilon: Tensor) -> Tensor:
    """log(e^epsilon - 1)."""
    return epsilon + (-torch.expm1(-epsilon)).log()


def sided(own: Tensor, threshold: float, chance: int, survival: float) -> tuple[Tensor, Tensor]:
    """A normal whose side of the threshold is chosen by ``chance`` of 2^63, (n,), and how near an end its share lies.

    own: (n, 2): side and end to count from, share of the side's mass.
    """
    side, near = own[:, 0], own[:, 1].bitwise_and(MOST).double().add_(0.5).mul_(2.0**-64)
    return inverted(side.bitwise_and(MOST) < chance, side < 0, near, threshold, survival), near


def placed(context: Any, own: list[int], chance: int) -> tuple[bool, Any]:
    """``sided`` without error: whether beyond the threshold, and the share of that side further out."""
    side, place = own[0] >> 192, own[1] % (1 << 255)
    near = (2 * place + 1) * context.mpf(2) ** -257
    return side % (1 << 63) < chance, near if side >> 63 else 1 - near
