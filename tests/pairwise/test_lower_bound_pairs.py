"""The lower bound of pairwise statistics, against exact errors averaged over users drawn from a
histogram.
"""

import itertools
import math

import pytest
import torch
from laws import float64

from pairwise.common import responses, vectors
from torchdp import pairwise, queries
from torchdp.pairwise import Pairs, PairwiseStatistic


@pytest.mark.parametrize("pairs", Pairs)
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_guarantee_no_protocol_errs_less_on_average(pairs, epsilon):
    """All samples of n users from h, each with its chance; the exact error of unbiased protocols on
    each.
    """
    unequal = pairwise.unequal(3)
    h = float64([0.5, 0.3, 0.2])
    statistic = PairwiseStatistic(
        "unequal",
        unequal.points,
        unequal.form,
        pairs=pairs,
    )
    for n in (2, 4):
        least = statistic.bound(n, epsilon, h)
        for protocol in (
            vectors(statistic, epsilon),
            responses(statistic, epsilon),
        ):
            mean = 0.0
            for users in itertools.combinations_with_replacement(range(3), n):
                counts = torch.bincount(torch.tensor(users), minlength=3).double()
                rates = [h[x] ** c / math.factorial(int(c)) for x, c in enumerate(counts)]
                chance = math.factorial(n) * math.prod(rates)
                mean += float(chance * protocol.predicted_mse(counts))
            assert least <= math.sqrt(mean)
    assert least > 0


def test_it_is_near_what_randomized_response_errs_on_two_types_of_many_users():
    """f_1 is one query of two types, which randomized response answers best."""
    statistic = pairwise.unequal(2)
    h = float64([0.9, 0.1])
    n = 10**8
    for epsilon in (0.5, 2.0):
        error = math.sqrt(float(responses(statistic, epsilon).predicted_mse(h * n)))
        # under h reports tell less than under even shares
        growth = math.tanh(epsilon / 2) ** 2
        assert 0.4 * error < statistic.bound(n, epsilon, h) <= error
        assert growth < 1
    # even shares: f_1 is constant
    assert statistic.bound(n, 1.0, torch.ones(2)) == 0
    assert statistic.bound(n, 1e4, h) == 0


def test_ratios_and_merged_bins_count_as_what_is_asked(brief):
    auc = pairwise.auc(8)
    n = 100_000
    h = pairwise.class_histograms(8, 0.3)[1]
    choice = queries.choose(auc, n, 1.0, prior=h)
    assert auc.bound(n, 1.0, h) == choice.bound < choice.candidates[0].error < 4 * choice.bound
    with pytest.raises(ValueError, match="denominator"):
        auc.bound(n, 1.0, torch.eye(16)[0])
    assert pairwise.choose_rounds(pairwise.unequal(4), n, 1.0, search=False).bound is None
