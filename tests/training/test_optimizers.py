"""PrivateAdam beside Adam written down for single numbers; the noise's public variance; curved losses."""

import copy
import math

import pytest
import torch
from torch import nn

from torchdp.noise import SeededNoise
from torchdp.training import CorrelatedNoise, Descent, Iterates, PrivateAdam, choose, standard_errors


class Noisy:
    def __init__(self, deviation=0.0):
        self.deviation = deviation


def gradients(steps, shapes, dtype):
    g = torch.Generator().manual_seed(1)
    return [[torch.randn(shape, generator=g, dtype=dtype) for shape in shapes] for _ in range(steps)]


def stepped(optimizer, parameters, run, g, deviations):
    for each, run.deviation in zip(g, deviations, strict=True):
        for p, part in zip(parameters, each, strict=True):
            p.grad = part.to(p.dtype)
        optimizer.step()


def by_hand(x, g, deviations, rate, betas, decay, floor):
    """One number, in Python's floats."""
    (b1, b2), m, v, u = betas, 0.0, 0.0, 0.0
    for t, (one, tau) in enumerate(zip(g, deviations, strict=True), 1):
        m, v, u = b1 * m + (1 - b1) * one, b2 * v + (1 - b2) * one**2, b2 * u + (1 - b2) * tau**2
        kept, noise = v / (1 - b2**t), u / (1 - b2**t)
        x = x * (1 - rate * decay) - rate * m / (1 - b1**t) / (
            math.sqrt(max(kept - noise, floor**2 * noise)) + 1e-8
        )
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_number_moves_as_written_down_and_groups_have_their_own_options(dtype):
    shapes, deviations = [(3, 2), (), (4,)], [0.9, 0.2, 0.0, 1.4, 0.9]
    g = gradients(5, shapes, dtype)
    parameters = [torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    options = [{"lr": 0.1}, {"lr": 0.03, "betas": (0.5, 0.7), "weight_decay": 0.4, "floor": 0.6}]
    groups = [{"params": parameters[:2], **options[0]}, {"params": parameters[2:], **options[1]}]
    run = Noisy()
    stepped(PrivateAdam(groups, run), parameters, run, g, deviations)
    for i, p in enumerate(parameters):
        own = {"betas": (0.9, 0.999), "weight_decay": 0.0, "floor": 1.0} | options[i == 2]
        for place, found in enumerate(p.detach().flatten().tolist()):
            seen = [float(each[i].flatten()[place]) for each in g]
            wanted = by_hand(1.0, seen, deviations, own["lr"], own["betas"], own["weight_decay"], own["floor"])
            assert found == pytest.approx(wanted, rel=2e-5 if dtype == torch.float32 else 1e-12)


def test_a_parameter_that_is_trained_later_has_steps_of_its_own():
    g, deviations = gradients(8, [(), ()], torch.float64), [0.9, 0.2, 0.1, 1.4, 0.9, 0.3, 0.3, 0.1]
    first, late = (torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    run = Noisy()
    optimizer = PrivateAdam([first, late], run, lr=0.1)
    stepped(optimizer, [first], run, [each[:1] for each in g[:5]], deviations[:5])
    stepped(optimizer, [first, late], run, g[5:], deviations[5:])
    for p, begun in ((first, 0), (late, 5)):
        seen = [float(each[bool(begun)]) for each in g[begun:]]
        wanted = by_hand(1.0, seen, deviations[begun:], 0.1, (0.9, 0.999), 0.0, 1.0)
        assert float(p.detach()) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_half_precision_are_kept_in_float32_also_when_they_are_loaded(dtype):
    """Their squares are 0 in float16, and .999 of a number of bfloat16 is the number."""
    g = [[1e-4 * part for part in each] for each in gradients(40, [(50,)], torch.float32)]
    ends, run = [], Noisy()
    for kind, stop in ((dtype, 40), (dtype, 17), (torch.float32, 40)):
        p = torch.zeros(50, dtype=kind, requires_grad=True)
        optimizer = PrivateAdam([p], run, lr=0.01)
        stepped(optimizer, [p], run, g[:stop], [1e-5] * stop)
        again = PrivateAdam([p], run)
        again.load_state_dict(optimizer.state_dict())
        stepped(again, [p], run, g[stop:], [1e-5] * (40 - stop))
        ends.append(p.detach().float())
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=0.05, atol=2e-3)


def test_without_noise_it_is_torchs_own():
    g, deviations = gradients(6, [(5,), (2, 3)], torch.float64), [0.0] * 6
    pairs = []
    for make in (lambda p: PrivateAdam(p, Noisy(), lr=0.1, weight_decay=0.2),
                 lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2)):  # fmt: skip
        parameters = [torch.ones(5, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64), torch.ones(2)]
        pairs.append([p.requires_grad_() for p in parameters])
        stepped(make(pairs[-1]), pairs[-1][:2], Noisy(), g, deviations)  # the last one has no gradient
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", [0, -1])
def test_a_run_says_what_noise_is_in_a_gradient_and_a_resumed_one_trains_on(place, tmp_path):
    x = torch.linspace(-1, 1, 60)[:, None]
    choice = choose(Iterates(8, 0.5), 60, 15, epsilon=1.0, delta=1e-4)
    plan = sorted(choice.candidates, key=lambda one: one.name)[place].protocol
    loss, net = nn.functional.mse_loss, nn.Linear(1, 1)
    start = copy.deepcopy(net.state_dict())
    ends = []
    for stop in (8, 3):
        net.load_state_dict(start)
        run = plan.start(net, loss, noise=SeededNoise(1))
        optimizer, secret = PrivateAdam(net.parameters(), run, lr=0.1), run.secret_state()
        assert run.deviation == 0
        for users in run:
            run.backward(x[users], 2 * x[users])
            optimizer.step()
            assert run.deviation == pytest.approx(float(plan.deviations()[run.step - 1]))
            if run.step == stop < 8:
                torch.save((net.state_dict(), optimizer.state_dict(), run.state_dict()), tmp_path / "kept")
                weights, moments, state = torch.load(tmp_path / "kept", weights_only=True)
                net = nn.Linear(1, 1)
                net.load_state_dict(weights)
                run = plan.resume(net, loss, secret, step=state["step"])
                optimizer = PrivateAdam(net.parameters(), run, lr=0.1)
                optimizer.load_state_dict(moments)
                for rest in run:
                    run.backward(x[rest], 2 * x[rest])
                    optimizer.step()
                break
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    torch.testing.assert_close(*ends, rtol=0, atol=0)


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
