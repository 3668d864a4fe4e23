"""Buffers and noise that is drawn again: what classes move and rows add up against matrices and wider floats."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchdp.factorization import BufferedStrategy, RecalledStrategy, factorize_epochs
from torchdp.factorization.streams import search
from torchdp.factorization.streams.buffered import recalled_squares
from torchdp.factorization.streams.search import buffered_passes, recalled_passes
from torchdp.randomness import keyed_generator
from torchdp.workloads import RunningSums


def strategies():
    """40 random ones of up to 40 steps, the last pass whole or not, A up to 0.6."""
    generator = keyed_generator(b"recalled")
    for case in range(40):
        n, buffers, period = 2 + case, 1 + case % 4, 1 + case % 7
        places, before, after = (torch.rand(k, generator=generator).double() + 0.02 for k in (2 * buffers, n, n))
        places = places.sort(descending=True).values / 1.03
        earlier = 1.2 * torch.rand(1 + case % 5, n, generator=generator).double() - 0.6
        yield RecalledStrategy(BufferedStrategy(places[0::2], places[1::2], before, after), period, earlier)


def classes(C, period):
    """abs(C^T C) of each class, summed, in the widest floats; C a numpy matrix."""
    gram = C.T @ C
    return [abs(gram[i::period, i::period]).sum() for i in range(min(period, len(C)))]


def wide(C):
    """C itself in the widest floats, by forward substitution."""
    n, inner = C.steps, C.buffered
    l, q, D1, D2 = (x.numpy().astype(np.longdouble) for x in inner.tensors)
    w = [np.prod(l[a] - q) / np.prod(np.delete(l[a] - l, a)) for a in range(len(l))]
    found = np.zeros((n, n), np.longdouble)
    for t in range(n):
        for s in range(t + 1):
            found[t, s] = D1[t] * (1 if s == t else sum(w * l ** (t - s - 1))) * D2[s]
        for m, row in enumerate(C.earlier.numpy().astype(np.longdouble), 1):
            if t >= m * C.period:
                found[t] -= row[t] * found[t - m * C.period]
    return found


def test_guarantee_no_class_moves_further_than_is_said():
    for C in strategies():
        exact = wide(C)
        assert abs(C.dense().numpy() - exact).max() < 1e-12 * abs(exact).max()
        products, rounding = C.class_products()
        for i, truth in enumerate(classes(exact, C.period)):
            off = abs(float(products[i].abs().sum() - truth))
            assert off <= float(rounding[i]) and rounding[i] < 1e-10 * max(truth, float(rounding.max()))
        plain = RecalledStrategy(C.buffered, C.period, torch.zeros_like(C.earlier)).class_products()[0]
        if C.steps > 2 * C.period:
            assert not torch.allclose(plain, products, rtol=1e-3)  # the control: A counts
        shorter = C.leading(C.steps - 1)
        assert torch.allclose(shorter.dense(), C.dense()[:-1, :-1])


def test_row_norms_are_those_of_the_matrix():
    for C in strategies():
        rows = recalled_squares(*C.buffered.tensors, C.classes())
        W = torch.ones(C.steps, C.steps, dtype=torch.float64).tril()
        expected = torch.linalg.solve_triangular(C.dense(), W, upper=False, left=False).square().sum(1)
        assert torch.allclose(rows, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("n", "period", "p", "most"),
    [
        (30, 11, 2.0, 1.03),  # the last pass is a short one
        (24, 8, math.inf, 1.04),
        pytest.param(512, 64, 2.0, 1.007, marks=pytest.mark.slow),
    ],
)
def test_four_buffers_come_near_the_bound_for_every_strategy(monkeypatch, n, period, p, most):
    monkeypatch.setattr(search, "RECALLED", search.RECALLED if n > 100 else replace(search.RECALLED, most=30))
    C, rows = recalled_passes(n, period, 4, p)
    products, rounding = C.class_products()
    assert float((products.abs().sum((1, 2)) + rounding).max()) <= 1 + 1e-8
    W = RunningSums(n)
    least = float(factorize_epochs(W.dense(), period, p, 1e-4).certificate.lower)
    error = float(torch.linalg.vector_norm(rows, ord=p))
    assert least <= error <= most * least
    few = float(torch.linalg.vector_norm(buffered_passes(W, period, 4, p)[1], ord=p))
    assert error < 0.97 * few
