"""Means of random features over users: what every density is made of, their errors, how far one user moves them."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.errors import MeanSquaredError, kernel_means
from torchdp.density.family import Features
from torchdp.density.levels import rounding_variances
from torchdp.protocol import Crowd, Objective, Protocol, Tally
from torchdp.shuffle import BitLaw

ERROR = 2.0**-22  # of a chance, by the floats that decide a bit


class OfFeatures(Protocol[Crowd]):
    """The question: the mean of each feature over the users, in [-R, R]. x: (n, d); a summary is a ``Crowd``.

    B~_ij, the law's estimate of sum_u (1 + f_i(x_u)_j / R)/2, gives the mean R (2 B~_ij/n - 1).
    """

    features: Features
    law: BitLaw

    def summary(self, x: Tensor) -> Crowd:
        return Crowd.of(x)

    def exact(self, summary: Crowd) -> Tensor:
        summary = self._users(summary)
        return self.features.sums(summary)[0] / summary.n

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """((n R^2 - sum_u f^2, none with a curator) + 4 R^2 E Var B~)/n^2."""
        rounding, privacy = self._variances(self._users(summary))
        return rounding + privacy

    def worst_mse(self, n: int, objective: Objective = Objective.WORST) -> Tensor:
        checks.instance("objective", objective, Objective)
        checks.integer("n", n, 1)
        rounding = 0.0 if self.law.takes_numbers else n * self.features.rounding / self.law.levels**2
        noise = self.law.spread(torch.tensor([0, n], dtype=torch.int64), n).max()
        return (rounding + 4 * self.features.bound**2 * noise) / float(n) ** 2

    def density_mse(self, summary: Crowd, y: Tensor) -> MeanSquaredError:
        """E (K~(y) - mean_u k(x_u, y))^2 over rounding and privacy noise, these features given: (q, d) -> (q,).

        feature: (<exact, g>/I - mean_u k(x_u, y))^2; rounding and privacy: ``predicted_mse``, weighted by g_j^2/I^2. It
        is exact and not private: it reads the users' vectors.
        """
        summary = self._users(summary)
        y = y.detach() if isinstance(y, Tensor) else y
        right = self.features.right(y).double() / self.features.repetitions
        truth = kernel_means(self.features.family, summary.values, y, counts=summary.counts)
        feature = (right @ self.exact(summary) - truth).square()
        return MeanSquaredError(feature, *(right.square() @ part for part in self._variances(summary)))

    def _variances(self, summary: Crowd) -> tuple[Tensor, Tensor]:
        """Of the means, by rounding and by privacy noise, (instances,) each."""
        n, bound, (total, squares) = summary.n, self.features.bound, self.features.sums(summary)
        if self.law.levels == 1:
            rounding = (n * bound**2 - squares).clamp_min(0) * (not self.law.takes_numbers)
        else:
            rounding = rounding_variances(self.features, summary, self.law.levels)
        noise = self.law.spread((n + total / bound) / 2, n)
        return rounding / float(n) ** 2, 4 * bound**2 * noise / float(n) ** 2

    def _density(self, tally: Tally) -> Density:
        n, bound = tally.n, self.features.bound
        value = bound * (2 * self.law.decode(tally["total"], n) / n - 1)
        error = self.worst_mse(n).sqrt().expand_as(value)
        return Density(
            value, error, n, 0.0, None, (-bound, bound), features=self.features, guarantee=self.guarantee
        )

    def _users(self, summary: Crowd) -> Crowd:
        return Crowd.checked(summary, self.features.family.validate)

    def validate_summary(self, summary: Crowd) -> Crowd:
        """``summary``, a crowd of as many users as the law is of. Raises TypeError, ValueError."""
        summary = self._users(summary)
        if summary.n != self.law.users:
            raise ValueError(f"summary must be of {self.law.users} users, as the law is, not {summary.n}")
        return summary


def moved(features: Features) -> tuple[int, float, int]:
    """All sums, how far a user's chances move in them, and how many of its bits may flip.

    Floats err by at most 2^-22 in each chance, at both vectors: (movement^{1/2} + 2^-21 instances^{1/2})^2. A chance is
    (1 + s)/2 for the number s that a feature was computed to, up to 2^-60 on a CPU and 2^-32 elsewhere
    (``rounding.rounded``). s is the cosine or sine of one angle, right to 4 units in the last place, 2^-22 in float32;
    a coordinate of x as it was given; an indicator; or a sum of D products in float64, right to D 2^-52.
    """
    room = 2 * ERROR * features.instances**0.5
    change = min((features.movement**0.5 + room) ** 2, float(features.instances))
    return features.instances, change, features.composed
