"""Two samples of one population: how often does their difference have p < 0.05?"""

import pytest
import torch

from torchdp import domains, mean, pairwise, queries, workloads
from torchdp.collection import difference
from torchdp.collection.comparison import Difference
from torchdp.protocol import Estimate
from torchdp.queries import (
    CentralFactorization,
    FactoredQueries,
    LocalOracle,
)
from torchdp.randomizers import (
    OptimizedUnaryEncoding,
    RandomizedResponse,
)
from torchdp.randomness import keyed_generator

N = 4_000
# a share of .05 rejected is known to .007
TIMES = 1_000
K = 4
PREFIX = workloads.prefix(K).dense()
BOX = domains.Box(torch.zeros(1), torch.ones(1))
PROTOCOLS = {
    "curator's histogram": CentralFactorization(FactoredQueries.identity(PREFIX), 1.0, 1e-6),
    "shares of types": RandomizedResponse(K, 4.0),
    "messages are listed": LocalOracle(PREFIX, RandomizedResponse(K, 8.0)),
    "messages are sets of bits": LocalOracle(PREFIX, OptimizedUnaryEncoding(K, 8.0)),
    "decoded for the data": queries.choose(PREFIX, N, 2.0).best,
}


def sampled(protocol, generator):
    """Estimates of users who are drawn anew each time."""
    users = torch.randint(K, (TIMES, N), generator=generator)
    counts = torch.zeros(TIMES, K, dtype=torch.int64).scatter_add_(1, users, torch.ones_like(users))
    return protocol.sample_estimate(counts, generator=generator)


def rejected(p):
    small = p < 0.05
    return float(small.double().mean())


def without_sampling(found):
    """The negative control: these users' own difference, taken for the populations'."""
    return Difference(found.value, found.standard_error, found.n, sampled=True)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_two_samples_of_one_population_differ_in_one_of_twenty_tests(name):
    generator = keyed_generator(name.encode())
    users = difference(
        sampled(PROTOCOLS[name], generator),
        sampled(PROTOCOLS[name], generator),
    )
    found = users.of_population()
    assert 0.03 < rejected(found.p_value[:, 1]) < 0.07
    # where the covariance is not known it is a bound
    assert 0.015 < rejected(found.any()) < 0.07
    # control: the least of several p-values
    assert rejected(found.p_value.amin(-1)) > 0.08
    assert rejected(without_sampling(users).p_value[:, 1]) > (
        0.15 if name != "decoded for the data" else 0.09
    )


def test_a_curators_mean_keeps_the_level_and_one_with_its_variance_reaches_it():
    generator = keyed_generator(b"curator")
    release = mean.GaussianMean.tuned(BOX, epsilon=1.0, delta=1e-6)
    both = mean.GaussianCovariance.calibrated(
        BOX,
        release.shape,
        epsilon=1.0,
        delta=1e-6,
    )
    rows = [torch.rand(TIMES, 1_000, 1, generator=generator, dtype=torch.float64) for _ in range(2)]
    alone = difference(*(release.estimate(each) for each in rows))
    assert rejected(alone.of_population().p_value) < 0.03
    assert rejected(without_sampling(alone).p_value) > 0.2
    means = [both.estimate(each).mean for each in rows]
    beside = difference(*means).of_population()
    assert 0.03 < rejected(beside.p_value) < 0.07


def test_pairs_keep_the_level():
    generator = keyed_generator(b"pairs")
    protocol = queries.LocalFactorization.of(pairwise.unequal(K), 8.0)
    # uneven: pairs of users vary
    shares = torch.tensor([0.7, 0.1, 0.1, 0.1])
    users = torch.multinomial(
        shares.expand(600, K),
        1_000,
        replacement=True,
        generator=generator,
    )
    counts = torch.zeros(600, K, dtype=torch.int64).scatter_add_(1, users, torch.ones_like(users))
    found = protocol.sample_estimate(counts, generator=generator)
    one = Estimate(found.value[:300], found.standard_error[:300], 1_000)
    two = Estimate(found.value[300:], found.standard_error[300:], 1_000)
    whole = found.of_population()
    apart = whole.value[:300] - whole.value[300:]
    variance = whole.standard_error.square()
    z = apart.abs() / (variance[:300] + variance[300:]).sqrt()
    assert float((z > 1.96).double().mean()) < 0.09
    assert rejected(without_sampling(difference(one, two)).p_value) > 0.3


def test_users_and_populations_are_not_mixed_and_several_answers_are_a_batch():
    found = RandomizedResponse(K, 1.0).sample_estimate(
        torch.tensor([9, 9, 9, 9]), generator=keyed_generator(b"m")
    )
    with pytest.raises(
        ValueError,
        match="both be of their users, or both of_population",
    ):
        difference(found, found.of_population())
    with pytest.raises(AttributeError, match="no p-value"):
        difference(found, found).any()
    assert found.of_population().of_population().sampled
    fitted = queries.fitted(
        PROTOCOLS["messages are listed"],
        PROTOCOLS["messages are listed"].collect(torch.arange(4)),
    )
    assert torch.equal(fitted.of_population().value, fitted.value)
    assert bool((fitted.of_population().standard_error >= fitted.standard_error).any())
