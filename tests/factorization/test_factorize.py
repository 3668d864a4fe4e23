"""factorize: batches, scales, honest warnings."""

import math
import warnings
from functools import partial

import laws
import pytest
import torch
from laws import normal
from torch.testing import assert_close

from torchdp import workloads
from torchdp.factorization import factorize, signature_form

CASES = [
    (2.0, False),
    (2.0, True),
    (4.0, False),
    (math.inf, False),
    (math.inf, True),
]
random = partial(laws.normal, name=b"error weights")


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_factors_reproduce_w_and_are_balanced(p, shift):
    W = normal(2, 3, 6, 8)
    result = factorize(W, p, shift, tol=1e-4)
    centred = W if result.shift is None else W - result.shift[..., None]
    assert_close(result.left @ result.right, centred, rtol=0, atol=1e-9)
    rows = torch.linalg.vector_norm(result.left.norm(dim=-1), ord=p, dim=-1)
    root = result.certificate.upper.sqrt()
    assert_close(rows, root)
    assert_close(result.sensitivity, root)
    assert result.certificate.upper.shape == result.sensitivity.shape == (2, 3)


@pytest.mark.parametrize(("p", "shift"), CASES)
def test_batch_equals_one_by_one(p, shift):
    W = torch.stack([normal(5, 4, seed=s) for s in range(6)]).reshape(2, 3, 5, 4)
    # rank 0 and rank 1 inside the batch
    W[0, 1] = 0.0
    W[1, 2] = W[1, 2, :, :1] * W[1, 2, :1]
    W[1, 0] *= 1e-200
    W[0, 2] *= 1e150
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        # dependent columns need many iterations at this tolerance
        batch = factorize(W, p, shift, tol=1e-8, max_iterations=2000).certificate
        for i in range(2):
            for j in range(3):
                one = factorize(W[i, j], p, shift, tol=1e-8, max_iterations=2000).certificate
                # both stop within tol of the optimum
                assert_close(batch.upper[i, j], one.upper, rtol=2e-8, atol=0)
                assert_close(batch.lower[i, j], one.lower, rtol=2e-8, atol=0)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (1, 7),
        (7, 1),
        (100, 3),
        (3, 100),
    ],
)
@pytest.mark.parametrize(("p", "shift"), CASES)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_thin_shapes(shape, p, shift):
    W = normal(*shape)
    result = factorize(W, p, shift)
    # as by default
    assert result.certificate.gap <= 1e-3
    assert result.left.shape[0] == shape[0]
    assert result.right.shape[1] == shape[1]


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e300])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_scales(scale):
    W = normal(6, 5)
    certificate = factorize(scale * W).certificate
    # powers of ten are not exact
    assert_close(certificate.upper / scale, factorize(W).certificate.upper, rtol=1e-9, atol=0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_graded_columns_are_charged_not_forgotten():
    """Columns of vanishing weight fall below the rank tolerance; the solver counts what that leaves
    out.
    """
    W = normal(6, 5) * torch.tensor([1, 1e-3, 1e-4, 1e-5, 1e-6], dtype=torch.float64)
    # reached in spite of what falls below the rank tolerance
    assert factorize(W, tol=1e-5).certificate.gap <= 1e-5
    with warnings.catch_warnings():
        # 1e-9 is out of reach, but nothing is lost by asking
        warnings.simplefilter("ignore", RuntimeWarning)
        assert factorize(W, tol=1e-9, max_iterations=200).certificate.gap <= 1e-5


def test_zero():
    result = factorize(torch.zeros(3, 4))
    certificate = result.certificate
    assert certificate.upper == certificate.lower == certificate.gap == 0
    assert result.left.shape == (3, 1)
    assert result.right.shape == (1, 4)


def test_integers_become_float64():
    for W in (torch.eye(3, dtype=torch.int64), torch.eye(3, dtype=torch.bool)):
        assert factorize(W).left.dtype == torch.float64
        assert signature_form(workloads.Workload("whole", (W,))).right.dtype == torch.float64


def test_leaves_autograd_and_the_global_generator_alone():
    W = normal(4, 5).requires_grad_()
    state = torch.get_rng_state()
    result = factorize(W)
    assert not result.left.requires_grad
    assert not result.certificate.upper.requires_grad
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [16, 32])
def test_guarantee_factorize_reports_an_early_stop_and_is_still_true(n):
    value = {16: 1.704480245, 32: 1.905445713}[n]
    with pytest.warns(RuntimeWarning, match="certified gap") as record:
        certificate = factorize(workloads.prefix(n), max_iterations=1).certificate
    assert record[0].filename == __file__
    assert certificate.lower <= value <= certificate.upper
    # one iteration is far from enough
    assert certificate.gap > 1e-3
    symmetric = workloads.absolute_difference(n).dense()
    with pytest.warns(RuntimeWarning, match="certified gap") as record:
        early = signature_form(symmetric, max_iterations=1).certificate
    assert record[0].filename == __file__
    assert early.lower <= factorize(symmetric).certificate.upper
    assert early.upper >= factorize(symmetric).certificate.lower
