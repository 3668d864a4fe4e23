"""Linear queries from quadratic forms: whoever can estimate h^T W h without interaction can answer
W h.

Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Theorem 14. A part of no table: it shows that
pairwise statistics are no easier than linear queries for protocols of one message.
"""

import torch

from torchdp.pairwise import PairwiseStatistic
from torchdp.queries import MessageRelease


def linear_queries(
    protocol: MessageRelease[PairwiseStatistic], counts, *, generator, sample_shape=()
):
    """(W h)_j for every type j, from the messages of one run of ``protocol``: (*sample_shape, k).

    counts: (k,) users of each type, n in all. For each j the analyst adds the messages of n users
    of type j that it makes up: (W h)_j = 2 q_j - q/2 - W_jj/2 with q the form of the users and q_j
    that of users and made up ones together. protocol: its statistic a mean over all pairs.

    Guarantees: the protocol's own, at its whole epsilon: both estimates read the same messages.
    Source: Ghazi et al. (2023), Theorem 14, who send two messages at epsilon/2.
    """
    form = protocol.question.form
    heard = protocol.sample_tally(counts, generator=generator, sample_shape=sample_shape)
    joined = []
    for crowd in torch.diag(counts.sum().expand(len(counts))):
        made_up = protocol.sample_tally(crowd, generator=generator, sample_shape=sample_shape)
        joined.append(protocol.analyst.mean(protocol.add(heard, made_up), form))
    alone = protocol.analyst.mean(heard, form)[..., None]
    return 2 * torch.stack(joined, -1) - alone / 2 - protocol.question.diagonal(form) / 2


def linear_queries_bound(protocol: MessageRelease[PairwiseStatistic], counts):
    """The mean squared error of each of ``linear_queries`` is at most (2 a_j^{1/2} + a^{1/2}/2)^2:
    (k,).

    a, a_j: the protocol's mean squared errors for the users alone and with n users of type j.
    Source: Ghazi et al. (2023), Theorem 14, by Minkowski's inequality.
    """
    counts = counts.double()
    form = protocol.question.form
    crowds = torch.diag(counts.sum().expand(len(counts)))
    joined = [protocol.analyst.mean_variance(counts + crowd, form) for crowd in crowds]
    alone = protocol.analyst.mean_variance(counts, form)
    return (2 * torch.stack(joined).sqrt() + alone.sqrt() / 2) ** 2


if __name__ == "__main__":
    raise SystemExit(
        "tests alone import this: python -m pytest tests/experiments/test_pairwise_models.py"
    )
