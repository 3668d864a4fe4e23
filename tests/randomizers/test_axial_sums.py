"""Sums of very many points of a sphere drawn at once: their transform against a power of that of
one point.
"""

import math

import numpy as np
import pytest
import torch
from laws import float64
from scipy.special import hyp0f1
from scipy.stats import chi2

from torchdp.draws import Simulated
from torchdp.randomizers import PrivUnit
from torchdp.randomizers.ball.axial_sums import (
    CLOSE,
    KEPT,
    _value,
    uniform_sums,
)

LAWS = {
    "cap, circle": PrivUnit(1, 1.0)._cap_sums,
    "cap, 2": PrivUnit(2, 4.0)._cap_sums,
    "cap, 64": PrivUnit(64, 8.0)._cap_sums,
    "cap, hardly private": PrivUnit(5, 50.0)._cap_sums,
    "uniform, circle": uniform_sums(2),
    "uniform, 6": uniform_sums(6),
}
# Of A and of a coordinate across, standardised: frequencies, and tilts, which see rho in high
# dimensions.
POINTS = [
    (0, 1j),
    (0.7j, 0),
    (1.5j, 1j),
    (3j, 0.5j),
    (-1j, 2.5j),
    (0, 2),
    (0.5, 1),
    (1.5j, 1.5),
    (-0.7, 0.5j),
]


def of_one_point(law, n, s, r):
    """E exp(s a + r y)^n, a and y those of one point, from its nodes."""
    mean, spread, across = law.moments
    rate = r / math.sqrt(across * n)
    square = (1 - law.t**2) * rate**2 / 4
    standardised = (law.t - mean) / spread
    along = np.exp(s * standardised / math.sqrt(n))
    one = along * hyp0f1((law.dim - 1) / 2, square)
    return (law.weights @ one / law.weights.sum()) ** n


def of_the_sum(law, n, s, r, change=1.0):
    """The same of (A, rho) as they are drawn, by quadrature over x and q; ``change``: of the first
    term.
    """
    # the coordinates across, of whose sum of squares q is the size
    m = law.dim - 1
    x, weights = np.polynomial.hermite_e.hermegauss(80)
    grid, steps = np.polynomial.legendre.leggauss(300)
    # beyond these ends chi-square holds less than the digits of the comparison
    low = np.sqrt(chi2.ppf(1e-20, m))
    high = np.sqrt(chi2.isf(1e-25, m))
    z = low + (grid + 1) / 2 * (high - low)
    density = steps * (high - low) * z * chi2.pdf(z * z, m)
    X, Z = (torch.from_numpy(each) for each in np.meshgrid(x, z, indexing="ij"))
    u = (Z**2 - m) / math.sqrt(2 * m)
    a = torch.zeros_like(X)
    b = torch.zeros_like(X)
    for k, (along, length) in enumerate(zip(*law._terms, strict=True)):
        if k < KEPT:
            share = n ** (-(k + 1) / 2) * (change if k == 0 else 1.0)
            a = a + share * _value(along, X, u)
            b = b + share * _value(length, X, u)
    rho = (Z * (1 + b)).numpy()
    along = (X + a).numpy()
    values = np.exp(s * along) * hyp0f1(m / 2, (r * rho) ** 2 / 4)
    masses = np.outer(weights / weights.sum(), density)
    return masses.ravel() @ values.ravel()


@pytest.mark.parametrize("name", LAWS)
def test_the_transform_of_a_sum_drawn_at_once_is_that_of_its_points(name):
    law = LAWS[name]
    n = law.least
    for s, r in POINTS:
        exact = of_one_point(law, n, s, r)
        scale = max(1, abs(exact)) ** 2
        assert abs(of_the_sum(law, n, s, r) - exact) <= 3 * CLOSE * scale
        assert (
            abs(of_the_sum(law, 4 * n, s, r) - of_one_point(law, 4 * n, s, r))
            <= CLOSE * max(1, abs(exact)) ** 2
        )
    # whose points are symmetric: the first term is 0
    if not name.startswith("uniform"):
        # control: the first correction .001 off
        wrong = max(
            abs(of_the_sum(law, n, s, r, 0.999) - of_one_point(law, n, s, r)) for s, r in POINTS
        )
        assert wrong > 30 * CLOSE


@pytest.mark.parametrize("kind", [PrivUnit(3, 2.0), PrivUnit(1, 50.0)])
def test_the_cost_of_a_sum_does_not_grow_with_the_users(kind):
    class Counted(Simulated):
        numbers = 0

        def words(self, shape):
            self.numbers += math.prod(shape)
            return super().words(shape)

    found = []
    x = float64([[0.1, 0.2, 0.3], [0.0, -0.5, 0.5]])[:, : kind.dim]
    for n in (10**5, 10**8, 10**11):
        draws = Counted(torch.Generator().manual_seed(0))
        kind._sums(x, torch.tensor([n, 2 * n]), (4,), draws)
        found.append(draws.numbers)
    assert found[0] == found[1] == found[2] < 200


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("dim", [1, 2, 16, 1000])
def test_few_points_are_enough_whatever_epsilon(dim, epsilon):
    """The two parts of a user's noise are hardly skewed, however rare one of them is."""
    assert PrivUnit(dim, epsilon)._cap_sums.least < 60
    assert uniform_sums(dim + 1).least < 40
