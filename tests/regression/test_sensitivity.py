"""Exact sensitivities of the products: reached by neighbours that are written down, exceeded by
nothing that is found."""

import math

import numpy as np
import pytest
import torch
from laws import normal
from scipy.optimize import minimize

from torchdp.noise import SeededNoise
from torchdp.regression import GramRelease
from torchdp.regression.gram import gram_sensitivity
from torchdp.regression.second_moment_noise import vectorized
from torchdp.symmetric import svec, symmetric

# not 1, so that a missing factor is seen
B = 1.7


def distance(x, y, other, label):
    gram = np.outer(x, x) - np.outer(other, other)
    moved = y * x - label * other
    return math.sqrt((gram**2).sum() + (moved**2).sum())


def inside(v):
    """The nearest point of the ball of radius B."""
    return v * min(1.0, B / max(np.linalg.norm(v), 1e-9))


def found(d, C, tries=12):
    """Largest distance that local searches from random starts find."""
    # starts of the searches
    random = np.random.default_rng(0)

    def point(z):
        x = inside(z[:d])
        other = inside(z[d : 2 * d])
        labels = C * np.sin(z[2 * d :])
        return x, labels[0], other, labels[1]

    starts = 2 * random.normal(size=(tries, 2 * d + 2))

    def negative(z):
        return -distance(*point(z))

    return max(-minimize(negative, start, method="BFGS").fun for start in starts)


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("label_bound", [0.01, B, 300.0])
def test_joint_sensitivity_is_reached_and_never_exceeded(d, label_bound):
    """What a client sends, less what it sends on a neighbour with the same noise: at most what the
    noise is for.
    """
    release = GramRelease(400, d, B, 1.0, 1e-5, label_bound)
    stated = release.shown.l2
    x = torch.zeros(2, d + 1, dtype=torch.float64)
    x[:, 0] = B
    x[:, -1] = label_bound
    other = x.clone()
    other[0, :2] = torch.tensor([B / 2, B * math.sqrt(0.75)])
    other[0, 0] = B if d == 1 else B / 2
    other[0, -1] = -label_bound
    reach = [2.0 * B] * d + [2.0 * label_bound]
    random = normal(400, d + 1, seed=d) * torch.tensor(reach)

    def moved(one, two):
        messages = [release.randomize(data, noise=SeededNoise(1)) for data in (one, two)]
        words = [message.values[0] for message in messages]
        return (words[0] - words[1]) / release.client.ring.scale

    assert float(moved(x, other)[0].norm()) == pytest.approx(stated, rel=1e-7)
    assert (
        0.6 * stated < float(moved(random, random.flip(0)).norm(dim=1).max()) <= stated * (1 + 1e-7)
    )
    # it would see a constant 1 % too small
    assert 0.995 * stated < found(d, B) / B**2 <= stated * (1 + 1e-9)


@pytest.mark.parametrize("d", [1, 3])
def test_gram_sensitivity_is_that_of_no_label(d):
    assert found(d, 0.0) == pytest.approx(gram_sensitivity(B, d), rel=1e-3)


def test_svec_is_an_isometry_and_symmetric_its_inverse():
    x = normal(7, 4)
    outer = x[:, :, None] * x[:, None, :]
    torch.testing.assert_close(symmetric(vectorized(x), 4), outer)
    torch.testing.assert_close(svec(outer), vectorized(x))
    gaps = torch.linalg.vector_norm(vectorized(x)[0] - vectorized(x)[1:], dim=1)
    torch.testing.assert_close(gaps, torch.linalg.matrix_norm(outer[0] - outer[1:]))
