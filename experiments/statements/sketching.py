"""Burkhardt, Keller, Orlandi, Schwiegelshohn (2025): statements about sketches and divided
noise.
"""

import itertools
import math

import numpy as np
from scipy.special import kve
from scipy.stats import binom, chi2

from statements.base import EPSILONS, SMALL, Statements, grid, largest
from torchdp.privacy import gaussian_log_delta

burkhardt = Statements("Burkhardt")
DELTAS = (1e-12, 1e-6, 1e-3, 0.1, 0.9)


@burkhardt.grid(
    "Lemma 3.3",
    "the same for epsilon <= 1, the range of its source",
    "the same deltas",
    SMALL,
    DELTAS,
)
@burkhardt.grid(
    "Lemma 3.3",
    "sigma^2 = 2 Delta^2 ln(1.25/delta)/epsilon^2 is (epsilon, delta)-DP, for every epsilon",
    "epsilon = 0.01 to 32, delta = 1e-12 to 0.9, against the exact delta",
    EPSILONS,
    DELTAS,
    kind="range",
)
def gaussian(epsilon, delta):
    sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    yield (
        f"epsilon = {epsilon:g}, delta = {delta:g}",
        math.exp(gaussian_log_delta(sigma, epsilon)),
        delta,
    )


@burkhardt.each(
    "Lemmas 3.4 and 3.5",
    "Laplace noise of scale Delta_1/epsilon, sums of losses",
    "integer changes of 1 to 5 coordinates, on a grid of outputs; epsilon = 0.01 to 32",
)
def laplace(draw):
    change = draw.rng.integers(-3, 4, draw.size(5)).astype(float)
    scale = np.abs(change).sum() / draw.epsilon
    outputs = draw.rng.normal(size=(200, len(change))) * 10
    if scale:
        moved = np.abs(outputs - change).sum(1)
        losses = (moved - np.abs(outputs).sum(1)) / scale
        yield f"epsilon = {draw.epsilon:g}", largest(losses), draw.epsilon


def crowded(m, n, gamma):
    """P of one given row's count being above (1 + gamma) n/m, and below (1 - gamma) n/m."""
    mean = n / m
    count = binom(n, 1 / m)
    # a rounding to the inside, so that a count at the limit is not lost
    highest = math.floor(mean * (1 + gamma) + 1e-9)
    lowest = math.ceil(mean * (1 - gamma) - 1e-9)
    return count.sf(highest), count.cdf(lowest - 1)


SIZES = ((2, 10), (2, 1000), (5, 5), (5, 200), (20, 400), (20, 2000), (100, 10_000), (100, 10**6))
GAMMAS = (0.05, 0.3, 0.5, 0.9, 0.99)


@burkhardt.grid(
    "Lemma 4.5",
    "P(some row's count differs by more than gamma n/m) < 2 m exp(-gamma^2 n/(2 m)), two-sided as printed",
    "m = 2 to 100, n to 1e6, gamma = 0.05 to 0.99; one row alone, exact",
    SIZES,
    GAMMAS,
    kind="false",
)
def counts(size: tuple[int, int], gamma):
    m, n = size
    bound = -gamma * gamma * n / (2 * m) + math.log(2 * m)
    at_least = sum(crowded(m, n, gamma))
    if at_least > 0 and bound > -700:
        yield f"m = {m}, n = {n}, gamma = {gamma:g}", at_least / math.exp(bound), 1.0


@burkhardt.grid(
    "Lemma 4.5",
    "the lower side, which the privacy proof uses: m exp(-gamma^2 n/(2 m)); the upper with gamma^2/(2 + gamma)",
    "the same, the union over rows",
    SIZES,
    GAMMAS,
)
def counts_mended(size: tuple[int, int], gamma):
    m, n = size
    above, below = crowded(m, n, gamma)
    rate = gamma * gamma * n / m
    at = f"m = {m}, n = {n}, gamma = {gamma:g}"
    if rate < 1000:
        yield f"below, {at}", below, math.exp(-rate / 2)
        yield f"above, {at}", above, math.exp(-rate / (2 + gamma))


def sums_of_gammas(x, shape):
    """Log density, up to a constant, of the difference of two gamma variables of scale 1."""
    y = np.abs(x) + 1e-300
    return (shape - 0.5) * np.log(y) + np.log(kve(shape - 0.5, y)) - y


def fewest_honest(n, m, corrupt):
    """Honest clients of the row with the fewest, over all coalitions; n/m clients a row."""
    rows = np.arange(n) % m
    fewest = n
    for coalition in itertools.combinations(range(n), corrupt):
        honest = np.delete(rows, list(coalition))
        fewest = min(fewest, np.bincount(honest, minlength=m).min())
    return fewest


@burkhardt.check(
    "Lemma 4.9",
    "Laplace noise divided into n/m - t' >= 1 parts keeps every column's loss within epsilon/d",
    "n = 4 to 12, m = 1 to 4 that divides n, t' < n/m (else nothing is claimed), all coalitions, d = 1 to 3",
)
def divided(rng, count, more=0.0):
    x = np.concatenate([np.linspace(-30, 30, 4001), 30 * rng.normal(size=200)])
    for (n, m), d in itertools.product(((4, 1), (4, 2), (6, 3), (8, 2), (12, 4)), (1, 3)):
        for corrupt in range(n // m):
            honest = fewest_honest(n, m, corrupt)
            parts = n // m - corrupt + more
            at = f"n = {n}, m = {m}, t' = {corrupt}, d = {d}"
            present = (honest, honest + 1, 4 * honest)
            for epsilon, part in itertools.product((0.1, 1.0, 8.0), present):
                change = epsilon / d  # 2 eta over the scale 2 eta d/epsilon
                shape = part / parts
                losses = sums_of_gammas(x, shape) - sums_of_gammas(x + change, shape)
                yield f"{at}, epsilon = {epsilon:g}", d * largest(losses), epsilon


@burkhardt.grid(
    "Definition 3.1",
    "the same with entries +-1/sqrt(s), those of its equation (3)",
    "the same",
    range(1, 7),
    scaled=True,
)
@burkhardt.grid(
    "Definition 3.1",
    "E S^T S = I for entries +-1, as printed without 1/sqrt(s)",
    "m = 1 to 6, s = 1 to m, two columns, every choice of rows and signs",
    range(1, 7),
    kind="misprint",
)
def isotropic(m, scaled=False):
    every = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=m)))
    sparsity = (every != 0).sum(1)
    for s in range(1, m + 1):
        columns = every[sparsity == s]
        if scaled:
            columns = columns / math.sqrt(s)
        mean = columns.mean(0)
        diagonal = (columns**2).sum(1).mean()  # 1 is meant
        factor = max(diagonal, 1 / diagonal)
        yield f"m = {m}, s = {s}", factor + abs(mean @ mean), 1.0


@burkhardt.each(
    "Lemma 5.5",
    "abs(a^2 - b^2) <= alpha a^2 + (1 + 1/alpha)(a - b)^2",
    "real a, b of all signs and sizes, alpha = 1e-3 to 1e3",
)
def triangle(draw):
    for alpha in (1e-3, 0.1, 1.0, 10.0, 1e3):
        normals = draw.rng.normal(size=2)
        a, b = normals * np.exp(3 * draw.rng.normal(size=2))
        bound = alpha * a * a + (1 + 1 / alpha) * (a - b) ** 2
        yield f"alpha = {alpha:g}", abs(a * a - b * b), bound


BETAS = (1e-12, 1e-3, 0.1, 0.5, 0.9, 0.99, 0.9999)
ENTRIES = (1, 2, 10, 1000, 10**6)


@burkhardt.grid(
    "Lemma 5.1",
    "the same with 1 + ln(1/beta), C = 2",
    "the same",
    ENTRIES,
    BETAS,
    limit=2,
    added=1.0,
)
@burkhardt.grid(
    "Lemma 5.1",
    "||G||_F^2 <= C sigma^2 n d ln(1/beta) with probability 1 - beta, as printed",
    "n d = 1 to 1e6, beta = 1e-12 to 0.9999: the exact quantile; C = 10",
    ENTRIES,
    BETAS,
    limit=10,
    kind="degenerate",
)
def frobenius(entries, beta, added=0.0):
    bound = entries * (added - math.log(beta))
    yield f"n d = {entries}, beta = {beta:g}", chi2.isf(beta, entries), bound


HEIGHTS = (1, 10, 100, 10**4, 10**6)


def bracket(m, tail, mean=1.0):
    return 2 * (mean * m + math.sqrt(tail * m) + tail)


@burkhardt.grid(
    "Lemma 5.2",
    "||G x||^2/s <= C 2 (n/m) sigma^2 (((k + L) m)^(1/2) + k + L), L = ln(1/beta), as printed, first part",
    "k = s = 1, n/m entries in each row, m = 1 to 1e6, beta = 1e-12 to 0.9999: the exact quantile; C = 10",
    HEIGHTS,
    BETAS,
    limit=10,
    kind="false",
)
def sketched_noise(m, beta, mean=0.0):
    bound = bracket(m, 1 - math.log(beta), mean)
    yield f"m = {m}, beta = {beta:g}", chi2.isf(beta, m), bound


@burkhardt.check(
    "Lemma 5.2",
    "the same with m more in the bracket, Lemma 5.1's first term; C = 1 in place of 10",
    "the same; rows of k = 1 to 8 dimensions, the largest of 200 draws at beta = 1/200",
)
def sketched_noise_mended(rng, count):
    yield from grid(sketched_noise, HEIGHTS, BETAS, mean=1.0)(rng, count)
    tail = math.log(200)
    for m, rank in itertools.product((8, 100, 1000), (1, 2, 8)):
        norms = [np.linalg.norm(rng.normal(size=(m, rank)), 2) for _ in range(200)]
        yield f"m = {m}, k = {rank}", max(norms) ** 2, bracket(m, rank + tail)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
