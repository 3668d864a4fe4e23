"""Factorization mechanisms, local, central and by servers: privacy, exact errors, both paths."""

import math

import pytest
import torch
from laws import sampled, z_scores
from products import gaussian_delta

from torchdp import workloads
from torchdp.factorization import approximate, factorize
from torchdp.privacy import Model
from torchdp.queries import (
    CentralFactorization,
    FactoredQueries,
    LocalFactorization,
    SecureQueries,
)
from torchdp.randomizers import PrivUnit

W = workloads.prefix(6).dense()
COUNTS = torch.tensor([5, 0, 40, 1, 3, 11])
TRUTH = W @ COUNTS.double() / 60


def queries(kind):
    if kind == "gamma_2":
        return FactoredQueries.of(W, factorize(W, shift=True))
    if kind == "gamma_F":
        return FactoredQueries.of(W, factorize(W, 2.0, shift=True))
    if kind == "approximate":
        return FactoredQueries.of(W, approximate(W, 0.2))
    return getattr(FactoredQueries, kind)(W)


KINDS = [
    "gamma_2",
    "gamma_F",
    "approximate",
    "identity",
    "plain",
    "tree",
]


@pytest.mark.parametrize("kind", KINDS)
def test_factors_answer_the_queries_up_to_their_bias(kind):
    q = queries(kind)
    torch.testing.assert_close(q.left @ q.right + q.shift[:, None], W + q.bias)
    assert q.bias.abs().max() <= (0.2 + 1e-12 if kind == "approximate" else 1e-9)
    distances = (q.right[:, :, None] - q.right[:, None, :]).norm(dim=0)
    assert q.diameter == pytest.approx(float(distances.max()))
    assert q.diameter <= 2 * q.radius + 1e-12


def test_guarantee_of_a_local_mechanism_is_its_randomizers():
    mechanism = LocalFactorization.calibrated(queries("gamma_2"), epsilon=0.7)
    assert mechanism.guarantee == mechanism.client.guarantee
    assert mechanism.guarantee.epsilon == 0.7
    assert mechanism.guarantee.model is Model.LOCAL
    assert mechanism.guarantee.delta < 2**-128
    # every user's vector is inside
    assert mechanism.client.radius >= mechanism.queries.right.norm(dim=0).max()


def test_the_worst_query_of_gamma_2_has_the_factorization_norm():
    found = factorize(W, shift=True, tol=1e-6)
    mechanism = LocalFactorization.calibrated(FactoredQueries.of(W, found), epsilon=1.0)
    client = PrivUnit(len(found.right), 1.0)
    worst = float(found.certificate.upper) ** 2 * client.moments.variance / 10_000
    assert float(mechanism.worst_mse(10_000)) == pytest.approx(worst)


def test_guarantee_half_width_holds_with_the_stated_probability():
    mechanism = LocalFactorization.calibrated(queries("gamma_2"), epsilon=2.0)
    n = int(COUNTS.sum())
    failure = 0.2
    h = mechanism.half_width(n, failure)
    drawn = mechanism.sample_estimate(COUNTS, **sampled(2000, b"half")).value
    largest = (drawn - TRUTH).abs().amax(-1)
    missed = (largest > h).double().mean()
    assert missed <= failure + 3 * math.sqrt(failure / 2000)
    # nor is it wide without limit
    assert (largest > h / 3).double().mean() > failure


def test_guarantee_samples_reach_the_half_width():
    mechanism = LocalFactorization.calibrated(queries("approximate"), epsilon=1.0)
    n = mechanism.samples(0.3, 0.05)
    assert mechanism.half_width(n, 0.05) <= 0.3 < mechanism.half_width(n - 1, 0.05)
    with pytest.raises(ValueError, match="above the bias"):
        mechanism.samples(0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_guarantee_servers_add_noise_for_the_farthest_columns(kind):
    """All of epsilon and delta are spent on them; noise for columns 1 % nearer would not hide
    them.
    """
    right = queries(kind).right.mT
    noise = SecureQueries(queries(kind), 100, 0.5, 1e-5).noise
    distances = torch.pdist(right)
    apart = float(distances.max()) / math.sqrt(100 * noise)
    assert gaussian_delta(apart, 0.5) == pytest.approx(1e-5, rel=1e-5)
    assert gaussian_delta(1.01 * apart, 0.5) > 1.01e-5
    noise = SecureQueries(queries(kind), 100, 0.5).noise
    assert float(torch.pdist(right, p=1).max()) / math.sqrt(50 * noise) == pytest.approx(
        0.5, rel=1e-6
    )


def test_servers_leave_out_what_truncation_does_and_nothing_else():
    """By the clients' own integers; what the analyst of the servers' sums reads is the same, to the
    bit.
    """
    protocol = SecureQueries(queries("gamma_2"), 60, 1.0, 1e-6)
    client = protocol.client
    x = torch.arange(6).repeat_interleave(COUNTS)
    summary = client.summary(protocol.client_input(x))
    m = client.exact(summary)[0] / 60
    # what the analyst reads of sums without noise, less the truth
    off = protocol.queries.left @ m + protocol.queries.shift - TRUTH
    torch.testing.assert_close(protocol.bias @ COUNTS.double() / 60, off, rtol=0, atol=1e-14)
    assert 1e-12 < off.abs().max() < 1e-6
    tally = protocol.collect(x)
    found = protocol.released(client.analyse(tally)).of_population()
    alone = protocol.analyse(tally).of_population()
    assert torch.equal(found.value, alone.value)
    assert torch.equal(found.standard_error, alone.standard_error)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(
    "W",
    [torch.eye(16).double(), workloads.prefix(32).dense()[:-1]],
    ids=len,
)
def test_servers_answer_a_hundred_million_from_counts(W, delta):
    n = 10**8
    k = W.shape[1]
    counts = torch.full((k,), n // k)
    protocol = SecureQueries(FactoredQueries.of(W, factorize(W, shift=True)), n, 1.0, delta)
    drawn = protocol.sample_estimate(counts, **sampled(4_000, b"servers"))
    squares = (drawn.value - protocol.exact(counts)).square()
    ratios = squares / protocol.predicted_mse(counts)
    assert z_scores(ratios, torch.tensor(1.0)).abs().max() < 4


def test_without_noise_the_population_still_has_an_error():
    """Types that no query tells apart: nothing to hide, and nothing that a sample could miss."""
    sums = FactoredQueries.plain(torch.ones(1, 2).double())
    protocol = CentralFactorization(sums, 1.0, 1e-6)
    found = protocol.estimate(torch.tensor([0, 1, 1])).of_population()
    assert found.value.tolist() == [1.0]
    assert found.standard_error.tolist() == [0.0]
