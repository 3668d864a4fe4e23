"""Frequency oracles: bad input is refused by name; draws depend on the generator and the arguments alone."""

import math

import pytest
import torch

from torchdp.noise import SeededNoise
from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    SymmetricUnaryEncoding,
)

KINDS = [RandomizedResponse, OptimizedUnaryEncoding, SymmetricUnaryEncoding, SubsetSelection, HadamardResponse]
MATRIX = torch.eye(4, dtype=torch.float64) * 0.4 + 0.15
ORACLES = [kind(4, 1.0) for kind in KINDS] + [StrategyMatrix(MATRIX)]
NAMES = [type(oracle).__name__ for oracle in ORACLES]


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, "1", True, None, [1.0], 701.0])
def test_epsilon(kind, bad):
    with pytest.raises(ValueError, match=r"^epsilon "):
        kind(3, bad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [0, 1, -1, 2.5, "3", True, None])
def test_k(kind, bad):
    with pytest.raises(ValueError, match=r"^k must"):
        kind(bad, 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e-6, 700.0])
def test_extreme_budgets_give_finite_variances(kind, epsilon):
    oracle = kind(5, epsilon)
    variance = oracle.workload_variance(torch.eye(5))
    assert torch.isfinite(variance).all() and (variance >= 0).all()
    drawn = oracle.sample_reports(torch.full((5,), 10), generator=generator())
    assert torch.isfinite(oracle.decode_counts(drawn)).all()


@pytest.mark.parametrize("oracle", ORACLES, ids=NAMES)
def test_bad_arguments_are_refused_by_name(oracle):
    reports = torch.zeros(oracle.tallies)
    one = torch.ones(4, dtype=torch.int64)
    for name, call in [
        ("x", lambda: oracle.sample(torch.tensor([4]), noise=SeededNoise(0))),
        ("x", lambda: oracle.collect(torch.tensor([-1]), noise=SeededNoise(0))),
        ("x", lambda: oracle.covariance(4)),
        ("x", lambda: oracle.covariance(-1)),
        ("W", lambda: oracle.workload_variance(torch.ones(3, 5))),
        ("W", lambda: oracle.workload_variance(torch.ones(4))),
        ("W", lambda: oracle.workload_variance(torch.full((2, 4), math.nan))),
        ("W", lambda: oracle.answer(reports, torch.ones(3, 5))),
        ("reports", lambda: oracle.decode_counts(torch.zeros(oracle.tallies + 1))),
        ("reports", lambda: oracle.decode_counts(torch.tensor(1.0))),
        ("reports", lambda: oracle.answer(torch.zeros(oracle.tallies + 1), torch.ones(1, 4))),
        ("counts", lambda: oracle.sample_reports(torch.ones(3), generator=generator())),
        ("counts", lambda: oracle.sample_reports(-one, generator=generator())),
        ("counts", lambda: oracle.sample_reports(one * 10**14, generator=generator())),
        ("sample_shape", lambda: oracle.sample_reports(one, generator=generator(), sample_shape=(-1,))),
        ("points", lambda: oracle.sample_sum(torch.tensor([[0]]), torch.tensor([1]), generator=generator())),
        ("counts", lambda: oracle.sample_sum(torch.tensor([0]), torch.tensor([1, 2]), generator=generator())),
    ]:
        with pytest.raises(ValueError, match=rf"^{name} "):
            call()
    for name, call in [
        ("x", lambda: oracle.sample(torch.tensor([1.0]), noise=SeededNoise(0))),
        ("noise", lambda: oracle.sample(one, noise=generator())),
        ("generator", lambda: oracle.sample_reports(one, generator=None)),
        ("W", lambda: oracle.workload_variance([[1.0] * 4])),
        ("reports", lambda: oracle.decode_counts([1.0])),
        ("messages", lambda: oracle.tally(torch.tensor([1.5]))),
    ]:
        with pytest.raises(TypeError, match=rf"^{name} "):
            call()


def test_packed_messages_of_a_wrong_width_are_refused():
    for oracle in ORACLES[1:4]:
        with pytest.raises(ValueError, match=r"^messages "):
            oracle.tally(torch.zeros(3, 2, dtype=torch.int64))
    for oracle in (ORACLES[0], *ORACLES[4:]):
        with pytest.raises(ValueError, match=r"^messages "):
            oracle.tally(torch.tensor([99]))


DRAWS = {
    f"{name} {path}": call
    for oracle, name in zip(ORACLES, NAMES, strict=True)
    for path, call in {
        "message": lambda g, o=oracle: o.sample(torch.arange(200) % 4, noise=SeededNoise.of(g)),
        "tally": lambda g, o=oracle: o.collect(torch.arange(200) % 4, noise=SeededNoise.of(g)),
        "reports": lambda g, o=oracle: o.sample_reports(
            torch.tensor([10**13 + 1, 3, 5 * 10**8, 0]), generator=g, sample_shape=(5,)
        ),
    }.items()
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_draws_depend_on_the_generator_alone(draw):
    shared = generator()
    first, second = draw(shared), draw(shared)
    assert torch.equal(first, draw(generator())) and not torch.equal(first, second)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    draw(generator())
    assert torch.equal(state, torch.random.get_rng_state())
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(first, draw(generator()))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("oracle", ORACLES, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_integers_that_torch_can_not_compare_are_refused_with_a_remedy(oracle, dtype):
    x = torch.tensor([0, 3]).to(dtype)
    for call in (oracle.sample, oracle.collect):
        with pytest.raises(TypeError, match=r"x must be .*call \.to\(torch\.int64\)"):
            call(x)
