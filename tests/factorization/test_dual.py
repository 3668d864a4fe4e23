"""gamma_2*: certified on both sides, equal to the SDP, and the dual norm of gamma_2."""

import math
import warnings
from functools import partial

import cvxpy as cp
import laws
import pytest
import torch

from torchdp import workloads
from torchdp.factorization import factorize, gamma2_dual
from torchdp.factorization.norm import certify_dual, witness
from torchdp.randomness import keyed_generator

normal = partial(laws.normal, name=b"dual")


def with_zeros():
    U = normal(12, 15)
    U[3], U[:, 4] = 0, 0
    return U


def dual_witness(W, shift):
    found = factorize(W, shift=shift, tol=1e-4)
    return witness(W, found.row_weights, found.column_weights, shift=shift)


def sdp(U):
    m, n = U.shape
    Z = cp.Variable((m + n, m + n), PSD=True)
    problem = cp.Problem(cp.Maximize(cp.sum(cp.multiply(U.numpy(), Z[:m, m:]))), [cp.diag(Z) == 1])
    return problem.solve(solver=cp.CLARABEL)


MATRICES = {
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
    "ranges witness": dual_witness(workloads.all_ranges(8).dense(), True),  # a whole face of optimal weights
    "large": 1e306 * normal(6, 6),
    "small": 1e-200 * normal(6, 6),
}


@pytest.mark.parametrize("name", MATRICES)
def test_guarantee_gamma2_dual_closes_the_gap(name):
    U = MATRICES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gamma2_dual(U)
    assert 0 <= found.gap + 1e-14 and found.gap <= 1e-6 and found.lower > 0
    again = certify_dual(U, found.left, found.right, found.row_weights, found.column_weights)
    torch.testing.assert_close((found.lower, found.upper), again, rtol=1e-12, atol=0)
    for vectors in (found.left, found.right):
        norms = vectors.norm(dim=-1)
        assert ((norms - 1).abs().minimum(norms) < 1e-14).all()
    for weights in (found.row_weights, found.column_weights):
        assert (weights >= 0).all() and abs(float(weights.sum()) - 1) < 1e-14


@pytest.mark.parametrize(
    ("U", "value"),
    [
        (torch.tensor([[1.0, 1.0], [1.0, -1.0]]), 2 * math.sqrt(2)),  # Tsirelson's bound; 2 with signs
        (workloads.parities(4, 4).dense(), 16**1.5),
        (torch.eye(7), 7.0),
        (workloads.unequal(6).dense(), 30.0),  # no negative entry: all vectors alike
        (torch.outer(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.0, -4.0])), 21.0),
        (torch.tensor([[-0.25]]), 0.25),
    ],
)
def test_known_values(U, value):
    found = gamma2_dual(U, tol=1e-9)
    assert abs(float(found.lower) / value - 1) < 1e-8 and abs(float(found.upper) / value - 1) < 1e-8


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_the_sdp(seed):
    generator = keyed_generator(bytes([seed]))
    m, n = torch.randint(1, 13, (2,), generator=generator).tolist()
    U = torch.randn(m, n, dtype=torch.float64, generator=generator)
    U = U.sign() if seed % 2 else U
    found = gamma2_dual(U)
    value = sdp(U)
    assert float(found.lower) <= value * (1 + 1e-6) and value <= float(found.upper) * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_guarantee_any_vectors_and_any_weights_are_bounds(seed):
    U = normal(7, 9, name=bytes([seed]))
    found = gamma2_dual(U)
    left, right = normal(7, 3, name=b"left"), normal(9, 3, name=b"right")
    rows, columns = normal(7, name=b"rows").abs(), normal(9, name=b"columns").square()
    lower, upper = certify_dual(U, left, right, rows, columns)
    assert lower <= found.upper * (1 + 1e-12) and found.lower <= upper
    # negative controls: vectors longer than 1, weights that sum to more than 1
    assert (1.05 * found.left @ found.right.mT * U).sum() > found.upper
    rows, columns = (1.1 * found.row_weights).sqrt(), found.column_weights.sqrt()
    cheated = torch.linalg.matrix_norm(U / rows[:, None] / columns, 2)
    assert cheated < found.lower


def test_scale_of_the_weights_is_free_and_a_missing_weight_proves_nothing():
    U = with_zeros()
    found = gamma2_dual(U)
    arguments = found.left, found.right
    rows, columns = found.row_weights.clone(), found.column_weights.clone()
    torch.testing.assert_close(certify_dual(U, *arguments, 3e50 * rows, 1e-50 * columns)[1], found.upper)
    rows[3] = 0  # the zero row needs none
    assert certify_dual(U, *arguments, rows, columns)[1] <= found.upper * (1 + 1e-12)
    rows[0] = 0
    assert certify_dual(U, *arguments, rows, columns)[1] == math.inf
    assert certify_dual(U, *arguments, 0 * rows, columns)[1] == math.inf
    assert certify_dual(0 * U, *arguments, 0 * rows, columns)[1] == 0
    with pytest.raises(ValueError, match="row_weights must hold no negative"):
        certify_dual(U, *arguments, -columns[:12], columns)


def test_batches_and_dtypes():
    U = torch.stack([normal(4, 6), torch.zeros(4, 6, dtype=torch.float64), normal(4, 6, name=b"b").sign()])
    found = gamma2_dual(U.float().requires_grad_())
    assert found.lower.shape == (3,) and found.left.shape[:2] == (3, 4) and found.lower.dtype == torch.float64
    assert not found.lower.requires_grad and found.lower[1] == found.upper[1] == found.gap[1] == 0
    for i in (0, 2):
        single = gamma2_dual(U[i].float())
        torch.testing.assert_close(found.lower[i], single.lower, rtol=2e-6, atol=0)
    assert gamma2_dual(U[None]).upper.shape == (1, 3)


def test_it_warns_where_it_stops_early_and_refuses_bad_arguments():
    with pytest.warns(RuntimeWarning, match="above tol"):
        found = gamma2_dual(MATRICES["signs"], max_iterations=3)
    assert found.iterations == 3 and found.lower <= gamma2_dual(MATRICES["signs"]).upper <= found.upper * (
        1 + 1e-6
    )


@pytest.mark.gpu
def test_dual_on_a_gpu():
    U = normal(20, 30)
    found = gamma2_dual(U.cuda())
    assert found.lower.device.type == found.left.device.type == "cuda"
    torch.testing.assert_close(found.lower.cpu(), gamma2_dual(U).lower, rtol=2e-6, atol=0)
