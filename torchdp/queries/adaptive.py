"""The decoder of a strategy's reports for the data that the reports themselves show."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.memory import rows_at_once
from torchdp.protocol import Tally
from torchdp.randomizers import StrategyMatrix
from torchdp.simplex import onto_simplex

RANK = 1e-9  # singular values of a strategy below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class AdaptedDecoder:
    """Answers of least variance under the histogram that the plain decoder of the same reports gives.

    Q: the strategy, (outputs, k). The decoder of least variance under a histogram h is W M^{-1} Q^T D^{-1},
    D = diag(Q h), M = Q^T D^{-1} Q (``StrategyMatrix``).

    Args:
        client: Q, of which users send an output.
        queries: W, (m, k), in the row space of Q. Unchecked.
    """

    client: StrategyMatrix
    queries: Tensor

    @cached_property
    def _small(self) -> tuple[Tensor, Tensor, bool]:
        """In coordinates B h, B an orthonormal basis of Q's rows: Q, (outputs, r), W, (m, r); whether r is k."""
        root = self.client.law.sqrt()[:, None]
        _, size, rows = torch.linalg.svd(self.client.matrix / root, full_matrices=False)
        basis = rows[size > RANK * size[0]]
        full = len(basis) == self.client.k
        if full:  # a rotation would mix the scales of types, which a large epsilon sets far apart
            basis = self.client.identity
        return self.client.matrix @ basis.mT, self.queries @ basis.mT, full

    def variance(self, h: Tensor) -> Tensor:
        """Of one user's part in each answer, (*batch, m), where types are distributed as h (*batch, k)."""
        rows = h.reshape(-1, h.shape[-1])
        parts = [self._decoded(part)[1] for part in rows.split(self._at_once)]
        return torch.cat(parts).view(*h.shape[:-1], -1)

    def answers(self, tally: Tally) -> tuple[Tensor, Tensor]:
        """W h, (*batch, m), and the variance of one user's part in it."""
        f = tally["reports"].double() / tally.users(1)
        histograms = self._nearest(f).reshape(-1, self.client.k)
        reports = f.reshape(-1, f.shape[-1])
        values = []
        variances = []
        size = self._at_once
        for h, each in zip(histograms.split(size), reports.split(size), strict=True):
            value, variance = self._decoded(h, each)
            values.append(value)
            variances.append(variance)
        shape = (*f.shape[:-1], len(self.queries))
        return torch.cat(values).view(shape), torch.cat(variances).view(shape)

    def decoders(self, tally: Tally) -> Tensor:
        """What each report of this tally adds to the answers, (*batch, m, outputs)."""
        Q, _, _ = self._small
        h = self._nearest(tally["reports"].double() / tally.users(1))
        law = h @ self.client.matrix.mT
        return (Q @ self._weights(law) / law[..., None]).mT

    def _nearest(self, f: Tensor) -> Tensor:
        """The histogram nearest to what shares of reports f (*batch, outputs) tell plainly."""
        return onto_simplex(f @ self.client.inverse.mT)

    def _weights(self, law: Tensor) -> Tensor:
        """M^{-1} W^T for distributions of reports (*batch, outputs): (*batch, r, m)."""
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
        """Answers from shares of reports (b, outputs), W h without them, and one user's variance under h (b, k).

        The variance is W M^{-1} W^T - sum_x h_x W_x^2; of an h that reports do not tell the last counts as (W h)^2,
        which is no more.
        """
        Q, W, full = self._small
        law = h @ self.client.matrix.mT  # (b, outputs)
        weights = self._weights(law)  # (b, r, m)
        second = (weights * W.mT).sum(-2)
        if full or reports is None:
            mean = h @ self.queries.square().mT
        else:
            mean = (h @ self.queries.mT).square()
        value = second if reports is None else (((reports / law)[:, None] @ Q) @ weights)[:, 0]
        return value, (second - mean).clamp_min(0)
