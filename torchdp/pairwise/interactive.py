"""Protocols in rounds: users first send noisy vectors, then answer what the analyst asks about their own vector."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.noise import Noise, source
from torchdp.pairwise.messages import NUMBERS_AT_ONCE, ROUNDING
from torchdp.pairwise.protocol import AggregateProtocol
from torchdp.pairwise.protocol import reach as reach_of
from torchdp.pairwise.rounds import Question, Round, Transcript
from torchdp.pairwise.scalar import ScalarResponse, scalar_response
from torchdp.pairwise.statistic import Form, Pairs, PairwiseStatistic
from torchdp.privacy import Guarantee, compose
from torchdp.randomizers import PrivUnitG
from torchdp.randomness import keyed_generator

LARGE = 2**16  # numbers in the points, from which predictions take fewer draws


@dataclass(frozen=True)
class InteractiveProtocol(AggregateProtocol):
    """Noisy vectors at ``vector_budgets``, then answers to questions about them at ``answer_budgets``.

    ``collect`` plays all rounds: (sums of the vector messages ..., sums of the answers ...). Every question is a
    function of the sums before it, and ``transcript`` says which; users must be asked together, so sums of two runs of
    the protocol must not be added. For means; a ratio (AUC) is refused.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistic.denominator is not None:
            raise ValueError(
                f"{self.statistic.name!r} is a ratio, whose question would change; use OneMessage for it"
            )

    @property
    @abstractmethod
    def vector_budgets(self) -> tuple[float, ...]:
        """Epsilon of each vector message."""

    @property
    @abstractmethod
    def answer_budgets(self) -> tuple[float, ...]:
        """Epsilon of each answer."""

    @property
    @abstractmethod
    def schedule(self) -> tuple[tuple[int, ...], ...]:
        """Which entries of ``collect`` arrive in each round."""

    @abstractmethod
    def publish(self, means: tuple[Tensor, ...], n: float, form: Form) -> tuple[tuple[Question, ...], Tensor]:
        """From the mean vector messages (*batch, r): the questions, and what is added to the mean answers."""

    @abstractmethod
    def published_variance(self, counts: Tensor, form: Form) -> Tensor:
        """Variance, over the vector messages, of the estimate that exact answers would give (nothing clipped)."""

    @abstractmethod
    def plug_in_published_variance(self, means: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """Estimate of that variance from the messages, or an upper bound of it."""

    @cached_property
    def randomizers(self) -> tuple[PrivUnitG, ...]:
        """What a user runs for each vector."""
        return tuple(PrivUnitG(self.statistic.dim, each, self.statistic.radius) for each in self.vector_budgets)

    @cached_property
    def responses(self) -> tuple[ScalarResponse, ...]:
        """What a user runs for each answer."""
        return tuple(scalar_response(each) for each in self.answer_budgets)

    @cached_property
    def guarantee(self) -> Guarantee:
        return compose(self._guarantees)

    @property
    def _guarantees(self) -> list[Guarantee]:
        return [each.guarantee for each in self.randomizers] + [each.guarantee for each in self.responses]

    @property
    def bits_per_user(self) -> int:
        return sum(each.bits for each in self.randomizers) + sum(each.randomizer.bits for each in self.responses)

    @property
    def native_pairs(self) -> Pairs:
        return Pairs.ALL

    @property
    def layout(self) -> tuple[Tensor, ...]:
        points = self.statistic.points
        vectors = tuple(points.new_zeros(points.shape[1]) for _ in self.vector_budgets)
        return (*vectors, *(points.new_zeros(()) for _ in self.answer_budgets))

    def contradiction(self, sums: tuple[Tensor, ...], n: int) -> str | None:
        vectors = len(self.vector_budgets)
        found = [
            reach_of(total, n, self.statistic.radius, each.moments.variance)
            for total, each in zip(sums[:vectors], self.randomizers, strict=True)
        ]
        for total, response in zip(sums[vectors:], self.responses, strict=True):
            most = n * response.largest * (1 + ROUNDING)
            found.append(f"an answer is above {most:.3g}" if bool((total.abs() > most).any()) else None)
        return next((each for each in found if each), None)

    def gather(self, types: Tensor, noise: Noise) -> tuple[Tensor, ...]:
        """Sums over users of all messages: vectors (r,), then answers ()."""
        points, n = self.statistic.points, float(len(types))
        counts = torch.bincount(types, minlength=len(points))
        draws = source(noise, points.device)
        vectors = tuple(each.hear_types(points, counts, draws)["sum"] for each in self.randomizers)
        questions, _ = self.publish(tuple(each / n for each in vectors), n, self.statistic.form)
        answers = []
        for question, response in zip(questions, self.responses, strict=True):
            shown, total = question.shown(points), points.new_zeros(())
            for some in types.split(NUMBERS_AT_ONCE):
                total += response.sample(shown[some], noise=noise).sum()
            answers.append(total)
        return (*vectors, *answers)

    def draw_sums(self, counts: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        points, n = self.statistic.points, float(counts.sum())
        vectors = tuple(
            each.sample_sum(points, counts, generator=generator, sample_shape=shape) for each in self.randomizers
        )
        questions, _ = self.publish(tuple(each / n for each in vectors), n, self.statistic.form)
        answers = tuple(
            response.sample_sums(question.shown(points), counts, generator=generator)
            for question, response in zip(questions, self.responses, strict=True)
        )
        return (*vectors, *answers)

    def transcript(self, sums: tuple[Tensor, ...], n: int) -> Transcript:
        """What ``collect`` returned, as rounds: who asked what, what arrived, and the budget of each message."""
        means, _ = self._split(sums, n)
        questions, _ = self.publish(means, n, self.statistic.form)
        first = len(means)
        return Transcript(
            tuple(
                Round(
                    tuple(questions[place - first] for place in places if place >= first),
                    tuple(sums[place] for place in places),
                    tuple(self._guarantees[place] for place in places),
                )
                for places in self.schedule
            )
        )

    def mean(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """The mean answers plus what ``publish`` adds; unbiased where nothing was clipped."""
        means, answers = self._split(sums, n)
        questions, value = self.publish(means, n, form)
        for question, total in zip(questions, answers, strict=True):
            value = value + question.mean(total, n)
        return value + form.constant

    def clipping_bias(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        """Largest bias that clipping can cause, whatever the data: public, because the questions are. 0: no bias."""
        questions, _ = self.publish(self._split(sums, n)[0], n, self.statistic.form)
        most = [each.clipping(self.statistic.points).abs().amax(-1) for each in questions]
        return torch.stack(torch.broadcast_tensors(*most)).sum(0)

    def answer_variance(self, questions: tuple[Question, ...], counts: Tensor) -> Tensor:
        """Variance of the estimate given the questions, exactly: (*batch,)."""
        n, points = counts.sum(), self.statistic.points
        value = torch.zeros((), dtype=torch.float64, device=points.device)
        for question, response in zip(questions, self.responses, strict=True):
            each = response.variance(question.shown(points)) @ counts.to(points)
            value = value + question.half_width.square() * each / n**2
        return value

    def mean_variance(self, counts: Tensor, form: Form) -> Tensor:
        """The published part, plus the answers' exact variance averaged over normal ``draws`` of the vectors' noise.

        Where questions clip it is a mean squared error: (missed + clipped)^2 - missed^2 is averaged over these draws,
        ``missed`` what unclipped answers without noise would leave of the error.
        """
        n, points = float(counts.sum()), self.statistic.points
        mean = counts.to(points) @ points / n
        generator = keyed_generator(b"interactive prediction", points.device)
        means = tuple(
            mean
            + (each.moments.variance / n) ** 0.5
            * torch.randn(draws(points), len(mean), dtype=torch.float64, device=points.device, generator=generator)
            for each in self.randomizers
        )
        questions, offset = self.publish(means, n, form)
        clipped = torch.stack([each.clipping(points) for each in questions]).sum(0) @ counts.to(points) / n
        missed = sum((each.vector @ mean for each in questions), offset) - (form.weights * mean.square()).sum()
        answers = self.answer_variance(questions, counts).mean() + (clipped * (clipped + 2 * missed)).mean()
        return self.published_variance(counts, form) + answers

    def mean_point(self, sums: tuple[Tensor, ...], n: float) -> Tensor:
        return sums[0] / n

    def plug_in_variance(self, sums: tuple[Tensor, ...], n: float, form: Form) -> Tensor:
        """From the messages alone; a little too large, because the users' values enter by their mean.

        A response's variance is concave in the value, so the mean value gives at least the mean variance. What
        clipping adds is not counted: ``clipping_bias`` bounds it.
        """
        means, answers = self._split(sums, n)
        questions, _ = self.publish(means, n, form)
        value = self.plug_in_published_variance(means, n, form)
        for question, response, total in zip(questions, self.responses, answers, strict=True):
            value = value + question.half_width.square() * response.variance((total / n).clamp(-1, 1)) / n
        return value

    def _split(self, sums: tuple[Tensor, ...], n: float) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        vectors = len(self.vector_budgets)
        return tuple(each / n for each in sums[:vectors]), sums[vectors:]


def draws(points: Tensor) -> int:
    """How many draws of the first rounds' noise a prediction averages over: 256, for large statistics 64."""
    return 256 if points.numel() <= LARGE else 64


@dataclass(frozen=True)
class Reach:
    """Constants of a statistic that bound the error of protocols in rounds, whatever the data.

    half: half of the largest range of a column of the kernel, how far a user's value can be from the middle. noise:
    root of E (half the range over types of <J u_x, g>)^2 for g ~ N(0, I), by ``draws``. largest: largest entry of the
    kernel without its constant; own: of its diagonal. longest: largest ||J u_x||.
    """

    half: float
    noise: float
    largest: float
    own: float
    longest: float


def reach(statistic: PairwiseStatistic) -> Reach:
    """The constants of this statistic. O(k^2 r)."""
    points, weights = statistic.points, statistic.form.weights
    kernel = statistic.kernel(statistic.form) - statistic.form.constant
    generator = keyed_generator(b"interactive range", points.device)
    normals = torch.randn(
        draws(points), points.shape[1], dtype=torch.float64, device=points.device, generator=generator
    )
    values = (normals * weights) @ points.mT
    return Reach(
        float((kernel.amax(1) - kernel.amin(1)).max()) / 2,
        float(((values.amax(1) - values.amin(1)) / 2).square().mean().sqrt()),
        float(kernel.abs().max()),
        float(kernel.diagonal().abs().max()),
        float((points * weights).norm(dim=1).max()),
    )
