"""Mixtures of normal distributions against noise: the bound beside fine integration and what it is made of."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from torchdp.privacy import gaussian_log_delta
from torchdp.privacy.mixtures import (
    Comparison,
    _atoms,
    _hats,
    compared_delta,
    comparisons,
    mixture_delta,
    mixture_epsilon,
    mixture_sigma,
)

POINTS = {1: 4001, 2: 401, 3: 91}  # of a direction, 9 deviations on both sides


def truth(gram: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Both hockey-stick divergences of the mixture, by a trapezoidal rule in all of its directions."""
    bins, z = len(gram), np.linspace(-9, 9, POINTS[len(gram)])
    root, t = np.linalg.cholesky(gram + 1e-13 * np.eye(bins)), math.exp(epsilon)
    weights = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()
    weight = np.prod(np.meshgrid(*[weights] * bins, indexing="ij"), axis=0).ravel()
    Z = np.stack([part.ravel() for part in np.meshgrid(*[z] * bins, indexing="ij")])

    def ratio(shift: np.ndarray | float) -> np.ndarray:
        return np.exp(root @ Z + shift - gram.diagonal()[:, None] / 2).mean(0)

    removed = np.mean([weight @ np.maximum(0, 1 - t / ratio(row[:, None])) for row in gram])
    return float(removed), float(weight @ np.maximum(0, 1 - t * ratio(0.0)))


def met(gram: np.ndarray) -> np.ndarray:
    """What bins d apart on the circle have in common, at most."""
    at = np.arange(len(gram))
    found = np.array([gram[at, (at + d) % len(gram)].max() for d in at]) * (1 + 1e-12)
    return np.r_[found.max(), found[1:]]


def covariance(one: Comparison) -> np.ndarray:
    """G' of a comparison."""
    place = np.arange(one.bins)
    lag, same = np.abs(place[:, None] - place), place[:, None] // one.length == place // one.length
    return one.common + same * one.shared * one.decay**lag + one.own * np.eye(one.bins)


def random_gram(rng: np.random.Generator) -> np.ndarray:
    """Of 3 to 6 steps of 1 to 3 bins under a random lower triangular C, times random noise."""
    bins, steps = int(rng.integers(1, 4)), int(rng.integers(3, 7))
    C = np.tril(rng.random((steps, steps))) * rng.choice([0.2, 1.0]) + 0.3 * np.eye(steps)
    m = np.stack([C[:, i::bins].sum(1) for i in range(bins)])
    return m @ m.T / 10 ** rng.uniform(-0.2, 1.5)


def test_guarantee_never_below_the_truth():
    """Random small C: three steps and more, both directions, also of each comparison alone; and not far above."""
    rng, ratios = np.random.default_rng(1), []
    for case in range(12):
        gram, epsilon = random_gram(rng), (0.0, 0.1, 0.5, 1.0, 2.0)[case % 5]
        worst = max(truth(gram, epsilon))
        found = mixture_delta(met(gram), epsilon)
        assert found >= worst * (1 - 2e-3), (case, found, worst)  # the rule's own error: its integrand has a kink
        assert all(compared_delta(one, epsilon) >= worst * (1 - 2e-3) for one in comparisons(met(gram))[:2])
        ratios += [found / worst] if worst > 1e-6 else []
    assert len(ratios) > 6 and np.median(ratios) < 1.6


def test_guarantee_removing_a_user_shows_more_than_adding_one():
    """Of mixtures of any means, also opposite ones; not where the ratio's logarithm is concave: a control."""
    rng, z = np.random.default_rng(3), np.linspace(-9, 9, 4001)
    for case in range(30):
        m = rng.standard_normal((1 + case % 3, 1 + case % 3)) * 10 ** rng.uniform(-1, 0.5)
        removed, added = truth(m @ m.T, (0.0, 0.1, 1.0, 3.0)[case % 4])
        assert removed >= added * (1 - 2e-3) - 1e-7
    weight, ratio = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum(), 1 / np.cosh(z)
    ratio /= weight @ ratio
    assert weight @ np.maximum(1 - 1.1 * ratio, 0) > 1.1 * (weight @ np.maximum(ratio - 1.1, 0))


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
@pytest.mark.parametrize(
    "one",
    [
        Comparison(3, 1, 0.0, 0.0, 0.0, 0.8),
        Comparison(2, 1, 0.3, 0.0, 0.0, 0.5),
        Comparison(1, 3, 0.0, 0.6, 0.7, 0.2),
        Comparison(1, 2, 0.2, 0.6, 0.5, 0.0),
    ],
)
def test_guarantee_of_each_covariance_is_tight(one, epsilon):
    """What is left over the truth of G' itself is the grids': 15 %; a G' a fifth too small is below it."""
    exact = max(truth(covariance(one) + 1e-12 * np.eye(one.bins), epsilon))
    assert exact * (1 - 2e-3) <= compared_delta(one, epsilon) < 1.15 * exact
    assert compared_delta(one.scaled(0.8), epsilon) < exact


def test_one_bin_is_gaussian_noise():
    overlaps = np.array([0.7])
    assert math.log(mixture_delta(overlaps, 1.0)) == pytest.approx(gaussian_log_delta(1.0, 1.0, 0.7**0.5))
    assert mixture_delta(np.ones(5), 1.0) <= math.exp(gaussian_log_delta(1.0, 1.0)) * (1 + 1e-9)


def test_guarantee_comparisons_are_no_smaller_in_any_entry():
    """Every pair of bins that a rotation keeps, wherever its runs lie."""
    rng = np.random.default_rng(2)
    for bins in (1, 2, 5, 12, 30):
        overlaps = np.sort(rng.random(bins))[::-1]
        overlaps = np.r_[overlaps[:1], np.maximum(overlaps[1:], overlaps[1:][::-1])]  # of a circle
        for one in comparisons(overlaps):
            apart = bins // one.runs  # runs begin so far apart, or further
            kept = (np.arange(one.runs)[:, None] * apart + np.arange(one.length)).ravel()
            true = overlaps[(kept - kept[:, None]) % bins]
            assert (covariance(one) >= true * (1 - 1e-14)).all()


def test_guarantee_atoms_keep_the_mean_and_only_lose_what_is_said():
    x, p = _atoms(0.5, 0.1, 7.0)
    assert p @ x == pytest.approx(1, abs=1e-11) and p.sum() == pytest.approx(1, abs=1e-11) and (p >= 0).all()
    for c in (0.2, 1.0, 3.0):  # a put of a lognormal number, Black and Scholes (1973)
        z = (math.log(c) + 0.25) / 0.5**0.5
        exact = c * ndtr(z) - ndtr(z - 0.5**0.5)
        assert exact - 1e-12 <= p @ np.maximum(c - x, 0) < exact + 2e-3
    points = 0.2 * np.arange(-40, 41)
    chances = _hats(np.array([-0.13, 0.0, 0.4]), 0.7, points)
    assert chances.sum(1) == pytest.approx(np.ones(3)) and chances @ points == pytest.approx([-0.13, 0, 0.4])
    assert chances @ points**2 - (chances @ points) ** 2 == pytest.approx(np.full(3, 0.49 + 0.2**2 / 6), rel=1e-4)


@pytest.mark.parametrize("overlaps", [[1.0, 0.0], [4.0, 2.0, 1.0, 2.0], [3.0] + [0.5] * 7, [2.0] + [0.0] * 999])
def test_guarantee_sigma_epsilon_and_delta_agree(overlaps):
    overlaps = np.array(overlaps)
    sigma = mixture_sigma(overlaps, 1.0, 1e-5)
    assert 0.85e-5 < mixture_delta(overlaps / sigma**2, 1.0) <= 1e-5
    assert mixture_epsilon(overlaps / (1.002 * sigma) ** 2, 1e-5) <= 1.0


def test_extremes_are_served():
    assert mixture_delta(np.array([1e6, 0.0]), 1.0) <= 1.0
    assert mixture_epsilon(np.array([1e7, 0.0]), 1e-5) == math.inf
    assert mixture_delta(np.array([1e-8, 0.0, 0.0]), 0.0) < 1e-4
    assert mixture_delta(np.array([2.0, 0.0]), 500.0) < 1e-100
