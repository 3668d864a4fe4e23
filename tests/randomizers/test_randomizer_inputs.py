"""The edges of what randomizers take, and errors that show no data."""

import pytest
import torch
from laws import generator

from torchdp.randomizers import (
    HadamardResponse,
    OptimizedUnaryEncoding,
    PrivUnit,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
)

KINDS = [RandomizedResponse, OptimizedUnaryEncoding, SymmetricUnaryEncoding, SubsetSelection, HadamardResponse]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e-6, 700.0])
def test_extreme_budgets_give_finite_variances(kind, epsilon):
    oracle = kind(5, epsilon)
    variance = oracle.workload_variance(torch.eye(5))
    assert torch.isfinite(variance).all() and (variance >= 0).all()
    assert oracle.sample_estimate(torch.full((5,), 10), generator=generator(3)).value.isfinite().all()


def test_parameters_at_their_limits_are_taken():
    assert 0 < PrivUnit(1, 1e-6).cap.threshold and PrivUnit(1, 50.0).cap.threshold < 1
    assert RandomizedResponse(2, 700.0).q > 0


def test_messages_of_the_errors_hold_no_data():
    secret = 1.23456789
    with pytest.raises(ValueError) as error:
        PrivUnit(3, 1.0, 2.0).randomize(torch.full((1, 3), secret * 2))
    assert "1.2345" not in str(error.value) and "2.469" not in str(error.value)
