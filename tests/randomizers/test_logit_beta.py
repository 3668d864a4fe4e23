"""The logit of a Beta variable: tails, tables and quadrature against closed forms and 40-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest
import torch

from torchdp.randomizers.ball.sphere import LogitBeta

SYMMETRIC = [0.5, 1.0, 1.5, 8.0, 128.0, 2048.0, 5e4]  # half the dimension of the sphere of which T is a coordinate


def upper(p, w):
    """P(logit >= w) to 40 digits."""
    with mpmath.workdps(60):
        rest = 1 / (1 + mpmath.exp(mpmath.mpf(w)))  # 1 - B
        return mpmath.betainc(p, p, 0, rest, regularized=True)


@pytest.mark.parametrize("p", SYMMETRIC)
def test_the_total_mass_is_a_beta_function(p):
    """Divided by its value at the mode the density is (2 s(w) 2 s(-w))^p: the total is 4^p B(p, p)."""
    with mpmath.workdps(40):
        exact = mpmath.log(mpmath.beta(p, p)) + 2 * p * mpmath.log(2)
        assert abs(LogitBeta(p).log_total - exact) < 1e-14


@pytest.mark.parametrize("p", [p for p in SYMMETRIC if p < 1000])
def test_quantiles_invert_the_distribution_function(p):
    law = LogitBeta(p)
    for z in (-6.5, -0.7, 1.3, 4.77):
        w = float(law.quantile(torch.tensor(z, dtype=torch.float64)))
        mass = upper(p, abs(w))
        with mpmath.workdps(40):
            assert abs(mass / mpmath.ncdf(-abs(mpmath.mpf(z))) - 1) < 1e-12


@pytest.mark.parametrize("p", SYMMETRIC)
def test_the_drawn_density_is_the_exact_one(p):
    """w(z) for normal z has density phi(z)/w'(z): within 1e-12 of the exact one at every z a draw can take."""
    law, z = LogitBeta(p), torch.linspace(-9, 9, 20_001, dtype=torch.float64, requires_grad=True)
    w = law.quantile(z)
    (slope,) = torch.autograd.grad(w.sum(), z)
    drawn = -z.detach().square() / 2 - math.log(2 * math.pi) / 2 - slope.log()

    def error(p):
        exact = -2 * p * torch.log1p(2 * torch.sinh(w.detach() / 4).square()) - law.log_total
        return float((drawn - exact).abs().max())

    assert error(p) < 1e-12
    assert error(1.001 * p) > 1e-6
    assert (slope > 0).all()


def test_closed_forms_on_the_circle_and_the_sphere():
    z = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    mass = torch.special.ndtr(z)
    circle, sphere = (torch.tanh(LogitBeta(p).quantile(z) / 2) for p in (0.5, 1.0))
    torch.testing.assert_close(circle, torch.sin(math.pi * (mass - 0.5)), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(sphere, 2 * mass - 1, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("p", [0.5, 1.5, 32.0])
def test_quantiles_are_odd_and_stop_at_the_ends(p):
    z = torch.linspace(-15, 15, 301, dtype=torch.float64)
    law = LogitBeta(p)
    torch.testing.assert_close(law.quantile(-z), -law.quantile(z), rtol=1e-13, atol=1e-14)
    assert torch.equal(law.quantile(z[z > 14]), law.quantile(torch.full_like(z[z > 14], 14)))
    assert law.quantile(z.float()).dtype == torch.float64


@pytest.mark.parametrize("p", [0.5, 8, 500])
def test_quadrature_has_the_moments_of_the_beta_law(p):
    law = LogitBeta(p)
    length = float(law.tail_length(np.zeros(()), 45.0))
    ends = -length, length
    for middle in (0.2, 0.8):  # in two pieces, on either side of 0 where the angle is mirrored
        cut = ends[0] + middle * (ends[1] - ends[0])
        pieces = [law.quadrature(ends[0], cut), law.quadrature(cut, ends[1])]
        w, mass = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        beta, expected = 1 / (1 + np.exp(-w)), 1.0
        for power in range(4):
            assert mass @ beta**power == pytest.approx(expected, rel=1e-11)
            expected *= (p + power) / (2 * p + power)


@pytest.mark.parametrize("p", [0.5, 8, 2048])
def test_log_survival(p):
    law = LogitBeta(p)
    for step in (0, 1, 5):
        w = step * (2 / p) ** 0.5  # deviations of the logit, roughly
        if p < 500:
            assert float(law.log_survival(np.array(w))) == pytest.approx(float(mpmath.log(upper(p, w))), abs=1e-13)
        assert law.log_survival(np.array(w)) > law.log_survival(np.array(w + 1e-6))
