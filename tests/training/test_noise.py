"""Correlated noise: its law, its privacy, its state."""

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from scipy import stats

from torchdp import factorization, workloads
from torchdp.privacy import Neighbours, gaussian_log_delta, gaussian_sigma
from torchdp.randomness import keyed_generator
from torchdp.training import (
    CorrelatedNoise,
    Epochs,
    Once,
    Separated,
    calibrated_noise,
    causal_strategy,
    iterates,
    sensitivity,
    standard_errors,
)

STEPS, SIZE = 8, 5
W = workloads.prefix(STEPS).dense()
FACTORS = [
    factorization.factorize(W, tol=1e-4),
    factorization.factorize(W, 2.0, tol=1e-4),
    factorization.binary_tree(STEPS),
    factorization.group_algebra(STEPS),
    factorization.normalised_square_root(STEPS),
]
DENSE = causal_strategy(W, FACTORS[0])
BANDED = DENSE.triu(-2)


def key(name=b"noise"):
    return keyed_generator(name)


def make(strategy=DENSE, size=SIZE, sigma=2.0, **options):
    return CorrelatedNoise(strategy, size, sigma, generator=key(), **{"dtype": torch.float64, **options})


def run(noise, steps=STEPS):
    zero = torch.zeros(noise.past.shape[1], dtype=noise.past.dtype)
    return torch.stack([noise(zero) for _ in range(steps)])


@pytest.mark.parametrize("factors", FACTORS)
def test_guarantee_causal_strategy_keeps_the_law_and_no_column_grows(factors):
    C = causal_strategy(W, factors)
    noise = torch.linalg.solve_triangular(C, W, upper=False, left=False)
    torch.testing.assert_close(noise @ noise.mT, factors.left @ factors.left.mT, rtol=0, atol=1e-9)
    assert not C.triu(1).any() and (C.diagonal() > 0).all()
    assert (C.norm(dim=0) <= factors.right.norm(dim=0) + 1e-9).all()
    torch.testing.assert_close(standard_errors(W, C), factors.left.norm(dim=1), rtol=1e-9, atol=0)


def test_a_factorization_that_misses_W_is_calibrated_for_what_it_does():
    """left alone is read: its noise with the exact W, and not right, which here claims half of the sensitivity."""
    C = causal_strategy(W, FACTORS[0].left)
    torch.testing.assert_close(C, DENSE)
    assert sensitivity(C, Once()).value > 0.99 * float(FACTORS[0].sensitivity)
    perturbed = causal_strategy(W, 0.5 * FACTORS[0].left)
    assert math.isclose(sensitivity(perturbed, Once()).value, 2 * sensitivity(C, Once()).value, rel_tol=1e-9)


@pytest.mark.parametrize("strategy", [DENSE, BANDED, torch.eye(STEPS).double(), torch.ones(1, 1).double()])
def test_guarantee_covariance_of_the_noise(strategy):
    """C times the noise is the independent noise of the same key: its covariance is sigma^2 (C^T C)^-1."""
    steps = len(strategy)
    found, independent = run(make(strategy), steps), run(make(torch.eye(steps).double()), steps)
    torch.testing.assert_close(strategy @ found, independent, rtol=0, atol=1e-12)
    torch.testing.assert_close(make(strategy).strategy, strategy, rtol=0, atol=0)
    wrong = strategy + 0.01 * torch.eye(steps)
    assert (wrong @ found - independent).abs().max() > 1e-3


def test_independent_noise_is_normal_of_the_stated_size():
    z = run(make(torch.eye(4).double(), 20_000, 3.0), 4) / 3
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    assert (torch.corrcoef(z) - torch.eye(4)).abs().max() < 0.03
    half = run(make(torch.eye(4).double(), 20_000, 3.0), 4) / 3.1
    assert stats.kstest(half.flatten().numpy(), "norm").pvalue < 1e-3  # a wrong sigma is seen


@pytest.mark.parametrize("pattern", [Once(), Epochs(3), Separated(2, 3)])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_guarantee_all_outputs_together_are_private(pattern, neighbours):
    """Every set of steps of one user: the exact delta of the outputs' two normal laws, from their covariance."""
    bound, epsilon, delta = 0.7, 1.3, 1e-5
    noise = calibrated_noise(
        DENSE,
        SIZE,
        bound=bound,
        epsilon=epsilon,
        delta=delta,
        participation=pattern,
        neighbours=neighbours,
        generator=key(),
    )
    outputs = float(noise.sigma) ** 2 * W @ torch.linalg.inv(DENSE.mT @ DENSE) @ W.mT
    size = bound * (2 if neighbours is Neighbours.REPLACE_ONE else 1)
    farthest = 0.0
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(STEPS), r) for r in (1, 2, 3)):
        if isinstance(pattern, Once) and len(chosen) > 1:
            continue
        if isinstance(pattern, Epochs) and len({t % 3 for t in chosen}) > 1:
            continue
        if isinstance(pattern, Separated) and any(b - a < 2 for a, b in itertools.pairwise(chosen)):
            continue
        shift = size * W[:, list(chosen)].sum(1)  # the same gradient in each of the user's steps
        farthest = max(farthest, float(shift @ torch.linalg.solve(outputs, shift)) ** 0.5)
    log_delta = gaussian_log_delta(1.0, epsilon, farthest)
    assert math.log(delta) - 1e-6 < log_delta <= math.log(delta)  # private, and with no noise to spare
    found = noise.guarantee(bound, delta, pattern, neighbours)
    assert found.exact and 0.999999 * epsilon < found.epsilon <= epsilon and found.neighbours is neighbours
    assert gaussian_log_delta(1.0, epsilon, farthest / 0.999) > math.log(delta)  # a sigma 0.1 % smaller is not
    if not isinstance(pattern, Once):
        once = gaussian_sigma(epsilon, delta, size * sensitivity(DENSE, Once()).value)
        assert gaussian_log_delta(1.0, epsilon, farthest * float(noise.sigma) / once) > math.log(delta)


def test_guarantee_outputs_are_sums_plus_noise():
    totals = torch.randn(STEPS, SIZE, dtype=torch.float64, generator=key(b"totals"))
    one, other = make(), make()
    outputs = torch.stack([one(total) for total in totals])
    torch.testing.assert_close(outputs - totals, run(other), rtol=0, atol=1e-12)


def test_standard_errors_against_the_noise_itself():
    """Monte Carlo over 40 000 coordinates: each output's variance as a z-score."""
    C, weights = BANDED, iterates(STEPS, momentum=0.9)
    outputs = weights @ run(make(C, 40_000))
    predicted = 2.0**2 * standard_errors(weights, C).square()
    z = (outputs.square().mean(1) - predicted) / (predicted * math.sqrt(2 / 40_000))
    assert z.abs().max() < 4
    assert ((outputs.square().mean(1) - 1.1 * predicted) / predicted).abs().min() > 0.05


def test_iterates_are_the_parameters_of_gradient_descent():
    rates, momentum = [0.5, 0.2, 0.1, 0.7], 0.8
    x = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=1.0, momentum=momentum)
    gradients = torch.tensor([1.0, -2.0, 0.5, 3.0])
    path = []
    for rate, gradient in zip(rates, gradients, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        x.grad = gradient[None].clone()
        optimizer.step()
        path.append(-float(x.detach()))
    expected = iterates(4, momentum=momentum, learning_rates=rates).float() @ gradients
    torch.testing.assert_close(torch.tensor(path), expected)
    assert torch.equal(iterates(3), workloads.prefix(3).dense())


@pytest.mark.parametrize(("strategy", "memory"), [(DENSE, STEPS - 1), (BANDED, 2), (torch.eye(STEPS), 0)])
def test_memory_is_bands_minus_one_gradients(strategy, memory):
    assert make(strategy).past.shape == (memory, SIZE)


@pytest.mark.parametrize("strategy", [DENSE, BANDED, torch.eye(STEPS)])
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_the_stream_resumes_exactly(strategy, stop):
    whole = run(make(strategy))
    noise = make(strategy)
    run(noise, stop) if stop else None
    assert set(noise.state_dict()) == {"coefficients", "sigma", "past", "step", "key"}
    stored = io.BytesIO()
    torch.save(noise.state_dict(), stored)
    stored.seek(0)
    fresh = CorrelatedNoise(strategy, SIZE, 1.0, generator=key(b"other"), dtype=torch.float64)
    fresh.load_state_dict(torch.load(stored, weights_only=True))
    for other in (fresh, copy.deepcopy(noise), pickle.loads(pickle.dumps(noise)), noise):
        assert torch.equal(run(other, STEPS - stop), whole[stop:])
        assert int(other.step) == STEPS


def test_a_loaded_state_is_what_the_guarantee_speaks_of():
    noise, other = make(sigma=2.0), make(BANDED.triu(-1) + BANDED.tril(-1), sigma=5.0)
    other = make(sigma=5.0)
    other.load_state_dict(noise.state_dict())
    assert other.guarantee(1.0, 1e-5, Once()) == noise.guarantee(1.0, 1e-5, Once())
    assert other.guarantee(1.0, 1e-5, Once()).epsilon > make(sigma=5.0).guarantee(1.0, 1e-5, Once()).epsilon


def test_another_key_is_another_stream_and_steps_do_not_repeat():
    a, b = run(make(torch.eye(STEPS))), run(CorrelatedNoise(torch.eye(STEPS), SIZE, 2.0, generator=key(b"b")))
    assert len(torch.cat([a.float(), b]).unique()) == 2 * STEPS * SIZE


def test_to_another_dtype():
    noise = make().to(torch.float32)
    assert noise(torch.zeros(SIZE)).dtype == torch.float32
    torch.testing.assert_close(DENSE.float() @ run(make().float()), run(make(torch.eye(STEPS)).float()))
    half = make().half()
    with pytest.raises(TypeError, match="noise must be float32 or float64"):
        half(torch.zeros(SIZE))
    assert int(half.step) == 0


def test_autocast_does_not_touch_the_noise():
    plain = run(make(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run(make(dtype=torch.float32)), plain)


def test_vmap_is_refused_in_words():
    noise = make()
    with pytest.raises(RuntimeError, match="cannot run inside vmap"):
        torch.func.vmap(noise)(torch.zeros(3, SIZE).double())
    assert int(noise.step) == 0


@pytest.mark.filterwarnings("ignore")
def test_compiled_noise_is_the_same_noise():
    noise = make(BANDED)
    step = torch.compile(lambda total: 2 * noise(2 * total), backend="eager")
    outputs = torch.stack([step(torch.zeros(SIZE).double()) for _ in range(STEPS)])
    assert torch.equal(outputs, 2 * run(make(BANDED)))


def test_after_the_last_step():
    noise = make()
    run(noise)
    with pytest.raises(RuntimeError, match="all 8 steps of the strategy are spent"):
        noise(torch.zeros(SIZE))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make()(torch.zeros(SIZE + 1)), ValueError, "total must be a tensor of shape"),
        (lambda: make()(torch.full((SIZE,), math.nan)), ValueError, "total holds NaN"),
        (lambda: make()([0.0] * SIZE), ValueError, "total must be a tensor"),
        (lambda: make(torch.ones(3, 3)), ValueError, "strategy must be one square lower"),
        (lambda: make(torch.ones(3, 3).tril(-1)), ValueError, "strategy must have no 0"),
        (lambda: make(-torch.eye(3)), ValueError, "strategy must have a positive diagonal"),
        (lambda: make(size=0), ValueError, "size must be"),
        (lambda: make(sigma=0.0), ValueError, "sigma must be"),
        (lambda: make(dtype=torch.bfloat16), TypeError, "noise must be float32"),
        (lambda: CorrelatedNoise(DENSE, 2, 1.0, generator=3), TypeError, "generator must be"),
        (lambda: make().guarantee(0.0, 1e-5, Once()), ValueError, "bound must be"),
        (lambda: make().guarantee(1.0, 1e-5, Once(), "add"), TypeError, "neighbours must be"),
        (lambda: causal_strategy(W, W[:, :3]), ValueError, "left must be one"),
        (lambda: causal_strategy(W, torch.ones(STEPS, STEPS)), ValueError, "left must have full row rank"),
        (lambda: causal_strategy(W.mT, W), ValueError, "W must be one square lower"),
        (lambda: standard_errors(W[:, :3], DENSE), ValueError, "W must be one"),
        (lambda: iterates(3, momentum=1.0), ValueError, "momentum must lie"),
        (lambda: iterates(3, learning_rates=[1.0]), ValueError, "learning_rates must hold 3"),
        (lambda: iterates(2, learning_rates=[1.0, 0.0]), ValueError, "learning_rates must be"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
