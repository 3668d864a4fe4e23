"""Quantiles of numbers in bins, the median among them, through any channel.

Notation: F, (*batch, k + 1), the shares of users below the edges of k bins; p, (q,), the shares
whose quantiles are asked; straight in each bin, F^-1 is the quantile function.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchdp import checks, workloads
from torchdp.brief import Brief
from torchdp.protocol import Estimate, Objective, Tally, Users
from torchdp.protocol.frames import Rows, rows_of
from torchdp.protocol.interval import Ends
from torchdp.protocol.records import tensor_of
from torchdp.queries.channel import Channel, Question
from torchdp.queries.statistics import rising, slopes

# In F: what a bin without users counts as.
RESOLUTION = 1e-12


@dataclass(frozen=True, eq=False)
class Quantiles(Question, Brief):
    """The numbers below which given shares of the users lie; users of a bin are evenly in it.

    Args:
        edges: of the bins, (k + 1,), rising and public; ``bins_of`` finds a number's.
        shares: each in (0, 1); .5 is the median.

    Raises TypeError, ValueError.

    Source: Woodruff (1952), for the intervals.
    """

    edges: Tensor
    shares: Sequence[float] = (0.5,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", rising("edges", self.edges))
        shares = checks.instance("shares", self.shares, Sequence)
        if not shares:
            raise ValueError("shares must hold one share at least, such as .5 for the median")
        object.__setattr__(self, "shares", tuple(checks.fraction("shares", p) for p in shares))

    @property
    def types(self) -> int:
        return len(self.edges) - 1

    @property
    def histograms(self) -> Tensor:
        return torch.stack(slopes(self.types))

    def queries(self, distinct: bool) -> Tensor:
        """F at the inner edges: at the outer ones it is 0 and 1."""
        return workloads.prefix(self.types).dense().double()[:-1]

    def analyst(self, channel: Channel) -> "QuantileAnalyst":
        return QuantileAnalyst(self, channel)

    def of(self, F: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """F^-1 of p (*batch, q), the upper edge of its bin, and where in the bin it lies."""
        upper = torch.searchsorted(F.contiguous(), p.contiguous()).clamp(1, self.types)
        low = F.gather(-1, upper - 1)
        mass = F.gather(-1, upper) - low
        inside = ((p - low) / mass.clamp_min(RESOLUTION)).clamp(0, 1)
        edge = self.edges[upper - 1]
        return edge + inside * (self.edges[upper] - edge), upper, inside


@dataclass(frozen=True, eq=False)
class QuantileAnalyst:
    """Reads quantiles off a channel's F, made to rise.

    The standard error is half of what lies between F^-1(p - s) and F^-1(p + s), s that of F at the
    quantile: to first order s over the density.
    """

    question: Quantiles
    channel: Channel

    def analyse(self, tally: Tally) -> "QuantileEstimate":
        shares = self.channel.analyse(tally)
        value, error, _ = self._heard(tally)
        return QuantileEstimate.of(self.question, shares, value, error)

    def expansion(self, tally: Tally) -> tuple[Tensor, None]:
        return self._heard(tally)[2], None

    def _heard(self, tally: Tally) -> tuple[Tensor, Tensor, Tensor]:
        F = self.channel.mean(tally)
        # Between the least function that rises over F, and the largest below it.
        below = F.flip(-1).cummin(-1).values.flip(-1)
        rising = (F.cummax(-1).values + below).clamp(0, 2) / 2
        return self._read(_all_edges(rising), self.channel.plausible(tally))

    def _read(self, F: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """F^-1(p), its standard error and its slope in F at the inner edges, (*batch, q, k - 1).

        covariance: of F there.
        """
        p = F.new_tensor(self.question.shares).expand(*F.shape[:-1], -1)
        value, upper, inside = self.question.of(F, p)
        k = self.question.types
        weights = F.new_zeros(*upper.shape, k + 1)
        weights = weights.scatter(-1, upper[..., None] - 1, 1 - inside[..., None])
        weights = weights.scatter(-1, upper[..., None], inside[..., None])[..., 1:-1]
        s = ((weights @ covariance) * weights).sum(-1).clamp_min(0).sqrt()
        low = self.question.of(F, (p - s).clamp(0, 1))[0]
        high = self.question.of(F, (p + s).clamp(0, 1))[0]
        error = (high - low) / 2
        slope = -weights * (error / s.clamp_min(RESOLUTION))[..., None]
        return value, error, slope

    def exact(self, summary: Tensor) -> Tensor:
        return self._of_users(summary)[0]

    def predicted_mse(self, summary: Tensor) -> Tensor:
        return self._of_users(summary)[1].square()

    def _of_users(self, summary: Tensor) -> tuple[Tensor, ...]:
        counts = checks.users("summary", summary, self.question.types).double()
        return self._read(_all_edges(self.channel.exact(summary)), self.channel.covariance(counts))

    def worst_mse(self, n: Users, objective: Objective) -> Tensor:
        """No bound is known but the range."""
        edges = self.question.edges
        return (edges[-1] - edges[0]).square().expand(tensor_of(n).shape)


@dataclass(frozen=True, eq=False)
class QuantileEstimate(Estimate):
    """Quantiles, whose intervals end at edges of bins.

    shares: F's own estimate. An interval holds the quantile where F at both ends of its bin lies in
    its own interval, one side of each: at least as often as ``level`` says. Several hold together
    by Bonferroni's inequality.
    """

    question: Quantiles = field(kw_only=True)
    shares: Estimate = field(kw_only=True)

    @staticmethod
    def of(
        question: Quantiles, shares: Estimate, value: Tensor, error: Tensor
    ) -> "QuantileEstimate":
        def population() -> "QuantileEstimate":
            # F's own errors grow by the sampling, the quantile's in proportion.
            whole = shares.of_population()
            ratio = (whole.standard_error / shares.standard_error).amax(-1, keepdim=True)
            return replace(found, standard_error=error * ratio, shares=whole, sampled=True)

        found = QuantileEstimate(
            value,
            error,
            shares.n,
            stretch=shares.stretch,
            population=population,
            question=question,
            shares=shares,
        )
        return found

    def ends(self, z: float | Tensor) -> Ends:
        if isinstance(z, Tensor) and z.ndim:
            z = z.amax(-1, keepdim=True)
        low, high = self.shares.ends(z)
        p = low.new_tensor(self.question.shares)[:, None]
        edges = self.question.edges
        # The first bin whose upper end may have the share below it, the last whose lower end may.
        first = (_all_edges(high)[..., None, 1:] >= p).int().argmax(-1)
        last = (_all_edges(low)[..., None, :-1] <= p).flip(-1).int().argmax(-1)
        # Noise may exclude every bin: the value stands in its interval all the same.
        lowest = torch.minimum(edges[first], self.value)
        return lowest, torch.maximum(edges[self.question.types - last], self.value)

    def together(self, level: float = 0.95) -> Ends:
        level = checks.fraction("level", level)
        return self.interval(1 - (1 - level) / self.value.shape[-1])


def bins_of(edges: Tensor, x: Rows) -> Tensor:
    """The bins of numbers (n,): types for ``Quantiles``, ``TrimmedMean`` and histograms.

    Numbers beyond the edges are in the first or the last bin; missing ones are refused.

    Args:
        edges: (k + 1,), rising, public: not the least and the largest number of the data.
        x: a tensor, an array, a list or a pandas Series.

    Raises TypeError, ValueError.
    """
    numbers = checks.floating("x", checks.precise("x", rows_of(x, ())))
    inner = rising("edges", edges)[1:-1]
    return torch.bucketize(numbers, inner.to(numbers.device), right=True)


def _all_edges(F: Tensor) -> Tensor:
    """F at all edges, of F at the inner ones."""
    zero = torch.zeros_like(F[..., :1])
    return torch.cat([zero, F, zero + 1], -1)
