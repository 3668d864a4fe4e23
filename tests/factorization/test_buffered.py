"""Strategies of a few buffers, noise drawn again or not: their norms against dense matrices and
every set of steps.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rules import permitted
from torch.testing import assert_close

from torchdp.factorization import (
    BufferedStrategy,
    RecalledStrategy,
    factorize,
    factorize_buffered,
    factorize_epochs,
    factorize_separated,
)
from torchdp.factorization.streams import search
from torchdp.factorization.streams.search import buffered_passes, recalled_passes
from torchdp.factorization.streams.series import apart_squares
from torchdp.randomness import keyed_generator
from torchdp.training import Separated, sensitivity
from torchdp.workloads import RunningSums

# fewer iterations than by default: what is tested is that the bounds are true
FEW = replace(search.SEPARATED, most=25)
ONCE = replace(search.ONCE, most=60)
RECALLED = replace(search.RECALLED, most=20)
PASSES = replace(search.PASSES, most=50)


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
def test_norms_are_those_of_the_dense_strategy(
    monkeypatch,
    n,
    buffers,
    p,
    decay,
    momentum,
    rates,
):
    # the norms of any strategy, good or bad
    monkeypatch.setattr(search, "ONCE", ONCE)
    sums = RunningSums(n, decay, momentum, rates)
    found = factorize_buffered(sums, buffers, p)
    C = found.strategy.dense()
    W = sums.dense()
    rows = torch.linalg.solve_triangular(C, W, upper=False, left=False).norm(dim=1)
    assert torch.allclose(found.row_norms, rows, rtol=1e-10)
    assert torch.allclose(C.norm(dim=0), torch.ones(n).double(), rtol=1e-12)
    assert torch.allclose(found.strategy.column_norms()[0], C.norm(dim=0), rtol=1e-12)
    assert math.isclose(
        float(found.certificate.upper), float(torch.linalg.vector_norm(rows, ord=p)), rel_tol=1e-10
    )
    # no strategy is better than the best one
    assert found.certificate.upper >= factorize(W, p, tol=1e-6).certificate.lower


def test_three_buffers_come_close_to_the_best_strategy():
    found = factorize_buffered(RunningSums(100), 3, 2.0)
    # three buffers lose a five hundredth of the optimum
    assert found.certificate.gap < 2e-3
    # the control: no diagonals
    toeplitz = replace(
        found.strategy,
        before=torch.ones(100),
        after=torch.ones(100),
    )
    dense = toeplitz.dense()
    C = dense / dense.norm(dim=0).max()
    sums = RunningSums(100).dense()
    rows = torch.linalg.solve_triangular(C, sums, upper=False, left=False).norm()
    assert rows > 1.02 * found.certificate.upper


def test_rates_that_jump_leave_poles_and_zeros_apart():
    """The best buffers of such rates lie at an end: a pole of 1, or one on a zero."""
    g = keyed_generator(b"rates")
    normals = [torch.randn(12, generator=g, dtype=torch.float64) for _ in range(8)]
    jumps = [torch.exp(2 * each) for each in normals]
    for rates in (jumps[0], jumps[7]):
        certificate = factorize_buffered(RunningSums(12, 0.9, 0.9, rates), 2, 4.0).certificate
        assert certificate.lower <= certificate.upper < 3 * certificate.lower


def random_strategy(generator, buffers, n, falling=False):
    places = torch.rand(2 * buffers, generator=generator).double() + 0.02
    before = torch.rand(n, generator=generator).double() + 0.02
    after = torch.rand(n, generator=generator).double() + 0.02
    places = places.sort(descending=True).values / 1.03
    if falling:
        before = before.sort(descending=True).values
        after = after.sort(descending=True).values
    return BufferedStrategy(
        places[0::2],
        places[1::2],
        before,
        after,
    )


def strategies(falling):
    """60 random ones of up to 11 steps, with a gap and times."""
    generator = keyed_generator(b"apart")
    for case in range(60):
        C = random_strategy(
            generator,
            1 + case % 4,
            1 + case % 11,
            falling,
        )
        yield C, 1 + case % 5, 1 + case % 3


def moved(C, gap, times):
    """What the worst set moves, squared."""
    sets = permitted(Separated(gap, times), len(C))
    moved = [C[:, list(s)].sum(1) for s in sets]
    return max(float(each.square().sum()) for each in moved)


def test_guarantee_no_set_moves_further_and_one_moves_as_far_as_is_said(monkeypatch):
    open_ones = 0
    close = []
    for C, gap, times in strategies(False):
        bound, attained, _ = apart_squares(*C.tensors, gap, times)
        worst = moved(C.dense(), gap, times)
        assert attained <= worst * (1 + 1e-12)
        assert worst <= bound * (1 + 1e-12)
        open_ones += attained < worst * (1 - 1e-9)
        close.append(bound / worst)
        # few steps: searched
        found = sensitivity(C, Separated(gap, times))
        assert found.exact
        assert math.isclose(found.value, math.sqrt(worst), rel_tol=1e-9)
        with monkeypatch.context() as many:
            many.setattr("torchdp.factorization.streams.buffered.SEARCHED", 0)
            found = sensitivity(C, Separated(gap, times))
        assert math.isclose(found.attained, math.sqrt(attained), rel_tol=1e-9)
        assert math.isclose(found.value, math.sqrt(bound), rel_tol=1e-9)
        if C.steps > times:
            # the control: other users move further
            assert moved(C.dense(), 1, times + 1) > worst * (1 + 1e-9)
    assert open_ones < 10
    # the bound is not always attained, but it is close on average
    assert max(close) > 1.001
    assert sum(close) / 60 < 1.05


def test_where_diagonals_fall_the_packed_set_is_the_worst():
    for C, gap, times in strategies(True):
        bound, attained, _ = apart_squares(*C.tensors, gap, times)
        users = C.dense()[:, ::gap][:, :times]
        packed = users.sum(1).square().sum()
        assert math.isclose(bound, float(packed), rel_tol=1e-9)
        assert math.isclose(attained, bound, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("n", "gap", "times", "p", "decay", "momentum"),
    [
        (24, 6, 4, 2.0, 1.0, 0.0),
        (22, 9, 2, math.inf, 0.95, 0.0),
        (20, 7, 3, 2.0, 1.0, 0.5),
    ],
)
def test_guarantee_a_strategy_for_users_who_keep_apart(
    monkeypatch, n, gap, times, p, decay, momentum
):
    monkeypatch.setattr(search, "SEPARATED", FEW)
    monkeypatch.setattr(search, "ONCE", ONCE)
    W = RunningSums(n, decay, momentum)
    found = factorize_buffered(
        W,
        2,
        p,
        gap=gap,
        times=times,
    )
    C = found.strategy.dense()
    c = found.certificate
    assert sensitivity(C, Separated(gap, times)).value <= 1 + 1e-9
    rows = torch.linalg.solve_triangular(C, W.dense(), upper=False, left=False).norm(dim=1)
    assert_close(found.row_norms, rows, rtol=1e-8, atol=0)
    assert math.isclose(float(c.upper), float(torch.linalg.vector_norm(rows, ord=p)), rel_tol=1e-8)
    best = factorize_separated(W.dense(), gap, times, p, max_iterations=30).certificate
    assert c.lower <= best.upper * (1 + 1e-9)
    # few buffers lose a third of the optimum at most
    assert best.lower <= c.upper < 1.35 * best.upper
    # the control: made for one step
    once = factorize_buffered(W, 2, p)
    far = sensitivity(once.strategy, Separated(gap, times)).value
    assert c.upper < 0.98 * far * once.certificate.upper


def test_larger_problems_begin_with_smaller_ones(monkeypatch):
    monkeypatch.setattr(search, "SEPARATED", FEW)
    whole = factorize_buffered(RunningSums(40), 1, 2.0, gap=10, times=4).certificate.upper
    monkeypatch.setattr(search, "SEPARATED", replace(FEW, whole=20))
    begun = factorize_buffered(RunningSums(40), 1, 2.0, gap=10, times=4).certificate.upper
    # a search that begins with a smaller problem ends as low
    assert begun < 1.03 * whole


def recalled_strategies():
    """40 random ones of up to 40 steps, the last pass whole or not, A up to 0.6."""
    generator = keyed_generator(b"recalled")
    for case in range(40):
        n = 2 + case
        buffered = random_strategy(generator, 1 + case % 4, n)
        drawn = torch.rand(1 + case % 5, n, generator=generator).double()
        earlier = 1.2 * drawn - 0.6
        yield RecalledStrategy(buffered, 1 + case % 7, earlier)


def classes(C, period):
    """abs(C^T C) of each class, summed, in the widest floats; C a numpy matrix."""
    gram = C.T @ C
    return [abs(gram[i::period, i::period]).sum() for i in range(min(period, len(C)))]


def wide(C):
    """C itself in the widest floats, by forward substitution."""
    n = C.steps
    poles, zeros, D1, D2 = [x.numpy().astype(np.longdouble) for x in C.buffered.tensors]
    # its first column
    T = np.zeros(n, np.longdouble)
    T[0] = 1
    for a, pole in enumerate(poles):
        w = np.prod(pole - zeros) / np.prod(np.delete(pole - poles, a))
        T[1:] += w * pole ** np.arange(n - 1)
    exact = np.zeros((n, n), np.longdouble)
    for t in range(n):
        exact[t, : t + 1] = D1[t] * T[t::-1] * D2[: t + 1]
        for m, row in enumerate(C.earlier.numpy().astype(np.longdouble), 1):
            if t >= m * C.period:
                exact[t] -= row[t] * exact[t - m * C.period]
    return exact


def test_guarantee_no_class_moves_further_than_is_said():
    for C in recalled_strategies():
        exact = wide(C)
        missed = abs(C.dense().numpy() - exact).max()
        assert missed < 1e-12 * abs(exact).max()
        products, rounding = C.class_products()
        for i, truth in enumerate(classes(exact, C.period)):
            off = abs(float(products[i].abs().sum() - truth))
            assert off <= float(rounding[i])
            # the rounding that is stated covers the error
            assert rounding[i] < 1e-10 * max(truth, float(rounding.max()))
        if C.steps > 2 * C.period:
            # the control: A counts
            plain = RecalledStrategy(C.buffered, C.period, torch.zeros_like(C.earlier))
            # negative control: the plain products differ
            assert not torch.allclose(plain.class_products()[0], products, rtol=1e-3)
        shorter = C.leading(C.steps - 1)
        assert torch.allclose(shorter.dense(), C.dense()[:-1, :-1])


@pytest.mark.parametrize(
    ("n", "period", "buffers", "p", "most"),
    [
        (30, 11, 2, 2.0, 1.03),  # the last pass is a short one
        (24, 8, 2, math.inf, 1.04),
        pytest.param(512, 64, 4, 2.0, 1.007, marks=pytest.mark.slow),
    ],
)
def test_buffers_come_near_the_bound_for_every_strategy(monkeypatch, n, period, buffers, p, most):
    if n < 100:
        monkeypatch.setattr(search, "RECALLED", RECALLED)
        monkeypatch.setattr(search, "PASSES", PASSES)
    C, rows = recalled_passes(n, period, buffers, p)
    products, rounding = C.class_products()
    assert (products.abs().sum((1, 2)) + rounding).max() <= 1 + 1e-8
    W = RunningSums(n)
    best = factorize_epochs(W.dense(), period, p, 1e-4).certificate
    least = float(best.lower)
    error = float(torch.linalg.vector_norm(rows, ord=p))
    assert least <= error <= most * least
    # the control: no noise is drawn again
    _, rows = buffered_passes(W, period, buffers, p)
    assert error < 0.97 * float(torch.linalg.vector_norm(rows, ord=p))
