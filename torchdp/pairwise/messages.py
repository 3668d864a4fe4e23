"""Protocols whose messages are noisy vectors: two messages at half the budget, and one at the full budget."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.pairwise.protocol import PairwiseProtocol
from torchdp.pairwise.statistic import Form, Pairs
from torchdp.pairwise.variance import NoiseMoments, noise_moments
from torchdp.privacy import Guarantee, compose
from torchdp.protocol import Layout, Limits, MessageProtocol, Relay, Tally, Users
from torchdp.protocol.interval import Error
from torchdp.protocol.quadratic import QuadraticError
from torchdp.randomizers import PrivUnit


@dataclass(frozen=True)
class TwoMessage(PairwiseProtocol, MessageProtocol[Tensor, Tensor]):
    """The non-interactive protocol: each user sends its vector twice, each time at epsilon/2.

    With Y, Y' the two noisy copies of u_x and J = diag(weights), the analyst returns (mean Y)^T J (mean Y').
    One vector for each type serves as both factors (the signature form); with v the message's variance,
    Var = 2 v ||J mean u||^2 / n + v^2 sum weights^2 / n^2, exactly. A message is (2, r).

    Guarantees: epsilon-LDP for each user (basic composition of two messages at epsilon/2).
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 11.
    """

    @cached_property
    def randomizer(self) -> PrivUnit:
        """What a user runs for each of the two messages."""
        return PrivUnit(self.statistic.dim, self.epsilon / 2, self.statistic.radius)

    @property
    def guarantee(self) -> Guarantee:
        return compose([self.randomizer.guarantee] * 2)

    estimated_pairs = Pairs.ALL

    @property
    def bits_per_user(self) -> float:
        return 2 * self.randomizer.bits_per_user

    @property
    def layout(self) -> Layout:
        return {name: ((self.statistic.dim,), torch.float64) for name in ("first", "second")}

    def limits(self, n: Users) -> dict[str, Limits]:
        return dict.fromkeys(self.layout, self.randomizer.limits(n)["sum"])

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        given = self.statistic.points[x]
        return torch.stack([self.randomizer.randomize_unchecked(given, draws) for _ in range(2)], 1)

    def tally(self, messages: Tensor) -> Tally:
        """Messages (n, 2, r)."""
        sums = [self.randomizer.tally(each)["sum"] for each in self._copies(messages).unbind(1)]
        return Tally(len(messages), dict(zip(self.layout, sums, strict=True)))

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        hear, points, counts = self.randomizer.collect_crowd, self.statistic.points, self.summary(x)
        return Tally(len(x), {name: hear(points, counts, draws)["sum"] for name in self.layout})

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        crowd = self.statistic.crowd(self.validate_summary(summary))
        return Tally(
            crowd.n, {name: self.randomizer.sample_unchecked(crowd, draws, shape)["sum"] for name in self.layout}
        )

    def encode(self, messages: Tensor) -> bytes:
        return self.randomizer.encode(self._copies(messages).flatten(0, 1))

    def decode(self, data: bytes) -> Tensor:
        copies = self.randomizer.decode(data)
        if len(copies) % 2:
            raise ValueError(f"data must hold two copies of each user's vector, not {len(copies)} in all")
        return copies.view(-1, 2, self.statistic.dim)

    def _copies(self, messages: Tensor) -> Tensor:
        if checks.real("messages", messages).ndim != 3 or messages.shape[1] != 2:
            raise ValueError(f"messages must have shape (n, 2, {self.statistic.dim}), not {tuple(messages.shape)}")
        return messages

    def mean(self, tally: Tally, form: Form) -> Tensor:
        return (form.weights * tally["first"] * tally["second"]).sum(-1) / tally.users() ** 2 + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        squares = (form.weights * (counts @ self.statistic.points)).square().sum(-1) * 2
        return self._variance(squares, counts.sum(-1), form)

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        return self._variance(2 * (n * self.statistic.longest(form)) ** 2, n, form)

    def mean_point(self, tally: Tally) -> Tensor:
        return (tally["first"] + tally["second"]) / (2 * tally.users(1))

    def mean_errors(self, tally: Tally) -> Callable[[Tensor, Tensor], Error]:
        point, v = self.mean_point(tally), self.randomizer.moments.variance / (2 * tally.users(1))

        def error(weights: Tensor, value: Tensor) -> QuadraticError:
            own = ((point.square() - v) * weights).sum(-1)
            return QuadraticError.isotropic(point, weights, v, offset=own - value)

        return error

    def _variance(self, squares: Tensor | float, n: float | Tensor, form: Form) -> Tensor:
        """``squares``: ||J sum u||^2 of the first messages plus that of the second."""
        v = self.randomizer.moments.variance
        return v * squares / n**3 + v**2 * form.weights.square().sum(-1) / n**2


@dataclass(frozen=True)
class OneMessage(PairwiseProtocol, Relay[Tensor, Tensor, PrivUnit]):
    """Each user sends its vector once, at the full epsilon; the analyst needs only the sum S of the messages.

    It returns (S^T J S)/n^2 - v sum(weights)/n, v the message's variance: because the noise is isotropic and its
    size known, the square of the noise has a known mean and one message carries both sides of the form. With s the
    sum of the u_x over users and z_i the noise of user i,
    n^4 Var = 4 n v ||J s||^2 + 2 n^2 v^2 sum weights^2 + sum_i {4 E[s^T J z_i z_i^T J z_i] + Var(z_i^T J z_i)
    - 2 v^2 sum weights^2}, exactly.

    Guarantees: epsilon-LDP for each user.
    Source: derived here from the exact moments of the noise; compare Ghazi et al. (2023), Lemma 11, who send two
    messages at epsilon/2.
    """

    @cached_property
    def client(self) -> PrivUnit:  # type: ignore[override]
        """What a user runs."""
        return PrivUnit(self.statistic.dim, self.epsilon, self.statistic.radius)

    @property
    def guarantee(self) -> Guarantee:
        return replace(self.client.guarantee, exact=False)  # exact for the ball, these are k points of it

    def client_input(self, x: Tensor) -> Tensor:
        """The users' vectors."""
        return self.statistic.points[x]

    def mean_point(self, tally: Tally) -> Tensor:
        return tally["sum"] / tally.users(1)

    estimated_pairs = Pairs.ALL

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_crowd(self.statistic.points, self.summary(x), draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.client.sample_unchecked(self.statistic.crowd(self.validate_summary(summary)), draws, shape)

    def mean(self, tally: Tally, form: Form) -> Tensor:
        n, v = tally.users(1), self.client.moments.variance
        return (form.weights * (tally["sum"].square() / n**2 - v / n)).sum(-1) + form.constant

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        points, n = self.statistic.points, counts.sum(-1)
        total = counts @ points
        extra = (counts * self._noise.beyond_normal(points / self.statistic.radius, total, form.weights)).sum(-1)
        return self._variance((form.weights * total).square().sum(-1), n, form) + extra / n**4

    def worst_variance(self, n: float | Tensor, form: Form) -> Tensor:
        """||J s|| is at most n max ||J u_x||; a user's own term is affine in s, so it is largest at one type."""
        points, unit = self.statistic.points, self.statistic.points / self.statistic.radius
        each = (torch.as_tensor(n, dtype=torch.float64, device=points.device)[..., None] * row for row in points)
        own = torch.stack([self._noise.beyond_normal(unit, total, form.weights).amax(-1) for total in each])
        return self._variance((n * self.statistic.longest(form)) ** 2, n, form) + own.amax(0) / n**3

    @cached_property
    def _noise(self) -> NoiseMoments:
        return noise_moments(self.client)

    def mean_errors(self, tally: Tally) -> Callable[[Tensor, Tensor], Error]:
        point, v = self.mean_point(tally), self.client.moments.variance / tally.users(1)
        return lambda weights, value: QuadraticError.isotropic(point, weights, v)

    def _variance(self, squares: Tensor | float, n: float | Tensor, form: Form) -> Tensor:
        v = self.client.moments.variance
        return 4 * v * squares / n**3 + 2 * v**2 * form.weights.square().sum(-1) / n**2
