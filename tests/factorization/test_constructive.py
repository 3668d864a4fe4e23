"""Closed forms and explicit factorizations: exact, beside the solver, within the bounds their
authors prove.
"""

import math

import pytest
import torch
from laws import generator, normal
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import (
    MarginalFactorization,
    factorize,
    gamma_box,
    gamma_ellipsoid,
    lipschitz_tree,
    square_root,
)
from torchdp.factorization.constructive import (
    gamma_product_domain,
    normalised_square_root,
)

EXPONENTS = [2.0, 3.0, math.inf]
PREFIX = [square_root, normalised_square_root]


def exact_and_above(found, W, p=math.inf):
    """left right = W, and the optimum lies between the certified bounds."""
    size = float(W.abs().max())
    assert_close(found.left @ found.right, W, rtol=0, atol=1e-12 * size)
    optimum = factorize(W, p, tol=1e-4).certificate
    assert found.certificate.lower <= optimum.upper * (1 + 1e-9)
    assert optimum.lower <= found.certificate.upper * (1 + 1e-9)
    return float(found.certificate.upper), optimum


@pytest.mark.parametrize("build", PREFIX, ids=lambda build: build.__name__)
@pytest.mark.parametrize("k", [1, 2, 7, 16])
def test_prefix_sums_are_exact_and_above_the_optimum(build, k):
    for p in EXPONENTS:
        exact_and_above(build(k, p), workloads.prefix(k).dense(), p)


def root_bound(k):
    return 1 + (math.log(k) + 0.5773) / math.pi


@pytest.mark.parametrize("k", [2, 5, 16, 31, 100])
def test_prefix_sums_are_within_the_published_bounds(k):
    root, normalised = [float(build(k).certificate.upper) for build in PREFIX]
    # coefficients of the square root of the prefix sums
    coefficients = [math.comb(2 * j, j) / 4**j for j in range(k)]
    exact = sum(c**2 for c in coefficients)
    assert root == pytest.approx(exact, rel=1e-12)
    # the published bound is no more than .2 too large
    assert root_bound(k) - 0.2 < exact <= root_bound(k)
    if k >= 5:
        assert normalised < root


@pytest.mark.parametrize("k, worst, mean", [(64, 2.21177, 2.12770), (256, 2.64496, 2.55726)])
def test_normalised_square_root_has_the_published_values(k, worst, mean):
    # published to five digits
    assert float(normalised_square_root(k).certificate.upper) == pytest.approx(worst, abs=1e-5)
    root_mean_square = float(normalised_square_root(k, 2).certificate.upper) / math.sqrt(k)
    assert root_mean_square == pytest.approx(mean, abs=1e-5)


def lipschitz(n, seed=0):
    """Rows that move by 1 from column to column, up or down at random, through 0 at column n // 2;
    G = 1, B = 0.
    """
    steps = normal(40, n - 1, seed=seed).sign()
    walk = torch.cat([torch.zeros(40, 1).double(), steps.cumsum(1)], 1)
    middle = n // 2
    return walk - walk[:, middle : middle + 1]


@pytest.mark.parametrize("n", [1, 2, 6, 7, 8, 33])
def test_lipschitz_tree_is_exact_and_within_its_bound(n):
    monotone = workloads.absolute_difference(n).dense()
    for W in (monotone, monotone - n / 4, lipschitz(n)) if n > 1 else (monotone + 1,):
        value, _ = exact_and_above(lipschitz_tree(W), W)
        centre = W[:, n // 2]
        B = float(centre.abs().max())
        assert value <= math.sqrt(36 / 11 * (B**2 + 9 / 14 * 4 ** n.bit_length()))
        for p in (2.0, 3.0):
            exact_and_above(lipschitz_tree(W, p, decay=0.7), W, p)


def inside(value, certificate, slack=1e-9):
    return certificate.lower * (1 - slack) <= value <= certificate.upper * (1 + slack)


@pytest.mark.parametrize("p", EXPONENTS)
def test_block_diagonal_matrices_have_the_l_p_norm_of_their_norms(p):
    blocks = [normal(3, 3), normal(2, 4, seed=1)]
    whole = factorize(torch.block_diag(*blocks), p, tol=1e-7).certificate
    norms = torch.stack([factorize(block, p, tol=1e-7).certificate.upper for block in blocks])
    # the certificates' own gaps
    assert inside(torch.linalg.vector_norm(norms, ord=p), whole, 1e-6)
    # one point of each set is more than one point
    assert not inside(gamma_product_domain(norms, p), whole, 1e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_product_domains_have_the_norm_of_lemma_60(p):
    first = normal(2, 5)
    second = normal(3, 4, seed=1)
    # every column of one above every other's
    pairs = torch.cat([first.repeat_interleave(4, 1), second.repeat(1, 5)])
    norms = torch.stack(
        [factorize(K, p, True, tol=1e-7).certificate.upper for K in (first, second)]
    )
    whole = factorize(pairs, p, True, tol=1e-7).certificate
    # the certificates' own gaps
    assert inside(gamma_product_domain(norms, p), whole, 1e-6)
    assert not inside(torch.linalg.vector_norm(norms, ord=p), whole, 1e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_boxes(p):
    low = torch.tensor([-1.0, 0.0, 2.0, 5.0]).double()
    high = torch.tensor([0.0, 3.0, 2.5, 5.0]).double()
    corners = torch.cartesian_prod(*torch.stack([low, high], 1)).T
    value = gamma_box(low, high, p)
    assert inside(value, factorize(corners, p, True, tol=1e-7).certificate, 1e-7)
    sides = torch.full((3, 4), 2.0, dtype=torch.float64)
    expected = 4 ** (1 / 2 + 1 / p) * torch.ones(3).double()
    assert_close(gamma_box(-sides / 2, sides / 2, p), expected)
    assert gamma_box(low, low, p) == 0


@pytest.mark.parametrize("p", EXPONENTS)
def test_ellipsoids_between_polygons(p):
    A = normal(2, 2)
    N = 60
    angle = torch.arange(N, dtype=torch.float64) * (2 * math.pi / N)
    circle = torch.stack([angle.cos(), angle.sin()])
    polygon = A @ circle + normal(2, 1, seed=1)
    found = factorize(polygon, p, True, tol=1e-6).certificate
    value = gamma_ellipsoid(A, p)
    # the polygon lies inside of the ellipsoid, and is nearly as large
    assert found.lower <= value * (1 + 1e-9)
    assert value * math.cos(math.pi / N) <= found.upper
    # negative control: one per cent less
    assert not found.lower <= 0.99 * value


def test_closed_forms_are_batched():
    assert gamma_ellipsoid(normal(2, 5, 3, 4)).shape == (2, 5)


@pytest.mark.parametrize(
    ("d", "order"),
    [
        (1, 1),
        (3, 1),
        (4, 2),
        (5, 3),
        (4, 4),
    ],
)
@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize("shift", [False, True])
def test_guarantee_marginal_factorization_is_the_norm_of_the_dense_matrix(d, order, p, shift):
    certificate = MarginalFactorization(d, order, shift).certificate(p)
    exact = factorize(workloads.marginal_tables(d, order), p, shift, tol=1e-9).certificate
    assert certificate.gap <= 1e-11
    assert (
        float(exact.lower) * (1 - 1e-9)
        <= float(certificate.upper)
        <= float(exact.upper) * (1 + 1e-9)
    )


@pytest.mark.parametrize("shift", [False, True])
def test_its_noise_is_that_of_a_factorization(shift):
    """The map from normals to noise, column by column, is L: with R = L^+ W it gives W and the
    sensitivity 1.
    """
    made = MarginalFactorization(5, 2, shift)
    sets = torch.combinations(torch.arange(5), 2)
    count = len(made.subsets(sets)[0])
    L = made.sensitivity * made.decode(sets, torch.eye(count).double()).flatten(1).mT
    W = workloads.marginal_tables(5, 2).dense()
    W = W - 0.25 if shift else W
    R = torch.linalg.pinv(L) @ W
    assert_close(L @ R, W)
    assert_close(R.norm(dim=0), torch.ones(32).double())
    expected = torch.full((40,), made.variance(1.0))
    assert_close(L.square().sum(1), expected.double())


def test_three_way_marginals_of_a_thousand_bits():
    """1.3e9 cells: certified, and the noise of the tables asked for has the variance and
    correlations promised.
    """
    made = MarginalFactorization(1000, 3)
    assert made.cells == 1_329_336_000
    # closed forms: the bounds differ by rounding
    assert made.certificate().gap <= 1e-11
    # of 40 bits: sets share subsets
    keys = torch.rand(20_000, 40, generator=generator())
    random = keys.argsort(1)[:, :3]
    sets = random.sort(1).values
    normals = torch.randn(
        len(made.subsets(sets)[0]),
        dtype=torch.float64,
        generator=generator(),
    )
    noise = made.decode(sets, 2.0 * made.sensitivity * normals)
    others = torch.randn(1 + 333 * 7, generator=generator())
    apart = made.decode(torch.arange(999).view(333, 3), 2.0 * made.sensitivity * others)
    assert noise.shape == (20_000, 8)
    ratio = apart.square().mean() / made.variance(2.0)
    # 333 tables: the variance of the noise to ten per cent
    assert float(ratio) == pytest.approx(1, abs=0.1)
    same = (sets == sets[0]).all(1)
    assert_close(noise[same], noise[:1].expand(int(same.sum()), 8))
    # bit 0 alone: tables that share it agree on its count
    total = noise.view(-1, 2, 2, 2).sum((1, 2))
    first = total[sets[:, 0] == sets[0, 0]]
    assert_close(first, first[:1].expand_as(first))
