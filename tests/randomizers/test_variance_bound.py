"""The lower bound by singular values, against every strategy that a small search can make."""

import math

import numpy as np
import pytest
import torch

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.randomizers import RandomizedResponse, StrategyMatrix, strategy_lower_bound
from torchdp.randomness import keyed_generator


def least_variance(Q, W, h):
    """Of unbiased answers from one report, mean over queries, types drawn from h; nan where there are none."""
    law = Q @ h
    Z = Q / np.sqrt(law)[:, None]  # V Q = W at the least V diag(law) V^T: V = W (Z^T Z)^+ Z^T / sqrt(law)
    V = W @ np.linalg.pinv(Z.T @ Z) @ Z.T / np.sqrt(law)
    if np.abs(V @ Q - W).max() > 1e-7 * np.abs(W).max():
        return math.nan
    return float(((V**2 @ Q - (V @ Q) ** 2) @ h).mean())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_guarantee_no_random_strategy_is_below_it(epsilon):
    rng = np.random.default_rng(7)
    nearest = math.inf
    for trial in range(300):
        k, queries = int(rng.integers(2, 6)), int(rng.integers(1, 9))
        rows = np.where(rng.random((5 * k, k)) < 0.5, math.exp(-epsilon), 1.0)
        weights = np.linalg.lstsq(rows.T, np.ones(k), rcond=None)[0] if trial % 2 else rng.random(5 * k)
        weights = np.abs(weights) + 1e-3
        slack = 1 - (rows * weights[:, None]).sum(0) / (rows * weights[:, None]).sum(0).max()
        weights /= (rows * weights[:, None]).sum(0).max()
        Q = np.concatenate([rows * weights[:, None], np.full((1, k), 1e-9) + np.diag(slack)])
        Q /= Q.sum(0)
        if (Q.max(1) / Q.min(1)).max() > math.exp(epsilon) * (1 + 1e-9):  # what the slack needs is not private
            p = RandomizedResponse(k, epsilon)
            Q = np.full((k, k), p.q) + np.eye(k) * (p.p - p.q)
        h = rng.dirichlet(np.full(k, 0.5))
        h[rng.random(k) < 0.2] = 0
        if not h.sum() or (Q @ (h / h.sum())).min() <= 0:
            continue
        h /= h.sum()
        W = rng.normal(size=(queries, k)) * 10.0 ** rng.integers(-2, 3)
        found = least_variance(Q, W, h)
        bound = strategy_lower_bound(torch.from_numpy(W), epsilon, torch.from_numpy(h), program=False)
        if found > 0:
            assert bound <= found * (1 + 1e-9)
            nearest = min(nearest, found / bound if bound else math.inf)
    assert nearest < 1.5  # it says something


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 12.0, 100.0])
def test_two_types_are_answered_by_randomized_response_and_no_better(epsilon):
    W = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    bound = strategy_lower_bound(W, epsilon, program=False)
    assert bound == pytest.approx(1 / (4 * math.sinh(epsilon / 2) ** 2), rel=1e-9)
    if epsilon < 30:
        assert bound == pytest.approx(float(RandomizedResponse(2, epsilon).workload_variance(W).mean()), rel=1e-5)


def test_it_holds_beside_the_program_and_beyond_it_with_a_prior():
    W, prior = workloads.prefix(12).dense(), 1.0 / torch.arange(1, 13, dtype=torch.float64)
    for epsilon in (0.5, 4.0):
        both = strategy_lower_bound(W, epsilon, prior)
        simple = strategy_lower_bound(W, epsilon, prior, program=False)
        tuned = StrategyMatrix.tuned(W, epsilon, prior, generator=keyed_generator(b"bound"), steps=80, exchanges=3)
        assert 0 < simple <= both <= tuned.judged(W, prior / prior.sum(), Objective.MEAN)
    large, h = workloads.prefix(80).dense(), 1.0 / torch.arange(1, 81, dtype=torch.float64)
    assert strategy_lower_bound(large, 1.0, h) == strategy_lower_bound(large, 1.0, h, program=False) > 0
    one = torch.zeros(80, dtype=torch.float64)
    one[3] = 1
    assert strategy_lower_bound(large, 1.0, one, program=False) == 0  # all of one type: known
