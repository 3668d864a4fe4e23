"""Protocols of bit sums: users' messages through a shuffler, and the guarantee over many instances.

Two ways, and the better of both counts. Flips: the worst pair of one instance, composed as often as
bits may flip.
Movement: a user that holds a vector and rounds coordinate i to a one with probability q_i moves the
probabilities by ``change`` = sum_i (q_i - q_i')^2 when the vector is replaced, which may be far
less; ``BitLaw.moved_delta`` says what that costs: ``torchdp.shuffle.inversion`` for one-type noise,
exactly for a curator's Gaussian noise.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Arithmetic, Guarantee, Model, Neighbours
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Estimate, Layout, Limits, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.interval import laplace_stretch
from torchdp.protocol.protocol import S
from torchdp.protocol.records import alike, tensor_of
from torchdp.root import least
from torchdp.shuffle.laws import BitLaw, MessageLaw, ShuffledMessages, message_law
from torchdp.shuffle.search import LARGEST, LEAST, TOLERANCE, Sensitivity
from torchdp.threads import on_host

MESSAGES_AT_ONCE = 2**22  # held in memory while users speak
COUNT_BITS = 32  # of the number of users, before the messages of a bag
FLIPS = "dominating pair of each instance, composed after Doroshenko et al. (2022), Algorithm 1"
EITHER = "sums of rounded bits: flips composed after Doroshenko et al. (2022), Algorithm 1, or their movement"


def delta_of(law: BitLaw, epsilon: float, instances: int | Sensitivity, absent: int = 0) -> float:
    """The smallest delta certified at ``epsilon`` >= 0 for a user who takes part in ``instances``
    instances.

    instances: a number, of bits that may all differ, or a :class:`Sensitivity`; absent: users whose
    noise does not count. Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP under replacement of all bits, or of the vector, of one user,
    whatever the other users hold. Exact for central Gaussian noise and for one instance of
    correlated noise and of one-type noise that spreads over up to 8,192 counts; otherwise an upper
    bound.
    Source: ``torchdp.privacy.accounting``; ``shuffle.inversion``; Balle, Wang (2018), Theorem 8,
    for Gaussian noise.
    """
    epsilon, moves = checks.non_negative("epsilon", epsilon), Sensitivity.of(instances)
    checks.instance("law", law, BitLaw).present(absent)
    return min(_deltas(law, epsilon, moves, absent))


def epsilon_of(law: BitLaw, delta: float, instances: int | Sensitivity, absent: int = 0) -> float:
    """The smallest epsilon >= 0 certified at ``delta``, arguments as in ``delta_of``; by movement,
    up to 1 % above it.

    math.inf where there is none. delta = 0: basic composition of what is private without delta.
    Raises ValueError, TypeError.

    Guarantees: as ``delta_of``.
    """
    moves = Sensitivity.of(instances)
    checks.instance("law", law, BitLaw).present(absent)
    if checks.below_one("delta", delta) == 0:
        return law.pure_epsilon(absent) * moves.flips if moves.bits else math.inf
    most = law.flipped_epsilon(delta, moves.flips, absent) if moves.bits else math.inf
    if not moves.moves:
        return most
    top = min(most, LARGEST) if most > LEAST else LEAST
    moved = partial(law.moved_delta, moves=moves, absent=absent)
    found = least(moved, delta, top / math.e, top, TOLERANCE, (True, False), floor=LEAST)
    return most if math.isnan(found) else min(most, found)


def promise(
    law: MessageLaw,
    delta: float,
    instances: int | Sensitivity,
    absent: int = 0,
    epsilon: float | None = None,
) -> Guarantee:
    """The guarantee of shuffled sums with this noise at this delta; arguments as in ``delta_of``.

    epsilon: at which it is stated; None: the smallest that is certified. Raises ValueError where it
    is not certified, or none up to 700 is.

    Guarantees: as ``delta_of``; of the messages as they are sent where they are drawn from whole
    numbers, for which delta keeps 2^-40 of itself. ``change`` is that of the chances that floats
    have: it must allow for their errors.
    """
    moves = Sensitivity.of(instances)
    exact = checks.instance("law", law, MessageLaw).variation is None
    kept = delta if exact else delta * ROUNDED  # what real numbers may spend
    law.present(absent)
    real = _certified(
        law if absent or law.own_number else replace(law, users=1), kept, moves, absent, epsilon
    )
    if law.variation is None:
        return real
    variation = law.variation * moves.instances
    if not delta and not variation:
        return replace(real, arithmetic=Arithmetic.ROUNDED)
    return real.rounded(
        variation, delta or (1 + math.exp(min(real.epsilon, 700.0))) * variation * (1 + 1e-6)
    )


@lru_cache(maxsize=1024)
def _certified(
    law: MessageLaw, delta: float, moves: Sensitivity, absent: int, epsilon: float | None
) -> Guarantee:
    """Of real numbers."""
    if epsilon is None:
        epsilon = epsilon_of(law, delta, moves, absent)
        if math.isinf(epsilon):
            raise ValueError(
                f"delta = {delta:g} is not reached at any epsilon by {type(law).__name__} in {moves.instances} "
                "instances: no epsilon is certified; add noise, or state a larger delta"
            )
    else:
        epsilon, delta = checks.positive("epsilon", epsilon), checks.fraction("delta", delta)
        if not any(each <= delta for each in _deltas(law, epsilon, moves, absent)):
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {delta:g}) is not certified for this noise; add noise, or take "
                "calibrated"
            )
    source = EITHER if moves.moves else FLIPS
    return Guarantee(epsilon, float(delta), Model.SHUFFLE, Neighbours.REPLACE_ONE, False, source)


def _deltas(law: BitLaw, epsilon: float, moves: Sensitivity, absent: int) -> Iterator[float]:
    """Unchecked, what costs less first."""
    if moves.moves and epsilon <= LARGEST:  # beyond, flips alone are counted
        yield law.moved_delta(epsilon, moves, absent)
    yield law.flipped_delta(epsilon, moves.flips, absent) if moves.bits else 1.0


class Shuffled(MessageProtocol[S, ShuffledMessages]):
    """Users who send bits by one mechanism in each of ``instances`` sums, whatever their bits are
    made from.

    A tally keeps each instance's total and how many users were heard. ``absent``: so many of
    ``law.users`` may send nothing, or collude, and the guarantee still holds; an analyst takes
    tallies of no fewer of them.
    """

    law: MessageLaw
    instances: int
    delta: float
    epsilon: float | None
    absent: int

    @property
    @abstractmethod
    def sensitivity(self) -> Sensitivity:
        """How far one user can move the sums."""

    @cached_property
    def guarantee(self) -> Guarantee:
        """At delta. Raises ValueError where it is not certified, no epsilon holds, or every
        epsilon > 0 does.
        """
        return promise(self.law, self.delta, self.sensitivity, self.absent, self.epsilon)

    @abstractmethod
    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        """What users hold in each instance, unchecked: (n, instances) bool."""

    def few(self, x: Tensor) -> Tensor:
        """x, if it is of 1 to ``law.users`` users. Raises ValueError."""
        if not 1 <= len(x) <= self.law.users:
            raise ValueError(
                f"x must have a row for each user who sends, 1 to {self.law.users}, not {len(x)}"
            )
        return x

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> ShuffledMessages:
        return self.law.randomize_unchecked(self.bits(x, draws), draws)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        at_once = max(1, int(MESSAGES_AT_ONCE / self.messages_per_user))
        return self.add(
            *(self.tally(self.randomize_unchecked(part, draws)) for part in x.split(at_once))
        )

    @property
    def layout(self) -> Layout:
        return {"total": ((self.instances,), torch.int64)}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"total": self.law.limits(alike(n))}

    @property
    def messages_per_user(self) -> float:
        """In all instances, in the mean, for the worse bits."""
        return self.instances * self.law.messages_per_user

    @property
    def bits_per_user(self) -> float:
        return self.messages_per_user * self.bits_per_message

    @property
    def bits_per_message(self) -> int:
        """Its content, and which of the instances it belongs to."""
        return max(1, (self.instances * len(self.law.contents) - 1).bit_length())

    def tally(self, messages: ShuffledMessages) -> Tally:
        """Totals of shuffled messages. Raises TypeError, ValueError for what no users send."""
        checks.instance("messages", messages, ShuffledMessages)
        instance = checks.indices("the instance of a message", messages.instance, self.instances)
        known = torch.zeros_like(messages.content, dtype=torch.bool)
        for content in self.law.contents:
            known |= messages.content == content
        if not known.all():
            raise ValueError(
                f"the content of a message must be one of {self.law.contents}; there are others"
            )
        self.law.refuse(torch.bincount(instance, minlength=self.instances), messages.n)
        total = torch.bincount(
            instance, weights=messages.content.double(), minlength=self.instances
        )
        return Tally(messages.n, {"total": total.to(torch.int64)})  # the doubles are whole numbers

    def whole(self, tally: Tally) -> Tally:
        """``tally``, if it is of as many users as the noise counts on. Raises TypeError,
        ValueError.
        """
        least, most = self.law.users - self.absent, self.law.users
        if not least <= alike(self.check(tally).n) <= most:
            users = f"{most}" if least == most else f"{least} to {most}"
            raise ValueError(
                f"tally must be of {users} users, as the noise counts on, not {tally.n}"
            )
        return tally

    def encode(self, messages: ShuffledMessages) -> bytes:
        """The number of users, 4 bytes, then each message."""
        checks.instance("messages", messages, ShuffledMessages)
        kinds = torch.tensor(self.law.contents, dtype=torch.int64, device=messages.content.device)
        word = messages.instance.long() * len(kinds) + torch.searchsorted(
            kinds, messages.content.long()
        )
        return wire.pack(torch.tensor([messages.n], dtype=torch.int64), COUNT_BITS) + wire.pack(
            word, self.bits_per_message
        )

    @on_host
    def decode(self, data: bytes) -> ShuffledMessages:
        head = COUNT_BITS // 8
        if len(checks.instance("data", data, bytes)) < head:
            raise ValueError(
                f"data must begin with the number of users, {head} bytes; there are {len(data)}"
            )
        n, word = (
            int(wire.unpack(data[:head], COUNT_BITS)),
            wire.unpack(data[head:], self.bits_per_message),
        )
        kinds = torch.tensor(self.law.contents, dtype=torch.int8)
        instance = checks.indices("data", word // len(kinds), self.instances)
        return ShuffledMessages(n, instance.to(torch.int32), kinds[word % len(kinds)])


@dataclass(frozen=True)
class BitSums(Shuffled[Tensor]):
    """How many of ``law.users`` users hold a one in each of ``instances`` instances, through a
    shuffler.

    x: (n, instances) bool; a summary: ones (instances,). law: such as ``PoissonSum``. delta,
    epsilon: at which the guarantee is stated; without epsilon the smallest that is certified.
    absent: so many users may send nothing, or collude; a tally of fewer users than the rest is
    refused. Raises TypeError, ValueError.

    Guarantees: (epsilon, delta)-DP for replacing all bits of one user, as ``delta_of`` certifies
    it.
    Source: that of the law; the composition: ``accounting``.
    """

    law: MessageLaw
    instances: int
    delta: float
    epsilon: float | None = None
    absent: int = 0

    def __post_init__(self) -> None:
        checks.instance("law", self.law, MessageLaw).countable()
        object.__setattr__(
            self, "instances", checks.integer("instances", self.instances, 1, 2**31 - 1)
        )
        checks.keep(self, delta=checks.below_one)
        self.law.present(self.absent)

    @staticmethod
    def calibrated(
        kind: type[MessageLaw],
        users: int,
        epsilon: float,
        delta: float,
        instances: int,
        absent: int = 0,
    ) -> "BitSums":
        """With the least noise of this kind at (epsilon, delta); arguments as in
        ``BitLaw.calibrated``.
        """
        real = checks.below_one("delta", delta) * ROUNDED
        law = message_law(kind).calibrated(users, epsilon, real, instances, absent)
        return BitSums(law, instances, delta, epsilon if delta else None, absent)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(self.instances)

    @property
    def held(self) -> tuple[int]:
        return (self.instances,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, instances) bool, 1 to ``law.users`` rows. Raises TypeError, ValueError."""
        bits = checks.typed("x", x, torch.bool, note=", (x == 1) of zeros and ones")
        return self.few(checks.shaped("x", bits, "n", *self.held))

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        return x

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """All ``law.users`` send. O(instances), whatever their number."""
        total = self.law.noised(summary.expand(*shape, *summary.shape), draws)
        batch, users = summary.shape[:-1], self.law.users
        return Tally(summary.new_full(batch, users) if batch else users, {"total": total})

    def analyse(self, tally: Tally) -> Estimate:
        tally = self.whole(tally)
        n = alike(tally.n)
        value = self.law.decode(tally["total"], n)
        error = self.law.spread(value.clamp(0, n), n).sqrt()
        stretch = laplace_stretch if self.law.laplace else None
        return Estimate(value, error, tally.n, limits=(0.0, float(n)), stretch=stretch)

    def summary(self, x: Tensor) -> Tensor:
        return x.sum(0)

    def exact(self, summary: Tensor) -> Tensor:
        return self._users(summary)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self.law.variance(self._users(summary))

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        checks.instance("objective", objective, Objective)
        shape, n = tensor_of(checks.people("n", n, 1)).shape, alike(n)
        return self.law.spread(torch.tensor([0, n], dtype=torch.int64), n).max().expand(shape)

    def _users(self, summary: Tensor) -> Tensor:
        """Numbers of ones, which need not be whole, float64. Raises TypeError, ValueError."""
        ones = checks.floating("summary", summary).double()
        if (
            ones.shape[-1:] != (self.instances,)
            or not 0 <= float(ones.min()) <= float(ones.max()) <= self.law.users
        ):
            raise ValueError(
                f"summary must be ({self.instances},) numbers of users with a one, 0 to {self.law.users}, "
                f"not of shape {tuple(ones.shape)}"
            )
        return ones

    def validate_summary(self, summary: Tensor) -> Tensor:
        """``summary``, whole numbers of ones, (*batch, instances) int64. Raises TypeError,
        ValueError.
        """
        ones = checks.counts("summary", summary, self.instances)
        if bool((ones > self.law.users).any()):
            raise ValueError(
                f"summary must lie in [0, {self.law.users}], the number of users; it does not"
            )
        return ones
