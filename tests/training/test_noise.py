"""Correlated noise: its law, its privacy, its state."""

import copy
import io
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
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
BANDED = DENSE.triu(-2)


def make(strategy=DENSE, size=SIZE, sigma=2.0, **options):
    return CorrelatedNoise(
        strategy, size, sigma, **{"dtype": torch.float64, "noise": SeededNoise(1), **options}
    )


def run(noise, steps=STEPS):
    zero = torch.zeros(noise.secret_state()["past"].shape[1], dtype=torch.float64)
    return torch.stack([noise(zero) for _ in range(steps)])


@pytest.mark.parametrize("factors", FACTORS)
def test_guarantee_causal_strategy_keeps_the_law_and_no_column_grows(factors):
    C = causal_strategy(W, factors)
    noise = torch.linalg.solve_triangular(C, W, upper=False, left=False)
    torch.testing.assert_close(noise @ noise.mT, factors.left @ factors.left.mT, rtol=0, atol=1e-9)
    assert not C.triu(1).any()
    assert (C.diagonal() > 0).all()
    assert (C.norm(dim=0) <= factors.right.norm(dim=0) + 1e-9).all()
    torch.testing.assert_close(standard_errors(W, C), factors.left.norm(dim=1), rtol=1e-9, atol=0)


def test_a_factorization_that_misses_W_is_calibrated_for_what_it_does():
    """left alone is read: its noise with the exact W, and not right, which here claims half of the
    sensitivity.
    """
    C = causal_strategy(W, FACTORS[0].left)
    torch.testing.assert_close(C, DENSE)
    assert sensitivity(C, ONCE).value > 0.99 * float(FACTORS[0].sensitivity)
    perturbed = causal_strategy(W, 0.5 * FACTORS[0].left)
    assert math.isclose(
        sensitivity(perturbed, ONCE).value, 2 * sensitivity(C, ONCE).value, rel_tol=1e-9
    )


@pytest.mark.parametrize("pattern", [ONCE, Epochs(3), Separated(2, 3)])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_guarantee_all_outputs_together_are_private(pattern, neighbours):
    """Every set of steps of one user: the exact delta of the outputs' two normal laws, from their
    covariance.
    """
    bound = 0.7
    epsilon = 1.3
    delta = 1e-5
    budget = {"bound": bound, "epsilon": epsilon, "delta": delta}
    noise = calibrated_noise(DENSE, SIZE, **budget, participation=pattern, neighbours=neighbours)
    outputs = float(noise.sigma) ** 2 * W @ torch.linalg.inv(DENSE.mT @ DENSE) @ W.mT
    size = bound * (2 if neighbours is Neighbours.REPLACE_ONE else 1)
    farthest = 0.0
    for chosen in permitted(pattern, STEPS):
        # the same gradient in each of the user's steps
        shift = size * W[:, chosen].sum(1)
        farthest = max(farthest, float(shift @ torch.linalg.solve(outputs, shift)) ** 0.5)
    log_delta = gaussian_log_delta(1.0, epsilon, farthest)
    # private, and with no noise to spare
    assert math.log(delta) - 1e-6 < log_delta <= math.log(delta)
    found = noise.guarantee(bound, delta, pattern, neighbours)
    assert found.exact
    assert 0.999999 * epsilon < found.epsilon <= epsilon
    assert found.neighbours is neighbours
    # a sigma 0.1 % smaller is not
    assert gaussian_log_delta(1.0, epsilon, farthest / 0.999) > math.log(delta)
    if pattern != ONCE:
        once = gaussian_sigma(epsilon, delta, size * sensitivity(DENSE, ONCE).value)
        assert gaussian_log_delta(1.0, epsilon, farthest * float(noise.sigma) / once) > math.log(
            delta
        )


def test_the_state_dict_holds_no_secret_and_alone_draws_no_noise():
    noise = make()
    parent = torch.nn.ModuleDict({"noise": make(noise=SeededNoise(2))})
    state = noise.secret_state()
    run(noise, 3)
    assert noise.state_dict() == {"_extra_state": {"step": 3}}
    assert not list(noise.buffers())
    assert not list(noise.parameters())
    secrets = [bytes(state["key"].tolist()), noise.secret_state()["past"].numpy().tobytes()]
    stored = io.BytesIO()
    torch.save(noise.state_dict(), stored)
    assert not any(secret[:8] in stored.getvalue() for secret in secrets)
    parent.load_state_dict({"noise._extra_state": {"step": 3}})
    with pytest.raises(RuntimeError, match="load_secret_state first"):
        parent["noise"](torch.zeros(SIZE))
    with pytest.raises(ValueError, match="the secret state is at step 0, the state dict at 3"):
        parent["noise"].load_secret_state(state)
    parent["noise"].load_secret_state(noise.secret_state())
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
    other = make(noise=SeededNoise(2))
    run(other, 3)
    # of another stream
    other.load_secret_state(before)
    assert other.step == 0
    assert noise.step == 2


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda n: copy.deepcopy(torch.nn.ModuleList([n]))],
)
def test_copies_and_pickles_are_refused(copied):
    with pytest.raises(TypeError, match="move it by secret_state"):
        copied(make())


def test_a_shallow_copy_by_force_takes_turns():
    """What DataParallel does to modules: the copies share one stream, so no noise is drawn
    twice.
    """
    noise = make(torch.eye(STEPS))
    forced = object.__new__(CorrelatedNoise)
    forced.__dict__ = noise.__dict__.copy()
    zero = torch.zeros(SIZE, dtype=torch.float64)
    assert not torch.equal(noise(zero), forced(zero))
    assert noise.step == forced.step == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_nothing():
    noise = make()
    child = os.fork()
    if not child:
        try:
            noise(torch.zeros(SIZE))
        except RuntimeError as error:
            os._exit(7 if "before a fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    noise(torch.zeros(SIZE))


def test_threads_take_turns():
    noise = make(DENSE)
    zero = torch.zeros(SIZE, dtype=torch.float64)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: noise(zero), range(STEPS)))
    expected = run(make(DENSE))
    assert all(any(torch.equal(row, found) for found in outputs) for row in expected)


def test_another_key_is_another_stream_and_steps_do_not_repeat():
    eye = torch.eye(STEPS)
    outputs = [
        run(make(eye, noise=noise)) for noise in (SeededNoise(1), SeededNoise(2), None, Noise())
    ]
    assert len(torch.cat(outputs).unique()) == 4 * STEPS * SIZE


def test_casts_and_autocast_move_no_number():
    noise = make()
    parent = torch.nn.ModuleList([make()])
    parent.half().float().bfloat16().to(torch.float16).to_empty(device="cpu")
    assert torch.equal(noise.strategy.dense(), parent[0].strategy.dense())
    assert torch.equal(run(parent[0]), run(noise))
    assert parent[0].sigma == noise.sigma
    plain = run(make(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run(make(dtype=torch.float32)), plain)
    assert make(dtype=torch.float32)(torch.zeros(SIZE).half()).dtype == torch.float32
    with pytest.raises(RuntimeError, match="meta device"):
        make().to("meta")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "record",
    [
        lambda noise: torch.func.vmap(noise)(torch.zeros(3, SIZE).double()),
        lambda noise: torch.func.grad(lambda x: noise(x).sum())(torch.zeros(SIZE).double()),
        lambda noise: torch.jit.trace(noise, torch.zeros(SIZE).double()),
        lambda noise: make_fx(noise)(torch.zeros(SIZE).double()),
        lambda noise: make_fx(noise, tracing_mode="fake")(torch.zeros(SIZE).double()),
    ],
)
def test_what_would_repeat_a_step_is_refused_in_words(record):
    noise = make()
    with pytest.raises(RuntimeError, match="cannot run inside vmap"):
        record(noise)
    assert noise.step == 0


@pytest.mark.filterwarnings("ignore")
def test_compiled_noise_is_the_same_noise_and_no_part_of_it_is_compiled():
    noise = make(BANDED)
    operations = set()

    def backend(graph, _):
        operations.update(
            str(node.target) for node in graph.graph.nodes if node.op.startswith("call")
        )
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda total: 2 * noise(2 * total), backend=backend)
    outputs = torch.stack([step(torch.zeros(SIZE).double()) for _ in range(STEPS)])
    assert torch.equal(outputs, 2 * run(make(BANDED)))
    assert operations == {"<built-in function mul>"}


def test_scales_that_the_dtype_can_hold_change_nothing():
    found = []
    for scale in (1.0, 2.0**90):
        noise = calibrated_noise(
            scale * torch.ones(3, 3).tril(), 4, bound=1.0, epsilon=1.0, delta=1e-6,
            participation=Epochs(3), noise=SeededNoise(1),
        )  # fmt: skip
        found.append(noise(torch.zeros(4)))
    torch.testing.assert_close(*found)


def test_guarantee_noise_is_calibrated_to_the_bound_where_no_user_attains_it():
    """Three steps whose rows point away from each other: whatever the signs, two of them cancel a
    little.
    """
    gram = torch.full((3, 3), -0.4, dtype=torch.float64).fill_diagonal_(1)
    # lower triangular, C^T C = gram
    C = torch.linalg.cholesky(gram.flip(0, 1)).flip(0, 1).mT
    found = sensitivity(C, Epochs(1))
    assert found.attained < 0.9 * found.value
    noise = calibrated_noise(C, 2, bound=1.0, epsilon=1.0, delta=1e-6, participation=Epochs(1))
    promised = noise.guarantee(1.0, 1e-6, Epochs(1))
    assert promised.epsilon <= 1.0
    assert not promised.exact
    assert noise.sigma == pytest.approx(gaussian_sigma(1.0, 1e-6, found.value), rel=1e-9)


def test_guarantee_outputs_are_sums_plus_noise():
    totals = torch.randn(
        STEPS, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    one = make()
    other = make()
    outputs = torch.stack([one(total) for total in totals])
    torch.testing.assert_close(outputs - totals, run(other), rtol=0, atol=1e-12)
