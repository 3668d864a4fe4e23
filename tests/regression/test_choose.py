"""The choice between routes: the errors that it predicts are those that are measured, and its reasons hold."""

import math

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.regression import (
    GramRelease,
    SecondMoments,
    adaptive_ridge,
    choose_low_rank,
    choose_regression,
    phi,
    regression_rows,
    second_moments,
    spectrum_rows,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def regression(n=100_000, d=4):
    A, b = regression_rows(n, d, 1.0, generator=generator())
    return second_moments(A, b)


def test_gram_wins_and_says_by_how_much_and_its_error_is_measured():
    moments = regression()
    choice = choose_regression(moments, 10.0, 2.0, 1.0, epsilon=0.1, delta=1e-6)
    assert choice.best.name == "gram" and len(choice.routes) == 3
    assert [r.error for r in choice.routes] == sorted(r.error for r in choice.routes)
    release = GramRelease(100_000, 4, 2.0, 0.1, 1e-6, label_bound=1.0)
    noisy = release.release(moments, noise=SeededNoise(1), sample_shape=(2000,))
    errors = phi(moments, adaptive_ridge(noisy, 10.0), 10.0) - 1
    assert float(errors.mean()) == pytest.approx(choice.best.error - 1, rel=0.1)
    assert choice.best.words == release.words == 14
    times = float(str(choice).split(", ")[-1].split(" times")[0])
    assert times > 2 * math.sqrt(2) * 6**0.5  # more than at the least height, d + 2


def test_with_few_words_a_sketch_is_left():
    moments = regression()
    choice = choose_regression(moments, 10.0, 2.0, 1.0, epsilon=5.0, delta=1e-3, most_words=5)
    assert {r.name.split(",")[0] for r in choice.routes} == {"sketch", "local"}
    assert choice.best.name.startswith("sketch") and choice.best.words == 5
    with pytest.raises(ValueError, match="most_words must be at least 5"):
        choose_regression(moments, 10.0, 2.0, 1.0, epsilon=5.0, delta=1e-3, most_words=4)


def test_far_too_much_noise_predicts_the_error_of_knowing_nothing():
    moments = regression(n=1000)
    choice = choose_regression(moments, 10.0, 2.0, 1.0, epsilon=1e-3, delta=1e-6)
    zero = float(phi(moments, torch.zeros(4), 10.0))
    assert all(route.error == pytest.approx(zero) for route in choice.routes)
    assert [r.name.split(",")[0] for r in choice.routes] == ["gram", "sketch", "local"]  # ties keep this order


def test_the_gram_route_is_first_on_random_problems():
    g = generator(5)
    for _ in range(25):
        d, n = int(torch.randint(1, 9, (1,), generator=g)), int(10 ** (2 + 4 * float(torch.rand(1, generator=g))))
        A = torch.randn(500, d, dtype=torch.float64, generator=g) * torch.rand(d, generator=g)
        b = A @ torch.randn(d, dtype=torch.float64, generator=g) + torch.randn(
            500, dtype=torch.float64, generator=g
        )
        moments = SecondMoments(n, second_moments(A, b).matrix * n / 500)
        epsilon = 10 ** (2 * float(torch.rand(1, generator=g)) - 1)
        bounds = float(A.norm(dim=1).max()), float(b.abs().max())
        assert choose_regression(moments, 3.0, *bounds, epsilon=epsilon, delta=1e-6).best.name == "gram"


def test_low_rank_ranks_gram_sketch_local():
    moments = second_moments(spectrum_rows(50_000, 10, 3, generator=generator()) * 0.5)
    choice = choose_low_rank(moments, 3, 2.0, epsilon=0.5, delta=1e-6)
    assert choice.best.name == "gram"
    assert choice.best.error < 1e-3 * max(r.error for r in choice.routes)
    assert "gram" in str(choice) and "words" in str(choice)


def test_bad_input_is_named():
    moments = regression(n=100)
    with pytest.raises(ValueError, match="longer than bound"):
        choose_regression(moments, 10.0, 0.1, 1.0, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="rank must be at most"):
        choose_low_rank(moments, 9, 9.0, epsilon=1.0, delta=1e-6)
    with pytest.raises(TypeError, match="second_moments"):
        choose_low_rank(torch.eye(3), 1, 9.0, epsilon=1.0, delta=1e-6)
