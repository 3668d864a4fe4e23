"""The analyst's answer is a function of the messages and of the number of users, and of nothing else."""

import pytest
import torch

from torchdp import pairwise
from torchdp.noise import SeededNoise
from torchdp.pairwise import OneMessage, OneMessagePairs, RandomizedResponsePlugIn, TwoMessage
from torchdp.randomness import keyed_generator

pytestmark = pytest.mark.filterwarnings("ignore:the denominator")  # few users of a class

KINDS = [TwoMessage, OneMessage, OneMessagePairs, RandomizedResponsePlugIn]
STATISTICS = [pairwise.absolute_difference(6), pairwise.kendall(2, 3), pairwise.auc(3)]
TYPES = torch.tensor([0, 5, 5, 2, 3, 1, 4, 4, 0, 0])


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KINDS)
def test_estimate_is_analyse_after_collect(kind, statistic):
    protocol = kind(statistic, 2.0)
    whole = protocol.estimate(TYPES, noise=SeededNoise.of(keyed_generator(b"analyst")))
    parts = protocol.analyse(protocol.collect(TYPES, noise=SeededNoise.of(keyed_generator(b"analyst"))), 10)
    assert whole.value == parts.value and whole.standard_error == parts.standard_error and whole.n == parts.n == 10
    if isinstance(protocol, pairwise.AggregateProtocol):
        counts = torch.bincount(TYPES, minlength=6)
        whole = protocol.estimate_histogram(counts, generator=keyed_generator(b"analyst"))
        parts = protocol.analyse(protocol.collect_histogram(counts, generator=keyed_generator(b"analyst")), 10)
        assert whole.value == parts.value and whole.standard_error == parts.standard_error


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_messages_from_other_users_give_the_same_answer(kind, statistic, monkeypatch):
    protocol = kind(statistic, 2.0)
    messages = protocol.collect(TYPES, noise=SeededNoise.of(keyed_generator(b"messages")))
    monkeypatch.setattr(kind, "collect", lambda self, types, noise: messages)
    one, two = (protocol.estimate(types, noise=None) for types in (TYPES, torch.ones_like(TYPES)))
    assert one.value == two.value and one.standard_error == two.standard_error
    assert [float(end) for end in one.interval()] == [float(end) for end in two.interval()]
    if isinstance(protocol, pairwise.AggregateProtocol):
        monkeypatch.setattr(kind, "collect_histogram", lambda self, counts, generator, sample_shape: messages)
        for counts in (torch.bincount(TYPES, minlength=6), torch.tensor([10, 0, 0, 0, 0, 0])):
            assert protocol.estimate_histogram(counts, generator=keyed_generator(b"")).value == one.value


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_not_the_predicted_one(kind):
    # the predicted error knows the histogram; the standard error varies with the messages
    protocol = kind(STATISTICS[0], 4.0)
    errors = {
        float(protocol.estimate(TYPES, noise=SeededNoise.of(keyed_generator(bytes([seed])))).standard_error)
        for seed in range(4)
    }
    assert len(errors) > 1 and protocol.predicted_mse(torch.bincount(TYPES, minlength=6), 10) ** 0.5 not in errors


def test_interval_is_normal():
    answer = pairwise.PairwiseEstimate(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), 7)
    low, high = answer.interval()
    torch.testing.assert_close(high - low, torch.tensor([2 * 1.959964 * 0.5, 0.0]))
    torch.testing.assert_close((high + low) / 2, answer.value)
    for level in (0, 1, 1.5, -0.1, float("nan"), "x", None):
        with pytest.raises(ValueError, match="level"):
            answer.interval(level)
