"""Exact sensitivities of the products: reached by neighbours that are written down, exceeded by nothing that is
found."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from torchdp.regression.second_moment_noise import svec, symmetric, vectorized
from torchdp.regression.sensitivity import cross_sensitivity, gram_sensitivity, joint_sensitivity

RATIOS = [0.01, 0.69, 0.72, 1.3, 1.42, 1.5, 4.0]  # C/B on both sides of sqrt(1/2) and sqrt 2
B = 1.7


def distance(x, y, other, label):
    gram = np.outer(x, x) - np.outer(other, other)
    return math.sqrt((gram**2).sum() + ((y * x - label * other) ** 2).sum())


def found(d, C, tries=60, seed=0):
    """Largest distance that local searches from random starts find."""
    random = np.random.default_rng(seed)

    def point(z):
        x, other = z[:d], z[d : 2 * d]
        x, other = (v * min(1.0, B / max(np.linalg.norm(v), 1e-9)) for v in (x, other))
        return x, C * math.sin(z[2 * d]), other, C * math.sin(z[2 * d + 1])

    starts = random.normal(size=(tries, 2 * d + 2)) * 2
    return max(-minimize(lambda z: -distance(*point(z)), start, method="BFGS").fun for start in starts)


def attaining(d, C):
    """Neighbours at the stated distance."""
    x, other = np.zeros(d), np.zeros(d)
    x[0] = B
    if d > 1:
        cosine = min(1.0, C**2 / (2 * B**2))
        other[:2] = B * cosine, B * math.sqrt(1 - cosine**2)
        return x, C, other, -C
    if 2 * C**2 <= B**2:
        t = (B + math.sqrt(B**2 - 2 * C**2)) / 2
        if (2 * B - t) * math.hypot(t, C) > 2 * B * C:
            return x, C, np.array([B - t]), -C
    return x, C, x, -C


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("ratio", RATIOS)
def test_joint_sensitivity_is_reached_and_never_exceeded(d, ratio):
    C = ratio * B
    stated = joint_sensitivity(B, C, d)
    assert distance(*attaining(d, C)) == pytest.approx(stated, rel=1e-12)
    best = found(d, C, tries=12)
    assert best <= stated * (1 + 1e-9)
    assert best > 0.995 * stated  # the search would see a constant that is 1 % too small


@pytest.mark.parametrize("d", [1, 3])
def test_gram_sensitivity_is_that_of_no_label(d):
    assert found(d, 0.0, tries=12) == pytest.approx(gram_sensitivity(B, d), rel=1e-3)
    assert joint_sensitivity(B, 1e-9, d) == pytest.approx(gram_sensitivity(B, d), rel=1e-9)


def test_cross_sensitivity_is_reached_and_never_exceeded():
    x = np.array([B, 0.0])
    assert np.linalg.norm(2 * x - (-2) * x) == pytest.approx(cross_sensitivity(B, 2.0))
    points = np.random.default_rng(1).normal(size=(2, 20000, 3))
    points *= B / np.linalg.norm(points, axis=-1, keepdims=True)
    labels = np.random.default_rng(2).uniform(-2, 2, size=(2, 20000, 1))
    assert np.linalg.norm(labels[0] * points[0] - labels[1] * points[1], axis=-1).max() <= cross_sensitivity(
        B, 2.0
    )


def test_joint_sensitivity_is_continuous_where_the_formula_changes():
    for C in (B * math.sqrt(2), B * math.sqrt(0.5)):
        for d in (1, 2):
            low, high = joint_sensitivity(B, C * (1 - 1e-12), d), joint_sensitivity(B, C * (1 + 1e-12), d)
            assert low == pytest.approx(high, rel=1e-9)


def test_svec_is_an_isometry_and_symmetric_its_inverse():
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outer = x[:, :, None] * x[:, None, :]
    torch.testing.assert_close(symmetric(vectorized(x), 4), outer)
    torch.testing.assert_close(svec(outer), vectorized(x))
    gaps = torch.linalg.vector_norm(vectorized(x)[0] - vectorized(x)[1:], dim=1)
    torch.testing.assert_close(gaps, torch.linalg.matrix_norm(outer[0] - outer[1:]))


def test_bad_bounds_are_named():
    with pytest.raises(ValueError, match="bound must be"):
        joint_sensitivity(0, 1, 2)
    with pytest.raises(ValueError, match="label_bound must be"):
        cross_sensitivity(1, math.nan)
    with pytest.raises(ValueError, match="columns must be"):
        gram_sensitivity(1, 0)
