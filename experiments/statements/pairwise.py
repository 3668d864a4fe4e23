"""Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023): statements about pairwise statistics."""

import itertools
import math

import numpy as np
import torch
from scipy.optimize import nnls

from statements.base import EPSILONS, Instances, check, gamma_of, matrix, ratio, simplex
from statements.factorization import SMALL, approximated, least_subgaussian
from torchdp.factorization import factorize, zeta
from torchdp.randomizers import PrivUnit

NAME = "Ghazi"
USERS = (1, 2, 10, 1000, 10**6)


def zeta_of(W: np.ndarray, n: int, epsilon: float) -> tuple[float, float, float, float]:
    """(lower, upper) of zeta(W, n), and gamma_2 and the largest error of the approximation behind the upper bound."""
    found = zeta(torch.as_tensor(W), n, epsilon, tol=2e-4)
    left, right = found.left.numpy(), found.right.numpy()
    norm = float(np.linalg.norm(left, axis=1).max() * np.linalg.norm(right, axis=0).max())
    alpha = float(np.abs(left @ right - W).max())
    return float(found.certificate.lower), norm + alpha * epsilon * math.sqrt(n), norm, alpha


@check(
    NAME,
    "Theorem 4",
    "some protocol has mMSE <= C zeta(W, n)^2/(epsilon^2 n)",
    "k = 1 to 5, n = 1 to 1e6, epsilon = 0.01 to 1: the local factorization mechanism on the best approximation",
    limit=10,
)
def linear_queries(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        W = matrix(rng, i, int(rng.integers(1, 6)), int(rng.integers(1, 6)))
        n, epsilon = int(rng.choice(USERS)), SMALL[i % len(SMALL)]
        if W.any():
            lower, _, norm, alpha = zeta_of(W, n, epsilon)
            error = norm**2 * float(PrivUnit(max(W.shape), epsilon).moments.variance) / n + alpha**2
            yield f"{W.shape}, n = {n}, epsilon = {epsilon:g}", ratio(error * epsilon**2 * n, lower**2)


@check(
    NAME,
    "Theorem 4",
    "no protocol has mMSE below c zeta(W, n)^2/(epsilon^2 n), for every epsilon",
    "k = 2, W = I, randomized response, n = 1e6, epsilon = 0.01 to 32; c = 1/10",
    limit=10,
    kind="range",
)
def linear_queries_need(rng: np.random.Generator, count: int, epsilons: tuple[float, ...] = EPSILONS) -> Instances:
    for epsilon in epsilons:
        q = math.exp(-epsilon)  # n times the variance is q/(1 - q)^2
        yield f"epsilon = {epsilon:g}", (zeta_of(np.eye(2), 10**6, epsilon)[0] * (1 - q) / epsilon) ** 2 / q


@check(NAME, "Theorem 4", "the same for epsilon <= 1, the range of Edmonds et al.", "the same", limit=10)
def linear_queries_need_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from linear_queries_need(rng, count, SMALL)


@check(
    NAME,
    "Theorem 5",
    "MSE <= C zeta(W, n)^2 ln(2 k)/(epsilon^2 n)",
    "symmetric W of k = 1 to 6, n = 10 to 1e6, epsilon = 0.1 to 1: two messages on the best approximation",
    limit=128,
)
def quadratic_forms(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        k = int(rng.integers(1, 7))
        W = matrix(rng, i, k, k)
        W = (W + W.T) / 2
        n, epsilon = int(rng.choice([10, 1000, 10**6])), float(rng.choice([0.1, 0.5, 1.0]))
        if W.any():
            lower, _, norm, alpha = zeta_of(W, n, epsilon)
            variance = float(PrivUnit(k, epsilon / 2).moments.variance)  # of each of Lemma 11's two messages
            error = alpha**2 + 2 * norm**2 * variance / n + k * (norm * variance / n) ** 2
            error = min(error, float(np.abs(W).max()) ** 2)  # the answer 0: the paper's footnote 6
            yield (
                f"k = {k}, n = {n}, epsilon = {epsilon:g}",
                ratio(error, lower**2 * math.log(2 * k) / (epsilon**2 * n)),
            )


@check(
    NAME,
    "Theorems 6 and 14",
    "(W h)_j = 2 f(h u j^n) - f(h)/2 - W_jj/2, and its error <= 8 a(2 n) + a(n)/2",
    "symmetric W of k = 1 to 6, every j, random histograms and errors",
)
def reduction(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        k = int(rng.integers(1, 7))
        W = matrix(rng, i, k, k)
        W, h = W + W.T, simplex(rng, k)
        for j in range(k):
            both = (h + np.eye(k)[j]) / 2
            off = abs(2 * both @ W @ both - h @ W @ h / 2 - W[j, j] / 2 - W[j] @ h)
            yield f"k = {k}", ratio(off, 1e-9 * (1 + float(np.abs(W).max())))
        a, b = rng.normal(size=2)
        yield "errors", ratio((2 * a + b / 2) ** 2, 8 * a * a + b * b / 2)


@check(
    NAME,
    "Corollary 7",
    "gamma_2 <= 2 for Gini's index, <= (1 + ln(m)/pi)(1 + ln(m')/pi) times 2 for Kendall's tau and the AUC",
    "k = 1 to 32 scores; the AUC with m' = 2",
    limit=2,
)
def kernels(rng: np.random.Generator, count: int) -> Instances:
    for k in (1, 2, 3, 8, 32):
        yield f"Gini, k = {k}", ratio(gamma_of(1 - np.eye(k))[0], 1.0)
        signs = np.sign(np.subtract.outer(np.arange(k), np.arange(k))).astype(float)
        for m in (1, 2, 4):
            other = np.sign(np.subtract.outer(np.arange(m), np.arange(m))).astype(float)
            if k * m <= 64:
                claimed = (1 + math.log(k) / math.pi) * (1 + math.log(m) / math.pi)
                yield f"Kendall, k = {k}, m = {m}", ratio(gamma_of(np.kron(signs, other))[0], claimed)


@check(
    NAME,
    "Theorem 9",
    "for every epsilon > 0: unbiased, epsilon-DP, C/epsilon-sub-Gaussian, one C for all d",
    "as Lemma 9 of Edmonds et al.: d = 1 to 1e6, epsilon = 0.01 to 1e4; C = 10",
    limit=10,
    kind="range",
)
def vector_randomizer(rng: np.random.Generator, count: int) -> Instances:
    for epsilon, d in itertools.product((*EPSILONS, 100.0, 1000.0, 1e4), (1, 10, 1000, 10**6)):
        yield f"epsilon = {epsilon:g}, d = {d}", ratio(least_subgaussian(d, epsilon) * epsilon, 1.0)


@check(
    NAME, "Theorem 9", "the same for epsilon <= 1", "PrivUnit, d = 1 to 512, epsilon = 0.01 to 1; C = 5", limit=5
)
def vector_randomizer_mended(rng: np.random.Generator, count: int) -> Instances:
    for epsilon, d in itertools.product(SMALL, (1, 2, 8, 64, 512)):
        yield f"epsilon = {epsilon:g}, d = {d}", ratio(PrivUnit(d, epsilon).subgaussian.psi2 * epsilon, 1.0)


@check(
    NAME,
    "Lemma 10",
    "gamma_2(W~)^2/(epsilon^2 n) + alpha^2 <= zeta^2/(epsilon^2 n); zeta <= gamma_2, zeta <= max abs(W) "
    "epsilon sqrt(n)",
    "k = 1 to 5, n = 1 to 1e6, epsilon = 0.01 to 32",
)
def from_gamma_to_zeta(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        W = matrix(rng, i, int(rng.integers(1, 6)), int(rng.integers(1, 6)))
        n, epsilon = int(rng.choice(USERS)), EPSILONS[i % len(EPSILONS)]
        if W.any():
            lower, upper, norm, alpha = zeta_of(W, n, epsilon)
            at = f"{W.shape}, n = {n}, epsilon = {epsilon:g}"
            yield f"squares, {at}", ratio(norm**2 + (alpha * epsilon) ** 2 * n, upper**2)
            yield f"gamma_2, {at}", ratio(lower, gamma_of(W)[1])
            yield f"the answer 0, {at}", ratio(lower, float(np.abs(W).max()) * epsilon * math.sqrt(n))
            other = float(rng.random() * np.abs(W).max())
            yield f"any alpha, {at}", ratio(lower, approximated(W, other)[1] + other * epsilon * math.sqrt(n))


@check(
    NAME,
    "Lemma 13",
    "l = 8 ln(m)/beta^2 dimensions keep all squared distances within 1 +- beta",
    "m = 2 to 30 points of d = 1 to 40, beta = 0.2 to 0.99; the best of 30 Gaussian maps (existence)",
)
def projection(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        m, d, beta = int(rng.integers(2, 31)), int(rng.integers(1, 41)), float(rng.choice([0.2, 0.5, 0.99]))
        points = matrix(rng, i, m, d)
        pairs = points[:, None] - points[None]
        pairs = pairs[np.linalg.norm(pairs, axis=2) > 1e-12]
        rank = max(1, math.ceil(8 * math.log(m) / beta**2))
        tries = (rng.normal(size=(d, rank)) / math.sqrt(rank) for _ in range(30))
        if len(pairs):
            squares = (pairs**2).sum(1)
            found = min(float(np.abs(((pairs @ A) ** 2).sum(1) / squares - 1).max()) for A in tries)
            yield f"m = {m}, d = {d}, beta = {beta:g}", ratio(found, beta)


@check(
    NAME,
    "Lemma 12",
    "the projected factors err by at most beta gamma_2 an entry (the proof: 2 beta), norm at most (1 + beta)",
    "W of 1 to 6 rows and columns, ranks 1 to 60, beta as measured on the points of the proof",
)
def low_rank(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        W = matrix(rng, i, int(rng.integers(1, 7)), int(rng.integers(1, 7)))
        if not W.any():
            continue
        factors = factorize(torch.as_tensor(W), tol=2e-4)
        L, R = factors.left.numpy(), factors.right.numpy().T
        L, R = L / np.linalg.norm(L, axis=1).max(), R / np.linalg.norm(R, axis=1).max()  # gamma_2 = 1
        A = rng.normal(size=(L.shape[1], int(rng.choice([1, 5, 60]))))
        A /= math.sqrt(A.shape[1])
        points = np.concatenate([np.zeros((1, L.shape[1])), L, R, -L, -R])
        pairs = (points[:, None] - points[None]).reshape(-1, L.shape[1])
        kept = pairs[np.linalg.norm(pairs, axis=1) > 1e-12]
        beta = float(np.abs(((kept @ A) ** 2).sum(1) / (kept**2).sum(1) - 1).max())
        yield f"entries {W.shape}", ratio(float(np.abs(L @ A @ A.T @ R.T - L @ R.T).max()), beta)
        norm = float(np.linalg.norm(L @ A, axis=1).max() * np.linalg.norm(R @ A, axis=1).max())
        yield f"norm {W.shape}", ratio(norm, 1 + beta)


@check(
    NAME,
    "Fact 15",
    "gamma_2(A + B) <= gamma_2(A) + gamma_2(B), gamma_2(A (x) B) = gamma_2(A) gamma_2(B)",
    "A, B of 1 to 4 rows and columns",
)
def calculus(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        shape = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        A, B = matrix(rng, i, *shape), matrix(rng, i + 3, *shape)
        of_a, of_b, both = gamma_of(A), gamma_of(B), gamma_of(np.kron(A, B))
        yield f"sum {shape}", ratio(gamma_of(A + B)[0], of_a[1] + of_b[1])
        yield f"product {shape}", max(ratio(both[0], of_a[1] * of_b[1]), ratio(of_a[0] * of_b[0], both[1]))


def lipschitz(rng: np.random.Generator, i: int) -> np.ndarray:
    """A kernel on [k] x [k] that is 1-Lipschitz in each argument: distances, waves, random slopes, constants."""
    k = int(rng.choice([1, 2, 3, 7, 16]))
    x = np.arange(k)
    kinds = (
        lambda: np.abs(np.subtract.outer(x, x)).astype(float),
        lambda: np.sin(np.add.outer(x, x) + rng.random()),
        lambda: np.add.outer(np.cumsum(rng.choice([-1.0, 1.0], k)), np.cumsum(rng.choice([-1.0, 1.0], k))),
        lambda: np.minimum.outer(x, x) * rng.choice([-1.0, 1.0]),
        lambda: np.full((k, k), float(rng.normal() * 100)),
    )
    return kinds[i % len(kinds)]()


@check(
    NAME,
    "Lemma 17",
    "gamma_2(W^f) <= C G k, as printed: without a shift of f",
    "1-Lipschitz kernels of k = 1 to 16, constants too; C = 3.42, the tree's",
    limit=3.42,
    kind="step",
)
def lipschitz_norm(rng: np.random.Generator, count: int, shifted: bool = False) -> Instances:
    for i in range(max(count, 10)):
        W = lipschitz(rng, i)
        k = len(W)
        W = W - W[k // 2, k // 2] if shifted else W
        yield f"k = {k}", ratio(gamma_of(W)[0], float(k))


@check(
    NAME,
    "Lemma 17",
    "the same for f - f(middle, middle), which moves the statistic by a constant",
    "the same kernels; C = 3.42 = (36/11)^(1/2) (1/(1 - 0.72))^(1/2)",
    limit=3.42,
)
def lipschitz_norm_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from lipschitz_norm(rng, count, True)


def projected(W: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The nearest point to Y of the hull of +-columns of W."""
    columns = np.concatenate([W, -W], 1)
    heavy = 1e6 * (1 + np.abs(columns).max() + np.abs(Y).max())  # the weights sum to 1
    weights, _ = nnls(
        np.concatenate([columns, np.full((1, columns.shape[1]), heavy)]), np.append(Y, heavy), maxiter=10_000
    )
    return columns @ (weights / weights.sum())


@check(
    NAME,
    "Theorem 19",
    "||mu - W h||^2 <= max_j abs(<W_j, Z>), the step of the proof as printed",
    "W of 1 to 3 rows and 1 to 5 columns, noise of every size",
    kind="step",
)
def hull(rng: np.random.Generator, count: int, factor: float = 1.0) -> Instances:
    for i in range(max(count, 30)):
        W = matrix(rng, i, int(rng.integers(1, 4)), int(rng.integers(2, 6)))
        W = W / (float(np.abs(W).max()) or 1.0)
        h = np.eye(W.shape[1])[0] if i % 2 else simplex(rng, W.shape[1])
        Z = (
            rng.uniform(0.5, 2) * (W[:, 1] - W @ h)
            if i % 3
            else rng.normal(size=len(W)) * 10 ** rng.uniform(-2, 2)
        )
        error = float(((projected(W, W @ h + Z) - W @ h) ** 2).sum())
        yield f"{W.shape}", ratio(error - 1e-6, factor * float(np.abs(Z @ W).max()))


@check(
    NAME,
    "Theorem 19",
    "the same with a factor 2, since mu - W h lies in twice the hull",
    "the same; so the theorem's order stands",
)
def hull_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from hull(rng, count, 2.0)


@check(
    NAME,
    "Lemma 18",
    "E (X - clip(X))^2 <= sqrt(E X^4 P(abs(X) > tau))",
    "discrete distributions of 1 to 8 atoms, heavy tails, tau = 0 to beyond the largest",
)
def clipping(rng: np.random.Generator, count: int) -> Instances:
    for _ in range(count):
        x, P = rng.normal(size=8) * np.exp(2 * rng.normal(size=8)), simplex(rng, 8)
        for tau in (0.0, 0.5, float(np.median(np.abs(x))), 2 * float(np.abs(x).max())):
            lost = float(P @ (x - np.clip(x, -tau, tau)) ** 2)
            yield f"tau = {tau:.3g}", ratio(lost, math.sqrt(float(P @ x**4) * float(P @ (np.abs(x) > tau))))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
