"""The law of tau: constants against 50-digit arithmetic, moments by quadrature, the sampler point by point."""

import math

import mpmath
import pytest
import torch
from laws import generator
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import chi2

from torchdp.draws import Simulated
from torchdp.kernels import privunitg
from torchdp.randomizers.ball.privunitg import TiltedNormal

EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1, 2, 4, 8, 15, 20, 50]
TABLE = {0.01: 0.00398942, 0.5: 0.199284448, 1: 0.397463010, 4: 1.515637659, 8: 2.742944791, 20: 5.289202385}


def excess(epsilon, k):
    """E tau - k for threshold k, to 50 digits."""
    tilt = mpmath.expm1(mpmath.mpf(epsilon))
    return tilt * mpmath.npdf(k) / (1 + tilt * mpmath.ncdf(-k)) - k


def cdf(law, t):
    low = law.low_density * torch.special.ndtr(t)
    return torch.where(t < law.threshold, low, 1 - law.high_density * torch.special.log_ndtr(-t).exp())


def chi_square(uniform, bins=100):
    expected = uniform.numel() / bins
    return float(((torch.histc(uniform, bins, 0, 1) - expected).square() / expected).sum())


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_threshold_is_the_fixed_point(epsilon):
    with mpmath.workdps(50):
        exact = mpmath.findroot(lambda k: excess(epsilon, k), TiltedNormal(epsilon).threshold)
        assert abs(TiltedNormal(epsilon).threshold / exact - 1) < 2e-14


@pytest.mark.parametrize(("epsilon", "threshold"), TABLE.items())
def test_threshold_table(epsilon, threshold):
    assert TiltedNormal(epsilon).threshold == pytest.approx(threshold, rel=1e-6 if epsilon < 0.1 else 2e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_threshold_maximises_the_mean(epsilon):
    k = mpmath.mpf(TiltedNormal(epsilon).threshold)
    with mpmath.workdps(50):
        best = excess(epsilon, k) + k
        assert all(excess(epsilon, c * k) + c * k < best for c in (0.99, 1.01))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_densities_differ_by_e_to_the_epsilon_and_integrate_to_1(epsilon):
    law = TiltedNormal(epsilon)
    assert abs(math.log(law.high_density) - math.log(law.low_density) - epsilon) < 1e-12 * max(1, epsilon)
    assert abs(law.low_density * (1 - law.survival) + law.high_density * law.survival - 1) < 1e-13
    assert law.upper == pytest.approx(law.high_density * law.survival, rel=1e-15)
    assert law.survival == pytest.approx(float(mpmath.ncdf(-mpmath.mpf(law.threshold))), rel=1e-13)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1, 4, 8, 20, 50])
def test_moments_match_quadrature_of_the_density(epsilon):
    law = TiltedNormal(epsilon)
    k = law.threshold

    def integral(power, center, scale=1.0):
        def piece(t):
            return (t - center) ** power * math.exp(-t * t / 2) / math.sqrt(2 * math.pi)

        low = law.low_density * quad(piece, -40, k, epsabs=1e-13, points=[-8, 0] if k > 0 else None, limit=500)[0]
        return low + scale * law.high_density * quad(piece, k, k + 15, epsabs=0, epsrel=1e-12, limit=500)[0]

    assert integral(0, 0) == pytest.approx(1, abs=1e-11)
    assert integral(1, 0) == pytest.approx(k, rel=1e-10)
    assert integral(2, k) == pytest.approx(1, rel=1e-10)
    assert integral(3, k) == pytest.approx(law.third_moment, rel=1e-8, abs=1e-10)
    assert integral(4, k) == pytest.approx(law.fourth_moment, rel=1e-10)
    assert (law.third_moment, law.fourth_moment) == (-k, 3 + k**2)
    assert integral(2, k, scale=1.01) != pytest.approx(1, rel=1e-5)  # a high density 1 % off


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_sampler_inverts_the_distribution_function(epsilon):
    """Deterministic: with probability `upper` the tail above k, else the tail below, each at its own quantile."""
    law = TiltedNormal(epsilon)
    branch = torch.tensor([0.0, law.upper * (1 - 1e-15), law.upper, 1 - 2**-53], dtype=torch.float64)[:, None]
    tail = torch.cat([10.0 ** -torch.arange(1, 17.0, dtype=torch.float64), torch.arange(1, 100) / 100.0]).double()
    branch, tail = torch.broadcast_tensors(branch, tail)
    tau = privunitg.tilted_normal(branch, tail, threshold=law.threshold, upper=law.upper, survival=law.survival)
    above = branch < law.upper
    assert torch.equal(above, torch.tensor([True, True, False, False])[:, None].expand_as(above))
    assert (tau[above] >= law.threshold).all() and (tau[~above] <= law.threshold).all()
    # The tail that is left out, computed by scipy from tau; near 1 only absolute digits count.
    upper = torch.from_numpy(ndtr(-tau[above].numpy())) / law.survival
    lower = torch.from_numpy(ndtr(tau[~above].numpy())) / ndtr(law.threshold)
    for got, wanted in [(upper, tail[above]), (lower, tail[~above])]:
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_extreme_uniforms_stay_finite_and_on_their_side(epsilon):
    law = TiltedNormal(epsilon)
    tiny = 2.0**-53
    branch = torch.tensor([0.0, 1e-300, law.upper - tiny, law.upper, 1 - tiny], dtype=torch.float64)[:, None]
    tail = torch.tensor([tiny, 1e-300, 0.5, 1 - tiny, 1.0], dtype=torch.float64)
    branch, tail = torch.broadcast_tensors(branch, tail)
    tau = privunitg.tilted_normal(branch, tail, threshold=law.threshold, upper=law.upper, survival=law.survival)
    above = branch < law.upper
    assert tau.isfinite().all()
    assert (tau[above] >= law.threshold).all() and (tau[~above] <= law.threshold).all()


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4, 20, 50])
def test_sampler_follows_the_exact_distribution_function(epsilon):
    law = TiltedNormal(epsilon)
    tau = law.draw((1_000_000,), Simulated(generator(1)))
    critical = chi2.isf(1e-6, 99)
    assert chi_square(cdf(law, tau)) < critical
    assert chi_square(cdf(law, 1.01 * tau)) > critical  # 1 % too wide
    assert abs(float((tau >= law.threshold).double().mean()) - law.upper) < 5 * math.sqrt(law.upper / 1e6)


def test_sampler_tells_1_percent_of_epsilon():
    tau = TiltedNormal(4 * 1.01).draw((1_000_000,), Simulated(generator(2)))
    assert chi_square(cdf(TiltedNormal(4), tau)) > chi2.isf(1e-6, 99)


@pytest.mark.parametrize("epsilon", [0.5, 4, 20])
def test_sums_have_the_moments_of_independent_copies(epsilon):
    law = TiltedNormal(epsilon)
    counts = torch.tensor([0, 1, 2, 7, 16, 1000, 10**6, 10**12, 10**14])
    sums = law.sums(counts, (100_000,), Simulated(generator(3)))
    assert sums.dtype == torch.float64 and (sums[:, 0] == 0).all()
    n = counts[1:].double()
    z = (sums[:, 1:] - n * law.threshold) / n.sqrt()
    # Var = 1, so the mean has standard error 1/sqrt(1e5); the square's follows from the fourth moment.
    spread = (2 + law.threshold**2 / n).sqrt()
    assert (z.mean(0).abs() < 5.2 / math.sqrt(1e5)).all()
    assert ((z.square().mean(0) - 1).abs() < 5.2 * spread / math.sqrt(1e5)).all()
    assert (((1.02 * z).square().mean(0) - 1).abs() > 5.2 * spread / math.sqrt(1e5)).any()
    third = z.pow(3).mean(0) * n.sqrt()  # n times the third cumulant, -k
    assert abs(float(third[0]) - law.third_moment) < 30 * (1 + law.threshold**3) / math.sqrt(1e5)


def test_parameters_are_float64_whatever_comes_in():
    numpy = pytest.importorskip("numpy")
    assert TiltedNormal(numpy.float32(0.5)) == TiltedNormal(torch.tensor(0.5)) == TiltedNormal(0.5)
    assert TiltedNormal(numpy.float32(0.5)).threshold == TiltedNormal(0.5).threshold
