"""The norms as losses, the free constant and gamma_2*: values, gradients, closed forms,
semidefinite programs.
"""

import math
import warnings
from functools import partial

import cvxpy as cp
import laws
import pytest
import torch
from laws import overlap
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import factorize, free_constant, gamma, gamma2, gamma2_dual, gamma_F
from torchdp.factorization.norm import certify_dual, witness
from torchdp.randomness import keyed_generator

CASES = [
    (math.inf, False),
    (math.inf, True),
    (2.0, False),
    (4.0, True),
]


normal = partial(laws.normal, name=b"norm")
K = 12
KNOWN = [
    # minus a Gram matrix of thresholds
    (
        workloads.absolute_difference(K).dense(),
        -(K - 1) / 2,
        (K - 1) / 2,
    ),
    # minus the projection off the constants
    (workloads.unequal(K).dense(), -(1 - 1 / K), 1 - 1 / K),
    (
        torch.eye(K).double(),
        -1 / K,
        1 - 1 / K,
    ),
    # antisymmetric in each coordinate: no constant helps
    (workloads.kendall(3, 4).dense(), 0.0, None),
    (torch.full((4, 5), -2.5, dtype=torch.float64), 2.5, 0.0),
]
# SCS, to high accuracy: the derivative is no better than the solution. Not Clarabel: diffcp 1.1.9
# returns the dual variables of its semidefinite cones out of order, and the derivative is wrong.
# LSMR for the derivative's linear system: where the optimum is not unique diffcp's dense solver
# returns anything, and its LSQR stops early.
SOLVER = {
    "solve_method": "SCS",
    "eps_abs": 1e-10,
    "eps_rel": 1e-10,
    "max_iters": 100_000,
    "mode": "lsmr",
}


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_gradcheck(p, shift):
    """Finite differences of width 1e-4, all of them in one batch, against the witness; the values
    are good to 1e-9.
    """
    W = normal(4, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(gamma(W, p, shift, tol=1e-9), W)
    steps = 1e-4 * torch.eye(20).double().reshape(20, 4, 5)
    ends = torch.stack([W.detach() + steps, W.detach() - steps])
    ahead, behind = gamma(ends, p, shift, tol=1e-9)
    slopes = ((ahead - behind) / 2e-4).reshape(4, 5)
    # differences of width 1e-4 are good to some 1e-5
    assert_close(gradient, slopes, atol=2e-5, rtol=0)
    # 1 % off is seen
    assert (1.01 * gradient - slopes).abs().max() > 1e-4


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_guarantee_witness_bounds_every_other_matrix(p, shift):
    found = factorize(normal(5, 6), p, shift, tol=1e-7)
    U = witness(normal(5, 6), found.row_weights, found.column_weights, shift=shift)
    assert_close((normal(5, 6) * U).sum(), found.certificate.lower)
    for i in range(10):
        other = normal(5, 6, name=str(i).encode())
        assert (other * U).sum() <= factorize(other, p, shift).certificate.upper * (1 + 1e-12)
        if shift:
            assert_close(((other + 3) * U).sum(), (other * U).sum())
    # so does W itself, a hair above its norm
    if not shift:
        assert ((1 + 1e-3) * normal(5, 6) * U).sum() > found.certificate.upper


def test_guarantee_gamma_is_a_lower_bound_and_close():
    prefix = workloads.prefix(4).dense()
    unequal = workloads.unequal(4).dense()
    W = torch.stack([prefix, unequal])
    limits = torch.tensor([1.326122669, 1.5 + 1e-12], dtype=torch.float64)
    assert (gamma(W, tol=1e-3) <= limits).all()
    # one problem, solved twice
    assert_close(gamma2(W), gamma(W, math.inf), rtol=1e-9, atol=0)
    assert_close(gamma(W), torch.tensor([1.326122667, 1.5]).double(), rtol=2e-6, atol=0)


def test_float32_in_float32_out():
    W = normal(3, 4).float().requires_grad_()
    value = gamma(W, tol=1e-4)
    value.backward()
    assert value.dtype == W.grad.dtype == torch.float32


def test_zero_has_gradient_zero():
    W = torch.zeros(
        3,
        4,
        dtype=torch.float64,
        requires_grad=True,
    )
    value = gamma(W)
    value.backward()
    assert value == 0
    assert torch.equal(W.grad, torch.zeros(3, 4).double())


@pytest.mark.parametrize(
    "n, value",
    [
        (2, 1.144122806),
        (8, 1.494413653),
        (16, 1.689403682),
    ],
)
def test_gamma_f_is_the_root_mean_square_of_edmonds_nikolov_ullman(n, value):
    """Theirs is divided by sqrt(m), Nikolov and Tang's Gamma_2 of the columns and their negatives
    is not.
    """
    W = workloads.prefix(n).dense()
    assert_close(gamma_F(W), torch.tensor(value).double(), rtol=2e-6, atol=0)
    assert_close(math.sqrt(n) * gamma_F(W), gamma(W, 2))
    assert_close(gamma(torch.cat([W, -W], 1), 2, shift=True), gamma(W, 2), rtol=2e-6, atol=0)
    # the same mean, twice the sum
    tall = torch.cat([W, W])
    assert_close(gamma_F(tall), gamma_F(W), rtol=2e-6, atol=0)
    assert_close(gamma(tall, 2), math.sqrt(2) * gamma(W, 2), rtol=2e-6, atol=0)


def test_guarantee_gamma_f_is_a_lower_bound_and_differentiable():
    W = normal(2, 5, 4).requires_grad_()
    value = gamma_F(W, tol=1e-3)
    assert value.shape == (2,)
    mean = factorize(W, 2, tol=1e-7).certificate.upper / math.sqrt(5)
    assert (value <= mean).all()
    assert (value <= gamma2(W, tol=1e-7) * (1 + 1e-7)).all()
    value.sum().backward()
    # homogeneous of degree 1
    assert_close((W.grad * W).sum((-2, -1)), value, rtol=1e-9, atol=0)


def test_gamma_of_integers_is_not_rounded():
    W = torch.ones(2, 2, dtype=torch.int64).tril()
    expected = torch.tensor(2 / math.sqrt(3))
    assert_close(gamma(W), expected.double(), rtol=2e-6, atol=0)


@pytest.mark.parametrize(("W", "constant", "value"), KNOWN)
def test_guarantee_closed_forms(W, constant, value):
    found = free_constant(W, tol=1e-5)
    assert abs(found.constant - constant) < 1e-2 * max(1, abs(constant))
    value = float(factorize(W, tol=1e-6).certificate.upper) if value is None else value
    assert found.lower <= value * (1 + 1e-12)
    assert found.upper >= value * (1 - 1e-12)
    assert found.upper <= value * (1 + 1e-5) + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_guarantee_no_constant_does_better(seed):
    """Random matrices far from balanced: the bracket holds against a scan, and follows a shift of
    W.
    """
    generator = keyed_generator(bytes([seed]))
    drawn = torch.randn(
        5,
        6,
        dtype=torch.float64,
        generator=generator,
    )
    W = drawn.exp() + seed
    found = free_constant(W)
    # tol is 1e-3
    assert found.upper <= found.lower * (1 + 1.01e-3)
    scan = torch.linspace(-float(W.max()), 1, 13, dtype=torch.float64)
    assert (found.lower <= factorize(W + scan[:, None, None]).certificate.upper).all()
    moved = free_constant(W + 100)
    assert overlap(moved, found)
    certificate = factorize(W + found.constant, tol=2.5e-4).certificate
    attained = float(certificate.upper)
    assert math.isclose(attained, found.upper, rel_tol=1e-3)


def by_layer(W):
    """The least t with Z = [[A, W], [W^T, B]] >= 0 and diagonals of A and B at most t
    (Lee, Shraibman, Spalek 2008).
    """
    cvxpylayers = pytest.importorskip("cvxpylayers.torch")
    m, n = W.shape
    given = cp.Parameter((m, n))
    t = cp.Variable()
    Z = cp.Variable((m + n, m + n), PSD=True)
    limits = [cp.diag(Z) <= t, Z[:m, m:] == given]
    problem = cp.Problem(cp.Minimize(t), limits)
    layer = cvxpylayers.CvxpyLayer(problem, [given], [t, Z])
    value, _ = layer(W, solver_args=SOLVER)
    return value


# optimal weights are unique
UNIQUE = [
    ("prefix", lambda: workloads.prefix(16).dense()),
    ("wide", lambda: normal(6, 12)),
    ("low rank", lambda: normal(8, 2) @ normal(2, 8, name=b"other")),
]


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # numpy's, of cvxpylayers
@pytest.mark.parametrize("make", [make for _, make in UNIQUE], ids=[name for name, _ in UNIQUE])
def test_gradient_of_the_value_is_the_witness(make):
    """Implicit differentiation of the program against the envelope theorem on the fixed point:
    nothing is shared.
    """
    W = make().requires_grad_()
    value = by_layer(W)
    (implicit,) = torch.autograd.grad(value, W)
    (envelope,) = torch.autograd.grad(gamma2(W, tol=1e-8), W)
    size = float(envelope.abs().max())
    assert_close(implicit, envelope, rtol=0, atol=2e-4 * size)
    # homogeneous of degree 1
    assert_close((implicit * W).sum(), value, rtol=1e-7, atol=0)
    # a thousandth off is seen
    assert (1.001 * implicit - envelope).abs().max() > 2e-4 * envelope.abs().max()


def with_zeros():
    U = normal(12, 15)
    U[3] = 0
    U[:, 4] = 0
    return U


def dual_witness(W, shift):
    found = factorize(W, shift=shift, tol=1e-4)
    return witness(W, found.row_weights, found.column_weights, shift=shift)


def sdp(U):
    m, n = U.shape
    Z = cp.Variable((m + n, m + n), PSD=True)
    value = cp.sum(cp.multiply(U.numpy(), Z[:m, m:]))
    problem = cp.Problem(cp.Maximize(value), [cp.diag(Z) == 1])
    return problem.solve(solver=cp.CLARABEL)


DUAL = {
    "normal": normal(9, 9),
    "signs": normal(30, 30).sign(),
    "wide": normal(5, 40),
    "tall": normal(40, 5),
    "heavy tails": normal(25, 25) ** 5,
    "scales": normal(20, 20) * torch.logspace(-9, 0, 20).double()[:, None],
    "blocks": torch.block_diag(normal(8, 8), 1e-6 * normal(8, 8)),
    "zero rows and columns": with_zeros(),
    "sparse": normal(40, 40) * (normal(40, 40, name=b"mask") > 1.5),
    "prefix witness": dual_witness(workloads.prefix(32).dense(), True),
    # a whole face of optimal weights
    "ranges witness": dual_witness(workloads.all_ranges(8).dense(), True),
    "large": 1e306 * normal(6, 6),
    "small": 1e-200 * normal(6, 6),
}


@pytest.mark.parametrize("name", DUAL)
def test_guarantee_gamma2_dual_closes_the_gap(name):
    U = DUAL[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gamma2_dual(U)
    assert 0 <= found.gap + 1e-14
    assert found.gap <= 1e-6
    assert found.lower > 0
    again = certify_dual(
        U,
        found.left,
        found.right,
        found.row_weights,
        found.column_weights,
    )
    assert_close((found.lower, found.upper), again, rtol=1e-12, atol=0)
    for vectors in (found.left, found.right):
        norms = vectors.norm(dim=-1)
        assert ((norms - 1).abs().minimum(norms) < 1e-14).all()
    for weights in (found.row_weights, found.column_weights):
        assert (weights >= 0).all()
        assert abs(float(weights.sum()) - 1) < 1e-14


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_the_sdp(seed):
    generator = keyed_generator(bytes([seed]))
    m, n = torch.randint(1, 13, (2,), generator=generator).tolist()
    U = torch.randn(
        m,
        n,
        dtype=torch.float64,
        generator=generator,
    )
    U = U.sign() if seed % 2 else U
    found = gamma2_dual(U)
    value = sdp(U)
    # the semidefinite solver is good to some 1e-6
    assert float(found.lower) <= value * (1 + 1e-6)
    assert value <= float(found.upper) * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_guarantee_any_vectors_and_any_weights_are_bounds(seed):
    U = normal(7, 9, name=bytes([seed]))
    found = gamma2_dual(U)
    left = normal(7, 3, name=b"left")
    right = normal(9, 3, name=b"right")
    rows = normal(7, name=b"rows").abs()
    columns = normal(9, name=b"columns").square()
    lower, upper = certify_dual(U, left, right, rows, columns)
    assert lower <= found.upper * (1 + 1e-12)
    assert found.lower <= upper
    # negative controls: vectors longer than 1, weights that sum to more than 1
    assert (1.05 * found.left @ found.right.mT * U).sum() > found.upper
    rows = (1.1 * found.row_weights).sqrt()
    columns = found.column_weights.sqrt()
    cheated = torch.linalg.matrix_norm(U / rows[:, None] / columns, 2)
    assert cheated < found.lower


def test_scale_of_the_weights_is_free_and_a_missing_weight_proves_nothing():
    U = with_zeros()
    found = gamma2_dual(U)
    arguments = found.left, found.right
    rows = found.row_weights.clone()
    columns = found.column_weights.clone()
    assert_close(certify_dual(U, *arguments, 3e50 * rows, 1e-50 * columns)[1], found.upper)
    # the zero row needs none
    rows[3] = 0
    assert certify_dual(U, *arguments, rows, columns)[1] <= found.upper * (1 + 1e-12)
    rows[0] = 0
    assert certify_dual(U, *arguments, rows, columns)[1] == math.inf
    assert certify_dual(U, *arguments, 0 * rows, columns)[1] == math.inf
    assert certify_dual(0 * U, *arguments, 0 * rows, columns)[1] == 0
    with pytest.raises(ValueError, match="row_weights must hold no negative"):
        certify_dual(U, *arguments, -columns[:12], columns)


def test_batches_and_dtypes():
    U = torch.stack(
        [
            normal(4, 6),
            torch.zeros(4, 6).double(),
            normal(4, 6, name=b"b").sign(),
        ]
    )
    found = gamma2_dual(U.float().requires_grad_())
    assert found.lower.shape == (3,)
    assert found.left.shape[:2] == (3, 4)
    assert found.lower.dtype == torch.float64
    assert not found.lower.requires_grad
    assert found.lower[1] == found.upper[1] == found.gap[1] == 0
    for i in (0, 2):
        single = gamma2_dual(U[i].float())
        assert_close(found.lower[i], single.lower, rtol=2e-6, atol=0)
    assert gamma2_dual(U[None]).upper.shape == (1, 3)


def test_it_warns_where_it_stops_early_and_refuses_bad_arguments():
    with pytest.warns(RuntimeWarning, match="above tol"):
        # three iterations are far too few
        found = gamma2_dual(DUAL["signs"], max_iterations=3)
    assert found.iterations == 3
    assert found.lower <= gamma2_dual(DUAL["signs"]).upper <= found.upper * (1 + 1e-6)


@pytest.mark.gpu
def test_dual_on_a_gpu():
    U = normal(20, 30)
    found = gamma2_dual(U.cuda())
    assert found.lower.device.type == found.left.device.type == "cuda"
    assert_close(found.lower.cpu(), gamma2_dual(U).lower, rtol=2e-6, atol=0)
