"""What the bitsum protocols share: n users hold one bit in each instance, and their number of ones is estimated."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.noise import Noise, source
from torchdp.privacy import Model
from torchdp.shuffle.dominating import Profile
from torchdp.shuffle.messages import Messages, shuffle

MESSAGES_AT_ONCE = 2**22  # held in memory by the per-user path
COUNTABLE = 2.0**53  # whole numbers up to here are exact in float64


@dataclass(frozen=True)
class BitSum(ABC):
    """An unbiased estimate of S, how many of n users hold a one, independently in each of many instances.

    users: n >= 1, public. Neighbours replace one user's bits. ``collect`` goes through what every user does;
    ``sample_sum`` draws the estimate at once, exactly in law, at a cost that does not grow with n.
    """

    sums_numbers: ClassVar[bool] = False  # whether ``drawn`` takes sums of numbers in [0, 1] too
    counts_movement: ClassVar[bool] = False  # whether ``moved_delta`` certifies anything

    users: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", checks.integer("users", self.users, 1))

    @property
    @abstractmethod
    def model(self) -> Model:
        """Who must be trusted."""

    @property
    @abstractmethod
    def messages_per_user(self) -> float:
        """Expected number of messages of a user in one instance, for the worse bit."""

    @abstractmethod
    def bits_per_message(self, instances: int) -> int:
        """Length of a message, in bits: its content, and which of the instances it belongs to."""

    @abstractmethod
    def collect(self, bits: Tensor, *, noise: Noise | None = None) -> Tensor:
        """Estimates from the users' own bits: (users present, instances) bool -> (instances,), float64.

        noise: None for the system's, as real data need; a ``SeededNoise`` in tests.
        """

    @final
    def sample_sum(self, ones: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()) -> Tensor:
        """Estimates where ``ones`` users hold a one: (*batch,) integers -> (*sample_shape, *batch), float64."""
        ones = self._ones(ones)
        self._countable()
        shape = (*checks.sample_shape(sample_shape), *ones.shape)
        return self.drawn(ones.expand(shape), Simulated(generator, ones.device))

    @abstractmethod
    def drawn(self, ones: Tensor, draws: Draws) -> Tensor:
        """``sample_sum`` unchecked, one estimate for each entry of ``ones``."""

    @abstractmethod
    def variance(self, ones: Tensor) -> Tensor:
        """Exact variance of the estimate: (*batch,) integers in [0, users] -> (*batch,), float64."""

    @abstractmethod
    def profiles(self, absent: int = 0) -> tuple[Profile, ...]:
        """Hockey-stick curves of one instance, H_{e^epsilon}(P || Q), of pairs that dominate it together.

        ``absent`` users send nothing, or tell the adversary all they send: their noise does not count.
        """

    def moved_delta(self, epsilon: float, instances: int, change: float, absent: int = 0) -> float:
        """A delta where a user's probabilities of ones move by ``change`` in all, see ``rounded_delta_of``; unchecked.

        1 where only flips are counted.
        """
        return 1.0

    @classmethod
    def of_rmse(cls, users: int, rmse: float) -> Self:
        """The protocol of this kind with this error. Raises TypeError where its noise is no one number."""
        raise TypeError(f"{cls.__name__} is not given by its error alone")

    @property
    def rmse(self) -> float:
        """Root of the largest variance over all inputs (it is linear in the number of ones)."""
        return math.sqrt(float(self.variance(torch.tensor([0, self.users])).max()))

    def _ones(self, ones: Tensor) -> Tensor:
        if not isinstance(ones, Tensor):
            raise TypeError(f"ones must be a torch.Tensor of integers, not {type(ones).__name__}")
        checks.dense("ones", ones)
        if ones.is_floating_point() or ones.is_complex() or ones.dtype == torch.bool:
            raise TypeError(f"ones must be an integer tensor, not {ones.dtype}; a count of the users with a one")
        if ones.numel() and not (0 <= int(ones.min()) and int(ones.max()) <= self.users):
            raise ValueError(f"ones must lie in [0, {self.users}], the number of users; it holds counts outside")
        return ones.to(torch.int64)

    def _bits(self, bits: Tensor) -> Tensor:
        if not isinstance(bits, Tensor):
            raise TypeError(f"bits must be a torch.Tensor, not {type(bits).__name__}")
        if checks.dense("bits", bits).dtype != torch.bool:
            raise TypeError(f"bits must be a boolean tensor, not {bits.dtype}; call (bits == 1) on zeros and ones")
        if bits.ndim != 2 or bits.shape[1] < 1:
            raise ValueError(f"bits must have shape (users, instances), instances >= 1, not {tuple(bits.shape)}")
        if not 1 <= len(bits) <= self.users:
            raise ValueError(f"bits must have a row for each user present, 1 to {self.users}, not {len(bits)}")
        self._countable()
        return bits

    def _countable(self) -> None:
        messages = self.users * self.messages_per_user
        if messages > COUNTABLE:
            raise ValueError(
                f"one instance has about {messages:.2g} messages, more than float64 counts exactly; "
                "take fewer users or less noise"
            )

    def _present(self, absent: int) -> int:
        """Users whose noise counts, at least one. Raises ValueError."""
        absent = checks.integer("absent", absent, 0)
        if absent >= self.users:
            raise ValueError(f"absent must be below the number of users, {self.users}, not {absent}")
        return self.users - absent


@dataclass(frozen=True)
class ShuffledBitSum(BitSum):
    """A bitsum protocol in the shuffle model: randomizer, shuffler, analyst.

    ``randomize`` is what users run, ``shuffle`` the trusted shuffler, ``analyse`` the analyst, who receives
    shuffled messages and public numbers and nothing else.
    """

    @property
    def model(self) -> Model:
        return Model.SHUFFLE

    @property
    @abstractmethod
    def contents(self) -> tuple[int, ...]:
        """What a message may hold."""

    @final
    def randomize(self, bits: Tensor, *, noise: Noise | None = None) -> Messages:
        """The messages of some of the users together; one row of bits is one user: (m, instances) bool.

        noise: None for the system's. Raises TypeError, ValueError.
        """
        bits = self._bits(bits)
        return self.speak(bits, source(noise, bits.device))

    @abstractmethod
    def speak(self, bits: Tensor, draws: Draws) -> Messages:
        """``randomize`` unchecked."""

    @abstractmethod
    def _estimate(self, messages: Tensor, total: Tensor, present: int) -> Tensor:
        """The estimate from an instance's number of messages and the sum of their contents, (instances,) int64."""

    def analyse(self, shuffled: Messages, instances: int, *, absent: int = 0) -> Tensor:
        """The analyst's estimates of the number of ones among the users present: (instances,), float64.

        absent: how many users are known to have sent nothing. Raises ValueError for messages that no user sends.
        """
        present = self._present(absent)
        return self._estimate(*self._tally(shuffled, instances), present)

    def collect(self, bits: Tensor, *, noise: Noise | None = None) -> Tensor:
        """Randomizer, shuffler and analyst, part by part; rows that are missing are users who are absent.

        bits: (users present, instances) bool. Returns (instances,), float64. Memory does not grow with the users.
        """
        present, instances = self._bits(bits).shape
        draws = source(noise, bits.device)
        messages, total = torch.zeros(2, instances, dtype=torch.int64, device=bits.device)
        for part in bits.split(max(1, int(MESSAGES_AT_ONCE / (instances * self.messages_per_user)))):
            arrived = self._tally(shuffle(self.speak(part, draws)), instances)
            messages += arrived[0]
            total += arrived[1]
        return self._estimate(messages, total, present)

    def bits_per_message(self, instances: int) -> int:
        payload = (len(self.contents) - 1).bit_length()
        return payload + (checks.integer("instances", instances, 1) - 1).bit_length()

    def _tally(self, shuffled: Messages, instances: int) -> tuple[Tensor, Tensor]:
        """Number of messages of each instance and the sum of their contents, (instances,), int64."""
        instances = checks.integer("instances", instances, 1, 2**31 - 1)
        checks.instance("shuffled", shuffled, Messages)
        instance = checks.indices("the instance of a message", shuffled.instance, instances)
        known = torch.zeros_like(shuffled.content, dtype=torch.bool)
        for content in self.contents:
            known |= shuffled.content == content
        if not known.all():
            raise ValueError(f"the content of a message must be one of {self.contents}; there are others")
        messages = torch.bincount(instance, minlength=instances)
        total = torch.bincount(instance, weights=shuffled.content.double(), minlength=instances)
        return messages, total.to(torch.int64)  # the doubles are whole numbers
