"""Kernels as expected inner products of bounded random features: locality-sensitive quantization."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.density.rounding import count, rounded
from torchdp.draws import Draws, Simulated
from torchdp.noise import Noise, source

NUMBERS_AT_ONCE = 2**20  # held in memory for each array over users, whatever their number
SLACK = 1e-6  # relative; vectors that were normalised in float32 have norms above 1 by rounding


@dataclass(frozen=True)
class Family(ABC):
    """Random pairs (f, g) of functions R^d -> R^Q with |E <f(x), g(y)> - k(x, y)| <= bias and |f(x)_j| <= bound.

    dimension: d >= 1. ``coordinates`` Q; ``bound`` R, of f alone, since g only meets what is already public;
    ``support`` S: at most so many coordinates of f(x) are not zero; ``bias`` beta. Raises ValueError.

    Source: Wagner (2025), section 2.3, after Wagner, Naamad, Mishra (2023).
    """

    dimension: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", checks.integer("dimension", self.dimension, 1))

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """Q: numbers of one repetition."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """R: the largest absolute coordinate of f."""

    @property
    @abstractmethod
    def support(self) -> int:
        """S: the most coordinates of f(x) that are not zero."""

    @property
    def movement(self) -> float:
        """The largest sum over the coordinates of (q_j - q_j')^2, q_j = (1 + f(x)_j/R)/2, over all x, x': at most S."""
        return float(self.support)

    @property
    @abstractmethod
    def bias(self) -> float:
        """beta: the largest |E <f(x), g(y)> - k(x, y)|; queries as in ``queries``."""

    @abstractmethod
    def draw(self, repetitions: int, *, generator: torch.Generator) -> "Features":
        """Independent pairs (f_i, g_i) from public randomness; they live on the generator's device, in float64."""

    @abstractmethod
    def query_moment(self, y: Tensor) -> Tensor:
        """E ||g(y)||^2 of one repetition: (q, d) -> (q,)."""

    @abstractmethod
    def _kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """Unchecked."""

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """k(x_u, y_v): (*batch, n, d), (*batch, q, d) -> (*batch, n, q). Raises TypeError, ValueError."""
        x, y = self._points("x", x), self._points("y", y)
        dtype = torch.promote_types(x.dtype, y.dtype)
        return self._kernel(x.to(dtype), y.to(dtype))

    def users(self, x: Tensor) -> Tensor:
        """``x`` as users' vectors (n, d), float32 or float64, in the domain. Raises TypeError, ValueError."""
        return self._inside("x", self._rows("x", x))

    def queries(self, y: Tensor) -> Tensor:
        """``y`` as queries (q, d), float32 or float64. Raises TypeError, ValueError."""
        return self._rows("y", y)

    def _inside(self, name: str, points: Tensor) -> Tensor:
        """``points``, where all lie in the family's domain. Raises ValueError."""
        return points

    def _points(self, name: str, value: Tensor) -> Tensor:
        value = checks.real(name, value)
        if value.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} must be float32 or float64, not {value.dtype}; call .float()")
        if value.ndim < 2 or value.shape[-1] != self.dimension:
            raise ValueError(f"{name} must have shape (..., n, {self.dimension}), not {tuple(value.shape)}")
        if (
            value.numel() and not torch.isfinite(torch.stack(value.aminmax())).all()
        ):  # no copy as large as the data
            raise ValueError(f"{name} holds NaN or infinite entries; remove those rows before the call")
        return value

    def _rows(self, name: str, value: Tensor) -> Tensor:
        value = self._points(name, value)
        if value.ndim != 2:
            raise ValueError(f"{name} must have shape (n, {self.dimension}), not {tuple(value.shape)}")
        return value


@dataclass(frozen=True)
class OneTermFamily(Family):
    """A family with at most one product f(x)_j g(y)_j that is not zero; its second moments are known."""

    @abstractmethod
    def cross_moment(self, x: Tensor, other: Tensor, y: Tensor) -> Tensor:
        """E <f(x), g(y)> <f(other), g(y)> of one repetition: (..., d) each, broadcast -> (...)."""

    def mean(self, x: Tensor, y: Tensor) -> Tensor:
        """E <f(x), g(y)>, the kernel where there is no bias: (*batch, n, d), (*batch, q, d) -> (*batch, n, q)."""
        return self.kernel(x, y)

    def variance(self, x: Tensor, y: Tensor) -> Tensor:
        """Variance of <f(x_u), g(y_v)>, one repetition: (n, d), (q, d) -> (n, q)."""
        x, y = self.users(x), self.queries(y)
        return self.cross_moment(x[:, None], x[:, None], y) - self.mean(x, y).square()


@dataclass(frozen=True, eq=False)
class Features(ABC):
    """Public pairs (f_i, g_i), i < repetitions: k(x, y) is estimated by <left(x), right(y)> / repetitions.

    A user's vector takes part in ``instances`` = repetitions * Q bit sums.
    """

    family: Family
    repetitions: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", checks.integer("repetitions", self.repetitions, 1))

    @property
    def instances(self) -> int:
        """Numbers of one user: repetitions * Q."""
        return self.repetitions * self.family.coordinates

    @property
    def bound(self) -> float:
        """R."""
        return self.family.bound

    @property
    def support(self) -> int:
        """S."""
        return self.family.support

    @property
    def bias(self) -> float:
        """beta."""
        return self.family.bias

    @property
    def composed(self) -> int:
        """Instances of a protocol whose composition bounds what replacing a user's vector tells: repetitions * S.

        Two vectors with disjoint supports change the law of up to 2 S bits of a repetition, but a coordinate that is
        zero is a fair coin, and so pairs of them cost no more than one. Take a coordinate j where only f(x) is not zero
        and j' where only f(x') is not; by joint convexity the bits there may be taken as sure, a at j under x and b at
        j' under x'. Bits (j, j') are then (a, coin) against (coin, b): with probability 1/2 each (a, b) against
        (1 - a, b) and (a, 1 - b) against (a, b), which differ in one bit. Again by joint convexity such a pair costs at
        most the worst single instance, and max(|supp f(x)|, |supp f(x')|) <= S of them are left.
        Guarantees: a composition of that many instances of the worst pair, in either direction, dominates.
        Source: Wagner (2025), Theorem 3.1, whose proof takes only S bits to change; above, why S is still enough.
        """
        return self.repetitions * self.family.support

    @property
    def movement(self) -> float:
        """At most so much do squared changes of a bit's probability add up to when a user's vector is replaced.

        sum_ij (f_i(x)_j - f_i(x')_j)^2/(4 R^2): it may be far below the number of bits, and the noise needed with it
        (``shuffle.calibrate_rounded``).
        Guarantees: an upper bound over all x, x' in the domain.
        """
        return self.repetitions * self.family.movement

    @property
    def rounding(self) -> float:
        """The largest variance that rounding to one bit adds to a coordinate of one user: R^2."""
        return self.bound**2

    def left(self, x: Tensor) -> Tensor:
        """f_i(x)_j of each user: (n, d) -> (n, instances), in [-R, R]. Raises TypeError, ValueError."""
        return self._left(self.family.users(x))

    def right(self, y: Tensor) -> Tensor:
        """g_i(y)_j of each query: (q, d) -> (q, instances). Raises TypeError, ValueError."""
        return self._right(self.family.queries(y))

    def bits(self, x: Tensor, *, noise: Noise | None = None) -> Tensor:
        """What users round to: Bernoulli((1 + f_i(x)_j / R)/2), (n, d) -> (n, instances) bool. Raises as ``left``.

        noise: None for the system's. The bits alone hide nobody: a protocol of ``torchdp.shuffle`` does.
        """
        x = self.family.users(x)
        return self._bits(x, source(noise, x.device))

    def ones(self, x: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()) -> Tensor:
        """How many users round to a one, part by part: (n, d) -> (*sample_shape, instances), int64.

        sample_shape: independent roundings of the same vectors. Raises as ``left``.
        """
        x, shape = self.family.users(x), checks.sample_shape(sample_shape)
        return self._ones(x, Simulated(generator, x.device), shape)

    def parts(self, x: Tensor, times: int = 1) -> Iterator[Tensor]:
        """``x`` in parts of so many users that arrays over them and ``times`` repeats stay small."""
        return iter(x.split(max(1, NUMBERS_AT_ONCE // (self._numbers * max(1, times)))))

    @property
    def _numbers(self) -> int:
        """Numbers that one user's features take while they are computed."""
        return self.instances

    @abstractmethod
    def _left(self, x: Tensor) -> Tensor:
        """Unchecked."""

    @abstractmethod
    def _right(self, y: Tensor) -> Tensor:
        """Unchecked."""

    def _share(self, x: Tensor) -> Tensor:
        """f_i(x)_j / R, in [-1, 1]."""
        return self._left(x) / self.bound

    def _bits(self, x: Tensor, draws: Draws) -> Tensor:
        return rounded(self._share(x), (), draws)

    def _expected_ones(self, x: Tensor) -> Tensor:
        """sum_u (1 + f_i(x_u)_j / R)/2, the mean of ``_ones``: (n, d) -> (instances,) float64."""
        total = torch.zeros(self.instances, dtype=torch.float64, device=x.device)
        for part in self.parts(x):
            total += self._share(part).sum(0, dtype=torch.float64)
        return (len(x) + total) / 2

    def _ones(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        """How many users round to a one: (n, d) -> (*shape, instances) int64."""
        everybody = torch.zeros((), dtype=torch.int64, device=x.device).expand(len(x))
        return self._class_ones(x, everybody, 1, draws, shape)[..., 0, :]

    def _class_ones(
        self, x: Tensor, labels: Tensor, classes: int, draws: Simulated, shape: tuple[int, ...]
    ) -> Tensor:
        """How many users of each class round to a one: (n, d), (n,) -> (*shape, classes, instances) int64."""
        members = [x] if classes == 1 else (x[labels == c] for c in range(classes))
        return torch.stack([self._sums(each, draws, shape) for each in members], -2)

    def _sums(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        """``_ones`` part by part, on any device."""
        total = torch.zeros(*shape, self.instances, dtype=torch.int64, device=x.device)
        for part in self.parts(x, math.prod(shape)):
            total += count(rounded(self._share(part), shape, draws))
        return total


@dataclass(frozen=True, eq=False)
class SignFeatures(Features):
    """f(x)_j = R or -R: a sign is a bit already, and nothing is rounded."""

    @property
    def rounding(self) -> float:
        """0."""
        return 0.0

    @abstractmethod
    def _positive(self, x: Tensor) -> Tensor:
        """Where f is R: (n, d) -> (n, instances) bool."""

    def _left(self, x: Tensor) -> Tensor:
        return self._positive(x).to(x.dtype).mul_(2 * self.bound).sub_(self.bound)

    def _bits(self, x: Tensor, draws: Draws) -> Tensor:
        return self._positive(x)

    def _sums(self, x: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tensor:
        total = torch.zeros(self.instances, dtype=torch.int64, device=x.device)
        for part in self.parts(x):
            total += count(self._positive(part))
        return total.expand(*shape, self.instances)


def drawn(repetitions: int, generator: torch.Generator) -> tuple[int, torch.Generator]:
    """The arguments of ``draw``, checked. Raises TypeError, ValueError."""
    device = generator.device if isinstance(generator, torch.Generator) else torch.device("cpu")
    return checks.integer("repetitions", repetitions, 1, 2**30), checks.random_source(generator, device)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_u - y_v||^2: (*batch, n, d), (*batch, q, d) -> (*batch, n, q)."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
