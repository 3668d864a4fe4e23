"""Factorizations under repeated participation, against the semidefinite program, attacks and single participation."""

import math
from functools import partial

import laws
import pytest
import torch
from programs import least_value

from torchdp import workloads
from torchdp.factorization import factorize_epochs
from torchdp.factorization.certificates.returning_certificate import certify_epochs
from torchdp.training import Epochs, Iterates, causal_strategy, sensitivity, standard_errors

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


normal = partial(laws.normal, name=b"epochs")


def program(W, period, p):
    n = W.shape[1]
    return least_value(W, [tuple(range(i, n, period)) for i in range(min(period, n))], p)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(("rows", "columns", "period"), [(4, 4, 2), (5, 5, 2), (7, 6, 4), (4, 4, 1)])
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
    assert found.certificate.upper == 0 and found.left.shape == (4, 6) and found.left.isfinite().all()


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
        [[0.5, 0, 0, 0, 0], [-6, 0, 0, 0, 0], [-10, -11, 0.4, 0, 0], [-10, 6, 15, 5, 0], [7, 3, 0, 7, -6]]
    ).double()
    W = W + 0.1 * torch.eye(5, dtype=torch.float64)
    assert factorize_epochs(W, 1).certificate.gap <= 1e-3


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("rows", [[[1.0, 0.0], [1.0, 1.0]], [[-2.0, 2.0], [1.0, 1.0]], [[3.0, 1.0], [0.5, 2.0]]])
def test_one_query_that_outweighs_the_others_is_solved_too(rows, period):
    """Its directions are dependent in the end, so that logarithms of the weights run away."""
    assert factorize_epochs(torch.tensor(rows).double(), period, tol=1e-6).certificate.gap <= 1e-6


def test_a_class_whose_weight_all_but_vanishes_on_the_way_is_solved_too():
    """An extrapolation takes the weight of the second column's class down by forty orders of magnitude."""
    W = [[-1, 0, 2], [1, 0, 1], [2, 0, -1], [1, -1, 2], [-1, -2, 1], [0, -2, 2], [-2, -1, 2]]
    assert factorize_epochs(torch.tensor(W), 3, tol=1e-5).certificate.gap <= 1e-5


def test_guarantee_bounds_are_true_for_any_factors_weights_and_directions():
    W, period = normal(8, 7), 3
    best, good = factorize_epochs(W, period, tol=1e-7).certificate, factorize_epochs(W, period, tol=1e-3)
    for seed in range(30):
        name = bytes([seed])
        left, right = normal(8, 9, name=name), normal(9, 7, name=name + b"r")
        if seed % 2:
            left = W @ torch.linalg.pinv(right)
        if seed % 5 == 0:  # a good pair, cut short: what is missing is charged
            left, right = good.left * (1 - 1e-3 * seed), good.right
        found = certify_epochs(W, left, right, normal(8, name=name).abs(), normal(7, 2 + seed % 4), period)
        assert found.lower <= best.upper * (1 + 1e-12) and found.upper >= best.lower * (1 - 1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1e300])
def test_the_value_scales_and_the_dtype_follows(scale):
    W = normal(6, 5)
    found = factorize_epochs(W * scale, 2)
    plain, scaled = factorize_epochs(W, 2).certificate, found.certificate
    largest = float(found.left.norm(dim=1).max())
    assert math.isclose(largest, float(scaled.upper) / largest, rel_tol=1e-6)  # the factors share the scale
    assert math.isclose(float(scaled.upper), scale * float(plain.upper), rel_tol=1e-5)
    assert math.isclose(float(scaled.lower), scale * float(plain.lower), rel_tol=1e-5)
    half = factorize_epochs(W.float(), 2)
    assert half.left.dtype == half.right.dtype == torch.float32 and half.certificate.gap <= 1e-3


def test_a_workload_is_taken_and_a_stop_before_the_tolerance_is_told():
    assert factorize_epochs(workloads.prefix(6), 3).certificate.gap <= 1e-3
    with pytest.warns(RuntimeWarning, match="after 1 iterations at a certified gap"):
        factorize_epochs(workloads.prefix(6), 3, tol=1e-6, max_iterations=1)
