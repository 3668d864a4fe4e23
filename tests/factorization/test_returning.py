"""Users who come back, in epochs or apart: against the semidefinite program, every set and
attacks.
"""

import math
from functools import partial

import laws
import pytest
import torch
from programs import least_value
from rules import permitted
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import factorize_epochs, factorize_separated
from torchdp.factorization.certificates.returning_certificate import (
    certify_epochs,
    certify_separated,
)
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.factorization.streams.search import passes_bound
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
    certificate = found.certificate
    expected = program(W, period, p)
    assert certificate.gap <= 1e-3
    assert certificate.residual < 1e-9
    # tol is 1e-3, the semidefinite solver good to 1e-5
    assert expected * (1 - 1e-5) <= certificate.upper <= expected * (1 + 1e-3)
    assert certificate.lower <= expected * (1 + 1e-5)
    assert_close(found.left @ found.right, W)


def test_the_zero_workload_costs_nothing():
    found = factorize_epochs(torch.zeros(4, 6), 2)
    assert found.certificate.upper == 0
    assert found.left.shape == (4, 6)
    assert found.left.isfinite().all()


@pytest.mark.parametrize(
    ("period", "p"),
    [
        (1, 2.0),
        (5, 2.0),
        (2, 4.0),
        (1, math.inf),
        (2, math.inf),
        (7, math.inf),
    ],
)
def test_the_gap_closes_and_columns_of_a_class_become_orthogonal(period, p):
    W = workloads.prefix(13).dense()
    found = factorize_epochs(W, period, p, tol=1e-6)
    assert found.certificate.gap <= 1e-6
    assert found.certificate.residual < 1e-9
    X = found.right.mT @ found.right
    for i in range(period):
        block = X[i::period, i::period]
        off = block - block.diagonal().diag()
        assert off.abs().max() < 1e-13 * X.diagonal().max()


@pytest.mark.parametrize("steps", [12, 13])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_a_strategy_for_training_costs_what_the_certificate_says_and_one_user_attains_it(steps, p):
    W = Iterates(steps, momentum=0.5).dense()
    period = 4
    found = factorize_epochs(W, period, p)
    C = causal_strategy(W, found)
    change = sensitivity(C, Epochs(period))
    cost = change.value * torch.linalg.vector_norm(standard_errors(W, C), ord=p)
    assert change.exact
    assert math.isclose(float(cost), float(found.certificate.upper), rel_tol=1e-10)


def test_queries_that_no_best_answer_counts_leave_the_bounds_close():
    """Two rows decide: the directions of one class become dependent, and signs of right's columns
    that disagree.
    """
    W = torch.tensor(
        [
            [0.5, 0, 0, 0, 0],
            [-6, 0, 0, 0, 0],
            [-10, -11, 0.4, 0, 0],
            [-10, 6, 15, 5, 0],
            [7, 3, 0, 7, -6],
        ]
    ).double()
    W = W + 0.1 * torch.eye(5).double()
    assert factorize_epochs(W, 1).certificate.gap <= 1e-3


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 0.0], [1.0, 1.0]],
        [[-2.0, 2.0], [1.0, 1.0]],
        [[3.0, 1.0], [0.5, 2.0]],
    ],
)
def test_one_query_that_outweighs_the_others_is_solved_too(rows, period):
    """Its directions are dependent in the end, so that logarithms of the weights run away."""
    assert factorize_epochs(torch.tensor(rows).double(), period, tol=1e-6).certificate.gap <= 1e-6


def test_a_class_whose_weight_all_but_vanishes_on_the_way_is_solved_too():
    """An extrapolation takes the weight of the second column's class down by forty orders of
    magnitude.
    """
    W = [
        [-1, 0, 2],
        [1, 0, 1],
        [2, 0, -1],
        [1, -1, 2],
        [-1, -2, 1],
        [0, -2, 2],
        [-2, -1, 2],
    ]
    assert factorize_epochs(torch.tensor(W), 3, tol=1e-5).certificate.gap <= 1e-5


def test_guarantee_bounds_are_true_for_any_factors_weights_and_directions():
    W = normal(8, 7)
    period = 3
    best = factorize_epochs(W, period, tol=1e-7).certificate
    good = factorize_epochs(W, period, tol=1e-3)
    for seed in range(30):
        name = bytes([seed])
        left = normal(8, 9, name=name)
        right = normal(9, 7, name=name + b"r")
        if seed % 2:
            left = W @ torch.linalg.pinv(right)
        # a good pair, cut short: what is missing is charged
        if seed % 5 == 0:
            left = good.left * (1 - 1e-3 * seed)
            right = good.right
        row_weights = normal(8, name=name).abs()
        directions = normal(7, 2 + seed % 4)
        found = certify_epochs(W, left, right, row_weights, directions, period)
        assert found.lower <= best.upper * (1 + 1e-12)
        assert found.upper >= best.lower * (1 - 1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1e300])
def test_the_value_scales_and_the_dtype_follows(scale):
    W = normal(6, 5)
    found = factorize_epochs(W * scale, 2)
    plain = factorize_epochs(W, 2).certificate
    scaled = found.certificate
    rows = found.left.norm(dim=1)
    largest = float(rows.max())
    # the factors share the scale
    assert math.isclose(largest, float(scaled.upper) / largest, rel_tol=1e-6)
    assert math.isclose(float(scaled.upper), scale * float(plain.upper), rel_tol=1e-5)
    assert math.isclose(float(scaled.lower), scale * float(plain.lower), rel_tol=1e-5)
    half = factorize_epochs(W.float(), 2)
    assert half.left.dtype == half.right.dtype == torch.float32
    assert half.certificate.gap <= 1e-3


def test_a_workload_is_taken_and_a_stop_before_the_tolerance_is_told():
    assert factorize_epochs(workloads.prefix(6), 3).certificate.gap <= 1e-3
    with pytest.warns(RuntimeWarning, match="after 1 iterations at a certified gap"):
        factorize_epochs(
            workloads.prefix(6),
            3,
            tol=1e-6,
            max_iterations=1,
        )


def program_of_sets(W, gap, times, p, bands=None):
    sets = permitted(Separated(gap, times), len(W))
    largest = [s for s in sets if not any(set(s) < set(t) for t in sets)]
    return least_value(W, largest, p, bands)


@pytest.mark.parametrize(
    ("n", "gap", "times", "p"),
    [
        (7, 3, 2, 2.0),
        (7, 3, 2, math.inf),
        (6, 1, 3, math.inf),
    ],
)
def test_the_semidefinite_program_agrees_where_steps_keep_apart(n, gap, times, p):
    W = workloads.prefix(n).dense()
    found = factorize_separated(W, gap, times, p, tol=1e-6).certificate
    expected = program_of_sets(W, gap, times, p)
    assert found.lower <= expected * (1 + 1e-5)
    assert expected * (1 - 1e-5) <= found.upper <= expected * (1 + 5e-3)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(("n", "gap", "times"), [(7, 2, 4), (7, 3, 2)])
def test_the_banded_strategy_is_the_best_of_so_many_bands(n, gap, times, p):
    W = workloads.prefix(n).dense()
    C = banded_strategy(W, gap, times, p, 2000)
    assert not C.tril(-gap).any()
    assert math.isclose(sensitivity(C, Separated(gap, times)).value, 1.0, rel_tol=1e-8)
    value = float(torch.linalg.vector_norm(standard_errors(W, C), ord=p))
    assert math.isclose(value, program_of_sets(W, gap, times, p, gap), rel_tol=2e-4)


@pytest.mark.parametrize(
    ("n", "p", "upper"),
    [
        (40, 2.0, 4.212),
        pytest.param(40, math.inf, 4.771, marks=pytest.mark.slow),
    ],
)
def test_known_values_of_four_epochs(n, p, upper):
    W = workloads.prefix(n).dense()
    gap = n // 4
    found = factorize_separated(W, gap, 4, p)
    unit = math.sqrt(n) if p == 2 else 1.0
    assert found.certificate.upper / unit <= upper
    # four per cent is what so few bands leave open
    assert found.certificate.gap < 0.04
    assert_close(found.row_norms, standard_errors(W, found.strategy))
    assert sensitivity(found.strategy, Separated(gap, 4)).value == pytest.approx(1.0, rel=1e-9)


def test_where_fewer_steps_than_the_gap_permits_no_band_is_best():
    W = workloads.prefix(32).dense()
    found = factorize_separated(W, 4, 2, 2.0)
    assert found.certificate.gap < 0.15
    assert found.strategy.dense().tril(-4).any()
    C = banded_strategy(W, 4, 2, 2.0, 1000)
    # negative control: bands are three per cent worse
    assert standard_errors(W, C).norm() > 1.03 * found.certificate.upper


def test_scale_device_and_dtype_do_not_matter():
    W = workloads.prefix(6).dense()
    one = factorize_separated(W, 2, 3, 2.0)
    other = factorize_separated(W.float() * 1e-20, 2, 3, 2.0)
    assert other.certificate.upper == pytest.approx(float(one.certificate.upper) * 1e-20, rel=1e-6)
    assert_close(other.strategy.dense(), one.strategy.dense(), rtol=1e-4, atol=1e-5)
    assert other.strategy.coefficients.dtype == torch.float64


@pytest.mark.parametrize(
    ("n", "gap", "times", "p"),
    [
        (6, 2, 3, 2.0),
        (7, 3, 2, 3.0),
        (5, 1, 3, math.inf),
        (5, 2, 2, math.inf),
    ],
)
def test_guarantee_bounds_of_users_who_keep_apart_hold_for_any_factors(n, gap, times, p):
    W = Iterates(n).dense()
    period = max(gap, -(-n // times))
    fixed = factorize_epochs(W, period, p).certificate
    best = factorize_separated(W, gap, times, p).certificate.upper
    for seed in range(6):
        left = normal(n, n, name=b"l" + bytes([seed]))
        right = normal(n, n, name=b"r" + bytes([seed]))
        if seed % 2:
            left = (1 - 0.1 * seed) * W @ torch.linalg.inv(right)
        found = certify_separated(
            W,
            left,
            right,
            fixed,
            gap,
            times,
            p=p,
        )
        assert found.lower <= best * (1 + 1e-12)
        assert found.upper >= best * (1 - 1e-2)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(
    ("n", "gap", "times", "decay"),
    [
        (12, 4, 3, 1.0),
        (14, 4, 4, 0.9),
        (13, 3, 2, 1.0),
    ],
)
def test_a_bound_from_every_second_step_is_below_that_of_all(n, gap, times, decay, p):
    W = RunningSums(n, decay)
    whole, _ = passes_bound(W, gap, times, p, 1e-4)
    period = max(gap, -(-n // times))
    fixed = factorize_epochs(W.dense(), period, p, 1e-4).certificate
    assert whole == pytest.approx(float(fixed.lower), rel=1e-12)
    some, rounding = passes_bound(
        W,
        gap,
        times,
        p,
        1e-4,
        most=7,
    )
    assert 0.6 * fixed.lower < some <= fixed.upper + rounding
