"""Learning from labelled users: one private density for each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.family import Features
from torchdp.density.inner_product import InnerProductFamily
from torchdp.density.kde import ShuffledKDE, calibrated_kde
from torchdp.draws import Simulated
from torchdp.noise import Noise, source
from torchdp.privacy import Guarantee, Model
from torchdp.randomizers import RandomizedResponse
from torchdp.shuffle import BitSum


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """How many users report each class: integers in [0, classes) -> (classes,), int64.

    Of labels that went through randomized response the counts are private by post-processing. Raises TypeError,
    ValueError: also for a class without users, of which no density can be released.
    """
    labels = checks.indices("labels", labels, checks.integer("classes", classes, 1, 2**30))
    if labels.ndim != 1:
        raise ValueError(f"labels must have shape (n,), not {tuple(labels.shape)}")
    counts = torch.bincount(labels, minlength=classes)
    if empty := (counts == 0).nonzero()[:, 0].tolist():
        raise ValueError(
            f"labels must leave no class without users; classes {empty} have none, merge or drop them"
        )
    return counts


@dataclass(frozen=True, eq=False)
class ShuffledClasses:
    """A shuffled density of each class, from the users who report it.

    In a first round users report labels, in the clear or through ``response``; in the second those who report class c
    run ``kdes[c]``, made for their public number. kdes: of one Features object. response: of as many classes, None
    where labels are public. Raises ValueError, TypeError.

    Guarantees: of the second round, (epsilon, delta)-DP for replacing one user's vector, labels as they are: the worst
    of the classes, each of which holds other users. With ``response``, of both rounds together, (epsilon +
    response.epsilon, delta)-DP for replacing a user's vector and label: for a report k let T_k be the outcomes of the
    second round in an event; sum_k P(k|c) P(T_k|k,x) <= sum_k P(k|c) (e^epsilon P(T_k|k,x') + delta) <=
    e^(epsilon + response.epsilon) sum_k P(k|c') P(T_k|k,x') + delta. It covers the analyst's whole view, hence the
    published densities too; for those alone, epsilon without the labels' share (the paper's claim for its model-threat
    model) holds where the label is not replaced.
    Source: Wagner (2025), section 3.3 and its corollary, corrected as above.
    """

    kdes: tuple[ShuffledKDE, ...]
    response: RandomizedResponse | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kdes", tuple(self.kdes))
        if not self.kdes or not all(isinstance(kde, ShuffledKDE) for kde in self.kdes):
            raise TypeError("kdes must hold a ShuffledKDE for each class, one at least")
        if any(kde.features is not self.kdes[0].features for kde in self.kdes):
            raise ValueError("kdes must share one Features object")
        checks.instance("response", self.response, (RandomizedResponse, type(None)))
        if self.response is not None and self.response.k != len(self.kdes):
            raise ValueError(
                f"response must have k = {len(self.kdes)}, the number of classes, not {self.response.k}"
            )

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """What both rounds promise together; None where a class is summed without privacy."""
        parts = [kde.guarantee for kde in self.kdes]
        private = [part for part in parts if part is not None]
        if len(private) < len(parts):
            return None
        worst = max(private, key=lambda part: part.epsilon)
        model = Model.CENTRAL if any(part.model is Model.CENTRAL for part in private) else Model.SHUFFLE
        label = self.response.epsilon if self.response is not None else 0.0
        source = (
            "randomized response of the label, then the density of the reported class: epsilons add up"
            if label
            else worst.source
        )
        delta = max(part.delta for part in private)
        exact = worst.exact and not label
        return Guarantee(worst.epsilon + label, delta, model, worst.neighbours, exact, source)

    def collect(self, x: Tensor, reported: Tensor, *, noise: Noise | None = None) -> Density:
        """Densities of the classes from each user's own messages: (n, d), (n,) -> sums (classes, instances).

        reported: what the users reported as their labels in the first round. noise: None for the system's. Raises
        TypeError, ValueError.
        """
        x = self._present(x, reported)
        noise = source(noise, x.device)
        return self._joined([kde.collect(x[reported == c], noise=noise) for c, kde in enumerate(self.kdes)])

    def sample(
        self, x: Tensor, reported: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Density:
        """The same in law by ``ShuffledKDE.sample``: sums (*sample_shape, classes, instances)."""
        x, shape = self._present(x, reported), checks.sample_shape(sample_shape)
        draws, labels = Simulated(generator, x.device), reported.to(x.device, torch.int64)
        if any(kde.protocol.sums_numbers for kde in self.kdes):
            ones = [kde._ones(x[labels == c], draws, shape) for c, kde in enumerate(self.kdes)]
        else:  # all classes at once, where one kernel rounds and counts them
            ones = list(self.kdes[0].features._class_ones(x, labels, len(self.kdes), draws, shape).unbind(-2))
        sums = zip(self.kdes, ones, strict=True)
        return self._joined([kde._release(kde.protocol.drawn(each, draws)) for kde, each in sums])

    def _present(self, x: Tensor, reported: Tensor) -> Tensor:
        """``x``, and all that must hold before anything is drawn."""
        x = self.kdes[0].features.family.users(x)
        counts = class_counts(reported, len(self.kdes))
        if len(x) != len(reported):
            raise ValueError(f"x and reported must have one row for each user, not {len(x)} and {len(reported)}")
        expected = [kde.protocol.users for kde in self.kdes]
        if counts.tolist() != expected:
            raise ValueError(
                f"reported must hold {expected} users of the classes, as the protocols count on, not "
                f"{counts.tolist()}; make them anew for these counts"
            )
        return x

    def _joined(self, parts: list[Density]) -> Density:
        users, variance = (
            torch.stack([getattr(part, name) for part in parts], -1) for name in ("users", "variance")
        )
        sums = torch.stack([part.sums for part in parts], -2)
        return Density(parts[0].features, sums, users, variance, self.guarantee)


def calibrated_classes(
    features: Features,
    kind: type[BitSum],
    counts: Tensor,
    epsilon: float,
    delta: float,
    response: RandomizedResponse | None = None,
) -> ShuffledClasses:
    """For each class the protocol of this kind with the least noise at (epsilon, delta), for counts[c] users.

    counts: as from ``class_counts``. Classes of one size are calibrated once. Raises as ``calibrated_kde``.
    """
    counts = checks.dense("counts", counts)
    if counts.ndim != 1 or not len(counts):
        raise ValueError(f"counts must have shape (classes,), as from class_counts, not {tuple(counts.shape)}")
    sizes = [checks.integer("counts", size, 1) for size in counts.tolist()]
    made = {n: calibrated_kde(features, kind, n, epsilon, delta) for n in sorted(set(sizes))}
    return ShuffledClasses(tuple(made[n] for n in sizes), response)


def classify(densities: Density, y: Tensor) -> Tensor:
    """The class of highest density at each query: densities (*batch, classes), (q, d) -> (*batch, q), int64.

    Guarantees: that of ``densities``, whatever is asked: post-processing.
    Source: Wagner (2025), section 3.3, highest density class.
    """
    return _classes(densities).evaluate(y).argmax(-2)


def nearest_centre(densities: Density, y: Tensor) -> Tensor:
    """The class whose mean vector is nearest to each query: densities (*batch, classes), (q, d) -> (*batch, q), int64.

    ||y - m||^2 up to ||y||^2, with m = K~ at the axes and ||m||^2 less what rounding and privacy noise add to it in the
    mean (to within 1/n). Raises ValueError where the kernel is not the inner product.

    Guarantees: that of ``densities``: post-processing.
    Source: Papyan, Han, Donoho (2020), nearest class centre.
    """
    family = _classes(densities).features.family
    if not isinstance(family, InnerProductFamily):
        raise ValueError(
            f"densities must be of an inner product family, not {type(family).__name__}; use classify"
        )
    axes = torch.eye(family.dimension, dtype=torch.float64, device=densities.sums.device)
    centres = densities.evaluate(axes)  # (*batch, classes, d)
    squares = (centres.square() - densities.standard_error(axes).square()).sum(-1)
    return (squares[..., None] - 2 * centres @ family.queries(y).to(centres).mT).argmin(-2)


def decode(densities: Density, vocabulary: Tensor, top: int) -> Tensor:
    """The words of highest density in each class: densities (*batch,), (words, d) -> (*batch, top) rows, best first.

    vocabulary: public embeddings. Raises TypeError, ValueError.

    Guarantees: that of ``densities``: post-processing.
    Source: Wagner (2025), section 3.3, private class decoding.
    """
    top = checks.integer("top", top, 1)
    scores = checks.instance("densities", densities, Density).evaluate(vocabulary)
    if top > scores.shape[-1]:
        raise ValueError(f"top must be at most the number of words, {scores.shape[-1]}, not {top}")
    return scores.topk(top, dim=-1).indices


def _classes(densities: Density) -> Density:
    if checks.instance("densities", densities, Density).sums.ndim < 2:
        raise ValueError("densities must be of several classes, as ShuffledClasses releases them")
    return densities
