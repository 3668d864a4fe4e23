"""Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): statements about pairwise statistics."""

import math

import numpy as np
import torch
from scipy.optimize import nnls

from statements.base import EPSILONS, SMALL, Statements, gamma_of, ratio, size_of
from statements.factorization import WIDE, approximated, randomizer, randomizer_mended
from torchdp.factorization import factorize, zeta
from torchdp.randomizers import PrivUnit

ghazi = Statements("Ghazi")
USERS = (1, 2, 10, 1000, 10**6)


def zeta_of(W, n, epsilon):
    """(lower, upper) of zeta(W, n), and gamma_2 and the largest error of the approximation behind
    the upper bound.
    """
    found = zeta(torch.as_tensor(W), n, epsilon, tol=2e-4)
    left, right = found.left.numpy(), found.right.numpy()
    norm, alpha = size_of(left, right), float(np.abs(left @ right - W).max())
    return float(found.certificate.lower), norm + alpha * epsilon * math.sqrt(n), norm, alpha


@ghazi.each(
    "Theorem 4",
    "some protocol has mMSE <= C zeta(W, n)^2/(epsilon^2 n)",
    "k = 1 to 5, n = 1 to 1e6, epsilon = 0.01 to 1: the local factorization mechanism on the best approximation",
    limit=10,
)
def linear_queries(draw):
    W = draw.sized(5, 5)
    n, epsilon = draw.pick(*USERS), draw.small_epsilon
    if W.any():
        lower, _, norm, alpha = zeta_of(W, n, epsilon)
        error = norm**2 * float(PrivUnit(max(W.shape), epsilon).moments.variance) / n + alpha**2
        yield f"{W.shape}, n = {n}, epsilon = {epsilon:g}", ratio(error * epsilon**2 * n, lower**2)


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
    yield (
        f"epsilon = {epsilon:g}",
        (zeta_of(np.eye(2), 10**6, epsilon)[0] * (1 - q) / epsilon) ** 2 / q,
    )


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
    n, epsilon = draw.pick(10, 1000, 10**6), draw.pick(0.1, 0.5, 1.0)
    if W.any():
        lower, _, norm, alpha = zeta_of(W, n, epsilon)
        # of each of Lemma 11's two messages
        variance = float(PrivUnit(k, epsilon / 2).moments.variance)
        error = alpha**2 + 2 * norm**2 * variance / n + k * (norm * variance / n) ** 2
        error = min(error, float(np.abs(W).max()) ** 2)  # the answer 0: the paper's footnote 6
        bound = lower**2 * math.log(2 * k) / (epsilon**2 * n)
        yield f"k = {k}, n = {n}, epsilon = {epsilon:g}", ratio(error, bound)


@ghazi.each(
    "Theorems 6 and 14",
    "(W h)_j = 2 f(h u j^n) - f(h)/2 - W_jj/2, and its error <= 8 a(2 n) + a(n)/2",
    "symmetric W of k = 1 to 6, every j, random histograms and errors",
)
def reduction(draw):
    k = draw.size(6)
    W = draw.matrix(k, k)
    W, h = W + W.T, draw.simplex(k)
    for j in range(k):
        both = (h + np.eye(k)[j]) / 2
        off = abs(2 * both @ W @ both - h @ W @ h / 2 - W[j, j] / 2 - W[j] @ h)
        yield f"k = {k}", ratio(off, 1e-9 * (1 + float(np.abs(W).max())))
    a, b = draw.rng.normal(size=2)
    yield "errors", ratio((2 * a + b / 2) ** 2, 8 * a * a + b * b / 2)


def signs(k):
    return np.sign(np.subtract.outer(np.arange(k), np.arange(k))).astype(float)


@ghazi.grid(
    "Corollary 7",
    "gamma_2 <= 2 for Gini's index, <= (1 + ln(m)/pi)(1 + ln(m')/pi) times 2 for Kendall's tau and the AUC",
    "k = 1 to 32 scores; the AUC with m' = 2",
    (1, 2, 3, 8, 32),
    limit=2,
)
def kernels(k):
    yield f"Gini, k = {k}", ratio(gamma_of(1 - np.eye(k))[0], 1.0)
    for m in (1, 2, 4):
        if k * m <= 64:
            claimed = (1 + math.log(k) / math.pi) * (1 + math.log(m) / math.pi)
            yield (
                f"Kendall, k = {k}, m = {m}",
                ratio(gamma_of(np.kron(signs(k), signs(m)))[0], claimed),
            )


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
    n, epsilon, top = draw.pick(*USERS), draw.epsilon, float(np.abs(W).max())
    if W.any():
        lower, upper, norm, alpha = zeta_of(W, n, epsilon)
        at, unit = f"{W.shape}, n = {n}, epsilon = {epsilon:g}", epsilon * math.sqrt(n)
        yield f"squares, {at}", ratio(norm**2 + (alpha * unit) ** 2, upper**2)
        yield f"gamma_2, {at}", ratio(lower, gamma_of(W)[1])
        yield f"the answer 0, {at}", ratio(lower, top * unit)
        other = float(draw.rng.random() * top)
        yield f"any alpha, {at}", ratio(lower, approximated(W, other)[1] + other * unit)


def distortion(pairs, A):
    """By how much the map A changes the squares of the differences that are not 0, relative, at
    most.
    """
    kept = pairs[np.linalg.norm(pairs, axis=1) > 1e-12]
    return float(np.abs(((kept @ A) ** 2).sum(1) / (kept**2).sum(1) - 1).max(initial=0.0))


@ghazi.each(
    "Lemma 13",
    "l = 8 ln(m)/beta^2 dimensions keep all squared distances within 1 +- beta",
    "m = 2 to 30 points of d = 1 to 40, beta = 0.2 to 0.99; the best of 30 Gaussian maps (existence)",
)
def projection(draw):
    m, d, beta = draw.size(30, 2), draw.size(40), draw.pick(0.2, 0.5, 0.99)
    points = draw.matrix(m, d)
    pairs = (points[:, None] - points).reshape(-1, d)
    rank = max(1, math.ceil(8 * math.log(m) / beta**2))
    if pairs.any():
        maps = (draw.rng.normal(size=(d, rank)) / math.sqrt(rank) for _ in range(30))
        yield (
            f"m = {m}, d = {d}, beta = {beta:g}",
            ratio(min(distortion(pairs, A) for A in maps), beta),
        )


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
    L, R = factors.left.numpy(), factors.right.numpy().T
    L, R = L / np.linalg.norm(L, axis=1).max(), R / np.linalg.norm(R, axis=1).max()  # gamma_2 = 1
    A = draw.rng.normal(size=(L.shape[1], draw.pick(1, 5, 60)))
    A /= math.sqrt(A.shape[1])
    points = np.concatenate([np.zeros((1, L.shape[1])), L, R, -L, -R])
    beta = distortion((points[:, None] - points).reshape(-1, L.shape[1]), A)
    yield f"entries {W.shape}", ratio(float(np.abs(L @ A @ A.T @ R.T - L @ R.T).max()), beta)
    yield f"norm {W.shape}", ratio(size_of(L @ A, (R @ A).T), 1 + beta)


@ghazi.each(
    "Fact 15",
    "gamma_2(A + B) <= gamma_2(A) + gamma_2(B), gamma_2(A (x) B) = gamma_2(A) gamma_2(B)",
    "A, B of 1 to 4 rows and columns",
)
def calculus(draw):
    shape = draw.size(4), draw.size(4)
    A, B = draw.matrix(*shape), draw.matrix(*shape, later=3)
    of_a, of_b, both = gamma_of(A), gamma_of(B), gamma_of(np.kron(A, B))
    yield f"sum {shape}", ratio(gamma_of(A + B)[0], of_a[1] + of_b[1])
    yield (
        f"product {shape}",
        max(ratio(both[0], of_a[1] * of_b[1]), ratio(of_a[0] * of_b[0], both[1])),
    )


def lipschitz(draw):
    """A kernel on [k] x [k] that is 1-Lipschitz in each argument: distances, waves, random slopes,
    constants.
    """
    rng, k = draw.rng, draw.pick(1, 2, 3, 7, 16)
    x = np.arange(k)
    kinds = (
        lambda: np.abs(np.subtract.outer(x, x)).astype(float),
        lambda: np.sin(np.add.outer(x, x) + rng.random()),
        lambda: np.add.outer(
            np.cumsum(rng.choice([-1.0, 1.0], k)), np.cumsum(rng.choice([-1.0, 1.0], k))
        ),
        lambda: np.minimum.outer(x, x) * rng.choice([-1.0, 1.0]),
        lambda: np.full((k, k), float(rng.normal() * 100)),
    )
    return kinds[draw.i % len(kinds)]()


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
    W = W - W[k // 2, k // 2] if shifted else W
    yield f"k = {k}", ratio(gamma_of(W)[0], float(k))


def projected(W, Y):
    """The nearest point to Y of the hull of +-columns of W."""
    columns = np.concatenate([W, -W], 1)
    heavy = 1e6 * (1 + np.abs(columns).max() + np.abs(Y).max())  # the weights sum to 1
    summed = np.full((1, columns.shape[1]), heavy)
    weights, _ = nnls(np.concatenate([columns, summed]), np.append(Y, heavy), maxiter=10_000)
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
    rng, W = draw.rng, draw.matrix(draw.size(3), draw.size(5, 2))
    W = W / (float(np.abs(W).max()) or 1.0)
    h = np.eye(W.shape[1])[0] if draw.i % 2 else draw.simplex(W.shape[1])
    if draw.i % 3:
        Z = rng.uniform(0.5, 2) * (W[:, 1] - W @ h)
    else:
        Z = rng.normal(size=len(W)) * 10 ** rng.uniform(-2, 2)
    error = float(((projected(W, W @ h + Z) - W @ h) ** 2).sum())
    yield f"{W.shape}", ratio(error - 1e-6, factor * float(np.abs(Z @ W).max()))


@ghazi.each(
    "Lemma 18",
    "E (X - clip(X))^2 <= sqrt(E X^4 P(abs(X) > tau))",
    "discrete distributions of 1 to 8 atoms, heavy tails, tau = 0 to beyond the largest",
)
def clipping(draw):
    x, P = draw.rng.normal(size=8) * np.exp(2 * draw.rng.normal(size=8)), draw.simplex(8)
    for tau in (0.0, 0.5, float(np.median(np.abs(x))), 2 * float(np.abs(x).max())):
        lost = float(P @ (x - np.clip(x, -tau, tau)) ** 2)
        yield (
            f"tau = {tau:.3g}",
            ratio(lost, math.sqrt(float(P @ x**4) * float(P @ (np.abs(x) > tau)))),
        )


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
