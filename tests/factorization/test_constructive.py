"""Explicit factorizations: exact, above the certified optimum, within the bounds their authors prove."""

import math

import pytest
import torch
from laws import normal

from torchdp import workloads
from torchdp.factorization import factorize, lipschitz_tree, square_root
from torchdp.factorization.structure.constructive import best_decoder, binary_tree, normalised_square_root

EXPONENTS = [2.0, 3.0, math.inf]
PREFIX = [binary_tree, square_root, normalised_square_root]


def honaker(k, p=math.inf):
    return best_decoder(workloads.prefix(k).dense(), binary_tree(k).right, p)


def exact_and_above(found, W, p=math.inf):
    """left right = W, and the optimum lies between the certified bounds."""
    torch.testing.assert_close(found.left @ found.right, W, rtol=0, atol=1e-12 * float(W.abs().max()))
    optimum = factorize(W, p, tol=1e-4).certificate
    assert found.certificate.lower <= optimum.upper * (1 + 1e-9)
    assert optimum.lower <= found.certificate.upper * (1 + 1e-9)
    return float(found.certificate.upper), optimum


@pytest.mark.parametrize("build", [*PREFIX, honaker], ids=lambda build: build.__name__)
@pytest.mark.parametrize("k", [1, 2, 7, 8, 20])
def test_prefix_sums_are_exact_and_above_the_optimum(build, k):
    for p in EXPONENTS:
        exact_and_above(build(k, p), workloads.prefix(k).dense(), p)


def root_bound(k):
    return 1 + (math.log(k) + 0.5773) / math.pi


@pytest.mark.parametrize("k", [2, 5, 16, 31, 100])
def test_prefix_sums_are_within_the_published_bounds(k):
    h = (k - 1).bit_length()
    tree, root, normalised = (float(build(k).certificate.upper) for build in PREFIX)
    assert tree <= math.sqrt((h + 1) * max(h, 1)) * (1 + 1e-12)
    if k == 2**h:
        assert tree == pytest.approx(math.sqrt((h + 1) * h))  # attained, so a smaller bound is false
    assert float(honaker(k).certificate.upper) <= tree * (1 + 1e-12)
    exact = sum((math.comb(2 * j, j) / 4**j) ** 2 for j in range(k))
    assert root == pytest.approx(exact, rel=1e-12) and exact <= root_bound(k) and exact > root_bound(k) - 0.2
    if k >= 5:
        assert normalised < root


@pytest.mark.parametrize("k, worst, mean", [(64, 2.21177, 2.12770), (256, 2.64496, 2.55726)])
def test_normalised_square_root_has_the_published_values(k, worst, mean):
    assert float(normalised_square_root(k).certificate.upper) == pytest.approx(worst, abs=1e-5)
    assert float(normalised_square_root(k, 2).certificate.upper) / math.sqrt(k) == pytest.approx(mean, abs=1e-5)


def test_best_decoder_has_the_shortest_rows():
    tree = binary_tree(16)
    best = best_decoder(workloads.prefix(16).dense(), tree.right)
    norms = best.left.norm(dim=1) * best.sensitivity, tree.left.norm(dim=1) * tree.sensitivity
    assert bool((norms[0] <= norms[1] * (1 + 1e-12)).all()) and bool((norms[0] < 0.99 * norms[1]).any())


def lipschitz(n, seed=0):
    """Rows that move by 1 from column to column, up or down at random, through 0 at column n // 2; G = 1, B = 0."""
    steps = normal(40, n - 1, seed=seed).sign()
    walk = torch.cat([torch.zeros(40, 1, dtype=torch.float64), steps.cumsum(1)], 1)
    return walk - walk[:, n // 2 : n // 2 + 1]


@pytest.mark.parametrize("n", [1, 2, 6, 7, 8, 33])
def test_lipschitz_tree_is_exact_and_within_its_bound(n):
    monotone = workloads.absolute_difference(n).dense()
    for W in (monotone, monotone - n / 4, lipschitz(n)) if n > 1 else (monotone + 1,):
        value, _ = exact_and_above(lipschitz_tree(W), W)
        B = float(W[:, n // 2].abs().max())
        assert value <= math.sqrt(36 / 11 * (B**2 + 9 / 14 * 4 ** n.bit_length()))
        for p in (2.0, 3.0):
            exact_and_above(lipschitz_tree(W, p, decay=0.7), W, p)


def test_what_the_decoder_cannot_reach_is_charged():
    W = workloads.prefix(4).dense()
    found = best_decoder(W, W[:2])
    assert found.certificate.residual > 0.1 and found.certificate.upper >= factorize(W).certificate.lower
