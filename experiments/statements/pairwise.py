"""Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): statements about pairwise statistics."""

import math

import numpy as np
import torch
from scipy.optimize import nnls

from statements.base import (
    EPSILONS,
    SMALL,
    Statements,
    gamma_of,
    largest,
    privunit_variance,
    size_of,
    worst,
)
from statements.factorization import WIDE, approximated, randomizer, randomizer_mended
from torchdp.factorization import factorize, zeta

ghazi = Statements("Ghazi")
USERS = (1, 2, 10, 1000, 10**6)


def zeta_of(W, n, epsilon):
    """(lower, upper) of zeta(W, n); gamma_2 and largest error of the upper's approximation."""
    found = zeta(torch.as_tensor(W), n, epsilon, tol=2e-4)
    left = found.left.numpy()
    right = found.right.numpy()
    norm = size_of(left, right)
    alpha = largest(left @ right - W)
    return float(found.certificate.lower), norm + alpha * epsilon * math.sqrt(n), norm, alpha


@ghazi.each(
    "Theorem 4",
    "some protocol has mMSE <= C zeta(W, n)^2/(epsilon^2 n)",
    "k = 1 to 5, n = 1 to 1e6, epsilon = 0.01 to 1: the local factorization mechanism on the best approximation",
    limit=10,
)
def linear_queries(draw):
    W = draw.sized(5, 5)
    n = draw.pick(*USERS)
    epsilon = draw.small_epsilon
    if W.any():
        lower, _, norm, alpha = zeta_of(W, n, epsilon)
        error = norm**2 * privunit_variance(max(W.shape), epsilon) / n + alpha**2
        yield f"{W.shape}, n = {n}, epsilon = {epsilon:g}", error * epsilon**2 * n, lower**2


@ghazi.grid(
    "Theorem 4",
    "the same for epsilon <= 1, the range of Edmonds et al.",
    "the same",
    SMALL,
    limit=10,
)
@ghazi.grid(
    "Theorem 4",
    "no protocol has mMSE below c zeta(W, n)^2/(epsilon^2 n), for every epsilon",
    "k = 2, W = I, randomized response, n = 1e6, epsilon = 0.01 to 32; c = 1/10",
    EPSILONS,
    limit=10,
    kind="range",
)
def linear_queries_need(epsilon):
    q = math.exp(-epsilon)  # n times the variance is q/(1 - q)^2
    lower = zeta_of(np.eye(2), 10**6, epsilon)[0]
    claimed = lower * (1 - q) / epsilon
    yield f"epsilon = {epsilon:g}", claimed**2, q


@ghazi.each(
    "Theorem 5",
    "MSE <= C zeta(W, n)^2 ln(2 k)/(epsilon^2 n)",
    "symmetric W of k = 1 to 6, n = 10 to 1e6, epsilon = 0.1 to 1: two messages on the best approximation",
    limit=128,
)
def quadratic_forms(draw):
    k = draw.size(6)
    W = draw.matrix(k, k)
    W = (W + W.T) / 2
    n = draw.pick(10, 1000, 10**6)
    epsilon = draw.pick(0.1, 0.5, 1.0)
    if W.any():
        lower, _, norm, alpha = zeta_of(W, n, epsilon)
        variance = privunit_variance(k, epsilon / 2)  # of each of Lemma 11's two messages
        product = k * (norm * variance / n) ** 2  # of the noise in both
        error = alpha**2 + 2 * norm**2 * variance / n + product
        error = min(error, largest(W) ** 2)  # the answer 0: the paper's footnote 6
        bound = lower**2 * math.log(2 * k) / (epsilon**2 * n)
        yield f"k = {k}, n = {n}, epsilon = {epsilon:g}", error, bound


@ghazi.each(
    "Theorems 6 and 14",
    "(W h)_j = 2 f(h u j^n) - f(h)/2 - W_jj/2, and its error <= 8 a(2 n) + a(n)/2",
    "symmetric W of k = 1 to 6, every j, random histograms and errors",
)
def reduction(draw):
    k = draw.size(6)
    W = draw.matrix(k, k)
    W = W + W.T
    h = draw.simplex(k)
    rounding = 1e-9 * (1 + largest(W))
    for j in range(k):
        mixed = (h + np.eye(k)[j]) / 2
        recovered = 2 * mixed @ W @ mixed - h @ W @ h / 2 - W[j, j] / 2
        yield f"k = {k}", abs(recovered - W[j] @ h), rounding
    a, b = draw.rng.normal(size=2)
    yield "errors", (2 * a + b / 2) ** 2, 8 * a * a + b * b / 2


def signs(k):
    x = np.arange(k)
    return np.sign(np.subtract.outer(x, x)).astype(float)


@ghazi.grid(
    "Corollary 7",
    "gamma_2 <= 2 for Gini's index, <= (1 + ln(m)/pi)(1 + ln(m')/pi) times 2 for Kendall's tau and the AUC",
    "k = 1 to 32 scores; the AUC with m' = 2",
    (1, 2, 3, 8, 32),
    limit=2,
)
def kernels(k):
    gini = 1 - np.eye(k)
    yield f"Gini, k = {k}", gamma_of(gini)[0], 1.0
    for m in (1, 2, 4):
        if k * m <= 64:
            claimed = (1 + math.log(k) / math.pi) * (1 + math.log(m) / math.pi)
            kendall = np.kron(signs(k), signs(m))
            yield f"Kendall, k = {k}, m = {m}", gamma_of(kendall)[0], claimed


ghazi.grid(
    "Theorem 9",
    "for every epsilon > 0: unbiased, epsilon-DP, C/epsilon-sub-Gaussian, one C for all d",
    "as Lemma 9 of Edmonds et al.: d = 1 to 1e6, epsilon = 0.01 to 1e4; C = 10",
    WIDE,
    (1, 10, 1000, 10**6),
    limit=10,
    kind="range",
)(randomizer)
ghazi.grid(
    "Theorem 9",
    "the same for epsilon <= 1",
    "PrivUnit, d = 1 to 512, epsilon = 0.01 to 1; C = 5",
    SMALL,
    (1, 2, 8, 64, 512),
    limit=5,
)(randomizer_mended)


@ghazi.each(
    "Lemma 10",
    "gamma_2(W~)^2/(epsilon^2 n) + alpha^2 <= zeta^2/(epsilon^2 n); zeta <= gamma_2, zeta <= max abs(W) "
    "epsilon sqrt(n)",
    "k = 1 to 5, n = 1 to 1e6, epsilon = 0.01 to 32",
)
def from_gamma_to_zeta(draw):
    W = draw.sized(5, 5)
    n = draw.pick(*USERS)
    epsilon = draw.epsilon
    top = largest(W)
    if W.any():
        lower, upper, norm, alpha = zeta_of(W, n, epsilon)
        at = f"{W.shape}, n = {n}, epsilon = {epsilon:g}"
        unit = epsilon * math.sqrt(n)
        yield f"squares, {at}", norm**2 + (alpha * unit) ** 2, upper**2
        yield f"gamma_2, {at}", lower, gamma_of(W)[1]
        yield f"the answer 0, {at}", lower, top * unit
        other = float(draw.rng.random() * top)
        yield f"any alpha, {at}", lower, approximated(W, other)[1] + other * unit


def differences(points):
    """Of every two points, (m^2, d)."""
    return (points[:, None] - points).reshape(-1, points.shape[1])


def distortion(pairs, A):
    """Largest relative change under the map A of the squares of differences that are not 0."""
    pairs = pairs[np.linalg.norm(pairs, axis=1) > 1e-12]
    mapped = ((pairs @ A) ** 2).sum(1)
    change = mapped / (pairs**2).sum(1) - 1
    return largest(change)


@ghazi.each(
    "Lemma 13",
    "l = 8 ln(m)/beta^2 dimensions keep all squared distances within 1 +- beta",
    "m = 2 to 30 points of d = 1 to 40, beta = 0.2 to 0.99; the best of 30 Gaussian maps (existence)",
)
def projection(draw):
    m = draw.size(30, 2)
    d = draw.size(40)
    beta = draw.pick(0.2, 0.5, 0.99)
    pairs = differences(draw.matrix(m, d))
    rank = max(1, math.ceil(8 * math.log(m) / beta**2))
    if pairs.any():
        maps = (draw.rng.normal(size=(d, rank)) / math.sqrt(rank) for _ in range(30))
        least = min(distortion(pairs, A) for A in maps)
        yield f"m = {m}, d = {d}, beta = {beta:g}", least, beta


@ghazi.each(
    "Lemma 12",
    "the projected factors err by at most beta gamma_2 an entry (the proof: 2 beta), norm at most (1 + beta)",
    "W of 1 to 6 rows and columns, ranks 1 to 60, beta as measured on the points of the proof",
)
def low_rank(draw):
    W = draw.sized(6, 6)
    if not W.any():
        return
    factors = factorize(W, tol=2e-4)
    # scaled so that gamma_2 of the product is 1
    L = factors.left.numpy()
    L = L / np.linalg.norm(L, axis=1).max()
    R = factors.right.numpy().T
    R = R / np.linalg.norm(R, axis=1).max()
    A = draw.rng.normal(size=(L.shape[1], draw.pick(1, 5, 60)))
    A /= math.sqrt(A.shape[1])
    origin = np.zeros((1, L.shape[1]))
    points = np.concatenate([origin, L, R, -L, -R])
    beta = distortion(differences(points), A)
    change = L @ A @ A.T @ R.T - L @ R.T
    yield f"entries {W.shape}", largest(change), beta
    yield f"norm {W.shape}", size_of(L @ A, (R @ A).T), 1 + beta


@ghazi.each(
    "Fact 15",
    "gamma_2(A + B) <= gamma_2(A) + gamma_2(B), gamma_2(A (x) B) = gamma_2(A) gamma_2(B)",
    "A, B of 1 to 4 rows and columns",
)
def calculus(draw):
    shape = draw.size(4), draw.size(4)
    A = draw.matrix(*shape)
    B = draw.matrix(*shape, later=3)
    lower_a, upper_a = gamma_of(A)
    lower_b, upper_b = gamma_of(B)
    lower, upper = gamma_of(np.kron(A, B))
    yield f"sum {shape}", gamma_of(A + B)[0], upper_a + upper_b
    yield f"product {shape}", *worst((lower, upper_a * upper_b), (lower_a * lower_b, upper))


def lipschitz(draw):
    """1-Lipschitz in each argument, on [k] x [k]: distances, waves, random slopes, constants."""
    rng = draw.rng
    k = draw.pick(1, 2, 3, 7, 16)
    x = np.arange(k)
    kind = draw.i % 5
    if kind == 0:
        return np.abs(np.subtract.outer(x, x)).astype(float)
    if kind == 1:
        return np.sin(np.add.outer(x, x) + rng.random())
    if kind == 2:
        rows = np.cumsum(rng.choice([-1.0, 1.0], k))
        columns = np.cumsum(rng.choice([-1.0, 1.0], k))
        return np.add.outer(rows, columns)
    if kind == 3:
        return np.minimum.outer(x, x) * rng.choice([-1.0, 1.0])
    return np.full((k, k), float(rng.normal() * 100))


@ghazi.each(
    "Lemma 17",
    "the same for f - f(middle, middle), which moves the statistic by a constant",
    "the same kernels; C = 3.42 = (36/11)^(1/2) (1/(1 - 0.72))^(1/2)",
    limit=3.42,
    shifted=True,
    least=10,
)
@ghazi.each(
    "Lemma 17",
    "gamma_2(W^f) <= C G k, as printed: without a shift of f",
    "1-Lipschitz kernels of k = 1 to 16, constants too; C = 3.42, the tree's",
    limit=3.42,
    kind="step",
    least=10,
)
def lipschitz_norm(draw, shifted=False):
    W = lipschitz(draw)
    k = len(W)
    if shifted:
        W = W - W[k // 2, k // 2]
    yield f"k = {k}", gamma_of(W)[0], float(k)


def projected(W, Y):
    """The nearest point to Y of the hull of +-columns of W."""
    columns = np.concatenate([W, -W], 1)
    # a heavy row more: the weights sum to 1
    heavy = 1e6 * (1 + largest(columns) + largest(Y))
    heavy_row = np.full((1, columns.shape[1]), heavy)
    rows = np.concatenate([columns, heavy_row])
    weights, _ = nnls(rows, np.append(Y, heavy), maxiter=10_000)
    return columns @ (weights / weights.sum())


@ghazi.each(
    "Theorem 19",
    "the same with a factor 2, since mu - W h lies in twice the hull",
    "the same; so the theorem's order stands",
    factor=2.0,
    least=30,
)
@ghazi.each(
    "Theorem 19",
    "||mu - W h||^2 <= max_j abs(<W_j, Z>), the step of the proof as printed",
    "W of 1 to 3 rows and 1 to 5 columns, noise of every size",
    kind="step",
    least=30,
)
def hull(draw, factor=1.0):
    rng = draw.rng
    W = draw.matrix(draw.size(3), draw.size(5, 2))
    W = W / (largest(W) or 1.0)
    h = np.eye(W.shape[1])[0] if draw.i % 2 else draw.simplex(W.shape[1])
    exact = W @ h
    if draw.i % 3:
        Z = rng.uniform(0.5, 2) * (W[:, 1] - exact)
    else:
        Z = rng.normal(size=len(W)) * 10 ** rng.uniform(-2, 2)
    error = projected(W, exact + Z) - exact
    square = (error**2).sum() - 1e-6  # what the solver may be off by
    yield f"{W.shape}", square, factor * largest(Z @ W)


@ghazi.each(
    "Lemma 18",
    "E (X - clip(X))^2 <= sqrt(E X^4 P(abs(X) > tau))",
    "discrete distributions of 1 to 8 atoms, heavy tails, tau = 0 to beyond the largest",
)
def clipping(draw):
    normals = draw.rng.normal(size=8)
    x = normals * np.exp(2 * draw.rng.normal(size=8))
    P = draw.simplex(8)
    sizes = np.abs(x)
    for tau in (0.0, 0.5, np.median(sizes), 2 * sizes.max()):
        cut = x - np.clip(x, -tau, tau)
        fourth = P @ x**4
        tail = P @ (sizes > tau)
        yield f"tau = {tau:.3g}", P @ cut**2, math.sqrt(fourth * tail)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
