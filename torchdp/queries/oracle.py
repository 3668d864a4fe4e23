"""Linear queries from a frequency oracle's reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise
from torchdp.privacy import Guarantee
from torchdp.queries.factored import dense
from torchdp.queries.mechanism import Answers, Errors, QueryMechanism, users
from torchdp.randomizers import FrequencyOracle


@dataclass(frozen=True)
class LocalOracle(QueryMechanism):
    """Each user reports its type through a frequency oracle; the analyst reads the answers off the tally of reports.

    A constant shift of a query's row changes its answer by a known amount, but also the noise of an oracle whose
    decoded reports do not sum to 1: each row is used less its mean, which is best for uniform types.

    workload: (m, k) or a :class:`~torchdp.workloads.Workload`; oracle: on the same k types. ``standard_error`` is that
    of the decoded histogram, cut off at 0; of the worst type where the oracle tells no types apart one by one. Raises
    ValueError, TypeError.

    Guarantees: the oracle's own, for each user.
    Source: Wang, Blocki, Li, Jha (2017); McKenna, Maity, Mazumdar, Miklau (2020) for strategy matrices.
    """

    workload: Tensor
    oracle: FrequencyOracle

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", dense(self.workload))
        if checks.instance("oracle", self.oracle, FrequencyOracle).k != self.workload.shape[1]:
            raise ValueError(f"oracle has k = {self.oracle.k} types, the workload {self.workload.shape[1]}")

    @property
    def guarantee(self) -> Guarantee:
        return self.oracle.guarantee

    @cached_property
    def errors(self) -> Errors:
        return Errors(torch.zeros_like(self.workload), self.oracle.workload_variance(self._centred), power=1)

    @cached_property
    def _centred(self) -> Tensor:
        return self.workload - self.workload.mean(1, keepdim=True)

    def _answer(self, types: Tensor, noise: Noise) -> Answers:
        return self._answers(self.oracle.old_reports(self.oracle.collect(types, noise=noise)), len(types))

    def answer_histogram(
        self, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
    ) -> Answers:
        counts = checks.counts("counts", counts, self.workload.shape[1])
        n = users(counts)
        tally = self.oracle.sample_reports(counts, generator=generator, sample_shape=sample_shape)
        return self._answers(tally, n)

    def _answers(self, tally: Tensor, n: int) -> Answers:
        value = self.oracle.answer(tally, self._centred) / n + self.workload.mean(1)
        try:
            h = self.oracle.decode_counts(tally).clamp_min(0)
        except ValueError:  # a strategy matrix of rank below k
            error = (self.errors.variance.amax(1) / n).sqrt().expand_as(value)
        else:
            h = h / h.sum(-1, keepdim=True).clamp_min(1e-300)
            error = (h @ self.errors.variance.mT / n).sqrt()
        return Answers(value, error, value.new_zeros(value.shape[-1]), n)
