"""Frequency oracles for few types: every message enumerated, from the definitions."""

import itertools
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
from torchdp.randomness import keyed_generator

KINDS = [RandomizedResponse, OptimizedUnaryEncoding, SymmetricUnaryEncoding, SubsetSelection, HadamardResponse]
CASES = [(kind, k, epsilon) for kind in KINDS for k in (2, 3, 6) for epsilon in (0.3, 1.0, 4.0)]


def law(kind, k, epsilon):
    """Messages as ``sample`` returns them, and P(message | x), (messages, k), from the definition."""
    E = math.exp(epsilon)
    if kind is RandomizedResponse:
        table = torch.ones(k, k).double() + (E - 1) * torch.eye(k).double()
        return torch.arange(k), table / table.sum(0)
    if kind is HadamardResponse:
        K = 1 << math.ceil(math.log2(k + 1))
        table = [[E if bin((x + 1) & y).count("1") % 2 == 0 else 1.0 for x in range(k)] for y in range(K)]
        table = torch.tensor(table, dtype=torch.float64)
        return torch.arange(K), table / table.sum(0)
    codes = torch.arange(2**k)
    bits = ((codes[:, None] >> torch.arange(k)) & 1).double()  # (messages, k)
    if kind is SubsetSelection:
        w = kind(k, epsilon).subset
        table = (1 + (E - 1) * bits)[bits.sum(1) == w]
        return codes[bits.sum(1) == w, None], table / table.sum(0)
    p = 0.5 if kind is OptimizedUnaryEncoding else math.exp(epsilon / 2) / (math.exp(epsilon / 2) + 1)
    q = 1 / (E + 1) if kind is OptimizedUnaryEncoding else 1 - p
    on = torch.eye(k, dtype=torch.float64) * (p - q) + q  # (x, v)
    chance = torch.where(bits[:, None, :] == 1, on, 1 - on).prod(-1)
    return codes[:, None], chance


@pytest.mark.parametrize("kind, k, epsilon", CASES)
def test_guarantee_exactly_epsilon(kind, k, epsilon):
    _, table = law(kind, k, epsilon)
    torch.testing.assert_close(table.sum(0), torch.ones(k, dtype=torch.float64))
    ratio = math.log(float((table.amax(1) / table.amin(1)).max()))
    assert abs(ratio - epsilon) < 1e-12
    assert kind(k, epsilon).guarantee.epsilon == epsilon and kind(k, epsilon).guarantee.exact


@pytest.mark.parametrize("kind, k, epsilon", CASES)
def test_reports_are_unbiased_with_the_stated_covariance(kind, k, epsilon):
    oracle, (messages, table) = kind(k, epsilon), law(kind, k, epsilon)
    decoded = torch.stack([oracle.decode_sum(message[None]) for message in messages])  # (messages, k)
    torch.testing.assert_close(table.mT @ decoded, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-10)
    W = torch.randn(3, k, dtype=torch.float64, generator=keyed_generator(b"W"))
    variance = oracle.workload_variance(W)
    for x in range(k):
        centred = decoded - torch.eye(k, dtype=torch.float64)[x]
        covariance = (centred * table[:, x, None]).mT @ centred
        torch.testing.assert_close(oracle.covariance(x), covariance, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(variance[:, x], ((W @ covariance) * W).sum(1), rtol=1e-10, atol=1e-10)


def test_wrong_constants_are_noticed():
    """Negative controls: the sets of subset selection at another ratio, OUE with p and q exchanged roles."""
    _, table = law(SubsetSelection, 6, 1.0)
    worse = table**1.01 / (table**1.01).sum(0)
    assert math.log(float((worse.amax(1) / worse.amin(1)).max())) > 1.005
    k, q = 3, 1 / (math.e + 1)
    on = torch.eye(k, dtype=torch.float64) * (0.6 - q) + q
    chances = [
        [math.prod(float(on[x, v]) if b[v] else 1 - float(on[x, v]) for v in range(k)) for x in range(k)]
        for b in itertools.product((0, 1), repeat=k)
    ]
    assert max(max(row) / min(row) for row in chances) > math.e * 1.2


def test_guarantee_a_strategy_has_the_epsilon_of_its_matrix():
    _, table = law(HadamardResponse, 5, 0.7)
    strategy = StrategyMatrix(table)
    assert strategy.guarantee.epsilon == pytest.approx(0.7, abs=1e-12)
    W = torch.eye(5, dtype=torch.float64)
    decoder = strategy.decoder(W)
    torch.testing.assert_close(decoder @ table, W, rtol=0, atol=1e-10)
    brute = torch.stack([decoder.square() @ table[:, x] - W[:, x].square() for x in range(5)], 1)
    torch.testing.assert_close(strategy.workload_variance(W), brute)
    # No other unbiased decoder has a smaller variance under the uniform prior: move within the null space of table^T.
    null = torch.linalg.svd(table.mT).Vh[5:]
    for direction in null:
        moved = decoder + 1e-3 * direction
        torch.testing.assert_close(moved @ table, W, rtol=0, atol=1e-10)
        assert (moved.square() @ table).sum() > (decoder.square() @ table).sum()
