"""The gradient relaxation: close to optimal, exact factors, sound certificates."""

import math

import pytest
import torch
from laws import normal

from torchdp import workloads
from torchdp.factorization import factorize, gradient


def test_prefix_within_a_thousandth():
    value = 1.905445713
    result = gradient(workloads.prefix(32).dense())
    certificate = result.certificate
    assert value <= certificate.upper * (1 + 1e-9) and certificate.upper <= value * 1.001
    assert value * 0.999 <= certificate.lower <= value * (1 + 1e-9)
    assert certificate.residual < 1e-9 and result.iterations == 1000


@pytest.mark.parametrize("p", [pytest.param(2.0, marks=pytest.mark.slow), 4.0, math.inf])
def test_a_batch_of_random_matrices(p):
    W = normal(2, 3, 8, 6)
    W[0, 1], W[0, 2] = 0.0, W[0, 2, :, :3] @ W[0, 2, :3]  # rank 0 and 3 inside the batch
    W[1, 0, 2], W[1, 1] = 0.0, 1e200 * W[1, 1]
    result = gradient(W, p, steps=600, learning_rate=0.02)
    exact = factorize(W, p, tol=1e-5).certificate
    assert (result.certificate.upper <= exact.lower * 1.003).all()
    assert (result.certificate.lower <= exact.upper * (1 + 1e-12)).all() and (
        exact.lower <= result.certificate.upper * (1 + 1e-12)
    ).all()
    assert result.certificate.gap.max() <= 3e-3
    scale = W.abs().amax((-2, -1)).clamp_min(1.0)
    assert (result.certificate.residual <= 1e-12 * scale).all()
    torch.testing.assert_close(result.sensitivity, result.certificate.upper.sqrt())


def test_batch_equals_one_by_one():
    W = normal(3, 5, 4)
    batch = gradient(W, steps=50).certificate.upper
    for i in range(3):
        torch.testing.assert_close(batch[i], gradient(W[i], steps=50).certificate.upper, rtol=1e-9, atol=0)


def test_guarantee_gradient_is_sound_after_one_step():
    certificate = gradient(workloads.prefix(16).dense(), steps=1).certificate
    assert certificate.lower <= 1.704480245 <= certificate.upper


def test_dtype_grad_mode_and_global_generator():
    state = torch.get_rng_state()
    with torch.no_grad():
        result = gradient(normal(4, 5).float(), steps=10)
    with torch.inference_mode():
        gradient(normal(4, 5), steps=3)
    assert result.left.dtype == torch.float32 and not result.left.requires_grad
    assert not result.row_weights.requires_grad and torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_rank():
    W = normal(6, 3) @ normal(3, 7)
    assert gradient(W, steps=5, rank=3).right.shape == (3, 7)
