"""Translates of patterns over strings of bits: a strategy whatever the patterns, of the variance that was sought."""

import math

import pytest
import torch

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.queries import choose
from torchdp.randomizers import StrategyMatrix
from torchdp.randomizers.alphabet.translates import flips
from torchdp.randomness import keyed_generator


def found(W, epsilon):
    return flips(W - W.mean(1, keepdim=True), epsilon, keyed_generator(b"walsh"))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("workload", [workloads.marginal_tables(4, 2), workloads.parities(5, 1)])
def test_guarantee_every_output_spends_epsilon_at_most_and_types_are_alike(workload, epsilon):
    W = workload.dense()
    Q = found(W, epsilon)
    assert float(Q.min()) > 0 and float((Q.amax(1) / Q.amin(1)).log().max()) <= epsilon * (1 + 1e-12)
    torch.testing.assert_close(Q.sum(0), torch.ones(len(Q.mT), dtype=torch.float64), rtol=0, atol=1e-12)
    variance = StrategyMatrix(Q).workload_variance(W - W.mean(1, keepdim=True)).mean(0)
    assert float(variance.amax() / variance.amin()) < 1 + 1e-6
    law = Q.mean(1)
    M = (Q / law[:, None]).mT @ Q  # diagonal in the parities
    signs = workloads.parities(W.shape[1].bit_length() - 1, 9).dense()
    turned = signs @ M @ signs.mT
    assert float((turned - turned.diagonal().diag()).abs().max()) < 1e-9 * float(turned.abs().max())


def test_other_workloads_are_left_to_others():
    assert found(workloads.prefix(8).dense(), 1.0) is None
    assert found(workloads.identity(8).dense(), 1.0) is not None  # diagonal in every orthonormal basis


@pytest.mark.slow
def test_it_wins_where_one_parity_a_user_says_too_little():
    """128 types at epsilon = 4."""
    choice = choose(workloads.parities(7, 2).dense(), 10_000, 4.0, Objective.MEAN)
    by_name = {one.name: one.error for one in choice.candidates}
    assert by_name["translates of patterns"] < 0.6 * by_name["one parity a user"]
    assert choice.bound < choice.candidates[0].error <= by_name["translates of patterns"] < 3 * choice.bound
    assert math.isfinite(choice.bound)
