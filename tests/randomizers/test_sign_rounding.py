"""One number as a sign: exact privacy, moments of the coin."""

import math

import pytest
import torch

from torchdp.privacy import Model, Neighbours
from torchdp.randomizers import DuchiJordanWainwright

SIZES = torch.tensor([1.0, 0.7, 0.2, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1, 4, 8, 20, 50])
def test_guarantee_sign_rounding_exactly_epsilon_ldp(epsilon):
    lost = DuchiJordanWainwright(1, epsilon).disagreement(SIZES)
    chances = torch.cat([lost, 1 - lost])  # all that a point can give
    assert float((chances[:, None] / chances).log().abs().max()) == pytest.approx(epsilon, rel=1e-12)
    assert lost[-1] == 0.5 and (lost.diff() > 0).all()
    wrong = float(DuchiJordanWainwright(1, min(50, 1.01 * epsilon)).disagreement(SIZES)[0])
    assert epsilon == 50 or math.log((1 - wrong) / wrong) > epsilon * (1 + 1e-3)
    guarantee = DuchiJordanWainwright(1, epsilon).guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.exact) == (epsilon, 0, True)
    assert (guarantee.model, guarantee.neighbours) == (Model.LOCAL, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("epsilon", [0.1, 4, 20])
def test_guarantee_sign_rounding_exactly_epsilon_ldp_in_the_sampler(planted, epsilon):
    """Deterministic: the sign is the other one exactly where the uniform number is below P(Y x < 0)."""
    randomizer = DuchiJordanWainwright(1, epsilon, 2.0)
    for x in (2.0, -0.8):
        edge = float(randomizer.disagreement(torch.tensor(abs(x) / 2, dtype=torch.float64)))
        edges = [0, int(edge * (1 - 1e-9) * 2**63), int(edge * (1 + 1e-9) * 2**63), 2**62 + 2**61, 2**63 - 1]
        users = torch.full((5, 1), x, dtype=torch.float64)
        y = randomizer.randomize_unchecked(users, planted(integers=torch.tensor(edges)))
        assert (y.abs() == randomizer.entry_limit).all()
        assert (y * x < 0)[:, 0].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("epsilon", [0.01, 1.044, 4, 20])
def test_moments_are_those_of_the_coin(epsilon):
    randomizer = DuchiJordanWainwright(1, epsilon, 1.5)
    moments, size = randomizer.moments, 1.5 / math.tanh(epsilon / 2)
    for x in (0.0, 0.3, -0.9, 1.5):
        other = float(randomizer.disagreement(torch.tensor(abs(x) / 1.5, dtype=torch.float64)))
        p = torch.tensor([1 - other, other], dtype=torch.float64)
        y = math.copysign(size, x) * torch.tensor([1.0, -1.0], dtype=torch.float64)
        assert float(p @ y) == pytest.approx(x, abs=1e-12 * size)
        z = y - x
        assert float(p @ z**2) == pytest.approx(moments.variance + moments.outer * x**2, rel=1e-7)
    z = z / float(p @ z**2) ** 0.5  # at the end of the interval
    assert (moments.third, moments.fourth) == pytest.approx([float(p @ z**3), float(p @ z**4)], rel=1e-6)
