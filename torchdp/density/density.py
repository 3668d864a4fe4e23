"""The released function, and the means of random features over users that every density is made of.

A density holds public features, noisy means, and what they promise; nothing else of the data.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.density.family import NUMBERS_AT_ONCE, Family, Features, rounded
from torchdp.description import described, made
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee
from torchdp.protocol import Crowd, Estimate, Objective, Protocol, Tally, Users
from torchdp.protocol.records import alike, combined, tensor_of
from torchdp.shuffle import BitLaw
from torchdp.shuffle.search import Sensitivity

ROOMS = ("torchdp.density", "torchdp.privacy.guarantee")  # whose classes a saved density is made of
ERROR = 2.0**-22  # of a chance, by the floats that decide a bit


@dataclass(frozen=True, eq=False, kw_only=True)
class Density(Estimate):
    """K~(y) = <value, right(y)> / repetitions + constant: an unbiased estimate of mean_u E <f(x_u),
    g(y)>.

    value: (*batch, instances), float64, noisy means of f_i(x)_j over the users; a batch is of
    classes, or of repeated releases (``sample_shape``). standard_error: of each over rounding and
    privacy noise, the largest over the data. n: how many users there are, in all classes together.
    features: public. guarantee: of all classes together, but of one release: repeats of the same
    users are for simulations, and compose if they are published. Raises ValueError, TypeError.

    Guarantees: that of ``guarantee``, however many queries are asked, since they are answered from
    the means alone.
    Source: Wagner (2025), Algorithm 1, KDE query.
    """

    features: Features
    guarantee: Guarantee
    _repr_html_ = Brief._repr_html_  # its means say nothing by themselves

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("guarantee", self.guarantee, Guarantee)
        value, error = (
            checks.floating(name, getattr(self, name)).double()
            for name in ("value", "standard_error")
        )
        if value.ndim < 1 or value.shape[-1] != self.features.instances:
            raise ValueError(
                f"value must have shape (..., {self.features.instances}), not {tuple(value.shape)}"
            )
        try:
            error = error.to(value.device).expand(value.shape)
        except RuntimeError:
            raise ValueError(
                f"standard_error must expand to value's shape {tuple(value.shape)}, not be of {tuple(error.shape)}"
            ) from None
        if not (error >= 0).all():
            raise ValueError("standard_error must hold numbers >= 0")
        checks.people("n", self.n, 1)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "standard_error", error)

    def evaluate(self, y: Tensor) -> Tensor:
        """K~ at each query: (q, d) -> (*batch, q), float64. Raises TypeError, ValueError."""
        found = torch.cat([self.value @ right.mT for right in self._rights(y)], -1)
        return found / self.features.repetitions + self.features.constant

    def standard_error_at(self, y: Tensor) -> Tensor:
        """Root of the variance of K~(y) for these features, at most, over rounding and privacy:
        (q, d) -> (*batch, q).

        (sum_j g(y)_j^2 standard_error_j^2)^{1/2} / repetitions. It is computed from public numbers.
        """
        squares = self.standard_error.square()
        return torch.cat([squares @ right.square().mT for right in self._rights(y)], -1).sqrt() / (
            self.features.repetitions
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything above, into one file. Raises OSError; TypeError for an error that is a
        function (SecureKDE's).
        """
        checks.path("path", path).write_text(
            json.dumps(described(self, name="density")), encoding="ascii"
        )

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Density":
        """What ``save`` wrote, on the CPU. No code of the file is run: only the classes of this
        package are made.

        Raises OSError, ValueError.
        """
        text = checks.path("path", path).read_bytes()
        try:
            return checks.instance(
                "the file", made(json.loads(text), Density, rooms=ROOMS), Density
            )
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{os.fspath(path)} holds no Density; write it with Density.save"
            ) from error

    def _rights(self, y: Tensor) -> Iterator[Tensor]:
        """g(y) part by part, (some, instances), float64."""
        y = self.features.family.queries(y)
        parts = y.split(max(1, NUMBERS_AT_ONCE // self.features.numbers))
        return (self.features.g(part).to(self.value) for part in parts)


@dataclass(frozen=True, eq=False)
class MeanSquaredError(Brief):
    """Its three parts at each query, (q,); they add up."""

    feature: Tensor
    rounding: Tensor
    privacy: Tensor

    @property
    def total(self) -> Tensor:
        """(q,)."""
        return self.feature + self.rounding + self.privacy


def density_mse(
    features: Features, crowd: Crowd, y: Tensor, rounding: Tensor, privacy: Tensor
) -> MeanSquaredError:
    """E (K~(y) - mean_u k(x_u, y))^2 over rounding and privacy noise, these features given: (q, d)
    -> (q,).

    feature: (<exact, g>/I - mean_u k(x_u, y))^2; rounding and privacy: variances of the means,
    (instances,), weighted by g_j^2/I^2. It is exact and not private: it reads the users' vectors.
    """
    y = y.detach() if isinstance(y, Tensor) else y
    right = features.right(y).double() / features.repetitions
    truth = kernel_means(features.family, crowd.values, y, counts=crowd.counts)
    feature = (right @ features.means(crowd) + features.constant - truth).square()
    weights = right.square()
    return MeanSquaredError(feature, weights @ rounding, weights @ privacy)


def kernel_means(family: Family, x: Tensor, y: Tensor, *, counts: Tensor | None = None) -> Tensor:
    """The exact density, not private: mean_u k(x_u, y), (n, d), (q, d) -> (q,), float64, part by
    part.

    counts: how many users hold each row, (n,); None: one each. Raises TypeError, ValueError.
    """
    family = checks.instance("family", family, Family)
    x, y = family.validate(x).detach(), family.queries(y).detach()
    weights = (
        torch.ones_like(x[:, 0]) if counts is None else checks.counts("counts", counts, len(x))
    )
    total = torch.zeros(len(y), dtype=torch.float64, device=x.device)
    size = max(1, NUMBERS_AT_ONCE // max(1, len(y)))
    for part, weight in zip(x.split(size), weights.double().split(size), strict=True):
        total += weight @ family.k(part, y.to(part)).double()
    return total / weights.sum()


def counted(features: Features, x: Tensor, steps: Tensor, draws: Draws) -> Tensor:
    """What users round to: floor u + Bernoulli(u - floor u), u = steps (1 + f/R)/2: (n, instances)
    int64.
    """
    whole, rest = _parts(features.share(x), steps)
    return whole + rounded(2 * rest - 1, (), draws)


def crowd_counted(
    features: Features, crowd: Crowd, steps: Tensor | None, draws: Simulated, shape: tuple[int, ...]
) -> Tensor:
    """Sums of all users' counts, unchecked: -> (*shape, *batch, instances) int64.
    O(distinct values).

    steps: as in ``OfFeatures``.
    """
    alone = crowd.counts.ndim == 1 and bool((crowd.counts == 1).all())  # each user has its own row
    if steps is None and alone:
        return features.ones(crowd.values, draws, shape)
    total = crowd.counts.new_zeros(*shape, *crowd.counts.shape[:-1], features.instances)
    for share, counts in features.of_crowd(crowd, features.share, math.prod(shape)):
        whole, rest = _parts(share, worth(steps))
        total += (counts[..., None] * whole).sum(-2)  # no product of integer matrices on a GPU
        if alone:
            total += rounded(2 * rest - 1, shape, draws).sum(-2)
        else:
            each = counts[..., None].expand(*shape, *counts.shape, features.instances)
            total += draws.binomial(each, rest).sum(-2)
    return total


def worth(steps: Tensor | None) -> Tensor:
    """What a one stands for in each sum: (instances,), or () for bits."""
    return torch.ones((), dtype=torch.float64) if steps is None else steps


def rounding_variances(features: Features, crowd: Crowd, steps: Tensor) -> Tensor:
    """Of the sums of f that rounding leaves: sum_u 4 R^2 theta (1 - theta)/steps^2,
    (*batch, instances) float64.
    """
    total = crowd.values.new_zeros(
        *crowd.counts.shape[:-1], features.instances, dtype=torch.float64
    )
    for share, counts in features.of_crowd(crowd, features.share):
        rest = _parts(share, steps)[1]
        total += combined(counts.double(), rest * (1 - rest))
    return total * (2 * features.bound / steps.to(total)) ** 2


def _parts(share: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """floor u, int64, and u - floor u, float64, of f/R."""
    u = (1 + share.double()).clamp_(0, 2) * (steps.to(share.device) / 2)
    whole = u.floor()
    return whole.to(torch.int64), u - whole


class OfFeatures(Protocol[Crowd]):
    """The question: the mean of each feature over the users, in [-R, R]. x: (n, d); a summary is a
    ``Crowd``.

    B~_ij, the estimate of sum_u (1 + f_i(x_u)_j / R)/2, gives the mean R (2 B~_ij/n - 1).
    """

    features: Features
    law: BitLaw
    steps: Tensor | None = None  # (instances,), what a one is worth in each sum; None: bits

    @property
    def held(self) -> tuple[int]:
        return (self.features.family.dimension,)

    def exact(self, summary: Crowd) -> Tensor:
        return self.features.means(self.features.crowd(summary))

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """((n R^2 - sum_u f^2, none with a curator) + 4 R^2 E Var B~)/n^2."""
        rounding, privacy = self._variances(self.features.crowd(summary))
        return rounding + privacy

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        checks.instance("objective", objective, Objective)
        users = checks.people("n", n, 1)
        return objective.of(self._largest(alike(users))).expand(tensor_of(users).shape)

    def _largest(self, n: int) -> Tensor:
        """Of n users, the largest variance of each mean: () or (instances,)."""
        noise = self.law.spread(torch.tensor([0, n], dtype=torch.int64, device="cpu"), n).max()
        steps = worth(self.steps)
        # of u, the worst; signs are whole steps, and a fraction
        rest = steps.clamp(max=0.5) if self.features.rounding else steps.frac()
        rounding = 0.0 if self.law.takes_numbers else n * rest * (1 - rest)
        return 4 * self.features.bound**2 * (rounding + noise) / (steps * n) ** 2

    def density_mse(self, summary: Crowd, y: Tensor) -> MeanSquaredError:
        """Of the density at each query, these features given: (q, d) -> (q,). It reads the users'
        vectors.
        """
        crowd = self.features.crowd(summary)
        return density_mse(self.features, crowd, y, *self._variances(crowd))

    def _variances(self, crowd: Crowd) -> tuple[Tensor, Tensor]:
        """Of the means, by rounding and by privacy noise, (instances,) each."""
        n = alike(crowd.n)
        bound = self.features.bound
        total, squares = self.features.sums(crowd)
        if self.law.takes_numbers:
            rounding = torch.zeros_like(total)
        elif self.steps is None:
            rounding = (n * bound**2 - squares).clamp_min(0)
        else:
            rounding = rounding_variances(self.features, crowd, self.steps)
        noise = self.law.spread((n + total / bound) / 2, n) / worth(self.steps).to(total).square()
        return rounding / float(n) ** 2, 4 * bound**2 * noise / float(n) ** 2

    def _density(self, tally: Tally) -> Density:
        n, bound = alike(tally.n), self.features.bound
        total = self.law.decode(tally["total"], n)
        value = bound * (2 * (total / worth(self.steps).to(total)) / n - 1)
        return Density(
            value,
            self._largest(n).sqrt().to(value.device).expand_as(value),
            tally.n,
            limits=(-bound, bound),
            features=self.features,
            guarantee=self.guarantee,
        )

    def validate_summary(self, summary: Crowd) -> Crowd:
        """``summary``, a crowd of as many users as ``law.users``. Raises TypeError, ValueError."""
        crowd = self.features.crowd(summary)
        n = alike(crowd.n)
        if n != self.law.users:
            raise ValueError(f"summary must be of {self.law.users} users, as calibrated, not {n}")
        return crowd


def moved(features: Features, steps: Tensor | None = None) -> Sensitivity:
    """All sums, how far a user's numbers move in them, how many of its bits may flip, and the
    largest number.

    Floats have error at most 2^-22 in each chance, at both vectors: (gamma^{1/2} +
    2^-21 ||steps||)^2. A chance is (1 + s)/2 for the number s that a feature was computed to, up to
    2^-60 on a CPU and 2^-32 elsewhere (``rounding.rounded``). s is the cosine or sine of one angle,
    right to 4 units in the last place, 2^-22 in float32; a coordinate of x as it was given; an
    indicator; or a sum of D products in float64, right to D 2^-52.
    """
    if steps is None:
        gamma, most, largest = features.movement, float(features.instances), 1.0
        flips = features.composed
    else:
        flips = features.instances  # a number that is zero is no fair coin
        gamma, most, largest = (
            features.gamma(steps),
            float(steps.square().sum()),
            float(steps.max()),
        )
    room = 2 * ERROR * most**0.5
    return Sensitivity(features.instances, min((gamma**0.5 + room) ** 2, most), flips, largest)
