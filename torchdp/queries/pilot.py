"""A pilot group's reports choose the strategy of the others: each user sends one message, at the full epsilon."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from torchdp import checks
from torchdp.protocol import Estimate, Tally
from torchdp.queries.adaptive import AdaptiveOracle
from torchdp.queries.protocol import QueryProtocol
from torchdp.randomizers import StrategyMatrix
from torchdp.randomness import keyed_generator
from torchdp.simplex import onto_simplex

LEAST_SHARE, MOST_SHARE = 0.03, 1.0  # of even shares in what a pilot is taken to show
MOST_TYPES = 256  # for which a strategy is optimised


def after_pilot(pilot: AdaptiveOracle, heard: Tally) -> AdaptiveOracle:
    """The protocol of all further users, optimised for the histogram that the pilot's reports show.

    The histogram is the one nearest to the decoded shares H, mixed with even shares by the noise in H over H's squared
    distance from these. Where the new strategy's predicted error on it is not lower than the pilot's, that is kept.
    It is public, made of the reports alone; who is in the pilot must not depend on anybody's data. :func:`pooled`
    joins the groups' answers. It pays where epsilon is 3 or more and a tenth of the users are a thousand.

    pilot: of at most 256 types, all told apart. heard: its tally. Raises TypeError, ValueError.

    Guarantees: each user's is that of the one protocol to which that user sends a message: at most the pilot's epsilon.
    Source: McKenna, Maity, Mazumdar, Miklau (2020) for strategies of a prior; the pilot is made here.
    """
    own = checks.instance("pilot", pilot, AdaptiveOracle).client
    k, W, heard = checks.integer("pilot's types", own.k, 2, MOST_TYPES), pilot.workload, pilot.check(heard)
    decoded = own.totals(heard) / heard.n
    if decoded.ndim != 1:
        raise ValueError(f"heard must be one tally, not a batch of shape {tuple(decoded.shape[:-1])}")
    h = onto_simplex(decoded)
    noise = float((own.workload_variance(own.identity) @ h).sum()) / heard.n
    share = min(MOST_SHARE, max(LEAST_SHARE, noise / max(1e-300, float((decoded - 1 / k).square().sum()))))
    shown = (1 - share) * h + share / k
    W = W - W.mean(1, keepdim=True)
    made = StrategyMatrix.tuned(W, own.epsilon, shown, generator=keyed_generator(b"pilot", W.device))
    other = AdaptiveOracle(pilot.workload, made)
    better = other.predicted_mse(shown * heard.n).mean() < pilot.predicted_mse(shown * heard.n).mean()
    return other if bool(better) else pilot


def pooled(groups: Sequence[tuple[QueryProtocol, Tally]]) -> Estimate:
    """The answers for all users, one message each, in groups: the mean of the groups' answers by their sizes.

    It is the answer of these users whoever is in which group; squared standard errors add up. groups: of the same
    queries, their tallies of one shape. Raises TypeError, ValueError.
    """
    if not groups:
        raise ValueError("groups must hold one pair of a protocol and a tally at least")
    first = checks.instance("groups' protocols", groups[0][0], QueryProtocol).workload
    found = []
    for protocol, tally in groups:
        other = checks.instance("groups' protocols", protocol, QueryProtocol).workload
        if other.shape != first.shape or not bool((other == first).all()):
            raise ValueError("groups must ask the same queries of the same types")
        found.append(protocol.analyse(tally))
    return replace(_joined(found), population=partial(_of_population, found))


def _of_population(found: list[Estimate]) -> Estimate:
    return replace(_joined([each.of_population() for each in found]), sampled=True)


def _joined(found: list[Estimate]) -> Estimate:
    """The mean of independent estimates by their users."""
    n = sum(each.n for each in found)
    value = torch.stack([each.n / n * each.centre for each in found]).sum(0)
    error = torch.stack([(each.n / n * each.standard_error).square() for each in found]).sum(0).sqrt()
    bias = sum(each.n / n * torch.as_tensor(each.bias, dtype=value.dtype) for each in found)
    return Estimate(value, error, n, bias=bias)
