"""Randomizers for vectors of a Euclidean ball: what they share, their tails, and one number's.

Notation: Y is a user's message for the point x, Z = <theta, Y - x> its noise in a unit direction
theta; B = ``entry_limit`` is the size of one number's message.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee
from torchdp.protocol import (
    Crowd,
    Estimate,
    Layout,
    Limits,
    MessageProtocol,
    Objective,
    Tally,
    Users,
)
from torchdp.protocol.records import broadcast_users, noise_limit, weighted_sum
from torchdp.randomizers.alphabet.chances import at_least, exponential
from torchdp.randomizers.base import ball_epsilon, exact_local, user_counts
from torchdp.root import TOLERANCE, least

# Messages are made this many bytes at a time: on a CPU what its caches hold.
CPU_BLOCK = 2**21
DEVICE_BLOCK = 2**28

# Its square, and that of its inverse, times any moment is a float.
LARGEST_RADIUS = 1e140

# Points of a grid, around whose best point the largest value is searched.
GRID = 33

# A sign that is sure has no noise to measure.
SURE = 1 - 1e-9

Distribution = tuple[np.ndarray, np.ndarray]  # nodes of a centred one, and their weights


@dataclass(frozen=True)
class SubGaussian:
    """Constants of Z = <theta, Y - x> that hold for every unit theta and every point x.

    They are the smallest ones, as far as a search of one number finds them.

    psi2: E exp(Z^2/psi2^2) <= 2, the length that Ghazi et al. (2023) call sigma. proxy: E exp(l Z)
    <= exp(l^2 proxy/2) for every real l, a variance: the mean of n users' messages has proxy/n.
    """

    psi2: float
    proxy: float


def constants(distribution: Distribution) -> SubGaussian:
    """Both constants of one centred distribution."""
    return SubGaussian(psi2(distribution), proxy(distribution))


def psi2(distribution: Distribution) -> float:
    """The root s of E exp(Z^2/s^2) = 2, from above."""
    z, weights = distribution
    squares = z * z

    def excess(square: float) -> float:
        """E exp(Z^2/s^2) - 1."""
        exponents = np.minimum(squares / square, 700)  # e^700 is a float
        return float(weights @ np.expm1(exponents))

    # Var <= s^2 <= max Z^2/log 2, because exp(t) >= 1 + t.
    low = float(weights @ squares) * (1 - 1e-9)
    high = float(squares.max()) / math.log(2) * (1 + 1e-9)
    return math.sqrt(least(excess, 1.0, low, high, TOLERANCE))


def proxy(distribution: Distribution) -> float:
    """The largest value of 2 log E exp(l Z)/l^2 over real l; its limit at l = 0 is the variance."""
    z, weights = distribution
    variance = float(weights @ (z * z))
    deviation = math.sqrt(variance)
    reach = float(np.abs(z).max())
    # Below 1e-2 deviations the ratio is its limit at 0, the variance, but for the third moment.
    low = math.log(min(1e-2 / deviation, 0.1 / reach))
    # Beyond 8 deviations the largest value of Z rules, and the ratio falls as 2 reach/l; e^600 is
    # still a float.
    high = math.log(min(8 / deviation, 600 / reach))

    def ratio(rate: float) -> float:
        # E Z = 0: without the linear part no digits cancel in the sum.
        excess = np.expm1(rate * z) - rate * z
        return 2 * math.log1p(float(weights @ excess)) / rate**2

    above = largest(lambda log_rate: ratio(math.exp(log_rate)), low, high, GRID)
    below = largest(lambda log_rate: ratio(-math.exp(log_rate)), low, high, GRID)
    return max(variance, above, below)


def largest(function: Callable[[float], float], low: float, high: float, points: int) -> float:
    """The largest value on [low, high]: a grid, then Brent's method around its best point."""
    grid = np.linspace(low, high, points)
    values = [function(float(x)) for x in grid]
    best = int(np.argmax(values))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, points - 1)])
    around = minimize_scalar(
        lambda x: -function(x), bounds=bounds, method="bounded", options={"xatol": 1e-6}
    )
    return max(values[best], -float(around.fun))


@dataclass(frozen=True)
class BallMoments:
    """E Y = x and Cov(Y | x) = variance I + outer x x^T, exactly, at every point x of the ball.

    third, fourth: E Z^3 and E Z^4 of the standardised noise along x, Z = <Y - x, x>/(||x|| sd), for
    x on the sphere of the ball. outer = 0: the noise is the same in every direction and at every x.
    """

    variance: float
    third: float
    fourth: float
    outer: float = 0.0

    def covariance(self, x: Tensor) -> Tensor:
        """Cov(Y | x): (*batch, dim) -> (*batch, dim, dim), float64."""
        x = checks.shaped("x", checks.floating("x", x).double(), ..., "dim")
        identity = torch.eye(x.shape[-1], dtype=torch.float64, device=x.device)
        return self.variance * identity + self.outer * x[..., :, None] * x[..., None, :]


@dataclass(frozen=True)
class BallRandomizer(MessageProtocol[Crowd, Tensor]):
    """For x in R^dim with ||x|| <= radius a private message Y in R^dim with E Y = x.

    The value is the users' mean vector, (dim,); a tally holds the ``sum`` of their messages,
    float64; a summary is a crowd of points. The standard error is the largest over all data where
    the noise depends on them.

    dim: a positive integer; epsilon in [1e-6, 50]; radius in [1e-140, 1e140]. Raises ValueError.
    """

    dim: int
    epsilon: float
    radius: float = 1.0

    def __post_init__(self) -> None:
        radius = partial(checks.within, low=1 / LARGEST_RADIUS, high=LARGEST_RADIUS)
        checks.keep(self, dim=partial(checks.integer, least=1), epsilon=ball_epsilon, radius=radius)

    @property
    @abstractmethod
    def moments(self) -> BallMoments:
        """Exact moments of one message."""

    @property
    @abstractmethod
    def subgaussian(self) -> SubGaussian:
        """Exact sub-Gaussian constants of the noise Y - x."""

    @property
    def variance_proxy(self) -> Tensor:
        """(dim,), that of ``subgaussian``."""
        return torch.full((self.dim,), self.subgaussian.proxy, dtype=torch.float64)

    def squared_error(self, norm: float) -> float:
        """E ||Y - x||^2 for ||x|| = norm <= radius. Raises ValueError."""
        checks.within("norm", norm, 0, self.radius * (1 + 1e-6))
        return self.dim * self.moments.variance + self.moments.outer * norm**2

    @property
    def bits_per_user(self) -> int:
        """dim float64 numbers."""
        return 64 * self.dim

    @property
    def layout(self) -> Layout:
        return {"sum": ((self.dim,), torch.float64)}

    @property
    def entry_limit(self) -> float:
        """What no entry of a message exceeds in size, but with a chance of 1e-300."""
        variance = self.moments.variance + max(self.moments.outer, 0) * self.radius**2
        return self.radius + noise_limit(math.sqrt(variance))

    def limits(self, n: Users) -> dict[str, Limits]:
        return {"sum": Limits.around(n * self.entry_limit)}

    @property
    def held(self) -> tuple[int]:
        return (self.dim,)

    def validate(self, x: Tensor) -> Tensor:
        """x, (n, dim) points of the ball, float32 or float64, n >= 1, without gradient.

        Raises TypeError, ValueError.
        """
        return self._inside("x", super().validate(x)).detach()

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One message for each point, (*batch, dim), made in float64, then rounded to x's dtype."""
        users = x.detach().reshape(-1, self.dim)
        messages = torch.empty_like(users)
        rows = rows_at_once(x, self.dim)
        for some, out in zip(users.split(rows), messages.split(rows), strict=True):
            out.copy_(self._messages(some.double(), draws))
        return messages.reshape(x.shape)

    def tally(self, messages: Tensor) -> Tally:
        """messages: (n, dim), as ``randomize`` returns them. Raises TypeError, ValueError."""
        total = self._checked(messages).new_zeros(self.dim, dtype=torch.float64)
        for some in messages.split(rows_at_once(messages, self.dim)):
            total += some.sum(0, dtype=torch.float64)
        # One check is enough: NaN and infinity come through a sum.
        return Tally(len(messages), {"sum": checks.floating("messages", total)})

    def _checked(self, messages: Tensor) -> Tensor:
        messages = checks.real("messages", messages)
        return checks.shaped("messages", messages, "n", self.dim, empty=True)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        alone = torch.ones(len(x), dtype=torch.int64, device=x.device)
        return self.collect_crowd(x, alone, draws)

    def collect_groups(self, x: Tensor, groups: Tensor, size: int, draws: Draws) -> Tally:
        total = x.new_zeros(size, self.dim, dtype=torch.float64)
        rows = rows_at_once(x, self.dim)
        for part, own in zip(x.split(rows), groups.split(rows), strict=True):
            total.index_add_(0, own, self._messages(part.double(), draws))
        return Tally(torch.bincount(groups, minlength=size), {"sum": total})

    def collect_crowd(self, points: Tensor, counts: Tensor, draws: Draws) -> Tally:
        """``collect`` of counts[j] users at points[j], each with its own draws. Unchecked.

        Distributed as ``sample_tally``; time of n messages, O(m dim) memory.

        Args:
            points: (m, dim).
            counts: (m,), int64.
            draws: of the messages.
        """
        if not len(counts):
            return Tally(0, {"sum": self._collect(points, counts, draws)})
        n, least = map(int, checks.read(counts.sum(), counts.amin()))
        if not least:
            held = counts.nonzero()[:, 0]
            points = points[held]
            counts = counts[held]
        return Tally(n, {"sum": self._collect(points, counts, draws)})

    def sample_unchecked(self, summary: Crowd, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """Each randomizer states the cost. Raises TypeError, ValueError for points outside."""
        points, counts = self._types("summary", checks.instance("summary", summary, Crowd))
        crowd = Crowd(points.to(draws.device), counts.to(draws.device))
        scaled = crowd.rows.double() / self.radius
        scaled = scaled / scaled.norm(dim=-1, keepdim=True).clamp_min(1)
        sums = self._sums(scaled, crowd.counts, shape, draws)
        return Tally(crowd.n, {"sum": self.radius * sums})

    def analyse(self, tally: Tally) -> Estimate:
        """The mean of the messages, unbiased."""
        value = self.check(tally)["sum"] / tally.users(1)
        error = self.worst_mse(tally.n).sqrt().to(value)
        return Estimate(value, error[..., None].expand_as(value), tally.n)

    def exact(self, summary: Crowd) -> Tensor:
        """The users' mean, (dim,)."""
        return self.validate_summary(summary).mean

    def predicted_mse(self, summary: Crowd) -> Tensor:
        """(variance + outer mean(x_i^2))/n."""
        summary = self.validate_summary(summary)
        counts = summary.counts.double()
        n = broadcast_users(summary.n, 1)
        squares = weighted_sum(counts, summary.rows.double().square()) / n
        return (self.moments.variance + self.moments.outer * squares) / n

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        """At x = 0 if outer < 0, which is less noise along x than across; else on the sphere.

        Of the points of the sphere one on an axis is the worst for ``WORST``.
        """
        square = self.radius**2 / (1 if objective is Objective.WORST else self.dim)
        mse = self.moments.variance + max(self.moments.outer, 0.0) * square
        return torch.as_tensor(mse / broadcast_users(n), dtype=torch.float64)

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack_vectors(messages, self.bits_per_user // 64)

    def decode(self, data: bytes) -> Tensor:
        return wire.unpack_vectors(data, self.dim)

    def _collect(self, points: Tensor, counts: Tensor, draws: Draws) -> Tensor:
        """The sum of ``collect_crowd`` for counts > 0."""
        total = torch.zeros(self.dim, dtype=torch.float64, device=points.device)
        for types, first, last in consecutive(counts, rows_at_once(points, self.dim)):
            total += self._total(points[first : last + 1].double(), types - first, draws)
        return total

    def _total(self, points: Tensor, types: Tensor, draws: Draws) -> Tensor:
        """The sum of one message of each user: (m, dim) float64, (n,) -> (dim,).

        They hold points[types].
        """
        return self._messages(points.index_select(0, types), draws).sum(0)

    def _types(self, name: str, crowd: Crowd) -> tuple[Tensor, Tensor]:
        points = self._inside(name, crowd.values).detach()
        if points.ndim != crowd.counts.ndim + 1:
            raise ValueError(
                f"{name} must hold points of shape (types, {self.dim}), not {tuple(points.shape)}"
            )
        counts = user_counts(name, crowd.counts, points.shape[-2])
        return points, counts.to(points.device)

    @abstractmethod
    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        """One message for each row of ``users`` (n, dim), float64."""

    @abstractmethod
    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        """Sums of messages, (*shape, *batch, dim), for points (*batch, m, dim) of the unit ball."""

    def _inside(self, name: str, x: Tensor) -> Tensor:
        x = checks.shaped(name, checks.precise(name, x), ..., self.dim)
        # One pass: NaN and infinity come through a norm.
        norms = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)
        ((_, largest),) = checks.ends(norms)
        if not math.isfinite(largest):
            checks.finite(**{name: x})
        # Rounding of the norm is let through (such points are projected onto the ball), no more.
        rounding = 4 * math.sqrt(self.dim) * torch.finfo(x.dtype).eps
        if largest > self.radius * (1 + rounding):
            raise ValueError(
                f"{name} holds points outside the ball of radius {self.radius:g}; scale or clip "
                "them"
            )
        return x


def rows_at_once(x: Tensor, width: int) -> int:
    """How many rows of this many numbers to take at a time."""
    block = CPU_BLOCK if x.device.type == "cpu" else DEVICE_BLOCK
    return max(1, block // (8 * max(1, width)))


def consecutive(counts: Tensor, at_once: int) -> Iterator[tuple[Tensor, int, int]]:
    """The types of users 0, 1, ..., some users at a time, with the first and the last of these.

    The first counts[0] users hold type 0 and so on.
    """
    ends = counts.cumsum(0)
    known = ends.cpu()  # waits for a device once, whatever the parts
    users = int(known[-1]) if len(known) else 0
    for start in range(0, users, at_once):
        end = min(start + at_once, users)
        some = torch.arange(start, end, device=counts.device)
        types = torch.searchsorted(ends, some, right=True)
        ends_of_part = known.new_tensor([start, end - 1])
        first, last = torch.searchsorted(known, ends_of_part, right=True)
        yield types, int(first), int(last)


def check_client(client: BallRandomizer, dim: int, radius: float) -> BallRandomizer:
    """``client``, a randomizer of the ball of this dimension and at least this radius.

    Raises TypeError, ValueError.
    """
    client = checks.instance("client", client, BallRandomizer)
    if client.dim != dim or client.radius < radius * (1 - 1e-12):
        raise ValueError(
            f"client must have dim = {dim} and a radius of at least {radius:g}, those of what "
            f"users show, not {client.dim} and {client.radius:g}"
        )
    return client


@dataclass(frozen=True)
class DuchiJordanWainwright(BallRandomizer):
    """For x in [-radius, radius] the message B or -B, B = radius coth(epsilon/2).

    E Y = x and Var Y = B^2 - x^2. x is rounded to the sign of x or the opposite one without bias,
    and the rounded sign kept with probability e^epsilon/(e^epsilon + 1):
    P(Y = B) = (1 + x tanh(epsilon/2)/radius)/2. Up to epsilon = 1.044 it has less variance at x = 0
    than :class:`PrivUnit`, which takes vectors too.
    dim: 1; epsilon in [1e-6, 50]; radius > 0. Raises ValueError.

    ``sample_tally`` draws a binomial number for each type in a repetition.

    Guarantees: exactly epsilon-LDP, for any two points of the ball.
    Source: Duchi, Jordan, Wainwright (2018), in one dimension.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim != 1:
            raise ValueError(
                f"dim must be 1, not {self.dim}; for vectors take PrivUnit, which has less noise"
            )

    @property
    def guarantee(self) -> Guarantee:
        source = "Duchi, Jordan, Wainwright (2018); P(sign kept) = e^epsilon/(e^epsilon + 1)"
        return exact_local(self.epsilon, source)

    @property
    def bias(self) -> float:
        """tanh(epsilon/2) = P(sign kept) - P(sign lost)."""
        return math.tanh(self.epsilon / 2)

    @property
    def entry_limit(self) -> float:
        return self.radius / self.bias

    def disagreement(self, sizes: Tensor) -> Tensor:
        """P(Y x < 0) for points x of these sizes, in units of the radius."""
        sizes = sizes.double().clamp_max(1)
        return (1 - sizes) / 2 + sizes / (math.exp(self.epsilon) + 1)

    def _behind(self, sizes: Tensor) -> Tensor:
        """``disagreement`` in whole numbers of 2^63, rounded up: the private side."""
        # At the ends, without rounding errors.
        least = at_least(1 / (exponential(self.epsilon) + 1))
        chance = self.disagreement(sizes).clamp_min(least) * 2.0**63
        return chance.ceil().to(torch.int64)

    @cached_property
    def moments(self) -> BallMoments:
        """Exact moments: variance B^2, outer -1.

        Those of a coin of variance sinh(epsilon/2)^-2 at the ends.
        """
        odds = math.sinh(self.epsilon / 2) ** 2
        variance = self.radius**2 * (1 + 1 / odds)
        return BallMoments(variance, -2 * math.sqrt(odds), 1 + 4 * odds, outer=-1.0)

    @cached_property
    def subgaussian(self) -> SubGaussian:
        """psi2 at the worst x, by search; proxy by Hoeffding's lemma, attained at 0."""
        sides = np.array([1.0, -1.0])

        def at(mean: float) -> float:
            return psi2((sides - mean, (1 + mean * sides) / 2))

        worst = largest(at, 0.0, min(self.bias, SURE), 9)
        return SubGaussian(self.entry_limit * worst, self.entry_limit**2)

    def _messages(self, users: Tensor, draws: Draws) -> Tensor:
        sizes = users[:, 0].abs() / self.radius
        lost = draws.integers((len(users),)) < self._behind(sizes)
        positive = (users < 0) == lost[:, None]
        return torch.where(positive, 1.0, -1.0).to(users) * self.entry_limit

    def _sums(self, points: Tensor, counts: Tensor, shape: tuple[int, ...], draws: Draws) -> Tensor:
        users = counts.expand(*shape, *counts.shape)
        behind = draws.binomial(users, self.disagreement(points[..., 0].abs()))
        ahead = torch.where(points[..., 0] < 0, 2 * behind - users, users - 2 * behind)
        return ahead.sum(-1, keepdim=True).double() / self.bias
