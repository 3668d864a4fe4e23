"""A pilot's strategy for pairs: less error on such data, never a worse guarantee, unbiased for all users."""

import functools
import math

import pytest
import torch

from torchdp import pairwise
from torchdp.pairwise import StrategyReports, after_pilot, pooled
from torchdp.protocol import Tally
from torchdp.randomizers import StrategyMatrix
from torchdp.randomness import keyed_generator

pytestmark = pytest.mark.usefixtures("brief")
K, EPSILON = 6, 4.0
GINI = pairwise.absolute_difference(K, spacing=0.2)
H = 0.4 ** torch.arange(K, dtype=torch.float64)
COUNTS = (H / H.sum() * 20_000).long()
FIRST, REST = COUNTS // 10, COUNTS - COUNTS // 10
PILOT = StrategyReports(GINI, EPSILON, StrategyMatrix.balanced(K, EPSILON))


@functools.cache
def after():
    heard = PILOT.sample_tally(FIRST, generator=keyed_generator(b"heard"))
    return after_pilot(PILOT, heard, int(REST.sum()))


@pytest.fixture
def other(brief):
    return after()


def test_guarantee_the_others_spend_no_more_and_err_less(other):
    ratios = other.client.matrix.amax(1) / other.client.matrix.amin(1)
    spent = float(ratios.log().max())
    assert spent <= other.guarantee.epsilon * (1 + 1e-12) <= PILOT.guarantee.epsilon * (1 + 2e-12)
    assert not spent <= 0.9 * EPSILON  # what is left out would be told
    assert float(other.predicted_mse(REST)) < 0.8 * float(PILOT.predicted_mse(REST))


def test_the_value_is_the_mean_over_all_pairs_of_decoded_reports(other):
    """Pair by pair, over a few users of both groups."""
    sent = [(each, each.client.randomize(torch.arange(K).repeat(n))) for each, n in ((PILOT, 2), (other, 3))]
    tallies = [
        (each, Tally(len(y), {"reports": torch.bincount(y, minlength=each.client.outputs)})) for each, y in sent
    ]
    z = torch.cat([each.client.decoder(GINI.points.mT).mT[y] for each, y in sent])
    each = (z * GINI.form.weights) @ z.mT
    wanted = (each.sum() - each.trace()) / (len(z) * (len(z) - 1)) + GINI.form.constant
    assert float(pooled(tallies).value) == pytest.approx(float(wanted), rel=1e-9)


def test_all_users_are_answered_without_bias_with_honest_errors(other):
    """With other data in each group, too."""
    generator, trials = keyed_generator(b"pooled"), 2_000
    for first, rest in ((FIRST, REST), (FIRST.flip(0), REST)):
        groups = [
            (each, each.sample_tally(counts, generator=generator, sample_shape=(trials,)))
            for each, counts in ((PILOT, first), (other, rest))
        ]
        found, truth = pooled(groups), GINI.exact(first + rest)
        error = found.value - truth
        assert abs(float(error.mean() / error.std())) < 5 / math.sqrt(trials)
    groups = [
        (each, each.sample_tally(c, generator=generator, sample_shape=(trials,)))
        for each, c in ((PILOT, FIRST), (other, REST))
    ]
    found, truth = pooled(groups), GINI.exact(COUNTS)
    error = found.value - truth
    assert float(found.standard_error.square().mean()) == pytest.approx(float(error.square().mean()), rel=0.12)
    low, high = found.interval()
    assert 0.93 < float(((low <= truth) & (truth <= high)).double().mean()) < 0.97
    assert float(error.square().mean()) < 0.9 * float(PILOT.predicted_mse(COUNTS))


def test_a_pilot_of_few_shows_nothing():
    """Noise beyond the shares' spread: the prior is even, and nothing is worse than the pilot's own by much."""
    few = torch.tensor([3, 2, 1, 1, 1, 1])
    for seed in range(3):
        found = after_pilot(PILOT, PILOT.sample_tally(few, generator=keyed_generator(bytes([seed]))), 100)
        even = torch.full((K,), 17)
        assert float(found.predicted_mse(even)) < 1.3 * float(PILOT.predicted_mse(even))
