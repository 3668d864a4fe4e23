"""Strategies of a few buffers: their norms against dense matrices, their distance from the certified optimum."""

import math
from dataclasses import replace

import pytest
import torch

from torchdp.factorization import BufferedStrategy, factorize, factorize_buffered
from torchdp.factorization.streams.search import buffered_passes
from torchdp.factorization.streams.series import pass_squares
from torchdp.randomness import keyed_generator
from torchdp.workloads import RunningSums


@pytest.mark.parametrize(
    ("n", "buffers", "p", "decay", "momentum", "rates"),
    [
        (1, 1, 2.0, 1.0, 0.0, None),
        (2, 3, math.inf, 1.0, 0.0, None),
        (30, 2, 2.0, 0.9, 0.0, None),
        (2, 2, math.inf, 1.0, 0.9, None),
        (30, 2, 2.0, 1.0, 0.9, None),
        (30, 2, 2.0, 1.0, 0.0, torch.linspace(1, 0.1, 30)),
        (30, 2, math.inf, 0.9, 0.9, torch.linspace(1, 0.1, 30)),
    ],
)
def test_norms_are_those_of_the_dense_strategy(n, buffers, p, decay, momentum, rates):
    sums = RunningSums(n, decay, momentum, rates)
    found = factorize_buffered(sums, buffers, p)
    C, W = found.strategy.dense(), sums.dense()
    rows = torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)
    assert torch.allclose(found.row_norms, rows, rtol=1e-10)
    assert torch.allclose(C.norm(dim=0), torch.ones(n, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(found.strategy.column_norms()[0], C.norm(dim=0), rtol=1e-12)
    assert math.isclose(
        float(found.certificate.upper), float(torch.linalg.vector_norm(rows, ord=p)), rel_tol=1e-10
    )
    assert found.certificate.upper >= factorize(W, p, tol=1e-6).certificate.lower


def test_three_buffers_come_close_to_the_best_strategy():
    found = factorize_buffered(RunningSums(100), 3, 2.0)
    assert found.certificate.gap < 2e-3
    toeplitz = replace(found.strategy, before=torch.ones(100), after=torch.ones(100))  # the control: no diagonals
    C = toeplitz.dense() / toeplitz.dense().norm(dim=0).max()
    rows = torch.linalg.solve_triangular(C, RunningSums(100).dense(), upper=False, left=False).norm()
    assert rows > 1.02 * found.certificate.upper


def test_sums_of_a_users_columns_are_those_of_the_dense_strategy():
    """200 random strategies, the last pass often shorter than the others."""
    generator = keyed_generator(b"passes")
    for case in range(200):
        n, period, buffers = 1 + case % 23, 1 + case % 7, 1 + case % 4
        places, before, after = (torch.rand(k, generator=generator).double() for k in (2 * buffers, n, n))
        places = places.sort(descending=True).values
        parts = places[0::2], places[1::2], before + 0.1, after + 0.1
        C = BufferedStrategy(*parts).dense()
        sums = torch.stack([C[:, i::period].sum(1).norm() for i in range(min(period, n))])
        assert torch.allclose(pass_squares(*parts, period).sqrt(), sums, rtol=1e-9)


@pytest.mark.parametrize(("p", "decay", "momentum"), [(2.0, 1.0, 0.0), (math.inf, 0.99, 0.0), (2.0, 1.0, 0.8)])
def test_passes_share_a_strategy_that_moves_by_one(p, decay, momentum):
    W = RunningSums(40, decay, momentum)
    C, norms = buffered_passes(W, 12, 3, p)
    sums = torch.stack([C.dense()[:, i::12].sum(1).norm() for i in range(12)])
    rows = torch.linalg.solve_triangular(C.dense(), W.dense(), upper=False, left=False).norm(dim=1)
    assert torch.allclose(sums, torch.ones(12, dtype=torch.float64)) and torch.allclose(norms, rows, rtol=1e-9)
    once = factorize_buffered(W, 3, p).strategy.dense()  # the control: made for a single pass
    moved = max(float(once[:, i::12].sum(1).norm()) for i in range(12))
    rest = torch.linalg.solve_triangular(once, W.dense(), upper=False, left=False).norm(dim=1)
    assert torch.linalg.vector_norm(norms, ord=p) < 0.95 * moved * torch.linalg.vector_norm(rest, ord=p)


def test_rates_that_jump_leave_poles_and_zeros_apart():
    """The best buffers of such rates lie at an end: a pole of 1, or one on a zero."""
    g = keyed_generator(b"rates")
    jumps = [torch.exp(2 * torch.randn(12, generator=g, dtype=torch.float64)) for _ in range(8)]
    for rates in (jumps[0], jumps[7]):
        found = factorize_buffered(RunningSums(12, 0.9, 0.9, rates), 2, 4.0)
        assert found.certificate.lower <= found.certificate.upper < 3 * found.certificate.lower
