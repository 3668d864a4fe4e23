"""Local and central factorization mechanisms: privacy, exact errors, both paths."""

import math

import pytest
import torch

from torchdp import workloads
from torchdp.factorization import approximate, factorize
from torchdp.privacy import Model
from torchdp.queries import FactoredQueries, LocalFactorization
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
