"""The common part of mechanisms for bit sums: n users hold a bit, a noisy number is released.

Also the messages that a shuffler mixes, and what all is measured against: a trusted curator, and no
privacy at all.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.draws import Draws
from torchdp.privacy import gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from torchdp.privacy.accounting import Profile, composed_delta, composed_epsilon
from torchdp.privacy.composition import gaussian_profile
from torchdp.protocol.records import Limits, noise_limit
from torchdp.shuffle.search import Sensitivity, Target

# Whole numbers up to here are exact in float64.
COUNTABLE = 2.0**53


@dataclass(frozen=True, eq=False)
class ShuffledMessages(Brief):
    """Anonymous messages of n users.

    Args:
        n: users who sent them. The shuffler counts users, since how many messages one sends may be
            random. A bag of one user tells the shuffler how many messages this user sent; the
            shuffler is trusted with that.
        instance: that each message belongs to, (m,) int32.
        content: of each, (m,) int8.

    Raises TypeError, ValueError.
    """

    n: int
    instance: Tensor
    content: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checks.integer("n", self.n, 0))
        checks.typed("instance", self.instance, torch.int32)
        checks.typed("content", self.content, torch.int8)
        if self.instance.ndim != 1 or self.instance.shape != self.content.shape:
            raise ValueError(
                "instance and content must have one shape (m,), one row for each message, not "
                f"{tuple(self.instance.shape)} and {tuple(self.content.shape)}"
            )
        if self.instance.device != self.content.device:
            raise ValueError(
                "instance and content must be on one device, not "
                f"{self.instance.device} and {self.content.device}"
            )

    def __len__(self) -> int:
        return len(self.instance)

    def __add__(self, other: "ShuffledMessages") -> "ShuffledMessages":
        """All messages of both: what the shuffler receives from two groups of users."""
        checks.instance("other", other, ShuffledMessages)
        instance = torch.cat([self.instance, other.instance])
        content = torch.cat([self.content, other.content])
        return ShuffledMessages(self.n + other.n, instance, content)

    def mixed(self) -> "ShuffledMessages":
        """The shuffler: the same messages in the order of their instances and contents.

        The result is a function of the multiset of messages alone, whatever order they came in. A
        uniformly random permutation tells the analyst no more and no less: either can be made from
        the other without the data. Here nothing hangs on the quality of a generator.
        O(m + spread of the instances), by counting.

        Guarantees: messages that arrive in another order leave it unchanged.
        """
        if not len(self):
            return self
        # Messages are counted by kind, and written out in the order of kinds.
        first = self.instance.min()
        least = self.content.min()
        width = int(self.content.max()) - int(least) + 1
        kind = (self.instance.long() - first) * width + self.content - least
        counts = torch.bincount(kind)
        kinds = torch.arange(len(counts), device=counts.device)
        instance = (kinds // width + first).int().repeat_interleave(counts)
        content = (kinds % width + least).to(torch.int8).repeat_interleave(counts)
        return ShuffledMessages(self.n, instance, content)


@dataclass(frozen=True)
class BitLaw(ABC):
    """A mechanism that releases the number S of ones among n users in one instance.

    users: n >= 1, public. Neighbours replace one user's bits. ``BitSums`` makes a protocol of one;
    ``delta_of`` and ``epsilon_of`` say what it guarantees over many instances. Raises ValueError.
    """

    # Whether what it guarantees depends on how many users there are.
    own_number: ClassVar[bool] = False
    # Whether it sums numbers in [0, 1] as well as bits; whole numbers.
    takes_numbers: ClassVar[bool] = False
    takes_counts: ClassVar[bool] = False
    # Whether the error is one discrete Laplace variable.
    laplace: ClassVar[bool] = False

    users: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", checks.integer("users", self.users, 1))

    @abstractmethod
    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """Totals where ``ones`` of all users hold a one, unchecked: one for each entry."""

    @abstractmethod
    def decode(self, total: Tensor, n: int) -> Tensor:
        """The unbiased estimate of the ones among n users from their total, float64, unchecked."""

    @abstractmethod
    def variance(self, ones: Tensor) -> Tensor:
        """Exact variance of the estimate at (*batch,) ones, float64, unchecked; affine in them."""

    @abstractmethod
    def limits(self, n: int, most: float = 1.0) -> Limits:
        """What the total of n users with up to ``most`` each can be, but for 1e-300."""

    def cumulants(self, ones: Tensor) -> tuple[Tensor, Tensor]:
        """The estimate's third and fourth cumulant at (*batch,) ones, float64; here 0, as normal."""
        none = torch.zeros_like(ones, dtype=torch.float64)
        return none, none

    def spread(self, ones: Tensor, n: int) -> Tensor:
        """Variance where n of the users send, ``ones`` of whom hold a one; unchecked."""
        return self.variance(ones)

    @abstractmethod
    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        """Hockey-stick curves H_{e^epsilon}(P || Q) of pairs that together dominate one instance.

        ``absent`` users send nothing, or tell the adversary all they send: their noise does not
        count.
        """

    def pure_epsilon(self, absent: int = 0) -> float:
        """The epsilon of one instance at delta = 0; math.inf where there is none."""
        return math.inf

    def flipped_delta(self, epsilon: float, instances: int, absent: int = 0) -> float:
        """A delta where a user's bits may flip in so many instances, unchecked."""
        # Pure privacy of each instance adds up.
        if self.pure_epsilon(absent) * instances <= epsilon:
            return 0.0
        return composed_delta(self.profiles(absent), instances, epsilon)

    def flipped_epsilon(self, delta: float, instances: int, absent: int = 0) -> float:
        """The epsilon that belongs to delta > 0, unchecked."""
        composed = composed_epsilon(self.profiles(absent), instances, delta)
        return min(self.pure_epsilon(absent) * instances, composed)

    def moved_delta(self, epsilon: float, moves: Sensitivity, absent: int = 0) -> float:
        """A delta where a user's numbers move by ``moves.change``; 1 where only flips count."""
        return 1.0

    @classmethod
    def calibrated(
        cls,
        users: int,
        epsilon: float,
        delta: float,
        instances: int | Sensitivity,
        absent: int = 0,
    ) -> Self:
        """That of this kind with the least noise that is (epsilon, delta)-DP over all instances.

        Args:
            users: n, public.
            epsilon: > 0, for all instances together.
            delta: >= 0, likewise; 0 is for ``RandomizedResponseSum``.
            instances: in which each user takes part with a bit, or a :class:`Sensitivity`.
            absent: users whose noise does not count.

        Noise is found to 1e-4. Raises ValueError, TypeError.

        Guarantees: ``delta_of`` of the result at epsilon is at most delta; where noise is searched
        for it is computed last.
        """
        moves = Sensitivity.of(instances)
        if moves.largest > 1 and not (cls.takes_counts or cls.takes_numbers):
            raise TypeError(
                f"{cls.__name__} takes bits, which move by 1 at most; take BoundedSum or PoissonSum"
            )
        return cls.least(Target(moves, users, epsilon, delta, absent))

    @classmethod
    @abstractmethod
    def least(cls, target: Target) -> Self:
        """``calibrated`` for checked arguments."""

    @final
    @property
    def rmse(self) -> float:
        """Root of the largest variance over all inputs."""
        # The variance is affine in the ones.
        ends = torch.tensor([0, self.users], dtype=torch.int64)
        return math.sqrt(float(self.variance(ends).max()))

    @final
    def present(self, absent: int) -> int:
        """Users whose noise counts, at least one. Raises ValueError."""
        return self.users - checks.integer("absent", absent, 0, self.users - 1)


@dataclass(frozen=True)
class MessageLaw(BitLaw):
    """Noise that n users make together by messages, which a shuffler mixes; totals are sums."""

    @property
    @abstractmethod
    def contents(self) -> tuple[int, ...]:
        """What a message may hold, in order."""

    @property
    @abstractmethod
    def messages_per_user(self) -> float:
        """Expected number of messages of a user in one instance, for the worse bit."""

    @property
    def variation(self) -> float | None:
        """Bound on the total variation distance of all messages of one instance from their target.

        Where whole numbers decide what is sent; None where floats do.
        """
        return None

    @abstractmethod
    def randomize_unchecked(self, bits: Tensor, draws: Draws) -> ShuffledMessages:
        """The messages of some of the users, unchecked: (m, instances) bool."""

    def resized(self, users: int, factor: float) -> Self | None:
        """The same kind with ``factor`` times the noise, made by so many users; None: not known."""
        return None

    def spread(self, ones: Tensor, n: int) -> Tensor:
        """Noise in proportion to the users who send."""
        return self.variance(ones * (self.users / n)) * (n / self.users)

    def refuse(self, messages: Tensor, n: int) -> None:
        """Raises ValueError where n users can not have sent so many, (instances,) int64."""

    def countable(self) -> None:
        """Raises ValueError where the messages of an instance are more than float64 counts."""
        messages = self.users * self.messages_per_user
        if messages > COUNTABLE:
            raise ValueError(
                f"one instance has about {messages:.2g} messages, more than float64 counts "
                "exactly; take fewer users or less noise"
            )


def message_law(kind: type[MessageLaw]) -> type[MessageLaw]:
    """``kind``, if it is a class of laws that users make together. Raises TypeError."""
    if not (isinstance(kind, type) and issubclass(kind, MessageLaw)):
        raise TypeError(f"kind must be a subclass of MessageLaw, such as PoissonSum, not {kind!r}")
    return kind


@dataclass(frozen=True)
class CentralGaussianSum(BitLaw):
    """S + N(0, sigma^2), published by a curator to whom users hand bits or numbers in [0, 1].

    Absent users change nothing. sigma = 0: S itself, the error of everything else without noise,
    and no privacy. Raises ValueError.

    Guarantees: its exact dominating pair N(1, sigma^2), N(0, sigma^2), which is its own swap.
    Source: Dwork, Kenthapadi, McSherry, Mironov, Naor (2006); Balle, Wang (2018), Theorem 8.
    """

    takes_numbers: ClassVar[bool] = True

    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.keep(self, sigma=checks.non_negative)

    def noised(self, ones: Tensor, draws: Draws) -> Tensor:
        """S + N(0, sigma^2)."""
        return ones + self.sigma * draws.normal(tuple(ones.shape))

    def decode(self, total: Tensor, n: int) -> Tensor:
        """The total."""
        return total.double()

    def limits(self, n: int, most: float = 1.0) -> Limits:
        noise = noise_limit(self.sigma)
        return Limits(-noise, n + noise)

    def variance(self, ones: Tensor) -> Tensor:
        """sigma^2."""
        return torch.full_like(ones, self.sigma**2, dtype=torch.float64)

    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        self.present(absent)
        return (gaussian_profile(self._noisy),)

    def flipped_delta(self, epsilon: float, instances: int, absent: int = 0) -> float:
        return self.moved_delta(epsilon, Sensitivity(instances), absent)

    def flipped_epsilon(self, delta: float, instances: int, absent: int = 0) -> float:
        return gaussian_epsilon(math.sqrt(instances) / self._noisy, delta)

    def moved_delta(self, epsilon: float, moves: Sensitivity, absent: int = 0) -> float:
        """Exact: sums of numbers move by sqrt(change) in l_2 norm."""
        return math.exp(gaussian_log_delta(self._noisy, epsilon, math.sqrt(moves.change)))

    @property
    def _noisy(self) -> float:
        """sigma. Raises ValueError for 0."""
        if not self.sigma:
            raise ValueError(
                "a sum with sigma = 0 is not private; take it as a reference for the error only"
            )
        return self.sigma

    @classmethod
    def least(cls, target: Target) -> Self:
        target = target.positive_delta(cls)
        # Numbers move by the root of ``change``, bits by that of the flips.
        moves = target.sensitivity
        distance = math.sqrt(min(moves.change, moves.flips * moves.largest**2))
        return cls(target.users, gaussian_sigma(target.epsilon, target.delta, distance))
