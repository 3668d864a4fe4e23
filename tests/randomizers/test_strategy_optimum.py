"""Optimised strategies between their certified lower bound and everything known."""

import itertools
import math

import pytest
import torch

from torchdp import workloads
from torchdp.randomizers import (
    HadamardResponse,
    RandomizedResponse,
    StrategyMatrix,
    SubsetSelection,
    strategy_lower_bound,
)
from torchdp.randomizers.alphabet.strategy_bound import VarianceWitness, certify_variance
from torchdp.randomness import keyed_generator


def generator():
    return keyed_generator(b"strategy optimum")


def average(strategy, W):
    return float(strategy.workload_variance(W).mean())


def worst(strategy, W):
    return float(strategy.workload_variance(W).mean(0).max())


@pytest.mark.parametrize(("prior", "judged"), [(torch.ones(8), average), (None, worst)])
def test_guarantee_optimised_strategies_are_private_and_beat_the_oracles(prior, judged):
    W = workloads.prefix(8).dense()
    for epsilon in (0.3, 1.0, 3.0):
        strategy = StrategyMatrix.tuned(W, epsilon, prior, generator=generator())
        Q = strategy.matrix
        torch.testing.assert_close(Q.sum(0), torch.ones(8, dtype=torch.float64))
        ratio = math.log(float((Q.amax(1) / Q.amin(1)).max()))
        assert ratio <= epsilon * (1 + 1e-12) and strategy.epsilon == pytest.approx(ratio, abs=1e-12)
        value = judged(strategy, W)
        centred = W - W.mean(1, keepdim=True)
        for kind in (RandomizedResponse, HadamardResponse, SubsetSelection):
            other = judged(kind(8, epsilon), centred)
            assert value <= other * (1 + 1e-6)
        assert value < 0.97 * judged(SubsetSelection(8, epsilon), centred)


def test_better_than_published_values_for_prefix_sums():
    """Sum over queries of the worst type's variance at k = 64, epsilon = 1: 723.5917 by the authors' code, seed 0."""
    W = workloads.prefix(64).dense()
    strategy = StrategyMatrix.tuned(W, 1.0, generator=generator())
    assert float(strategy.workload_variance(W).sum(0).max()) < 640


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "W", [workloads.prefix(6).dense(), torch.eye(5).double(), workloads.parities(3, 2).dense()]
)
def test_guarantee_lower_bound_is_below_every_strategy_and_close_to_the_best(W, epsilon):
    pytest.importorskip("cvxpy")
    bound, k = strategy_lower_bound(W, epsilon), W.shape[1]
    best = StrategyMatrix.tuned(W, epsilon, torch.ones(W.shape[1]), generator=generator())
    assert bound <= average(best, W) * (1 + 1e-9) and average(best, W) <= 1.1 * bound
    rows = torch.rand(3 * k, k, dtype=torch.float64, generator=generator())
    low = math.exp(-epsilon)
    rows = low + (1 - low) * (rows > 0.5).double()
    weights = torch.linalg.lstsq(rows.mT, torch.ones(k, 1, dtype=torch.float64)).solution[:, 0].clamp_min(0)
    Q = weights[:, None] * rows
    Q = Q / Q.sum(0)
    random = StrategyMatrix(Q[weights > 0])  # its own epsilon, whatever it is
    assert strategy_lower_bound(W, random.epsilon) <= average(random, W) * (1 + 1e-9)


def test_the_bound_is_exact_for_two_types():
    pytest.importorskip("cvxpy")
    W = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    exact = average(StrategyMatrix(torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)), W)
    assert strategy_lower_bound(W, math.log(3)) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_guarantee_a_bad_witness_proves_little_but_nothing_false(seed):
    W, epsilon, k = workloads.prefix(4).dense(), 1.0, 4
    random = keyed_generator(b"witness %d" % seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    best = average(StrategyMatrix.tuned(W, epsilon, torch.ones(W.shape[1]), generator=generator()), W)
    for scale in (0.0, 0.1, 1.0):
        Z = W - W.mean(1, keepdim=True) + scale * normal(4, 4)
        witness = VarianceWitness(Z, normal(k).abs(), *(normal(k, k).abs() for _ in range(3)))
        assert certify_variance(W, epsilon, witness) <= best * (1 + 1e-9)


def test_the_condition_behind_the_bound_holds_on_every_extreme_row():
    """||Z u||^2 <= <prior, u> <prices, u> for all 2^k rows is what the form certifies: checked row by row."""
    pytest.importorskip("cvxpy")
    W, k, low = workloads.prefix(5).dense(), 5, math.exp(-1.0)
    bound = strategy_lower_bound(W, 1.0)
    centred = W - W.mean(1, keepdim=True)
    rows = torch.tensor(list(itertools.product((low, 1.0), repeat=k)), dtype=torch.float64)
    # The least variance over all strategies made of extreme rows, by the weights alone: a convex program.
    import cvxpy as cp

    weights = cp.Variable(len(rows), nonneg=True)
    information = sum(weights[y] * (rows[y, :, None] * rows[y] / rows[y].mean()).numpy() for y in range(len(rows)))
    second = sum(cp.matrix_frac(query.numpy(), information) for query in centred)
    problem = cp.Problem(cp.Minimize(second / len(W)), [rows.numpy().T @ weights == 1])
    problem.solve(solver=cp.CLARABEL)
    exact = problem.value - float(centred.square().sum()) / k / len(W)
    assert bound <= exact * (1 + 1e-6) and exact <= 1.1 * bound
    assert average(StrategyMatrix.tuned(W, 1.0, torch.ones(W.shape[1]), generator=generator()), W) <= exact * 1.02
