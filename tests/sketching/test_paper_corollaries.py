"""The paper's noise beside the exact one: where it promises too much, where it wastes, where it is undefined."""

import math

import pytest
import torch
from laws import generator
from scipy import stats

from torchdp.privacy import gaussian_log_delta, gaussian_sigma
from torchdp.sketching import (
    AdaptiveCoalition,
    GaussianNoise,
    LaplaceNoise,
    balanced_count_sketch,
    balanced_osnap,
    count_sketch,
    entry_variance,
    ones,
    osnap,
    paper,
    rademacher,
)

DELTA = 1e-6


def exact_log_delta(noise, sketch, bound, epsilon):
    copies = 1 / sketch.counts()[sketch.rows]
    mu = 2 * bound * math.sqrt(float(copies.sum(0).max())) / float(noise.sigma)
    return gaussian_log_delta(1 / mu, epsilon)


@pytest.mark.parametrize(("epsilon", "delta", "true"), [(0.5, 3.6e-6, 0.540), (1.0, 9.3e-6, 1.138)])
def test_corollary_4_7_breaks_its_promise_for_one_column_and_one_copy(epsilon, delta, true):
    """n = 1e6, m = 100, even with equally full rows; the 16 of its own proof keeps it."""
    sketch = balanced_count_sketch(1_000_000, 100, generator=generator())
    noise = paper.gaussian_noise(sketch, 1, 1.0, epsilon=epsilon, delta=DELTA)
    assert math.exp(exact_log_delta(noise, sketch, 1.0, epsilon)) == pytest.approx(delta, rel=0.02)
    assert noise.guarantee(sketch, 1.0, delta=DELTA).epsilon == pytest.approx(true, abs=1e-3)
    proof = GaussianNoise(2 * float(noise.sigma))
    assert math.exp(exact_log_delta(proof, sketch, 1.0, epsilon)) < DELTA
    uniform = count_sketch(1_000_000, 100, generator=generator())
    assert exact_log_delta(noise, uniform, 1.0, epsilon) > exact_log_delta(noise, sketch, 1.0, epsilon)


def test_corollary_4_7_keeps_its_promise_from_two_columns_on_by_waste_alone():
    sketch = balanced_count_sketch(1_000_000, 100, generator=generator())
    promise = paper.gaussian_noise(sketch, 2, 1.0, epsilon=0.5, delta=DELTA).guarantee(
        sketch, math.sqrt(2), delta=DELTA
    )
    assert promise.epsilon == pytest.approx(0.363, abs=1e-3)


RATIOS = {
    0.05: (13.6, 113.6, 1870, 15542),
    0.1: (12.4, 103.4, 1702, 14146),
    0.5: (10.1, 84.0, 1382, 11487),
}


@pytest.mark.parametrize("epsilon", RATIOS)
def test_corollary_4_7_adds_s3_d_log_times_the_least_variance(epsilon):
    """d = 10, m = 100, entries in [-1, 1]: the ratio of variances, from the noise itself and in closed form."""
    d, n, mu = 10, 100_000, 1 / gaussian_sigma(epsilon, DELTA)
    least = entry_variance(math.sqrt(d), epsilon=epsilon, delta=DELTA)
    for s, stated in zip((1, 2, 5, 10), RATIOS[epsilon], strict=True):
        sketch = balanced_osnap(n, 100, s, generator=generator())
        ratio = (
            float(paper.gaussian_noise(sketch, d, 1.0, epsilon=epsilon, delta=DELTA).variance(sketch)[0]) / least
        )
        formula = s**3 * d * math.log(1.25 * s * d / DELTA) * (mu / epsilon) ** 2
        assert ratio == pytest.approx(formula * n / (n - s), rel=1e-6)
        assert ratio == pytest.approx(stated, rel=4e-3)


def test_corollary_4_7_is_undefined_where_its_own_rule_lets_it_pass_and_exact_noise_is_not():
    """n = 16,580 > 8 m ln(d m/delta) = 16,579: the logarithm's argument is negative for several copies."""
    d, m, n = 10, 100, 16_580
    assert n > 8 * m * math.log(d * m / DELTA)
    paper.gaussian_noise(osnap(n, m, 1, generator=generator()), d, 1.0, epsilon=0.5, delta=DELTA)
    for s in (5, 10):
        sketch = osnap(n, m, s, generator=generator())
        with pytest.raises(ValueError, match="undefined"):
            paper.gaussian_noise(sketch, d, 1.0, epsilon=0.5, delta=DELTA)
        noise = GaussianNoise.calibrated(sketch, math.sqrt(d), epsilon=0.5, delta=DELTA)
        assert noise.guarantee(sketch, math.sqrt(d), delta=DELTA).epsilon == pytest.approx(0.5)


def test_the_paper_counts_the_rows_event_once_for_each_column_and_copy_and_drops_a_factor():
    """delta/(s d) - m e is what its proof has, (delta/d - m e)/s what it prints: less noise than the proof."""
    s, d, m, n = 5, 2, 50, 9000
    sketch = balanced_osnap(n, m, s, generator=generator())
    event = m * math.exp(-(n - s) / (8 * m))
    printed = float(paper.gaussian_noise(sketch, d, 1.0, epsilon=0.5, delta=DELTA).sigma) ** 2
    proof = 4 * s**3 * m * d**2 * math.log(1.25 / (DELTA / (s * d) - event)) / (0.25 * (n - s))
    assert 1.0001 * printed < proof
    assert proof * math.log(1.25 * s / (DELTA / d - event)) / math.log(
        1.25 / (DELTA / (s * d) - event)
    ) == pytest.approx(printed)


def test_half_of_every_row_is_given_away_by_the_paper_and_none_by_exact_counts():
    """(n - t')/(2 m) honest clients counted on: overhead 2; equally full rows hold n/m."""
    sketch = balanced_count_sketch(100_000, 100, generator=generator())
    least = entry_variance(1.0, epsilon=0.5, delta=DELTA)
    exact = GaussianNoise.calibrated(sketch, 1.0, epsilon=0.5, delta=DELTA, rows=False).variance(sketch)
    assert (exact / least - 1).abs().max() < 1e-8
    halved = GaussianNoise(math.sqrt(least / ((100_000 - 1) / 200))).variance(sketch)
    assert float(halved[0]) / least == pytest.approx(2.0, rel=1e-4)


def test_every_copy_of_the_sketch_falls_on_each_row_alike_so_n_needs_no_s_taken_off():
    sketch = osnap(60_000, 6, 4, generator=generator())
    for c in range(4):
        assert stats.chisquare(torch.bincount(sketch.rows[c]).numpy()).pvalue > 1e-6


def test_a_coalition_that_sees_the_sketch_empties_a_row():
    """n = 1e5, t' = 1000: abstain."""
    sketch = balanced_count_sketch(100_000, 100, generator=generator())
    with pytest.raises(ValueError, match="no honest client"):
        GaussianNoise.calibrated(sketch, 1.0, epsilon=0.5, delta=DELTA, coalition=AdaptiveCoalition(1000))


def test_corollary_4_10_promises_m_times_what_it_needs():
    m, n, eta, d, epsilon = 10, 1000, 1.0, 3, 0.5
    sketch = rademacher(n, m, generator=generator())
    noise = paper.laplace_noise(sketch, d, eta, epsilon=epsilon)
    promise = noise.guarantee(sketch, eta * d)
    assert promise.exact and promise.delta == 0 and promise.epsilon == pytest.approx(epsilon / m)
    one = balanced_count_sketch(n, m, generator=generator())
    sparse = LaplaceNoise.calibrated(one, eta * d, epsilon=epsilon).variance(one)
    dense = LaplaceNoise.calibrated(sketch, eta * d, epsilon=epsilon).variance(sketch)
    assert float(sparse[0]) == pytest.approx(8 * (eta * d / epsilon) ** 2)
    assert float(dense[0] / sparse[0]) == pytest.approx(m)
    assert float(noise.variance(sketch)[0] / sparse[0]) == pytest.approx(m**4)


def test_a_sparse_sketch_is_purely_private_also_with_uniform_rows():
    sketch = count_sketch(1000, 10, generator=generator())
    promise = LaplaceNoise.calibrated(sketch, 2.0, epsilon=0.5).guarantee(sketch, 2.0)
    assert promise.delta == 0 and promise.exact and promise.epsilon == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("columns", "true"),
    [(3, (0.82, 3.0, 20)), (7, (1.3, 4.9, 36)), (11, (1.65, 6.3, 49)), (90, (5.3, 23, 244))],
)
def test_the_noise_of_the_experiments_is_far_from_its_nominal_epsilon(columns, true):
    """m = 100, entries in [-1, 1], nominal epsilon .03, .1, .5; whatever n."""
    sketch = balanced_count_sketch(50_000, 100, generator=generator())
    for nominal, epsilon in zip((0.03, 0.1, 0.5), true, strict=True):
        noise = paper.experiment_noise(sketch, epsilon=nominal, delta=DELTA)
        found = noise.guarantee(sketch, math.sqrt(columns), delta=DELTA).epsilon
        assert found == pytest.approx(epsilon, rel=0.03) and found > 10 * nominal


def test_the_laplace_noise_of_the_experiments_is_not_that_of_corollary_4_10():
    m, d, epsilon = 10, 3, 0.05
    sketch = balanced_count_sketch(5000, m, generator=generator())
    noise = paper.experiment_laplace_noise(sketch, epsilon=epsilon)
    assert float(noise.variance(sketch)[0]) == pytest.approx(m * 2 / epsilon**2)
    assert noise.guarantee(sketch, d).epsilon == pytest.approx(2 * d * epsilon)
    dense = rademacher(5000, m, generator=generator())
    theorem = paper.laplace_noise(dense, d, 1.0, epsilon=epsilon).variance(dense)
    assert float(theorem[0] / noise.variance(sketch)[0]) == pytest.approx((2 * m**2 * d) ** 2 / m)


def test_the_plain_sum_needs_no_more_than_central_noise():
    noise = GaussianNoise.calibrated(ones(400), 1.0, epsilon=0.5, delta=DELTA, rows=False)
    assert float(noise.sigma) * 20 == pytest.approx(gaussian_sigma(0.5, DELTA, 2.0))
