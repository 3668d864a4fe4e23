"""A pilot group's reports choose the strategy of the others: each user sends one message, at the full epsilon."""

import math
from collections.abc import Sequence

import torch

from torchdp import checks
from torchdp.pairwise.consistent import nearest
from torchdp.pairwise.reports import NEAR
from torchdp.pairwise.statistic import PairwiseStatistic, one_kernel
from torchdp.pairwise.strategy_reports import StrategyReports
from torchdp.protocol import Estimate, Tally
from torchdp.randomizers import StrategyMatrix
from torchdp.randomness import keyed_generator

LEAST_SHARE, MOST_SHARE = 0.03, 1.0  # of even shares in what a pilot is taken to show


def after_pilot(pilot: StrategyReports, heard: Tally, n: int) -> StrategyReports:
    """The protocol of n further users, optimised for the mean vector and the histogram that the pilot's reports show.

    To first order the statistic is the linear query 2 J z, z the users' mean vector. The strategy's queries are that of
    the estimated z and J S^(1/2), S the covariance of its noise, for what z may be besides; and those of the second
    order. Its prior is the histogram of ``consistent``, mixed with even shares by the noise in the decoded shares over
    their squared distance from even ones. Where its predicted error is not lower on that histogram than the pilot's
    own, that stays. It is public, made of the reports alone; who is in the pilot must not depend on anybody's data.
    :func:`pooled` joins the groups. It pays from some 10,000 users on (experiments/pairwise/pilot.py).

    pilot: of a mean that approximates no other. heard: its tally, of 2 users at least. Raises TypeError, ValueError.

    Guarantees: each user's is that of the one protocol to which that user sends a message: at most the pilot's epsilon.
    Source: McKenna, Maity, Mazumdar, Miklau (2020) for strategies of a prior; the pilot is made here.
    """
    checks.instance("pilot", pilot, StrategyReports)
    statistic, n, heard = one_kernel(pilot.statistic), checks.integer("n", n, 2), pilot.check(heard, 2)
    if statistic.denominator is not None or statistic.approximates is not None:
        raise ValueError(
            "pilot must be of a mean that approximates no other: a family of priors serves ratios as well"
        )
    if heard["reports"].ndim != 1:
        raise ValueError(f"heard must be one tally, not a batch of shape {tuple(heard['reports'].shape[:-1])}")
    h, k, weights = nearest(pilot, heard, NEAR), statistic.types, statistic.form.weights
    shares = pilot.decoded(heard) / heard.n
    noise = float((pilot.client.matrix @ h) @ pilot.client.inverse.square().sum(0) - h.square().sum()) / heard.n
    share = min(MOST_SHARE, max(LEAST_SHARE, noise / max(1e-300, float((shares - 1 / k).square().sum()))))
    shown, centred = (1 - share) * h + share / k, statistic.points - statistic.points.mean(0)
    spread = torch.einsum("x,xst->st", shown, pilot.covariances)  # of one user's vector
    values, vectors = torch.linalg.eigh(spread)
    root = (vectors * values.clamp_min(0).sqrt()).mT * weights  # root^T root = J C J
    queries = [weights * pilot.mean_point(heard)[None] * math.sqrt(4 / n), root * math.sqrt(4 / n / heard.n)]
    workload = torch.cat([*queries, root * math.sqrt(4 / n**2)]) @ centred.mT
    generator = keyed_generator(b"pilot", statistic.points.device)
    made = StrategyMatrix.tuned(workload, pilot.client.epsilon, shown, generator=generator)
    other = StrategyReports(statistic, pilot.epsilon, StrategyMatrix(made.matrix, shown))
    better = other.predicted_mse(shown * n) < pilot.predicted_mse(shown * n)
    return other if bool(better) else pilot


def pooled(groups: Sequence[tuple[StrategyReports, Tally]]) -> Estimate:
    """The statistic of all users, pairs across the groups included, each of whom sent one message, in groups.

    The groups' decoded vectors add up: whoever is in which group, the value is that of these users, without bias. The
    error counts the groups as alike. groups: of one mean, their tallies of one shape. Raises TypeError, ValueError.
    """
    if not groups:
        raise ValueError("groups must hold one pair of a protocol and a tally at least")
    first = checks.instance("groups' protocols", groups[0][0], StrategyReports)
    n = sum(tally.n for _, tally in groups)
    matrices, vectors, reports = [], [], []
    for protocol, tally in groups:
        same = checks.instance("groups' protocols", protocol, StrategyReports).statistic
        if not _alike(same, first.statistic):
            raise ValueError("groups must ask for the same statistic")
        reports.append(protocol.check(tally)["reports"])
        matrices.append(tally.n / n * protocol.client.matrix)
        vectors.append(protocol.output_vectors)
    epsilon = max(protocol.epsilon for protocol, _ in groups)
    joint = StrategyReports(first.statistic, epsilon, StrategyMatrix(torch.cat(matrices)), torch.cat(vectors))
    return joint.analyse(Tally(n, {"reports": torch.cat(reports, -1)}))


def _alike(one: PairwiseStatistic, other: PairwiseStatistic) -> bool:
    """Whether both ask for the same mean."""
    same = torch.equal(one.points, other.points) and torch.equal(one.form.weights, other.form.weights)
    means = one.denominator is None and other.denominator is None and one.pairs is other.pairs
    return same and means and bool(one.form.constant == other.form.constant)
