"""Training on the relaxation: held against the semidefinite program, and sound wherever it stops."""

import importlib.util
import math
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from laws import normal, overlap

from torchdp import workloads
from torchdp.factorization import Relaxation, certify, factorize, reference, train


def instance(seed):
    """One of the hundred matrices of experiments/factorization/relaxation.py."""
    return script().instance(seed)


@cache
def script():
    path = Path(__file__).parents[2] / "experiments" / "factorization" / "relaxation.py"
    spec = importlib.util.spec_from_file_location("relaxation_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # it imports its neighbour
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", [*range(10), *range(13, 100, 17)])
def test_an_instance_closes_its_own_certificate_and_agrees_with_the_program(seed):
    pytest.importorskip("cvxpy")
    W = instance(seed)
    found = train(W)
    assert found.certificate.gap <= 1e-5
    exact = reference(W).certificate
    assert overlap(found.certificate, exact, 1e-12) and exact.gap <= 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("problem", ["gamma_2", "float32", "gamma_F", "p, shift"])
def test_the_hundred_instances_under_every_norm_that_has_a_program(seed, problem):
    pytest.importorskip("cvxpy")
    W = instance(seed)
    dtype, p, shift, tol = {
        "gamma_2": (torch.float64, math.inf, False, 1e-5),
        "float32": (torch.float32, math.inf, False, 1e-4),
        "gamma_F": (torch.float64, 2.0, False, 1e-5),
        "p, shift": (torch.float64, 4.0, True, 1e-5),
    }[problem]
    found, exact = train(W.to(dtype), p, shift=shift, tol=tol), reference(W, p, shift).certificate
    if float(exact.upper) > 1e-6 * float(W.abs().max()):  # one column under a shift has norm 0
        assert found.certificate.gap <= tol
    room = 1e-6 * float(W.abs().max()) + 1e-5 * float(exact.upper) * (dtype == torch.float32)
    assert found.certificate.lower <= exact.upper + room and exact.lower <= found.certificate.upper + room


def test_a_batch_goes_as_one_by_one():
    """Rank 0 and 3, a zero row, a scale of 1e200 and other exponents, side by side."""
    W = normal(2, 3, 8, 6)
    W[0, 1], W[0, 2] = 0.0, W[0, 2, :, :3] @ W[0, 2, :3]
    W[1, 0, 2], W[1, 1] = 0.0, 1e200 * W[1, 1]
    found, exact = train(W), factorize(W, tol=1e-6).certificate
    assert found.certificate.closed(1e-5).all() and overlap(found.certificate, exact)
    assert (found.certificate.residual <= 1e-12 * W.abs().amax((-2, -1)).clamp_min(1.0)).all()
    torch.testing.assert_close(found.sensitivity, found.certificate.upper.sqrt())
    alone = train(W[1, 2]).certificate
    torch.testing.assert_close(found.certificate.upper[1, 2], alone.upper, rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(5, 15), (15, 5), (6, 6)])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_a_free_shift(shape, p):
    W = normal(*shape)
    found = train(W, p, shift=True)
    again = certify(W, found.left, found.right, found.row_weights, found.column_weights, p=p, shift=found.shift)
    assert again.gap <= 1e-5 and overlap(again, factorize(W, p, True, tol=1e-6).certificate)
    assert train(W[:, :1], shift=True).certificate.upper <= 1e-13  # one point moves to 0


def test_error_weights_are_those_of_the_weighted_matrix():
    W, w = normal(5, 4).numpy(), [1.0, 2.0, 0.5, 9.0, 1.0]
    found = train(W.tolist(), 3.0, error_weights=torch.tensor(w, dtype=torch.float64))
    exact = factorize(np.array(w)[:, None] * W, 3.0, tol=1e-6).certificate
    assert overlap(found.certificate, exact) and found.certificate.gap <= 1e-5
    np.testing.assert_allclose(found.left @ found.right, W, atol=1e-12)


def test_guarantee_train_is_sound_after_one_step():
    with pytest.warns(
        RuntimeWarning, match="after 1 iterations at a certified gap .*raise steps or tol"
    ) as record:
        certificate = train(workloads.prefix(16), steps=1).certificate
    assert record[0].filename == __file__
    assert certificate.lower <= 1.704480245 <= certificate.upper and certificate.gap > 1e-3


def test_a_structure_of_ones_own_with_parameters_shared_by_a_batch():
    class Shared(torch.nn.Module):
        def __init__(self, W):
            super().__init__()
            self.W, self.logs = W, torch.nn.Parameter(torch.zeros(W.shape[-1], dtype=torch.float64))

        def forward(self):
            return self.W / self.logs.exp(), torch.diag(self.logs.exp()).expand(*self.W.shape[:-2], -1, -1)

    W = torch.stack([torch.eye(3), 5 * torch.eye(3)]).double() * torch.tensor([1.0, 2.0, 4.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train(W, structure=Shared)
    assert torch.equal(found.right[0] / found.right[0, 0, 0], found.right[1] / found.right[1, 0, 0])
    torch.testing.assert_close(found.certificate.upper, torch.tensor([4.0, 20.0]).double(), rtol=1e-5, atol=0)
    plain = train(W[0], structure=Relaxation)
    assert plain.certificate.gap <= 1e-4


def test_dtype_grad_mode_global_generator_and_silence(capsys):
    state = torch.get_rng_state()
    with torch.no_grad():
        result = train(normal(4, 5).float(), tol=1e-4)
    with torch.inference_mode():
        train(normal(4, 5), progress=False)
    assert result.left.dtype == torch.float32 and not result.left.requires_grad
    assert not result.row_weights.requires_grad and torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert capsys.readouterr().err == ""
