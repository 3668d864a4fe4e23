"""One round: users of k types send noisy copies of their vector and answer questions about it.

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
from torchdp.draws import Draws, Shape, Simulated
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

# Of a spline through log epsilon, which then has a relative error below 1e-6.
KNOTS = 400


def scalar_response(epsilon: float) -> BallRandomizer:
    """The one of less variance at its worst value, 0: the sign up to epsilon = 1.044."""
    epsilon = checks.positive("epsilon", epsilon)
    sign = DuchiJordanWainwright(1, epsilon)
    capped = PrivUnit(1, epsilon)
    return sign if sign.moments.variance <= capped.moments.variance else capped


def variance(response: BallRandomizer, values: Tensor) -> Tensor:
    """Var of one message about each value; a concave function."""
    moments = response.moments
    return moments.variance + moments.outer * values.square()


def searched_variance(dim: int, epsilon: float) -> float:
    """``PrivUnit.unit_variance`` to a relative 1e-6, for searches over hundreds of epsilons."""
    return math.exp(float(_log_variance(dim)(math.log(epsilon))))


def searched_worst_variance(epsilon: float) -> float:
    """Var of ``scalar_response`` at value 0 to a relative 1e-5, for searches.

    What rounding to a grid adds is left out.
    """
    sign = 1 / math.tanh(epsilon / 2) ** 2
    return min(sign, searched_variance(1, epsilon))


@lru_cache(maxsize=64)
def _log_variance(dim: int) -> "CubicSpline":
    from scipy.interpolate import CubicSpline  # here, because loading it takes long

    # Nearly linear in the logarithms, so that few knots do.
    logs = np.linspace(math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON), KNOTS)
    epsilons = torch.from_numpy(np.exp(logs)).clamp(SMALLEST_EPSILON, LARGEST_EPSILON)
    return CubicSpline(logs, PrivUnit.unit_variance(dim, epsilons).log().numpy())


@dataclass(frozen=True)
class Question:
    """What the analyst publishes: to answer is <u_x, vector>, clipped to center +- half_width.

    All come from earlier messages, so all are public.

    Args:
        vector: (*batch, r).
        center: (*batch).
        half_width: (*batch).
    """

    vector: Tensor
    center: Tensor
    half_width: Tensor

    def shown(self, points: Tensor) -> Tensor:
        """What a user of each type feeds its randomizer: numbers in [-1, 1], (*batch, k)."""
        # A question of width 0 has one answer, which every user sends as 0.
        width = torch.where(self.half_width > 0, self.half_width, 1.0)
        return (self._centred(points) / width[..., None]).clamp(-1, 1)

    def clipping(self, points: Tensor) -> Tensor:
        """What clipping adds to the value of each type, (*batch, k): public."""
        values = self._centred(points)
        width = self.half_width[..., None]
        return values.clamp(-width, width) - values

    def _centred(self, points: Tensor) -> Tensor:
        return self.vector @ points.mT - self.center[..., None]


def ask(points: Tensor, vector: Tensor, clip: float) -> Question:
    """The question about ``vector``, which clips where half its values' range is above ``clip``.

    The range over all types is known to everyone, so knowing it costs no privacy and clipping is
    never needed; it can still pay, because a message's variance grows with half_width^2.
    """
    # Over all types, whether users hold them or not: the range tells nothing of the data.
    low, high = (vector @ points.mT).aminmax(dim=-1)
    half_width = (high - low) / 2
    return Question(vector, (low + high) / 2, half_width.clamp_max(clip))


@dataclass(frozen=True)
class Message:
    """One message of every user, through ``client``: a user of type x sends a noisy shown_x.

    What is estimated is the mean of center + scale * shown_x over users, (*batch, dim).

    Args:
        client: the randomizer, of dimension dim.
        shown: (*batch, k, dim).
        center: (*batch, 1).
        scale: (*batch, 1).
    """

    client: BallRandomizer
    shown: Tensor
    center: Tensor
    scale: Tensor

    def value(self, mean: Tensor) -> Tensor:
        """What the mean message, (*batch, dim), says."""
        return self.center + self.scale * mean

    def variance(self, shown: Tensor) -> Tensor:
        """Of one message about each value, in the units of ``value``."""
        return self.scale.square()[..., None] * variance(self.client, shown)


@dataclass(frozen=True)
class Round(MessageProtocol[Tensor, Tensor]):
    """A user of type x sends a noisy u_x for each of ``vectors``, then answers each question.

    A message is a row of all of them, float64; the estimate is their mean: vectors (r each), then
    answers, each clipped to its question's range. Questions may be batched for ``sample_tally``,
    not for users.

    Args:
        points: u, (k, r), float64.
        vectors: epsilon of each.
        questions: what is answered.
        answers: epsilon of each answer.

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
        # Epsilons out of the randomizers' ranges are refused here.
        checks.validated(self, "guarantee")

    @cached_property
    def randomizers(self) -> tuple[PrivUnit, ...]:
        """What a user runs for each vector."""
        radius = float(self.points.norm(dim=1).max())
        r = self.points.shape[1]
        return tuple(PrivUnit(r, epsilon, radius) for epsilon in self.vectors)

    @cached_property
    def responses(self) -> tuple[BallRandomizer, ...]:
        """What a user runs for each answer."""
        return tuple(map(scalar_response, self.answers))

    @cached_property
    def sent(self) -> dict[str, Message]:
        """What a user sends, by the names of a tally's parts."""
        one = self.points.new_ones(1)
        messages = {}
        for index, client in enumerate(self.randomizers):
            messages[f"vector{index}"] = Message(client, self.points, torch.zeros_like(one), one)
        for index, response in enumerate(self.responses):
            question = self.questions[index]
            messages[f"answer{index}"] = Message(
                response,
                shown=question.shown(self.points)[..., None],
                center=question.center[..., None],
                scale=question.half_width[..., None],
            )
        return messages

    @cached_property
    def guarantee(self) -> Guarantee:
        return compose([client.guarantee for client in (*self.randomizers, *self.responses)])

    @property
    def layout(self) -> Layout:
        return {name: message.client.layout["sum"] for name, message in self.sent.items()}

    def limits(self, n: Users) -> dict[str, Limits]:
        return {name: message.client.limits(n)["sum"] for name, message in self.sent.items()}

    @property
    def sizes(self) -> list[int]:
        """Numbers of each vector and answer in a message."""
        return [message.client.dim for message in self.sent.values()]

    @property
    def width(self) -> int:
        """Numbers in a message."""
        return sum(self.sizes)

    @property
    def bits_per_user(self) -> int:
        return 64 * self.width

    @property
    def home(self) -> torch.device:
        return self.points.device

    def drawn_on(self, data: torch.device) -> torch.device:
        """Where the tables are: later rounds are made of what was heard."""
        return self.home

    @property
    def held(self) -> int:
        return len(self.points)

    def validate(self, x: Tensor) -> Tensor:
        return super().validate(x).to(self.home)

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (k,) of whole users, one at least. Raises TypeError, ValueError."""
        return self._of_one(super().validate_summary(summary))

    def _of_one(self, counts: Tensor) -> Tensor:
        """Counts (k,) on the points' device. Raises ValueError for a batch."""
        single(users_of(counts))
        return counts.to(self.home)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        rows = []
        for message in self.sent.values():
            rows.append(message.client.randomize_unchecked(message.shown[x], draws))
        return torch.cat(rows, 1)

    def tally(self, messages: Tensor) -> Tally:
        numbers = checks.floating("messages", messages)
        checks.shaped("messages", numbers, "n", self.width, empty=True)
        sums = numbers.sum(0, dtype=torch.float64).split(self.sizes)
        return Tally(len(numbers), dict(zip(self.sent, sums, strict=True)))

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """Summed type by type."""
        counts = self.summary_unchecked(x)
        sums = {}
        for name, message in self.sent.items():
            sums[name] = message.client.collect_crowd(message.shown, counts, draws)["sum"]
        return Tally(len(x), sums)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: Shape) -> Tally:
        """At the cost of the randomizers' own sums."""
        of_questions = [question.center.shape for question in self.questions]
        batch = (*shape, *np.broadcast_shapes(*of_questions))
        sums = {}
        for name, message in self.sent.items():
            own = message.shown.shape[:-2]  # the questions' batch, () of vectors
            # No repetition: there is no crowd to draw from.
            if not message.shown.numel():
                sums[name] = message.shown.new_zeros(*batch, message.client.dim)
                continue
            crowd = Crowd(message.shown, summary.expand(*own, -1))
            repetitions = batch[: len(batch) - len(own)]
            sums[name] = message.client.sample_unchecked(crowd, draws, repetitions)["sum"]
        return Tally(int(summary.sum()), sums)

    def analyse(self, tally: Tally) -> Estimate:
        tally = self.check(tally)
        n = single(tally.n)
        means = [message.value(tally[name] / n) for name, message in self.sent.items()]
        value = torch.cat(means, -1)
        # The data are not known: the standard error is that of the worst ones.
        error = (self._largest / n).sqrt()
        return Estimate(value, error.expand_as(value), n)

    def exact(self, summary: Tensor) -> Tensor:
        counts = self._of_one(checks.users("summary", summary, self.held))
        shares = counts / counts.sum()
        means = [message.value(shares @ message.shown) for message in self.sent.values()]
        return torch.cat(means, -1)

    def predicted_mse(self, summary: Tensor) -> Tensor:
        counts = self._of_one(checks.users("summary", summary, self.held))
        # Users draw independently of each other: their variances add up.
        sums = [counts @ message.variance(message.shown) for message in self.sent.values()]
        return torch.cat(sums, -1) / counts.sum() ** 2

    def worst_unchecked(self, n: Users, objective: Objective) -> Tensor:
        return objective.of(self._largest / single(n))

    @cached_property
    def _largest(self) -> Tensor:
        """The largest variance of one user's message, that at the value 0."""
        largest = []
        # Even and concave in the value (``variance``), so largest at 0.
        for message in self.sent.values():
            zero = torch.zeros_like(message.shown[..., :1, :])
            largest.append(message.variance(zero)[..., 0, :])
        return torch.cat(largest, -1)

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack_vectors(messages, self.width)

    def decode(self, data: bytes) -> Tensor:
        return wire.unpack_vectors(data, self.width)
