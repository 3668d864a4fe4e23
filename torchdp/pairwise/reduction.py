"""Linear queries from quadratic forms: whoever can estimate h^T W h without interaction can answer W h."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdp import checks
from torchdp.pairwise.interactive import InteractiveProtocol
from torchdp.pairwise.protocol import AggregateProtocol
from torchdp.pairwise.statistic import Pairs


def linear_queries(
    protocol: AggregateProtocol, counts: Tensor, *, generator: torch.Generator, sample_shape: Sequence[int] = ()
) -> Tensor:
    """(W h)_j for every type j, from the messages of one run of ``protocol``: (*sample_shape, k).

    counts: (k,) users of each type, n in all. For each j the analyst adds the messages of n users of type j that it
    makes up: (W h)_j = 2 q_j - q/2 - W_jj/2 with q the form of the users and q_j that of users and made up ones
    together. protocol: without rounds, so that messages do not depend on who else takes part; its statistic a mean over
    all pairs. Unbiased as the protocol is. Raises ValueError, TypeError.

    Guarantees: the protocol's own, at its whole epsilon: both estimates read the same messages.
    Source: Ghazi et al. (2023), Theorem 14, who send two messages at epsilon/2.
    """
    counts = _checked(protocol, counts)
    form, n = protocol.statistic.form, float(counts.sum())
    sums = protocol.collect_histogram(counts, generator=generator, sample_shape=sample_shape)
    joined = []
    for crowd in torch.diag(counts.sum().expand(len(counts))):
        made_up = protocol.collect_histogram(crowd, generator=generator, sample_shape=sample_shape)
        together = tuple(one + other for one, other in zip(sums, made_up, strict=True))
        joined.append(protocol.mean(together, 2 * n, form))
    alone = protocol.mean(sums, n, form)[..., None]
    return 2 * torch.stack(joined, -1) - alone / 2 - protocol.statistic.diagonal(form) / 2


def linear_queries_bound(protocol: AggregateProtocol, counts: Tensor) -> Tensor:
    """The mean squared error of each of ``linear_queries`` is at most (2 a_j^{1/2} + a^{1/2}/2)^2: (k,).

    a, a_j: the protocol's mean squared errors for the users alone and with n users of type j.
    Source: Ghazi et al. (2023), Theorem 14, by Minkowski's inequality.
    """
    counts = _checked(protocol, counts).double()
    form, n = protocol.statistic.form, counts.sum()
    joined = [protocol.mean_variance(counts + crowd, form) for crowd in torch.diag(n.expand(len(counts)))]
    return (2 * torch.stack(joined).sqrt() + protocol.mean_variance(counts, form).sqrt() / 2) ** 2


def _checked(protocol: AggregateProtocol, counts: Tensor) -> Tensor:
    if not isinstance(protocol, AggregateProtocol) or isinstance(protocol, InteractiveProtocol):
        raise TypeError(
            "protocol must be one without rounds and with sums that can be drawn, such as OneMessage, not "
            f"{type(protocol).__name__}: answers to questions about other users' messages cannot be made up later"
        )
    if protocol.native_pairs is not Pairs.ALL or protocol.statistic.denominator is not None:
        raise ValueError(
            "protocol must estimate a mean over all pairs, as OneMessage and TwoMessage do, not a ratio"
        )
    counts = checks.counts("counts", counts, protocol.statistic.types).to(protocol.statistic.points.device)
    if int(counts.sum()) < 1:
        raise ValueError("counts must hold at least one user")
    return counts
