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
from torchdp.draws import Draws, Shape, Simulated
from torchdp.privacy import Arithmetic, Guarantee, Model, Neighbours
from torchdp.privacy.gaussian import ROUNDED
from torchdp.protocol import Estimate, Layout, Limits, MessageProtocol, Objective, Tally, Users
from torchdp.protocol.interval import laplace_stretch
from torchdp.protocol.protocol import S
from torchdp.protocol.records import alike, tensor_of
from torchdp.shuffle.laws import BitLaw, MessageLaw, ShuffledMessages, message_law
from torchdp.shuffle.search import LARGEST, Sensitivity, least_epsilon
from torchdp.threads import on_host

# Messages that are held in memory while users speak.
MESSAGES_AT_ONCE = 2**22

# Of the number of users, before the messages of a bag.
COUNT_BITS = 32

# An epsilon from here on counts as this, where a bound grows with e^epsilon.
LARGEST_EXPONENT = 700.0

FLIPS = "dominating pair of each instance, composed after Doroshenko et al. (2022), Algorithm 1"
EITHER = (
    "sums of rounded bits: flips composed after Doroshenko et al. (2022), Algorithm 1, or their "
    "movement"
)


def delta_of(law: BitLaw, epsilon: float, instances: int | Sensitivity, absent: int = 0) -> float:
    """The smallest delta certified at an epsilon.

    Args:
        law: the noise.
        epsilon: >= 0.
        instances: sums that a user takes part in: a number, of bits that may all differ, or a
            :class:`Sensitivity`.
        absent: users whose noise does not count.

    Raises ValueError, TypeError.

    Guarantees: (epsilon, delta)-DP under replacement of all bits, or of the vector, of one user,
    whatever the other users hold. Exact for central Gaussian noise and for one instance of
    correlated noise and of one-type noise that spreads over up to 8,192 counts; otherwise an upper
    bound.
    Source: ``torchdp.privacy.accounting``; ``shuffle.inversion``; Balle, Wang (2018), Theorem 8,
    for Gaussian noise.
    """
    epsilon = checks.non_negative("epsilon", epsilon)
    moves = Sensitivity.of(instances)
    checks.instance("law", law, BitLaw).present(absent)
    return min(_deltas(law, epsilon, moves, absent))


def epsilon_of(law: BitLaw, delta: float, instances: int | Sensitivity, absent: int = 0) -> float:
    """The smallest epsilon >= 0 certified at a delta; by movement, up to 1 % above it.

    Arguments as in ``delta_of``. math.inf where there is none. delta = 0: basic composition of what
    is private without delta. Raises ValueError, TypeError.

    Guarantees: as ``delta_of``.
    """
    moves = Sensitivity.of(instances)
    checks.instance("law", law, BitLaw).present(absent)
    if checks.below_one("delta", delta) == 0:
        return law.pure_epsilon(absent) * moves.flips if moves.bits else math.inf
    most = math.inf
    if moves.bits:
        most = law.flipped_epsilon(delta, moves.flips, absent)
    if not moves.moves:
        return most
    # Movement is searched below what flips need.
    return least_epsilon(partial(law.moved_delta, moves=moves, absent=absent), delta, most)


def promise(
    law: MessageLaw,
    delta: float,
    instances: int | Sensitivity,
    absent: int = 0,
    epsilon: float | None = None,
) -> Guarantee:
    """The guarantee of shuffled sums with this noise at this delta.

    Arguments as in ``delta_of``. epsilon: at which it is stated; None: the smallest that is
    certified. Raises ValueError where it is not certified, or none up to 700 is.

    Guarantees: as ``delta_of``; of the messages as they are sent where they are drawn from whole
    numbers, for which delta keeps 2^-40 of itself. ``change`` is that of the chances that floats
    have: it must allow for their errors.
    """
    moves = Sensitivity.of(instances)
    checks.instance("law", law, MessageLaw).present(absent)
    variation = law.variation
    # What real numbers may spend.
    kept = delta if variation is None else delta * ROUNDED
    # Laws that differ in a number of users that does not count share one certificate.
    certified = law if absent or law.own_number else replace(law, users=1)
    real = _certified(certified, kept, moves, absent, epsilon)
    if variation is None:
        return real
    variation = variation * moves.instances
    if delta:
        return real.rounded(variation, delta)
    if not variation:
        return replace(real, arithmetic=Arithmetic.ROUNDED)
    growth = 1 + math.exp(min(real.epsilon, LARGEST_EXPONENT))
    return real.rounded(variation, growth * variation * (1 + 1e-6))


@lru_cache(maxsize=1024)
def _certified(
    law: MessageLaw, delta: float, moves: Sensitivity, absent: int, epsilon: float | None
) -> Guarantee:
    """``promise`` of real numbers."""
    if epsilon is None:
        epsilon = epsilon_of(law, delta, moves, absent)
        if math.isinf(epsilon):
            raise ValueError(
                f"delta = {delta:g} is not reached at any epsilon by {type(law).__name__} in "
                f"{moves.instances} instances: no epsilon is certified; add noise, or state a "
                "larger delta"
            )
    else:
        epsilon = checks.positive("epsilon", epsilon)
        delta = checks.fraction("delta", delta)
        if not any(bound <= delta for bound in _deltas(law, epsilon, moves, absent)):
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {delta:g}) is not certified for this noise; "
                "add noise, or take calibrated"
            )
    source = EITHER if moves.moves else FLIPS
    return Guarantee(epsilon, float(delta), Model.SHUFFLE, Neighbours.REPLACE_ONE, False, source)


def _deltas(law: BitLaw, epsilon: float, moves: Sensitivity, absent: int) -> Iterator[float]:
    """Two bounds, what costs less time first, unchecked."""
    # Beyond LARGEST flips alone are counted.
    if moves.moves and epsilon <= LARGEST:
        yield law.moved_delta(epsilon, moves, absent)
    yield law.flipped_delta(epsilon, moves.flips, absent) if moves.bits else 1.0


class Shuffled(MessageProtocol[S, ShuffledMessages]):
    """Users who send bits by one mechanism in each of ``instances`` sums.

    A tally keeps each instance's total and how many users sent. ``absent``: so many of
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
        """At delta. Raises ValueError where it is not certified, or no epsilon is."""
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

    @property
    def users_at_once(self) -> int:  # type: ignore[override]
        """Those whose messages fit into memory."""
        return max(1, int(MESSAGES_AT_ONCE / self.messages_per_user))

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
        content = messages.content
        if not torch.isin(content, self._kinds(content.device)).all():
            raise ValueError(
                f"the content of a message must be one of {self.law.contents}; there are others"
            )
        self.law.refuse(torch.bincount(instance, minlength=self.instances), messages.n)
        # The doubles are whole numbers.
        total = torch.bincount(instance, weights=content.double(), minlength=self.instances)
        return Tally(messages.n, {"total": total.long()})

    def _kinds(self, device: torch.device | str) -> Tensor:
        return torch.tensor(self.law.contents, dtype=torch.int8, device=device)

    def whole(self, tally: Tally) -> Tally:
        """``tally``, if it is of the users that the noise counts on. Raises TypeError, ValueError."""
        most = self.law.users
        least = most - self.absent
        tally = self.check(tally)
        if not least <= alike(tally.n) <= most:
            users = f"{most}" if least == most else f"{least} to {most}"
            raise ValueError(
                f"tally must be of {users} users, as the noise counts on, not {tally.n}"
            )
        return tally

    def encode(self, messages: ShuffledMessages) -> bytes:
        """The number of users, 4 bytes, then each message."""
        checks.instance("messages", messages, ShuffledMessages)
        # A message is the number of its instance and of its content.
        kinds = self._kinds(messages.content.device)
        place = torch.searchsorted(kinds, messages.content)
        word = messages.instance.long() * len(kinds) + place
        head = wire.pack(torch.tensor([messages.n], dtype=torch.int64), COUNT_BITS)
        return head + wire.pack(word, self.bits_per_message)

    @on_host
    def decode(self, data: bytes) -> ShuffledMessages:
        head = COUNT_BITS // 8
        if len(checks.instance("data", data, bytes)) < head:
            raise ValueError(
                f"data must begin with the number of users, {head} bytes; there are {len(data)}"
            )
        n = int(wire.unpack(data[:head], COUNT_BITS))
        word = wire.unpack(data[head:], self.bits_per_message)
        kinds = self._kinds("cpu")
        instance = checks.indices("data", word // len(kinds), self.instances)
        return ShuffledMessages(n, instance.int(), kinds[word % len(kinds)])


@dataclass(frozen=True)
class BitSums(Shuffled[Tensor]):
    """How many users hold a one in each of ``instances`` instances, through a shuffler.

    x: (n, instances) bool; a summary: ones (instances,).

    Args:
        law: for n = law.users users, such as ``PoissonSum``.
        instances: >= 1.
        delta: at which the guarantee is stated, in [0, 1).
        epsilon: likewise; None: the smallest that is certified.
        absent: so many users may send nothing, or collude; a tally of fewer users than the rest is
            refused.

    Raises TypeError, ValueError.

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
        instances = partial(checks.integer, least=1, most=2**31 - 1)
        checks.keep(self, instances=instances, delta=checks.below_one)
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
        """With the least noise of this kind at (epsilon, delta), as ``BitLaw.calibrated``."""
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

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        """All ``law.users`` send. O(instances), whatever their number."""
        total = self.law.noised(summary.expand(*shape, *summary.shape), draws)
        batch = summary.shape[:-1]
        users = self.law.users
        return Tally(summary.new_full(batch, users) if batch else users, {"total": total})

    def analyse(self, tally: Tally) -> Estimate:
        tally = self.whole(tally)
        n = alike(tally.n)
        value = self.law.decode(tally["total"], n)
        error = self.law.spread(value.clamp(0, n), n).sqrt()
        stretch = laplace_stretch if self.law.laplace else None
        return Estimate(value, error, tally.n, limits=(0.0, float(n)), stretch=stretch)

    def summary_unchecked(self, x: Tensor) -> Tensor:
        return x.sum(0)

    def exact(self, summary: Tensor) -> Tensor:
        return self._users(summary)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self.law.variance(self._users(summary))

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        users = alike(n)
        ends = torch.tensor([0, users], dtype=torch.int64)
        return self.law.spread(ends, users).max().expand(tensor_of(n).shape)

    def _users(self, summary: Tensor) -> Tensor:
        """Numbers of ones, which need not be whole, float64. Raises TypeError, ValueError."""
        ones = checks.floating("summary", summary).double()
        shaped = ones.shape[-1:] == (self.instances,)
        if not (shaped and 0 <= float(ones.min()) <= float(ones.max()) <= self.law.users):
            raise ValueError(
                f"summary must be ({self.instances},) numbers of users with a one, 0 to "
                f"{self.law.users}, not of shape {tuple(ones.shape)}"
            )
        return ones

    def validate_summary(self, summary: Tensor) -> Tensor:
        """``summary``, whole numbers, (*batch, instances) int64. Raises TypeError, ValueError."""
        ones = checks.counts("summary", summary, self.instances)
        if (ones > self.law.users).any():
            raise ValueError(
                f"summary must lie in [0, {self.law.users}], the number of users; it does not"
            )
        return ones
