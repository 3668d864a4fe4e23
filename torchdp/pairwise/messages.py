"""Protocols whose messages are noisy vectors: two messages at half the budget, and one at the full budget."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchdp.noise import Noise, source
from torchdp.pairwise.noise import NoiseMoments, noise_moments
from torchdp.pairwise.protocol import AggregateProtocol, PairwiseProtocol, reach
from torchdp.pairwise.statistic import Form, Pairs
from torchdp.privacy import Guarantee, compose
from torchdp.protocol.interval import ErrorParts
from torchdp.randomizers import PrivUnit, PrivUnitG

ROUNDING = 1e-9  # of sums over users
NUMBERS_AT_ONCE = 2**22  # of message coordinates held in memory by the per-user path


@dataclass(frozen=True)
class TwoMessage(AggregateProtocol):
    """The non-interactive protocol: each user sends its vector twice, each time at epsilon/2.

    With Y, Y' the two noisy copies of u_x and J = diag(weights), the analyst returns (mean Y)^T J (mean Y').
    One vector for each type serves as both factors (the signature form); with v the message's variance,
    Var = 2 v ||J mean u||^2 / n + v^2 sum weights^2 / n^2, exactly.

    Guarantees: epsilon-LDP for each user (basic composition of two messages at epsilon/2).
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11.
    """

    @cached_property
    def randomizer(self) -> PrivUnitG:
        """What a user runs for each of the two messages."""
        return PrivUnitG(self.statistic.dim, self.epsilon / 2, self.statistic.radius)

    @property
    def guarantee(self) -> Guarantee:
        return compose([self.randomizer.guarantee] * 2)

    @property
    def bits_per_user(self) -> int:
        return 2 * self.randomizer.bits

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.ALL

    @property
    def layout(self) -> tuple[Tensor, ...]:
        return tuple(self.statistic.points.new_zeros(2, self.statistic.dim))

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        v = self.randomizer.moments.variance
        return reach(torch.stack(sums), n, self.statistic.radius, v)

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(sum of the first messages, sum of the second), each (r,)."""
        points, counts = self.statistic.points, torch.bincount(types, minlength=self.statistic.types)
        draws = source(noise, points.device)
        first, second = (self.randomizer.hear_types(points, counts, draws)["sum"] for _ in range(2))
        return first, second

    def tally(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the two messages of some users, each (n, r)."""
        return self.randomizer.decode_sum(first), self.randomizer.decode_sum(second)

    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        draw = self.randomizer.sample_sum
        points = self.statistic.points
        return tuple(draw(points, counts, generator=generator, sample_shape=shape) for _ in range(2))

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        first, second = sums
        return (form.weights * first * second).sum(-1) / n**2 + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        n = counts.sum()
        return self._variance((form.weights * (counts @ self.statistic.points)).square().sum(-1) * 2, n, form)

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        first, second = sums
        squares = 2 * (form.weights.square() * first * second).sum(-1)
        return self._variance(squares.clamp_min(0), n, form)

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return (sums[0] + sums[1]) / (2 * n)

    def mean_error(self, sums: tuple[Tensor, ...], n: float, form: Form) -> ErrorParts:
        first, second = sums
        return _weight_parts(2 * self.randomizer.moments.variance / n, first * second / n**2, form.weights, 4)

    def _variance(self, squares: Tensor, n: Tensor | float, form: Form) -> Tensor:
        """``squares``: ||J sum u||^2 of the first messages plus that of the second."""
        v = self.randomizer.moments.variance
        return v * squares / n**3 + v**2 * form.weights.square().sum(-1) / n**2


@dataclass(frozen=True)
class SingleMessage(PairwiseProtocol):
    """Protocols in which each user sends its vector once, at the full epsilon.

    kind: PrivUnitG, or PrivUnit, whose noise is less by a fraction of order 1/r (a quarter at r = 16, epsilon = 8).
    """

    kind: type[PrivUnit] | type[PrivUnitG] = PrivUnitG

    def __post_init__(self) -> None:
        if self.kind not in (PrivUnit, PrivUnitG):
            raise TypeError(
                "kind must be the class PrivUnit or PrivUnitG: their noise is the same in all directions"
            )
        super().__post_init__()

    @cached_property
    def randomizer(self) -> PrivUnit | PrivUnitG:
        """What a user runs."""
        return self.kind(self.statistic.dim, self.epsilon, self.statistic.radius)

    @property
    def guarantee(self) -> Guarantee:
        return replace(self.randomizer.guarantee, exact=False)  # exact for the ball, these are k points of it

    @property
    def bits_per_user(self) -> int:
        return self.randomizer.bits


@dataclass(frozen=True)
class OneMessage(SingleMessage, AggregateProtocol):
    """Each user sends its vector once, at the full epsilon; the analyst needs only the sum S of the messages.

    It returns (S^T J S)/n^2 - v sum(weights)/n, v the message's variance: because the noise is isotropic and its
    size known, the square of the noise has a known mean and one message carries both sides of the form. With s the
    sum of the u_x over users and z_i the noise of user i,
    n^4 Var = 4 n v ||J s||^2 + 2 n^2 v^2 sum weights^2 + sum_i {4 E[s^T J z_i z_i^T J z_i] + Var(z_i^T J z_i)
    - 2 v^2 sum weights^2}, exactly; for PrivUnitG, with w_x = u_x^T J u_x and C the largest norm of the u_x, the term
    in braces is (v/C^2) (w_x^2 - 4 w_x u_x^T J s).

    Guarantees: epsilon-LDP for each user.
    Source: derived here from the exact moments of the noise; compare Ghazi et al. (2023), Lemma 11, who send two
    messages at epsilon/2.
    """

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.ALL

    @property
    def layout(self) -> tuple[Tensor, ...]:
        return (self.statistic.points.new_zeros(self.statistic.dim),)

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        return reach(sums[0], n, self.statistic.radius, self.randomizer.moments.variance)

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(sum of the messages,), (r,)."""
        counts = torch.bincount(types, minlength=self.statistic.types)
        points = self.statistic.points
        return (self.randomizer.hear_types(points, counts, source(noise, points.device))["sum"],)

    def tally(self, messages: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the messages of some users, (n, r)."""
        return (self.randomizer.decode_sum(messages),)

    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        points = self.statistic.points
        return (self.randomizer.sample_sum(points, counts, generator=generator, sample_shape=shape),)

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        v = self.randomizer.moments.variance
        return (form.weights * (sums[0].square() / n**2 - v / n)).sum(-1) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        points, n = self.statistic.points, counts.sum()
        total = counts @ points
        extra = counts @ self._noise.beyond_normal(points / self.statistic.radius, total, form.weights)
        return self._variance((form.weights * total).square().sum(-1), n, form) + extra / n**4

    @cached_property
    def _noise(self) -> NoiseMoments:
        return noise_moments(self.randomizer)

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Leaves out the terms of the third and fourth moments: a fraction that vanishes as n grows."""
        noise = n * self.randomizer.moments.variance * form.weights.square().sum(-1)
        return self._variance(((form.weights * sums[0]).square().sum(-1) - noise).clamp_min(0), n, form)

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return sums[0] / n

    def mean_error(self, sums: tuple[Tensor, ...], n: float, form: Form) -> ErrorParts:
        v = self.randomizer.moments.variance / n
        return _weight_parts(4 * v, sums[0].square() / n**2 - v, form.weights, 8)

    def _variance(self, squares: Tensor, n: Tensor | float, form: Form) -> Tensor:
        v = self.randomizer.moments.variance
        return 4 * v * squares / n**3 + 2 * v**2 * form.weights.square().sum(-1) / n**2


@dataclass(frozen=True)
class OneMessagePairs(SingleMessage):
    """One message at the full epsilon; the analyst pairs the messages: sum over i != j of Y_i^T J Y_j / (n (n-1)).

    Unbiased for distinct pairs whatever the kernel's diagonal, but the analyst must see each message (the sum
    of their coordinates' squares is needed too), so there is no aggregate path.
    Var = [4 v sum_users ||J (s - u_x)||^2 + 2 n (n-1) v^2 sum weights^2] / (n (n-1))^2, exactly.

    Guarantees: epsilon-LDP for each user.
    Source: a U-statistic of independent messages with Cov Y = v I; compare Bell, Bellet, Gascon, Kulkarni (2020),
    Algorithm 1, which is the same estimator for randomized response.
    """

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.DISTINCT

    @property
    def layout(self) -> tuple[Tensor, ...]:
        return tuple(self.statistic.points.new_zeros(2, self.statistic.dim))

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        total, squares = sums
        if bool((squares * n < total.square() * (1 - ROUNDING)).any()):
            return "the squares add up to less than the square of the sum over n"
        radius, v = self.statistic.radius, self.randomizer.moments.variance
        return reach(total, n, radius, v) or reach(squares.sqrt(), n, radius, v)

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """(sum of the messages, sum of the squares of their coordinates), each (r,); some users at a time."""
        points = self.statistic.points
        total, squares = points.new_zeros((2, points.shape[1]), dtype=torch.float64)
        with tqdm(total=len(types), unit="user", unit_scale=True, delay=2, leave=False, disable=None) as bar:
            for some in types.split(max(1, NUMBERS_AT_ONCE // points.shape[1])):
                part = self.tally(self.randomizer.sample(points[some], noise=noise))
                total, squares = total + part[0], squares + part[1]
                bar.update(len(some))
        return total, squares

    def tally(self, messages: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the messages of some users, (n, r)."""
        return self.randomizer.decode_sum(messages), self.randomizer.decode_sum(messages.square())

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        total, squares = sums
        return (form.weights * (total.square() - squares)).sum(-1) / (n * (n - 1)) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        points, n = self.statistic.points, counts.sum()
        others = form.weights * (counts @ points - points)  # (k, r): J (s - u_x)
        return self._variance(counts @ others.square().sum(-1), n, form)

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        noise = n * self.randomizer.moments.variance * form.weights.square().sum(-1)
        squares = ((form.weights * sums[0]).square().sum(-1) - noise).clamp_min(0)
        return self._variance(n * squares, n, form)

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return sums[0] / n

    def mean_error(self, sums: tuple[Tensor, ...], n: float, form: Form) -> ErrorParts:
        total, squares = sums
        v = self.randomizer.moments.variance
        return _weight_parts(4 * v / (n - 1), (total.square() - squares) / (n * (n - 1)), form.weights, 8)

    def _variance(self, squares: Tensor, n: Tensor | float, form: Form) -> Tensor:
        v, pairs = self.randomizer.moments.variance, n * (n - 1)
        return 4 * v * squares / pairs**2 + 2 * v**2 * form.weights.square().sum(-1) / pairs


def _weight_parts(rate: float, squares: Tensor, weights: Tensor, share: float) -> ErrorParts:
    """One part for each value w of the weights, the coordinates that share it: its error is known from its size.

    Mean w sum_t squares_t over the part's coordinates t, unbiased for w ||s||^2 of them; variance
    rate w^2 (||s||^2 + m rate/share), m of them. The noise is isotropic, so the parts are independent but for its
    third and fourth moments. squares: (*batch, r); weights: (r,).
    """
    values, which = weights.unique(return_inverse=True)
    member = torch.nn.functional.one_hot(which, len(values)).to(squares)  # (r, parts)
    slope = rate * values
    sizes = member.sum(0) * values.square()
    variance = slope * values * (squares @ member) + rate**2 / share * sizes
    zero = torch.zeros_like(variance)
    return ErrorParts(variance, zero + slope, zero)
