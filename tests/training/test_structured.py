"""Strategies and workloads as coefficients: the numbers of the matrices that are never formed."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from laws import float64, generator, uniform
from trained import named

from torchdp.factorization import BandedStrategy, BufferedStrategy, RecalledStrategy
from torchdp.factorization.streams import search
from torchdp.training import ONCE, Epochs, Iterates, choose, sensitivity, standard_errors


def descended(gradients, rates, **options):
    """The parameter after each step of torch's own descent from 7."""
    x = torch.full((1,), 7.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=1.0, **options)
    path = []
    for rate, gradient in zip(rates, gradients, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        x.grad = gradient[None]
        optimizer.step()
        path.append(float(x.detach()))
    return float64(path)


@pytest.mark.parametrize(
    ("momentum", "decay"),
    [
        (0.0, 0.0),
        (0.8, 0.0),
        (0.0, 0.3),
        (0.8, 0.3),
    ],
)
@pytest.mark.parametrize("rates", [None, [0.5, 0.2, 0.1, 0.7]])
def test_iterates_are_the_parameters_of_gradient_descent(momentum, decay, rates):
    gradients = float64([1.0, -2.0, 0.5, 3.0])
    W = Iterates(4, momentum, decay, rates)
    options = {"rates": rates or [1.0] * 4, "momentum": momentum, "weight_decay": decay}
    unmoved = descended(0 * gradients, **options)
    moved = descended(gradients, **options)
    torch.testing.assert_close(unmoved - W.dense() @ gradients, moved)
    # Without gradients nothing moves but by decay.
    if not decay:
        assert (unmoved == 7).all()
    # W^{-1} has three diagonals, one a column.
    inverse = torch.linalg.inv(W.dense())
    steps = torch.arange(4)[:, None]
    columns = (steps - torch.arange(3)).clamp_min(0)
    torch.testing.assert_close(W.inverse().tril(), inverse.gather(1, columns).tril())
    assert inverse.tril(-3).abs().max() < 1e-12
    if rates is None:
        torch.testing.assert_close(W.first(4), W.dense()[:, 0])


@pytest.mark.parametrize(
    ("momentum", "decay", "rate"),
    [
        (0.0, 0.0, 1.0),
        (0.0, 0.3, 0.5),
        (0.9, 0.0, 0.1),
        (0.9, 0.02, 0.1),
        (0.5, 0.1, 0.3),
    ],
)
def test_iterates_are_running_sums_unless_they_swing(momentum, decay, rate):
    for rates in [rate] * 50, torch.linspace(rate, rate / 9, 50):
        W = Iterates(50, momentum, decay, rates)
        if W.constant or not decay:
            scale, S = W.sums()
            torch.testing.assert_close(scale * S.dense(), W.dense(), rtol=1e-11, atol=0)


@pytest.mark.parametrize(
    "W", [Iterates(50, 0.9, 0.03), Iterates(50, 0.0, 1.0), Iterates(2, 0.9, 0.1, [1.0, 0.5])]
)
def test_iterates_that_swing_are_no_running_sums(W):
    assert W.sums() is None


@pytest.mark.parametrize(
    ("steps", "bands"),
    [
        (1, 1),
        (7, 3),
        (5, 9),
        (40, 1),
        (60, 9),
    ],
)
@pytest.mark.parametrize(
    ("momentum", "decay"),
    [
        (0.0, 0.0),
        (0.9, 0.0),
        (0.5, 0.1),
    ],
)
def test_errors_and_norms_are_those_of_the_matrices(monkeypatch, steps, bands, momentum, decay):
    monkeypatch.setattr("torchdp.factorization.solvers.banded_solver.AT_ONCE", 16)
    drawn = uniform(steps, name=b"rates")
    row = BandedStrategy(torch.linspace(1, 0.1, bands, dtype=torch.float64)[None], steps)
    for C in (row, BandedStrategy.of(row.dense() * (1 + drawn))):
        dense = C.dense()
        for rates in (None, 0.2 + drawn):
            W = Iterates(steps, momentum, decay, rates)
            expected = standard_errors(W.dense(), dense)
            torch.testing.assert_close(standard_errors(W, C), expected, rtol=1e-9, atol=0)
            torch.testing.assert_close(standard_errors(W, dense), expected, rtol=1e-12, atol=0)
        # Of which a user moves one.
        torch.testing.assert_close(C.column_norms()[0], dense.norm(dim=0))
        again = BandedStrategy.of(dense)
        assert torch.equal(again.dense(), dense)
        assert again.bands == min(bands, steps)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_fixed_order_of_long_passes_has_buffers(momentum, monkeypatch):
    """2 passes of 60 steps; under prefix sums noise is drawn again."""
    monkeypatch.setattr(search, "RECALLED", replace(search.RECALLED, most=1))
    module = sys.modules[choose.__module__]
    for name, value in {"DENSE": 50, "MOST_BANDS": 4, "EVALUATIONS": 6}.items():
        monkeypatch.setattr(module, name, value)
    rates = torch.linspace(1, 0.01, 120) if momentum else None
    W = Iterates(120, momentum, 0.0, rates)
    plan = named(choose(W, 60, 1, epsilon=1.0, delta=1e-5))["fixed order"]
    few = plan.strategy if momentum else plan.strategy.buffered
    assert isinstance(few, BufferedStrategy)
    assert len(few.poles) == 4
    assert str(plan.strategy) in str(plan)
    assert plan.digest() != replace(plan, strategy=few.leading(119)).digest()
    # What a user moves is the unit of the noise.
    assert math.isclose(sensitivity(plan.strategy, Epochs(60)).value, 1, rel_tol=1e-9)
    errors = standard_errors(W, plan.strategy) * plan.sigma
    torch.testing.assert_close(errors, plan.standard_errors, rtol=1e-6, atol=0)
    run = plan.start(torch.nn.Linear(1, 1), torch.nn.functional.mse_loss)
    zeros = torch.zeros(len(next(iter(run))), 1)
    run.backward(zeros, zeros)
    assert 0 < run.spent.epsilon < 1.0001


def test_guarantee_rounding_of_a_formed_inverse_is_bounded_and_refused_where_it_hides_a_user():
    n = 30
    g = generator()
    powers = torch.stack([torch.full((n,), 3.0**m, dtype=torch.float64) for m in range(1, n)])
    ones = torch.ones(n).double()
    for _ in range(6):
        before = torch.rand(n, generator=g, dtype=torch.float64) + 0.5
        buffers = BufferedStrategy(float64([0.9]), float64([0.4]), before, ones)
        C = RecalledStrategy(buffers, 1, powers)
        # A^{-1}, of the powers of 3, has two diagonals.
        exact = buffers.dense()
        exact[1:] -= 3 * exact[:-1].clone()
        found, rounding = C.recurrence.dense()
        off = (found - exact).norm(dim=0)
        assert (off <= rounding + 1e-12).all()
        with pytest.raises(ValueError, match="rounding does not drown"):
            sensitivity(C, ONCE)
