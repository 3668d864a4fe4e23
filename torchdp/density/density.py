"""The released function, and the means of random features over users that every density is made of.

A density holds public features, noisy means, and what they promise; nothing else of the data.

Notation: f, g, R, I as in the package; u = steps (1 + f/R)/2 is the number that a user rounds to a
whole one, theta = u - floor u; B~ estimates the sum over users of (1 + f/R)/2.
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
from torchdp.protocol.records import alike, tensor_of, weighted_sum
from torchdp.shuffle import BitLaw
from torchdp.shuffle.search import Sensitivity

# Whose classes a saved density is made of.
PACKAGES = ("torchdp.density", "torchdp.privacy.guarantee")

# Of a chance, by the floats that decide a bit.
ERROR = 2.0**-22


@dataclass(frozen=True, eq=False, kw_only=True)
class Density(Estimate):
    """K~(y) = <value, right(y)> / repetitions + constant: unbiased for mean_u E <f(x_u), g(y)>.

    Args:
        value: noisy means of f_i(x)_j over the users, (*batch, instances) float64; a batch is of
            classes, or of repeated releases (``sample_shape``).
        standard_error: of each over rounding and privacy noise, the largest over the data.
        n: how many users there are, in all classes together.
        features: public.
        guarantee: of all classes together, but of one release: repeats of the same users are for
            simulations, and compose if they are published.

    Raises ValueError, TypeError.

    Guarantees: that of ``guarantee``, however many queries are asked, since they are answered from
    the means alone.
    Source: Wagner (2025), Algorithm 1, KDE query.
    """

    features: Features
    guarantee: Guarantee
    # Its means say nothing by themselves.
    _repr_html_ = Brief._repr_html_

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("guarantee", self.guarantee, Guarantee)
        value = checks.floating("value", self.value).double()
        error = checks.floating("standard_error", self.standard_error).double()
        if value.ndim < 1 or value.shape[-1] != self.features.instances:
            raise ValueError(
                f"value must have shape (..., {self.features.instances}), not {tuple(value.shape)}"
            )
        try:
            error = error.to(value.device).expand(value.shape)
        except RuntimeError:
            raise ValueError(
                f"standard_error must expand to value's shape {tuple(value.shape)}, not be of "
                f"{tuple(error.shape)}"
            ) from None
        if not (error >= 0).all():
            raise ValueError("standard_error must hold numbers >= 0")
        checks.people("n", self.n, 1)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "standard_error", error)

    def evaluate(self, y: Tensor) -> Tensor:
        """K~ at each query: (q, d) -> (*batch, q), float64. Raises TypeError, ValueError."""
        products = torch.cat([self.value @ right.mT for right in self._rights(y)], -1)
        return products / self.features.repetitions + self.features.constant

    def standard_error_at(self, y: Tensor) -> Tensor:
        """A bound of the deviation of K~(y) over rounding and privacy: (q, d) -> (*batch, q).

        (sum_j g(y)_j^2 standard_error_j^2)^{1/2} / repetitions, these features given. It is
        computed from public numbers.
        """
        squares = self.standard_error.square()
        variances = torch.cat([squares @ right.square().mT for right in self._rights(y)], -1)
        return variances.sqrt() / self.features.repetitions

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything above, into one file.

        Raises OSError; TypeError for an error that is a function (SecureKDE's).
        """
        text = json.dumps(described(self, name="density"))
        checks.path("path", path).write_text(text, encoding="ascii")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Density":
        """What ``save`` wrote, on the CPU.

        No code of the file is run: only classes of this package are made. Raises OSError,
        ValueError.
        """
        text = checks.path("path", path).read_bytes()
        try:
            density = made(json.loads(text), Density, rooms=PACKAGES)
            return checks.instance("the file", density, Density)
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{os.fspath(path)} holds no Density; write it with Density.save"
            ) from error

    def _rights(self, y: Tensor) -> Iterator[Tensor]:
        """g(y) part by part, (queries, instances), float64."""
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
    """E (K~(y) - mean_u k(x_u, y))^2 over rounding and privacy noise, these features given.

    Args:
        features: public.
        crowd: of users' vectors.
        y: queries, (q, d).
        rounding: variances of the means, (instances,).
        privacy: likewise.

    Returns:
        (q,) each: feature, (<exact, g>/I - mean_u k(x_u, y))^2; rounding and privacy, weighted by
        g_j^2/I^2. It is exact and not private: it reads the users' vectors.
    """
    right = features.right(y).detach().double()
    right = right / features.repetitions
    truth = kernel_means(features.family, crowd.values, y, counts=crowd.counts)
    expected = right @ features.means(crowd) + features.constant
    weights = right.square()
    return MeanSquaredError((expected - truth).square(), weights @ rounding, weights @ privacy)


def kernel_means(family: Family, x: Tensor, y: Tensor, *, counts: Tensor | None = None) -> Tensor:
    """The exact density, not private: mean_u k(x_u, y).

    Args:
        family: of the kernel.
        x: users' vectors, (n, d).
        y: queries, (q, d).
        counts: how many users hold each row, (n,); None: one each.

    Returns:
        (q,), float64. Raises TypeError, ValueError.
    """
    family = checks.instance("family", family, Family)
    x = family.validate(x).detach()
    y = family.queries(y).detach()
    if counts is None:
        weights = torch.ones_like(x[:, 0])
    else:
        weights = checks.counts("counts", counts, len(x))
    total = torch.zeros(len(y), dtype=torch.float64, device=x.device)
    size = max(1, NUMBERS_AT_ONCE // max(1, len(y)))
    for part, weight in zip(x.split(size), weights.double().split(size), strict=True):
        total += weight @ family.k(part, y.to(part)).double()
    return total / weights.sum()


def counted(features: Features, x: Tensor, steps: Tensor, draws: Draws) -> Tensor:
    """What users round to, floor u + Bernoulli(theta): (n, instances) int64."""
    whole, theta = _parts(features.share(x), steps)
    # ``rounded`` takes the share s of the chance (1 + s)/2.
    return whole + rounded(2 * theta - 1, (), draws)


def crowd_counted(
    features: Features, crowd: Crowd, steps: Tensor | None, draws: Simulated, shape: tuple[int, ...]
) -> Tensor:
    """Sums of all users' counts, (*shape, *batch, instances) int64, unchecked.

    O(distinct values). steps: as in ``OfFeatures``.
    """
    each_alone = crowd.counts.ndim == 1 and bool((crowd.counts == 1).all())
    if steps is None and each_alone:
        return features.ones(crowd.values, draws, shape)
    total = crowd.counts.new_zeros(*shape, *crowd.counts.shape[:-1], features.instances)
    for share, counts in features.of_crowd(crowd, features.share, math.prod(shape)):
        whole, theta = _parts(share, worth(steps))
        # A GPU has no product of integer matrices.
        total += (counts[..., None] * whole).sum(-2)
        # Rounding bits costs less than a binomial draw for each user.
        if each_alone:
            total += rounded(2 * theta - 1, shape, draws).sum(-2)
        else:
            users = counts[..., None].expand(*shape, *counts.shape, features.instances)
            total += draws.binomial(users, theta).sum(-2)
    return total


def worth(steps: Tensor | None) -> Tensor:
    """What a one stands for in each sum: (instances,), or () for bits."""
    return torch.ones((), dtype=torch.float64) if steps is None else steps


def rounding_variances(features: Features, crowd: Crowd, steps: Tensor) -> Tensor:
    """Of the sums of f: sum_u 4 R^2 theta (1 - theta)/steps^2, (*batch, instances) float64."""
    shape = (*crowd.counts.shape[:-1], features.instances)
    total = crowd.values.new_zeros(shape, dtype=torch.float64)
    for share, counts in features.of_crowd(crowd, features.share):
        _, theta = _parts(share, steps)
        total += weighted_sum(counts.double(), theta * (1 - theta))
    return total * (2 * features.bound / steps.to(total)) ** 2


def _parts(share: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """floor u, int64, and theta, float64, of f/R."""
    # Floats may lie beyond the ends.
    doubled = (1 + share.double()).clamp_(0, 2)
    u = doubled * (steps.to(share.device) / 2)
    whole = u.floor()
    return whole.to(torch.int64), u - whole


class OfFeatures(Protocol[Crowd]):
    """The question: the mean of each feature over the users, in [-R, R].

    x: (n, d); a summary is a ``Crowd``. B~ gives the mean R (2 B~/n - 1). steps: what a one is
    worth in each sum, (instances,); None: bits.
    """

    features: Features
    law: BitLaw
    steps: Tensor | None = None

    @property
    def held(self) -> tuple[int]:
        return (self.features.family.dimension,)

    def exact(self, summary: Crowd) -> Tensor:
        return self.features.means(self.features.crowd(summary))

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """((n R^2 - sum_u f^2, none with a curator) + 4 R^2 E Var B~)/n^2."""
        rounding, privacy = self._variances(self.features.crowd(summary))
        return rounding + privacy

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        return objective.of(self._largest(alike(n))).expand(tensor_of(n).shape)

    def _largest(self, n: int) -> Tensor:
        """Of n users, the largest variance of each mean: () or (instances,)."""
        ends = torch.tensor([0, n], dtype=torch.int64, device="cpu")
        noise = self.law.spread(ends, n).max()
        steps = worth(self.steps)
        # The worst theta of u; signs are whole steps, and a fraction.
        theta = steps.clamp(max=0.5) if self.features.rounding else steps.frac()
        rounding = 0.0 if self.law.takes_numbers else n * theta * (1 - theta)
        return 4 * self.features.bound**2 * (rounding + noise) / (steps * n) ** 2

    def density_mse(self, summary: Crowd, y: Tensor) -> MeanSquaredError:
        """Of the density at queries (q, d), these features given; it reads the users' vectors."""
        crowd = self.features.crowd(summary)
        return density_mse(self.features, crowd, y, *self._variances(crowd))

    def _variances(self, crowd: Crowd) -> tuple[Tensor, Tensor]:
        """Of the means, by rounding and by privacy noise, (instances,) each."""
        n = alike(crowd.n)
        bound = self.features.bound
        total, squares = self.features.sums(crowd)
        # A curator adds up the features themselves.
        if self.law.takes_numbers:
            rounding = torch.zeros_like(total)
        elif self.steps is None:
            rounding = (n * bound**2 - squares).clamp_min(0)
        else:
            rounding = rounding_variances(self.features, crowd, self.steps)
        counts = (n + total / bound) / 2
        steps = worth(self.steps).to(total)
        noise = self.law.spread(counts, n) / steps.square()
        privacy = 4 * bound**2 * noise
        return rounding / float(n) ** 2, privacy / float(n) ** 2

    def _density(self, tally: Tally) -> Density:
        n = alike(tally.n)
        bound = self.features.bound
        counts = self.law.decode(tally["total"], n)
        total = counts / worth(self.steps).to(counts)
        value = bound * (2 * total / n - 1)
        error = self._largest(n).sqrt().to(value.device)
        return Density(
            value,
            error.expand_as(value),
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
    """All sums, how far a user's numbers move in them, how many bits may flip, the largest number.

    Floats have error at most 2^-22 in each chance, at both vectors: (gamma^{1/2} +
    2^-21 ||steps||)^2. A chance is (1 + s)/2 for the number s that a feature was computed to, up to
    2^-60 on a CPU and 2^-32 elsewhere (``rounding.rounded``). s is the cosine or sine of one angle,
    right to 4 units in the last place, 2^-22 in float32; a coordinate of x as it was given; an
    indicator; or a sum of D products in float64, right to D 2^-52.
    """
    if steps is None:
        gamma = features.movement
        most = float(features.instances)
        largest = 1.0
        flips = features.composed
    else:
        gamma = features.gamma(steps)
        most = float(steps.square().sum())
        largest = float(steps.max())
        # A number that is zero is no fair coin.
        flips = features.instances
    slack = 2 * ERROR * most**0.5
    # Chances in [0, 1] move by 1 at most, as floats too.
    change = min((gamma**0.5 + slack) ** 2, most)
    return Sensitivity(features.instances, change, flips, largest)
