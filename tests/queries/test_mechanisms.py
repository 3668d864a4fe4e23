"""Local and central factorization mechanisms: privacy, exact errors, both paths."""

import math

import pytest
import torch

from torchdp import simulate, workloads
from torchdp.factorization import approximate, factorize
from torchdp.privacy import Model, gaussian_log_delta
from torchdp.queries import (
    CentralFactorization,
    FactoredQueries,
    LocalFactorization,
    Objective,
    factored,
    identity,
    local_factorization,
    plain,
)
from torchdp.randomizers import DuchiJordanWainwright, PrivUnit, PrivUnitG
from torchdp.randomness import keyed_generator

W = workloads.prefix(6).dense()
COUNTS = torch.tensor([5, 0, 40, 1, 3, 11])
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("randomizer", [PrivUnitG, PrivUnit, DuchiJordanWainwright])
def test_both_local_paths_have_the_predicted_error(kind, randomizer):
    mechanism = local_factorization(queries(kind), 1.0, randomizer)
    predicted = mechanism.predicted_mse(COUNTS)
    types = torch.repeat_interleave(torch.arange(6), COUNTS)

    def histogram(generator, size):
        drawn = mechanism.answer_histogram(COUNTS, generator=generator, sample_shape=(size,))
        return (drawn.value - TRUTH).square().mean(-1)

    def messages(generator, size):
        drawn = torch.stack([mechanism.answer(types, generator=generator).value for _ in range(size)])
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
    types = torch.repeat_interleave(torch.arange(6), COUNTS)
    one = mechanism.answer(types, generator=keyed_generator(b"central"))
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
        mechanism.answer(torch.tensor([6]), generator=generator)
    with pytest.raises(ValueError, match=r"types must have shape \(n,\)"):
        mechanism.answer(torch.zeros(0, dtype=torch.int64), generator=generator)
    with pytest.raises(ValueError, match="counts must have shape"):
        mechanism.predicted_mse(torch.ones(5))
    with pytest.raises(ValueError, match="at least one user"):
        mechanism.answer_histogram(torch.zeros(6, dtype=torch.int64), generator=generator)
    with pytest.raises(TypeError, match="objective must be an Objective"):
        mechanism.worst_error(10, "worst")
    with pytest.raises(ValueError, match="left, right, shift must have shapes"):
        FactoredQueries(W, torch.eye(6), torch.eye(5), torch.zeros(6))
