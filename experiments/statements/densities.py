"""Wagner (2025): statements about kernel densities from shuffled bit sums."""

import itertools
import math

import numpy as np
from density.bitsums import composition
from scipy.stats import binom

from statements.base import Statements, largest
from torchdp.shuffle import RandomizedResponseSum, delta_of

wagner = Statements("Wagner")
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)


@wagner.each(
    "section 2.3",
    "E <f(x), g(y)> = k(x, y), abs(f) <= R, at most S entries: Gaussian (1, sqrt 2, 1), inner product (d, "
    "1, d) and (1, sqrt d, 1)",
    "points of the unit ball and beyond (Gaussian), d = 1 to 8; quadrature, and all 2^d signs",
)
def bounded_features(draw):
    d = draw.size(8)
    x, y = draw.matrix(2, d)
    t = np.linalg.norm(x - y)
    if t < 4:  # the mean over the phase is cos(sqrt 2 <w, x - y>), w normal
        waves = np.cos(math.sqrt(2) * t * NODES)
        mean = WEIGHTS @ waves / math.sqrt(2 * math.pi)
        bias = abs(mean - math.exp(-t * t))
        yield f"Gaussian, distance {t:.3g}", bias, 1e-6
    x = x / max(1.0, np.linalg.norm(x))
    y = y / max(1.0, np.linalg.norm(y))
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
    f = signs @ x
    g = signs @ y
    yield f"signs, d = {d}", abs((f * g).mean() - x @ y), 1e-9
    yield f"size of signs, d = {d}", largest(f), math.sqrt(d)
    yield f"size of coordinates, d = {d}", largest(x), 1.0


@wagner.each(
    "Theorem 3.1",
    "error: E (K~ - K)^2 <= 4 beta^2 + 16 R^4 S (S + (E_Pi/n)^2)/I",
    "Gaussian and inner product features, d = 1 to 6, n = 1 to 200, I = 1 to 8, flips to 0.45; mean over "
    "400 draws",
)
def density_error(draw):
    rng = draw.rng
    d = draw.size(6)
    n = draw.pick(1, 2, 20, 200)
    repeats = draw.pick(1, 8)
    x = rng.normal(size=(n, d)) * 10 ** rng.uniform(-2, 1)
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    y = x[0]
    flip = draw.pick(0.01, 0.25, 0.45)
    noise = n * flip * (1 - flip) / (1 - 2 * flip) ** 2  # E_Pi^2
    fourier = draw.i % 2
    if fourier:
        name = "Gaussian"
        R = math.sqrt(2)
        S = 1
        squares = ((x - y) ** 2).sum(1)
        truth = np.exp(-squares).mean()
    else:
        name = "inner product"
        R = 1.0
        S = d
        truth = (x @ y).mean()
    errors = []
    for _ in range(400):
        if fourier:  # random features, I of them
            w = R * rng.normal(size=(d, repeats))
            phase = rng.uniform(0, 2 * math.pi, repeats)
            f = R * np.cos(x @ w + phase)
            g = R * np.cos(y @ w + phase)
        else:  # the coordinates themselves, I times
            f = np.tile(x, repeats)
            g = np.tile(y, repeats)
        # of (2 B - n) R: rounding to bits, and noise
        variances = (R * R - f * f).sum(0) + 4 * R * R * noise
        bias = (f @ g).mean() / repeats - truth
        errors.append(bias * bias + (variances @ (g * g)) / (n * repeats) ** 2)
    bound = 16 * R**4 * S * (S + noise / n**2) / repeats
    yield f"{name}, d = {d}, n = {n}, I = {repeats}", np.mean(errors), bound


@wagner.grid(
    "Theorem 3.1",
    "privacy: I repetitions of an (epsilon_0, delta_0)-DP bit sum (S = 1)",
    "randomized response, n = 2 to 1000, I = 1 to 100, its own exact epsilon_0 at delta_0, slack 1e-9 to 0.1",
    (2, 30, 1000),
    (1, 5, 100),
    (0.05, 0.3, 0.49),
    slow=True,
)
def density_privacy(n, instances, flip):
    protocol = RandomizedResponseSum(n, flip)
    for one, slack in ((0.3, 0.1), (0.05, 1e-9)):
        total, delta = composition(one, delta_of(protocol, one, 1), instances, slack)
        if delta < 1:
            spent = delta_of(protocol, total, instances)
            yield f"n = {n}, I = {instances}, flip = {flip:g}, slack = {slack:g}", spent, delta


def shuffled(n, ones, flip, own):
    """Distribution of the reported ones: of n - 1 others ``ones`` hold a one, the user with own."""
    others = np.convolve(
        binom.pmf(np.arange(ones + 1), ones, 1 - flip),
        binom.pmf(np.arange(n - ones), n - 1 - ones, flip),
    )
    chance = own * (1 - flip) + (1 - own) * flip
    return np.append(others, 0.0) * (1 - chance) + np.insert(others, 0, 0.0) * chance


@wagner.grid(
    "Theorem 3.1",
    "S: supports that differ in 2 S coordinates lose S times the loss of one bit",
    "n = 2 to 8, every number of ones, flips 0.05 to 0.45, S = 1 to 3; enumeration of both sums",
    (2, 3, 8),
    (0.05, 0.2, 0.45),
    (1, 2, 3),
    slow=True,
)
def support(n, flip, S):
    def losses(p, q):
        """ln P/Q, (ones among the others, reported): the user holds a one with chance p or q."""
        P = [shuffled(n, ones, flip, p) for ones in range(n)]
        Q = [shuffled(n, ones, flip, q) for ones in range(n)]
        return np.log(np.divide(P, Q))

    # one coordinate leaves the support (1 -> 1/2), another enters it (1/2 -> 1)
    leaves = losses(1.0, 0.5)
    enters = losses(0.5, 1.0)
    worst = largest(leaves[:, None, :, None] + enters[:, None])
    one_bit = largest(losses(1.0, 0.0))
    yield f"n = {n}, flip = {flip:g}, S = {S}", S * worst, S * one_bit


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
