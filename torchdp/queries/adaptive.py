"""Linear queries from a strategy's reports, decoded for the data that the reports themselves show."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.memory import rows_at_once
from torchdp.protocol import Estimate, Tally
from torchdp.queries.oracle import LocalOracle, OracleQueries
from torchdp.randomizers import StrategyMatrix
from torchdp.randomizers.alphabet.frequency import FrequencyOracle
from torchdp.simplex import onto_simplex

ADAPTED = 2**20  # outputs times types up to which reports are decoded twice
RANK = 1e-9  # singular values of a strategy below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class AdaptiveOracle(OracleQueries[StrategyMatrix]):
    """A strategy's reports, decoded a second time with the data's own histogram in the place of the public prior.

    The decoder of least variance under a histogram h is W M^{-1} Q^T D^{-1}, D = diag(Q h), M = Q^T D^{-1} Q
    (``StrategyMatrix``). Whatever h, it answers without bias; h is the nearest histogram to what the plain
    decoder gives, so that the answers are those of the efficient estimate: their variance is sum_x h_x Var(V | x)/n at
    the users' own h to first order in 1/n, never more than the plain decoder's, and the worst data are no worse
    (minimax: the plain decoder is that of the least favourable prior). The h depends on the noise: a bias of
    order 1/n remains, measured below the standard error from 30 users on.

    workload: (m, k) or a :class:`~torchdp.workloads.Workload`; client: a strategy matrix on the same k types that can
    answer it. ``predicted_mse`` is the first order; ``worst_mse`` that of the plain decoder. Raises TypeError,
    ValueError.

    Guarantees: the client's own, for each user: what is decoded twice was sent once.
    Source: Neyman (1949), one step from an estimate to an efficient one; McKenna, Maity, Mazumdar, Miklau (2020).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.instance("client", self.client, StrategyMatrix)
        self.client.decoder(self._centred)  # refuses queries that the strategy can not answer

    @cached_property
    def _small(self) -> tuple[Tensor, Tensor, bool]:
        """In coordinates B h, B an orthonormal basis of Q's rows: Q, (outputs, r), W, (m, r); whether r is k."""
        root = self.client.law.sqrt()[:, None]
        _, size, rows = torch.linalg.svd(self.client.matrix / root, full_matrices=False)
        basis = rows[size > RANK * size[0]]
        full = len(basis) == self.client.k
        if full:  # a rotation would mix the scales of types, which a large epsilon sets far apart
            basis = self.client.identity
        return self.client.matrix @ basis.mT, self._centred @ basis.mT, full

    def predicted_mse(self, summary: Tensor) -> Tensor:
        """Of each query, (*batch, m), for counts (*batch, k), to first order. Raises TypeError, ValueError."""
        h, n = self._shares(summary)
        variance = [self._decoded(part)[1] for part in h.reshape(-1, h.shape[-1]).split(self._at_once)]
        return torch.cat(variance).view(*h.shape[:-1], -1) / n

    def analyse(self, tally: Tally) -> Estimate:
        tally = self.check(tally)
        f = tally["reports"].double() / tally.users(1)
        h = self._nearest(f)
        both = (each.reshape(-1, each.shape[-1]).split(self._at_once) for each in (h, f))
        found = [self._decoded(*part) for part in zip(*both, strict=True)]
        value, variance = (torch.cat(each).view(*f.shape[:-1], -1) for each in zip(*found, strict=True))
        estimate = Estimate(value + self.workload.mean(1), (variance / tally.users(1)).sqrt(), tally.n)
        return self.sampled_from(estimate, tally)

    def _nearest(self, f: Tensor) -> Tensor:
        """The histogram nearest to what shares of reports f (*batch, outputs) tell plainly."""
        return onto_simplex(f @ self.client.inverse.mT)

    def decoded(self, tally: Tally) -> Tensor:
        """By the decoder of these reports, (*batch, m, outputs)."""
        Q, _, _ = self._small
        h = self._nearest(tally["reports"].double() / tally.users(1))
        law = h @ self.client.matrix.mT
        return (Q @ self._weights(law) / law[..., None]).mT

    def _weights(self, law: Tensor) -> Tensor:
        """M^{-1} W^T for laws of reports (*batch, outputs): (*batch, r, m)."""
        Q, W, _ = self._small
        # M = seen^T seen would lose half of the digits: an h of few types has few
        seen = Q / law.sqrt()[..., None]
        triangle = torch.linalg.qr(seen, mode="r").R
        return torch.cholesky_solve(W.mT.expand(*law.shape[:-1], -1, -1), triangle, upper=True)

    @property
    def _at_once(self) -> int:
        Q, W, _ = self._small
        return rows_at_once((len(Q) + len(W)) * Q.shape[1])

    def _decoded(self, h: Tensor, reports: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Answers from shares of reports (b, outputs), less W's means, and one user's variance under h (b, k).

        The variance is W M^{-1} W^T - sum_x h_x W_x^2; of an h that reports do not tell the last counts as (W h)^2,
        which is no more.
        """
        Q, W, full = self._small
        law = h @ self.client.matrix.mT  # (b, outputs)
        weights = self._weights(law)  # (b, r, m)
        second = (weights * W.mT).sum(-2)
        mean = h @ self._centred.square().mT if full or reports is None else (h @ self._centred.mT).square()
        value = second if reports is None else (((reports / law)[:, None] @ Q) @ weights)[:, 0]
        return value, (second - mean).clamp_min(0)


def decoding(workload: Tensor, client: FrequencyOracle) -> OracleQueries:
    """A strategy matrix that is not large is decoded for the data that its reports show."""
    if isinstance(client, StrategyMatrix) and client.matrix.numel() <= ADAPTED:
        return AdaptiveOracle(workload, client)
    return LocalOracle(workload, client)
