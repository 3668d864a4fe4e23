"""The AUC, a ratio of two estimated means, and the standard errors that come from the messages."""

import pytest
import torch
from laws import counts_of, coverage, sampled

from pairwise.common import mse, responses, vectors
from torchdp import pairwise
from torchdp.protocol import Tally
from torchdp.queries import LocalOracle
from torchdp.randomness import keyed_generator
from torchdp.simulate import Moments

# few users of a class
pytestmark = pytest.mark.filterwarnings("ignore:the denominator")


def auc_counts(k, n):
    """A quarter of positives, who score higher."""
    x = torch.linspace(-1, 1, k, dtype=torch.float64)
    negatives = 3 * torch.exp(-((x + 0.5) ** 2))
    positives = torch.exp(-((x - 0.5) ** 2))
    return counts_of(torch.cat([negatives, positives]), n)


def test_a_strategy_for_the_auc_makes_half_the_error_and_says_so(brief):
    """Few users: the delta method alone is 15 % too low, and a planted wrong label share is
    seen.
    """
    statistic = pairwise.auc(8)
    counts = auc_counts(8, 2_000)
    n = 2_000
    prior = pairwise.class_histograms(8, 0.25)
    protocol = LocalOracle.tuned(
        statistic,
        n,
        1.0,
        prior=prior,
        generator=keyed_generator(b"strategy"),
        steps=60,
    )
    answer = protocol.sample_estimate(counts, **sampled(6_000, b"auc"))
    error = answer.value - statistic.exact(counts)
    predicted = mse(protocol, counts, n)
    assert predicted < 0.35 * mse(vectors(statistic, 1.0), counts, n)
    squared = Moments.of(error.square())
    assert squared.mean == pytest.approx(predicted, rel=0.1)
    assert squared.standard_error < 0.03 * predicted
    few = protocol.sample_estimate(counts, **sampled(300, b"ends"))
    truth = statistic.exact(counts)
    assert 0.91 < coverage(few.interval(), truth) < 0.985
    shares = torch.tensor([[0.1], [0.4]]).double()
    rows = pairwise.class_histograms(8, (0.1, 0.4)).view(2, 5, 2, 8)
    torch.testing.assert_close(rows.sum(-1)[..., 1], shares.expand(2, 5))


@pytest.mark.parametrize("label", [0, 1])
def test_no_ratio_where_the_denominator_is_zero_but_for_rounding(label):
    # at this budget randomized response changes nothing: all reports name one class
    statistic = pairwise.auc(4)
    counts = torch.zeros(2, 4, dtype=torch.int64)
    counts[label] = torch.tensor([3, 1, 0, 7])
    protocol = responses(statistic, 700.0)
    answer = protocol.sample_estimate(counts.flatten(), **sampled(3, b"none"))
    assert bool(answer.value.isnan().all())
    assert bool(answer.standard_error.isnan().all())
    mixed = torch.stack([counts.flatten(), torch.ones(8, dtype=torch.int64)])
    tally = Tally(88, {"reports": mixed * torch.tensor([[8], [11]])})
    assert protocol.analyse(tally).value.isnan().tolist() == [True, False]
