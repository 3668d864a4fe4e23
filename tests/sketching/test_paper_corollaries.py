"""The paper's noise beside the exact one: where it promises too much, where it wastes, where it is
undefined.
"""

import math

import pytest
from laws import generator

from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.sketching import (
    GaussianNoise,
    LaplaceNoise,
    balanced_count_sketch,
    balanced_osnap,
    count_sketch,
    entry_variance,
    osnap,
    paper,
    rademacher,
)

DELTA = 1e-6


def exact_log_delta(noise, sketch, bound, epsilon):
    copies = 1 / sketch.counts()[sketch.rows]
    fewest = float(copies.sum(0).max())
    mu = 2 * bound * math.sqrt(fewest) / float(noise.sigma)
    return gaussian_log_delta(1 / mu, epsilon)


@pytest.mark.parametrize(("epsilon", "delta", "true"), [(0.5, 3.6e-6, 0.540), (1.0, 9.3e-6, 1.138)])
def test_corollary_4_7_breaks_its_promise_for_one_column_and_one_copy(epsilon, delta, true):
    """n = 1e6, m = 100, even with equally full rows; the 16 of its own proof keeps it."""
    sketch = balanced_count_sketch(1_000_000, 100, generator=generator())
    noise = paper.gaussian_noise(
        sketch,
        1,
        1.0,
        epsilon=epsilon,
        delta=DELTA,
    )
    assert math.exp(exact_log_delta(noise, sketch, 1.0, epsilon)) == pytest.approx(delta, rel=0.02)
    assert noise.guarantee(sketch, 1.0, delta=DELTA).epsilon == pytest.approx(true, abs=1e-3)
    proof = GaussianNoise(2 * float(noise.sigma))
    assert math.exp(exact_log_delta(proof, sketch, 1.0, epsilon)) < DELTA
    uniform = count_sketch(1_000_000, 100, generator=generator())
    assert exact_log_delta(noise, uniform, 1.0, epsilon) > exact_log_delta(
        noise, sketch, 1.0, epsilon
    )


RATIOS = {
    0.05: (13.6, 113.6, 1870, 15542),
    0.1: (12.4, 103.4, 1702, 14146),
    0.5: (10.1, 84.0, 1382, 11487),
}


@pytest.mark.parametrize("epsilon", RATIOS)
def test_corollary_4_7_adds_s3_d_log_times_the_least_variance(epsilon):
    """d = 10, m = 100, entries in [-1, 1]: the ratio of variances, from the noise itself and in
    closed form.
    """
    d = 10
    n = 100_000
    mu = 1 / gaussian_sigma(epsilon, DELTA)
    least = entry_variance(math.sqrt(d), epsilon=epsilon, delta=DELTA)
    for s, stated in zip((1, 2, 5, 10), RATIOS[epsilon], strict=True):
        sketch = balanced_osnap(n, 100, s, generator=generator())
        noise = paper.gaussian_noise(
            sketch,
            d,
            1.0,
            epsilon=epsilon,
            delta=DELTA,
        )
        ratio = float(noise.variance(sketch)[0]) / least
        logarithm = math.log(1.25 * s * d / DELTA)
        formula = s**3 * d * logarithm * (mu / epsilon) ** 2
        assert ratio == pytest.approx(formula * n / (n - s), rel=1e-6)
        assert ratio == pytest.approx(stated, rel=4e-3)


def test_corollary_4_7_is_undefined_where_its_own_rule_lets_it_pass_and_exact_noise_is_not():
    """n = 16,580 > 8 m ln(d m/delta) = 16,579: the logarithm's argument is negative for several
    copies.
    """
    d = 10
    m = 100
    n = 16_580
    assert n > 8 * m * math.log(d * m / DELTA)
    paper.gaussian_noise(
        osnap(n, m, 1, generator=generator()),
        d,
        1.0,
        epsilon=0.5,
        delta=DELTA,
    )
    for s in (5, 10):
        sketch = osnap(n, m, s, generator=generator())
        with pytest.raises(ValueError, match="undefined"):
            paper.gaussian_noise(
                sketch,
                d,
                1.0,
                epsilon=0.5,
                delta=DELTA,
            )
        noise = GaussianNoise.calibrated(
            sketch,
            math.sqrt(d),
            epsilon=0.5,
            delta=DELTA,
        )
        assert noise.guarantee(sketch, math.sqrt(d), delta=DELTA).epsilon == pytest.approx(0.5)


def test_corollary_4_10_promises_m_times_what_it_needs():
    m = 10
    n = 1000
    eta = 1.0
    d = 3
    epsilon = 0.5
    sketch = rademacher(n, m, generator=generator())
    noise = paper.laplace_noise(sketch, d, eta, epsilon=epsilon)
    promise = noise.guarantee(sketch, eta * d)
    assert promise.exact
    assert promise.delta == 0
    assert promise.epsilon == pytest.approx(epsilon / m)
    one = balanced_count_sketch(n, m, generator=generator())
    sparse = LaplaceNoise.calibrated(one, eta * d, epsilon=epsilon).variance(one)
    dense = LaplaceNoise.calibrated(sketch, eta * d, epsilon=epsilon).variance(sketch)
    assert float(sparse[0]) == pytest.approx(8 * (eta * d / epsilon) ** 2)
    assert float(dense[0] / sparse[0]) == pytest.approx(m)
    assert float(noise.variance(sketch)[0] / sparse[0]) == pytest.approx(m**4)


@pytest.mark.parametrize(
    ("columns", "true"),
    [
        (3, (0.82, 3.0, 20)),
        (7, (1.3, 4.9, 36)),
        (11, (1.65, 6.3, 49)),
        (90, (5.3, 23, 244)),
    ],
)
def test_the_noise_of_the_experiments_is_far_from_its_nominal_epsilon(columns, true):
    """m = 100, entries in [-1, 1], nominal epsilon .03, .1, .5; whatever n."""
    sketch = balanced_count_sketch(50_000, 100, generator=generator())
    for nominal, epsilon in zip((0.03, 0.1, 0.5), true, strict=True):
        noise = paper.experiment_noise(sketch, epsilon=nominal, delta=DELTA)
        found = noise.guarantee(sketch, math.sqrt(columns), delta=DELTA).epsilon
        assert found == pytest.approx(epsilon, rel=0.03)
        assert found > 10 * nominal
