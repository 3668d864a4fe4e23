"""The free constant of a quadratic form: closed forms, certified brackets, and invariance."""

import math

import pytest
import torch
from laws import overlap

from torchdp import workloads
from torchdp.factorization import factorize, free_constant
from torchdp.randomness import keyed_generator

K = 12
KNOWN = [
    (workloads.absolute_difference(K).dense(), -(K - 1) / 2, (K - 1) / 2),  # minus a Gram matrix of thresholds
    (workloads.unequal(K).dense(), -(1 - 1 / K), 1 - 1 / K),  # minus the projection off the constants
    (torch.eye(K, dtype=torch.float64), -1 / K, 1 - 1 / K),
    (workloads.kendall(3, 4).dense(), 0.0, None),  # antisymmetric in each coordinate: no constant helps
    (torch.full((4, 5), -2.5, dtype=torch.float64), 2.5, 0.0),
]


@pytest.mark.parametrize(("W", "constant", "value"), KNOWN)
def test_guarantee_closed_forms(W, constant, value):
    found = free_constant(W, tol=1e-5)
    assert abs(found.constant - constant) < 1e-2 * max(1, abs(constant))
    value = float(factorize(W, tol=1e-6).certificate.upper) if value is None else value
    assert found.lower <= value * (1 + 1e-12) and found.upper >= value * (1 - 1e-12)
    assert found.upper <= value * (1 + 1e-5) + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_guarantee_no_constant_does_better(seed):
    """Random matrices far from balanced: the bracket holds against a scan, and follows a shift of W."""
    generator = keyed_generator(bytes([seed]))
    W = torch.randn(5, 6, dtype=torch.float64, generator=generator).exp() + seed
    found = free_constant(W)
    assert found.upper <= found.lower * (1 + 1.01e-3)
    scan = torch.linspace(-float(W.max()), 1, 13, dtype=torch.float64)
    assert (found.lower <= factorize(W + scan[:, None, None]).certificate.upper).all()
    moved = free_constant(W + 100)
    assert overlap(moved, found)
    attained = float(factorize(W + found.constant, tol=2.5e-4).certificate.upper)
    assert math.isclose(attained, found.upper, rel_tol=1e-3)
