"""Quantiles of numbers in bins, the median among them, through any channel.

Notation: F, (*batch, k + 1), the shares of users below the edges of k bins; p, (q,), the shares
whose quantiles are asked; straight in each bin, F^-1 is the quantile function.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchdp import checks, workloads
from torchdp.brief import Brief
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.interval import Ends
from torchdp.protocol.records import tensor_of
from torchdp.queries.channel import Channel, Question

# In F: what a bin without users, or an error of none, counts as.
RESOLUTION = 1e-12


@dataclass(frozen=True, eq=False)
class Quantiles(Question, Brief):
    """The numbers below which given shares of the users lie; users of a bin are evenly in it.

    The mean of many of them, evenly from .1 to .9, is a trimmed mean.

    Args:
        edges: of the bins, (k + 1,), rising and public; ``bins_of`` finds a number's.
        shares: (q,), each in (0, 1), a tensor or numbers; .5 is the median.

    Raises TypeError, ValueError.

    Source: Woodruff (1952), for the intervals.
    """

    edges: Tensor
    shares: Any = (0.5,)

    def __post_init__(self) -> None:
        edges = checks.shaped("edges", checks.floating("edges", self.edges), "bins + 1")
        if len(edges) < 3 or bool((edges.diff() <= 0).any()):
            raise ValueError("edges must be three numbers or more, each above the one before")
        shares = checks.as_tensor("shares", self.shares).double()
        if checks.shaped("shares", shares, "q").min() <= 0 or not shares.max() < 1:
            raise ValueError(f"shares must be in (0, 1), .5 for the median, not {self.shares}")
        object.__setattr__(self, "edges", edges.double().clone())
        object.__setattr__(self, "shares", shares.clone())

    @property
    def types(self) -> int:
        return len(self.edges) - 1

    @property
    def histograms(self) -> Tensor:
        """The flat one."""
        return torch.full((1, self.types), 1 / self.types, dtype=torch.float64)

    def queries(self, distinct: bool) -> Tensor:
        """F at the inner edges: at the outer ones it is 0 and 1."""
        return workloads.prefix(self.types).dense().double()[:-1]

    def analyst(self, channel: Channel) -> "QuantileAnalyst":
        return QuantileAnalyst(self, channel)

    def of(self, F: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """F^-1 of p (..., q), the upper edge of its bin, and where in the bin it lies."""
        upper = 1 + (F[..., None, 1:-1] < p[..., None]).sum(-1)
        low = F.gather(-1, upper - 1)
        mass = F.gather(-1, upper) - low
        inside = ((p - low) / mass.clamp_min(RESOLUTION)).clamp(0, 1)
        return torch.lerp(self.edges[upper - 1], self.edges[upper], inside), upper, inside

    def around(self, low: Tensor, high: Tensor, value: Tensor) -> Ends:
        """The edges between which quantiles lie, by the ends of F's intervals at inner edges.

        From the first bin whose upper end may have the share below it to the last whose lower end
        may; noise may exclude every bin, but the value is always inside.
        """
        p = self.shares[:, None]
        first = (at_edges(high)[..., None, 1:] >= p).int().argmax(-1)
        last = (at_edges(low)[..., None, :-1] <= p).flip(-1).int().argmax(-1)
        lowest = torch.minimum(self.edges[first], value)
        return lowest, torch.maximum(self.edges[self.types - last], value)


@dataclass(frozen=True, eq=False)
class QuantileAnalyst:
    """Reads quantiles off a channel's F, made to rise.

    The standard error is half of what lies between F^-1(p - s) and F^-1(p + s), s that of F at the
    quantile: to first order s over the density.
    """

    question: Quantiles
    channel: Channel

    def analyse(self, tally: Tally) -> "QuantileEstimate":
        tally = self.channel.whole(tally)
        F = self.channel.analyse(tally)
        value, error, slope = self._heard(tally)
        noise = self.channel.plausible(tally)
        return QuantileEstimate(
            value,
            error,
            F.n,
            stretch=F.stretch,
            covariance=lambda: slope @ noise @ slope.mT,
            question=self.question,
            below=F,
        )

    def expansion(self, tally: Tally) -> tuple[Tensor, None]:
        return self._heard(tally)[2], None

    def _heard(self, tally: Tally) -> tuple[Tensor, Tensor, Tensor]:
        F = self.channel.mean(tally)
        # Between the least function that rises over F, and the largest below it.
        below = F.flip(-1).cummin(-1).values.flip(-1)
        middle = (F.cummax(-1).values + below).clamp(0, 2) / 2
        return self._read(middle, self.channel.plausible(tally))

    def _read(self, inner: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """F^-1(p), its standard error and its slope in F, (*batch, q, k - 1).

        inner: F at the inner edges; covariance: its own.
        """
        F = at_edges(inner)
        p = self.question.shares
        value, upper, inside = self.question.of(F, p)
        eye = torch.eye(F.shape[-1]).to(F)
        weights = torch.lerp(eye[upper - 1], eye[upper], inside[..., None])[..., 1:-1]
        s = ((weights @ covariance) * weights).sum(-1).clamp_min(0).sqrt()
        low, *_ = self.question.of(F, p - s)
        high, *_ = self.question.of(F, p + s)
        error = (high - low) / 2
        return value, error, -weights * (error / s.clamp_min(RESOLUTION))[..., None]

    def exact(self, summary: Tensor) -> Tensor:
        return self._of_users(summary)[0]

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self._of_users(summary)[1].square()

    def _of_users(self, summary: Tensor) -> tuple[Tensor, ...]:
        inner = self.channel.exact(summary)
        counts = summary.to(inner)
        return self._read(inner, self.channel.covariance(counts))

    def worst_mse(self, n: Users, objective: Objective) -> Tensor:
        """No bound is known: inf."""
        return torch.full_like(tensor_of(n), torch.inf, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class QuantileEstimate(Estimate):
    """Quantiles, whose intervals end at edges of bins.

    below: F's own estimate. An interval holds the quantile where F at both ends of its bin lies in
    its own interval, one side of each: at least as often as ``level`` says. Several hold together
    by Bonferroni's inequality.
    """

    question: Quantiles = field(kw_only=True)
    below: Estimate = field(kw_only=True)

    def of_population(self) -> "QuantileEstimate":
        whole = self.below.of_population()
        # At most: errors of F grow by the sampling, and a quantile's in proportion.
        ratio = (whole.standard_error / self.below.standard_error).amax(-1, keepdim=True)
        error = self.standard_error * ratio
        return replace(self, standard_error=error, below=whole, sampled=True)

    def ends(self, z: float | Tensor) -> Ends:
        if isinstance(z, Tensor) and z.ndim:
            z = z.amax(-1, keepdim=True)
        return self.question.around(*self.below.ends(z), self.value)

    def together(self, level: float = 0.95) -> Ends:
        level = checks.fraction("level", level)
        return self.interval(1 - (1 - level) / self.value.shape[-1])


def bins_of(edges: Tensor, x: Rows) -> Tensor:
    """The bins of numbers (n,): types for ``Quantiles`` and histograms.

    Numbers beyond the edges are in the first or the last bin; missing ones are refused.

    Args:
        edges: (k + 1,), rising, public: not the least and the largest number of the data.
        x: a tensor, an array, a list or a pandas Series.

    Raises TypeError, ValueError.
    """
    numbers = checks.floating("x", checks.precise("x", rows_of(x, ())))
    inner = Quantiles(edges).edges[1:-1]
    return torch.bucketize(numbers, inner.to(numbers.device), right=True)


def at_edges(inner: Tensor) -> Tensor:
    """F at all edges, of F at the inner ones."""
    return pad(pad(inner, (1, 0)), (0, 1), value=1.0)
