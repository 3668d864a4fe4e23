"""What a protocol takes and gives: a crowd of users, a tally of what they sent, an estimate."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol.interval import Error, ErrorParts, interval

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and dtype of each part of a tally."""

ROUNDING, ADDED = 1e-6, 5e-15  # relative: of sums of floats, which may be float32; of sums of whole numbers
FARTHEST = 40  # standard deviations that no noise reaches: less likely than 1e-300


def farthest(deviation: float, scale: float = 0.0) -> float:
    """What a number's noise stays below, but with a chance of 1e-300: 40 (deviation + 40 scale).

    For noise whose tails fall like those of a normal variable up to some deviations, then by a factor e each ``scale``
    (Bernstein's bound: P(Z > (2 L)^(1/2) deviation + L scale) <= e^-L, here at L = 800).
    """
    return FARTHEST * (deviation + FARTHEST * scale)


@dataclass(frozen=True)
class Limits:
    """What users can make of one part of a tally: numbers from low to high, whose sum (last dimension) is ``total``.

    total: None where it is not known beforehand.
    """

    low: float
    high: float
    total: float | None = None

    @staticmethod
    def around(size: float) -> "Limits":
        """From -size to size."""
        return Limits(-size, size)

    def of(self, name: str, part: Tensor) -> list[tuple[str, Tensor, float, float]]:
        """What must lie where, with room for rounding: the numbers and their sum, each with its name."""
        room = ROUNDING * max(abs(self.low), abs(self.high)) if part.is_floating_point() else 0.0
        found = [(name, part, self.low - room, self.high + room)]
        if self.total is not None:
            least, most = (self.total * (1 + sign * ADDED) for sign in (-1, 1))
            found.append((f"the sum of {name}", part.sum(-1, dtype=torch.float64), least, most))
        return found if part.numel() else []


@dataclass(frozen=True, eq=False)
class Crowd:
    """counts[j] users hold values[j]: (m, ...) and (m,) int64. The summary of users whose data are no finite types."""

    values: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        if not checks.dense("values", self.values).ndim:
            raise ValueError("values must have a row for each value that users hold, not shape ()")
        checks.counts("counts", self.counts, len(self.values))

    @cached_property
    def n(self) -> int:
        """Users."""
        return int(self.counts.sum())

    @property
    def mean(self) -> Tensor:
        """Of the users' values, float64."""
        return self.counts.double() @ self.values.double() / self.n

    @property
    def covariance(self) -> Tensor:
        """Of the users' values (m, d), divisor n: (d, d), float64."""
        off = self.values.double() - self.mean
        return (self.counts.double()[:, None] * off).mT @ off / self.n

    @staticmethod
    def checked(summary: object, validate: Callable[[Tensor], Tensor]) -> "Crowd":
        """``summary``, a crowd of one user at least, its values admitted, no gradient. Raises TypeError, ValueError."""
        crowd = checks.instance("summary", summary, Crowd)
        try:
            values = validate(crowd.values)
        except (TypeError, ValueError) as error:
            raise type(error)(f"summary must hold values that users may have: {error}") from None
        if crowd.n < 1:
            raise ValueError("summary must count at least one user")
        return Crowd(values.detach(), crowd.counts)

    @staticmethod
    def of(x: Tensor) -> "Crowd":
        """Each row by itself."""
        return Crowd(x.detach(), torch.ones(len(x), dtype=torch.int64, device=x.device))


@dataclass(frozen=True, eq=False)
class Tally:
    """What the analyst needs of n users: named tensors, each (*sample_shape, ...). A record; protocols add tallies."""

    n: int
    parts: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.parts[name]

    def checked(self, layout: Layout, limits: Callable[[int], dict[str, Limits]], least: int = 1) -> "Tally":
        """Itself, if it has this layout, at least so many users, and no number that these can not have made.

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
        if len({self[name].shape[: self[name].ndim - len(shape)] for name, (shape, _) in layout.items()}) > 1:
            raise ValueError(f"the parts {sorted(layout)} must have the same leading dimensions")
        n = checks.integer("tally.n", self.n, least)
        known = limits(n) if n else {name: Limits(0.0, 0.0) for name in layout}
        judged = [each for name in layout for each in known[name].of(name, self[name])]
        ends = checks.finite(**{name: value for name, value, *_ in judged})
        for (name, _, low, high), (least_held, most_held) in zip(judged, ends, strict=True):
            if not low <= least_held <= most_held <= high:
                raise ValueError(
                    f"tally is not what {n} users can have sent: {name} must lie in [{low:.6g}, {high:.6g}]"
                )
        return self


@dataclass(frozen=True, eq=False)
class Estimate:
    """value and standard_error, (*sample_shape, *answer), from the tally alone; it speaks of these n users.

    bias: bounds what an approximation may add. error: what intervals are made of, or what makes it once it is asked for
    (None: one normal part of the standard error). limits: what the truth can be; intervals stay inside, the value need
    not.
    stretch: where the error is far from normal, as one Laplace number is: of a level, how far the interval's ends lie
    over those of a normal error of this deviation, a number or (*answer).
    """

    value: Tensor
    standard_error: Tensor
    n: int
    bias: Tensor | float = 0.0
    error: Error | Callable[[], Error] | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)
    stretch: Callable[[float], Tensor | float] | None = None

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
        """(low, high): the error's ends at this level, widened by bias; see :class:`ErrorParts`. Raises ValueError."""
        stretch = 1.0 if self.stretch is None else self.stretch(checks.fraction("level", level))
        return interval(self.centre, self.parts, level, self.limits, self.bias, stretch)


class Objective(Enum):
    """Which squared error of an answer of many entries is judged. Worst data or a prior are said apart."""

    WORST = "of the worst entry"
    MEAN = "in the mean over the entries"

    def of(self, mse: Tensor) -> Tensor:
        """(): of squared errors of any shape."""
        return mse.amax() if self is Objective.WORST else mse.mean()
