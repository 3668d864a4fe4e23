"""Correlated noise: its law, its privacy, its state."""

import copy
import io
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from laws import normal
from rules import permitted
from torch.fx.experimental.proxy_tensor import make_fx

from torchdp import factorization, workloads
from torchdp.noise import Noise, SeededNoise
from torchdp.privacy import Neighbours, gaussian_log_delta, gaussian_sigma
from torchdp.training import (
    ONCE,
    CorrelatedNoise,
    Epochs,
    Separated,
    calibrated_noise,
    causal_strategy,
    sensitivity,
    standard_errors,
)

STEPS = 8
SIZE = 5
W = workloads.prefix(STEPS).dense()
FACTORS = [
    factorization.factorize(W, tol=1e-4),
    factorization.factorize(W, 2.0, tol=1e-4),
    factorization.square_root(STEPS),
]
DENSE = causal_strategy(W, FACTORS[0])
ZERO = torch.zeros(SIZE, dtype=torch.float64)


def make(strategy=DENSE, seed=1, dtype=torch.float64):
    return CorrelatedNoise(strategy, SIZE, 2.0, noise=SeededNoise(seed), dtype=dtype)


def run(noise, steps=STEPS):
    return torch.stack([noise(ZERO) for _ in range(steps)])


@pytest.mark.parametrize("factors", FACTORS)
def test_guarantee_causal_strategy_keeps_the_law_and_no_column_grows(factors):
    C = causal_strategy(W, factors)
    noise = torch.linalg.solve_triangular(C, W, upper=False, left=False)
    # The covariances are those of left and normals.
    torch.testing.assert_close(noise @ noise.mT, factors.left @ factors.left.mT, rtol=0, atol=1e-9)
    assert not C.triu(1).any()
    assert (C.diagonal() > 0).all()
    assert (C.norm(dim=0) <= factors.right.norm(dim=0) + 1e-9).all()
    torch.testing.assert_close(standard_errors(W, C), factors.left.norm(dim=1), rtol=1e-9, atol=0)


def test_a_factorization_that_misses_W_is_calibrated_for_what_it_does():
    """left alone is read: its noise with the exact W, and not right.

    right here claims half of the sensitivity.
    """
    C = causal_strategy(W, FACTORS[0].left)
    torch.testing.assert_close(C, DENSE)
    moved = sensitivity(C, ONCE).value
    assert moved > 0.99 * float(FACTORS[0].sensitivity)
    halved = causal_strategy(W, 0.5 * FACTORS[0].left)
    assert math.isclose(sensitivity(halved, ONCE).value, 2 * moved, rel_tol=1e-9)


@pytest.mark.parametrize("rule", [ONCE, Epochs(3), Separated(2, 3)])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_guarantee_all_outputs_together_are_private(rule, neighbours):
    """Every set of steps of one user: the exact delta of the outputs' two normal distributions."""
    bound = 0.7
    epsilon = 1.3
    delta = 1e-5
    budget = {"bound": bound, "epsilon": epsilon, "delta": delta}
    noise = calibrated_noise(DENSE, SIZE, **budget, participation=rule, neighbours=neighbours)
    covariance = float(noise.sigma) ** 2 * W @ torch.linalg.inv(DENSE.mT @ DENSE) @ W.mT
    size = bound * (2 if neighbours is Neighbours.REPLACE_ONE else 1)
    farthest = 0.0
    for chosen in permitted(rule, STEPS):
        # The same gradient in each of the user's steps.
        shift = size * W[:, chosen].sum(1)
        squared = shift @ torch.linalg.solve(covariance, shift)
        farthest = max(farthest, float(squared) ** 0.5)
    # Private, and with no noise to spare: a sigma .1 % smaller is not.
    log_delta = gaussian_log_delta(1.0, epsilon, farthest)
    assert math.log(delta) - 1e-6 < log_delta <= math.log(delta)
    assert gaussian_log_delta(1.0, epsilon, farthest / 0.999) > math.log(delta)
    found = noise.guarantee(bound, delta, rule, neighbours)
    assert found.exact
    assert 0.999999 * epsilon < found.epsilon <= epsilon
    assert found.neighbours is neighbours
    if rule != ONCE:
        # Noise for one participation does not serve several.
        once = gaussian_sigma(epsilon, delta, size * sensitivity(DENSE, ONCE).value)
        farther = farthest * float(noise.sigma) / once
        assert gaussian_log_delta(1.0, epsilon, farther) > math.log(delta)


def test_the_state_dict_holds_no_secret_and_alone_draws_no_noise():
    noise = make()
    parent = torch.nn.ModuleDict({"noise": make(seed=2)})
    state = noise.secret_state()
    run(noise, 3)
    assert noise.state_dict() == {"_extra_state": {"step": 3}}
    assert not list(noise.buffers())
    assert not list(noise.parameters())
    file = io.BytesIO()
    torch.save(noise.state_dict(), file)
    past = noise.secret_state()["past"].numpy().tobytes()
    for secret in (bytes(state["key"].tolist()), past):
        assert secret[:8] not in file.getvalue()
    parent.load_state_dict({"noise._extra_state": {"step": 3}})
    with pytest.raises(RuntimeError, match="load_secret_state first"):
        parent["noise"](ZERO)
    with pytest.raises(ValueError, match="the secret state is at step 0, the state dict at 3"):
        parent["noise"].load_secret_state(state)
    parent["noise"].load_secret_state(noise.secret_state())
    # From there on it is the same stream.
    assert torch.equal(run(parent["noise"], 5), run(noise, 5))


def test_a_stream_does_not_go_back():
    noise = make()
    before = noise.secret_state()
    public = noise.state_dict()
    run(noise, 2)
    with pytest.raises(ValueError, match="its noise would repeat"):
        noise.load_secret_state(before)
    with pytest.raises(RuntimeError, match="noise would repeat"):
        noise.load_state_dict(public)
    assert noise.step == 2
    # That of another stream is no way back.
    other = make(seed=2)
    run(other, 3)
    other.load_secret_state(before)
    assert other.step == 0


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda n: copy.deepcopy(torch.nn.ModuleList([n]))],
)
def test_copies_and_pickles_are_refused(copied):
    with pytest.raises(TypeError, match="move it by secret_state"):
        copied(make())


def test_a_shallow_copy_by_force_takes_turns():
    """As DataParallel copies modules: the copies share one stream, whose noise is not repeated."""
    noise = make()
    forced = object.__new__(CorrelatedNoise)
    forced.__dict__ = noise.__dict__.copy()
    assert not torch.equal(noise(ZERO), forced(ZERO))
    assert noise.step == forced.step == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_nothing():
    noise = make()
    child = os.fork()
    if not child:
        try:
            noise(ZERO)
        except RuntimeError as error:
            os._exit(7 if "before a fork" in str(error) else 8)
        os._exit(9)
    # Both would draw one step's noise, for two sums.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    noise(ZERO)


def test_threads_take_turns():
    noise = make()
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: noise(ZERO), range(STEPS)))
    for row in run(make()):
        assert any(torch.equal(row, found) for found in outputs)


def test_another_key_is_another_stream_and_steps_do_not_repeat():
    outputs = []
    for source in (SeededNoise(1), SeededNoise(2), None, Noise()):
        noise = CorrelatedNoise(torch.eye(STEPS), SIZE, 2.0, noise=source, dtype=torch.float64)
        outputs.append(run(noise))
    assert len(torch.cat(outputs).unique()) == 4 * STEPS * SIZE


def test_casts_and_autocast_move_no_number():
    noise = make()
    parent = torch.nn.ModuleList([make()])
    # A key or a past in half precision would be other noise.
    parent.half().float().bfloat16().to(torch.float16).to_empty(device="cpu")
    assert torch.equal(noise.strategy.dense(), parent[0].strategy.dense())
    assert torch.equal(run(parent[0]), run(noise))
    assert parent[0].sigma == noise.sigma
    plain = run(make(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run(make(dtype=torch.float32)), plain)
    assert make(dtype=torch.float32)(ZERO.half()).dtype == torch.float32
    with pytest.raises(RuntimeError, match="meta device"):
        make().to("meta")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "record",
    [
        lambda noise: torch.func.vmap(noise)(ZERO.expand(3, SIZE)),
        lambda noise: torch.func.grad(lambda x: noise(x).sum())(ZERO),
        lambda noise: torch.jit.trace(noise, ZERO),
        lambda noise: make_fx(noise)(ZERO),
        lambda noise: make_fx(noise, tracing_mode="fake")(ZERO),
    ],
)
def test_what_would_repeat_a_step_is_refused_in_words(record):
    noise = make()
    with pytest.raises(RuntimeError, match="cannot run inside vmap"):
        record(noise)
    assert noise.step == 0


@pytest.mark.filterwarnings("ignore")
def test_compiled_noise_is_the_same_noise_and_no_part_of_it_is_compiled():
    noise = make()
    operations = set()

    def backend(graph, _):
        calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
        operations.update(str(node.target) for node in calls)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda total: 2 * noise(2 * total), backend=backend)
    outputs = torch.stack([step(ZERO) for _ in range(STEPS)])
    assert torch.equal(outputs, 2 * run(make()))
    # The products before and after it.
    assert operations == {"<built-in function mul>"}


BUDGET = {"bound": 1.0, "epsilon": 1.0, "delta": 1e-6}


def test_scales_that_the_dtype_can_hold_change_nothing():
    outputs = []
    for scale in (1.0, 2.0**90):
        C = scale * torch.ones(3, 3).tril()
        rest = {"participation": Epochs(3), "noise": SeededNoise(1)}
        noise = calibrated_noise(C, SIZE, **BUDGET, **rest)
        outputs.append(noise(torch.zeros(SIZE)))
    # C and sigma are scaled alike, which is one distribution.
    torch.testing.assert_close(*outputs)


def test_guarantee_noise_is_calibrated_to_the_bound_where_no_user_attains_it():
    """Three steps whose rows point away from each other: by any signs, two of them cancel a little."""
    gram = torch.full((3, 3), -0.4, dtype=torch.float64).fill_diagonal_(1)
    # Lower triangular, C^T C = gram.
    C = torch.linalg.cholesky(gram.flip(0, 1)).flip(0, 1).mT
    found = sensitivity(C, Epochs(1))
    assert found.attained < 0.9 * found.value
    noise = calibrated_noise(C, SIZE, **BUDGET, participation=Epochs(1))
    promised = noise.guarantee(1.0, 1e-6, Epochs(1))
    assert promised.epsilon <= 1.0
    assert not promised.exact
    assert noise.sigma == pytest.approx(gaussian_sigma(1.0, 1e-6, found.value), rel=1e-9)


def test_guarantee_outputs_are_sums_plus_noise():
    totals = normal(STEPS, SIZE, seed=1)
    noise = make()
    outputs = torch.stack([noise(total) for total in totals])
    torch.testing.assert_close(outputs - totals, run(make()), rtol=0, atol=1e-12)
