"""Strategies and workloads as coefficients: the numbers of the matrices that are never formed, and
a million steps.
"""

import math
import sys
from dataclasses import replace

import pytest
import torch

from torchdp.factorization import BandedStrategy, BufferedStrategy, RecalledStrategy
from torchdp.factorization.streams import search
from torchdp.randomness import keyed_generator
from torchdp.training import ONCE, Epochs, Iterates, choose, sensitivity, standard_errors


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.3), (0.8, 0.3)])
@pytest.mark.parametrize("rates", [None, [0.5, 0.2, 0.1, 0.7]])
def test_iterates_are_the_parameters_of_gradient_descent(momentum, decay, rates):
    gradients = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def path(gradients):
        x = torch.full((1,), 7.0, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=1.0, momentum=momentum, weight_decay=decay)
        for rate, gradient in zip(rates or [1.0] * 4, gradients, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            x.grad = gradient[None]
            optimizer.step()
            yield float(x.detach())

    W = Iterates(4, momentum, decay, rates)
    unmoved = torch.tensor([*path(0 * gradients)])
    torch.testing.assert_close(
        unmoved - W.dense() @ gradients, torch.tensor([*path(gradients)]), check_dtype=False
    )
    assert decay or bool((unmoved == 7).all())
    past = (torch.arange(4)[:, None] - torch.arange(3)).clamp_min(0)
    inverse = torch.linalg.inv(W.dense())
    torch.testing.assert_close(W.inverse().tril(), inverse.gather(1, past).tril())
    assert inverse.tril(-3).abs().max() < 1e-12
    if rates is None:
        torch.testing.assert_close(W.first(4), W.dense()[:, 0])


def test_iterates_are_running_sums_unless_they_swing():
    for momentum, decay, rate in (
        (0.0, 0.0, 1.0),
        (0.0, 0.3, 0.5),
        (0.9, 0.0, 0.1),
        (0.9, 0.02, 0.1),
        (0.5, 0.1, 0.3),
    ):
        for rates in [rate] * 50, torch.linspace(rate, rate / 9, 50):
            W = Iterates(50, momentum, decay, rates)
            if W.constant or not decay:
                scale, S = W.sums()
                torch.testing.assert_close(scale * S.dense(), W.dense(), rtol=1e-11, atol=0)
    for swings in (
        Iterates(50, 0.9, 0.03),
        Iterates(50, 0.0, 1.0),
        Iterates(2, 0.9, 0.1, [1.0, 0.5]),
    ):
        assert swings.sums() is None


@pytest.mark.parametrize(("steps", "bands"), [(1, 1), (7, 3), (5, 9), (40, 1), (60, 9)])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
def test_errors_and_norms_are_those_of_the_matrices(monkeypatch, steps, bands, momentum, decay):
    monkeypatch.setattr("torchdp.factorization.solvers.banded_solver.AT_ONCE", 16)
    drawn = torch.rand(steps, generator=keyed_generator(b"rates"), dtype=torch.float64)
    row = BandedStrategy(torch.linspace(1, 0.1, bands, dtype=torch.float64)[None], steps)
    for C in (row, BandedStrategy.of(row.dense() * (1 + drawn))):
        for rates in (None, 0.2 + drawn):
            W = Iterates(steps, momentum, decay, rates)
            expected = standard_errors(W.dense(), C.dense())
            torch.testing.assert_close(standard_errors(W, C), expected, rtol=1e-9, atol=0)
            torch.testing.assert_close(standard_errors(W, C.dense()), expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(C.column_norms()[0], C.dense().norm(dim=0))
        torch.testing.assert_close(BandedStrategy.of(C.dense()).dense(), C.dense(), rtol=0, atol=0)
        assert BandedStrategy.of(C.dense()).bands == min(bands, steps)


@pytest.mark.parametrize(
    "W", [Iterates(240), Iterates(240, 0.9, 0.0, torch.linspace(1, 0.01, 240))]
)
def test_a_fixed_order_of_long_passes_has_buffers(W, monkeypatch):
    """2 passes of 120 steps; under prefix sums noise is drawn again."""
    monkeypatch.setattr(search, "RECALLED", replace(search.RECALLED, most=10))
    module = sys.modules[choose.__module__]
    for name, value in {"DENSE": 100, "MOST_BANDS": 4, "EVALUATIONS": 6}.items():
        monkeypatch.setattr(module, name, value)
    choice = choose(W, 120, 1, epsilon=8.0, delta=1e-5)
    plan = next(one.protocol for one in choice.candidates if one.name == "fixed order")
    few = plan.strategy if W.momentum else plan.strategy.buffered
    assert isinstance(few, BufferedStrategy)
    assert len(few.poles) == 4
    assert str(plan.strategy) in str(plan)
    assert plan.digest() != replace(plan, strategy=few.leading(239)).digest()
    assert math.isclose(sensitivity(plan.strategy, Epochs(120)).value, 1, rel_tol=1e-9)
    errors = standard_errors(W, plan.strategy) * plan.sigma
    torch.testing.assert_close(errors, plan.standard_errors, rtol=1e-6, atol=0)
    run = plan.start(torch.nn.Linear(1, 1), torch.nn.functional.mse_loss)
    users = next(iter(run))
    run.backward(torch.zeros(len(users), 1), torch.zeros(len(users), 1))
    assert 0 < run.spent.epsilon < 8.0001


def test_guarantee_rounding_of_a_formed_inverse_is_bounded_and_refused_where_it_hides_a_user():
    n = 30
    generator = torch.Generator().manual_seed(0)
    powers = torch.stack([torch.full((n,), 3.0**m, dtype=torch.float64) for m in range(1, n)])
    pole = torch.tensor([0.9]).double()
    zero = torch.tensor([0.4]).double()
    ones = torch.ones(n).double()
    for _ in range(6):
        before = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
        C = RecalledStrategy(BufferedStrategy(pole, zero, before, ones), 1, powers)
        exact = C.buffered.dense()
        # A^{-1} has two diagonals
        exact[1:] -= 3 * exact[:-1].clone()
        found, rounding = C.recurrence.dense()
        assert ((found - exact).norm(dim=0) <= rounding + 1e-12).all()
        with pytest.raises(ValueError, match="rounding does not drown"):
            sensitivity(C, ONCE)
