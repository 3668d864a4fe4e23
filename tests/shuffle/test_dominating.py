"""Dominating pairs against what users send, written out for every database, and against 50
digits.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.signal import fftconvolve

from torchdp.privacy.composition import gaussian_profile, pure_profile
from torchdp.shuffle.count_laws import (
    BLOCKS,
    correlated_profiles,
    negative_binomial_law,
    one_type_profiles,
    pair_profile,
    poisson_law,
    unlimited_flood_profiles,
)
from torchdp.shuffle.response import _OUTSIDE, response_profile

EPSILONS = np.array([-2.0, -0.5, -0.01, 0.0, 0.001, 0.01, 0.1, 0.3, 1.0, 2.0, 3.0])


def hockey_stick(p, q, epsilons=EPSILONS):
    excess = [p - math.exp(e) * q for e in epsilons]
    return np.array([np.maximum(0, each).sum() for each in excess])


def view(user_laws, bits):
    """Law of the number of ones, or of messages, that users with these bits send together."""
    law = np.ones(1)
    for bit in bits:
        law = np.convolve(law, user_laws[bit])
    return law


def worst_over_databases(user_laws, users, old, new):
    """max over the other users' bits of H(old bit || new bit)."""
    curves = []
    for others in itertools.product((0, 1), repeat=users - 1):
        laws = [view(user_laws, (bit, *others)) for bit in (old, new)]
        size = max(map(len, laws))
        laws = [np.append(law, np.zeros(size - len(law))) for law in laws]
        curves.append(hockey_stick(*laws))
    return np.max(curves, axis=0), np.min(curves, axis=0)


def shares(law):
    """What a user with bit 0, and with bit 1, sends if its noise has this law."""
    return {0: np.append(law, 0.0), 1: np.append(0.0, law)}


@pytest.mark.parametrize("users", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["poisson", "negative binomial", "geometric"])
def test_guarantee_one_type_profiles_are_exact_for_every_database(users, kind):
    # beyond, the laws have no mass
    counts = np.arange(80)
    shape, ratio = (2.5, 0.4) if kind == "negative binomial" else (0.7, 0.6)
    if kind == "poisson":
        law = stats.poisson(3.0 / users)
        profiles = one_type_profiles(poisson_law(3.0))
        more = one_type_profiles(poisson_law(3.6))
    else:
        law = stats.nbinom(shape / users, 1 - ratio)
        profiles = one_type_profiles(negative_binomial_law(shape, ratio))
        more = one_type_profiles(negative_binomial_law(1.2 * shape, ratio))
    user_laws = shares(law.pmf(counts))
    for (old, new), profile, noisier in zip([(1, 0), (0, 1)], profiles, more, strict=True):
        worst, best = worst_over_databases(user_laws, users, old, new)
        # the others' bits do not matter
        np.testing.assert_allclose(worst, best, atol=1e-12)
        np.testing.assert_allclose(profile(EPSILONS), worst, atol=1e-9)
        assert (profile(EPSILONS) >= worst - 1e-15).all()
        assert (noisier(EPSILONS) < worst - 1e-3).any()


def correlated_view(bit, shape, ratio, flood_shape, flood_ratio, size=110):
    counts = np.arange(size)
    noise = stats.nbinom(shape, 1 - ratio).pmf(counts)
    law = np.zeros((size, size))
    flood = np.diag(stats.nbinom(flood_shape, 1 - flood_ratio).pmf(counts))
    law[bit:] = np.outer(noise[: size - bit], noise)
    return np.maximum(fftconvolve(law, flood)[:size, :size], 0.0)


FLOODS = [(2.0, 0.5), (6.0, 0.3), (0.7, 0.6)]


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_guarantee_correlated_profiles_are_exact(ratio, flood):
    zero = correlated_view(0, 1.0, ratio, *flood)
    one = correlated_view(1, 1.0, ratio, *flood)
    for profile, pair in zip(
        correlated_profiles(ratio, *flood),
        ((one, zero), (zero, one)),
        strict=True,
    ):
        truth = hockey_stick(*pair)
        np.testing.assert_allclose(profile(EPSILONS), truth, atol=1e-9)
        assert (profile(EPSILONS) >= truth - 1e-12).all()


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("shape", [0.3, 0.9])
def test_guarantee_correlated_profiles_cover_less_than_all_the_noise(shape, flood):
    zero = correlated_view(0, shape, 0.5, *flood)
    one = correlated_view(1, shape, 0.5, *flood)
    for profile, pair in zip(
        correlated_profiles(0.5, *flood, shape=shape),
        ((one, zero), (zero, one)),
        strict=True,
    ):
        truth = hockey_stick(*pair)
        assert (profile(EPSILONS) >= truth - 1e-12).all()
        assert (profile(EPSILONS) <= truth + 0.15).all()
    # the flood without the minimum: not much worse
    nearly = correlated_profiles(0.5, *flood, shape=1 - 1e-9)
    for bound, exact in zip(nearly, correlated_profiles(0.5, *flood), strict=True):
        assert (bound(EPSILONS) >= exact(EPSILONS) - 1e-8).all()


def test_a_flood_that_is_too_small_is_caught():
    zero = correlated_view(0, 1.0, 0.5, 1.0, 0.3)
    one = correlated_view(1, 1.0, 0.5, 1.0, 0.3)
    truth = hockey_stick(zero, one)
    # of twice the flood that there is
    promised = correlated_profiles(0.5, 2.0, 0.3)[1](EPSILONS)
    unlimited = unlimited_flood_profiles(0.5)[1](EPSILONS)
    assert (promised < truth - 1e-3).any()
    assert (unlimited < truth - 0.05).any()


@pytest.mark.filterwarnings("error")
def test_curves_far_out_do_not_overflow():
    # powers of e^epsilon overflow from 709 on
    epsilons = np.array([-1e6, 1e3, 1e6])
    for profile in (
        *unlimited_flood_profiles(0.5),
        *unlimited_flood_profiles(0.5, shape=0.7),
        *one_type_profiles(poisson_law(40.0)),
    ):
        assert profile(epsilons)[0] == 1
        assert (profile(epsilons)[1:] <= 1e-3).all()


def test_unlimited_flood_is_the_limit_and_randomized_response():
    for flooded, limit in zip(
        correlated_profiles(0.5, 4e4, 0.9),
        unlimited_flood_profiles(0.5),
        strict=True,
    ):
        assert (flooded(EPSILONS) >= limit(EPSILONS) - 1e-9).all()
        np.testing.assert_allclose(flooded(EPSILONS), limit(EPSILONS), atol=2e-3)
        np.testing.assert_allclose(
            limit(EPSILONS),
            pure_profile(math.log(2))(EPSILONS),
            atol=1e-9,
        )


def response_exact(users, flip, ones):
    f = np.convolve(
        stats.binom.pmf(np.arange(users - ones), users - 1 - ones, flip),
        stats.binom.pmf(np.arange(ones + 1), ones, 1 - flip),
    )
    one = np.convolve(f, [flip, 1 - flip])
    zero = np.convolve(f, [1 - flip, flip])
    return np.maximum(hockey_stick(one, zero), hockey_stick(zero, one))


@pytest.mark.parametrize(
    ("users", "flip"),
    [
        (120, 0.008),
        (200, 0.4),
        (513, 0.05),
        (1100, 0.02),
    ],
)
def test_guarantee_response_covers_every_number_of_ones(users, flip):
    # whatever the other users hold
    every = np.max([response_exact(users, flip, k) for k in range(users)], axis=0)
    curve = response_profile(users, flip)(EPSILONS)
    assert (curve >= every - 1e-13).all()
    if users <= 512:
        np.testing.assert_allclose(curve, every, atol=1e-9)
    else:
        # the given messages cost at most the variance of one user in 512
        fewer = np.max(
            [response_exact(users - 1 - users // 512, flip, k) for k in range(0, users - 3, 3)],
            axis=0,
        )
        assert (curve <= 1.0001 * fewer + 1e-9).all()


@pytest.mark.parametrize("p", [1e-5, 0.01, 0.2, 0.433, 0.4999])
@pytest.mark.parametrize("others", [3, 1000, 10**6])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_the_start_of_the_ratios_is_forgotten(others, p, share):
    # the shrinking that ``_laws`` counts on, between the ends of its rows and the counts that
    # matter
    q = 1 - p
    variance = others * p * (1 - p)
    k = int(share * others)
    mean = others * p + k * (q - p)

    # Bernstein: outside with probability at most e^-log
    def reach(log):
        return log / 3 + math.sqrt((log / 3) ** 2 + 2 * log * variance)

    top = mean + reach(2 * _OUTSIDE)
    core = mean + reach(_OUTSIDE)
    y = np.arange(math.ceil(core), math.floor(top))
    factors = 1 + (p * p + q * q) * (y - mean) / (p * q * (y + 1))
    assert top >= others or np.log(factors).sum() >= 40


def test_response_far_out_keeps_its_digits():
    users = 400
    p = mpmath.mpf(1) / 16
    k = 100
    y = mpmath
    with mpmath.workdps(50):

        def binomial(n, q):
            return [y.binomial(n, i) * q**i * (1 - q) ** (n - i) for i in range(n + 1)]

        first = binomial(users - 1 - k, p)
        second = binomial(k, 1 - p)
        f = [y.mpf(0)] * (users + 1)
        for i, a in enumerate(first):
            for j, b in enumerate(second):
                f[i + j] += a * b

        def mixed(a):
            return [a * f[c - 1] + (1 - a) * f[c] for c in range(users + 1)]

        law = [mixed(1 - p), mixed(p)]
        for epsilon in (0.5, 1.0, 1.5):
            r = mpmath.exp(epsilon)
            exact = sum(
                (max(y.mpf(0), P - r * Q) for P, Q in zip(*law, strict=True)),
                y.mpf(0),
            )
            assert float(exact) < 1e-4
            assert response_profile(users, 1 / 16)(np.array([epsilon]))[0] >= float(exact)


@pytest.mark.parametrize("mean", [0.5, 34.0, 4000.0])
def test_guarantee_poisson_profiles_keep_their_digits(mean):
    size = int(mean + 25 * mean**0.5) + 60
    with mpmath.workdps(50):
        law = [mpmath.exp(-mpmath.mpf(mean))]
        for y in range(1, size):
            law.append(law[-1] * mean / y)
    for epsilon in (0.05, 0.1, 0.5, 2.0):
        with mpmath.workdps(50):
            r = mpmath.exp(epsilon)
            pairs = list(itertools.pairwise(law))
            up = sum(max(0, before - r * after) for before, after in pairs)
            down = law[0] + sum(max(0, after - r * before) for before, after in pairs)
        for profile, exact in zip(
            one_type_profiles(poisson_law(mean)),
            (up, down),
            strict=True,
        ):
            found = float(profile(np.array([epsilon]))[0])
            assert float(exact) <= found <= float(exact) * (1 + 1e-7) + 1e-38


def test_guarantee_gaussian_and_pure_profiles_are_exact():
    from torchdp.privacy import gaussian_log_delta

    for sigma in (0.5, 3.0, 1000.0):
        found = gaussian_profile(sigma)(np.array([0.5, 1.0, 4.0]) / sigma)
        exact = [math.exp(gaussian_log_delta(sigma, e / sigma)) for e in (0.5, 1.0, 4.0)]
        assert (found >= exact).all()
        assert found == pytest.approx(exact, rel=1e-6)
    p = 1 / (1 + math.exp(-0.8))
    truth = hockey_stick(np.array([p, 1 - p]), np.array([1 - p, p]))
    np.testing.assert_allclose(pure_profile(0.8)(EPSILONS), truth, atol=1e-9)
    assert (pure_profile(0.7)(EPSILONS) < truth - 1e-3).any()


def test_every_curve_falls_is_convex_and_reverses():
    epsilons = np.linspace(-1.5, 1.5, 301)
    curves = [
        response_profile(50, 0.1),
        *one_type_profiles(poisson_law(20.0)),
        *correlated_profiles(0.7, 9.0, 0.5),
    ]
    for profile in curves:
        curve = profile(epsilons)
        assert (np.diff(curve) <= 0).all()
        assert (curve >= -np.expm1(epsilons) - 1e-12).all()
        slopes = np.diff(curve) / np.diff(np.exp(epsilons))
        assert (np.diff(slopes) >= -1e-9).all()
        flat = profile(np.array([0.1, 0.2]))
        assert (profile(np.array([[0.1], [0.2]])) == flat[:, None]).all()
    up, down = one_type_profiles(poisson_law(20.0))
    np.testing.assert_allclose(
        up(-epsilons),
        1 - np.exp(-epsilons) + np.exp(-epsilons) * down(epsilons),
        atol=1e-9,
    )


def test_a_pair_written_out():
    masses = np.array([0.5, 0.3])
    losses = np.array([-1.0, 2.0])
    curve = pair_profile(masses, losses, 0.2)(np.array([-9.0, 0.0, 3.0]))
    # 1 - e^(epsilon - loss) of each loss above epsilon
    expected = [
        0.2 - 0.5 * math.expm1(-8) - 0.3 * math.expm1(-11),
        0.2 - 0.3 * math.expm1(-2),
        0.2,
    ]
    np.testing.assert_allclose(curve, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("shape", "ratio"),
    [(1e-3, 0.5), (1e-3, 0.999), (1.0, 0.01), (300.0, 0.98)],
)
def test_laws_lose_next_to_nothing(shape, ratio):
    law = negative_binomial_law(shape, ratio)
    exact = stats.nbinom(shape, 1 - ratio)
    assert law.lost < 1e-30
    first = law.first + np.arange(5)
    np.testing.assert_allclose(law.mass[:5], exact.pmf(first), rtol=1e-8)
    assert law.first == 0 or exact.cdf(law.first - 1) <= law.lost
    assert exact.sf(law.first + len(law.mass) - 1) <= law.lost
    assert poisson_law(1e-3).first == 0
    assert poisson_law(1e8).first > 9.9e7


@pytest.mark.parametrize(
    "law",
    [
        poisson_law(4e6),
        negative_binomial_law(1e6, 0.5),
        negative_binomial_law(0.3, 0.999),
    ],
    ids=["P", "NB", "few"],
)
def test_guarantee_a_law_told_by_blocks_hides_no_less_and_costs_little(law):
    """Curves and moments of the outcomes one by one, against those of the pair by blocks, in both
    directions.
    """
    a, b, loss = law.neighbours()
    assert len(a) <= 2 * BLOCKS < len(law.mass) / 4
    assert a.sum() == pytest.approx(law.mass[1:].sum(), abs=1e-12)
    assert b.sum() == pytest.approx(law.mass[:-1].sum(), abs=1e-12)
    assert (a >= 0).all()
    assert np.abs(loss).max() <= np.abs(law.step).max()
    spread = math.sqrt(float(law.mass[1:] @ law.step**2))
    epsilons = spread * np.linspace(-6, 6, 49)
    for p, q, few, of, sign in (
        (law.mass[1:], law.mass[:-1], a, b, -1),
        (law.mass[:-1], law.mass[1:], b, a, 1),
    ):
        exact = hockey_stick(p, q, epsilons)
        ours = hockey_stick(few, of, epsilons)
        assert (ours >= exact - 1e-13).all()
        assert (ours <= exact * 1.001 + 1e-13).all()
        for power in (3.0, 40.0, -2.0, -39.0):
            truth = p @ np.exp(sign * power * law.step) - 1
            bound = few @ np.exp(sign * power * loss) - 1
            assert truth - 1e-6 * abs(truth) - 1e-12 <= bound <= truth + 1e-4 * abs(truth) + 1e-12
    # a millionth of the mass missing: caught
    smaller = hockey_stick(a * (1 - 1e-6), b, epsilons)
    assert (smaller < hockey_stick(law.mass[1:], law.mass[:-1], epsilons) - 1e-13).any()
