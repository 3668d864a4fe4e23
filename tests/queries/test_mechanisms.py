"""Local and central factorization mechanisms: privacy, exact errors, both paths."""

import itertools
import math

import pytest
import torch

from torchdp import simulate, workloads
from torchdp.factorization import approximate, factorize
from torchdp.noise import SeededNoise
from torchdp.privacy import Model, gaussian_log_delta
from torchdp.queries import (
    CentralFactorization,
    ConceptClass,
    FactoredQueries,
    LocalFactorization,
    LocalOracle,
    Objective,
    PrivateLearner,
    conjunctions,
    factored,
    identity,
    local_factorization,
    parities,
    plain,
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
        return factored(W, factorize(W, shift=True))
    if kind == "gamma_F":
        return factored(W, factorize(W, 2.0, shift=True))
    if kind == "approximate":
        return factored(W, approximate(W, 0.2))
    return {"identity": identity, "plain": plain}[kind](W)


KINDS = ["gamma_2", "gamma_F", "approximate", "identity", "plain"]


@pytest.mark.parametrize("kind", KINDS)
def test_factors_answer_the_queries_up_to_their_bias(kind):
    q = queries(kind)
    torch.testing.assert_close(q.left @ q.right + q.shift[:, None], W + q.bias)
    assert q.bias.abs().max() <= (0.2 + 1e-12 if kind == "approximate" else 1e-9)
    distances = (q.right[:, :, None] - q.right[:, None, :]).norm(dim=0)
    assert q.diameter == pytest.approx(float(distances.max())) and q.diameter <= 2 * q.radius + 1e-12


@pytest.mark.parametrize(
    ("kind", "randomizer"),
    [
        *itertools.product(["gamma_2", "approximate"], [PrivUnitG, PrivUnit, DuchiJordanWainwright]),
        ("gamma_F", PrivUnitG),
        ("identity", DuchiJordanWainwright),
        ("plain", PrivUnit),
    ],
)
def test_both_local_paths_have_the_predicted_error(kind, randomizer):
    mechanism = local_factorization(queries(kind), 1.0, randomizer)
    predicted = mechanism.predicted_mse(COUNTS)

    def histogram(generator, size):
        drawn = mechanism.answer_histogram(COUNTS, generator=generator, sample_shape=(size,))
        return (drawn.value - TRUTH).square().mean(-1)

    def messages(generator, size):
        noise = SeededNoise.of(generator)
        drawn = torch.stack([mechanism.answer(TYPES, noise=noise).value for _ in range(size)])
        return (drawn - TRUTH).square().mean(-1)

    for path, trials in ((histogram, 4000), (messages, 400)):
        moments = simulate.run(path, trials, 7, block_size=trials).moments
        assert abs(moments.z_score(float(predicted.mean()))) < 5


def test_a_wrong_variance_is_noticed():
    """Negative control of the test above: an error of 15 % in the variance is 6 standard errors or more."""
    mechanism = local_factorization(queries("gamma_2"), 1.0, PrivUnitG)

    def histogram(generator, size):
        drawn = mechanism.answer_histogram(COUNTS, generator=generator, sample_shape=(size,))
        return (drawn.value - TRUTH).square().mean(-1)

    moments = simulate.run(histogram, 20_000, 7, block_size=20_000).moments
    assert abs(moments.z_score(1.15 * float(mechanism.predicted_mse(COUNTS).mean()))) > 6


def test_guarantee_of_a_local_mechanism_is_its_randomizers():
    mechanism = local_factorization(queries("gamma_2"), 0.7)
    assert mechanism.guarantee == mechanism.randomizer.guarantee and mechanism.guarantee.epsilon == 0.7
    assert mechanism.guarantee.model is Model.LOCAL and mechanism.guarantee.delta == 0
    assert (
        mechanism.randomizer.radius >= mechanism.queries.right.norm(dim=0).max()
    )  # every user's vector is inside
    with pytest.raises(ValueError, match="less than the largest column"):
        LocalFactorization(
            mechanism.queries, PrivUnit(mechanism.randomizer.dim, 0.7, 0.9 * mechanism.queries.radius)
        )
    with pytest.raises(ValueError, match="randomizer must have dim"):
        LocalFactorization(mechanism.queries, PrivUnit(2, 0.7))


@pytest.mark.parametrize("kind", KINDS)
def test_guarantee_central_noise_is_exactly_calibrated_to_the_diameter(kind):
    q = queries(kind)
    mechanism = CentralFactorization(q, 0.5, 1e-6)
    worst = max(float((q.right[:, i] - q.right[:, j]).norm()) for i in range(6) for j in range(6))
    assert gaussian_log_delta(mechanism.sigma, 0.5, worst) <= math.log(1e-6)
    assert gaussian_log_delta(mechanism.sigma * (1 - 1e-6), 0.5, worst) > math.log(
        1e-6
    )  # no smaller noise will do
    assert mechanism.guarantee.model is Model.CENTRAL and "replace one" in mechanism.guarantee.neighbours.value


@pytest.mark.parametrize("kind", KINDS)
def test_central_answers_have_the_predicted_error(kind):
    mechanism = CentralFactorization(queries(kind), 1.0, 1e-6)
    predicted = float(mechanism.predicted_mse(COUNTS).mean())

    def squared(generator, size):
        drawn = mechanism.answer_histogram(COUNTS, generator=generator, sample_shape=(size,))
        return (drawn.value - TRUTH).square().mean(-1)

    assert abs(simulate.run(squared, 4000, 3, block_size=4000).moments.z_score(predicted)) < 5
    one = mechanism.answer(TYPES, noise=SeededNoise(1))
    assert (one.value - TRUTH).abs().max() < 6 * float(one.standard_error.max() + one.bias.max())


def test_the_worst_error_is_attained_by_users_of_one_type():
    mechanism = local_factorization(queries("approximate"), 1.0, DuchiJordanWainwright)
    n, generator = 50, keyed_generator(b"worst")
    worst, average = (mechanism.worst_error(n, objective) for objective in Objective)
    one_type = torch.stack([mechanism.predicted_mse(n * torch.eye(6, dtype=torch.int64)[x]) for x in range(6)])
    assert worst == pytest.approx(float(one_type.max()) ** 0.5)
    assert average == pytest.approx(float(one_type.mean(1).max()) ** 0.5)
    for _ in range(50):
        types = torch.randint(6, (n,), generator=generator)
        mse = mechanism.predicted_mse(torch.bincount(types, minlength=6))
        assert mse.max() <= worst**2 * (1 + 1e-12) and mse.mean() <= average**2 * (1 + 1e-12)


def test_the_worst_query_of_gamma_2_has_the_factorization_norm():
    found = factorize(W, shift=True, tol=1e-6)
    mechanism = local_factorization(factored(W, found), 1.0, PrivUnitG)
    unit = PrivUnitG(1, 1.0).moments.variance
    assert mechanism.worst_error(10_000) == pytest.approx(
        float(found.certificate.upper) * math.sqrt(unit / 10_000)
    )


@pytest.mark.parametrize("randomizer", [PrivUnit, PrivUnitG])
def test_guarantee_half_width_holds_with_the_stated_probability(randomizer):
    mechanism = local_factorization(queries("gamma_2"), 2.0, randomizer)
    n, failure = int(COUNTS.sum()), 0.2
    h = mechanism.half_width(n, failure)
    drawn = mechanism.answer_histogram(COUNTS, generator=keyed_generator(b"half"), sample_shape=(2000,)).value
    missed = ((drawn - TRUTH).abs().amax(-1) > h).double().mean()
    assert missed <= failure + 3 * math.sqrt(failure / 2000)
    assert ((drawn - TRUTH).abs().amax(-1) > h / 3).double().mean() > failure  # nor is it wide without limit


def test_guarantee_samples_reach_the_half_width():
    mechanism = local_factorization(queries("approximate"), 1.0)
    n = mechanism.samples(0.3, 0.05)
    assert mechanism.half_width(n, 0.05) <= 0.3 < mechanism.half_width(n - 1, 0.05)
    with pytest.raises(ValueError, match="above the bias"):
        mechanism.samples(0.1)


def test_bad_input_is_named():
    mechanism = local_factorization(queries("gamma_2"), 1.0)
    generator = keyed_generator(b"bad")
    with pytest.raises(ValueError, match="types must lie in"):
        mechanism.answer(torch.tensor([6]))
    with pytest.raises(ValueError, match=r"types must have shape \(n,\)"):
        mechanism.answer(torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="counts must have shape"):
        mechanism.predicted_mse(torch.ones(5))
    with pytest.raises(ValueError, match="at least one user"):
        mechanism.answer_histogram(torch.zeros(6, dtype=torch.int64), generator=generator)
    with pytest.raises(TypeError, match="objective must be an Objective"):
        mechanism.worst_error(10, "worst")
    with pytest.raises(ValueError, match="left, right, shift must have shapes"):
        FactoredQueries(W, torch.eye(6), torch.eye(5), torch.zeros(6))


def test_wrong_objects_are_named():
    q = queries("identity")
    cases = [
        ("queries must be a FactoredQueries", lambda: CentralFactorization(W, 1.0, 1e-6)),
        ("queries must be a FactoredQueries", lambda: LocalFactorization(W, PrivUnit(6, 1.0))),
        ("queries must be a FactoredQueries", lambda: local_factorization(W, 1.0)),
        ("randomizer must be a BallRandomizer", lambda: LocalFactorization(q, 1.0)),
        ("randomizer must be a function", lambda: local_factorization(q, 1.0, "PrivUnit")),
        ("factorization must be a Factorization", lambda: factored(W, W)),
        ("workload must be a torch.Tensor", lambda: identity("prefix")),
        ("oracle must be a FrequencyOracle", lambda: LocalOracle(W, PrivUnit(6, 1.0))),
        ("concepts must be a ConceptClass", lambda: PrivateLearner(W, 1.0)),
        ("randomizer must be a function", lambda: PrivateLearner(thresholds(3), 1.0, 7)),
        ("tables must be a tuple or list", lambda: ConceptClass(("a",), torch.ones(1, 2))),
        ("noise must be None", lambda: local_factorization(q, 1.0).answer(TYPES, noise=keyed_generator(b"no"))),
        ("noise must be None", lambda: CentralFactorization(q, 1.0, 1e-6).answer(TYPES, noise=1)),
    ]
    for message, call in cases:
        with pytest.raises(TypeError, match=message):
            call()


def test_users_that_cannot_be_are_refused():
    errors, concepts = CentralFactorization(queries("identity"), 1.0, 1e-6).errors, thresholds(3)
    x = torch.tensor([[0], [2]])
    cases = [
        ("n must be", lambda: errors.mse(COUNTS, -1)),
        ("sum to n = 59", lambda: errors.mse(COUNTS, 59)),
        ("no negative numbers", lambda: errors.mse(torch.tensor([-1, 0, 0, 0, 0, 61]), 60)),
        ("counts must have shape", lambda: errors.mse(torch.tensor([60]), 60)),
        ("n must be", lambda: errors.worst(0, Objective.WORST_QUERY)),
        ("types must lie in", lambda: local_factorization(queries("plain"), 1.0).answer(torch.tensor([-1]))),
        ("records must lie in", lambda: concepts.encode(torch.tensor([[-1]]))),
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
