"""Noise from a strategy of a few buffers: the dense strategy's numbers, its state and its guarantee."""

import math

import pytest
import torch

from torchdp.factorization import factorize_buffered
from torchdp.noise import SeededNoise
from torchdp.training import CorrelatedNoise, Epochs, Once, Separated, calibrated_noise, sensitivity
from torchdp.workloads import RunningSums

STEPS, SIZE = 40, 3


@pytest.fixture(scope="module")
def found():
    return factorize_buffered(RunningSums(STEPS), 3, 2.0)


def make(strategy, dtype=torch.float64, seed=1):
    return CorrelatedNoise(strategy, SIZE, 2.0, noise=SeededNoise(seed), dtype=dtype)


def run(noise, steps=STEPS):
    return torch.stack([noise(torch.zeros(SIZE, dtype=torch.float64)) for _ in range(steps)])


def test_noise_is_that_of_the_dense_strategy(found):
    dense = run(make(found.strategy.dense()))
    assert torch.allclose(run(make(found.strategy)), dense, rtol=1e-9, atol=1e-9)
    assert torch.allclose(run(make(found.strategy, torch.float32)).double(), dense, atol=1e-4)
    assert not torch.allclose(run(make(found.strategy, seed=2)), dense, atol=0.1)
    assert make(found.strategy).secret_state()["past"].shape == (3, SIZE)


def test_errors_are_as_predicted(found):
    noise = CorrelatedNoise(found.strategy, 4000, 1.0, noise=SeededNoise(3), dtype=torch.float64)
    sums = torch.stack([noise(torch.zeros(4000)) for _ in range(STEPS)]).cumsum(0)
    z = (sums.square().mean(1) / found.row_norms**2 - 1) * math.sqrt(2000)
    assert z.abs().max() < 4.5
    assert (z + 0.15 * math.sqrt(2000)).abs().max() > 4.5  # the control: 15 % are seen


def test_the_secret_state_resumes_the_stream(found):
    whole, noise = run(make(found.strategy)), make(found.strategy)
    first = run(noise, 15)
    state = noise.secret_state()
    for fresh in (make(found.strategy, seed=6), make(torch.eye(3), seed=7)):
        fresh.load_secret_state(state)
        assert torch.equal(torch.cat([first, run(fresh, STEPS - 15)]), whole)
    for wrong in ({"buffers": torch.zeros(3, 3)}, {"past": state["past"][:1]}):
        with pytest.raises(ValueError, match=r"buffers|past"):
            make(found.strategy).load_secret_state({**state, **wrong})


@pytest.mark.parametrize("user", [Once(), Epochs(20), Separated(10, 3)])
def test_guarantee_is_that_of_the_dense_strategy(found, user):
    options = {"bound": 0.7, "epsilon": 1.5, "delta": 1e-6, "participation": user}
    noise, dense = (calibrated_noise(C, SIZE, **options) for C in (found.strategy, found.strategy.dense()))
    assert math.isclose(noise.sigma, dense.sigma, rel_tol=1e-9)
    promise = noise.guarantee(0.7, 1e-6, user)
    assert promise.epsilon <= 1.5 and promise.exact == dense.guarantee(0.7, 1e-6, user).exact
    assert sensitivity(found.strategy, user).value >= float(found.strategy.dense().norm(dim=0).max())


def test_a_long_run_holds_no_square_matrix():
    strategy = factorize_buffered(RunningSums(64), 1, 2.0).strategy
    long = type(strategy)(strategy.poles, strategy.zeros, torch.ones(10**6), torch.ones(10**6))
    found = sensitivity(long, Once())
    noise = CorrelatedNoise(long, SIZE, found.value, noise=SeededNoise(1))
    assert noise(torch.zeros(SIZE)).shape == (SIZE,)
    assert noise.guarantee(1.0, 1e-6, Once()).epsilon > 0
