"""One round: users of k types send noisy copies of their vector and answer public questions about
it.

An answer is one number of [-1, 1], sent by the better of two randomizers of the one-dimensional
ball.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchdp import checks, wire
from torchdp.draws import Draws, Simulated
from torchdp.privacy import Guarantee, compose
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
from torchdp.protocol.records import single, users_of
from torchdp.randomizers import DuchiJordanWainwright, PrivUnit
from torchdp.randomizers.ball.ball import BallRandomizer
from torchdp.randomizers.base import LARGEST_EPSILON, SMALLEST_EPSILON

if TYPE_CHECKING:
    from scipy.interpolate import CubicSpline

KNOTS = 400  # of a spline through log epsilon, which then has a relative error below 1e-6


def scalar_response(epsilon: float) -> BallRandomizer:
    """The one with the smaller variance at its worst value, 0: the sign up to epsilon = 1.044, then
    PrivUnit.
    """
    epsilon = checks.positive("epsilon", epsilon)
    sign = DuchiJordanWainwright(1, epsilon)
    capped = PrivUnit(1, epsilon)
    return sign if sign.moments.variance <= capped.moments.variance else capped


def variance(response: BallRandomizer, values: Tensor) -> Tensor:
    """Var of one message about each value; a concave function."""
    moments = response.moments
    return moments.variance + moments.outer * values.square()


def worst_variance(epsilon: float) -> float:
    """Var of ``scalar_response`` at value 0, where it is largest."""
    return scalar_response(epsilon).moments.variance


def searched_variance(dim: int, epsilon: float) -> float:
    """``PrivUnit.unit_variance`` to a relative 1e-6: for searches, which ask for hundreds of
    epsilons.
    """
    return math.exp(float(_log_variance(dim)(math.log(epsilon))))


def searched_worst_variance(epsilon: float) -> float:
    """``worst_variance`` to a relative 1e-5, for searches: what rounding to a grid adds is left
    out.
    """
    sign = 1 / math.tanh(epsilon / 2) ** 2
    return min(sign, searched_variance(1, epsilon))


@lru_cache(maxsize=64)
def _log_variance(dim: int) -> "CubicSpline":
    from scipy.interpolate import CubicSpline  # here, because loading it takes long

    logs = np.linspace(math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON), KNOTS)
    epsilons = torch.from_numpy(np.exp(logs)).clamp(SMALLEST_EPSILON, LARGEST_EPSILON)
    return CubicSpline(logs, PrivUnit.unit_variance(dim, epsilons).log().numpy())


@dataclass(frozen=True)
class Question:
    """What the analyst publishes: each user is to answer <u_x, vector>, clipped to center +-
    half_width.

    vector: (*batch, r); center, half_width: (*batch,). All come from earlier messages, so all are
    public.
    """

    vector: Tensor
    center: Tensor
    half_width: Tensor

    def shown(self, points: Tensor) -> Tensor:
        """What a user of each type feeds its randomizer: numbers in [-1, 1], (*batch, k)."""
        width = torch.where(self.half_width > 0, self.half_width, 1.0)
        return ((self.vector @ points.mT - self.center[..., None]) / width[..., None]).clamp(-1, 1)

    def clipping(self, points: Tensor) -> Tensor:
        """What clipping adds to the value of each type, (*batch, k): public, and 0 where nothing is
        clipped.
        """
        values = self.vector @ points.mT - self.center[..., None]
        wide = self.half_width[..., None]
        return torch.minimum(torch.maximum(values, -wide), wide) - values


def ask(points: Tensor, vector: Tensor, clip: float) -> Question:
    """The question about ``vector`` that clips no type, unless half the range of its values is
    above ``clip``.

    The range over all types is known to everyone, so knowing it costs no privacy and clipping is
    never needed; it can still pay, because a message's variance grows with half_width^2.
    """
    values = vector @ points.mT
    low, high = values.amin(-1), values.amax(-1)
    return Question(vector, (low + high) / 2, ((high - low) / 2).clamp_max(clip))


@dataclass(frozen=True)
class Message:
    """One message of every user, through ``client``: a user of type x sends a noisy shown_x.

    shown: (*batch, k, dim). What is asked for is the mean of center + scale * shown_x over users,
    (*batch, dim); center, scale: (*batch, 1).
    """

    client: BallRandomizer
    shown: Tensor
    center: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Round(MessageProtocol[Tensor, Tensor]):
    """A user of type x sends a noisy u_x at each of ``vectors``, then answers each question at
    ``answers``.

    A message is a row of all of them, float64; the estimate is their mean: vectors (r each), then
    answers, each cut off to its question's range. Questions may be batched for ``sample_tally``,
    not for users. points: (k, r). vectors, answers: epsilons, one answer for each question.

    Guarantees: (sum of the epsilons)-LDP for each user.
    """

    takes_groups = False
    points: Tensor
    vectors: tuple[float, ...]
    questions: tuple[Question, ...] = ()
    answers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        checks.own(self)
        if checks.matrix("points", self.points).ndim != 2 or self.points.dtype != torch.float64:
            raise ValueError(
                f"points must be a float64 matrix (types, r), not {tuple(self.points.shape)}"
            )
        for name in ("vectors", "questions", "answers"):
            checks.instance(name, getattr(self, name), tuple)
        if len(self.questions) != len(self.answers) or not self.vectors + self.answers:
            raise ValueError(
                "answers must hold one epsilon for each question; a user sends one message at least"
            )
        checks.validated(self, "guarantee")  # epsilons out of the randomizers' ranges

    @cached_property
    def randomizers(self) -> tuple[PrivUnit, ...]:
        """What a user runs for each vector."""
        radius = float(self.points.norm(dim=1).max())
        return tuple(PrivUnit(self.points.shape[1], each, radius) for each in self.vectors)

    @cached_property
    def responses(self) -> tuple[BallRandomizer, ...]:
        """What a user runs for each answer."""
        return tuple(scalar_response(each) for each in self.answers)

    @cached_property
    def sent(self) -> dict[str, Message]:
        """What a user sends, by the names of a tally's parts."""
        one = self.points.new_ones(1)
        found = {}
        for index, client in enumerate(self.randomizers):
            found[f"vector{index}"] = Message(client, self.points, torch.zeros_like(one), one)
        for index, response in enumerate(self.responses):
            question = self.questions[index]
            found[f"answer{index}"] = Message(
                response,
                question.shown(self.points)[..., None],
                question.center[..., None],
                question.half_width[..., None],
            )
        return found

    @cached_property
    def guarantee(self) -> Guarantee:
        return compose([client.guarantee for client in (*self.randomizers, *self.responses)])

    @property
    def layout(self) -> Layout:
        return {name: each.client.layout["sum"] for name, each in self.sent.items()}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {name: each.client.limits(n)["sum"] for name, each in self.sent.items()}

    @property
    def width(self) -> int:
        """Numbers in a message."""
        return sum(each.client.dim for each in self.sent.values())

    @property
    def bits_per_user(self) -> int:
        return 64 * self.width

    @property
    def held(self) -> int:
        return len(self.points)

    def validate(self, x: Tensor) -> Tensor:
        return super().validate(x).to(self.points.device)

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (k,) of whole users, one at least, on the points' device. Raises TypeError,
        ValueError.
        """
        counts = super().validate_summary(summary)
        single(users_of(counts))
        return counts.to(self.points.device)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        rows = [
            each.client.randomize_unchecked(each.shown[x], draws) for each in self.sent.values()
        ]
        return torch.cat(rows, 1)

    def tally(self, messages: Tensor) -> Tally:
        messages = checks.shaped(
            "messages", checks.floating("messages", messages), "n", self.width, empty=True
        )
        sizes = [each.client.dim for each in self.sent.values()]
        sums = messages.sum(0, dtype=torch.float64).split(sizes)
        return Tally(len(messages), dict(zip(self.sent, sums, strict=True)))

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """Summed type by type."""
        counts = self.summary(x)
        sums = {}
        for name, each in self.sent.items():
            sums[name] = each.client.collect_crowd(each.shown, counts, draws)["sum"]
        return Tally(len(x), sums)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """At the cost of the randomizers' own sums."""
        batch = (*shape, *np.broadcast_shapes(*(each.center.shape for each in self.questions)))
        sums = {}
        for name, each in self.sent.items():
            asked = each.shown.shape[:-2]  # the questions' own batch
            if not each.shown.numel():  # of no repetition
                sums[name] = each.shown.new_zeros(*batch, each.client.dim)
                continue
            crowd = Crowd(each.shown, summary.expand(*asked, -1))
            repetitions = batch[: len(batch) - len(asked)]
            sums[name] = each.client.sample_unchecked(crowd, draws, repetitions)["sum"]
        return Tally(int(summary.sum()), sums)

    def analyse(self, tally: Tally) -> Estimate:
        n = single(self.check(tally).n)
        means = [each.center + each.scale * tally[name] / n for name, each in self.sent.items()]
        value = torch.cat(means, -1)
        return Estimate(value, (self._largest / n).sqrt().expand_as(value), n)

    def exact(self, summary: Tensor) -> Tensor:
        counts = self._users(summary)
        shares = counts / counts.sum()
        means = [each.center + each.scale * (shares @ each.shown) for each in self.sent.values()]
        return torch.cat(means, -1)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        counts = self._users(summary)
        variances = [
            each.scale.square() * (counts @ variance(each.client, each.shown))
            for each in self.sent.values()
        ]
        return torch.cat(variances, -1) / counts.sum() ** 2

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        return checks.instance("objective", objective, Objective).of(
            self._largest / checks.integer("n", n, 1)
        )

    def _users(self, summary: Tensor) -> Tensor:
        counts = checks.users("summary", summary, self.held)
        single(users_of(counts))
        return counts.to(self.points.device)

    @cached_property
    def _largest(self) -> Tensor:
        """The largest variance of one user's message, that at the value 0."""
        variances = [
            each.scale.square() * variance(each.client, torch.zeros_like(each.shown[..., 0, :]))
            for each in self.sent.values()
        ]
        return torch.cat(variances, -1)

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack_vectors(messages, self.width)

    def decode(self, data: bytes) -> Tensor:
        return wire.unpack_vectors(data, self.width)
