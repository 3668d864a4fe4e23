"""PrivUnit's coordinate T: its constants against 60-digit arithmetic, its moments by quadrature,
its draws.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from laws import float64, normal

from torchdp.randomizers.ball.sphere import (
    CapLaw,
    LogitBeta,
    coordinate_size,
    uniform_coordinate,
)

EPSILONS = [1e-6, 0.01, 1, 8, 20, 50]
# half the dimension of the sphere of which T is a coordinate
SYMMETRIC = [0.5, 1.0, 1.5, 8.0, 128.0, 2048.0, 5e4]


def cap(dim, g):
    """(s, w) for threshold g to 60 digits."""
    half = mpmath.mpf(dim - 1) / 2
    area = mpmath.beta(mpmath.mpf(1) / 2, half)
    one_half = mpmath.mpf(1) / 2
    share = mpmath.betainc(half, one_half, 0, 1 - g * g, regularized=True) / 2
    return share, (1 - g * g) ** half / ((dim - 1) * area)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [2, 3, 17, 2000])
def test_threshold_is_the_fixed_point(dim, epsilon):
    law = CapLaw(dim, epsilon)
    with mpmath.workdps(60):
        g = mpmath.tanh(mpmath.mpf(law.rapidity))
        # the density inside of the cap is 1 + tilt times that outside
        tilt = mpmath.expm1(mpmath.mpf(epsilon))
        # Newton's method for (e^epsilon - 1) w = g (1 + (e^epsilon - 1) s)
        for _ in range(3):
            s, w = cap(dim, g)
            g += (tilt * w - g * (1 + tilt * s)) / (1 + tilt * s)
        s, w = cap(dim, g)
        # Relative to what is small: gamma when it is, 1 - gamma when that is.
        sinh = g / mpmath.sqrt(1 - g * g)
        assert abs(mpmath.sinh(mpmath.mpf(law.rapidity)) / sinh - 1) < 2e-14
        assert abs(law.survival / s - 1) < 1e-13
        assert abs(law.variance * dim * g * g / (1 - g * g) - 1) < 4e-14

        def mean(g):
            s, w = cap(dim, g)
            return tilt * w / (1 + tilt * s)

        closer = g * mpmath.mpf("0.99")
        further = g + (1 - g) / 100
        assert mean(g) > max(mean(closer), mean(further))


@pytest.mark.parametrize("epsilon", [0.01, 1, 20])
def test_a_hundred_thousand_dimensions_have_the_constants_of_quadrature(epsilon):
    """betainc loses eleven digits here; a sum of the density with 30 digits does not."""
    law = CapLaw(100_001, epsilon)
    dim = 100_001
    with mpmath.workdps(30):
        g = mpmath.tanh(mpmath.mpf(law.rapidity))
        root = mpmath.sqrt(dim)
        # the total mass of (1 - t^2)^((dim - 3)/2)
        area = mpmath.beta(mpmath.mpf(1) / 2, mpmath.mpf(dim - 1) / 2)
        power = mpmath.mpf(dim - 3) / 2
        # beyond 15 standard deviations nothing is left to 30 digits
        panels = mpmath.linspace(g, g + 15 / root, 6)
        s = mpmath.quad(lambda t: (1 - t * t) ** power, panels) / area
        w = (1 - g * g) ** (mpmath.mpf(dim - 1) / 2) / ((dim - 1) * area)
        tilt = mpmath.expm1(epsilon)
        assert abs(law.survival / s - 1) < 1e-13
        assert abs(tilt * w / (1 + tilt * s) / g - 1) < 1e-13


@pytest.mark.parametrize("epsilon", [0.01, 4, 20])
@pytest.mark.parametrize("dim", [2, 4, 65])
def test_moments_match_quadrature_of_the_density(dim, epsilon):
    """In the polar angle the density is sin^(dim - 2), times c1 up to arccos(gamma) and c0
    beyond.
    """
    law = CapLaw(dim, epsilon)
    with mpmath.workdps(30):
        shrunk = mpmath.exp(-mpmath.mpf(law.rapidity))
        edge = 2 * mpmath.atan(shrunk)
        area = mpmath.beta(mpmath.mpf(1) / 2, mpmath.mpf(dim - 1) / 2)
        deviation = mpmath.sqrt(law.variance) * law.threshold

        def expectation(function, scale=1.0):
            def piece(a):
                return function(mpmath.cos(a)) * mpmath.sin(a) ** (dim - 2) / area

            rest = mpmath.pi - edge
            middle = [edge + rest * i / 6 for i in range(7)]
            low = law.low_density * mpmath.quad(piece, middle)
            high = law.high_density * mpmath.quad(piece, [0, edge / 2, edge])
            return low + scale * high

        assert abs(expectation(lambda t: 1) - 1) < 1e-12
        assert abs(expectation(lambda t: t) / law.threshold - 1) < 1e-11

        def standardised(power):
            return expectation(lambda t: ((t - law.threshold) / deviation) ** power)

        assert abs(standardised(2) - 1) < 1e-9
        third = standardised(3)
        fourth = standardised(4)
        assert abs(third / law.third_moment - 1) < 1e-8
        assert abs(fourth / law.fourth_moment - 1) < 1e-8
        # Across u: E[1 - T^2]/(dim - 1), the same. That is isotropy.
        across = expectation(lambda t: 1 - t * t) / (dim - 1)
        assert abs(across / deviation**2 - 1) < 1e-9
        off = expectation(lambda t: 1 - t * t, scale=1.01) / (dim - 1)
        # a high density 1 % off breaks it
        assert abs(off / deviation**2 - 1) > 1e-5


@pytest.mark.parametrize("epsilon", [0.01, 4, 20, 50])
@pytest.mark.parametrize("dim", [2, 3, 257])
def test_extreme_uniforms_stay_on_their_side(planted, dim, epsilon):
    """Deterministic: the branch decides between the cap and its complement, whatever the second
    uniform.
    """
    law = CapLaw(dim, epsilon)
    # the distance of two floats just below 1
    tiny = 2.0**-53
    word = torch.tensor([0, law.chance - 1, law.chance, 2**63 - 1])[:, None]
    tail = float64([2.0**-126, tiny, 0.5, 1 - 1e-9, 1])
    # both ends of either part
    words = torch.cat([word, word | -(2**63)])
    draws = planted(words=words, exponential=-tail.log())
    t, across = law.draw((8, 5), draws)
    assert t.isfinite().all()
    assert (across >= 0).all()
    assert (t.abs() <= 1).all()
    inside = (words & (2**63 - 1) < law.chance).expand_as(t)
    # Across the edge by rounding only: in the angle, where 1 - gamma keeps its digits.
    angle = torch.atan2(across, t)
    edge = 2 * math.atan(math.exp(-law.rapidity))
    assert (angle[inside] <= edge * (1 + 1e-9)).all()
    assert (angle[~inside] >= edge * (1 - 1e-9)).all()


@pytest.mark.parametrize("dim", [1, 2, 3, 17, 257, 100_001])
def test_uniform_coordinate(dim):
    z = normal(200_000, seed=2)
    t, across = uniform_coordinate(dim, z)
    torch.testing.assert_close(
        t.square() + across.square(),
        torch.ones_like(t),
        rtol=0,
        atol=1e-15,
    )
    assert torch.equal(t < 0, z < 0)
    if dim == 1:
        return
    size, mass = coordinate_size(dim)
    with mpmath.workdps(30):
        half = mpmath.mpf(dim) / 2
        exact = mpmath.gamma(half) / mpmath.gamma(half + mpmath.mpf(1) / 2)
        exact = float(exact / mpmath.sqrt(mpmath.pi))
    assert mass @ size == pytest.approx(exact, rel=1e-11)
    assert mass @ size**2 == pytest.approx(1 / dim, rel=1e-11)


@pytest.mark.parametrize("p", SYMMETRIC)
def test_the_total_mass_is_a_beta_function(p):
    """Divided by its value at the mode the density is (2 s(w) 2 s(-w))^p: the total is 4^p
    B(p, p).
    """
    with mpmath.workdps(40):
        exact = mpmath.log(mpmath.beta(p, p)) + 2 * p * mpmath.log(2)
        assert abs(LogitBeta(p).log_total - exact) < 1e-14


@pytest.mark.parametrize("p", SYMMETRIC)
def test_the_drawn_density_is_the_exact_one(p):
    """w(z) for normal z has density phi(z)/w'(z): within 1e-12 of the exact one at every z a draw
    can take.
    """
    law = LogitBeta(p)
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64, requires_grad=True)
    w = law.quantile(z)
    (slope,) = torch.autograd.grad(w.sum(), z)
    normal = -z.detach().square() / 2 - math.log(2 * math.pi) / 2
    drawn = normal - slope.log()

    def error(p):
        # log cosh^2(w/4) - log 1 without the cancellation of a cosine near 1
        log_cosh = torch.log1p(2 * torch.sinh(w.detach() / 4).square())
        exact = -2 * p * log_cosh - law.log_total
        return float((drawn - exact).abs().max())

    assert error(p) < 1e-12
    assert error(1.001 * p) > 1e-6
    assert (slope > 0).all()


@pytest.mark.parametrize("p", [0.5, 8, 500])
def test_quadrature_has_the_moments_of_the_beta_law(p):
    law = LogitBeta(p)
    length = float(law.tail_length(np.zeros(()), 45.0))
    ends = -length, length
    # in two pieces, on either side of 0 where the angle is mirrored
    for middle in (0.2, 0.8):
        cut = ends[0] + middle * (ends[1] - ends[0])
        pieces = [
            law.quadrature(ends[0], cut),
            law.quadrature(cut, ends[1]),
        ]
        w, mass = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        beta = 1 / (1 + np.exp(-w))
        expected = 1.0
        for power in range(4):
            assert mass @ beta**power == pytest.approx(expected, rel=1e-11)
            expected *= (p + power) / (2 * p + power)
