"""Whether a second round pays: protocols in rounds beside the channels of one."""

import math
from statistics import fmean

from torch import Tensor

from torchdp.pairwise.forms import Pairs, one_kernel
from torchdp.pairwise.rounds.three_round import ProjectedTwoRound
from torchdp.pairwise.rounds.two_round import TwoRound
from torchdp.pairwise.statistic import PairwiseStatistic
from torchdp.protocol import Choice, Protocol
from torchdp.protocol.choice import Candidate
from torchdp.queries import choose
from torchdp.queries.channel import histograms_of
from torchdp.randomizers import base


def choose_rounds(
    statistic: PairwiseStatistic,
    n: int,
    epsilon: float,
    *,
    prior: Tensor | None = None,
    search: bool = True,
) -> Choice[Protocol[Tensor]]:
    """``queries.choose`` of local channels, and two rounds, with projection and without.

    For means whose kernel has one value on the diagonal; a third round gains nothing over two.
    Arguments and errors as there.

    Guarantees: the best's own; nothing is read from data.
    """
    chosen = choose(one_kernel(statistic), n, epsilon, prior=prior, search=search)
    varies = statistic.pairs is Pairs.DISTINCT and statistic.wide is not statistic
    # Three messages share epsilon.
    splits = 3 * base.SMALLEST_EPSILON < epsilon < base.LARGEST_EPSILON
    if statistic.denominator is not None or varies or not splits:
        return chosen
    family = statistic.histograms
    mean = None
    if prior is not None:
        family = histograms_of(prior, statistic.types)
        # Budgets and weight are tuned for one histogram; the error is that over all of them.
        mean = family.mean(0)
    rounds = {
        "two rounds": TwoRound.tuned(statistic, n, epsilon, prior=mean),
        "two rounds, projected": ProjectedTwoRound.tuned(statistic, n, epsilon),
    }
    candidates = list(chosen.candidates)
    for name, protocol in rounds.items():
        # Squared errors are averaged over the family, and the root is taken last.
        squares = [float(protocol.predicted_mse(h * n)) for h in family]
        candidates.append(Candidate(name, protocol, math.sqrt(fmean(squares))))
    return Choice(tuple(candidates))
