"""What every local randomizer offers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.noise import Noise
from torchdp.privacy import Guarantee, Model, Neighbours

# torch.binomial, in float64, keeps its law up to about this many users (at 1e15 its variance is 1 % off).
MOST_USERS = 10**14


class LocalRandomizer(ABC):
    """What one user runs: a private message whose decoded value is unbiased.

    Two paths, one law: ``sample`` gives each user's own message, from the system's noise unless a ``SeededNoise`` is
    given; ``sample_sum`` gives the sum of the decoded messages of all users, drawn exactly from a generator and without
    making them, mostly at a cost that does not grow with their number.
    """

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What one message promises."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Length of one message, in bits."""

    @abstractmethod
    def sample(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        """One message for each user."""

    @abstractmethod
    def messages(self, x: Tensor, draws: Draws) -> Tensor:
        """``sample`` of users' data that are already checked; with ``Simulated`` draws it is a simulation."""

    @abstractmethod
    def decode_sum(self, messages: Tensor) -> Tensor:
        """Sum over users of the decoded (unbiased) messages."""

    @abstractmethod
    def sample_sum(
        self, points: Tensor, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """``decode_sum`` of the messages of ``counts[x]`` users who hold ``points[x]``, for every x."""


def exact_local(epsilon: float, source: str) -> Guarantee:
    """Exactly epsilon-LDP: any two values of one user."""
    return Guarantee(epsilon, 0.0, Model.LOCAL, Neighbours.REPLACE_ONE, exact=True, source=source)


def real_local(epsilon: float, source: str, delta: float = 0.0) -> Guarantee:
    """``exact_local`` of a law over the real numbers, with (epsilon, delta), where floating-point numbers are sent."""
    source = f"{source}; of real numbers: the low-order bits of the floats that are sent are not covered"
    return Guarantee(epsilon, delta, Model.LOCAL, Neighbours.REPLACE_ONE, exact=True, source=source)


def user_counts(value: Tensor, k: int) -> Tensor:
    """``value`` as int64 counts of shape (k,), at most 1e14 users in all. Raises TypeError, ValueError."""
    counts = checks.counts("counts", value, k)
    if value.double().sum() > MOST_USERS:  # before rounding to integers, which may wrap around
        raise ValueError(f"counts must add up to at most {MOST_USERS:g} users; draw larger sums in parts")
    return counts
