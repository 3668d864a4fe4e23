"""Users who come back, in epochs or apart: against the semidefinite program, every set, attacks and forty digits."""

import math
from dataclasses import replace
from functools import partial

import laws
import pytest
import torch
from mpmath import mp, mpf
from programs import least_value
from rules import permitted

from torchdp import workloads
from torchdp.factorization import factorize_epochs, factorize_separated
from torchdp.factorization.certificates import returning_certificate
from torchdp.factorization.certificates.returning_certificate import (
    SeparatedDual,
    certify_epochs,
    certify_separated,
    passes_lower,
)
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.factorization.streams.search import passes_dual
from torchdp.training import (
    Epochs,
    Iterates,
    Separated,
    causal_strategy,
    sensitivity,
    standard_errors,
)
from torchdp.workloads import RunningSums

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


normal = partial(laws.normal, name=b"epochs")


def program(W, period, p):
    n = W.shape[1]
    return least_value(W, [tuple(range(i, n, period)) for i in range(min(period, n))], p)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(
    ("rows", "columns", "period"), [(4, 4, 2), (5, 5, 2), (7, 6, 4), (4, 4, 1)]
)
def test_the_semidefinite_program_agrees(rows, columns, period, p):
    W = workloads.prefix(rows).dense() if rows == columns else normal(rows, columns)
    found = factorize_epochs(W, period, p, tol=1e-6).certificate
    expected = program(W, period, p)
    assert found.gap <= 1e-6
    assert found.lower <= expected * (1 + 1e-5) and found.upper >= expected * (1 - 1e-5)


DEFICIENT = {
    "wide": (normal(3, 6), 2),
    "rank 2": (normal(5, 2) @ normal(2, 5, name=b"right"), 2),
    "one class": (normal(2, 4), 1),
    "last sum": (workloads.prefix(6).dense()[-1:], 3),
    "every third": (workloads.prefix(9).dense()[2::3], 3),
    "a step without effect": (torch.cat([normal(5, 3), torch.zeros(5, 2).double()], 1), 2),
}


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize("case", DEFICIENT)
def test_a_workload_of_any_rank(case, p):
    W, period = DEFICIENT[case]
    found = factorize_epochs(W, period, p)
    expected = program(W, period, p)
    assert found.certificate.gap <= 1e-3 and found.certificate.residual < 1e-9
    assert expected * (1 - 1e-5) <= found.certificate.upper <= expected * (1 + 1e-3)
    assert found.certificate.lower <= expected * (1 + 1e-5)
    torch.testing.assert_close(found.left @ found.right, W)


def test_the_zero_workload_costs_nothing():
    found = factorize_epochs(torch.zeros(4, 6), 2)
    assert (
        found.certificate.upper == 0 and found.left.shape == (4, 6) and found.left.isfinite().all()
    )


@pytest.mark.parametrize("period", [1, 2, 5, 7])
@pytest.mark.parametrize("p", [2.0, 4.0, math.inf])
def test_the_gap_closes_and_columns_of_a_class_become_orthogonal(period, p):
    W = workloads.prefix(13).dense()
    found = factorize_epochs(W, period, p, tol=1e-6)
    assert found.certificate.gap <= 1e-6 and found.certificate.residual < 1e-9
    X = found.right.mT @ found.right
    for i in range(period):
        block = X[i::period, i::period]
        assert (block - block.diagonal().diag()).abs().max() < 1e-13 * X.diagonal().max()


@pytest.mark.parametrize("steps", [12, 13])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_a_strategy_for_training_costs_what_the_certificate_says_and_one_user_attains_it(steps, p):
    W, period = Iterates(steps, momentum=0.5).dense(), 4
    found = factorize_epochs(W, period, p)
    C = causal_strategy(W, found)
    change = sensitivity(C, Epochs(period))
    cost = change.value * torch.linalg.vector_norm(standard_errors(W, C), ord=p)
    assert change.exact and math.isclose(float(cost), float(found.certificate.upper), rel_tol=1e-10)


def test_queries_that_no_best_answer_counts_leave_the_bounds_close():
    """Two rows decide: the directions of one class become dependent, and signs of right's columns that disagree."""
    W = torch.tensor(
        [
            [0.5, 0, 0, 0, 0],
            [-6, 0, 0, 0, 0],
            [-10, -11, 0.4, 0, 0],
            [-10, 6, 15, 5, 0],
            [7, 3, 0, 7, -6],
        ]
    ).double()
    W = W + 0.1 * torch.eye(5, dtype=torch.float64)
    assert factorize_epochs(W, 1).certificate.gap <= 1e-3


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize(
    "rows", [[[1.0, 0.0], [1.0, 1.0]], [[-2.0, 2.0], [1.0, 1.0]], [[3.0, 1.0], [0.5, 2.0]]]
)
def test_one_query_that_outweighs_the_others_is_solved_too(rows, period):
    """Its directions are dependent in the end, so that logarithms of the weights run away."""
    assert factorize_epochs(torch.tensor(rows).double(), period, tol=1e-6).certificate.gap <= 1e-6


def test_a_class_whose_weight_all_but_vanishes_on_the_way_is_solved_too():
    """An extrapolation takes the weight of the second column's class down by forty orders of magnitude."""
    W = [[-1, 0, 2], [1, 0, 1], [2, 0, -1], [1, -1, 2], [-1, -2, 1], [0, -2, 2], [-2, -1, 2]]
    assert factorize_epochs(torch.tensor(W), 3, tol=1e-5).certificate.gap <= 1e-5


def test_guarantee_bounds_are_true_for_any_factors_weights_and_directions():
    W, period = normal(8, 7), 3
    best, good = (
        factorize_epochs(W, period, tol=1e-7).certificate,
        factorize_epochs(W, period, tol=1e-3),
    )
    for seed in range(30):
        name = bytes([seed])
        left, right = normal(8, 9, name=name), normal(9, 7, name=name + b"r")
        if seed % 2:
            left = W @ torch.linalg.pinv(right)
        if seed % 5 == 0:  # a good pair, cut short: what is missing is charged
            left, right = good.left * (1 - 1e-3 * seed), good.right
        found = certify_epochs(
            W, left, right, normal(8, name=name).abs(), normal(7, 2 + seed % 4), period
        )
        assert found.lower <= best.upper * (1 + 1e-12) and found.upper >= best.lower * (1 - 1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1e300])
def test_the_value_scales_and_the_dtype_follows(scale):
    W = normal(6, 5)
    found = factorize_epochs(W * scale, 2)
    plain, scaled = factorize_epochs(W, 2).certificate, found.certificate
    largest = float(found.left.norm(dim=1).max())
    # the factors share the scale
    assert math.isclose(largest, float(scaled.upper) / largest, rel_tol=1e-6)
    assert math.isclose(float(scaled.upper), scale * float(plain.upper), rel_tol=1e-5)
    assert math.isclose(float(scaled.lower), scale * float(plain.lower), rel_tol=1e-5)
    half = factorize_epochs(W.float(), 2)
    assert half.left.dtype == half.right.dtype == torch.float32 and half.certificate.gap <= 1e-3


def test_a_workload_is_taken_and_a_stop_before_the_tolerance_is_told():
    assert factorize_epochs(workloads.prefix(6), 3).certificate.gap <= 1e-3
    with pytest.warns(RuntimeWarning, match="after 1 iterations at a certified gap"):
        factorize_epochs(workloads.prefix(6), 3, tol=1e-6, max_iterations=1)


def program_of_sets(W, gap, times, p, bands=None):
    sets = permitted(Separated(gap, times), len(W))
    return least_value(W, [s for s in sets if not any(set(s) < set(t) for t in sets)], p, bands)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(("n", "gap", "times"), [(7, 3, 2), (6, 2, 2), (6, 1, 3)])
def test_the_semidefinite_program_agrees_where_steps_keep_apart(n, gap, times, p):
    W = workloads.prefix(n).dense()
    found = factorize_separated(W, gap, times, p, tol=1e-6).certificate
    expected = program_of_sets(W, gap, times, p)
    assert found.lower <= expected * (1 + 1e-5) and found.upper >= expected * (1 - 1e-5)
    assert found.lower >= expected * (1 - 1e-3) and found.gap < 5e-3


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(("n", "gap", "times"), [(7, 2, 4), (7, 3, 2), (6, 1, 6)])
def test_the_banded_strategy_is_the_best_of_so_many_bands(n, gap, times, p):
    W = workloads.prefix(n).dense()
    C = banded_strategy(W, gap, times, p, 2000)
    assert not C.tril(-gap).any()
    assert math.isclose(sensitivity(C, Separated(gap, times)).value, 1.0, rel_tol=1e-8)
    value = float(torch.linalg.vector_norm(standard_errors(W, C), ord=p))
    assert math.isclose(value, program_of_sets(W, gap, times, p, gap), rel_tol=2e-4)


@pytest.mark.parametrize(
    ("n", "p", "upper", "lower"),
    [
        (40, 2.0, 4.212, 4.198),
        (40, math.inf, 4.771, 4.760),
    ],
)
def test_known_values_of_four_epochs(n, p, upper, lower):
    W, gap = workloads.prefix(n).dense(), n // 4
    found, unit = factorize_separated(W, gap, 4, p), math.sqrt(n) if p == 2 else 1.0
    assert found.certificate.upper / unit <= upper and found.certificate.lower / unit >= lower
    fixed = factorize_epochs(W, gap, p).certificate
    assert found.certificate.lower >= fixed.lower
    torch.testing.assert_close(found.row_norms, standard_errors(W, found.strategy))
    assert sensitivity(found.strategy, Separated(gap, 4)).value == pytest.approx(1.0, rel=1e-9)


def test_where_fewer_steps_than_the_gap_permits_no_band_is_best():
    W = workloads.prefix(32).dense()
    found = factorize_separated(W, 4, 2, 2.0)
    assert found.certificate.gap < 0.01 and found.strategy.dense().tril(-4).any()
    C = banded_strategy(W, 4, 2, 2.0, 1000)
    assert standard_errors(W, C).norm() > 1.03 * found.certificate.upper


def test_scale_device_and_dtype_do_not_matter():
    W = workloads.prefix(6).dense()
    one, other = factorize_separated(W, 2, 3), factorize_separated(W.float() * 1e-20, 2, 3)
    assert other.certificate.upper == pytest.approx(float(one.certificate.upper) * 1e-20, rel=1e-6)
    torch.testing.assert_close(other.strategy.dense(), one.strategy.dense(), rtol=1e-4, atol=1e-5)
    assert other.strategy.coefficients.dtype == torch.float64


def random_dual(n, gap, times, seed):
    sets = permitted(Separated(gap, times), n)
    steps = torch.full((len(sets), times), n)
    for row, chosen in zip(steps, sets, strict=True):
        row[: len(chosen)] = torch.tensor(chosen)
    directions = normal(len(sets), times, 2, name=bytes([seed]))
    weights = normal(len(sets), name=b"w" + bytes([seed])).abs()
    return SeparatedDual(normal(n, name=b"c" + bytes([seed])).abs(), steps, directions, weights)


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
@pytest.mark.parametrize(("n", "gap", "times"), [(6, 2, 3), (7, 3, 2), (5, 1, 3)])
def test_guarantee_no_dual_whatever_is_above_any_strategy(n, gap, times, p):
    best = float(factorize_separated(Iterates(n).dense(), gap, times, p).certificate.upper)
    for seed in range(6):
        left, right = (
            normal(n, n, name=b"l" + bytes([seed])),
            normal(n, n, name=b"r" + bytes([seed])),
        )
        dual = random_dual(n, gap, times, seed)
        found = certify_separated(Iterates(n).dense(), left, right, dual, gap, times, p=p)
        assert found.lower <= best * (1 + 1e-12) and found.upper >= best * (1 - 1e-2)
        assert found.lower > 0.1 * best


def test_sets_that_no_user_owns_are_refused():
    found = factorize_separated(workloads.prefix(6), 2, 3)
    W = workloads.prefix(6).dense()
    left = torch.linalg.solve_triangular(found.strategy.dense(), W, upper=False, left=False)

    def certified(**changes):
        return certify_separated(
            W, left, found.strategy.dense(), replace(found.dual, **changes), 2, 3
        )

    assert certified().closed(0.1)
    ones = {"directions": torch.ones(1, 3, 1).double(), "weights": torch.ones(1).double()}
    for steps in ([[0, 1, 6]], [[0, 6, 4]]):  # too close; filled up in between
        with pytest.raises(ValueError, match="increasing steps, 2 apart"):
            certified(steps=torch.tensor(steps), **ones)


def trace_norm(W, period, c, D, p):
    """Of diag(c)^{1/2} W M^{1/2}, by its definition: the directions at one length in each class, and 0.001 of it
    apart."""
    c = c / torch.linalg.vector_norm(
        c, ord=1 if p == math.inf else math.inf if p == 2 else p / (p - 2)
    )
    parts, size = [], 0.0
    for i in range(period):
        part, largest = D[i::period], float(D[i::period].norm(dim=1).max())
        unit = math.sqrt(0.999) * part / part.norm(dim=1, keepdim=True)
        moved = torch.cat([unit, math.sqrt(0.001) * torch.eye(len(part)).double()], 1)
        parts.append(largest * W.dense()[:, i::period] @ moved)
        size += largest**2
    return float(torch.linalg.svdvals(c.sqrt()[:, None] * torch.cat(parts, 1)).sum()) / math.sqrt(
        size
    )


@pytest.mark.parametrize("p", [2.0, 5.0, math.inf])
@pytest.mark.parametrize(
    ("n", "period", "decay"), [(12, 4, 1.0), (14, 4, 0.9), (9, 4, 1.0), (7, 7, 1.0), (5, 1, 0.8)]
)
def test_guarantee_any_weights_give_the_trace_norm_which_no_strategy_passes(n, period, decay, p):
    W, passes = RunningSums(n, decay), -(-n // period)
    best = factorize_epochs(W.dense(), period, p, 1e-4).certificate
    c, D = normal(n).square() + 0.01, normal(n, passes + 1)
    found, rounding = passes_lower(W, period, c, D, p)
    expected = trace_norm(W, period, c, D, p)
    assert (
        (1 - 3e-6) * expected <= found + rounding
        and found <= expected + rounding
        and rounding < 1e-6 * found
    )
    assert found <= best.upper
    near, rounding = passes_lower(W, period, *passes_dual(W, period, p), p)
    assert (1 - 2e-3) * best.lower <= near <= best.upper + rounding
    apart = factorize_separated(W.dense(), period, passes, p, max_iterations=20).certificate
    assert near <= apart.upper + rounding  # users who keep apart may come back in every pass


def forty_digits(blocks, c, decay, s):
    """tr diag(c) (N + s diag(c))^{-1} from N = W^{-T} M^{-1} W^{-1}, in the order of the steps."""
    period, k = c.shape
    n = period * k
    M, difference = mp.zeros(n), mp.eye(n)
    for i in range(period):
        for e in range(k):
            for f in range(k):
                M[e * period + i, f * period + i] = mpf(float(blocks[i, e, f]))
    for t in range(1, n):
        difference[t, t - 1] = -mpf(decay)
    weights = mp.diag([mpf(float(c[t % period, t // period])) for t in range(n)])
    inverse = mp.inverse(difference.T * mp.inverse(M) * difference + mpf(s) * weights)
    return sum(weights[t, t] * inverse[t, t] for t in range(n))


@pytest.mark.parametrize("spread", [0.0, 6.0])
@pytest.mark.parametrize(("n", "period", "j"), [(14, 10, 2), (25, 21, 2), (30, 10, 3), (12, 4, 2)])
def test_directions_that_nearly_agree_are_no_exception(n, period, j, spread):
    W, c = RunningSums(n, 0.99), normal(n).square() + 0.01
    D = (normal(j).abs() + 1e-5 * normal(n, j)) * (spread * normal(n, 1)).exp()
    found, rounding = passes_lower(W, period, c, D, 2.0)
    assert rounding < 1e-6 * found
    assert found - rounding <= trace_norm(W, period, c, D, 2.0) <= (1 + 3e-6) * found + rounding


@pytest.mark.parametrize(("period", "k", "decay"), [(5, 3, 1.0), (3, 4, 0.7), (6, 2, 1.0)])
def test_rounding_stays_below_what_is_allowed_for(period, k, decay):
    """Correlations near 1, weights over eight orders."""
    shared = normal(period, k, 1) + 1e-4 * normal(period, k, k + 1)
    blocks, c = (
        shared @ shared.mT + 1e-9 * torch.eye(k).double(),
        (9 * normal(period, k).tanh()).exp(),
    )
    levels = torch.tensor([0.0, 1e-6, 1.0, 1e4, 1e12], dtype=torch.float64)
    found, errors = returning_certificate._traces(blocks, c, decay, levels)
    with mp.workdps(60):
        exact = [forty_digits(blocks, c, decay, float(s)) for s in levels]
        off = torch.tensor(
            [abs(float(mpf(float(f)) / e - 1)) for f, e in zip(found, exact, strict=True)]
        )
    assert (off < errors / 10).all() and errors.max() < 1
    assert off.max() > 1e-13  # the control: these are hard ones
    plain, small = returning_certificate._traces(
        torch.eye(k).expand(period, k, k).double(), c * 0 + 1, 1.0, levels
    )
    assert small.max() < 1e-9 and plain[0] > 0
