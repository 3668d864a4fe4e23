"""Local and central factorization mechanisms: privacy, exact errors, both paths."""

import math

import pytest
import torch

from torchdp import workloads
from torchdp.factorization import approximate, factorize
from torchdp.privacy import Model
from torchdp.protocol import Objective
from torchdp.queries import (
    CentralFactorization,
    ConceptClass,
    FactoredQueries,
    LocalFactorization,
    LocalOracle,
    PrivateLearner,
    conjunctions,
    parities,
    thresholds,
)
from torchdp.randomizers import DuchiJordanWainwright, PrivUnit, PrivUnitG
from torchdp.randomness import keyed_generator

W = workloads.prefix(6).dense()
COUNTS = torch.tensor([5, 0, 40, 1, 3, 11])
TYPES = torch.repeat_interleave(torch.arange(6), COUNTS)
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
    with pytest.raises(ValueError, match="and a radius of at least"):
        LocalFactorization(mechanism.queries, PrivUnit(mechanism.client.dim, 0.7, 0.9 * mechanism.queries.radius))
    with pytest.raises(ValueError, match="client must have dim"):
        LocalFactorization(mechanism.queries, PrivUnit(2, 0.7))


def test_the_worst_error_is_attained_by_users_of_one_type():
    kept, kind = queries("approximate"), DuchiJordanWainwright
    mechanism = LocalFactorization.calibrated(kept, epsilon=1.0, randomizer=kind)
    n, generator = 50, keyed_generator(b"worst")
    worst, average = (float(mechanism.worst_mse(n, objective)) for objective in Objective)
    one_type = torch.stack([mechanism.predicted_mse(n * torch.eye(6, dtype=torch.int64)[x]) for x in range(6)])
    assert worst == pytest.approx(float(one_type.max()))
    assert average == pytest.approx(float(one_type.mean(1).max()))
    for _ in range(50):
        types = torch.randint(6, (n,), generator=generator)
        mse = mechanism.predicted_mse(torch.bincount(types, minlength=6))
        assert mse.max() <= worst * (1 + 1e-12) and mse.mean() <= average * (1 + 1e-12)


def test_the_worst_query_of_gamma_2_has_the_factorization_norm():
    found = factorize(W, shift=True, tol=1e-6)
    mechanism = LocalFactorization.calibrated(FactoredQueries.of(W, found), epsilon=1.0, randomizer=PrivUnitG)
    unit = PrivUnitG(1, 1.0).moments.variance
    worst = float(found.certificate.upper) ** 2 * unit / 10_000
    assert float(mechanism.worst_mse(10_000)) == pytest.approx(worst)


@pytest.mark.parametrize("randomizer", [PrivUnit, PrivUnitG])
def test_guarantee_half_width_holds_with_the_stated_probability(randomizer):
    mechanism = LocalFactorization.calibrated(queries("gamma_2"), epsilon=2.0, randomizer=randomizer)
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


def test_bad_input_is_named():
    protocol = LocalFactorization.calibrated(queries("gamma_2"), epsilon=1.0)
    zero = torch.zeros(6, dtype=torch.int64)
    cases = [
        (ValueError, r"summary must have shape \(\.\.\., 6\)", lambda: protocol.predicted_mse(torch.ones(5))),
        (ValueError, "no negative counts", lambda: protocol.exact(torch.tensor([-1, 0, 0, 0, 0, 61]))),
        (ValueError, "no negative counts", lambda: protocol.predicted_mse(zero)),
        (ValueError, "summary must", lambda: protocol.sample_tally(-COUNTS, generator=keyed_generator(b"bad"))),
        (ValueError, "users must be", lambda: protocol.sample_tally(zero, generator=keyed_generator(b"bad"))),
        (ValueError, "n must be", lambda: protocol.worst_mse(0)),
        (TypeError, "objective must be an? Objective", lambda: protocol.worst_mse(10, "worst")),
        (ValueError, "left, right, shift must", lambda: FactoredQueries(W, torch.eye(6), torch.eye(5), W[0])),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()


def test_wrong_objects_are_named():
    q = queries("identity")
    cases = [
        ("queries must be a FactoredQueries", lambda: CentralFactorization(W, 1.0, 1e-6)),
        ("queries must be a FactoredQueries", lambda: LocalFactorization(W, PrivUnit(6, 1.0))),
        ("queries must be a FactoredQueries", lambda: LocalFactorization.calibrated(W, epsilon=1.0)),
        ("client must be a BallRandomizer", lambda: LocalFactorization(q, 1.0)),
        ("randomizer must be a function", lambda: LocalFactorization.calibrated(q, epsilon=1.0, randomizer="x")),
        ("factorization must be a Factorization", lambda: FactoredQueries.of(W, W)),
        ("workload must be a torch.Tensor", lambda: FactoredQueries.identity("prefix")),
        ("client must be a FrequencyOracle", lambda: LocalOracle(W, PrivUnit(6, 1.0))),
        ("concepts must be a ConceptClass", lambda: PrivateLearner.calibrated(W, epsilon=1.0)),
        ("client must be a BallRandomizer", lambda: PrivateLearner(thresholds(3), 7)),
        ("tables must be a tuple or list", lambda: ConceptClass(("a",), torch.ones(1, 2))),
    ]
    for message, call in cases:
        with pytest.raises(TypeError, match=message):
            call()


def test_users_that_cannot_be_are_refused():
    concepts = thresholds(3)
    x = torch.tensor([[0], [2]])
    cases = [
        ("records must lie in", lambda: concepts.codes(torch.tensor([[-1]]))),
        ("records must lie in", lambda: concepts.predict(torch.tensor([[-1]]), 0)),
        ("concepts must", lambda: concepts.predict(x, -1)),
        ("concepts must lie in", lambda: concepts.predict(x, torch.tensor([0, 5]))),
        ("records must lie in", lambda: concepts.losses(torch.tensor([[3]]), torch.ones(1))),
        ("labels must be", lambda: concepts.losses(x, torch.tensor([1.0, 0.0]))),
        ("labels must be", lambda: concepts.losses(x, torch.ones(3))),
        ("thresholds would hold", lambda: thresholds(2**40)),
        ("d must be", lambda: parities(2**40, 2)),
        ("parities would hold", lambda: parities(20, 20)),
        ("conjunctions would hold", lambda: conjunctions(20, 20)),
    ]
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()
