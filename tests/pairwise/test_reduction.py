"""Linear queries from protocols for quadratic forms."""

import pytest
import torch

from torchdp import pairwise
from torchdp.pairwise import OneMessage, RandomizedResponsePlugIn, TwoMessage, TwoRound, linear_queries
from torchdp.pairwise.reduction import linear_queries_bound
from torchdp.randomness import keyed_generator

STATISTIC = pairwise.from_factors(torch.eye(3), torch.tensor([[1.0, 2, 0], [2, 0, -1], [0, -1, 3]]))
COUNTS = torch.tensor([300, 0, 700])


@pytest.mark.parametrize("kind", [OneMessage, TwoMessage])
def test_queries_are_unbiased_and_within_the_bound(kind):
    protocol, trials = kind(STATISTIC, 2.0), 4000
    found = linear_queries(protocol, COUNTS, generator=keyed_generator(b"queries"), sample_shape=(trials,))
    truth = STATISTIC.kernel(STATISTIC.form) @ (COUNTS.double() / 1000)
    z = (found.mean(0) - truth) / found.std(0) * trials**0.5
    assert found.shape == (trials, 3) and float(z.abs().max()) < 4.5
    bound, mse = linear_queries_bound(protocol, COUNTS), (found - truth).square().mean(0)
    assert bool((mse < bound).all()) and bool((mse > bound / 30).all())


def test_a_constant_in_the_form_reaches_the_answers():
    statistic = pairwise.absolute_difference(4)
    counts = torch.tensor([10**6, 0, 10**6, 0])
    found = linear_queries(OneMessage(statistic, 8.0), counts, generator=keyed_generator(b"constant"))
    torch.testing.assert_close(found, torch.tensor([1.0, 1, 1, 2]).double(), atol=0.05, rtol=0)


def test_guarantee_only_the_users_messages_are_read():
    # the users' messages are drawn once, at the protocol's budget; all later draws are of made up users
    calls = []

    class Counted(OneMessage):
        def collect_histogram(self, counts, *, generator, sample_shape=()):
            calls.append(counts.clone())
            return super().collect_histogram(counts, generator=generator, sample_shape=sample_shape)

    linear_queries(Counted(STATISTIC, 1.0), COUNTS, generator=keyed_generator(b"once"))
    assert [each.tolist() for each in calls] == [[300, 0, 700], [1000, 0, 0], [0, 1000, 0], [0, 0, 1000]]


def test_bad_input_is_refused():
    generator = keyed_generator(b"bad")
    with pytest.raises(TypeError, match="without rounds"):
        linear_queries(TwoRound(STATISTIC, 1.0, 0.5), COUNTS, generator=generator)
    with pytest.raises(ValueError, match="all pairs"):
        linear_queries(RandomizedResponsePlugIn(STATISTIC, 1.0), COUNTS, generator=generator)
    with pytest.raises(ValueError, match="at least one user"):
        linear_queries(OneMessage(STATISTIC, 1.0), torch.zeros(3, dtype=torch.int64), generator=generator)
    with pytest.raises(ValueError, match="counts"):
        linear_queries(OneMessage(STATISTIC, 1.0), torch.tensor([1, 2]), generator=generator)
