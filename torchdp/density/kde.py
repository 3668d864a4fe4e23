"""Kernel density estimation in the shuffle model, by a curator, and from secret shares.

In the shuffle model there is one bit sum for each random feature; the others sum the features
without rounding.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.density import (
    Density,
    MeanSquaredError,
    OfFeatures,
    counted,
    crowd_counted,
    density_mse,
    moved,
    worth,
)
from torchdp.density.family import Features
from torchdp.draws import Draws, Shape, Simulated
from torchdp.privacy import Guarantee, Model, Neighbours, gaussian_sigma
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Crowd, CuratorProtocol, Layout, Limits, Tally, Users
from torchdp.protocol.records import alike, broadcast_users, weighted_sum
from torchdp.protocol.rounded_sum import RoundedSum, in_blocks, released_guarantee
from torchdp.secure.shared_sum import SharedSum, Shown
from torchdp.shuffle import CentralGaussianSum
from torchdp.shuffle.laws import MessageLaw, message_law
from torchdp.shuffle.search import Sensitivity, Target
from torchdp.shuffle.sums import Shuffled

MOST_STEPS = 64.0

# Noise is raised so much where that of another number of users is just not certified.
MORE = 1.002


@dataclass(frozen=True, eq=False)
class ShuffledKDE(OfFeatures, Shuffled[Crowd]):
    """n users round their features to bits, whose shuffled sums are released.

    A bit is b_ij ~ Bernoulli((1 + f_i(x)_j / R)/2). With steps s_ij, any numbers > 0, they send
    floor u messages or one more, u = s_ij (1 + f_i(x)_j / R)/2: rounding adds at most 1/s^2 of a
    bit's variance, and noise is in steps of 1/s; small steps take few messages.

    ``collect`` goes through what every user does; ``sample_tally`` draws the sums at once, exactly
    in distribution, from a crowd: O(distinct values). ``analyse`` gives a ``Density``.

    Args:
        features: public.
        law: for n = law.users users, as ``calibrated`` makes it.
        delta: at which the guarantee is stated, in (0, 1).
        epsilon: likewise; None: the smallest that is certified, rounded up by up to 1 %.
        absent: so many users may send nothing, or collude, and the guarantee still holds; a tally
            of fewer users than the rest is refused.
        steps: (instances,), or one number for all, in (0, 64]; None: bits.

    Raises TypeError, and ValueError where no guarantee is certified.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, n public: ``features.composed``
    instances of the law composed. Given everybody's bits the instances are independent, and
    hockey-stick divergences are jointly convex: the worst pair of the user's bit vectors bounds the
    mixture that rounding makes. With one-type noise the better of this, for bits, and of how far
    numbers move (``shuffle.delta_of``): the former holds whatever the chances of bits are, the
    latter for those that are drawn, with floats' errors (``moved``). Of the messages as they are
    sent, where whole numbers decide the law's.
    Source: Wagner (2025), Algorithm 1 and Theorem 3.1, here with exact composition.
    """

    features: Features
    law: MessageLaw
    delta: float
    epsilon: float | None = None
    absent: int = 0
    steps: Tensor | None = None
    instances: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("law", self.law, MessageLaw).countable()
        steps = _checked(self.features, self.steps, type(self.law))
        object.__setattr__(self, "steps", steps)
        self.law.present(self.absent)
        checks.keep(self, delta=checks.fraction)
        if self.epsilon is not None:
            checks.keep(self, epsilon=checks.positive)
        object.__setattr__(self, "instances", self.features.instances)
        # The guarantee refuses a delta that the law can not keep.
        checks.validated(self, "guarantee")

    @staticmethod
    def calibrated(
        features: Features,
        kind: type[MessageLaw],
        users: int,
        epsilon: float,
        delta: float,
        absent: int = 0,
        *,
        steps: Tensor | float | None = None,
    ) -> "ShuffledKDE":
        """With the least noise of this kind that is certified as (epsilon, delta)-DP.

        Args:
            features: public.
            kind: such as ``shuffle.PoissonSum``; ``shuffle.BoundedSum`` has less noise, and sends
                more messages.
            users: n.
            epsilon: > 0.
            delta: in (0, 1).
            absent: as in the class.
            steps: None rounds to bits; 4 leaves at most a sixteenth of their rounding variance, for
                more messages.

        Raises as ``BitLaw.calibrated``.
        """
        features = checks.instance("features", features, Features)
        steps = _checked(features, steps, message_law(kind))
        users = checks.integer("users", users, 1)
        absent = checks.integer("absent", absent, 0)
        epsilon = checks.positive("epsilon", epsilon)
        delta = checks.fraction("delta", delta)
        # Noise of the other kinds does not depend on the number of users: one search serves all.
        counted = users if absent or kind.own_number else 1
        target = Target(moved(features, steps), counted, epsilon, delta * ROUNDED, absent)
        law = replace(_least(kind, target), users=users)
        return ShuffledKDE(features, law, delta, epsilon, absent, steps)

    def resized(self, users: int) -> "ShuffledKDE":
        """The same for another number of users: noise of the same variance, certified.

        It is that of those who are not absent. Calibrated anew where it is not certified. Raises as
        ``calibrated``.
        """
        if self.epsilon is None:
            raise ValueError(
                "epsilon must be stated by what is made for another number of users; take "
                "calibrated"
            )
        present = self.law.present(self.absent)
        factor = present / self.law.users * users / max(1, users - self.absent)
        for more in (1.0, MORE):
            law = self.law.resized(users, factor * more)
            if law is None:
                break
            try:
                return replace(self, law=law)
            except ValueError:  # not certified
                continue
        kind = type(self.law)
        args = (self.features, kind, users, self.epsilon, self.delta, self.absent)
        return ShuffledKDE.calibrated(*args, steps=self.steps)

    @property
    def sensitivity(self) -> Sensitivity:
        return moved(self.features, self.steps)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) in the domain, 1 to ``law.users`` rows. Raises TypeError, ValueError."""
        return self.few(self.features.family.validate(x))

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        if self.steps is None:
            return self.features.bits(x, draws)
        return counted(self.features, x, self.steps, draws)

    def limits(self, n: Users) -> dict[str, Limits]:
        largest = math.ceil(float(worth(self.steps).max()))
        return {"total": self.law.limits(alike(n), largest)}

    @property
    def messages_per_user(self) -> float:
        if self.steps is None:
            return super().messages_per_user
        # The law counts the bit itself too, in whose place stand the steps.
        noise = self.law.messages_per_user - 1
        return self.features.most(self.steps) + self.instances * noise

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        parts = self.features.parts(x)
        collect = super().collect_unchecked
        return self.add(*(collect(part, draws) for part in parts))

    def sample_unchecked(self, summary: Crowd, draws: Simulated, shape: Shape) -> Tally:
        """All ``law.users`` send."""
        ones = crowd_counted(self.features, summary, self.steps, draws, shape)
        return Tally(summary.n, {"total": self.law.noised(ones, draws)})

    def analyse(self, tally: Tally) -> Density:
        return self._density(self.whole(tally))


@lru_cache(maxsize=1024)
def _least(kind: type[MessageLaw], target: Target) -> MessageLaw:
    """``BitLaw.least``, kept for releases that differ in the number of users alone."""
    return kind.least(target)


def _checked(
    features: Features, steps: Tensor | float | None, kind: type[MessageLaw]
) -> Tensor | None:
    """Steps, (instances,) float64; None for bits. Raises TypeError, ValueError."""
    if steps is None:
        return None
    if not isinstance(steps, Tensor):
        # Numbers of ones that are worth 1 each are bits.
        if steps == 1:
            return None
        steps = torch.tensor([float(steps)], dtype=torch.float64)
    if not kind.takes_counts:
        raise TypeError(
            f"steps must be None with {kind.__name__}: it sends bits; take BoundedSum or PoissonSum"
        )
    steps = checks.floating("steps", steps).double()
    if steps.shape != (features.instances,) and steps.numel() != 1:
        raise ValueError(
            f"steps must be one number or {features.instances}, not of shape {tuple(steps.shape)}"
        )
    least = float(steps.min())
    most = float(steps.max())
    if not (0 < least and most <= MOST_STEPS):
        raise ValueError(f"steps must lie in (0, {MOST_STEPS:g}], not {least:g} to {most:g}")
    return steps.cpu().expand(features.instances).clone()


@dataclass(frozen=True, eq=False)
class CentralKDE(OfFeatures, CuratorProtocol[Crowd]):
    """The same density by a trusted curator, who sums the features without rounding.

    Args:
        features: public.
        law: of the noise; with sigma = 0 no privacy at all.
        delta: at which the guarantee is stated, in (0, 1).

    Whole steps of the noise leave (:class:`RoundedSum`). Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one user's vector, of what leaves: Gaussian noise
    at the l_2 distance that ``features.movement`` allows, with room for floats (``moved``).
    Source: Balle, Wang (2018), Theorem 8.
    """

    features: Features
    law: CentralGaussianSum
    delta: float

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        checks.instance("law", self.law, CentralGaussianSum)
        checks.keep(self, delta=checks.fraction)

    @staticmethod
    def calibrated(features: Features, users: int, epsilon: float, delta: float) -> "CentralKDE":
        """With the least Gaussian noise that is (epsilon, delta)-DP. Raises ValueError, TypeError."""
        checks.instance("features", features, Features)
        delta = checks.fraction("delta", delta)
        epsilon = checks.positive("epsilon", epsilon)
        sums = _rounded(features, gaussian_sigma(epsilon, delta * ROUNDED))
        return CentralKDE(features, CentralGaussianSum(users, sums.sigma), delta)

    @cached_property
    def sums(self) -> RoundedSum | None:
        """What the curator adds up, and its noise; None without noise."""
        sigma = self.law.sigma
        if sigma == 0:
            return None
        # Only sigma depends on the multiplier.
        return replace(_rounded(self.features, 1.0), sigma=sigma)

    @cached_property
    def guarantee(self) -> Guarantee:
        sums = self.sums
        if sums is None:
            source = "no noise, no promise"
            one = Neighbours.REPLACE_ONE
            return Guarantee(math.inf, self.delta, Model.CENTRAL, one, True, source)
        return released_guarantee(sums.sigma / sums.sensitivity, self.delta, sums.size)

    @property
    def layout(self) -> Layout:
        return {"total": ((self.features.instances,), torch.float64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"total": self.law.limits(alike(n))}

    def impossible(self, tally: Tally) -> str | None:
        if alike(tally.n) == self.law.users:
            return None
        return f"the curator is told of {self.law.users}"

    def validate(self, x: Tensor) -> Tensor:
        """x, (law.users, d) in the domain. Raises TypeError, ValueError."""
        x = self.features.family.validate(x)
        if len(x) != self.law.users:
            raise ValueError(
                f"x must have a row for each of the {self.law.users} users, not {len(x)}"
            )
        return x

    def release(self, summary: Crowd, draws: Draws, shape: Shape) -> Tally:
        if self.sums is None:
            sums, _ = self.features.sums(summary)
            total = (broadcast_users(summary.n, 1) + sums / self.features.bound) / 2
            noisy = self.law.noised(total.expand(*shape, *total.shape), draws)
            return Tally(summary.n, {"total": noisy})

        # The curator sums chances of ones: numbers in [0, 1], whose movement ``moved`` bounds.
        def chances(x: Tensor) -> Tensor:
            share = self.features.share(x.flatten(0, -2)).view(*x.shape[:-1], -1)
            return (1 + share.double().clamp_(-1, 1)) / 2

        blocks = in_blocks(summary.rows, summary.counts, self.features.at_once)
        parts = (weighted_sum(counts, chances(x)) for x, counts in blocks)
        whole = self.sums.blocks(parts, summary.n)
        return Tally(summary.n, {"total": self.sums.released(whole, draws, shape)})

    def analyse(self, tally: Tally) -> Density:
        return self._density(self.check(tally))


def _rounded(features: Features, multiplier: float) -> RoundedSum:
    """A curator's sums of the chances, their noise ``multiplier`` times how far these move."""
    moves = moved(features)
    # Chances lie in [0, 1]: the squared changes of ``flips`` of them add up to no more.
    distance = min(moves.change, moves.flips) ** 0.5
    return RoundedSum.least(multiplier, distance, moves.instances**0.5, moves.instances)


@dataclass(frozen=True, eq=False)
class SecureKDE(SharedSum[Crowd]):
    """The means of the features f_i(x)_j/R over n clients, each in integers with its share of the
    noise.

    ``estimate`` gives a ``Density``.

    Args:
        features: public.
        clients: n.
        epsilon: > 0.
        delta: in (0, 1), or 0 for discrete Laplace noise.
        corrupt: clients who collude.
        absent: others who may drop out; together fewer than n.

    Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing one client's vector, n public: that of
    :class:`SecureSketch` or
        :class:`PureSecureSketch` on a plain sum, at the distance that ``features.movement`` allows,
        with room for the floats that features are computed in (``moved``).
    Source: Wagner (2025), Algorithm 1, whose shuffled bits an exact sum replaces; Balle, Wang
    (2018), Theorem 8.
    """

    features: Features
    clients: int
    epsilon: float
    delta: float = 0.0
    corrupt: int | None = field(default=None, kw_only=True)
    absent: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.instance("features", self.features, Features)
        # The client refuses numbers of clients and an epsilon that have no noise.
        checks.validated(self, "client")

    @property
    def shown(self) -> Shown:
        moves = moved(self.features)
        norm = moves.instances**0.5
        # Of f/R, while ``moved`` is about (1 + f/R)/2.
        distance = 2 * min(moves.change, moves.flips) ** 0.5
        return Shown(moves.instances, norm, 1.0, distance, norm * distance)

    @property
    def scales(self) -> Tensor:
        return torch.full((self.words,), self.features.bound, dtype=torch.float64)

    @property
    def held(self) -> tuple[int]:
        return (self.features.family.dimension,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, d) in the domain, of at most ``clients`` clients. Raises TypeError, ValueError."""
        return self.few(self.features.family.validate(x))

    def client_input(self, x: Tensor) -> Tensor:
        # Noise is for numbers in [-1, 1]: rounding must not lead out of them.
        return self.features.share(x).double().clamp_(-1, 1)

    def total(self, summary: Crowd) -> tuple[Tensor, Users]:
        crowd = self.features.crowd(summary)
        return self.features.sums(crowd)[0] / self.features.bound, crowd.n

    def exact(self, summary: Crowd) -> Tensor:
        return self.features.means(self.features.crowd(summary))

    def density_mse(self, summary: Crowd, y: Tensor) -> MeanSquaredError:
        """Of the density at queries (q, d), these features given; it reads the users' vectors."""
        noise = self.predicted_mse(summary)
        crowd = self.features.crowd(summary)
        # Clients add numbers: no feature is rounded to a bit.
        return density_mse(self.features, crowd, y, torch.zeros_like(noise), noise)

    def value(self, total: Tensor, n: Users) -> Tensor:
        return super().value(total, n) / broadcast_users(n, 1)

    def variances(self, n: Users) -> Tensor:
        return super().variances(n) / broadcast_users(n, 1) ** 2

    def estimated(self, value: Tensor, error: Tensor, n: Users) -> Density:
        bound = self.features.bound
        return Density(
            value,
            error,
            n,
            limits=(-bound, bound),
            stretch=self.client.stretch,
            features=self.features,
            guarantee=self.guarantee,
        )
