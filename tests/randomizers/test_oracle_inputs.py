"""Frequency oracles: bad input is refused by name; draws depend on the generator and the arguments alone."""

import math

import pytest
import torch

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
    assert oracle.sample_estimate(torch.full((5,), 10), generator=generator()).value.isfinite().all()


@pytest.mark.parametrize("oracle", ORACLES, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_integers_that_torch_can_not_compare_are_refused_with_a_remedy(oracle, dtype):
    x = torch.tensor([0, 3]).to(dtype)
    for call in (oracle.randomize, oracle.collect):
        with pytest.raises(TypeError, match=r"x must be .*call \.to\(torch\.int64\)"):
            call(x)


def test_numbers_that_no_user_sends_are_refused():
    oracle = RandomizedResponse(5, 1.0)
    assert oracle.decode(bytes([4])).tolist() == [4]
    for number in (5, 7, 8, 255):
        with pytest.raises(ValueError, match="data"):
            oracle.decode(bytes([number]))
