"""One round: users of k types send noisy copies of their vector and answer public questions about it.

An answer is one number of [-1, 1], sent by the better of two randomizers of the one-dimensional ball.
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
    """The one with the smaller variance at its worst value, 0: the sign up to epsilon = 1.044, then PrivUnit."""
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
    """``PrivUnit.unit_variance`` to a relative 1e-6: for searches, which ask for hundreds of epsilons."""
    return math.exp(float(_log_variance(dim)(math.log(epsilon))))


def searched_worst_variance(epsilon: float) -> float:
    """``worst_variance`` to a relative 1e-5, for searches: what rounding to a grid adds is left out."""
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
    """What the analyst publishes: each user is to answer <u_x, vector>, clipped to center +- half_width.

    vector: (*batch, r); center, half_width: (*batch,). All come from earlier messages, so all are public.
    """

    vector: Tensor
    center: Tensor
    half_width: Tensor

    def shown(self, points: Tensor) -> Tensor:
        """What a user of each type feeds its randomizer: numbers in [-1, 1], (*batch, k)."""
        width = torch.where(self.half_width > 0, self.half_width, 1.0)
        return ((self.vector @ points.mT - self.center[..., None]) / width[..., None]).clamp(-1, 1)

    def clipping(self, points: Tensor) -> Tensor:
        """What clipping adds to the value of each type, (*batch, k): public, and 0 where nothing is clipped."""
        values = self.vector @ points.mT - self.center[..., None]
        wide = self.half_width[..., None]
        return torch.minimum(torch.maximum(values, -wide), wide) - values

    def mean(self, total: Tensor, n: float) -> Tensor:
        """Mean of the users' values, from the sum of their messages."""
        return self.center + self.half_width * total / n


def ask(points: Tensor, vector: Tensor, clip: float) -> Question:
    """The question about ``vector`` that clips no type, unless half the range of its values is above ``clip``.

    The range over all types is known to everyone, so knowing it costs no privacy and clipping is never needed; it can
    still pay, because a message's variance grows with half_width^2.
    """
    values = vector @ points.mT
    low, high = values.amin(-1), values.amax(-1)
    return Question(vector, (low + high) / 2, ((high - low) / 2).clamp_max(clip))


def check_clip(value: float) -> float:
    """``value``, a half width > 0. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"clip must be a number > 0 (math.inf clips nothing), not {value!r}")
    return value


@dataclass(frozen=True)
class Round(MessageProtocol[Tensor, Tensor]):
    """A user of type x sends a noisy u_x at each of ``vectors``, then answers each question at ``answers``.

    A message is a row of all of them, float64; the estimate is their mean: vectors (r each), then answers, each cut off
    to its question's range. Questions may be batched for ``sample_tally``, not for users.
    points: (k, r). vectors, answers: epsilons, one answer for each question.

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
    def guarantee(self) -> Guarantee:
        return compose(
            [
                *(one.guarantee for one in self.randomizers),
                *(one.guarantee for one in self.responses),
            ]
        )

    @property
    def layout(self) -> Layout:
        named = {
            f"vector{index}": (self.points.shape[1:], torch.float64)
            for index in range(len(self.vectors))
        }
        return {
            **named,
            **{f"answer{index}": ((), torch.float64) for index in range(len(self.answers))},
        }

    def limits(self, n: Users) -> dict[str, Limits]:
        sent = (*self.randomizers, *self.responses)
        return {name: one.limits(n)["sum"] for name, one in zip(self.layout, sent, strict=True)}

    @property
    def width(self) -> int:
        """Numbers in a message."""
        return len(self.vectors) * self.points.shape[1] + len(self.answers)

    @property
    def bits_per_user(self) -> int:
        return 64 * self.width

    @property
    def held(self) -> int:
        return len(self.points)

    def validate(self, x: Tensor) -> Tensor:
        return super().validate(x).to(self.points.device)

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (k,) of whole users, one at least, on the points' device. Raises TypeError, ValueError."""
        counts = super().validate_summary(summary)
        single(users_of(counts))
        return counts.to(self.points.device)

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        vectors = [each.randomize_unchecked(self.points[x], draws) for each in self.randomizers]
        return torch.cat([*vectors, *(each[:, None] for each in self._answers(x, draws))], 1)

    def _answers(self, x: Tensor, draws: Draws) -> list[Tensor]:
        found = []
        for question, response in zip(self.questions, self.responses, strict=True):
            values = question.shown(self.points)[x]
            found.append(response.randomize_unchecked(values[:, None], draws)[:, 0])
        return found

    def tally(self, messages: Tensor) -> Tally:
        messages = checks.floating("messages", messages)
        if messages.ndim != 2 or messages.shape[1] != self.width:
            raise ValueError(
                f"messages must have shape (n, {self.width}), not {tuple(messages.shape)}"
            )
        return Tally(len(messages), self._named(messages.sum(0, dtype=torch.float64)))

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        """Vectors and answers of (*batch, width), by name."""
        sizes = [sum(shape) or 1 for shape, _ in self.layout.values()]
        parts = zip(self.layout.items(), row.split(sizes, -1), strict=True)
        return {name: part if shape else part[..., 0] for (name, (shape, _)), part in parts}

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        """Vectors are summed type by type."""
        counts = self.summary(x)
        sums = [each.collect_crowd(self.points, counts, draws)["sum"] for each in self.randomizers]
        parts = [self._answers(some, draws) for some in x.split(self.users_at_once)]
        sums += [
            torch.stack([each.sum() for each in one]).sum() for one in zip(*parts, strict=True)
        ]
        return Tally(len(x), dict(zip(self.layout, sums, strict=True)))

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        """At the cost of the randomizers' own sums."""
        counts = summary.to(self.points.device)
        batch = (*shape, *np.broadcast_shapes(*(each.center.shape for each in self.questions)))
        crowd = Crowd(self.points, counts)
        sums = [each.sample_unchecked(crowd, draws, batch)["sum"] for each in self.randomizers]
        for question, response in zip(self.questions, self.responses, strict=True):
            values = question.shown(self.points).expand(*batch, -1)
            if values.numel() == 0:  # of no repetition
                sums.append(values.new_zeros(batch))
                continue
            answered = Crowd(values[..., None], counts.expand(values.shape))
            sums.append(response.sample_unchecked(answered, draws, ())["sum"][..., 0])
        return Tally(crowd.n, dict(zip(self.layout, sums, strict=True)))

    def analyse(self, tally: Tally) -> Estimate:
        n, sums = single(self.check(tally).n), list(tally[name] for name in self.layout)
        first = len(self.vectors)
        means = [each / n for each in sums[:first]]
        means += [
            q.mean(each, n)[..., None] for q, each in zip(self.questions, sums[first:], strict=True)
        ]
        error = self._worst(n).sqrt().expand(*means[0].shape[:-1], -1)
        return Estimate(torch.cat(means, -1), error, n)

    def exact(self, summary: Tensor) -> Tensor:
        shares, _ = self._shares(summary)
        answers = [
            q.center + q.half_width * (q.shown(self.points) @ shares) for q in self.questions
        ]
        return torch.cat(
            [*(shares @ self.points for _ in self.vectors), *(each[..., None] for each in answers)],
            -1,
        )

    def predicted_mse(self, summary: Tensor) -> Tensor:
        shares, n = self._shares(summary)
        each = [
            variance(r, q.shown(self.points)) @ shares
            for q, r in zip(self.questions, self.responses, strict=True)
        ]
        return self._errors([one / n for one in each], n)

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        return checks.instance("objective", objective, Objective).of(
            self._worst(checks.integer("n", n, 1))
        )

    def _shares(self, summary: Tensor) -> tuple[Tensor, float]:
        counts = checks.floating("summary", summary).to(self.points)
        if (
            counts.shape != self.points.shape[:1]
            or bool((counts < 0).any())
            or not bool(counts.any())
        ):
            raise ValueError(
                f"summary must be ({len(self.points)},) and count users, not {tuple(counts.shape)}"
            )
        return counts / counts.sum(), float(counts.sum())

    def _worst(self, n: int) -> Tensor:
        largest = [self.points.new_tensor(each.moments.variance / n) for each in self.responses]
        return self._errors(largest, n)

    def _errors(self, answers: list[Tensor], n: float) -> Tensor:
        size = self.points.shape[1]
        vectors = [
            self.points.new_full((size,), each.moments.variance / n) for each in self.randomizers
        ]
        widths = zip(self.questions, answers, strict=True)
        return torch.cat(
            [*vectors, *((q.half_width.square() * each)[..., None] for q, each in widths)], -1
        )

    def encode(self, messages: Tensor) -> bytes:
        return wire.pack_vectors(messages, self.width)

    def decode(self, data: bytes) -> Tensor:
        return wire.unpack_vectors(data, self.width)
