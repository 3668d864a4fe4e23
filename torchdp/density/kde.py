"""Kernel density estimation in the shuffle model: one bit sum for each random feature."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from torch import Tensor

from torchdp import checks
from torchdp.density.density import Density
from torchdp.density.family import Features
from torchdp.density.means import OfFeatures, class_steps, crowd_steps, moved, steps
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Choice, Crowd, Tally
from torchdp.protocol.choice import Candidate
from torchdp.shuffle import BoundedSum, PoissonSum, RandomizedResponseSum
from torchdp.shuffle.accounting import certified, kept, sent
from torchdp.shuffle.laws import MessageLaw
from torchdp.shuffle.one_type import OneTypeSum
from torchdp.shuffle.search import Target
from torchdp.shuffle.sums import Shuffled

TRIED: tuple[tuple[type[MessageLaw], int], ...] = (
    (RandomizedResponseSum, 1),
    (BoundedSum, 1),
    *((kind, levels) for levels in (2, 4, 8) for kind in (PoissonSum, BoundedSum)),
)
NEAR = 0.01  # of the least error: of candidates no further above it the one of fewest messages is best
_certified = lru_cache(maxsize=1024)(certified)


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
        checks.keep(self, delta=checks.fraction)
        if self.epsilon is not None:
            checks.keep(self, epsilon=checks.positive)
        object.__setattr__(self, "instances", self.features.instances)
        checks.validated(self, "guarantee")  # a delta that the law can not keep

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
        instances, change, flips = moved(features)
        counted = _counted(kind, users, absent)
        target = Target.of(counted, epsilon, delta * ROUNDED, instances, absent, change, flips)
        law = _least(kind, target, checks.integer("levels", levels, 1))
        return ShuffledKDE(features, replace(law, users=users), delta, epsilon, absent)

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
        law = replace(self.law, users=_counted(type(self.law), self.law.users, self.absent))
        instances, change, flips = moved(self.features)
        real = _certified(law, kept(law, self.delta), instances, self.absent, change, flips, self.epsilon)
        return sent(self.law, real, self.instances, self.delta)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) in the domain, 1 to ``law.users`` rows. Raises TypeError, ValueError."""
        return self.few(self.features.family.validate(x))

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        if self.law.levels > 1:
            return steps(self.features, x, self.law.levels, draws)
        return self.features.bits(x, draws)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.add(*(Shuffled.collect_unchecked(self, part, draws) for part in self.features.parts(x)))

    def sample_unchecked(self, summary: Crowd, draws: Simulated, shape: tuple[int, ...]) -> Tally:
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


def _counted(kind: type[MessageLaw], users: int, absent: int) -> int:
    """Users whom a guarantee is computed for: 1 where the distribution of the noise does not depend on their number."""
    return users if absent or kind.own_number else 1


@lru_cache(maxsize=1024)
def _least(kind: type[MessageLaw], target: Target, levels: int) -> MessageLaw:
    if levels == 1:
        return kind.least(target)
    if not issubclass(kind, OneTypeSum):
        raise TypeError(f"levels must be 1 with {kind.__name__}: it sends bits; take BoundedSum or PoissonSum")
    return kind.least(target, levels=levels)
