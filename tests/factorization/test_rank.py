"""Rank reduction: measured errors, the projection's law, its guarantee with its constant, and truncation."""

import math
from dataclasses import replace
from functools import partial

import laws
import pytest
import torch
from scipy.stats import chi2

from torchdp import workloads
from torchdp.factorization import approximate, factorize, jl_rank, johnson_lindenstrauss, truncate
from torchdp.randomness import keyed_generator

normal = partial(laws.normal, name=b"rank")


def projected(factorization, rank, name=b"project"):
    return johnson_lindenstrauss(factorization, rank, generator=keyed_generator(name))


REDUCTIONS = [truncate, projected]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_guarantee_distortion_and_norm_are_those_of_the_factors(reduce):
    W = torch.stack([normal(9, 7), torch.zeros(9, 7).double(), normal(9, 2) @ normal(2, 7), 1e100 * normal(9, 7)])
    found = reduce(factorize(W), 3)
    assert found.left.shape == (4, 9, 3) and found.right.shape == (4, 3, 7)
    missed = (W - found.left @ found.right).abs().amax((-2, -1))
    scale = W.abs().amax((-2, -1))
    residual = found.certificate.residual
    assert (missed <= residual).all() and (residual <= missed + 1e-12 * scale).all()
    rows, columns = found.left.norm(dim=-1).amax(-1), found.right.norm(dim=-2).amax(-1)
    torch.testing.assert_close(found.norm, rows * columns, rtol=1e-12, atol=0)
    torch.testing.assert_close(rows, columns, rtol=1e-12, atol=0)  # balanced
    assert residual[1] == 0 and found.norm[1] == 0
    torch.testing.assert_close(found.norm, found.certificate.upper, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_guarantee_bounds_are_of_the_norm_within_the_residual(reduce):
    """Of every W that the factorization may stand for: what it misses itself counts twice in the lower bound."""
    full = factorize(workloads.prefix(8), tol=1e-6)
    for r in (0.0, 0.02):
        found = reduce(replace(full, certificate=replace(full.certificate, residual=torch.tensor(r).double())), 7)
        W = full.left @ full.right - r * found.witness.sign()
        least = approximate(W, found.certificate.residual, tol=1e-5).certificate
        assert laws.overlap(least, found.certificate)
        assert reduce is projected or found.certificate.lower > 0.99 * least.lower


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_from_the_factorizations_own_rank_on_nothing_changes(reduce):
    W = normal(8, 3) @ normal(3, 6)
    factorization = factorize(W, tol=1e-6)
    for rank in (3, 6, 50):
        found = reduce(factorization, max(rank, factorization.left.shape[-1]))
        product = factorization.left @ factorization.right
        torch.testing.assert_close(found.left @ found.right, product, rtol=1e-12, atol=1e-14)
        assert found.certificate.residual < 1e-12


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_dtype_and_shift(reduce):
    """Float32 factors are measured in float64; what is approximated is W - shift 1^T."""
    W = normal(8, 6)
    factorization = factorize((W + 5).float(), 2.0, True)
    found = reduce(factorization, 2)
    assert found.left.dtype == found.right.dtype == torch.float32
    assert found.certificate.residual.dtype == found.norm.dtype == torch.float64
    target = (W + 5).float().double() - factorization.shift.double()[:, None]
    missed = (target - found.left.double() @ found.right.double()).abs().max()
    assert missed <= found.certificate.residual <= missed + 1e-5


def test_truncation_is_the_best_in_the_weighted_norm():
    """No other matrix of that rank has less weighted error: neither random changes of its factors nor the plain SVD."""
    W = workloads.prefix(12).dense()
    factorization = factorize(W, tol=1e-6)
    weights = factorization.row_weights[:, None] * factorization.column_weights
    found = truncate(factorization, 3)

    def error(left, right):
        return float((weights * (W - left @ right).square()).sum())

    least = error(found.left, found.right)
    singular = torch.linalg.svdvals(weights.sqrt() * W)
    assert abs(least - float(singular[3:].square().sum())) < 1e-10
    for i in range(20):
        step = 1e-2 * normal(12, 3, name=str(i).encode())
        assert error(found.left + step, found.right) > least and error(found.left, found.right + step.T) > least
    U, S, Vh = torch.linalg.svd(W)
    assert error(U[:, :3] * S[:3], Vh[:3]) > 1.001 * least


@pytest.mark.parametrize("rank", [1, 2, 5, 10])
def test_truncation_never_raises_the_norm(rank):
    for W in (workloads.prefix(16).dense(), workloads.absolute_difference(12).dense(), normal(12, 20)):
        factorization = factorize(W, tol=1e-8)
        assert truncate(factorization, rank).norm <= factorization.certificate.upper * (1 + 1e-4)


def test_projection_is_unbiased_with_the_variance_of_its_law():
    """Var (L A A^T R)_ij = (||L_i||^2 ||R_j||^2 + (W_ij)^2) / rank for Gaussian A."""
    W, draws, rank = normal(3, 4), 4000, 2
    one = factorize(W)
    many = factorize(W.expand(draws, 3, 4))
    found = projected(many, rank)
    products = found.left @ found.right
    variance = (one.left.norm(dim=1).square()[:, None] * one.right.norm(dim=0).square() + W.square()) / rank
    z = (products.mean(0) - W) / (variance / draws).sqrt()
    assert z.abs().max() < 4.5
    ratio = products.var(0) / variance
    assert (ratio - 1).abs().max() < 0.2  # a matrix with E A A^T = I / 2 or 2 I fails by a factor of 2 at least


@pytest.mark.parametrize(("relative", "failure"), [(0.5, 1e-6), (0.2, 1e-3), (1.5, 1e-9)])
def test_guarantee_jl_rank_on_one_entry_exactly(relative, failure):
    """W = 1: the projected entry is chi-square over its degrees of freedom, so the failure is known exactly."""
    rank = jl_rank(1, 1, relative, failure=failure)

    def fails(l):
        return chi2.sf(l * (1 + relative), l) + chi2.cdf(l * (1 - relative), l)

    assert fails(rank) <= failure
    assert fails(rank // 2) > failure  # half the rank is too little: the constant is right up to a factor of 2


def test_guarantee_jl_rank_holds_for_every_entry_and_norm():
    """Prefix sums 12, projected 500 times: within the failure probability, but not at a tenth of the rank."""
    relative, failure, draws = 0.75, 0.1, 500
    W = workloads.prefix(12).dense()
    factorization = factorize(W.expand(draws, 12, 12))
    rank = jl_rank(12, 12, relative, failure=failure)
    A = normal(draws, 12, rank) / math.sqrt(rank)  # rank > 12, where johnson_lindenstrauss has nothing to do

    def failures(A):
        left, right = factorization.left @ A, A.mT @ factorization.right
        norm = factorization.certificate.upper
        far = (W - left @ right).abs().amax((-2, -1)) > relative * norm
        grown = left.norm(dim=-1).amax(-1) * right.norm(dim=-2).amax(-1) > (1 + relative) * norm
        return float((far | grown).double().mean())

    assert failures(A) <= failure
    few = A[..., : rank // 10] * math.sqrt(rank / (rank // 10))
    assert failures(few) > failure


def test_the_papers_last_inequality_is_loose_by_two():
    """beta, the distortion of all ||L_i +- R_j||^2, bounds every entry by beta C^2, not only 2 beta C^2; attained."""

    def beta_and_entry(left, right, A):
        """The worst of the sums and differences, and the worst entry over C^2; the vectors are rows."""
        sums = torch.cat([(left[:, None] + sign * right).flatten(0, 1) for sign in (1, -1)])
        sums = sums[sums.norm(dim=1) > 1e-9]
        beta = float(((sums @ A).square().sum(-1) / sums.square().sum(-1) - 1).abs().max())
        entry = (left @ A @ A.mT @ right.mT - left @ right.mT).abs().max()
        return beta, float(entry / (left.norm(dim=1).max() * right.norm(dim=1).max()))

    factorization = factorize(workloads.prefix(16).dense(), tol=1e-6)
    for i in range(20):
        A = normal(factorization.left.shape[1], 8, name=str(i).encode()) / math.sqrt(8)
        beta, entry = beta_and_entry(factorization.left, factorization.right.mT, A)
        assert entry <= beta
    one = torch.ones(1, 1, dtype=torch.float64)
    beta, entry = beta_and_entry(one, one, 1.1 * one)
    assert abs(entry - beta) < 1e-12 and beta > 0.2
