"""Bounded symmetric shares: their law by other means, absent users."""

import math

import numpy as np
import pytest

from torchdp.shuffle import BoundedSum, Sensitivity, delta_of

CASES = [(1, 0.4), (5, 0.9), (5, 4.0), (12, 8.0), (40, 7.5)]


@pytest.mark.parametrize(("users", "deviation"), CASES)
def test_the_law_of_the_noise(users, deviation):
    law = BoundedSum(users, deviation)
    values = np.arange(len(law.chances))
    chances = law.chances
    assert chances.sum() == pytest.approx(1)
    assert (chances > 0).all()
    assert values @ chances == pytest.approx(law.half_width + 1)
    assert users * (((values - law.half_width - 1) ** 2) @ chances) == pytest.approx(deviation**2)
    mass = law.noise_law().mass
    # the characteristic function, at as many points
    angles = 2 * math.pi * np.arange(len(mass)) / len(mass)
    centre = law.half_width + 1
    one = (np.exp(1j * np.outer(angles, values - centre)) @ chances) ** users
    centred = np.arange(len(mass)) - len(mass) // 2
    inverse = np.exp(-1j * np.outer(centred, angles))
    again = (inverse @ one).real / len(mass)
    np.testing.assert_allclose(mass, again, atol=1e-12)
    assert (np.diff(mass[: len(mass) // 2 + 1]) > 0).all()
    assert np.array_equal(mass, mass[::-1])


def test_absent_users_take_their_shares_along():
    full = BoundedSum.calibrated(100, 1.0, 1e-5, Sensitivity(16, change=4.0))
    fewer = BoundedSum.calibrated(
        100,
        1.0,
        1e-5,
        Sensitivity(16, change=4.0),
        absent=20,
    )
    assert fewer.noise_variance == pytest.approx(full.noise_variance / 0.8, rel=0.02)
    assert delta_of(full, 1.0, Sensitivity(16, change=4.0), absent=20) > 1e-5
    assert len(full.noise_law(50).mass) < len(full.noise_law().mass)


@pytest.mark.parametrize("levels", [1, 4])
@pytest.mark.parametrize("reach", [2, 3])
def test_uniform_noise_loses_its_ends_alone(reach, levels):
    # a share is uniform
    law = BoundedSum(2, math.sqrt(2 * reach * (reach + 1) / 3))
    for epsilon, change in ((1e-4, 0.01), (0.5, 0.01), (8.0, 0.05)):
        # exactly, where one instance takes all movement
        lost = levels * math.sqrt(change) / (2 * reach + 1)
        found = law.moved_delta(
            epsilon,
            Sensitivity(2, levels**2 * change, largest=levels),
            absent=1,
        )
        assert lost <= found <= 1
        assert epsilon < 0.1 or found <= 1.02 * math.sqrt(2) * lost
