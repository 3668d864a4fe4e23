"""PrivUnitG, lifted: an unbiased private vector with the same isotropic noise at every point of the ball."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from torchdp.draws import Draws
from torchdp.kernels import privunitg
from torchdp.kernels.dispatch import keyed
from torchdp.privacy import Guarantee
from torchdp.randomizers.ball.ball import MOST_MISSED, BallMoments, BallRandomizer, gaussian_sums
from torchdp.randomizers.ball.subgaussian import SubGaussian, constants
from torchdp.randomizers.ball.tilted_normal import TiltedNormal
from torchdp.randomizers.base import real_local


@dataclass(frozen=True)
class PrivUnitG(BallRandomizer):
    """For x in R^dim with ||x|| <= radius a message Y with E Y = x and Cov Y = (radius/k)^2 I, exactly.

    x / radius is lifted to the unit sphere of R^{dim+1}, PrivUnitG applied there at its best threshold k,
    the last coordinate dropped (derivation: kernels/privunitg/README.md). The noise does not depend on x.
    dim: a positive integer; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``drawn`` costs O(dim^3 + m dim^2) once and O(m dim) for each repetition, whatever the number of users.

    Guarantees: exactly epsilon-LDP, for any two points of the ball.
    Source: Asi, Feldman, Talwar (2022), PrivUnitG; plays the role of Ghazi et al. (2023), Theorem 9 (VRand).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_missed()

    @property
    def missed(self) -> float:
        """c1 times what a uniform point's normals miss: pairs end at a circle, 2^-127 beyond it, tau at 2^-126."""
        return self.tau.high_density * (self.dim + 4) * 2.0**-127

    @property
    def _remedy(self) -> str:
        epsilon = self.epsilon
        while TiltedNormal(epsilon).high_density * (self.dim + 4) * 2.0**-127 > MOST_MISSED:
            epsilon -= 0.5
        return f"take epsilon = {epsilon:.4g}, or PrivUnit"

    @cached_property
    def tau(self) -> TiltedNormal:
        """The law of the noisy coordinate along x."""
        return TiltedNormal(self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        return real_local(self.epsilon, "Asi, Feldman, Talwar (2022), PrivUnitG; density ratio c1/c0 = e^epsilon")

    @property
    def moments(self) -> BallMoments:
        """Exact moments: variance (radius/k)^2, third -k, fourth 3 + k^2."""
        variance = (self.radius / self.tau.threshold) ** 2
        return BallMoments(variance, self.tau.third_moment, self.tau.fourth_moment)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """Those of (tau - k) radius/k: no direction is worse than along x on the sphere (kernels/privunitg)."""
        t, weights = self.tau.quadrature()
        return constants(((t - self.tau.threshold) * self.radius / self.tau.threshold, weights))

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        normals, lift, tau = self._numbers(len(users), draws)
        return privunitg.message(users, normals, lift, tau, radius=self.radius, threshold=self.tau.threshold)

    def _numbers(self, users: int, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """(g, g0, tau) of so many users."""
        return draws.normal((users, self.dim)), draws.normal((users,)), self.tau.draw((users,), draws)

    def _total(self, points: Tensor, types: Tensor, draws: Draws) -> Tensor:
        """A message is linear in its draws: for each type, the message formula of their sums."""
        if 2 * len(points) > len(types):  # hardly anything to add up
            return super()._total(points, types, draws)
        g, g0, t = (
            each.new_zeros((len(points), *each.shape[1:])).index_add_(0, types, each)
            for each in self._numbers(len(types), draws)
        )
        return privunitg.message(points, g, g0, t, radius=self.radius, threshold=self.tau.threshold).sum(0)

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
        return gaussian_sums(points, along, counts, shape, draws) / self.tau.threshold
