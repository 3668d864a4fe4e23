"""Bad input of every public function of the randomizers: refused by the name of the argument, never computed on."""

import math

import pytest
import torch

from torchdp.randomizers import PrivUnitG, RandomizedResponse

VECTOR, RESPONSE = PrivUnitG(3, 1.0, 2.0), RandomizedResponse(4, 1.0)
POINTS, VALUES = torch.zeros(2, 3), torch.tensor([0, 3])


def generator():
    return torch.Generator().manual_seed(0)


NUMBERS = [0, -1.0, math.nan, math.inf, -math.inf, "1", True, None, [1.0], torch.ones(2)]
INTEGERS = [0, -1, 1.0, 2.5, "3", True, None, math.nan]


@pytest.mark.parametrize("bad", [*NUMBERS, 1e-7, 51.0])
def test_privunitg_epsilon(bad):
    with pytest.raises(ValueError, match="epsilon"):
        PrivUnitG(3, bad)


@pytest.mark.parametrize("bad", [*NUMBERS, 701.0])
def test_randomized_response_epsilon(bad):
    with pytest.raises(ValueError, match="epsilon"):
        RandomizedResponse(3, bad)


@pytest.mark.parametrize("bad", NUMBERS)
def test_privunitg_radius(bad):
    with pytest.raises(ValueError, match="radius"):
        PrivUnitG(3, 1.0, bad)


@pytest.mark.parametrize("bad", INTEGERS)
def test_privunitg_dim(bad):
    with pytest.raises(ValueError, match="dim"):
        PrivUnitG(bad, 1.0)


@pytest.mark.parametrize("bad", [*INTEGERS, 1])
def test_randomized_response_k(bad):
    with pytest.raises(ValueError, match="k must"):
        RandomizedResponse(bad, 1.0)


def test_parameters_at_their_limits_are_taken():
    assert PrivUnitG(1, 1e-6).tau.threshold > 0 and PrivUnitG(1, 50.0).tau.threshold < 10
    assert RandomizedResponse(2, 700.0).q > 0


BAD_COUNTS = [
    (torch.tensor([1]), ValueError),
    (torch.tensor([[1, 2]]), ValueError),
    (torch.tensor(1), ValueError),
    (torch.tensor([1, -1]), ValueError),
    (torch.tensor([1.0, -1.0]), ValueError),
    (torch.tensor([1, 0.5]), ValueError),
    (torch.tensor([1, math.nan]), ValueError),
    (torch.tensor([1, math.inf]), ValueError),
    (torch.tensor([1, 1e30]), ValueError),  # would wrap around in int64
    (torch.tensor([2**62, 2**62]), ValueError),  # the sum would
    (torch.tensor([1, 10**14]), ValueError),
    (torch.tensor([True, False]), TypeError),
    (torch.tensor([1, 2], dtype=torch.complex64), TypeError),
    ([1, 2], TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize("bad", [-1, 4, 1.0, None])
def test_covariance_of_no_value(bad):
    with pytest.raises(ValueError, match=r"^x "):
        RESPONSE.covariance(bad)


def test_messages_of_the_errors_hold_no_data():
    secret = 1.23456789
    with pytest.raises(ValueError) as error:
        VECTOR.randomize(torch.full((1, 3), secret * 2))
    assert "1.2345" not in str(error.value) and "2.469" not in str(error.value)
