"""Factorization mechanisms, local, central and by servers: privacy, exact errors, both paths."""

import dataclasses
import math

import pytest
import torch
from laws import z_scores
from products import gaussian_delta

from torchdp import workloads
from torchdp.factorization import approximate, factorize
from torchdp.privacy import Model
from torchdp.protocol import Tally
from torchdp.queries import CentralFactorization, FactoredQueries, LocalFactorization, SecureQueries
from torchdp.randomizers import PrivUnit
from torchdp.randomness import keyed_generator

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


KINDS = ["gamma_2", "gamma_F", "approximate", "identity", "plain", "tree"]


@pytest.mark.parametrize("kind", KINDS)
def test_factors_answer_the_queries_up_to_their_bias(kind):
    q = queries(kind)
    torch.testing.assert_close(q.left @ q.right + q.shift[:, None], W + q.bias)
    assert q.bias.abs().max() <= (0.2 + 1e-12 if kind == "approximate" else 1e-9)
    distances = (q.right[:, :, None] - q.right[:, None, :]).norm(dim=0)
    assert q.diameter == pytest.approx(float(distances.max())) and q.diameter <= 2 * q.radius + 1e-12


def test_guarantee_of_a_local_mechanism_is_its_randomizers():
    mechanism = LocalFactorization.calibrated(queries("gamma_2"), epsilon=0.7)
    assert mechanism.guarantee == mechanism.client.guarantee and mechanism.guarantee.epsilon == 0.7
    assert mechanism.guarantee.model is Model.LOCAL and mechanism.guarantee.delta < 2**-128
    assert mechanism.client.radius >= mechanism.queries.right.norm(dim=0).max()  # every user's vector is inside


def test_the_worst_query_of_gamma_2_has_the_factorization_norm():
    found = factorize(W, shift=True, tol=1e-6)
    mechanism = LocalFactorization.calibrated(FactoredQueries.of(W, found), epsilon=1.0)
    unit = PrivUnit(found.right.shape[0], 1.0).moments.variance
    worst = float(found.certificate.upper) ** 2 * unit / 10_000
    assert float(mechanism.worst_mse(10_000)) == pytest.approx(worst)


def test_guarantee_half_width_holds_with_the_stated_probability():
    mechanism = LocalFactorization.calibrated(queries("gamma_2"), epsilon=2.0)
    n, failure = int(COUNTS.sum()), 0.2
    h = mechanism.half_width(n, failure)
    drawn = mechanism.sample_estimate(COUNTS, generator=keyed_generator(b"half"), sample_shape=(2000,)).value
    missed = ((drawn - TRUTH).abs().amax(-1) > h).double().mean()
    assert missed <= failure + 3 * math.sqrt(failure / 2000)
    assert ((drawn - TRUTH).abs().amax(-1) > h / 3).double().mean() > failure  # nor is it wide without limit


def test_guarantee_samples_reach_the_half_width():
    mechanism = LocalFactorization.calibrated(queries("approximate"), epsilon=1.0)
    n = mechanism.samples(0.3, 0.05)
    assert mechanism.half_width(n, 0.05) <= 0.3 < mechanism.half_width(n - 1, 0.05)
    with pytest.raises(ValueError, match="above the bias"):
        mechanism.samples(0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_guarantee_servers_add_noise_for_the_farthest_columns(kind):
    """All of epsilon and delta are spent on them, and noise for columns 1 % nearer is not enough."""
    q = queries(kind)
    far = float(torch.pdist(q.right.mT).max())
    gaussian = SecureQueries.calibrated(q, 100, 0.5, 1e-5)
    whole = math.sqrt(100 * gaussian.noise)
    assert gaussian_delta(far / whole, 0.5) == pytest.approx(1e-5, rel=1e-5)
    assert gaussian_delta(1.01 * far / whole, 0.5) > 1.01e-5
    laplace = SecureQueries.calibrated(q, 100, 0.5)
    scale = math.sqrt(100 * laplace.noise / 2)
    assert float(torch.pdist(q.right.mT, p=1).max()) / scale == pytest.approx(0.5, rel=1e-6)
    for protocol in (gaussian, laplace):
        assert protocol.guarantee == protocol.client.guarantee
        assert protocol.guarantee.model is Model.LINEAR_TRANSFORM and protocol.guarantee.epsilon == 0.5


def test_truncation_to_the_grid_is_in_the_bias():
    """Of clients' own words, added up by servers; nothing else is left out."""
    protocol = SecureQueries.calibrated(queries("gamma_2"), 60, 1.0, 1e-6)
    servers = protocol.client.secure_sum(3)
    x = torch.arange(6).repeat_interleave(COUNTS)
    summed = servers.exact(servers.summary(protocol.rows(x)))[0]
    off = protocol.queries.left @ summed / 60 + protocol.queries.shift - TRUTH
    torch.testing.assert_close(protocol.bias @ COUNTS.double() / 60, off, rtol=0, atol=1e-14)
    assert 1e-12 < off.abs().max() < 1e-6 * protocol.worst_mse(60).sqrt()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("W", [torch.eye(16).double(), workloads.prefix(32).dense()[:-1]], ids=len)
def test_servers_answer_a_hundred_million_as_a_curator_does(W, delta):
    n, k = 10**8, W.shape[1]
    counts = torch.full((k,), n // k)
    protocol = SecureQueries.calibrated(FactoredQueries.of(W, factorize(W, shift=True)), n, 1.0, delta)
    draws = keyed_generator(b"servers")
    drawn = protocol.sample_estimate(counts, generator=draws, sample_shape=(4_000,)).value
    squares = (drawn - W @ counts.double() / n).square()
    assert z_scores(squares, protocol.predicted_mse(counts)).abs().max() < 4
    if delta:
        curator = CentralFactorization(protocol.queries, 1.0, delta)
        assert float(protocol.worst_mse(n)) == pytest.approx(float(curator.worst_mse(n)), rel=1e-3)


def test_clients_who_drop_out_take_their_noise_with_them():
    protocol = SecureQueries.calibrated(queries("gamma_2"), 60, 1.0, 1e-6, absent=10)
    words = torch.zeros(1, len(protocol.queries.right), dtype=torch.int64)
    for n in (50, 60):
        squares = protocol.analyse(Tally(n, {"words": words})).standard_error.square()
        assert float(squares.max()) == pytest.approx(float(protocol.worst_mse(n)))
    assert float(protocol.worst_mse(50) / protocol.worst_mse(60)) == pytest.approx(60 / 50)
    with pytest.raises(ValueError, match="tally is of 49 clients; .* absent = 10 may"):
        protocol.analyse(Tally(49, {"words": words}))
    with pytest.raises(ValueError, match="n must be .* 60"):
        protocol.worst_mse(61)


def test_guarantee_a_sum_whose_noise_hides_less_than_columns_is_refused():
    q = queries("gamma_2")
    near = dataclasses.replace(q, right=q.right / 1.01)
    for delta in (0.0, 1e-6):
        client = SecureQueries.calibrated(q, 60, 1.0, delta).client
        assert SecureQueries(near, client).client is client
        with pytest.raises(ValueError, match="its noise would not hide them"):
            SecureQueries(q, dataclasses.replace(client, sensitivity=client.sensitivity / 1.01))
        with pytest.raises(ValueError, match="norm above bound"):
            SecureQueries(dataclasses.replace(q, right=q.right + 1), client)
        with pytest.raises(ValueError, match="must be a plain sum"):
            SecureQueries(q, dataclasses.replace(client, columns=1))


def test_answers_of_servers_are_read_off_their_sum():
    """The same bits as of one process, for the clients and for their population."""
    protocol = SecureQueries.calibrated(queries("gamma_2"), 60, 1.0, 1e-6)
    x = torch.arange(6).repeat_interleave(COUNTS)
    tally = protocol.tally(protocol.randomize(x))
    found = protocol.released(protocol.client.analyse(tally))
    alone = protocol.analyse(tally)
    assert torch.equal(found.value, alone.value) and torch.equal(found.standard_error, alone.standard_error)
    assert torch.equal(found.of_population().standard_error, alone.of_population().standard_error)
    with pytest.raises(ValueError, match="first = 1 and 60 rows"):
        protocol.randomize(x, first=1)
