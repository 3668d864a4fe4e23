"""Kernels as expected inner products of bounded random features, and features rounded to bits.

Notation: f(x) and g(y) in R^Q are a random pair; R bounds |f(x)_j|, S the coordinates of f(x) that
are not zero, beta the bias of <f(x), g(y)>. Everything runs on any device.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.draws import Draws, Shape, Simulated
from torchdp.kernels.dispatch import keyed
from torchdp.kernels.rounded_features import positive_counts, rounded_counts
from torchdp.protocol import Crowd
from torchdp.protocol.records import broadcast_users, weighted_sum

# Numbers held in memory for each array over users, whatever their number.
NUMBERS_AT_ONCE = 2**20

# Relative: vectors that were normalised in float32 have norms above 1 by rounding.
SLACK = 1e-6

TURN = 2 * torch.pi


def rounded(shares: Tensor, shape: Shape, draws: Draws) -> Tensor:
    """Bernoulli((1 + s)/2) for each share s, ``shape`` times: (...) -> (*shape, ...) bool.

    A random byte decides against the first 8 bits of the chance; where they tie, once in 256, 53
    more bits do. The chance is right to 2^-60 for the given number s, sure at 1 and none at -1.
    Numbers outside count as the nearest end.
    """
    # The first 8 bits of the chance, as a byte from -128 on.
    levels = (shares * 128).floor_().clamp_(-128, 127)
    levels = levels.to(torch.int8)
    byte = _bytes((*shape, *shares.shape), draws)
    bits = byte < levels
    ties = byte == levels
    tied = ties.view(-1).nonzero()[:, 0]
    # Repeats follow each other, so this is the share's place.
    place = tied % max(1, shares.numel())
    scaled = shares.reshape(-1)[place].double() * 128
    rest = scaled - levels.view(-1)[place]
    bits.view(-1)[tied] = draws.uniform(tuple(rest.shape)) < rest
    return bits


def count(bits: Tensor) -> Tensor:
    """Ones over the last dimension but one: (..., n, instances) bool -> (..., instances) int64."""
    # Sums of bytes in int32 take less time than in int64, and hold 2^31 users.
    total = bits.view(torch.uint8).sum(-2, dtype=torch.int32)
    return total.long()


def fused(x: Tensor) -> bool:
    """Whether one kernel projects, rounds and counts waves of these vectors: float32, by a key."""
    return x.dtype == torch.float32 and keyed(x.device)


def fused_ones(
    x: Tensor, frequencies: Tensor, phases: Tensor, draws: Simulated, shape: Shape
) -> Tensor:
    """Ones of rounded cosines: frequencies (d, I), phases (waves, I) -> (*shape, I waves) int64."""
    counts = rounded_counts(
        x,
        _turns(x, frequencies),
        _turns(x, phases),
        key=draws.kernel_key(),
        repeats=math.prod(shape),
    )
    return counts.view(*shape, counts.shape[-1])


def fused_positive(x: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """Users with positive cosines: as above -> (I waves,) int64."""
    return positive_counts(x, _turns(x, frequencies), _turns(x, phases))


def _turns(x: Tensor, radians: Tensor) -> Tensor:
    return (radians.to(x.device) / TURN).to(x.dtype)


def _bytes(sizes: Shape, draws: Draws) -> Tensor:
    """Uniform int8, eight for each random word."""
    number = math.prod(sizes)
    words = draws.words((-(-number // 8),))
    return words.view(torch.int8)[:number].view(sizes)


@dataclass(frozen=True)
class Family(Brief, ABC):
    """Random pairs (f, g): |E <f(x), g(y)> - k(x, y)| <= bias and |f(x)_j| <= bound.

    dimension: d >= 1. ``bound`` is of f alone, since g is applied only to what is already public.
    Raises ValueError.

    Source: Wagner (2025), section 2.3, after Wagner, Naamad, Mishra (2023).
    """

    # Whether queries must lie in the domain too.
    bounded: ClassVar[bool] = False

    dimension: int

    def __post_init__(self) -> None:
        checks.keep(self, dimension=partial(checks.integer, least=1))

    @property
    def coordinates(self) -> int:
        """Q: numbers of one repetition."""
        return 1

    @property
    def bound(self) -> float:
        """R: the largest absolute coordinate of f."""
        return 1.0

    @property
    def support(self) -> int:
        """S: the most coordinates of f(x) that are not zero."""
        return self.coordinates

    @property
    def movement(self) -> float:
        """sup over x, x' of sum_j (q_j - q_j')^2, q_j = (1 + f(x)_j/R)/2: at most S."""
        return float(self.support)

    @property
    def bias(self) -> float:
        """beta: the largest |E <f(x), g(y)> - k(x, y)|; queries as in ``queries``."""
        return 0.0

    @abstractmethod
    def draw(self, repetitions: int, *, generator: torch.Generator) -> "Features":
        """Independent pairs (f_i, g_i) from public randomness, float64 on the generator's device."""

    @abstractmethod
    def k(self, x: Tensor, y: Tensor) -> Tensor:
        """``kernel``, unchecked."""

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """k(x_u, y_v): (*batch, n, d), (*batch, q, d) -> (*batch, n, q).

        Raises TypeError, ValueError.
        """
        x = self._points("x", x)
        y = self._points("y", y)
        dtype = torch.promote_types(x.dtype, y.dtype)
        return self.k(x.to(dtype), y.to(dtype))

    def validate(self, x: Tensor) -> Tensor:
        """``x`` as users' vectors (n, d), n >= 1, float32 or float64, in the domain.

        Raises TypeError, ValueError.
        """
        points = self._points("x", x)
        note = " with n >= 1"
        return self.inside("x", checks.shaped("x", points, "n", self.dimension, note=note))

    def queries(self, y: Tensor) -> Tensor:
        """``y`` as queries (q, d), float32 or float64. Raises TypeError, ValueError."""
        y = checks.shaped("y", self._points("y", y), "q", self.dimension, empty=True)
        return self.inside("y", y) if self.bounded else y

    def inside(self, name: str, points: Tensor) -> Tensor:
        """``points``, where all lie in the family's domain. Raises ValueError."""
        return points

    def _points(self, name: str, value: Tensor) -> Tensor:
        value = checks.precise(name, value)
        value = checks.shaped(name, value, ..., "n", self.dimension, empty=True)
        # NaN would pass any comparison with the domain's ends.
        checks.finite(**{name: value})
        return value


def in_ball(name: str, points: Tensor, radius: float, remedy: str) -> Tensor:
    """``points``, if none is farther than ``radius`` from 0, up to rounding. Raises ValueError."""
    # In float64: SLACK allows for the rounding of the points, not of their norms.
    norms = torch.linalg.vector_norm(points.detach(), dim=-1, dtype=torch.float64)
    if radius < math.inf and len(points) and float(norms.max()) > radius * (1 + SLACK):
        raise ValueError(f"{name} must hold vectors of norm at most {radius:g}; {remedy}")
    return points


@dataclass(frozen=True, eq=False)
class Features(Brief, ABC):
    """Public pairs (f_i, g_i): k(x, y) is estimated by <left(x), right(y)> / repetitions.

    A user's vector takes part in ``instances`` = repetitions * Q bit sums.
    """

    family: Family
    repetitions: int

    def __post_init__(self) -> None:
        checks.keep(self, repetitions=partial(checks.integer, least=1))

    @property
    def instances(self) -> int:
        """Numbers of one user: repetitions * Q."""
        return self.repetitions * self.family.coordinates

    @property
    def bound(self) -> float:
        """R."""
        return self.family.bound

    @property
    def composed(self) -> int:
        """Instances whose composition bounds what replacing a user's vector shows: repetitions * S.

        Two vectors with disjoint supports change the distribution of up to 2 S bits of a
        repetition, but a coordinate that is zero is a fair coin, and so pairs of them cost no more
        than one. Take a coordinate j where only f(x) is not zero and j' where only f(x') is not; by
        joint convexity the bits there may be taken as sure, a at j under x and b at j' under x'.
        Bits (j, j') are then (a, coin) against (coin, b): with probability 1/2 each (a, b) against
        (1 - a, b) and (a, 1 - b) against (a, b), which differ in one bit. Again by joint convexity
        such a pair costs at most the worst single instance, and max(|supp f(x)|, |supp f(x')|) <= S
        of them are left.
        Guarantees: a composition of that many instances of the worst pair, in either direction,
        dominates.
        Source: Wagner (2025), Theorem 3.1, whose proof takes only S bits to change; above, why S is
        still enough.
        """
        return self.repetitions * self.family.support

    @property
    def movement(self) -> float:
        """The most that squared changes of bits' probabilities add up to when a vector is replaced.

        sum_ij (f_i(x)_j - f_i(x')_j)^2/(4 R^2): it may be far below the number of bits, and the
        noise needed with it (``change`` of ``shuffle.Sensitivity``).
        Guarantees: an upper bound over all x, x' in the domain.
        """
        return self.repetitions * self.family.movement

    def gamma(self, steps: Tensor) -> float:
        """A bound of sum_j steps_j^2 (f(x)_j - f(x')_j)^2/(4 R^2); steps: (instances,) float64."""
        # A chance moves by 1 at most, whatever the movement of all together.
        return min(float(steps.max()) ** 2 * self.movement, float(steps.square().sum()))

    def most(self, steps: Tensor) -> float:
        """A bound of sum_j steps_j (1 + f(x)_j/R)/2: messages of a user but for noise."""
        return float(steps.sum())

    @property
    def constant(self) -> float:
        """What <left(x), right(y)>/repetitions lacks of k(x, y), public."""
        return 0.0

    @property
    def rounding(self) -> float:
        """The largest variance that rounding to one bit adds to a coordinate of one user: R^2."""
        return self.bound**2

    def left(self, x: Tensor) -> Tensor:
        """f_i(x)_j of users: (n, d) -> (n, instances), in [-R, R]. Raises TypeError, ValueError."""
        return self.f(self.family.validate(x))

    def right(self, y: Tensor) -> Tensor:
        """g_i(y)_j of each query: (q, d) -> (q, instances). Raises TypeError, ValueError."""
        return self.g(self.family.queries(y))

    def parts(self, x: Tensor, times: int = 1) -> Iterator[Tensor]:
        """``x`` in parts of so many users that arrays over them and ``times`` repeats stay small."""
        return iter(x.split(max(1, self.at_once // max(1, times))))

    @property
    def at_once(self) -> int:
        """Users whose features stay small."""
        return max(1, NUMBERS_AT_ONCE // self.numbers)

    @property
    def numbers(self) -> int:
        """Numbers that one user's features take while they are computed."""
        return self.instances

    @abstractmethod
    def f(self, x: Tensor) -> Tensor:
        """``left``, unchecked."""

    def g(self, y: Tensor) -> Tensor:
        """``right``, unchecked."""
        return self.f(y)

    def share(self, x: Tensor) -> Tensor:
        """f_i(x)_j / R, in [-1, 1], unchecked."""
        return self.f(x) / self.bound

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        """Bernoulli((1 + f_i(x)_j / R)/2) of users, (n, d) -> (n, instances) bool, unchecked.

        The bits alone are not private: a :class:`shuffle.BitLaw` makes them so.
        """
        return rounded(self.share(x), (), draws)

    def sums(self, crowd: Crowd) -> tuple[Tensor, Tensor]:
        """Sums over users of f_i(x)_j and of its square, (*batch, instances) float64, unchecked."""
        shape = (2, *crowd.counts.shape[:-1], self.instances)
        total, squares = crowd.values.new_zeros(shape, dtype=torch.float64)
        for f, counts in self.of_crowd(crowd, self.f):
            # A float32 sum of users loses them from 2^24 on.
            left = f.double()
            total += weighted_sum(counts.double(), left)
            squares += weighted_sum(counts.double(), left.square())
        return total, squares

    def crowd(self, summary: Crowd) -> Crowd:
        """``summary``, if it is a crowd of vectors in the domain. Raises TypeError, ValueError."""
        return Crowd.checked(summary, self.family.validate)

    def means(self, crowd: Crowd) -> Tensor:
        """Of f_i(x)_j over the users, (*batch, instances) float64, unchecked."""
        return self.sums(crowd)[0] / broadcast_users(crowd.n, 1)

    def of_crowd(
        self, crowd: Crowd, of: Callable[[Tensor], Tensor], times: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """``of`` a crowd's values and their counts, (*batch, k), part by part.

        Args:
            crowd: of values (k, r) or (*batch, k, r).
            of: (n, r) -> (n, s), unchecked.
            times: repeats of the whole batch that stay small in memory.
        """
        batch = crowd.counts[..., 0].numel()
        size = max(1, self.at_once // max(1, times * batch))
        parts = zip(crowd.rows.split(size, -2), crowd.counts.split(size, -1), strict=True)
        for x, counts in parts:
            rows = of(x.flatten(0, -2))
            yield rows.view(*x.shape[:-1], -1), counts

    def ones(self, x: Tensor, draws: Simulated, shape: Shape) -> Tensor:
        """Users who round to a one, part by part: (n, d) -> (*shape, instances) int64, unchecked."""
        total = x.new_zeros(*shape, self.instances, dtype=torch.int64)
        for part in self.parts(x, math.prod(shape)):
            total += count(rounded(self.share(part), shape, draws))
        return total


@dataclass(frozen=True, eq=False)
class SignFeatures(Features):
    """f(x)_j = R or -R: a sign is a bit already, and nothing is rounded."""

    @property
    def rounding(self) -> float:
        """0."""
        return 0.0

    @abstractmethod
    def positive(self, x: Tensor) -> Tensor:
        """Where f is R: (n, d) -> (n, instances) bool."""

    def over(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """``positive`` for rows of x, which may be prepared for all of them at once."""
        return self.positive

    def f(self, x: Tensor) -> Tensor:
        ones = self.positive(x).to(x.dtype)
        return ones.mul_(2 * self.bound).sub_(self.bound)

    def bits(self, x: Tensor, draws: Draws) -> Tensor:
        return self.positive(x)

    def ones(self, x: Tensor, draws: Simulated, shape: Shape) -> Tensor:
        total = x.new_zeros(self.instances, dtype=torch.int64)
        positive = self.over(x)
        for part in self.parts(x):
            total += count(positive(part))
        # Nothing is drawn: all repetitions have the same ones.
        return total.expand(*shape, self.instances)


def drawn(repetitions: int, generator: torch.Generator) -> tuple[int, torch.Generator]:
    """The arguments of ``draw``, checked. Raises TypeError, ValueError."""
    return checks.integer("repetitions", repetitions, 1, 2**30), checks.random_source(generator)
