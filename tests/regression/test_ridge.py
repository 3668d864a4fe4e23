"""Ridge regression from released moments: the estimate of the loss, the search over regularization,
predicted errors."""

import math

import pytest
import torch
from laws import generator, normal
from products import regression_rows

from torchdp.protocol import Estimate
from torchdp.regression import (
    GramRelease,
    SecondMoments,
    adaptive_ridge,
    cautious_ridge,
    debiased,
    loss,
    phi,
    solve_ridge,
)
from torchdp.regression.errors import joined, least_squares
from torchdp.regression.ridge import (
    estimated_loss,
    predicted_phi_of_sketch,
)
from torchdp.regression.second_moment_noise import NoisyMoments
from torchdp.sketching import balanced_count_sketch
from torchdp.symmetric import svec

D = 4
RIDGE = 10.0


def problem(n=20000, seed=0):
    A, b = regression_rows(n, D, seed)
    return A, b, SecondMoments.of(A, b)


def released(moments, epsilon, repeats, seed=1):
    release = GramRelease(
        moments.n,
        D,
        math.sqrt(D),
        epsilon,
        1e-6,
        label_bound=1.0,
    )
    return release, release.sample_estimate(
        moments, generator=generator(seed), sample_shape=(repeats,)
    )


def moments_of(gram, cross, sigma=0.0):
    """An estimate of these, all standard errors sigma."""
    value = svec(gram) if cross is None else torch.cat([svec(gram), cross], -1)
    return NoisyMoments(
        value,
        torch.full_like(value, sigma),
        1,
        columns=gram.shape[-1],
    )


def with_noise(Y, variance):
    errors = torch.as_tensor(variance).double().sqrt()
    return Estimate(Y, errors[..., None].expand_as(Y), 1)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_estimated_loss_is_unbiased_at_every_fixed_regularization(share):
    _, _, moments = problem()
    _, noisy = released(moments, 0.1, 20000)
    # noise of the gram is a tenth of it
    diagonal = moments.gram.diagonal()
    t = share * float(diagonal.mean())
    values, vectors = torch.linalg.eigh(noisy.gram)
    u = (vectors.mT @ noisy.cross[..., None])[..., 0]
    levels = torch.full((20000, 1), t).double()
    estimate = estimated_loss(values, u, levels, RIDGE, noisy)[:, 0]
    x = solve_ridge(noisy.gram, noisy.cross, t)
    truth = loss(moments, x, RIDGE) - moments.label_square
    gap = estimate - truth
    error = float(gap.std()) / math.sqrt(len(gap))
    z = float(gap.mean()) / error
    assert abs(z) < 5
    # control: the loss at the noisy moments, as if they were exact
    x = u / (values + t)
    naive = ((values + RIDGE) * x.square() - 2 * u * x).sum(-1) - truth
    # it needs its penalty
    error = float(naive.std()) / math.sqrt(len(gap))
    assert float(naive.mean()) / error < -10


def test_adaptive_ridge_is_close_to_the_best_regularization_in_hindsight():
    for epsilon in (0.05, 0.2):
        _, _, moments = problem()
        _, noisy = released(moments, epsilon, 400)
        found = phi(moments, adaptive_ridge(noisy, RIDGE), RIDGE)
        steps = RIDGE + torch.logspace(0, 6, 60).double()
        grid = phi(
            moments,
            solve_ridge(noisy.gram, noisy.cross, steps[:, None]),
            RIDGE,
        )
        best = grid.mean(1).min()
        assert float(found.mean()) - 1 < 1.5 * (float(best) - 1)
        assert float(found.max()) < 1.2 * float(phi(moments, torch.zeros(D), RIDGE))


def test_adaptive_ridge_without_noise_is_the_ridge_solution():
    _, _, moments = problem()
    exact = moments_of(moments.gram, moments.cross)
    torch.testing.assert_close(
        adaptive_ridge(exact, RIDGE),
        least_squares(moments, RIDGE),
        rtol=1e-6,
        atol=0,
    )


def test_adaptive_ridge_in_nothing_but_noise_stays_near_zero():
    _, _, moments = problem(n=200)
    _, noisy = released(moments, 0.01, 300)
    errors = phi(moments, adaptive_ridge(noisy, RIDGE), RIDGE)
    zero = float(phi(moments, torch.zeros(D), RIDGE))
    assert float((errors == zero).double().mean()) > 0.3
    assert float(errors.mean()) < 1.3 * zero
    plain = phi(moments, solve_ridge(noisy.gram, noisy.cross, RIDGE), RIDGE)
    assert float(plain.mean()) > 3 * zero


def test_one_column_one_client_and_nothing_at_all():
    for gram, cross, sigma in (
        (0.0, 0.0, 0.0),
        (0.0, 0.0, 1.0),
        (2.0, 1.0, 0.0),
    ):
        found = adaptive_ridge(
            moments_of(torch.full((1, 1), gram), torch.full((1,), cross), sigma),
            0.0,
        )
        assert float(found) == pytest.approx(cross / gram if gram else 0.0)
    noisy = GramRelease(1, 1, 1.0, 1.0, 1e-5, label_bound=1.0).estimate(torch.ones(1, 2))
    assert adaptive_ridge(noisy, 1.0).shape == (1,)
    assert bool(torch.isfinite(adaptive_ridge(noisy, 1.0)).all())


def test_predicted_phi_of_a_sketch_is_measured():
    A, b, moments = problem(n=8192)
    for m, V in ((64, 0.0), (256, 1.0)):
        errors = []
        for seed in range(100):
            sketch = balanced_count_sketch(8192, m, generator=generator(seed))
            noise = normal(m, D + 1, seed=10**5 + seed)
            rows = sketch.apply(joined(A, b)) + math.sqrt(V) * noise
            noisy = debiased(with_noise(rows, V * torch.ones(m)))
            errors.append(
                phi(
                    moments,
                    solve_ridge(noisy.gram, noisy.cross, RIDGE),
                    RIDGE,
                )
            )
        mean = torch.stack(errors).mean()
        measured = float(mean) - 1
        assert measured == pytest.approx(
            float(predicted_phi_of_sketch(moments, RIDGE, m, V)) - 1,
            rel=0.25,
        )
        assert predicted_phi_of_sketch(moments, RIDGE, m, V + 40) - 1 > 1.3 * measured


def test_predictions_end_at_phi_of_zero():
    _, _, moments = problem()
    zero = float(phi(moments, torch.zeros(D), RIDGE))
    assert float(predicted_phi_of_sketch(moments, RIDGE, 100, 1e9)) == pytest.approx(zero)
    assert float(predicted_phi_of_sketch(moments, RIDGE, D + 1, 0.0)) == pytest.approx(zero)


def test_debiased_moments_are_unbiased_and_their_levels_are_measured():
    A, b, _ = problem(n=64)
    Z = 3 * joined(A, b)
    V = torch.linspace(0.5, 2, 64).double()
    noise = normal(20000, 64, D + 1, seed=6)
    sketched = Z + V.sqrt()[:, None] * noise
    noisy = debiased(with_noise(sketched, V))
    exact = SecondMoments.of(Z)
    bias = (noisy.gram - exact.gram).mean(0)
    z = bias / (noisy.gram.std(0) / math.sqrt(20000))
    assert float(z.abs().max()) < 5
    beside = ~torch.eye(D, dtype=torch.bool)
    # the spread that was measured of entries beside the diagonal
    off = noisy.gram[:, beside].var(0).mean().sqrt()
    level = float(noisy.gram_sigma.mean())
    assert float(off) == pytest.approx(level / math.sqrt(2), rel=0.05)
    assert float(noisy.cross.var(0).mean().sqrt()) == pytest.approx(
        float(noisy.cross_sigma.mean()), rel=0.05
    )


@pytest.mark.parametrize("d", [1, 3])
def test_a_cautious_solution_stays_away_from_singular_whatever_the_noise(d):
    """At the noise that the rule takes for the largest, G + t I was 0, and one in 37 solutions of
    one column beyond.
    """
    level = 0.1
    r = level * (d * math.log(2 * d**2 / 0.05)) ** 0.5
    # from far below the noise to far above it
    sizes = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)[:, None, None]
    gram = sizes * r * torch.eye(d).double()
    moments = moments_of(gram, torch.ones(61, d).double(), level)
    solution = cautious_ridge(moments, 0.0)
    assert float(solution.abs().max()) <= 2 / r * (1 + 1e-9)
    calm = gram[gram[:, 0, 0] > -0.49 * r, 0, 0]
    found = solution[-len(calm) :, 0]
    wanted = [1 / max(r + min(each, 0), each) for each in calm.tolist()]
    assert found.tolist() == pytest.approx(wanted)
