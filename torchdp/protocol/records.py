"""What a protocol takes and gives: how many users, a crowd of them, a tally of what they sent, an
estimate.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief, html_table
from torchdp.protocol.frames import framed
from torchdp.protocol.interval import Error, ErrorParts, Range, ends, quantile
from torchdp.protocol.simultaneous import MOST_CORRELATED, largest_deviate, sidak

if TYPE_CHECKING:
    import pandas as pd

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and dtype of each part of a tally."""

# relative: of sums of floats, which may be float32; of sums of whole numbers
ROUNDING, ADDED = 1e-6, 5e-15
SHOWN = 12  # numbers of an estimate in a notebook
FARTHEST = 40  # standard deviations that no noise reaches: less likely than 1e-300
Users = int | Tensor
"""How many: n of one tally; of a batch of tallies (*batch), int64."""


def beside(n: float | Tensor, answer: int = 0) -> float | Tensor:
    """n beside numbers that have ``answer`` dimensions behind the batch: a float, or float64
    (*batch, 1, ...).
    """
    return n.double().view(*n.shape, *[1] * answer) if isinstance(n, Tensor) else float(n)


def users_of(counts: Tensor) -> Users:
    """n of counts (*batch, k)."""
    return counts.sum(-1) if counts.ndim > 1 else int(counts.sum())


def combined(weights: Tensor, rows: Tensor) -> Tensor:
    """sum_x weights_x rows_x: (..., m), (m, r) -> (..., r); rows (*batch, m, r): the batch's own,
    (..., *batch, r).
    """
    batch = rows.shape[:-2]
    if not batch:
        return weights @ rows
    lead, size = weights.shape[: weights.ndim - 1 - len(batch)], math.prod(batch)
    each = weights.reshape(math.prod(lead), size, weights.shape[-1]).transpose(0, 1)
    sums = (each @ rows.reshape(size, *rows.shape[-2:])).transpose(0, 1)
    return sums.reshape(*lead, *batch, rows.shape[-1])


def tensor_of(n: Users) -> Tensor:
    """n as int64: () of one tally, on the CPU."""
    return (
        n.to(torch.int64)
        if isinstance(n, Tensor)
        else torch.tensor(n, dtype=torch.int64, device="cpu")
    )


def alike(n: Users) -> int:
    """n where a batch has one number of users, for calls that are made for it. Raises
    ValueError.
    """
    least, most = (int(end) for end in tensor_of(n).aminmax())
    if least != most:
        raise ValueError(
            f"n must be the same in all of a batch, not {least} to {most}: this call is made for one"
        )
    return most


def single(n: Users) -> int:
    """n of one tally or crowd: what calls that have no batch ask for (docs/batches.md). Raises
    ValueError.
    """
    if isinstance(n, Tensor):
        raise ValueError(
            f"n must be of one tally, not of a batch {tuple(n.shape)}: this call takes one after the other"
        )
    return n


def farthest(deviation: Any, scale: float = 0.0) -> Any:
    """What a number's noise stays below, but with a chance of 1e-300: 40 (deviation + 40 scale).

    For noise whose tails fall like those of a normal variable up to some deviations, then by a
    factor e each ``scale`` (Bernstein's bound: P(Z > (2 L)^(1/2) deviation + L scale) <= e^-L, here
    at L = 800).
    """
    return FARTHEST * (deviation + FARTHEST * scale)


@dataclass(frozen=True)
class Limits(Brief):
    """What users can make of one part of a tally: numbers from low to high, whose sum
    (last dimension) is ``total``.

    total: None where it is not known beforehand. Of a batch each is a number or (*batch).
    """

    low: float | Tensor
    high: float | Tensor
    total: float | Tensor | None = None

    @staticmethod
    def around(size: float | Tensor) -> "Limits":
        """From -size to size."""
        return Limits(-size, size)

    def of(self, name: str, part: Tensor, answer: int) -> list[tuple[str, Tensor, Any, Any]]:
        """What must lie where, with room for rounding: the numbers and their sum, each with its
        name.

        answer: dimensions of the part behind the batch.
        """
        low: Any = beside(self.low, answer)
        high: Any = beside(self.high, answer)
        room = ROUNDING * (abs(low) + abs(high)) if part.is_floating_point() else 0.0
        found = [(name, part, low - room, high + room)]
        if self.total is not None:
            least, most = (beside(self.total, answer - 1) * (1 + sign * ADDED) for sign in (-1, 1))
            found.append((f"the sum of {name}", part.sum(-1, dtype=torch.float64), least, most))
        return found if part.numel() else []


@dataclass(frozen=True, eq=False)
class Crowd(Brief):
    """counts[j] users hold values[j]: (m, ...) and (m,) int64. The summary of users whose data are
    no finite types.

    Of a batch (*batch, m, ...) and (*batch, m); dimensions of 1 in the batch of values: the same in
    all.
    """

    values: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        batch = max(0, checks.dense("counts", self.counts).ndim - 1)
        if checks.dense("values", self.values).ndim <= batch:
            raise ValueError(
                f"values must have a row for each value that users hold, not shape {tuple(self.values.shape)}"
            )
        checks.counts("counts", self.counts, self.values.shape[batch])
        pairs = zip(self.values.shape[:batch], self.counts.shape, strict=False)
        if any(own not in (1, each) for own, each in pairs):
            raise ValueError(
                f"values must have the leading dimensions of counts, {tuple(self.counts.shape[:-1])}, or 1 in "
                f"their place, not {tuple(self.values.shape[:batch])}"
            )

    @cached_property
    def n(self) -> Users:
        """Users."""
        return users_of(self.counts)

    @property
    def rows(self) -> Tensor:
        """The values, (m, ...) where all of a batch have the same, else (*batch, m, ...)."""
        batch, own = self.counts.shape[:-1], self.values.shape[self.counts.ndim - 1 :]
        shared = math.prod(self.values.shape[: len(batch)]) == 1
        return self.values.reshape(own) if shared else self.values.expand(*batch, *own)

    @property
    def mean(self) -> Tensor:
        """Of the users' values, float64."""
        row = self.values.shape[self.counts.ndim :]
        columns = self.rows.double().flatten(-len(row)) if row else self.rows.double()[..., None]
        sums = combined(self.counts.double(), columns)
        return sums.view(*self.counts.shape[:-1], *row) / beside(self.n, len(row))

    @property
    def covariance(self) -> Tensor:
        """Of the users' values (m, d), divisor n: (d, d), float64."""
        off = self.values.double() - self.mean[..., None, :]
        return (self.counts.double()[..., None] * off).mT @ off / beside(self.n, 2)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Crowd":
        """The same users, whose values are what ``change`` makes of rows (m, ...)."""
        lead = self.values.shape[: self.counts.ndim]
        return Crowd(change(self.values.flatten(0, len(lead) - 1)).unflatten(0, lead), self.counts)

    @staticmethod
    def shared(values: Tensor, counts: Tensor) -> "Crowd":
        """The same values (m, ...) in each of a batch of counts (*batch, m): bootstrap samples of
        one data set.
        """
        return Crowd(values.reshape(*[1] * (counts.ndim - 1), *values.shape), counts)

    @staticmethod
    def checked(summary: object, validate: Callable[[Tensor], Tensor]) -> "Crowd":
        """``summary``, a crowd of one user at least, its values admitted, no gradient. Raises
        TypeError, ValueError.
        """
        crowd = checks.instance("summary", summary, Crowd)
        try:
            crowd = crowd.mapped(lambda rows: validate(rows).detach())
        except (TypeError, ValueError) as error:
            raise type(error)(f"summary must hold values that users may have: {error}") from None
        few = tensor_of(crowd.n) < 1
        if bool(few.any()):
            raise ValueError(f"summary must count at least one user{checks.at(few)}")
        return crowd

    @staticmethod
    def of(x: Tensor) -> "Crowd":
        """Each row by itself."""
        return Crowd(x.detach(), torch.ones(len(x), dtype=torch.int64, device=x.device))


@dataclass(frozen=True, eq=False)
class Tally(Brief):
    """What the analyst needs of n users: named tensors, each (*sample_shape, ...). A record;
    protocols add tallies.

    Of a batch: n (*batch) int64, parts (*sample_shape, *batch, ...). Raises TypeError, ValueError.
    """

    n: Users
    parts: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if not isinstance(self.n, Tensor):
            return
        parts, batch = checks.instance("tally.parts", self.parts, Mapping), tuple(self.n.shape)
        shapes = [tuple(checks.dense(name, part).shape) for name, part in parts.items()]
        # of a batch behind one sample_shape
        ends = range(len(batch), 1 + min(map(len, shapes), default=0))
        if not any(
            {shape[:end] for shape in shapes} == {shapes[0][: end - len(batch)] + batch}
            for end in ends
        ):
            raise ValueError(
                f"tally.n must have the parts' shape but for sample_shape and answer, not {batch}: {shapes}"
            )

    def __getitem__(self, name: str) -> Tensor:
        return self.parts[name]

    def kept(self) -> "Tally":
        """A copy, for what is computed from it later."""
        return Tally(self.n, {name: part.detach().clone() for name, part in self.parts.items()})

    def users(self, answer: int = 0) -> float | Tensor:
        """n beside numbers that have ``answer`` dimensions behind the batch."""
        return beside(self.n, answer)

    def at(self, index: Any) -> "Tally":
        """Those of a batch that ``index`` chooses, as of n: ``tally.at(tally.n > 0)``. Raises
        ValueError.

        Of a tally that was collected: repetitions, which stand before the batch, it has none.
        """
        batch = self.n.shape if isinstance(self.n, Tensor) else ()
        if any(part.shape[: len(batch)] != batch for part in self.parts.values()) or not batch:
            raise ValueError("tally must be a batch without sample_shape before it")
        chosen = tensor_of(self.n)[index]
        n = chosen if chosen.ndim else int(chosen)
        return Tally(n, {name: part[index] for name, part in self.parts.items()})

    def checked(
        self, layout: Layout, limits: Callable[[Users], dict[str, Limits]], least: int = 1
    ) -> "Tally":
        """Itself, if it has this layout, at least so many users, and no number that these can not
        have made.

        limits: of each part, by the number of users. Raises TypeError, ValueError.
        """
        if set(checks.instance("tally.parts", self.parts, Mapping)) != set(layout):
            raise ValueError(
                f"tally must hold {sorted(layout)}, not {sorted(self.parts)}; make it by this protocol's own verbs"
            )
        for name, (shape, dtype) in layout.items():
            part = checks.dense(name, self[name])
            if part.shape[part.ndim - len(shape) :] != shape or part.dtype != dtype:
                wanted = "x".join(map(str, shape)) or "()"
                raise ValueError(
                    f"{name} must be {dtype} of shape (..., {wanted}), not {part.dtype} {tuple(part.shape)}"
                )
        n = checks.people("tally.n, the number of users,", self.n, least)
        batch = tuple(n.shape) if isinstance(n, Tensor) else ()
        leads = {
            self[name].shape[: self[name].ndim - len(shape)] for name, (shape, _) in layout.items()
        }
        if len(leads) > 1 or any(lead[len(lead) - len(batch) :] != batch for lead in leads):
            raise ValueError(
                f"the parts {sorted(layout)} must have the same leading dimensions, those of tally.n the last"
            )
        nobody = {name: Limits(0.0, 0.0) for name in layout}
        known: dict[str, Limits] = limits(n) if isinstance(n, Tensor) or n else nobody
        each = (known[name].of(name, self[name], len(shape)) for name, (shape, _) in layout.items())
        judged = list(chain.from_iterable(each))
        ends = checks.finite(**{name: value for name, value, *_ in judged})
        for (name, value, low, high), (least_held, most_held) in zip(judged, ends, strict=True):
            if isinstance(low, Tensor) or isinstance(high, Tensor):
                self._judge(name, value, low, high)
            elif not low <= least_held <= most_held <= high:
                raise ValueError(
                    f"tally is not what {n} users can have sent: {name} must lie in [{low:.6g}, {high:.6g}]"
                )
        return self

    def _judge(self, name: str, value: Tensor, low: Tensor | float, high: Tensor | float) -> None:
        """Refuses what users of a batch can not have sent: numbers outside of [low, high], or of no
        user.
        """
        n = tensor_of(self.n).to(value.device)
        behind = max(end.ndim for end in (low, high) if isinstance(end, Tensor)) - n.ndim
        some = (n > 0).view(*n.shape, *[1] * behind)
        low, high = (
            end.to(value.device) if isinstance(end, Tensor) else end for end in (low, high)
        )
        wrong = (value < low * some) | (value > high * some)
        if bool(wrong.any()):
            answer = math.prod(value.shape[value.ndim - behind :])
            where = checks.at(wrong.reshape(-1, *n.shape, answer).any(-1).any(0))
            raise ValueError(
                f"tally is not what so many users can have sent: {name} is too far off{where}"
            )


@dataclass(frozen=True, eq=False)
class Estimate(Brief):
    """value and standard_error, (*sample_shape, *batch, *answer), from the tally alone; it refers
    to these n users.

    Its interval covers the answer of these users, over the privacy noise. ``of_population()``
    refers to the population from which they are an independent sample: its error counts the
    sampling as well.

    bias: bounds what an approximation may add. error: what intervals are made of, or what makes it
    once it is asked for (None: one normal part of the standard error). limits: what the truth can
    be, numbers or (*answer); intervals stay inside, the value need not.
    stretch: where the error is far from normal, as one Laplace number is: of a level, how far the
    interval's ends lie over those of a normal error of this deviation, a number or (*answer).
    sampled: whether it refers to the population. population: makes the estimate that does; None
    where the sampling error is not known. covariance: makes that of the answers' errors,
    (*batch, m, m), of m answers; None: not known.
    """

    value: Tensor
    standard_error: Tensor
    n: Users
    bias: Tensor | float = 0.0
    error: Error | Callable[[], Error] | None = None
    limits: Range = (-math.inf, math.inf)
    stretch: Callable[[float], Tensor | float] | None = None
    sampled: bool = field(default=False, repr=False)
    population: Callable[[], "Estimate"] | None = field(default=None, repr=False)
    covariance: Callable[[], Tensor] | None = field(default=None, repr=False)

    def of_population(self) -> "Estimate":
        """The estimate for the population from which these users are an independent sample, with a
        wider error.

        The standard error gains what the users' own answer varies from one sample to the next: Var
        f/n of a mean of f, from the messages where they tell it, else the largest variance that
        agrees with them. No privacy is spent. Raises TypeError where the sampling error is not
        known.
        """
        if self.sampled:
            return self
        if self.population is None:
            raise TypeError(
                "the sampling error of this estimate is not known: of_population is for means, histograms, linear "
                "queries, functions of shares and pairwise statistics"
            )
        return self.population()

    def with_sampling(self, added: Tensor, covariance: Callable[[], Tensor] | None = None) -> Self:
        """Of the population, by what sampling adds to the variance, (*batch, *answer), and the
        whole covariance.
        """
        return replace(
            self,
            standard_error=torch.hypot(self.standard_error, added.sqrt()),
            error=self.parts.joined(ErrorParts.normal(added)),
            sampled=True,
            covariance=covariance,
        )

    @property
    def centre(self) -> Tensor:
        """The unbiased value, which intervals lie around."""
        return self.value

    @cached_property
    def parts(self) -> Error:
        """The error's distribution, as intervals need it."""
        if self.error is None:
            return ErrorParts.normal(self.standard_error.square())
        return self.error() if callable(self.error) else self.error

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """(low, high): the error's ends at this level, widened by bias; see :class:`ErrorParts`.
        Raises ValueError.
        """
        stretch = 1.0 if self.stretch is None else self.stretch(checks.fraction("level", level))
        return self.ends(quantile(level) * stretch)

    def ends(self, z: float | Tensor) -> tuple[Tensor, Tensor]:
        """(low, high) at z standard errors, a number or like the value."""
        return ends(self.centre, self.parts, z, self.limits, self.bias)

    def together(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """(low, high), as ``interval``, that hold all m truths of the last dimension at once at
        this level.

        Each entry has its own interval, skewed where its error is, at one higher level:

        - With a ``covariance``, that of z standard errors, z the quantile of the largest of m
          correlated normals. It is found by draws that are public and always the same, as an upper
          bound that is below the quantile with a chance of 1e-6, for each covariance, over the
          draws; it is at most Sidak's z.
        - Without one, or with more than 1,024 entries: Sidak's level^(1/m), for any correlations.
        - Where ``stretch`` says that errors are far from normal: Bonferroni's 1 - (1 - level)/m,
          for any errors.

        The first two are proved for jointly normal errors with the standard errors told; as far as
        ``interval`` is an approximation (skewed errors, variances from the tally) so is this. A
        covariance that is not finite counts as not known. Of an estimate that is one number for
        each of a batch, the last dimension is the batch's.

        Args:
            level: in (0, 1).

        Raises ValueError.

        Guarantees:
            No end lies inside of ``interval(level)``; with one entry it is ``interval(level)``.
        Source: Sidak (1967) for normal errors.
        """
        level = checks.fraction("level", level)
        m = self.value.shape[-1] if self.value.ndim else 1
        if m <= 1:
            return self.interval(level)
        if self.stretch is not None:
            return self.interval(
                checks.fraction("level, 1 - (1 - level) / m for m entries,", 1 - (1 - level) / m)
            )
        if self.covariance is None or m > MOST_CORRELATED:
            z = sidak(level, self.value.new_tensor(m))
        else:
            z = largest_deviate(self.covariance(), level)[..., None]
        return self.ends(z)

    def frame(self, *names: Any, level: float = 0.95) -> "pd.DataFrame":
        """A pandas table with a row for each number: value, standard_error and the ends of its
        interval, low and high.

        names: of the entries of the last dimensions, or what was asked: a Series (its categories),
        a DataFrame (its columns); entries of other dimensions are numbered. Raises ValueError.
        """
        low, high = self.interval(level)
        error = self.standard_error.expand(self.value.shape)
        columns = {"value": self.value, "standard_error": error, "low": low, "high": high}
        return framed(columns, names)

    def __str__(self) -> str:
        """The first numbers with their standard errors; few of them with 95 % intervals."""
        names, rows, more = self._shown()
        lines = ["".join(f"{cell:>15}" for cell in names)]
        lines += ["".join(f"{number:>15.6g}" for number in row) for row in rows]
        return "\n".join([*lines, f"and {more} more"] if more else lines)

    def _repr_html_(self) -> str:
        """The same as a table."""
        names, rows, more = self._shown()
        table = html_table(rows, names)
        return f"{table}<p>and {more} more</p>" if more else table

    def _shown(self) -> tuple[tuple[str, ...], list[tuple[float, ...]], int]:
        """Names of columns, rows of numbers, and how many numbers there are beyond."""
        more = max(0, self.value.numel() - SHOWN)
        each = (
            self.value,
            self.standard_error.expand(self.value.shape),
            *(() if more else self.interval()),
        )
        rows = list(zip(*(x.detach().flatten()[:SHOWN].tolist() for x in each), strict=True))
        return ("value", "standard error", "low", "high")[: len(each)], rows, more


class Objective(Enum):
    """Which squared error of a vector answer is minimised; worst-case data or a prior are specified
    separately.
    """

    WORST = "of the worst entry"
    MEAN = "in the mean over the entries"

    def of(self, mse: Tensor, batch: int = 0) -> Tensor:
        """Of squared errors of any shape behind so many dimensions of a batch: (*batch)."""
        each = mse.reshape(*mse.shape[:batch], -1)
        return each.amax(-1) if self is Objective.WORST else each.mean(-1)
