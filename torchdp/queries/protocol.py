"""What protocols for linear queries have in common: their data, their truth, and their exact error."""

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol import Estimate, Objective, Protocol, Tally, Users
from torchdp.protocol.interval import laplace_stretch, largest_variance
from torchdp.protocol.records import alike, beside
from torchdp.queries.factored import FactoredQueries
from torchdp.queries.projection import projections

Fits = tuple[Tensor, Tensor, Tensor]
"""Histograms (fits, b, k), their Akaike values (fits, b), and what the log likelihood of the last may lack, (b,)."""


class QueryProtocol(Protocol[Tensor]):
    """Answers W h to the m linear queries of a workload, h the shares (k,) of the n users' types.

    x: (n,) types; a summary is counts (k,). Squares mix over types, because errors add up: the mean squared error of
    query i is (sum_x h_x bias_ix)^2 + sum_x h_x variance_ix / n^power.

    workload: W, (m, k), float64. power: 1 where every user adds noise of its own, 2 where a curator adds it to the sum.
    """

    workload: Tensor
    power: ClassVar[int] = 1

    @property
    @abstractmethod
    def bias(self) -> Tensor:
        """(m, k): the error of query i for users of type x."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(m, k): of query i's answer from one user of type x."""

    @abstractmethod
    def fits(self, tally: Tally, ordered: bool) -> Fits:
        """Histograms of falling smoothness that make a tally (b, ...) likely; if not ordered the last one alone."""

    @property
    def held(self) -> int:
        return self.workload.shape[1]

    def validate_summary(self, summary: Tensor) -> Tensor:
        """Counts (*batch, k) of whole users, one at least, on the workload's device. Raises TypeError, ValueError."""
        return super().validate_summary(summary).to(self.workload.device)

    def exact(self, summary: Tensor) -> Tensor:
        h, _ = self._shares(summary)
        return h @ self.workload.mT

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Of each query, (*batch, m), for counts (*batch, k). Raises TypeError, ValueError."""
        h, n = self._shares(summary)
        return (h @ self.bias.mT).square() + h @ self.variance.mT / n**self.power

    def worst_mse(self, n: Users, objective: Objective = Objective.WORST) -> Tensor:
        """At data of a single type, by convexity: () or, of a batch of n, (*batch). Raises TypeError, ValueError."""
        worst = checks.instance("objective", objective, Objective) is Objective.WORST
        each = self.bias.square() + self.variance / beside(checks.people("n", n, 1), 2) ** self.power
        return each.amax((-2, -1)) if worst else each.mean(-2).amax(-1)

    def _shares(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """Shares of types (*batch, k) and numbers of users (*batch, 1), which need not be whole."""
        counts = checks.users("summary", summary, self.workload.shape[1]).to(self.workload)
        n = counts.sum(-1, keepdim=True)
        return counts / n, n


class FactoredProtocol(QueryProtocol):
    """Answers L m + shift: m is the mean of the users' columns of R as the analyst hears it, with noise."""

    queries: FactoredQueries

    @abstractmethod
    def heard(self, tally: Tally) -> Tensor:
        """m, (*batch, r)."""

    @property
    @abstractmethod
    def noise(self) -> float:
        """The variance of its coordinates, times n^power."""

    @property
    def laplace(self) -> bool:
        """Whether this noise is discrete Laplace: intervals then have the ends of a single such variable."""
        return False

    @property
    def workload(self) -> Tensor:  # type: ignore[override]
        """W, (m, k)."""
        return self.queries.workload

    @property
    def bias(self) -> Tensor:
        return self.queries.bias

    @property
    def variance(self) -> Tensor:
        each = self.noise * self.queries.left.square().sum(1, keepdim=True)
        return each.expand_as(self.workload)

    def fits(self, tally: Tally, ordered: bool) -> Fits:
        right, noise = self.queries.right, self.noise / (alike(tally.n) if self.power > 1 else 1)
        pull = self.heard(tally) @ right / noise
        return projections(right.mT @ right / noise, pull, tally.users(), ordered)

    def analyse(self, tally: Tally) -> Estimate:
        """The standard error is that on the worst data."""
        value = self.heard(self.whole(tally)) @ self.queries.left.mT + self.queries.shift
        error = (self.variance.amax(1) / tally.users(1) ** self.power).sqrt()
        stretch = laplace_stretch if self.laplace else None
        found = Estimate(value, error.expand_as(value), tally.n, bias=self.bias.abs().amax(1), stretch=stretch)
        return replace(found, population=partial(self._of_population, found, tally.kept()))

    def _of_population(self, found: Estimate, tally: Tally) -> Estimate:
        """Var W_i under the nearest histogram; of those with its R h that of the largest where R tells less."""
        W, right = self.workload, self.queries.right
        batch, n = found.value.shape[:-1], tally.users(1)
        parts = {name: part.reshape(-1, *self.layout[name][0]) for name, part in tally.parts.items()}
        users = tally.n.expand(batch).reshape(-1) if isinstance(tally.n, Tensor) else tally.n
        fits, _, _ = self.fits(Tally(users, parts), False)
        h = fits[-1]
        told = torch.linalg.matrix_rank(torch.cat([right, torch.ones_like(right[:1])])) == len(right.mT)
        if not bool(told):
            each = [torch.stack([largest_variance(right.mT, one, row) for row in W]) for one in h]
            return found.with_sampling(torch.stack(each).view(*batch, -1) / n)
        centred = W - (h @ W.mT)[..., None]  # (b, m, k)
        variance = (centred.square() * h[:, None]).sum(-1).view(*batch, -1)

        def covariance() -> Tensor:
            users = tally.users(2)
            own = ((centred * h[:, None]) @ centred.mT).view(*batch, len(W), len(W))
            return own / users + self.noise * self.queries.left @ self.queries.left.mT / users**self.power

        return found.with_sampling(variance / n, covariance)
