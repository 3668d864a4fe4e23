"""A pilot's strategy: less error on such data, never a worse guarantee, unbiased for all users."""

import math

import pytest
import torch

from torchdp import workloads
from torchdp.queries import AdaptiveOracle, after_pilot, pooled
from torchdp.randomizers import StrategyMatrix
from torchdp.randomness import keyed_generator

pytestmark = pytest.mark.usefixtures("brief")
K, EPSILON = 8, 4.0
W = workloads.prefix(K).dense()[:-1]
H = 0.4 ** torch.arange(K, dtype=torch.float64)
COUNTS = (H / H.sum() * 20_000).long()
PILOT = AdaptiveOracle(W, StrategyMatrix.balanced(K, EPSILON))


def heard(counts=COUNTS // 10):
    return PILOT.sample_tally(counts, generator=keyed_generator(b"heard"))


def test_guarantee_the_others_spend_no_more_and_err_less():
    other = after_pilot(PILOT, heard())
    ratios = other.client.matrix.amax(1) / other.client.matrix.amin(1)
    assert float(ratios.log().max()) <= other.guarantee.epsilon * (1 + 1e-12)
    assert other.guarantee.epsilon <= PILOT.guarantee.epsilon * (1 + 1e-12)
    rest = COUNTS - COUNTS // 10
    assert float(other.predicted_mse(rest).mean()) < 0.85 * float(PILOT.predicted_mse(rest).mean())


def test_the_pilots_own_stays_where_nothing_is_gained():
    """Its own strategy is that of the shown histogram already: a second search must not be taken for a gain."""
    own = PILOT
    for _ in range(6):
        found = after_pilot(own, own.sample_tally(COUNTS, generator=keyed_generator(b"again")))
        assert float(found.predicted_mse(COUNTS).mean()) <= 1.07 * float(own.predicted_mse(COUNTS).mean())
        if found is own:
            return
        own = found
    pytest.fail("a better strategy was found each time")


def test_all_users_are_answered_without_bias_with_honest_errors():
    generator, trials = keyed_generator(b"pooled"), 2_000
    first, rest = COUNTS // 10, COUNTS - COUNTS // 10
    other = after_pilot(PILOT, heard())
    groups = [
        (each, each.sample_tally(counts, generator=generator, sample_shape=(trials,)))
        for each, counts in ((PILOT, first), (other, rest))
    ]
    found = pooled(groups)
    error = found.value - PILOT.exact(COUNTS)
    n = int(COUNTS.sum())
    assert found.n == n
    assert float((error.mean(0) / error.std(0)).abs().max()) < 5 / math.sqrt(trials)
    parts = zip((PILOT, other), (first, rest), strict=True)
    predicted = sum((int(c.sum()) / n) ** 2 * float(each.predicted_mse(c).mean()) for each, c in parts)
    assert float(error.square().mean()) == pytest.approx(predicted, rel=0.06)
    assert float(found.standard_error.square().mean()) == pytest.approx(predicted, rel=0.06)
    low, high = found.interval()
    truth = PILOT.exact(COUNTS)
    assert 0.935 < float(((low <= truth) & (truth <= high)).double().mean()) < 0.965
