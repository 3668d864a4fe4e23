"""Linear queries from a frequency oracle's reports."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws, Simulated
from torchdp.protocol import Estimate, Relay, Tally
from torchdp.queries import likelihood
from torchdp.queries.factored import dense
from torchdp.queries.projection import projections
from torchdp.queries.protocol import Fits, QueryProtocol
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from torchdp.randomizers.alphabet.frequency import FrequencyOracle, VarianceMatrix

KINDS = RandomizedResponse, SubsetSelection, OptimizedUnaryEncoding, SymmetricUnaryEncoding, HadamardResponse
ORACLES: tuple[Callable[[int, float], FrequencyOracle], ...] = KINDS  # of which choices are made
LISTED = 2**24  # outputs times answers, up to which each message is decoded alone
O = TypeVar("O", bound=FrequencyOracle)


@dataclass(frozen=True, eq=False)
class OracleQueries(QueryProtocol, Relay[Tensor, Tensor, O]):
    """Each user reports its type through a frequency oracle; a class adds how the analyst decodes the reports.

    A constant shift of a query's row changes its answer by a known amount, but also the noise of an oracle whose
    decoded reports do not sum to 1: each row is used less its mean, which is best for uniform types.

    workload: (m, k) or a :class:`~torchdp.workloads.Workload`; client: an oracle on the same k types.
    Raises ValueError, TypeError.
    """

    workload: Tensor
    client: O

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", dense(self.workload))
        checks.own(self)
        if checks.instance("client", self.client, FrequencyOracle).k != self.workload.shape[1]:
            raise ValueError(f"client has k = {self.client.k} types, the workload {self.workload.shape[1]}")

    @cached_property
    def _centred(self) -> Tensor:
        return self.workload - self.workload.mean(1, keepdim=True)

    @cached_property
    def variance(self) -> Tensor:
        return self.client.workload_variance(self._centred)

    @property
    def bias(self) -> Tensor:
        return torch.zeros_like(self.workload)

    def fits(self, tally: Tally, ordered: bool) -> Fits:
        noise = self.client.entry_variance
        if noise is None:
            return likelihood.fits(self.client, tally["reports"].double(), ordered)
        shares = self.client.totals(tally) / tally.users(1)
        eye = torch.eye(self.client.k, dtype=torch.float64, device=shares.device)
        return projections(eye / noise, shares / noise, tally.users(), ordered)

    def decoded(self, tally: Tally) -> Tensor:
        """V, (m, outputs) or (*batch, m, outputs): what each message adds to the answers, but for W's means."""
        n = torch.ones(self.client.outputs, dtype=torch.int64, device=tally["reports"].device)
        each = Tally(n, {"reports": torch.diag(n)})
        return self.client.answers(each, self._centred).mT

    def sampled_from(self, found: Estimate, tally: Tally) -> Estimate:
        """``found``, with what makes the population's estimate of it."""
        return replace(found, population=partial(self._of_population, found, tally.kept()))

    def _of_population(self, found: Estimate, tally: Tally) -> Estimate:
        """A mean of the users' independent decoded messages: its variance is theirs over n, whatever was sent.

        Where messages are too many to be listed: the noise's, and Var W_i = W_i^2 h - (W_i h)^2 at the decoded shares.
        """
        n, outputs = tally.users(1), self.client.outputs
        listed = self.client.entry_variance is None and outputs * max(outputs, len(self.workload)) <= LISTED
        if not listed:
            squares = self.client.answers(tally, self._centred.square()) / n
            off = found.value - self.workload.mean(1)
            return found.with_sampling((squares - off.square()).clamp_min(0) / n)
        f, V = tally["reports"].double() / n, self.decoded(tally)
        mean = (V @ f[..., None])[..., 0]
        variance = ((V.square() @ f[..., None])[..., 0] - mean.square()).clamp_min(0) / n
        own = replace(found, standard_error=torch.zeros_like(variance), error=None)

        def covariance() -> Tensor:
            centred = V - mean[..., None]
            return (centred * f[..., None, :]) @ centred.mT / (n if isinstance(n, float) else n[..., None])

        return own.with_sampling(variance, covariance)

    def collect_unchecked(self, x: Tensor, draws: Draws) -> Tally:
        return self.client.collect_unchecked(x, draws)

    def sample_unchecked(self, summary: Tensor, draws: Simulated, shape: tuple[int, ...]) -> Tally:
        return self.client.sample_unchecked(summary, draws, shape)


@dataclass(frozen=True, eq=False)
class LocalOracle(OracleQueries[FrequencyOracle]):
    """Each user reports its type through a frequency oracle; the analyst reads the answers off the tally of reports.

    workload: (m, k) or a :class:`~torchdp.workloads.Workload`; client: an oracle on the same k types.
    ``standard_error`` is that of the decoded shares, or of the nearest histogram where that is more; of the worst type
    where the oracle tells no types apart one by one. Raises ValueError, TypeError.

    Guarantees: the client's own, for each user.
    Source: Wang, Blocki, Li, Jha (2017); McKenna, Maity, Mazumdar, Miklau (2020) for strategy matrices.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.validated(self, "variance")  # refuses queries that the client's reports can not answer

    @property
    def variance_proxy(self) -> Tensor:
        return self.client.workload_proxy(self._centred)

    def analyse(self, tally: Tally) -> Estimate:
        n = self.check(tally).users(1)
        value = self.client.answers(tally, self._centred) / n + self.workload.mean(1)
        variance = VarianceMatrix(self.variance)
        try:
            shares = self.client.totals(tally) / n
        except ValueError:  # a strategy matrix of rank below k
            each = self.variance.amax(1).expand_as(value)
        else:
            each = variance.plug_in(shares)
        return self.sampled_from(Estimate(value, (each / n).sqrt(), tally.n), tally)
