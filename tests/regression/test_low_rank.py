"""Low rank from released moments: the directions, and the predicted error against measured ones."""

import math
from itertools import combinations

import pytest
import torch
from laws import float64, generator, normal, sampled

from torchdp.protocol import Estimate
from torchdp.regression import (
    GramRelease,
    SecondMoments,
    debiased,
    psi,
    top_directions,
)
from torchdp.regression.ridge import (
    predicted_psi,
    predicted_psi_of_sketch,
    random_psi,
)
from torchdp.sketching import balanced_count_sketch


def moments_of(values, n, seed=0):
    basis = torch.linalg.qr(
        torch.randn(
            len(values),
            len(values),
            dtype=torch.float64,
            generator=generator(seed),
        )
    ).Q
    return SecondMoments(n, basis @ torch.diag(float64(values)) @ basis.mT)


def rows_of(moments, seed):
    """Rows that have exactly these second moments."""
    normal = torch.randn(
        moments.n,
        moments.columns,
        dtype=torch.float64,
        generator=generator(seed),
    )
    return torch.linalg.qr(normal).Q @ torch.linalg.cholesky(moments.matrix).mT


def test_directions_are_the_right_singular_vectors_of_the_sketch():
    Y = torch.randn(2, 30, 5, dtype=torch.float64, generator=generator())
    found = top_directions(Y.mT @ Y, 2)
    right = torch.linalg.svd(Y).Vh
    wanted = right[:, :2].mT
    # but for signs
    same = torch.eye(2).double().expand(2, 2, 2)
    torch.testing.assert_close((found.mT @ wanted).abs(), same, rtol=0, atol=1e-9)
    noisy = Estimate(Y, torch.full_like(Y, 7.0), 30)
    shifted = top_directions(debiased(noisy, labelled=False).gram, 2)
    torch.testing.assert_close(found @ found.mT, shifted @ shifted.mT)


def test_predicted_psi_of_the_gram_route_is_measured():
    moments = moments_of([9e4, 6e4, 4e4, 3e3, 2e3, 1e3], 10**5)
    release = GramRelease(10**5, 6, math.sqrt(2.0), 0.5, 1e-6)
    predicted = predicted_psi(moments, 3, release.gram_sigma)
    noisy = release.sample_estimate(moments, **sampled(4000, 1))
    errors = psi(moments, top_directions(noisy.gram, 3))
    assert float(errors.min()) >= -1e-12
    error = float(errors.std()) / math.sqrt(4000)
    z = (float(errors.mean()) - predicted) / error
    assert abs(z) < 5
    assert predicted_psi(moments, 3, 1.1 * release.gram_sigma) > float(
        errors.mean() + 5 * errors.std() / math.sqrt(4000)
    )


def test_predicted_psi_of_a_sketch_is_measured():
    moments = moments_of([9e4, 6e4, 4e4, 30, 20, 10], 4096)
    A = rows_of(moments, 2)
    m = 64
    V = 100.0
    errors = []
    for seed in range(400):
        sketch = balanced_count_sketch(4096, m, generator=generator(seed))
        noise = normal(m, 6, seed=10**4 + seed)
        Y = sketch.apply(A) + math.sqrt(V) * noise
        errors.append(psi(moments, top_directions(Y.mT @ Y, 3)))
    errors = torch.stack(errors)
    predicted = predicted_psi_of_sketch(moments, 3, m, V)
    assert float(errors.mean()) == pytest.approx(float(predicted), rel=0.2)
    assert predicted_psi_of_sketch(moments, 3, m, 2 * V) > 1.3 * predicted


def test_random_spaces_err_as_stated_and_bound_the_predictions():
    moments = moments_of([9e4, 6e4, 4e4, 3e3, 2e3, 1e3], 10**5)
    axes = torch.eye(6, dtype=torch.float64)
    # a design: the mean of all
    pairs = torch.stack([axes[:, list(pair)] for pair in combinations(range(6), 2)])
    assert float(psi(moments, pairs).mean()) == pytest.approx(float(random_psi(moments, 2)))
    assert (
        predicted_psi(moments, 2, 1e9)
        == predicted_psi_of_sketch(moments, 2, 10, 1e9)
        == random_psi(moments, 2)
    )
    assert predicted_psi(moments, 2, 0.0) == 0
    assert float(predicted_psi(moments, 6, 1e9)) == pytest.approx(0, abs=1e-9)
