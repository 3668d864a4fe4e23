"""Balanced block designs: every two points in equally many blocks, private, and as good as all subsets."""

import math
from fractions import Fraction

import pytest
import torch

from torchdp import workloads
from torchdp.protocol import Objective
from torchdp.queries import AdaptiveOracle, LocalOracle
from torchdp.randomizers import StrategyMatrix, SubsetSelection
from torchdp.randomizers.alphabet.block_design import Design, balanced, powers


@pytest.mark.parametrize("v", [2, 3, 4, 5, 8, 13, 16, 31, 64, 67, 128, 256])
def test_powers_are_all_of_the_field_but_zero(v):
    assert sorted(powers(v)) == list(range(1, v))


@pytest.mark.parametrize(
    ("v", "e"), [(7, 3), (8, 7), (13, 4), (16, 3), (16, 5), (17, 8), (31, 5), (32, 31), (64, 9)]
)
@pytest.mark.parametrize("zero", [False, True])
def test_every_two_points_lie_in_equally_many_blocks(v, e, zero):
    """Counted, for every number of classes; a block less is told."""
    for first in range(not zero, e + 1):
        size = first * (v - 1) // e + zero
        if 0 < size < v:
            rows = Design(v, size, e * v, e, first, zero).rows(v)
            assert rows.shape == (e * v, v) and bool((rows.sum(1) == size).all())
            pairs = rows.double().mT @ rows.double()
            single, both = pairs.diagonal(), pairs[~torch.eye(v, dtype=torch.bool)]
            assert bool((single == single[0]).all() and (both == both[0]).all())
            assert single[0] * (size - 1) == both[0] * (v - 1)
            fewer = rows[1:].double()
            assert not bool((fewer.sum(0) == fewer.sum(0)[0]).all())


def ratio(matrix):
    """The largest of two chances of one output, exactly, in the integers drawn."""
    return max(Fraction(int(row.max())) / Fraction(int(row.min())) for row in matrix.table)


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (12, 0.5), (16, 1.0), (20, 3.0), (64, 2.0), (100, 8.0)])
def test_guarantee_at_most_epsilon_and_nearly_all_of_it(k, epsilon):
    found = StrategyMatrix.balanced(k, epsilon)
    drawn = math.log(ratio(found))
    assert epsilon * (1 - 1e-5) < drawn <= found.guarantee.epsilon * (1 + 1e-12) <= epsilon * (1 + 1e-12)
    assert not drawn <= 0.99 * epsilon  # a wrong constant is told


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("k", [5, 16, 20, 64, 100])
def test_its_variances_are_those_of_subset_selection(k, epsilon):
    identity = workloads.identity(k).dense()
    found, subsets = StrategyMatrix.balanced(k, epsilon), SubsetSelection(k, epsilon)
    ours, theirs = (float(LocalOracle(identity, each).worst_mse(1, Objective.MEAN)) for each in (found, subsets))
    assert ours <= theirs * (1.01 if k in (20, 100) else 1.0011)
    assert ours >= theirs * (1 - 1e-6)  # these are the least there are (Ye, Barg, 2018)
    assert found.bits_per_user <= 2 * math.log2(k) + 6


def test_decoded_for_the_data_it_errs_less_where_few_types_are_frequent():
    """Subset selection is right for even data only: 64 types, epsilon = 2, 98 % of one."""
    identity, h = workloads.identity(64).dense(), torch.full((64,), 0.02 / 63, dtype=torch.float64)
    h[20] = 0.98
    subsets, found = LocalOracle(identity, SubsetSelection(64, 2.0)), StrategyMatrix.balanced(64, 2.0)
    predicted = float(AdaptiveOracle(identity, found).predicted_mse(1e5 * h).mean())
    assert predicted < 0.68 * float(subsets.predicted_mse(1e5 * h).mean())
    assert predicted < 0.68 * float(LocalOracle(identity, found).predicted_mse(1e5 * h).mean())


def test_few_blocks_where_no_more_are_allowed_else_many_different_ones():
    """The lines of the affine plane of order 8, each eight times, do for even data and say less about others."""
    rows, often = balanced(64, 2.0, 600 * 64)
    assert rows.shape == (72, 64) and bool((rows.sum(1) == 8).all() and (often == 8).all())
    rows, often = balanced(64, 2.0, 2**20)
    assert rows.shape == (4032, 64) and bool((rows.sum(1) == 8).all() and (often == 1).all())
    assert balanced(1000, 1.0, 2**18) is None


def test_guarantee_no_more_is_spent_than_was_asked():
    """At 390 small epsilons: a chance that went through float32 spent up to 2e-5 of it too much in 77 of them."""
    for epsilon in torch.arange(0.001, 0.04, 0.0001, dtype=torch.float64).tolist():
        assert StrategyMatrix.balanced(16, epsilon).guarantee.epsilon <= epsilon
