"""Buffers for users whose steps keep apart: what they move against every set, and strategies made for them."""

import math
from dataclasses import replace

import pytest
import torch
from rules import permitted

from torchdp.factorization import BufferedStrategy, factorize_buffered, factorize_separated
from torchdp.factorization.streams import search
from torchdp.factorization.streams.series import apart_squares
from torchdp.randomness import keyed_generator
from torchdp.training import Separated, sensitivity
from torchdp.workloads import RunningSums

FEW = replace(search.SEPARATED, most=25)


def strategies(falling):
    """60 random ones of up to 11 steps, with a gap and times."""
    generator = keyed_generator(b"apart")
    for case in range(60):
        n, buffers = 1 + case % 11, 1 + case % 4
        places, before, after = (torch.rand(k, generator=generator).double() + 0.02 for k in (2 * buffers, n, n))
        places = places.sort(descending=True).values / 1.03
        if falling:
            before, after = (x.sort(descending=True).values for x in (before, after))
        yield BufferedStrategy(places[0::2], places[1::2], before, after), 1 + case % 5, 1 + case % 3


def moved(C, gap, times):
    """What the worst set moves, squared."""
    return max(float(C[:, list(s)].sum(1).square().sum()) for s in permitted(Separated(gap, times), len(C)))


def test_guarantee_no_set_moves_further_and_one_moves_as_far_as_is_said():
    open_ones, close = 0, []
    for C, gap, times in strategies(False):
        bound, attained = apart_squares(*C.tensors, gap, times)[:2]
        worst = moved(C.dense(), gap, times)
        assert attained <= worst * (1 + 1e-12) and worst <= bound * (1 + 1e-12)
        open_ones += attained < worst * (1 - 1e-9)
        close.append(bound / worst)
        found = sensitivity(C, Separated(gap, times))
        assert math.isclose(found.value, math.sqrt(worst), rel_tol=1e-9) and found.exact  # few steps: searched
        if C.steps > times:
            assert moved(C.dense(), 1, times + 1) > worst * (1 + 1e-9)  # the control: other users move further
    assert open_ones < 10 and max(close) > 1.001 and sum(close) / 60 < 1.05


def test_where_diagonals_fall_the_packed_set_is_the_worst():
    for C, gap, times in strategies(True):
        bound, attained = apart_squares(*C.tensors, gap, times)[:2]
        packed = C.dense()[:, ::gap][:, :times].sum(1).square().sum()
        assert math.isclose(bound, float(packed), rel_tol=1e-9) and math.isclose(attained, bound, rel_tol=1e-9)


def test_guarantee_sensitivity_of_many_steps_is_a_bound(monkeypatch):
    searched = [sensitivity(C, Separated(gap, times)) for C, gap, times in strategies(False)]
    monkeypatch.setattr("torchdp.factorization.streams.buffered.SEARCHED", 0)
    for (C, gap, times), exact in zip(strategies(False), searched, strict=True):
        found = sensitivity(C, Separated(gap, times))
        assert found.attained <= exact.value * (1 + 1e-12) and exact.value <= found.value * (1 + 1e-12)


@pytest.mark.parametrize(
    ("n", "gap", "times", "p", "decay", "momentum"),
    [(24, 6, 4, 2.0, 1.0, 0.0), (22, 9, 2, math.inf, 0.95, 0.0), (20, 7, 3, 2.0, 1.0, 0.5)],
)
def test_guarantee_a_strategy_for_users_who_keep_apart(monkeypatch, n, gap, times, p, decay, momentum):
    monkeypatch.setattr(search, "SEPARATED", FEW)
    W = RunningSums(n, decay, momentum)
    found = factorize_buffered(W, 2, p, gap=gap, times=times)
    C, c = found.strategy.dense(), found.certificate
    assert sensitivity(C, Separated(gap, times)).value <= 1 + 1e-9
    rows = torch.linalg.solve_triangular(C, W.dense(), upper=False, left=False).norm(dim=1)
    torch.testing.assert_close(found.row_norms, rows, rtol=1e-8, atol=0)
    assert math.isclose(float(c.upper), float(torch.linalg.vector_norm(rows, ord=p)), rel_tol=1e-8)
    best = factorize_separated(W.dense(), gap, times, p, max_iterations=30).certificate
    assert c.lower <= best.upper * (1 + 1e-9) and best.lower <= c.upper < 1.35 * best.upper
    once = factorize_buffered(W, 2, p)  # the control: made for one step
    far = sensitivity(once.strategy, Separated(gap, times)).value
    assert c.upper < 0.98 * far * once.certificate.upper


def test_larger_problems_begin_with_smaller_ones(monkeypatch):
    monkeypatch.setattr(search, "SEPARATED", FEW)
    whole = factorize_buffered(RunningSums(60), 1, 2.0, gap=15, times=4).certificate.upper
    monkeypatch.setattr(search, "SEPARATED", replace(FEW, whole=30))
    assert factorize_buffered(RunningSums(60), 1, 2.0, gap=15, times=4).certificate.upper < 1.03 * whole
