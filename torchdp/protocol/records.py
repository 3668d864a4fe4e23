"""What a protocol takes and gives: users, a crowd of them, a tally of what they sent, an estimate.

Notation: *batch are the dimensions of several tallies, *answer those of one tally's answer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief, html_table
from torchdp.protocol.frames import framed
from torchdp.protocol.interval import Ends, Error, ErrorParts, Range, ends, quantile
from torchdp.protocol.simultaneous import MOST_CORRELATED, largest_deviate, sidak

if TYPE_CHECKING:
    import pandas as pd

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and dtype of each part of a tally."""

# Relative rounding of sums of floats, which may be float32, and of sums of whole numbers.
ROUNDING = 1e-6
ADDED = 5e-15
# Numbers of an estimate in a notebook.
SHOWN = 12
# Standard deviations that no noise reaches: less likely than 1e-300.
FARTHEST = 40
Users = int | Tensor
"""How many: n of one tally; of a batch of tallies (*batch), int64."""


def broadcast_users(n: float | Tensor, answer: int = 0) -> float | Tensor:
    """n beside numbers of ``answer`` dimensions behind the batch, float64: (*batch, 1, ...)."""
    return n.double().view((*n.shape, *[1] * answer)) if isinstance(n, Tensor) else float(n)


def users_of(counts: Tensor) -> Users:
    """n of counts (*batch, k)."""
    return counts.sum(-1) if counts.ndim > 1 else int(counts.sum())


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """sum_x weights_x rows_x.

    Args:
        weights: (..., m), or (..., *batch, m).
        rows: (m, r), or the batch's own, (*batch, m, r).

    Returns:
        (..., r), or (..., *batch, r).
    """
    batch = rows.shape[:-2]
    if not batch:
        return weights @ rows
    size = math.prod(batch)
    samples = weights.shape[: weights.ndim - 1 - len(batch)]
    # The batch first: one product of matrices for each of its entries.
    of_entries = weights.reshape(math.prod(samples), size, weights.shape[-1]).transpose(0, 1)
    sums = of_entries @ rows.reshape(size, *rows.shape[-2:])
    return sums.transpose(0, 1).reshape(*samples, *batch, rows.shape[-1])


def users_on(device: torch.device | str, n: Users) -> Users:
    """n of a batch on ``device``; of one tally a number."""
    return n.to(device) if isinstance(n, Tensor) else n


def tensor_of(n: Users) -> Tensor:
    """n as int64: () of one tally, on the CPU."""
    if isinstance(n, Tensor):
        return n.long()
    return torch.tensor(n, dtype=torch.int64, device="cpu")


def alike(n: Users) -> int:
    """n where a batch has one number of users, for calls that need it. Raises ValueError."""
    least, most = tensor_of(n).aminmax()
    if least != most:
        raise ValueError(
            f"n must be the same in all of a batch, not {least} to {most}: this call is made for "
            "one"
        )
    return int(most)


def single(n: Users) -> int:
    """n of one tally or crowd, for calls without a batch (docs/batches.md). Raises ValueError."""
    if isinstance(n, Tensor):
        raise ValueError(
            f"n must be of one tally, not of a batch {tuple(n.shape)}: this call takes one after "
            "the other"
        )
    return n


def noise_limit(deviation: Any, scale: float = 0.0) -> Any:
    """What a number's noise stays below, but with a chance of 1e-300: 40 (deviation + 40 scale).

    For noise whose tails fall like those of a normal variable up to some deviations, then by a
    factor e each ``scale`` (Bernstein's bound: P(Z > (2 L)^(1/2) deviation + L scale) <= e^-L, here
    at L = 800).
    """
    # (2 L)^(1/2) = 40, and 40 * 40 is more than L.
    return FARTHEST * (deviation + FARTHEST * scale)


@dataclass(frozen=True)
class Limits(Brief):
    """What users can make of one part of a tally, each a number or (*batch).

    Args:
        low: the least number.
        high: the largest.
        total: their sum over the last dimension; None where it is not public.
    """

    low: float | Tensor
    high: float | Tensor
    total: float | Tensor | None = None

    @staticmethod
    def around(size: float | Tensor) -> "Limits":
        """From -size to size."""
        return Limits(-size, size)

    def of(self, name: str, part: Tensor, answer: int) -> list[tuple[str, Tensor, Any, Any]]:
        """What must lie between which ends: the numbers and their sum, each with its name.

        answer: dimensions of the part behind the batch. Ends allow for rounding.
        """
        if not part.numel():
            return []
        low: Any = broadcast_users(self.low, answer)
        high: Any = broadcast_users(self.high, answer)
        rounding = ROUNDING * (abs(low) + abs(high)) if part.is_floating_point() else 0.0
        ranges = [(name, part, low - rounding, high + rounding)]
        if self.total is not None:
            total: Any = broadcast_users(self.total, answer - 1)
            sums = part.sum(-1, dtype=torch.float64)
            ranges.append((f"the sum of {name}", sums, total * (1 - ADDED), total * (1 + ADDED)))
        return ranges


@dataclass(frozen=True, eq=False)
class Crowd(Brief):
    """counts[j] users hold values[j]: the summary of users whose data are no finite types.

    Args:
        values: (m, ...), or (*batch, m, ...); of dimensions of 1 in the batch: the same in all.
        counts: (m,), or (*batch, m), int64.
    """

    values: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        batch = max(0, checks.dense("counts", self.counts).ndim - 1)
        shape = tuple(checks.dense("values", self.values).shape)
        if len(shape) <= batch:
            raise ValueError(
                f"values must have a row for each value that users hold, not shape {shape}"
            )
        checks.counts("counts", self.counts, shape[batch])
        leading = tuple(self.counts.shape[:-1])
        if any(own not in (1, size) for own, size in zip(shape, leading, strict=False)):
            raise ValueError(
                f"values must have the leading dimensions of counts, {leading}, or 1 in their "
                f"place, not {shape[:batch]}"
            )

    @cached_property
    def n(self) -> Users:
        """Users."""
        return users_of(self.counts)

    @property
    def rows(self) -> Tensor:
        """The values, (m, ...) where all of a batch have the same, else (*batch, m, ...)."""
        batch = self.counts.shape[:-1]
        own = self.values.shape[len(batch) :]
        shared = math.prod(self.values.shape[: len(batch)]) == 1
        return self.values.reshape(own) if shared else self.values.expand(*batch, *own)

    @property
    def mean(self) -> Tensor:
        """Of the users' values, float64."""
        row = self.values.shape[self.counts.ndim :]
        rows = self.rows.double()
        columns = rows.flatten(-len(row)) if row else rows[..., None]
        sums = weighted_sum(self.counts.double(), columns)
        return sums.view(*self.counts.shape[:-1], *row) / broadcast_users(self.n, len(row))

    @property
    def covariance(self) -> Tensor:
        """Of the users' values (m, d), divisor n: (d, d), float64."""
        # Around the mean: sum x x^T - n m m^T cancels where the mean is large.
        centred = self.values.double() - self.mean[..., None, :]
        weighted = self.counts.double()[..., None] * centred
        return weighted.mT @ centred / broadcast_users(self.n, 2)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Crowd":
        """The same users, whose values are what ``change`` makes of rows (m, ...)."""
        leading = self.values.shape[: self.counts.ndim]
        # ``change`` takes rows as users hold them, without a batch.
        values = change(self.values.flatten(0, len(leading) - 1))
        return Crowd(values.unflatten(0, leading), self.counts)

    @staticmethod
    def shared(values: Tensor, counts: Tensor) -> "Crowd":
        """The same values (m, ...) in each of a batch of counts (*batch, m), as in bootstraps."""
        return Crowd(values.reshape(*[1] * (counts.ndim - 1), *values.shape), counts)

    @staticmethod
    def checked(summary: object, validate: Callable[[Tensor], Tensor]) -> "Crowd":
        """``summary``, a crowd of one user at least, its values admitted, no gradient.

        Raises TypeError, ValueError.
        """
        crowd = checks.instance("summary", summary, Crowd)
        try:
            # Detached: an estimate must not carry the users' data in its graph.
            crowd = crowd.mapped(lambda rows: validate(rows).detach())
        except (TypeError, ValueError) as error:
            raise type(error)(f"summary must hold values that users may have: {error}") from None
        empty = tensor_of(crowd.n) < 1
        if empty.any():
            raise ValueError(f"summary must count at least one user{checks.at(empty)}")
        return crowd

    @staticmethod
    def of(x: Tensor) -> "Crowd":
        """Each row by itself."""
        return Crowd(x.detach(), x.new_ones(len(x), dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Tally(Brief):
    """What the analyst needs of n users, a record; protocols add tallies.

    Args:
        n: users; of a batch (*batch), int64.
        parts: named tensors, each (*sample_shape, *batch, ...).

    Raises TypeError, ValueError.
    """

    n: Users
    parts: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if not isinstance(self.n, Tensor):
            return
        batch = tuple(self.n.shape)
        parts = checks.instance("tally.parts", self.parts, Mapping)
        shapes = [tuple(checks.dense(name, part).shape) for name, part in parts.items()]
        # All parts begin with one sample_shape, of any length, and then the batch.
        for end in range(len(batch), 1 + min(map(len, shapes), default=0)):
            leading = shapes[0][: end - len(batch)] + batch
            if all(shape[:end] == leading for shape in shapes):
                return
        raise ValueError(
            f"tally.n must have the parts' shape but for sample_shape and answer, not {batch}: "
            f"{shapes}"
        )

    def __getitem__(self, name: str) -> Tensor:
        return self.parts[name]

    def kept(self) -> "Tally":
        """A copy, for what is computed from it later."""
        # The caller may go on adding to its tally in place.
        return Tally(self.n, {name: part.detach().clone() for name, part in self.parts.items()})

    def to(self, device: torch.device | str) -> "Tally":
        """The same on ``device``: itself where it is there."""
        n = users_on(device, self.n)
        parts = {name: part.to(device) for name, part in self.parts.items()}
        moved = n is not self.n or any(parts[name] is not part for name, part in self.parts.items())
        return Tally(n, parts) if moved else self

    def users(self, answer: int = 0) -> float | Tensor:
        """n beside numbers that have ``answer`` dimensions behind the batch."""
        return broadcast_users(self.n, answer)

    def at(self, index: Any) -> "Tally":
        """Those of a batch that ``index`` chooses, as of n: ``tally.at(tally.n > 0)``.

        Raises ValueError for a tally of repetitions, which stand before the batch.
        """
        batch = tensor_of(self.n).shape
        if any(part.shape[: len(batch)] != batch for part in self.parts.values()) or not batch:
            raise ValueError("tally must be a batch without sample_shape before it")
        n = tensor_of(self.n)[index]
        parts = {name: part[index] for name, part in self.parts.items()}
        return Tally(n if n.ndim else int(n), parts)

    def checked(
        self, layout: Layout, limits: Callable[[Users], dict[str, Limits]], least: int = 1
    ) -> "Tally":
        """Itself, if at least so many users can have sent it: its layout and its numbers.

        limits: of each part, by the number of users. Raises TypeError, ValueError.
        """
        if set(checks.instance("tally.parts", self.parts, Mapping)) != set(layout):
            raise ValueError(
                f"tally must hold {sorted(layout)}, not {sorted(self.parts)}; make it by this "
                "protocol's own verbs"
            )
        leading = set()
        for name, (shape, dtype) in layout.items():
            part = checks.dense(name, self[name])
            end = part.ndim - len(shape)
            if part.shape[end:] != shape or part.dtype != dtype:
                wanted = "x".join(map(str, shape)) or "()"
                raise ValueError(
                    f"{name} must be {dtype} of shape (..., {wanted}), "
                    f"not {part.dtype} {tuple(part.shape)}"
                )
            leading.add(tuple(part.shape[:end]))
        n = checks.people("tally.n, the number of users,", self.n, least)
        batch = tuple(n.shape) if isinstance(n, Tensor) else ()
        if len(leading) > 1 or any(lead[len(lead) - len(batch) :] != batch for lead in leading):
            raise ValueError(
                f"the parts {sorted(layout)} must have the same leading dimensions, those of "
                "tally.n the last"
            )
        # Limits are of one user at least; nobody sends nothing.
        nobody = dict.fromkeys(layout, Limits(0.0, 0.0))
        known: dict[str, Limits] = limits(n) if isinstance(n, Tensor) or n else nobody
        ranges: list[tuple[str, Tensor, Any, Any]] = []
        for name, (shape, _) in layout.items():
            ranges += known[name].of(name, self[name], len(shape))
        # One read of a device for all parts.
        ends = checks.finite(**{name: value for name, value, *_ in ranges})
        for (name, value, low, high), (least_held, most_held) in zip(ranges, ends, strict=True):
            if isinstance(low, Tensor) or isinstance(high, Tensor):
                self._judge(name, value, low, high)
            elif not low <= least_held <= most_held <= high:
                raise ValueError(
                    f"tally is not what {n} users can have sent: {name} must lie in "
                    f"[{low:.6g}, {high:.6g}]"
                )
        return self

    def _judge(self, name: str, value: Tensor, low: Tensor | float, high: Tensor | float) -> None:
        """Refuses what users of a batch can not have sent: out of [low, high], or not 0 of none."""
        n = tensor_of(self.n).to(value.device)
        low = torch.as_tensor(low, dtype=torch.float64, device=value.device)
        high = torch.as_tensor(high, dtype=torch.float64, device=value.device)
        behind = max(low.ndim, high.ndim) - n.ndim
        # Limits are of one user at least; the parts of an empty group are 0.
        some = (n > 0).view(*n.shape, *[1] * behind)
        wrong = (value < low * some) | (value > high * some)
        if wrong.any():
            answer = math.prod(value.shape[value.ndim - behind :])
            rows = wrong.reshape(-1, *n.shape, answer).any(-1)
            where = checks.at(rows.any(0))
            raise ValueError(
                f"tally is not what so many users can have sent: {name} is too far off{where}"
            )


@dataclass(frozen=True, eq=False)
class Estimate(Brief):
    """An answer and its error, from the tally alone; it refers to these n users.

    Its interval covers the answer of these users, over the privacy noise. ``of_population()``
    refers to the population from which they are an independent sample: its error counts the
    sampling as well.

    Args:
        value: (*sample_shape, *batch, *answer).
        standard_error: likewise.
        n: users.
        bias: bounds what an approximation may add.
        error: what intervals are made of, or what makes it once it is asked for (None: one normal
            part of the standard error).
        limits: what the truth can be, numbers or (*answer); intervals stay inside, the value need
            not.
        stretch: where the error is far from normal, as one Laplace number is: of a level, how far
            the interval's ends lie over those of a normal error of this deviation, a number or
            (*answer).
        sampled: whether it refers to the population.
        population: makes the estimate that does; None where the sampling error is not known.
        covariance: makes that of the answers' errors, (*batch, m, m), of m answers; None: not
            known.
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
        """The estimate for the population from which these users are an independent sample.

        The standard error gains what the users' own answer varies from one sample to the next: Var
        f/n of a mean of f, from the messages where they tell it, else the largest variance that
        agrees with them. No privacy is spent. Raises TypeError where the sampling error is not
        known.
        """
        if self.sampled:
            return self
        if self.population is None:
            raise TypeError(
                "the sampling error of this estimate is not known: of_population is for means, "
                "histograms, linear queries, functions of shares and pairwise statistics"
            )
        return self.population()

    def with_sampling(self, added: Tensor, covariance: Callable[[], Tensor] | None = None) -> Self:
        """Of the population.

        Args:
            added: by sampling to the variance, (*batch, *answer).
            covariance: makes the whole one.
        """
        # The noise is independent of who is sampled: the variances add up.
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

    def interval(self, level: float = 0.95) -> Ends:
        """(low, high): the error's ends at this level, widened by bias; see :class:`ErrorParts`.

        Raises ValueError.
        """
        z = quantile(level)
        return self.ends(z if self.stretch is None else z * self.stretch(level))

    def ends(self, z: float | Tensor) -> Ends:
        """(low, high) at z standard errors, a number or like the value."""
        return ends(self.centre, self.parts, z, self.limits, self.bias)

    def together(self, level: float = 0.95) -> Ends:
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
            # Sidak's inequality is of normal errors, Bonferroni's of all.
            name = "level, 1 - (1 - level) / m for m entries,"
            return self.interval(checks.fraction(name, 1 - (1 - level) / m))
        if self.covariance is None or m > MOST_CORRELATED:
            z = sidak(level, self.value.new_tensor(m))
        else:
            z = largest_deviate(self.covariance(), level)[..., None]
        return self.ends(z)

    def frame(self, *names: Any, level: float = 0.95) -> "pd.DataFrame":
        """A pandas table of each number: value, standard_error and its interval's low and high.

        Args:
            names: of the entries of the last dimensions, or what was asked: a Series (its
                categories), a DataFrame (its columns); entries of other dimensions are numbered.
            level: of the intervals.

        Raises ValueError.
        """
        low, high = self.interval(level)
        error = self.standard_error.expand(self.value.shape)
        columns = {"value": self.value, "standard_error": error, "low": low, "high": high}
        return framed(columns, names)

    def __str__(self) -> str:
        """The first numbers with their standard errors; up to twelve with 95 % intervals."""
        names, rows, more = self._shown()
        lines = ["".join(f"{cell:>15}" for cell in names)]
        for row in rows:
            lines.append("".join(f"{number:>15.6g}" for number in row))
        return "\n".join([*lines, f"and {more} more"] if more else lines)

    def _repr_html_(self) -> str:
        """The same as a table."""
        names, rows, more = self._shown()
        table = html_table(rows, names)
        return f"{table}<p>and {more} more</p>" if more else table

    def _shown(self) -> tuple[tuple[str, ...], list[tuple[float, ...]], int]:
        """Names of columns, rows of numbers, and how many numbers there are beyond."""
        more = max(0, self.value.numel() - SHOWN)
        columns = {"value": self.value, "standard error": self.standard_error}
        # Each interval is a search, and there would be one for every entry, shown or not.
        if not more:
            columns["low"], columns["high"] = self.interval()
        numbers = []
        for column in columns.values():
            entries = column.detach().expand(self.value.shape).flatten()
            numbers.append(entries[:SHOWN].tolist())
        return tuple(columns), list(zip(*numbers, strict=True)), more


class Objective(Enum):
    """Which squared error of a vector answer is minimised, whatever the data."""

    WORST = "of the worst entry"
    MEAN = "in the mean over the entries"

    def of(self, mse: Tensor, batch: int = 0) -> Tensor:
        """Of squared errors of any shape behind so many dimensions of a batch: (*batch)."""
        entries = mse.reshape(*mse.shape[:batch], -1)
        return entries.amax(-1) if self is Objective.WORST else entries.mean(-1)
