"""The noise's public deviation in each step's gradient, and the plans that curved losses prefer."""

import pytest
import torch
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.training import CorrelatedNoise, Descent, Iterates, choose, standard_errors


@pytest.mark.parametrize("place", [0, -1])
def test_a_run_says_what_noise_is_in_a_gradient_also_when_it_is_resumed(place):
    x = torch.linspace(-1, 1, 60)[:, None]
    choice = choose(Iterates(8, 0.5), 60, 15, epsilon=1.0, delta=1e-4)
    plan = sorted(choice.candidates, key=lambda one: one.name)[place].protocol
    net, loss = nn.Linear(1, 1), nn.functional.mse_loss
    run = plan.start(net, loss, noise=SeededNoise(1))
    secret = run.secret_state()
    assert run.deviation == 0
    for step, expected in enumerate(plan.deviations().tolist()):
        if step == 3:
            run = plan.resume(net, loss, secret, step=step)
        users = next(iter(run))
        run.backward(x[users], 2 * x[users])
        assert run.deviation == pytest.approx(expected)


@pytest.mark.parametrize("place", range(4))
def test_deviations_are_those_of_the_noise(place):
    """Beside C^{-1} itself, and numbers that were drawn; a tenth less is seen."""
    choice = choose(Iterates(12, 0.5), 60, 20, epsilon=2.0, delta=1e-4)
    plan = choice.candidates[place % len(choice.candidates)].protocol
    said = plan.deviations()
    inverse = torch.linalg.inv(plan.strategy.dense())
    torch.testing.assert_close(said, plan.sigma / plan.batch * inverse.norm(dim=1))
    noise = CorrelatedNoise(plan.strategy, 40_000, plan.sigma, noise=SeededNoise(4))
    drawn = torch.stack([noise(torch.zeros(40_000)) for _ in range(12)]).double().std(1) / plan.batch
    assert (drawn / said - 1).abs().max() < 0.02 < (drawn / (0.9 * said) - 1).abs().min()


def test_curved_losses_are_weighed_as_they_are_written_down():
    """Descent on c x^2 / 2 at rate 1, by a loop over steps; what noise adds to it, for every c alike."""
    choice = choose(Descent(6), 60, 10, epsilon=4.0, delta=1e-5)
    for one in choice.candidates:
        C = one.protocol.strategy
        noise, total = torch.linalg.inv(C.dense()), torch.zeros(6, dtype=torch.float64)
        for c in (1.0, 0.5, 0.25):
            x = torch.zeros(6, dtype=torch.float64)
            for t in range(6):
                x = (1 - c) * x + noise[t]
                total[t] += c * x.square().sum()
        torch.testing.assert_close(standard_errors(Descent(6), C), total.sqrt())
        assert one.error == pytest.approx(float((one.protocol.sigma**2 * total).mean().sqrt()))
    assert choice.best is choice.candidates[0].protocol


def test_momentum_and_rates_change_no_share_of_a_curved_loss():
    """c is the share of the way that a step takes: in the long run, momentum's whole effect counted."""
    found = Descent(64, 0.9, learning_rates=[0.5] * 64).curvatures()
    assert list(found) == [2.0**-k for k in range(7)]
    for c, one in found.items():
        assert one.weight_decay * 0.5 / (1 - 0.9) == pytest.approx(c)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_single_steps_are_noisiest_under_plans_that_a_flat_loss_prefers(epsilon):
    """Where a step's own noise counts, DP-SGD is first: what Adam is given, whose error a flat loss does not see."""
    ask = {"users": 1500, "batch": 100, "epsilon": epsilon, "delta": 1e-5}
    flat, curved = (choose(W, **ask) for W in (Iterates(20, 0.9), Descent(20)))
    assert curved.candidates[0].name == "Poisson, independent noise" != flat.candidates[0].name
    own = [float(one.best.deviations().square().mean().sqrt()) for one in (flat, curved)]
    assert own[0] > 1.5 * own[1]
