"""gamma_2(W; alpha), zeta, the least total error and rank reduction: against the SDP, closed forms
and attacks.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial

import laws
import pytest
import torch
from laws import normal, overlap
from scipy.stats import chi2
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import (
    approximate,
    factorize,
    gamma2,
    jl_rank,
    johnson_lindenstrauss,
    least_error,
    truncate,
    zeta,
)
from torchdp.factorization.certificates.objective_certificate import certify_approximate
from torchdp.factorization.norm import witness
from torchdp.randomness import keyed_generator

random = partial(laws.normal, name=b"rank")


def semidefinite(W, alpha=None, price=None):
    """The same values from cvxpy, written from the definition."""
    cp = pytest.importorskip("cvxpy")
    m, n = W.shape
    Z = cp.Variable((m + n, m + n), PSD=True)
    t = cp.Variable()
    error = cp.Variable()
    missed = cp.abs(Z[:m, m:] - W.numpy())
    limits = [cp.diag(Z) <= t, missed <= error]
    limits += [] if alpha is None else [error == alpha]
    problem = cp.Problem(cp.Minimize(t + (price or 0) * error), limits)
    problem.solve(solver=cp.CLARABEL)
    return float(t.value if price is None else problem.value)


SMALL = [
    normal(6, 4, seed=1),
    normal(4, 6, seed=2),
    workloads.prefix(6).dense(),
    workloads.all_ranges(3).dense(),
]


@pytest.mark.parametrize("W", SMALL, ids=["tall", "wide", "prefix", "ranges"])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_agrees_with_the_semidefinite_program(W, share):
    size = float(W.abs().max())
    alpha = share * size
    certificate = approximate(W, alpha, tol=1e-4).certificate
    value = semidefinite(W, alpha)
    # the semidefinite solver is good to some 1e-6
    assert certificate.lower * (1 - 1e-5) <= value <= certificate.upper * (1 + 1e-5)
    assert certificate.gap <= 1e-4


@pytest.mark.parametrize("W", SMALL, ids=["tall", "wide", "prefix", "ranges"])
@pytest.mark.parametrize("price", [0.5, 5.0])
def test_zeta_agrees_with_the_semidefinite_program(W, price):
    certificate = zeta(W, 1, price, tol=1e-4).certificate
    value = semidefinite(W, price=price)
    # the semidefinite solver is good to some 1e-6
    assert certificate.lower * (1 - 1e-5) <= value <= certificate.upper * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_guarantee_certify_approximate_is_sound_for_any_factors_and_witness(seed):
    W = normal(5, 7, seed=seed)
    alpha = 0.3
    good = approximate(W, alpha, tol=1e-4)
    truth = good.certificate
    rows = normal(5, seed=seed + 1).abs()
    columns = normal(7, seed=seed + 2).square()
    weights = rows, columns
    for left, right in (
        (good.left, good.right),
        (normal(5, 3, seed=seed), normal(3, 7, seed=seed + 3)),
    ):
        for U in (
            good.witness,
            3 * good.witness,
            normal(5, 7, seed=seed + 4),
            witness(W, *weights),
        ):
            for c, P in (weights, (good.row_weights, good.column_weights)):
                found = certify_approximate(
                    W,
                    alpha,
                    left,
                    right,
                    U,
                    c,
                    P,
                )
                assert overlap(found, truth)


def test_factors_that_miss_more_than_alpha_are_charged():
    W = workloads.prefix(16).dense()
    alpha = 0.1
    good = approximate(W, alpha)
    loose = approximate(W, 0.3)
    proof = good.witness, good.row_weights, good.column_weights
    naive = loose.norm
    charged = certify_approximate(
        W,
        alpha,
        loose.left,
        loose.right,
        *proof,
    )
    # what an evaluator without the residual would report
    assert naive < good.certificate.lower * 0.9
    assert charged.upper > good.certificate.lower
    # the factors miss 0.3, and that is what is said
    assert abs(float(charged.residual) - 0.3) < 1e-9


def test_weights_of_zero_prove_nothing_about_their_rows():
    W = normal(4, 4, seed=3)
    good = approximate(W, 0.2)
    weights = torch.zeros(4), good.column_weights
    certificate = certify_approximate(
        W,
        0.2,
        good.left,
        good.right,
        100 * good.witness,
        *weights,
    )
    assert certificate.lower == 0


def test_hadamard_and_parities_shrink():
    for W in (workloads.parities(3, 3).dense(), workloads.parities(5, 2).dense()):
        alpha = torch.tensor([0.0, 0.25, 0.5, 0.75])
        certificate = approximate(W, alpha, tol=1e-6).certificate
        expected = math.sqrt(W.shape[0]) * (1 - alpha.double())
        # the bracket holds the closed form
        assert (certificate.lower <= expected * (1 + 1e-9)).all()
        assert (expected <= certificate.upper * (1 + 1e-9)).all()


def test_one_level_with_signs_is_offered_before_anything_is_iterated():
    """All ranges within alpha >= 1/2: a constant and one entry, where the splittings took half a
    minute.
    """
    alpha = torch.tensor([0.5, 0.6, 0.75, 0.9, 1.0, 1.5], dtype=torch.float64)
    found = approximate(workloads.all_ranges(32), alpha)
    assert found.iterations == 0
    # both bounds are the closed form itself
    assert_close(found.certificate.upper, (1 - alpha).clamp_min(0), rtol=1e-12, atol=1e-12)
    assert_close(found.certificate.lower, (1 - alpha).clamp_min(0), rtol=1e-12, atol=1e-12)
    signs = normal(9).sign()[:, None] * normal(7, seed=1).sign()
    # magnitudes between .4 and 1: one level is within .51 of all of them
    W = signs * (0.4 + 0.6 * laws.uniform(9, 7, seed=2))
    for Y in (
        W,
        -W,
        W.T,
        1e-9 * W,
        -workloads.prefix(9).dense(),
    ):
        size = Y.abs().max()
        found = approximate(Y, 0.51 * size)
        assert found.iterations == 0
        assert_close(found.certificate.upper, 0.49 * size, rtol=1e-12, atol=0)


def test_guarantee_approximate_curve_is_convex_and_keeps_within_alpha():
    W = workloads.all_ranges(6).dense()
    alpha = torch.linspace(0, 1.2, 13, dtype=torch.float64)
    found = approximate(W, alpha)
    certificate = found.certificate
    lower = certificate.lower
    upper = certificate.upper
    # a true bracket, and a narrow one
    assert (lower <= upper * (1 + 1e-12)).all()
    assert (certificate.gap <= 1e-3).all()
    assert (certificate.residual <= alpha + 1e-14).all()
    assert (lower[1:] <= upper[:-1] * (1 + 1e-12)).all()  # falls
    assert (lower[1:-1] <= (upper[2:] + upper[:-2]) / 2 + 1e-15).all()  # convex
    exact = factorize(W, tol=1e-4).certificate
    assert lower[0] <= exact.upper
    assert exact.lower <= upper[0]
    assert upper[-2:].eq(0).all()
    assert found.left[-1].eq(0).all()
    proof = found.witness, found.row_weights, found.column_weights
    again = certify_approximate(
        W.expand(13, -1, -1),
        alpha,
        found.left,
        found.right,
        *proof,
    )
    assert_close((again.upper, again.lower), (upper, lower), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "W",
    [
        torch.zeros(2, 3),
        torch.zeros(3, 3),
        torch.zeros(5, 4),
        torch.tensor([[3.0]]),
        torch.zeros(1, 1),
    ],
)
def test_small_and_zero_matrices(W):
    size = float(W.abs().max())
    found = approximate(W, 1.0)
    assert_close(float(found.certificate.upper), max(0.0, size - 1.0))
    assert float(zeta(W, 1, 0.5).certificate.upper) == pytest.approx(0.5 * size)
    assert float(least_error(W, 1.0).certificate.upper) == pytest.approx(size**2 / 2, rel=3e-3)


def test_guarantee_zeta_is_least_over_alpha():
    W = workloads.prefix(12).dense()
    price = 1.7
    # 3 W at the same price: zeta is not of degree 1
    certificate = zeta(torch.stack([W, 3 * W]), 1, price).certificate
    for scale, lower, upper in zip((1, 3), certificate.lower, certificate.upper, strict=True):
        alpha = torch.linspace(0, scale, 21, dtype=torch.float64)
        values = approximate(scale * W, alpha).certificate.upper + price * alpha
        assert lower <= values.min()
        # the grid of alpha costs a little, the solver less
        assert upper <= values.min() * (1 + 2e-3)
        assert upper <= lower * (1 + 1e-3)


def test_guarantee_zeta_is_the_norm_itself_where_errors_are_dear():
    W = workloads.prefix(10)
    certificate = zeta(W, 10**6, 1.0).certificate
    # at this price nothing may be missed
    assert certificate.lower <= gamma2(W.dense()) * (1 + 1e-3)
    assert certificate.residual < 1e-12
    column = torch.tensor([[1.86441095], [0.05749285]], dtype=torch.float64)
    # rounding of alpha, at this price, is granted
    assert zeta(column, 10**6, 1.0, tol=2e-4).certificate.closed(1e-3)
    # price 0.2: answering 0 is best
    cheap = zeta(W, 4, 0.1)
    assert_close(float(cheap.certificate.upper), 0.2, rtol=1e-3, atol=0)


@lru_cache
def prefix_curve():
    return approximate(
        workloads.prefix(8),
        torch.linspace(0, 1, 41),
        tol=1e-4,
    )


@pytest.mark.parametrize("variance", [1e-5, 0.01, 0.2, 5.0])
def test_guarantee_least_error_is_least_over_alpha(variance):
    W = workloads.prefix(8).dense()
    found = least_error(W, variance)
    curve = prefix_curve()
    values = variance * curve.norm**2 + curve.certificate.residual**2
    lower = found.certificate.lower
    upper = found.certificate.upper
    assert lower <= values.min()
    # the grid of alpha costs a little, the solver less
    assert upper <= min(values.min(), lower) * (1 + 3e-3)
    assert_close(variance * found.norm**2 + found.certificate.residual**2, upper, rtol=1e-9, atol=0)


def test_a_gap_that_is_not_reached_is_reported():
    with pytest.warns(RuntimeWarning, match="certified gap"):
        certificate = approximate(
            # ten iterations are far too few
            workloads.all_ranges(8),
            0.3,
            tol=1e-6,
            max_iterations=10,
        ).certificate
    assert certificate.lower <= certificate.upper
    assert certificate.gap > 1e-6


def projected(factorization, rank, name=b"project"):
    return johnson_lindenstrauss(factorization, rank, generator=keyed_generator(name))


REDUCTIONS = [truncate, projected]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_guarantee_distortion_and_norm_are_those_of_the_factors(reduce):
    W = torch.stack(
        [
            random(9, 7),
            torch.zeros(9, 7).double(),
            random(9, 2) @ random(2, 7),
            1e100 * random(9, 7),
        ]
    )
    found = reduce(factorize(W), 3)
    assert found.left.shape == (4, 9, 3)
    assert found.right.shape == (4, 3, 7)
    missing = W - found.left @ found.right
    missed = missing.abs().amax((-2, -1))
    scale = W.abs().amax((-2, -1))
    residual = found.certificate.residual
    assert (missed <= residual).all()
    # what is stated is what is missed, up to rounding
    assert (residual <= missed + 1e-12 * scale).all()
    rows = found.left.norm(dim=-1).amax(-1)
    columns = found.right.norm(dim=-2).amax(-1)
    assert_close(found.norm, rows * columns, rtol=1e-12, atol=0)
    assert_close(rows, columns, rtol=1e-12, atol=0)  # balanced
    assert residual[1] == 0
    assert found.norm[1] == 0
    assert_close(found.norm, found.certificate.upper, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_guarantee_bounds_are_of_the_norm_within_the_residual(reduce):
    """Of every W that the factorization may stand for: what it misses itself counts twice in the
    lower bound.
    """
    full = factorize(workloads.prefix(8), tol=1e-6)
    for r in (0.0, 0.02):
        certificate = replace(full.certificate, residual=torch.tensor(r).double())
        found = reduce(
            replace(full, certificate=certificate),
            7,
        )
        W = full.left @ full.right - r * found.witness.sign()
        least = approximate(W, found.certificate.residual, tol=1e-5).certificate
        assert laws.overlap(least, found.certificate)
        # truncation is checked to be tight; a projection is random
        assert reduce is projected or found.certificate.lower > 0.99 * least.lower


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_from_the_factorizations_own_rank_on_nothing_changes(reduce):
    W = random(8, 3) @ random(3, 6)
    factorization = factorize(W, tol=1e-6)
    for rank in (3, 6, 50):
        found = reduce(factorization, max(rank, factorization.left.shape[-1]))
        product = factorization.left @ factorization.right
        # products of the same numbers in another order
        assert_close(found.left @ found.right, product, rtol=1e-12, atol=1e-14)
        assert found.certificate.residual < 1e-12


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_dtype_and_shift(reduce):
    """Float32 factors are measured in float64; what is approximated is W - shift 1^T."""
    W = random(8, 6)
    factorization = factorize((W + 5).float(), 2.0, True)
    found = reduce(factorization, 2)
    assert found.left.dtype == found.right.dtype == torch.float32
    assert found.certificate.residual.dtype == found.norm.dtype == torch.float64
    single = (W + 5).float()
    target = single.double() - factorization.shift.double()[:, None]
    product = found.left.double() @ found.right.double()
    missed = (target - product).abs().max()
    # what float32 loses is part of the residual
    assert missed <= found.certificate.residual <= missed + 1e-5


def test_truncation_is_the_best_in_the_weighted_norm():
    """Its error is that of the weighted matrix's singular values beyond the rank; the plain SVD's
    is larger.
    """
    W = workloads.prefix(12).dense()
    factorization = factorize(W, tol=1e-6)
    weights = factorization.row_weights[:, None] * factorization.column_weights
    found = truncate(factorization, 3)

    def error(left, right):
        squares = (W - left @ right).square()
        return float((weights * squares).sum())

    least = error(found.left, found.right)
    singular = torch.linalg.svdvals(weights.sqrt() * W)
    # Eckart and Young in the weighted norm
    assert abs(least - float(singular[3:].square().sum())) < 1e-10
    U, S, Vh = torch.linalg.svd(W)
    # negative control: the plain singular vectors
    assert error(U[:, :3] * S[:3], Vh[:3]) > 1.001 * least


@pytest.mark.parametrize("rank", [1, 2, 5, 10])
def test_truncation_never_raises_the_norm(rank):
    for W in (
        workloads.prefix(16).dense(),
        workloads.absolute_difference(12).dense(),
        random(12, 20),
    ):
        factorization = factorize(W, tol=1e-8)
        # rounding and the solver's own gap of 1e-8
        assert truncate(factorization, rank).norm <= factorization.certificate.upper * (1 + 1e-4)


def test_projection_is_unbiased_with_the_variance_of_its_law():
    """Var (L A A^T R)_ij = (||L_i||^2 ||R_j||^2 + (W_ij)^2) / rank for Gaussian A."""
    W = random(3, 4)
    # enough for a mean to 2 % and a variance to 20 %
    draws = 4000
    rank = 2
    one = factorize(W)
    many = factorize(W.expand(draws, 3, 4))
    found = projected(many, rank)
    products = found.left @ found.right
    rows = one.left.norm(dim=1).square()
    columns = one.right.norm(dim=0).square()
    variance = (rows[:, None] * columns + W.square()) / rank
    z = (products.mean(0) - W) / (variance / draws).sqrt()
    # the largest of twelve normal deviations
    assert z.abs().max() < 4.5
    ratio = products.var(0) / variance
    # a matrix with E A A^T = I / 2 or 2 I fails by a factor of 2 at least
    assert (ratio - 1).abs().max() < 0.2


@pytest.mark.parametrize(
    ("relative", "failure"),
    [
        (0.5, 1e-6),
        (0.2, 1e-3),
        (1.5, 1e-9),
    ],
)
def test_guarantee_jl_rank_on_one_entry_exactly(relative, failure):
    """W = 1: the projected entry is chi-square over its degrees of freedom, so the failure is known
    exactly.
    """
    rank = jl_rank(1, 1, relative, failure=failure)

    def fails(ell):
        return chi2.sf(ell * (1 + relative), ell) + chi2.cdf(ell * (1 - relative), ell)

    assert fails(rank) <= failure
    # half the rank is too little: the constant is right up to a factor of 2
    assert fails(rank // 2) > failure


def test_guarantee_jl_rank_holds_for_every_entry_and_norm():
    """Prefix sums 12, projected 500 times: within the failure probability, but not at a tenth of
    the rank.
    """
    relative = 0.75
    failure = 0.1
    draws = 500
    W = workloads.prefix(12).dense()
    factorization = factorize(W.expand(draws, 12, 12))
    rank = jl_rank(12, 12, relative, failure=failure)
    # rank > 12, where johnson_lindenstrauss has nothing to do
    A = random(draws, 12, rank) / math.sqrt(rank)

    def failures(A):
        left = factorization.left @ A
        right = A.mT @ factorization.right
        norm = factorization.certificate.upper
        missed = (W - left @ right).abs()
        far = missed.amax((-2, -1)) > relative * norm
        rows = left.norm(dim=-1).amax(-1)
        columns = right.norm(dim=-2).amax(-1)
        grown = rows * columns > (1 + relative) * norm
        failed = far | grown
        return float(failed.double().mean())

    assert failures(A) <= failure
    few = A[..., : rank // 10] * math.sqrt(rank / (rank // 10))
    assert failures(few) > failure


def test_the_papers_last_inequality_is_loose_by_two():
    """beta, the distortion of all ||L_i +- R_j||^2, bounds every entry by beta C^2, not only 2 beta
    C^2; attained.
    """

    def beta_and_entry(left, right, A):
        """The worst of the sums and differences, and the worst entry over C^2; the vectors are
        rows.
        """
        either = [(left[:, None] + sign * right).flatten(0, 1) for sign in (1, -1)]
        sums = torch.cat(either)
        sums = sums[sums.norm(dim=1) > 1e-9]
        before = sums.square().sum(-1)
        after = (sums @ A).square().sum(-1)
        distortion = (after / before - 1).abs()
        beta = float(distortion.max())
        missed = left @ A @ A.mT @ right.mT - left @ right.mT
        entry = missed.abs().max()
        norm = left.norm(dim=1).max() * right.norm(dim=1).max()
        return beta, float(entry / norm)

    factorization = factorize(workloads.prefix(16).dense(), tol=1e-6)
    for i in range(20):
        inner = factorization.left.shape[1]
        A = random(inner, 8, name=str(i).encode()) / math.sqrt(8)
        beta, entry = beta_and_entry(factorization.left, factorization.right.mT, A)
        assert entry <= beta
    one = torch.ones(1, 1).double()
    beta, entry = beta_and_entry(one, one, 1.1 * one)
    # attained, up to rounding
    assert abs(entry - beta) < 1e-12
    assert beta > 0.2
