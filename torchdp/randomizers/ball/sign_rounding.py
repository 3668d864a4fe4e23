"""Messages from the half-sphere around x or the opposite one: x is rounded to a sign, which is kept by chance."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdp import checks
from torchdp.batch import Numbers, entrywise
from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.randomizers.alphabet.chances import at_least, exponential
from torchdp.randomizers.ball.axial_sums import AxialSums, add, directed
from torchdp.randomizers.ball.ball import BallMoments, BallRandomizer
from torchdp.randomizers.ball.sphere import coordinate_size, mean_coordinate, uniform_coordinate
from torchdp.randomizers.ball.subgaussian import Law, SubGaussian, widest
from torchdp.randomizers.base import ball_epsilon, exact_local


@dataclass(frozen=True)
class DuchiJordanWainwright(BallRandomizer):
    """For x in R^dim with ||x|| <= radius a message on the sphere of radius B, in the half-sphere around x or opposite.

    B = radius coth(epsilon/2)/E|T|, T a coordinate of a uniform point of the unit sphere. E Y = x and Cov Y =
    (B^2/dim) I - x x^T, exactly, since E Y Y^T does not depend on signs. As epsilon grows B falls to radius/E|T|
    only: for dim > 1 some noise stays. It is B s S V, V uniform on the sphere, S = sign <V, x>, s = +-1 independent of
    V with P(s = 1) = (1 + ||x|| tanh(epsilon/2)/radius)/2: x is rounded to u = x/||x|| or -u without bias, and the
    rounded sign kept with probability e^epsilon/(e^epsilon + 1). At x = 0 s is a fair coin, and S does not matter.
    dim: a positive integer; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``sample_tally`` draws dim normals and a binomial number for each type in a repetition, and two numbers for each
    user on either side of it if they are fewer than a few thousand; beyond, three in all (``AxialSums.least``).

    Guarantees: exactly epsilon-LDP, for any two points of the ball.
    Source: Duchi, Jordan, Wainwright (2018), the mechanism for the l_2 ball.
    """

    @property
    def guarantee(self) -> Guarantee:
        source = "Duchi, Jordan, Wainwright (2018); P(half-sphere) = e^epsilon/(e^epsilon + 1)"
        return exact_local(self.epsilon, source)

    @property
    def bias(self) -> float:
        """tanh(epsilon/2) = P(sign kept) - P(sign lost)."""
        return math.tanh(self.epsilon / 2)

    def disagreement(self, norms: Tensor) -> Tensor:
        """P(<Y, x> < 0) = P(s = -1) for points x of these norms, in units of the radius."""
        norms = norms.double().clamp_max(1)
        return (1 - norms) / 2 + norms / (math.exp(self.epsilon) + 1)

    def _behind(self, norms: Tensor) -> Tensor:
        """``disagreement`` in whole numbers of 2^63, rounded up: the private side."""
        least = at_least(1 / (exponential(self.epsilon) + 1))  # on the sphere, without rounding errors
        return (self.disagreement(norms).clamp_min(least) * 2.0**63).ceil().to(torch.int64)

    @property
    def _csch2(self) -> float:
        return math.sinh(self.epsilon / 2) ** -2

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments: variance radius^2 shape coth(epsilon/2)^2, outer -1."""
        along = (self._shape - 1) + self._shape * self._csch2  # coth^2 = 1 + csch^2; Var along x, radius 1
        e = 1 / self.dim
        third = ((1 - e) - (1 + 3 * e) * along) / (1 + e)
        mixed = 4 * (1 + 2 * e + 3 * e * e) * along - 2 * (1 + 3 * e) * (1 - e)
        fourth = 3 * along**2 / (1 + 2 * e) + mixed / ((1 + e) * (1 + 2 * e))
        return BallMoments(self.radius**2 * (1 + along), third / along**1.5, fourth / along**2, outer=-1.0)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """Along x, at the worst norm of x; no direction is worse (on a grid of them, by the tests)."""
        size, mass = coordinate_size(self.dim)
        size = size / mean_coordinate(self.dim)  # |<V, u>| over its mean

        def along(sign: float) -> Law:  # sign: the mean of s
            values = np.concatenate([size - sign, -size - sign]) * self.radius / self.bias
            return values, np.concatenate([(1 + sign) / 2 * mass, (1 - sign) / 2 * mass])

        return widest(along, min(self.bias, 1 - 1e-9))  # a sure sign of a sure size has no noise to measure

    def _signs(self, users: Tensor, normals: Tensor, draws: Draws) -> Tensor:
        """s S for each user (n,), +-1, where <V, x> has the sign of <normals, x>."""
        norms = torch.linalg.vector_norm(users, dim=-1) / self.radius
        lost = draws.integers((len(users),)) < self._behind(norms)
        return 1 - 2 * (lost ^ ((normals * users).sum(-1) < 0)).to(users.dtype)

    @property
    def _shape(self) -> float:
        """Var <V, u>/(E |<V, u>|)^2, at least 1."""
        return 1 / (self.dim * mean_coordinate(self.dim) ** 2)

    @staticmethod
    @entrywise(dim=checks.positive, epsilon=ball_epsilon)
    def unit_variance(dim: Numbers, epsilon: Numbers) -> Numbers:
        """B^2/dim at radius 1: of an entry for x = 0; numbers, or batches that broadcast."""
        return 1 / (dim * (mean_coordinate(dim) * (epsilon / 2).tanh()).square())

    @property
    def _scale(self) -> float:
        return 1 / (self.bias * mean_coordinate(self.dim))  # B, radius 1

    @property
    def entry_limit(self) -> float:
        return self.radius * self._scale

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        normals = draws.normal(tuple(users.shape))
        lengths = torch.linalg.vector_norm(normals, dim=-1)
        zero = lengths == 0  # no direction, so take the first axis
        normals[:, 0] += zero
        directed = (lengths + zero) * self._signs(users, normals, draws)
        return normals.div_(directed[:, None]).mul_(self.radius * self._scale)

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        users = counts.expand(*shape, *counts.shape)
        behind = draws.binomial(users, self.disagreement(torch.linalg.vector_norm(points, dim=-1)))
        both = torch.stack([users - behind, behind])
        if self.dim == 1:
            along, across = both.double(), torch.zeros_like(both, dtype=torch.float64)
        else:
            along, across = self._ahead_sum.sums(both, lambda n: self._ahead(n, draws), draws)
        sums = add(self.dim, (along[0], across[0]), (-along[1], across[1]), draws)
        return self._scale * directed(_axes(points), sums, draws)

    @cached_property
    def _ahead_sum(self) -> AxialSums:
        """The distribution of sums of very many half-spheres, dim > 1."""
        return AxialSums(*coordinate_size(self.dim), self.dim)

    def _ahead(self, users: int, draws: Draws) -> tuple[Tensor, Tensor]:
        """(|T|, sqrt(1 - T^2)) of so many."""
        return uniform_coordinate(self.dim, draws.normal((users,)).abs())


def _axes(points: Tensor) -> Tensor:
    """x/||x|| for each point, the first axis for x = 0: (m, dim), float64."""
    largest = points.abs().amax(-1, keepdim=True)
    first = torch.eye(points.shape[-1], dtype=torch.float64, device=points.device)[0]
    points = torch.where(largest > 0, points / largest, first)  # first to size 1: squares must not underflow
    return points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
