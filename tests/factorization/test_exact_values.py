"""Values known in closed form, certified elsewhere to nine digits, or by a semidefinite program."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import factorize, reference

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

# n: (gamma_2, gamma_F / sqrt n)
PREFIX = {
    2: (1.154700538, 1.144122806),
    3: (1.253197265, 1.239336065),
    4: (1.326122667, 1.310929450),
    5: (1.384231942, 1.368452806),
    8: (1.510483562, 1.494413653),
    16: (1.704480245, 1.689403682),
    32: (1.905445713, 1.892086339),
    48: (2.025404455, None),
    64: (2.111366700, 2.099856472),
}


def brackets(
    W,
    value,
    *,
    p=math.inf,
    shift=False,
    within=1e-5,
):
    """Both bounds lie within ``within`` (relative) of the value, on the right sides of it up to
    1e-8.
    """
    certificate = factorize(W, p, shift, tol=within).certificate
    upper = float(certificate.upper)
    lower = float(certificate.lower)
    # on the right side of the value, up to what it is known to
    assert value * (1 - within) <= lower <= value * (1 + 1e-8)
    assert value * (1 - 1e-8) <= upper <= value * (1 + within)


@pytest.mark.parametrize("n", PREFIX)
def test_prefix_worst_error(n):
    brackets(workloads.prefix(n), PREFIX[n][0])


@pytest.mark.parametrize("n", [n for n in PREFIX if PREFIX[n][1]])
def test_prefix_root_mean_squared_error(n):
    brackets(
        workloads.prefix(n),
        PREFIX[n][1] * math.sqrt(n),
        p=2,
    )


@pytest.mark.parametrize(
    "d, order",
    [
        (4, 1),
        (5, 2),
        (6, 6),
        (8, 2),
    ],
)
def test_parities_are_the_root_of_their_number(d, order):
    W = workloads.parities(d, order)
    brackets(W, math.sqrt(W.shape[0]))


@pytest.mark.parametrize(
    "d, order",
    [
        (1, 1),
        (4, 1),
        (5, 2),
        (6, 3),
        (4, 4),
    ],
)
@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
def test_marginal_tables(d, order, p):
    """Flipping a bit and renaming bits move every row and column, so uniform weights are optimal: a
    trace norm.
    """
    W = workloads.marginal_tables(d, order)
    # of the singular values, times 2^(d - order)
    squares = [math.comb(d - t, order - t) for t in range(order + 1)]
    trace = sum(math.comb(d, t) * math.sqrt(square) for t, square in enumerate(squares))
    scale = 2**order * math.sqrt(math.comb(d, order))
    brackets(W, W.shape[0] ** (1 / p) * trace / scale, p=p)


@pytest.mark.parametrize("k", [2, 3, 10, 64])
def test_unequal(k):
    brackets(workloads.unequal(k), 2 - 2 / k)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 33, 64])
def test_sign_triangular(n):
    signs = 2 * workloads.prefix(n).dense() - 1
    angles = [(2 * j - 1) * math.pi / (2 * n) for j in range(1, n + 1)]
    brackets(signs, sum(1 / math.sin(angle) for angle in angles) / n)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_kronecker_power_of_the_subset_matrix(d):
    W = workloads.Workload("subsets", workloads.prefix(2).factors * d)
    golden = (1 + math.sqrt(5)) / 2
    brackets(W, (2 / math.sqrt(3)) ** d)
    brackets(W, golden**d, p=2)


@pytest.mark.parametrize(
    "k, value",
    [
        (2, 1.154700538),
        (8, 1.636213164),
        (16, 1.90882735),
        (32, 2.19454798),
    ],
)
def test_all_ranges(k, value):
    brackets(workloads.all_ranges(k), value, within=1e-5 if k <= 16 else 1e-4)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
def test_cube_with_shift(d, p):
    sides = [torch.tensor([0.0, 1.0])] * d
    corners = torch.cartesian_prod(*sides).reshape(-1, d)
    cube = corners.T.double()
    brackets(
        cube,
        d ** (1 / 2 + 1 / p) / 2,
        p=p,
        shift=True,
    )


@pytest.mark.parametrize("p", [2.0, 5.0, math.inf])
def test_points_on_a_line_with_shift(p):
    """One row and a free shift: half the range."""
    brackets(
        torch.tensor([[0.3, -1.0, 2.0, 1.9]], dtype=torch.float64),
        1.5,
        p=p,
        shift=True,
    )


# bounds certified elsewhere: ours must meet them
LARGE = [
    ("prefix", 96, math.inf, 2.2335216, 2.2335238),
    ("prefix", 128, math.inf, 2.3207944, 2.3207965),
    ("prefix", 256, 2.0, 2.524414416, 2.524414416),
    ("signs", 64, math.inf, 6.7846112, 6.7846112),
    ("signs", 64, 2.0, 6.781477, 6.781478),
    ("signs", 128, math.inf, 9.5795030, 9.5795030),
    ("ranges", 64, 2.0, 2.302212722, 2.302212722),
]


@pytest.mark.parametrize("name, n, p, low, high", LARGE)
def test_our_bounds_meet_those_certified_elsewhere(name, n, p, low, high):
    bits = np.random.default_rng(0).integers(0, 2, (n, n))
    signs = 2.0 * torch.tensor(bits) - 1
    W = {"prefix": workloads.prefix, "ranges": workloads.all_ranges, "signs": lambda n: signs}[
        name
    ](n)
    rows = n if name != "ranges" else n * (n + 1) // 2
    certificate = factorize(W, p, tol=1e-6).certificate
    scale = 1 if p == math.inf else math.sqrt(rows)
    # both brackets hold the same number
    assert certificate.gap <= 1e-6
    assert certificate.lower / scale <= high * (1 + 1e-7)
    assert certificate.upper / scale >= low * (1 - 1e-7)


def test_guarantee_reference_does_not_take_the_solvers_word():
    """Scale and dtype are handled; the residual left by the solver is charged."""
    W = workloads.prefix(6).dense().float()
    result = reference(W)
    assert result.left.dtype == torch.float32
    assert result.certificate.upper.dtype == torch.float64
    assert result.certificate.residual > 0
    assert result.iterations > 0
    tiny = reference(W.double() * 1e-100).certificate
    # the solver works on numbers of size one
    assert_close(tiny.upper * 1e100, result.certificate.upper, rtol=1e-6, atol=0)


def test_solver_failure_is_an_error(monkeypatch):
    import cvxpy

    def fail(self, **_):
        raise cvxpy.SolverError("no")

    monkeypatch.setattr(cvxpy.Problem, "solve", fail)
    with pytest.raises(RuntimeError, match="SDP solver failed"):
        reference(torch.eye(2))
