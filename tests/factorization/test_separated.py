"""Factorizations for users whose steps keep apart: against a semidefinite program, every set, and bad certificates."""

import math
from dataclasses import replace
from functools import partial

import laws
import pytest
import torch
from programs import least_value
from rules import permitted

from torchdp import workloads
from torchdp.factorization import factorize_epochs, factorize_separated
from torchdp.factorization.certificates.returning_certificate import SeparatedDual, certify_separated
from torchdp.factorization.solvers.banded_solver import banded_strategy
from torchdp.training import Iterates, Separated, sensitivity, standard_errors

normal = partial(laws.normal, name=b"separated")


def program(W, gap, times, p, bands=None):
    sets = permitted(Separated(gap, times), len(W))
    return least_value(W, [s for s in sets if not any(set(s) < set(t) for t in sets)], p, bands)


@pytest.mark.parametrize("p", [2.0, math.inf])
@pytest.mark.parametrize(("n", "gap", "times"), [(7, 3, 2), (6, 2, 2), (6, 1, 3)])
def test_the_semidefinite_program_agrees(n, gap, times, p):
    W = workloads.prefix(n).dense()
    found = factorize_separated(W, gap, times, p, tol=1e-6).certificate
    expected = program(W, gap, times, p)
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
    assert math.isclose(value, program(W, gap, times, p, gap), rel_tol=2e-4)


@pytest.mark.parametrize(
    ("n", "p", "upper", "lower"),
    [
        (40, 2.0, 4.212, 4.198),
        (40, math.inf, 4.771, 4.760),
        pytest.param(128, 2.0, 4.904, 4.885, marks=pytest.mark.slow),
        pytest.param(128, math.inf, 5.347, 5.332, marks=pytest.mark.slow),
    ],
)
def test_known_values_of_four_epochs(n, p, upper, lower):
    """Equal column norms cost 1.9 % at 128 (rms); a bound of fixed epochs is 2 % lower."""
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
        left, right = normal(n, n, name=b"l" + bytes([seed])), normal(n, n, name=b"r" + bytes([seed]))
        dual = random_dual(n, gap, times, seed)
        found = certify_separated(Iterates(n).dense(), left, right, dual, gap, times, p=p)
        assert found.lower <= best * (1 + 1e-12) and found.upper >= best * (1 - 1e-2)
        assert found.lower > 0.1 * best


def test_sets_that_no_user_owns_are_refused():
    found = factorize_separated(workloads.prefix(6), 2, 3)
    W = workloads.prefix(6).dense()
    left = torch.linalg.solve_triangular(found.strategy.dense(), W, upper=False, left=False)

    def certified(**changes):
        return certify_separated(W, left, found.strategy.dense(), replace(found.dual, **changes), 2, 3)

    assert certified().closed(0.1)
    close, long, holes = (torch.tensor(x) for x in ([[0, 1, 6]], [[0, 2, 4, 6]], [[0, 6, 4]]))
    ones = {"directions": torch.ones(1, 3, 1).double(), "weights": torch.ones(1).double()}
    for steps in (close, holes):
        with pytest.raises(ValueError, match="increasing steps, 2 apart"):
            certified(steps=steps, **ones)
    with pytest.raises(ValueError, match="steps, directions and weights"):
        certified(steps=long, **ones)
