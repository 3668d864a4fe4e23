"""Learning from labelled users: one private density for each class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.density.density import Density
from torchdp.density.family import Features
from torchdp.density.inner_product import InnerProductFamily
from torchdp.density.kde import CentralKDE, ShuffledKDE
from torchdp.draws import Simulated
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee
from torchdp.privacy.guarantee import weakest_arithmetic
from torchdp.protocol import Crowd, Tally
from torchdp.protocol.frames import Rows, rows_of
from torchdp.randomizers import RandomizedResponse
from torchdp.shuffle.laws import MessageLaw


def class_counts(labels: Rows, classes: int) -> Tensor:
    """How many users report each class: integers in [0, classes) -> (classes,), int64.

    Args:
        labels: (n,) integers in [0, classes).
        classes: how many there are.

    Of labels that went through randomized response the counts are private by post-processing.
    Raises TypeError, ValueError: also for a class without users, of which no density can be
    released.
    """
    classes = checks.integer("classes", classes, 1, 2**30)
    labels = checks.types("labels", rows_of(labels, classes, "labels"), classes)
    counts = torch.bincount(labels, minlength=classes)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(
            f"labels must leave no class without users; classes {empty} have none, merge or drop "
            "them"
        )
    return counts


def sizes_of(counts: Tensor) -> list[int]:
    """``counts`` as whole numbers >= 1, of a class at least. Raises TypeError, ValueError."""
    counts = checks.dense("counts", counts)
    if counts.ndim != 1 or not len(counts):
        raise ValueError(
            f"counts must have shape (classes,), as from class_counts, not {tuple(counts.shape)}"
        )
    return [checks.integer("counts", size, 1) for size in counts.tolist()]


@dataclass(frozen=True, eq=False)
class ShuffledClasses(Brief):
    """A shuffled density of each class, from the users who report it.

    In a first round users report labels, in the clear or through ``response``, and remember their
    reports; in the second those who report class c run ``kdes[c]``, made for their public number.
    It is no protocol of one question: its verbs take x = (vectors (n, d), reported (n,)).

    Args:
        kdes: of one Features object, all shuffled, or all a curator's (references).
        response: of as many classes, None where labels are public.

    Raises ValueError, TypeError.

    Guarantees: of the second round, (epsilon, delta)-DP for replacing one user's vector, labels as
    they are: the worst of the classes, each of which holds other users. With ``response``, of both
    rounds together, (epsilon + response.epsilon, delta)-DP for replacing a user's vector and label:
    for a report k let T_k be the outcomes of the second round in an event; sum_k P(k|c) P(T_k|k,x)
    <= sum_k P(k|c) (e^epsilon P(T_k|k,x') + delta) <= e^(epsilon + response.epsilon) sum_k P(k|c')
    P(T_k|k,x') + delta. It covers the analyst's whole view, hence the published densities too; for
    those alone, epsilon without the labels' share (the paper's claim for its model-threat model)
    holds where the label is not replaced.
    Source: Wagner (2025), section 3.3 and its corollary, corrected as above.
    """

    kdes: tuple[ShuffledKDE, ...] | tuple[CentralKDE, ...]
    response: RandomizedResponse | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kdes", tuple(self.kdes))
        kinds = {type(kde) for kde in self.kdes}
        if len(kinds) != 1 or not kinds <= {ShuffledKDE, CentralKDE}:
            raise TypeError(
                "kdes must hold a ShuffledKDE for each class, one at least, or a CentralKDE for "
                "each"
            )
        if any(kde.features is not self.kdes[0].features for kde in self.kdes):
            raise ValueError("kdes must share one Features object")
        checks.instance("response", self.response, (RandomizedResponse, type(None)))
        if self.response is not None and self.response.k != len(self.kdes):
            raise ValueError(
                f"response must have k = {len(self.kdes)}, the number of classes, not "
                f"{self.response.k}"
            )

    @staticmethod
    def calibrated(
        features: Features,
        kind: type[MessageLaw],
        counts: Tensor,
        epsilon: float,
        delta: float,
        response: RandomizedResponse | None = None,
        absent: int = 0,
        *,
        steps: Tensor | float | None = None,
    ) -> "ShuffledClasses":
        """For each class noise of this kind at (epsilon, delta).

        counts: users of each class, as from ``class_counts``; ``absent`` of each may be missing.
        The smallest class is calibrated, the others take its noise (``like``). The rest as of
        ``ShuffledKDE.calibrated``. Raises as it does.
        """
        smallest = min(sizes_of(counts))
        kde = ShuffledKDE.calibrated(features, kind, smallest, epsilon, delta, absent, steps=steps)
        return ShuffledClasses.like(kde, counts, response)

    @staticmethod
    def like(
        kde: ShuffledKDE, counts: Tensor, response: RandomizedResponse | None = None
    ) -> "ShuffledClasses":
        """For each class the features, steps and noise of ``kde``, certified for its users.

        Where that noise is not certified, or of another kind than ``shuffle.PoissonSum`` and
        ``BoundedSum``, the class is calibrated by itself. Raises as ``ShuffledKDE.calibrated``.
        """
        sizes = sizes_of(counts)
        # Classes of one size share one certificate.
        of_size = {n: kde if n == kde.law.users else kde.resized(n) for n in sorted(set(sizes))}
        return ShuffledClasses(tuple(of_size[n] for n in sizes), response)

    @cached_property
    def guarantee(self) -> Guarantee:
        """What both rounds promise together."""
        # Given the reports a user is in one class: the worst of them counts, not their sum.
        parts = [kde.guarantee for kde in self.kdes]
        worst = max(parts, key=lambda part: part.epsilon)
        delta = max(part.delta for part in parts)
        variation = max(part.variation for part in parts)
        both = replace(
            worst, delta=delta, variation=variation, arithmetic=weakest_arithmetic(parts)
        )
        if self.response is None or self.response.epsilon == 0:
            return both
        # Randomized response is exact in its arithmetic.
        return replace(
            both,
            epsilon=worst.epsilon + self.response.epsilon,
            exact=False,
            source="randomized response of the label, then the density of the reported class: "
            "epsilons add up",
        )

    def validate(self, x: tuple[Rows, Rows]) -> tuple[Tensor, Tensor]:
        """x, (n, d) and (n,), as many reports of each class as ``kdes`` count on.

        Raises TypeError, ValueError.
        """
        first = self.kdes[0]
        vectors = rows_of(x[0], first.held)
        reported = rows_of(x[1], len(self.kdes), "reported")
        vectors = first.features.family.validate(vectors)
        counts = class_counts(reported, len(self.kdes))
        if len(vectors) != len(reported):
            raise ValueError(
                f"x and reported must have one row for each user, not {len(vectors)} and "
                f"{len(reported)}"
            )
        # Users bring the noise: of fewer there would be less.
        expected = [kde.law.users for kde in self.kdes]
        if counts.tolist() != expected:
            raise ValueError(
                f"reported must hold {expected} users of the classes, for whom the noise is "
                f"calibrated, not {counts.tolist()}; make them anew for these counts"
            )
        return vectors, reported

    def collect(self, x: tuple[Rows, Rows], *, noise: Noise | None = None) -> tuple[Tally, ...]:
        """A tally of each class from each user's own messages. Raises as ``validate``.

        noise: None for the system's.
        """
        vectors, reported = self.validate(x)
        draws = source(noise, vectors.device)
        # Each user takes part in one density, that of its report.
        members = [vectors[reported == c] for c in range(len(self.kdes))]
        return tuple(
            kde.collect_unchecked(own, draws) for kde, own in zip(self.kdes, members, strict=True)
        )

    def analyse(self, tallies: tuple[Tally, ...]) -> Density:
        """The classes' densities, (*batch, classes, instances). Raises TypeError, ValueError."""
        parts = [kde.analyse(tally) for kde, tally in zip(self.kdes, tallies, strict=True)]
        value = torch.stack([part.value for part in parts], -2)
        error = torch.stack([part.standard_error for part in parts], -2)
        n = sum(part.n for part in parts)
        return Density(value, error, n, features=self.kdes[0].features, guarantee=self.guarantee)

    def estimate(self, x: tuple[Rows, Rows], *, noise: Noise | None = None) -> Density:
        """``analyse(collect(x))``."""
        return self.analyse(self.collect(x, noise=noise))

    def sample_estimate(
        self, x: tuple[Rows, Rows], *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Density:
        """The same in distribution, without messages."""
        vectors, reported = self.validate(x)
        shape = checks.sample_shape(sample_shape)
        draws = Simulated(generator, vectors.device)
        labels = reported.to(vectors.device, torch.int64)
        members = [Crowd.of(vectors[labels == c]) for c in range(len(self.kdes))]
        pairs = zip(self.kdes, members, strict=True)
        tallies = tuple(kde.sample_unchecked(crowd, draws, shape) for kde, crowd in pairs)
        return self.analyse(tallies)


def classify(densities: Density, y: Tensor) -> Tensor:
    """The class of highest density at each query.

    densities: (*batch, classes); y: (q, d). Returns (*batch, q) int64.

    Guarantees: that of ``densities``, whatever is asked: post-processing.
    Source: Wagner (2025), section 3.3, highest density class.
    """
    return _classes(densities).evaluate(y).argmax(-2)


def nearest_centre(densities: Density, y: Tensor) -> Tensor:
    """The class whose mean vector is nearest to each query.

    densities: (*batch, classes); y: (q, d). Returns (*batch, q) int64.

    ||y - m||^2 up to ||y||^2, with m = K~ at the axes and ||m||^2 less what rounding and privacy
    noise add to it in the mean (to within 1/n). Raises ValueError where the kernel is not the inner
    product.

    Guarantees: that of ``densities``: post-processing.
    Source: Papyan, Han, Donoho (2020), nearest class centre.
    """
    family = _classes(densities).features.family
    if not isinstance(family, InnerProductFamily):
        raise ValueError(
            f"densities must be of an inner product family, not {type(family).__name__}; use "
            "classify"
        )
    # At the axes the mean of <x, y> is the mean vector, a coordinate at each.
    axes = torch.eye(family.dimension, dtype=torch.float64, device=densities.value.device)
    centres = densities.evaluate(axes)  # (*batch, classes, d)
    # E ||centre||^2 is ||m||^2 and the sum of the variances.
    noise = densities.standard_error_at(axes).square()
    squares = (centres.square() - noise).sum(-1)
    products = 2 * centres @ family.queries(y).to(centres).mT
    # ||y||^2 is left out, the same for all classes.
    return (squares[..., None] - products).argmin(-2)


def nearest_words(densities: Density, vocabulary: Tensor, top: int) -> Tensor:
    """The words of highest density in each class, best first: (*batch, top) rows of vocabulary.

    densities: (*batch,). vocabulary: public embeddings, (words, d). Raises TypeError, ValueError.

    Guarantees: that of ``densities``: post-processing.
    Source: Wagner (2025), section 3.3, private class decoding.
    """
    top = checks.integer("top", top, 1)
    scores = checks.instance("densities", densities, Density).evaluate(vocabulary)
    if top > scores.shape[-1]:
        raise ValueError(f"top must be at most the number of words, {scores.shape[-1]}, not {top}")
    return scores.topk(top, dim=-1).indices


def _classes(densities: Density) -> Density:
    """``densities``, if of several classes. Raises TypeError, ValueError."""
    if checks.instance("densities", densities, Density).value.ndim < 2:
        raise ValueError("densities must be of several classes, as ShuffledClasses releases them")
    return densities
