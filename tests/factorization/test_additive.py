"""Additive noise: the bound against the best lattice noise (a linear program) and against mechanisms that exist."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, diags, hstack, identity, vstack

from torchdp import workloads
from torchdp.factorization import additive_noise_bound, factorize
from torchdp.factorization.hard import least_noise_variance
from torchdp.privacy import gaussian_sigma


def best_lattice_noise(epsilon: float, delta: float, cells: int) -> float:
    """Least second moment of noise on the multiples of width / cells that is (epsilon, delta)-DP for one width."""
    far = cells * (math.ceil(12 / epsilon) + 5)
    z = np.arange(-far, far + 1) / cells
    k, ones = len(z), csr_matrix(np.ones((1, len(z))))
    none, zero = csr_matrix((k, k)), csr_matrix((1, k))
    shift = diags([math.exp(epsilon)], [-cells], shape=(k, k))
    # p(z) - e^epsilon p(z -+ 1) <= excess(z), and each excess adds up to at most delta
    rows = [[identity(k) - shift, -identity(k), none], [identity(k) - shift.T, none, -identity(k)]]
    rows += [[zero, ones, zero], [zero, zero, ones]]
    found = linprog(
        np.concatenate([z**2, np.zeros(2 * k)]),
        A_ub=vstack([hstack(row) for row in rows]),
        b_ub=np.concatenate([np.zeros(2 * k), [delta, delta]]),
        A_eq=hstack([ones, zero, zero]),
        b_eq=[1],
        method="highs",
    )
    return found.fun


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.2])
def test_guarantee_no_lattice_noise_has_a_smaller_variance(epsilon, delta):
    bound = least_noise_variance(epsilon, delta)
    for cells in (1, 2):
        least = best_lattice_noise(epsilon, delta, cells)
        assert bound <= least * (1 + 1e-6)
        assert delta > 1e-3 or 1.01 * bound > least  # within 1 % of the truth where delta is small


@pytest.mark.parametrize(
    ("epsilon", "delta", "loose"), [(1.0, 1e-3, 1.0), (1.0, 0.1, 1.29), (0.5, 0.3, 3.9), (3.0, 0.05, 4.0)]
)
def test_how_loose_the_bound_is_where_delta_is_large(epsilon, delta, loose):
    ratio = best_lattice_noise(epsilon, delta, 4) / least_noise_variance(epsilon, delta)
    assert ratio == pytest.approx(loose, rel=0.01)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 3.0])
def test_guarantee_discrete_laplace_noise_attains_the_bound(epsilon):
    q = math.exp(-epsilon)
    j = np.arange(1, math.ceil(60 / epsilon) + 60)
    variance = 2 * float((j**2.0 * q**j).sum()) * (1 - q) / (1 + q)
    bound = least_noise_variance(epsilon)
    assert math.isclose(bound, variance, rel_tol=1e-9)
    assert math.isclose(bound, 1 / (2 * math.sinh(epsilon / 2) ** 2), rel_tol=1e-9)
    assert 0.9 * 2 / epsilon**2 < bound <= 2 / epsilon**2 or epsilon > 1  # the Laplace mechanism's


def test_delta_lowers_the_bound_and_vanishes_continuously():
    for epsilon in (0.05, 1.0, 6.0):
        values = [least_noise_variance(epsilon, d) for d in (0, 1e-14, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.999)]
        assert values == sorted(values, reverse=True) and values[-1] > 0
        assert math.isclose(values[0], values[1], rel_tol=1e-9)
    assert least_noise_variance(50.0, 1e-6) < 1e-20


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_guarantee_no_additive_mechanism_beats_the_bound(epsilon, delta):
    """Gaussian factorization mechanisms (delta > 0), and Laplace noise on each query of a histogram or a prefix sum."""
    for W in (
        torch.tensor([[0.0, 1.0]]),
        workloads.prefix(12).dense(),
        torch.eye(9),
        workloads.parities(4, 2).dense(),
    ):
        for p in (2.0, math.inf):
            found = factorize(W, p, shift=True)
            bound = additive_noise_bound(float(found.certificate.lower), epsilon, delta)
            size = len(W) ** (1 / p)
            diameter = float(torch.cdist(W.mT, W.mT, p=1).max())
            laplace = math.sqrt(2) * diameter / epsilon * size
            assert 0 < bound <= laplace
            if delta:
                right, left = found.right.double(), found.left.double()
                sigma = gaussian_sigma(epsilon, delta, float(torch.cdist(right.mT, right.mT).max()))
                error = sigma * float(torch.linalg.vector_norm(left.norm(dim=1), ord=p))
                assert bound <= error < 12 * bound
    # negative control: for one bit the bound is sqrt(2) below the best noise, and a factor of 1.5 is too much
    best = math.sqrt(least_noise_variance(epsilon))
    bit = additive_noise_bound(0.5, epsilon)
    assert bit <= best < 1.5 * bit
