"""Kernel density estimation in the shuffle model: one bit sum for each random feature."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.errors import MeanSquaredError, kernel_means
from torchdp.density.family import Features
from torchdp.density.levels import class_steps, crowd_steps, rounding_variances, steps
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Candidate, Choice, Crowd, CuratorProtocol, Layout, Limits, Objective, Protocol, Tally
from torchdp.protocol.rounded_sum import RoundedSum, in_blocks, released_guarantee
from torchdp.shuffle import BitLaw, BoundedSum, CentralGaussianSum, PoissonSum, RandomizedResponseSum
from torchdp.shuffle.accounting import certified, kept, sent
from torchdp.shuffle.laws import MessageLaw
from torchdp.shuffle.one_type import OneTypeSum
from torchdp.shuffle.references import CuratorSum
from torchdp.shuffle.sums import Shuffled

TRIED: tuple[tuple[type[MessageLaw], int], ...] = (
    (RandomizedResponseSum, 1),
    (BoundedSum, 1),
    *((kind, levels) for levels in (2, 4, 8) for kind in (PoissonSum, BoundedSum)),
)
NEAR = 0.01  # of the least error: of candidates no further above it the one of fewest messages is best
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
        return Crowd.checked(summary, self.features.family.admit)

    def counted(self, summary: Crowd) -> Crowd:
        """``summary``, a crowd of as many users as the law is of. Raises TypeError, ValueError."""
        summary = self._users(summary)
        if summary.n != self.law.users:
            raise ValueError(f"summary must be of {self.law.users} users, as the law is, not {summary.n}")
        return summary


@dataclass(frozen=True, eq=False)
class ShuffledKDE(OfFeatures, Shuffled[Crowd]):
    """n users round their features to bits, b_ij ~ Bernoulli((1 + f_i(x)_j / R)/2); their shuffled sums are released.

    With ``law.levels`` = m > 1 they send floor u or one more of m messages, u = m (1 + f_i(x)_j / R)/2: rounding then
    adds at most 1/m^2 of a bit's variance, and noise is in steps of 1/m.

    ``collect`` goes through what every user does; ``sample_tally`` draws the sums at once, exactly in law, from a
    crowd: O(distinct values). ``analyse`` gives a ``Density``.

    features: public. law: for n = law.users users, as ``calibrated`` makes it. delta, epsilon: at which the guarantee
    is stated; without epsilon the smallest that is certified is searched for, rounded up by up to 1 %. absent: so many
    users may send nothing, or collude, and the guarantee still holds; a tally of fewer users than the rest is refused.
    Raises TypeError, and ValueError where no guarantee is certified.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, n public: ``features.composed`` instances of the
    law composed. Given everybody's bits the instances are independent, and hockey-stick divergences are jointly
    convex: the worst pair of the user's bit vectors bounds the mixture that rounding makes. With one-type noise the
    better of this and of ``features.movement`` (``shuffle.delta_of``): the former holds whatever the chances of bits
    are, the latter for those that are drawn, with floats' errors (``moved``). Of the messages as they are sent, where
    whole numbers decide the law's.
    Source: Wagner (2025), Algorithm 1 and Theorem 3.1, here with exact composition.
    """

    features: Features
    law: MessageLaw
    delta: float
    epsilon: float | None = None
    absent: int = 0
    instances: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("law", self.law, MessageLaw).countable()
        self.law.present(self.absent)
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        object.__setattr__(self, "instances", self.features.instances)
        checks.computable(self.guarantee)  # a delta that the law can not keep

    @staticmethod
    def calibrated(
        features: Features,
        kind: type[MessageLaw],
        users: int,
        epsilon: float,
        delta: float,
        absent: int = 0,
        *,
        levels: int = 1,
    ) -> "ShuffledKDE":
        """With the least noise of this kind of law that is certified to make the release (epsilon, delta)-DP.

        kind: such as ``shuffle.PoissonSum``; ``shuffle.BoundedSum`` has less noise, and sends more messages. levels: 1
        rounds to bits; 4 leaves at most a sixteenth of their rounding variance, for more messages. absent: as above.
        Raises as ``BitLaw.calibrated``.
        """
        features = checks.instance("features", features, Features)
        if not (isinstance(kind, type) and issubclass(kind, MessageLaw)):
            raise TypeError(f"kind must be a class of laws that users make, such as PoissonSum, not {kind!r}")
        users, absent = checks.integer("users", users, 1), checks.integer("absent", absent, 0)
        epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
        own = absent > 0 or kind.own_number
        spent = delta * ROUNDED
        law = _calibrated(kind, users if own else 1, epsilon, spent, absent, *moved(features), levels)
        return ShuffledKDE(features, law if own else replace(law, users=users), delta, epsilon, absent)

    @staticmethod
    def tuned(
        features: Features,
        users: int,
        epsilon: float,
        delta: float,
        absent: int = 0,
        *,
        most_messages: float = math.inf,
    ) -> Choice:
        """Noise and steps by predicted error and messages: ``best`` sends least of those within 1 % of the least error.

        Candidates: randomized response and bounded shares with bits, bounded shares and Poisson noise with 2, 4 and 8
        steps, where so much noise can be followed. An error is the root of ``worst_mse``, rounding and noise; its note
        says the messages of a user in all sums together, and their bits. most_messages: that a user may send, in
        expectation; others are no candidates. Those within 1 % of the least error come first, fewer messages before
        more; then the others, by error. Raises ValueError, TypeError.

        Guarantees: each candidate's own, (epsilon, delta)-DP.
        """
        most_messages = float(most_messages)
        if not most_messages > 0:
            raise ValueError(f"most_messages must be positive, not {most_messages}")
        found, refused = [], []
        for kind, levels in TRIED:
            try:
                each = ShuffledKDE.calibrated(features, kind, users, epsilon, delta, absent, levels=levels)
            except ValueError as why:  # so much noise is not followed
                refused.append(why)
                continue
            messages = each.messages_per_user
            if messages <= most_messages:
                steps = "bits" if levels == 1 else f"{levels} steps"
                note = f"at most {messages:.4g} messages of a user, {each.bits_per_user:.4g} bits"
                error = float(each.worst_mse(each.law.users).sqrt())
                found.append(Candidate(f"{kind.__name__}, {steps}", each, error, note))
        if len(refused) == len(TRIED):
            raise refused[0]
        if not found:
            raise ValueError(
                f"most_messages must be at least {each.instances}, one for each sum, not {most_messages:g}"
            )
        found.sort(key=lambda one: one.protocol.messages_per_user)
        return Choice(tuple(found), near=NEAR)

    @cached_property
    def guarantee(self) -> Guarantee:
        own = self.absent > 0 or self.law.own_number
        law = self.law if own else replace(self.law, users=1)  # its noise has one law, however many there are
        real = _promise(law, kept(law, self.delta), self.absent, self.epsilon, *moved(self.features))
        return sent(self.law, real, self.instances, self.delta)

    def admit(self, x: Tensor) -> Tensor:
        """x, (n, d) in the domain, 1 to ``law.users`` rows. Raises TypeError, ValueError."""
        x = self.features.family.admit(x)
        if len(x) > self.law.users:
            raise ValueError(f"x must have a row for each user who sends, 1 to {self.law.users}, not {len(x)}")
        return x

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        if self.law.levels > 1:
            return steps(self.features, x, self.law.levels, draws)
        return self.features.bits(x, draws)

    def hear(self, x: Tensor, draws: Draws) -> Tally:
        return self.add(*(Shuffled.hear(self, part, draws) for part in self.features.parts(x)))

    def drawn(self, summary: Crowd, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """All ``law.users`` send."""
        if self.law.levels > 1:
            return self.noised(crowd_steps(self.features, summary, self.law.levels, draws, shape), draws)
        return self.noised(self.features.crowd_ones(summary, draws, shape), draws)

    def noised(self, ones: Tensor, draws: Draws) -> Tally:
        """The tally of all users where ``ones`` of them round to a one, unchecked."""
        return Tally(self.law.users, {"total": self.law.noised(ones, draws)})

    def class_ones(
        self, x: Tensor, labels: Tensor, classes: int, draws: Simulated, shape: tuple[int, ...]
    ) -> Tensor:
        """What the law adds noise to, of each class, unchecked: (n, d), (n,) -> (*shape, classes, instances)."""
        if self.law.levels > 1:
            return class_steps(self.features, x, labels, classes, self.law.levels, draws, shape)
        return self.features.class_ones(x, labels, classes, draws, shape)

    def analyse(self, tally: Tally) -> Density:
        return self._density(self.whole(tally))


@dataclass(frozen=True, eq=False)
class CentralKDE(OfFeatures, CuratorProtocol[Crowd]):
    """The same density by a trusted curator, who adds up the features themselves: nothing is rounded.

    features: public. law: ``CentralGaussianSum``, or ``ExactSum`` for no privacy at all. delta: at which the guarantee
    is stated. Whole steps of the noise leave (:class:`RoundedSum`). Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, of what leaves: Gaussian noise at the l_2 distance
    that ``features.movement`` allows, with room for floats (``moved``).
    Source: Balle, Wang (2018), Theorem 8.
    """

    features: Features
    law: CuratorSum
    delta: float

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        if not checks.instance("law", self.law, CuratorSum).takes_numbers:
            raise TypeError(f"law must add up numbers, such as CentralGaussianSum, not {type(self.law).__name__}")
        object.__setattr__(self, "delta", checks.fraction("delta", self.delta))

    @staticmethod
    def calibrated(features: Features, users: int, epsilon: float, delta: float) -> "CentralKDE":
        """With the least Gaussian noise that makes the release (epsilon, delta)-DP. Raises ValueError, TypeError."""
        sums = _rounded(checks.instance("features", features, Features))
        multiplier = gaussian_sigma(epsilon, checks.fraction("delta", delta) * ROUNDED)
        return CentralKDE(features, CentralGaussianSum(users, sums(multiplier).sigma), delta)

    @cached_property
    def sums(self) -> RoundedSum | None:
        """What the curator adds up, and its noise; None without noise."""
        law = self.law
        return (
            replace(_rounded(self.features)(1.0), sigma=law.sigma) if isinstance(law, CentralGaussianSum) else None
        )

    @cached_property
    def guarantee(self) -> Guarantee:
        if self.sums is None:
            return self.law.promise(self.delta, 1.0, self.features.instances)
        return released_guarantee(self.sums.sigma / self.sums.sensitivity, self.delta, self.sums.size)

    @property
    def layout(self) -> Layout:
        return {"total": ((self.features.instances,), torch.float64)}

    def limits(self, n: int) -> dict[str, Limits]:
        return {"total": self.law.limits(n)}

    def impossible(self, tally: Tally) -> str | None:
        return None if tally.n == self.law.users else f"the curator is told of {self.law.users}"

    def admit(self, x: Tensor) -> Tensor:
        """x, (law.users, d) in the domain. Raises TypeError, ValueError."""
        x = self.features.family.admit(x)
        if len(x) != self.law.users:
            raise ValueError(f"x must have a row for each of the {self.law.users} users, not {len(x)}")
        return x

    def release(self, summary: Crowd, draws: Draws, shape: tuple[int, ...]) -> Tally:
        if self.sums is None:
            total = (summary.n + self.features.sums(summary)[0] / self.features.bound) / 2
            return Tally(summary.n, {"total": self.law.noised(total.expand(*shape, -1), draws)})
        blocks = in_blocks(summary.values, summary.counts, self.features.at_once)
        shares = ((self.features.share(x).double().clamp_(-1, 1), counts) for x, counts in blocks)
        each = (counts @ (1 + share) / 2 for share, counts in shares)
        return Tally(summary.n, {"total": self.sums.released(self.sums.blocks(each, summary.n), draws, shape)})

    def analyse(self, tally: Tally) -> Density:
        return self._density(self.check(tally))


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


def _rounded(features: Features) -> Callable[[float], RoundedSum]:
    """By the multiplier, a curator's sums of the chances, their noise in proportion to how far these move."""
    instances, change, flips = moved(features)
    return lambda multiplier: RoundedSum.least(multiplier, min(change, flips) ** 0.5, instances**0.5, instances)


@lru_cache(maxsize=1024)
def _promise(
    law: MessageLaw, delta: float, absent: int, epsilon: float | None, instances: int, change: float, flips: int
) -> Guarantee:
    return certified(law, delta, instances, absent, change, flips, epsilon)


@lru_cache(maxsize=1024)
def _calibrated(
    kind: type[MessageLaw],
    users: int,
    epsilon: float,
    delta: float,
    absent: int,
    instances: int,
    change: float,
    flips: int,
    levels: int,
) -> MessageLaw:
    own = {} if checks.integer("levels", levels, 1) == 1 else {"levels": levels}
    if own and not issubclass(kind, OneTypeSum):
        raise TypeError(f"levels must be 1 with {kind.__name__}: it sends bits; take BoundedSum or PoissonSum")
    return kind.calibrated(users, epsilon, delta, instances, absent, change=change, flips=flips, **own)
