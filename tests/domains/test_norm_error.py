"""The l_p size of Gaussian noise: closed forms and quadrature against each other."""

import math

import numpy as np
import pytest
import torch
from laws import normal
from scipy import integrate, stats

from torchdp.domains.shapes import NormError, normal_moment


def diagonal(*values):
    return torch.diag(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, 4, 7.5])
def test_the_normals_moments_are_the_integral(p):
    # of both signs; forty deviations hold all that floats can see
    value, _ = integrate.quad(lambda g: 2 * g**p * stats.norm.pdf(g), 0, 40, epsabs=1e-12)
    assert normal_moment(p) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    "deviations",
    [
        (1.0,),
        (2.0, 2.0),
        (3.0, 1.0, 0.1),
        (1.0,) * 300,
    ],
)
def test_the_largest_of_independent_normals_is_the_integral_of_its_tail(deviations):
    error = NormError(diagonal(*deviations), math.inf)
    scale = np.array(deviations)

    def tail(t):
        inside = np.log1p(-2 * stats.norm.sf(t / scale))
        return -np.expm1(inside.sum())

    second, _ = integrate.quad(
        lambda t: 2 * t * tail(t), 0, 12 * scale.max(), limit=400, epsabs=1e-11
    )
    # the quadrature's tolerance
    assert error.root_mean_square.value == pytest.approx(math.sqrt(second), rel=1e-8)


@pytest.mark.parametrize("p", [2.0, 2.5, 4.0, 30.0, math.inf])
@pytest.mark.parametrize("d", [1, 3, 10])
def test_guarantee_the_ceiling_and_the_floor_hold_the_error_between_them(p, d):
    error = NormError(normal(d, d, seed=d), p)
    # four standard errors of the draws
    slack = 4 * error.root_mean_square.standard_error + 1e-12 * error.floor
    assert error.floor <= error.root_mean_square.value + slack
    assert error.root_mean_square.value <= error.ceiling + slack


def test_a_ceiling_without_the_two_under_the_logarithm_would_fail():
    error = NormError(torch.eye(1).double(), math.inf)
    # one normal: the deviation itself
    assert error.root_mean_square.value == pytest.approx(1.0)
    assert math.sqrt(2 * math.log(1)) < error.root_mean_square.value <= error.ceiling
