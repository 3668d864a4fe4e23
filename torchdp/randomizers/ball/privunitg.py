"""PrivUnitG, lifted: an unbiased private vector with the same isotropic noise at every point of the ball."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import privunitg
from torchdp.kernels.dispatch import keyed
from torchdp.privacy import Guarantee
from torchdp.randomizers.ball.ball import BallMoments, gaussian_sums
from torchdp.randomizers.ball.lattice import UNIT, LatticeRandomizer, Lifted, Mixture, placed, sided
from torchdp.randomizers.ball.subgaussian import SubGaussian, constants
from torchdp.randomizers.ball.tilted_normal import TiltedNormal, upper_quantile, upper_tail
from torchdp.randomizers.base import real_local

TAU = 700  # units of 2^-53 in tau: 1.26 x 8 by its chance, 16 x 40 by the quantile, which errs by 7 |tau| at most


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

    @cached_property
    def tau(self) -> TiltedNormal:
        """The law of the noisy coordinate along x."""
        return TiltedNormal(self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        source = "Asi, Feldman, Talwar (2022), PrivUnitG, rounded; density ratio c1/c0 = e^epsilon"
        return self.sent(real_local(self.epsilon, source))

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

    @property
    def _own(self) -> int:
        """The side and the end to count from; the place."""
        return 2

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
        return privunitg.sums(
            points,
            counts,
            key,
            radius=self.radius,
            threshold=self.tau.threshold,
            upper=self.tau.upper,
            survival=self.tau.survival,
        )

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        along = self.tau.sums(counts, shape, draws)  # (*shape, m)
        return gaussian_sums(points, along, counts, shape, draws, 1 + self.grid**2 / 6) / self.tau.threshold
