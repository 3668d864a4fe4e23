"""Strategies of a few buffers: their norms against dense matrices, their distance from the certified optimum."""

import math
from dataclasses import replace

import pytest
import torch

from torchdp.factorization import BufferedStrategy, factorize, factorize_buffered
from torchdp.workloads import RunningSums


@pytest.mark.parametrize(
    ("n", "buffers", "p", "decay"), [(1, 1, 2.0, 1.0), (2, 3, math.inf, 1.0), (30, 2, 2.0, 0.9)]
)
def test_norms_are_those_of_the_dense_strategy(n, buffers, p, decay):
    found = factorize_buffered(RunningSums(n, decay), buffers, p)
    C, W = found.strategy.dense(), found.workload.dense()
    rows = torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)
    assert torch.allclose(found.row_norms, rows, rtol=1e-10)
    assert torch.allclose(C.norm(dim=0), torch.ones(n, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(found.strategy.column_norms(), C.norm(dim=0), rtol=1e-12)
    assert math.isclose(
        float(found.certificate.upper), float(torch.linalg.vector_norm(rows, ord=p)), rel_tol=1e-10
    )
    assert found.certificate.upper >= factorize(W, p, tol=1e-6).certificate.lower


def test_three_buffers_come_close_to_the_best_strategy():
    found = factorize_buffered(RunningSums(100), 3, 2.0)
    assert found.certificate.gap < 2e-3
    toeplitz = replace(found.strategy, before=torch.ones(100), after=torch.ones(100))  # the control: no diagonals
    C = toeplitz.dense() / toeplitz.dense().norm(dim=0).max()
    rows = torch.linalg.solve_triangular(C, found.workload.dense(), upper=False, left=False).norm()
    assert rows > 1.02 * found.certificate.upper


@pytest.mark.slow
@pytest.mark.parametrize(("p", "gap"), [(2.0, 0.0015), (math.inf, 0.0062)])
def test_ten_thousand_steps(p, gap):
    assert factorize_buffered(RunningSums(10_000), 4, p, tol=2e-4).certificate.gap < gap


def test_bad_input_is_named():
    one = torch.ones(3)
    for poles, zeros in ((torch.tensor([0.5]), torch.tensor([0.6])), (torch.tensor([1.0]), torch.tensor([0.6]))):
        with pytest.raises(ValueError, match="fall in turns"):
            BufferedStrategy(poles, zeros, one, one)
    with pytest.raises(ValueError, match="before"):
        BufferedStrategy(torch.tensor([0.6]), torch.tensor([0.5]), -one, one)
    with pytest.raises(ValueError, match="buffers"):
        factorize_buffered(RunningSums(3), 0)
    with pytest.raises(TypeError, match="RunningSums"):
        factorize_buffered(torch.eye(3))
