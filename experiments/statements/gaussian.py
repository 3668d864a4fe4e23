"""Nikolov, Tang (2023): statements about Gamma_p, Gaussian noise and unbiased mechanisms."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize

from statements.base import (
    EPSILONS,
    EXPONENTS,
    Instances,
    check,
    dual,
    gamma_of,
    gamma_p,
    matrix,
    p_norm,
    ratio,
    simplex,
    thinned,
)
from torchdp.domains import FiniteSet, Zonotope, noise_shape
from torchdp.mean import moment_norm
from torchdp.privacy import gaussian_sigma
from torchdp.randomizers import PrivUnit

NAME = "Nikolov"


def exponent(i: int) -> float:
    return EXPONENTS[i % len(EXPONENTS)]


def symmetric(points: np.ndarray) -> np.ndarray:
    return np.concatenate([points, -points])


def products_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([np.concatenate(pair) for pair in itertools.product(a, b)])


def sides(name: str, claimed: float, bracket: tuple[float, float]) -> Instances:
    """An equation is two inequalities."""
    lower, upper = bracket
    yield f"{name}, claimed too small", ratio(lower, claimed)
    yield f"{name}, claimed too large", ratio(claimed, upper)


@check(
    NAME,
    "Theorem 3",
    "sqrt(E||Z||_p^2) <= 2 sqrt(e) sqrt(min(p, ln 2d)) sqrt(tr_{p/2}(A A^T))/(epsilon n)",
    "A of d = 1 to 64, diagonal and full, singular, badly scaled; p = 2 to inf",
    limit=2 * math.e**0.5,
)
def gaussian_error(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        d, p = int(rng.choice([1, 2, 5, 64])), exponent(i)
        A = np.diag(np.exp(rng.normal(size=d))) if i % 2 else matrix(rng, i, d, d)
        Z = 2 * rng.normal(size=(2000, d)) @ A.T
        size = math.sqrt(float(np.mean([p_norm(z, p) ** 2 for z in Z])))
        bound = math.sqrt(min(p, math.log(2 * d))) * p_norm(np.linalg.norm(A, axis=1), p)
        yield f"d = {d}, p = {p:g}", ratio(size, bound)


@check(
    NAME,
    "Theorem 3",
    "noise for (epsilon, delta)-DP: sigma/Delta <= C sqrt(ln(1/delta))/epsilon",
    "epsilon = 0.001 to 64, delta from 1e-300 to e^-epsilon",
    limit=2,
)
def calibrated(rng: np.random.Generator, count: int) -> Instances:
    for epsilon in (0.001, *EPSILONS, 64.0):
        for log in (epsilon, 1.1 * epsilon, 2 * epsilon + 1, 10.0, 50.0, 600.0):
            if epsilon <= log < 690 and math.exp(-log) < 1:
                sigma = gaussian_sigma(epsilon, math.exp(-log), 1.0)
                yield (
                    f"epsilon = {epsilon:g}, delta = {math.exp(-log):.3g}",
                    ratio(sigma * epsilon, math.sqrt(log)),
                )


def moved_means(K: np.ndarray, n: int) -> np.ndarray:
    return (K[:, None] - K[None, :]).reshape(-1, K.shape[1]) / n


@check(
    NAME,
    "Theorem 3",
    "no two neighbours' means are further apart than 2/n in the ellipsoid's norm",
    "finite sets of 1 to 8 points, d = 1 to 4; n = 1 to 1000; p = 2 to inf",
)
def sensitivity(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        K, n, p = (
            matrix(rng, i, int(rng.integers(1, 9)), int(rng.integers(1, 5))),
            int(10 ** rng.integers(0, 4)),
            exponent(i),
        )
        A = noise_shape(FiniteSet(torch.as_tensor(K)), p).root.numpy()
        far = np.linalg.norm(moved_means(K, n) @ np.linalg.pinv(A).T, axis=1).max() if A.shape[1] else 0.0
        yield f"{K.shape} p = {p:g}, n = {n}", ratio(far, 2 / n)


@check(
    NAME,
    "Theorem 17",
    "sqrt(E||Z||_2^2) <= C sqrt(2) (e^epsilon + 1)/(e^epsilon - 1) Gamma_2/sqrt(n)",
    "the randomizer's variance of a coordinate; d = 1 to 512, epsilon = 0.01 to 32",
    limit=2,
)
def local_error(rng: np.random.Generator, count: int) -> Instances:
    for epsilon in EPSILONS:
        for d in (1, 2, 8, 64, 512):
            variance = float(PrivUnit(d, epsilon).moments.variance)
            yield f"d = {d}, epsilon = {epsilon:g}", ratio(math.sqrt(variance / 2) * math.tanh(epsilon / 2), 1.0)


@check(
    NAME,
    "Lemma 19",
    "Gamma_p(A B + u) = sqrt(tr_{p/2}(A A^T))",
    "A of d = 1 to 5, singular and badly scaled; p = 2 to inf; lower bounds by measures on the ellipsoid",
)
def ellipsoids(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        d, p = int(rng.integers(1, 6)), exponent(i)
        A = matrix(rng, i, d, d)
        sizes = np.linalg.norm(A, axis=1)
        claimed = p_norm(sizes, p)
        rows = (sizes == sizes.max()).astype(float) if p == math.inf else sizes ** (p - 2) if p > 2 else np.ones(d)
        _, s, V = np.linalg.svd(np.sqrt(np.maximum(rows, 0))[:, None] * A)
        points = symmetric(V @ A.T)  # A v_i, of weights s_i^2: the best measure for this D
        lower = dual(points, np.concatenate([s, s]) ** 2 + 1e-300, rows, p) if claimed else 0.0
        inside = rng.normal(size=(4 * d + 4, d))
        held = inside / np.linalg.norm(inside, axis=1, keepdims=True) @ A.T + rng.normal(size=d)
        yield f"{A.shape} p = {p:g}", ratio(claimed, lower) if claimed else 0.0
        yield f"points inside, p = {p:g}", ratio(gamma_p(held, p)[0], claimed)


@check(
    NAME,
    "Theorem 20",
    "hulls, inclusion, scaling, Gamma_p(K + L) <= Gamma_p(K) + Gamma_p(L)",
    "finite sets of 1 to 5 points, d = 1 to 4, also single points; p = 2 to inf",
)
def calculus(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        d, p, t = int(rng.integers(1, 5)), exponent(i), float(rng.normal() * 10.0 ** rng.integers(-3, 4))
        K, L = (matrix(rng, i + j, int(rng.integers(1, 6)), d) for j in range(2))
        total = (K[:, None] + L[None]).reshape(-1, d)
        of_k, of_l, of_sum = gamma_p(K, p), gamma_p(L, p), gamma_p(total, p)
        yield f"sum, d = {d}, p = {p:g}", ratio(of_sum[0], of_k[1] + of_l[1])
        yield f"inclusion, p = {p:g}", ratio(of_k[0], gamma_p(np.concatenate([K, L]), p)[1])
        yield from sides(f"scaling by {t:.3g}, p = {p:g}", abs(t) * of_k[0], (0.0, gamma_p(t * K, p)[1]))
        hull = np.concatenate([K, rng.dirichlet(np.ones(len(K)), 3) @ K])
        yield f"hull, p = {p:g}", ratio(gamma_p(hull, p)[0], of_k[1])


@check(
    NAME,
    "Lemma 21",
    "no shift for symmetric K; Gamma_p(K) <= Gamma_p((K + v) u (-K - v)) for every v",
    "finite sets of 1 to 5 points, d = 1 to 4; p = 2 to inf",
)
def centred(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        p, K = exponent(i), matrix(rng, i, int(rng.integers(1, 6)), int(rng.integers(1, 5)))
        yield f"symmetric, p = {p:g}", ratio(gamma_p(symmetric(K), p, False)[0], gamma_p(symmetric(K), p)[1])
        moved = K + rng.normal(size=K.shape[1])
        yield f"any shift, p = {p:g}", ratio(gamma_p(K, p)[0], gamma_p(symmetric(moved), p, False)[1])


@check(
    NAME,
    "Theorem 23",
    "Gamma_p(+-columns) = gamma_(p)(W), Gamma_p(columns) = min over v of gamma_(p)(W + v 1^T)",
    "W of 1 to 5 rows and 1 to 6 columns; p = 2 to inf; two solvers",
)
def factorizations(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        p, W = exponent(i), matrix(rng, i, int(rng.integers(1, 6)), int(rng.integers(1, 7)))
        for name, K, factors in (
            ("symmetric", symmetric(W.T), gamma_of(W, p)),
            ("shifted", W.T, gamma_of(W, p, True)),
        ):
            shape = gamma_p(K, p)
            yield f"{name} {W.shape}, p = {p:g}", max(ratio(shape[0], factors[1]), ratio(factors[0], shape[1]))


@check(
    NAME,
    "Theorem 26",
    "tr((D cov(P) D)^{1/2}) <= Gamma_p(K) for every D, P; the largest attains it; Lemma 27",
    "finite sets of 1 to 6 points, d = 1 to 4, random D and P; p = 2 to inf",
)
def duality(rng: np.random.Generator, count: int, order: Callable[[float], float] = lambda p: p) -> Instances:
    for i in range(count):
        p, K = exponent(i), matrix(rng, i, int(rng.integers(1, 7)), int(rng.integers(1, 5)))
        bracket = gamma_p(K, p)
        for _ in range(5):
            rows = simplex(rng, K.shape[1]) + 1e-12
            P = simplex(rng, len(K)) + 1e-12
            yield f"weak, p = {p:g}", ratio(dual(K, P, rows, order(p)), bracket[1])
        yield f"strong, p = {p:g}", ratio(bracket[1], bracket[0])
        D = np.sqrt(np.ones(K.shape[1]) if p == 2 else rng.dirichlet(np.ones(K.shape[1])) ** (1 - 2 / p))
        yield f"Lemma 27, p = {p:g}", ratio(gamma_p(K * D, 2.0)[0], bracket[1])


@check(
    NAME,
    "Lemma 31",
    "of an alpha-approximate pair (x, y) the better of the two is alpha-approximate",
    "finite sets of 1 to 8 points, d = 1 to 4, every pair, singular M, shifts",
)
def oracles(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        K, d = matrix(rng, i, int(rng.integers(1, 9)), 3), 3
        root = matrix(rng, i + 1, d, d)
        images = (K + rng.normal(size=d)) @ root
        products, squares = images @ images.T, (images**2).sum(1)
        yield f"pairs {K.shape}", ratio(float(products.max()), float(squares.max()))
        better = np.maximum(squares[:, None], squares[None, :])
        positive = products > 0  # alpha^2 = largest/product of the pair
        if positive.any():
            yield f"the better {K.shape}", ratio(float((products / better)[positive].max()), 1.0)


@check(
    NAME,
    "Theorem 32",
    "the oracle of cubes' images is within pi/2 of the largest value",
    "zonotopes of 1 to 8 segments in d = 1 to 4, all signs tried",
    limit=math.pi / 2,
)
def zonotopes(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        d, k = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        generators = matrix(rng, i, d, k)
        if not generators.any():
            continue
        root = rng.normal(size=(d, d))
        found = Zonotope(torch.as_tensor(generators), torch.zeros(d, dtype=torch.float64)).maximise(
            torch.as_tensor(root), torch.zeros(d, dtype=torch.float64)
        )
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
        best = float(((signs @ generators.T @ root.T) ** 2).sum(1).max())
        yield f"{k} segments, d = {d}", max(ratio(found.upper, best), ratio(best, found.upper))


@check(
    NAME,
    "Lemma 33",
    "E||M - mu||_p^2 >= tr_{p/2}(cov M)",
    "discrete distributions of 1 to 8 atoms in d = 1 to 6, heavy atoms; p = 2 to inf",
)
def jensen(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        p, X = exponent(i), matrix(rng, i, int(rng.integers(1, 9)), int(rng.integers(1, 7)))
        P = simplex(rng, len(X))
        centred = X - P @ X
        error = float(P @ [p_norm(x, p) ** 2 for x in centred])
        yield f"{X.shape}, p = {p:g}", ratio(p_norm(np.sqrt(P @ centred**2), p) ** 2, error)


def pairs_of_laws(rng: np.random.Generator, epsilon: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two laws whose probabilities differ by factors within e^+-epsilon, most at the ends."""
    Q = simplex(rng, size) + 1e-9
    high = rng.integers(0, 2, size).astype(float)
    P = Q * np.exp(epsilon * (high - rng.random()))
    P, Q = P / P.sum(), Q / Q.sum()
    spread = np.log(P / Q)
    if np.abs(spread).max() > epsilon:
        P = Q * np.exp(np.clip(spread, -epsilon, epsilon) * 0.5)
        P /= P.sum()
    return P, Q


@check(
    NAME,
    "Lemma 39",
    "chi^2(P||Q) <= e^-epsilon (e^epsilon - 1)^2",
    "distributions of 2 to 8 atoms, epsilon = 0.01 to 32, and randomized response, which attains it",
)
def chi_squared(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        epsilon = EPSILONS[i % len(EPSILONS)]
        q = 1 / (1 + math.exp(epsilon))
        response = np.array([1 - q, q]), np.array([q, 1 - q])
        bound = 4 * math.sinh(epsilon / 2) ** 2
        for name, (P, Q) in (
            ("response", response),
            ("random", pairs_of_laws(rng, epsilon, int(rng.integers(2, 9)))),
        ):
            if np.abs(np.log(P / Q)).max() <= epsilon * (1 + 1e-9):
                yield f"{name}, epsilon = {epsilon:g}", ratio(float(((P - Q) ** 2 / Q).sum()), bound)


@check(
    NAME,
    "Theorems 42, 55",
    "on K = {-1, 1}: error >= 2 Gamma/(n e^(-epsilon/2) (e^epsilon - 1)) at each input",
    "randomized response, which attains it, and unbiased channels of 2 to 6 outputs; epsilon = 0.01 to 32; n = 1",
)
def pure_bound(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        epsilon = EPSILONS[i % len(EPSILONS)]
        P, Q = pairs_of_laws(rng, epsilon, int(rng.integers(2, 7)))
        q = 1 / (1 + math.exp(epsilon))
        for name, (a, b) in (("response", (np.array([1 - q, q]), np.array([q, 1 - q]))), ("random", (P, Q))):
            if np.abs(a - b).max() < 1e-12 or np.abs(np.log(a / b)).max() > epsilon * (1 + 1e-9):
                continue
            solved = np.linalg.lstsq(np.stack([a, b]), np.array([1.0, -1.0]), rcond=None)[
                0
            ]  # unbiased for K = {1, -1}
            if np.abs(np.stack([a, b]) @ solved - [1.0, -1.0]).max() > 1e-8:
                continue
            error = math.sqrt(min(float(a @ (solved - 1) ** 2), float(b @ (solved + 1) ** 2)))
            yield f"{name}, epsilon = {epsilon:g}", ratio(1 / math.sinh(epsilon / 2), error)


@check(
    NAME,
    "Theorem 53",
    "the mechanism is unbiased and (0, delta)-DP, and has error 0 on X_0",
    "delta = 1e-9 to 1 (delta = 0 is excluded: it divides by delta); total variation of every two data sets",
)
def knows_one(rng: np.random.Generator, count: int) -> Instances:
    for delta in (1e-9, 1e-3, 0.3, 0.999, 1.0):
        means = rng.integers(-3, 4, 4).astype(float)  # of X_0 and of three others
        laws = [{means[0]: 1 - delta} for _ in means]
        for law, mean in zip(laws, means, strict=True):
            at = (mean - (1 - delta) * means[0]) / delta
            law[at] = law.get(at, 0.0) + delta
            yield f"bias, delta = {delta:g}", ratio(abs(sum(y * w for y, w in law.items()) - mean), 1e-6)
        for a, b in itertools.product(laws, laws):
            far = sum(abs(a.get(y, 0.0) - b.get(y, 0.0)) for y in {*a, *b}) / 2
            yield f"distance, delta = {delta:g}", ratio(far, delta)
        yield "error on X_0", ratio(sum(w * (y - means[0]) ** 2 for y, w in laws[0].items()), 1e-6)


def product_norm(a: float, b: float, p: float) -> float:
    """Lemma 60, with its exponent q = 2p/(p + 2)."""
    return p_norm(np.array([a, b]), 2.0 if p == math.inf else 2 * p / (p + 2))


@check(
    NAME,
    "Lemma 60",
    "Gamma_p(K x L) = || (Gamma_p(K), Gamma_p(L)) ||_q, q = 2p/(p + 2)",
    "finite sets of 1 to 4 points, d = 1 to 3, also single points; p = 2 to inf",
)
def products(rng: np.random.Generator, count: int, norm: Callable[..., float] = product_norm) -> Instances:
    for i in range(count):
        p = exponent(i)
        K, L = (matrix(rng, i + j, int(rng.integers(1, 5)), int(rng.integers(1, 4))) for j in (0, 3))
        of_k, of_l, both = gamma_p(K, p), gamma_p(L, p), gamma_p(products_of(K, L), p)
        yield f"too small, p = {p:g}", ratio(both[0], norm(of_k[1], of_l[1], p))
        yield f"too large, p = {p:g}", ratio(norm(of_k[0], of_l[0], p), both[1])


@check(
    NAME,
    "Lemma 60",
    "equations (26), (27): Gamma_p(box) = ||b - a||_q / 2",
    "boxes of d = 1 to 5 by their vertices, sides from 0 to 1e3; p = 2 to inf; (26) as printed lacks the 1/2",
)
def boxes(rng: np.random.Generator, count: int, factor: float = 0.5) -> Instances:
    for i in range(count):
        d, p = int(rng.integers(1, 6)), exponent(i)
        side = np.abs(matrix(rng, i, d, 1))[:, 0]
        vertices = np.array(list(itertools.product([0.0, 1.0], repeat=d))) * side
        claimed = factor * p_norm(side, 2.0 if p == math.inf else 2 * p / (p + 2))
        yield from sides(f"d = {d}, p = {p:g}", claimed, gamma_p(vertices, p))


@check(NAME, "Lemma 60", "equation (26) as printed: Gamma_p(box) = ||b - a||_q", "as above", kind="misprint")
def boxes_as_printed(rng: np.random.Generator, count: int) -> Instances:
    yield from boxes(rng, count, 1.0)


@check(
    NAME,
    "Lemma 60",
    "gamma_(p) of stacked rows <= the same norm of both",
    "W_1, W_2 of 1 to 3 rows and 1 to 5 columns; p = 2 to inf",
)
def stacked(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        p, n = exponent(i), int(rng.integers(1, 6))
        W, V = (matrix(rng, i + j, int(rng.integers(1, 4)), n) for j in (0, 2))
        both = product_norm(gamma_of(W, p)[1], gamma_of(V, p)[1], p)
        yield f"{W.shape}, {V.shape}, p = {p:g}", ratio(gamma_of(np.concatenate([W, V]), p)[0], both)


@check(
    NAME,
    "Lemma 62",
    "Gamma_p(K (x) L) = Gamma_p(K) Gamma_p(L) for symmetric sets",
    "+-1 to 3 points, d = 1 to 3; p = 2 to inf",
)
def tensor_products(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        p = exponent(i)
        K, L = (symmetric(matrix(rng, i + j, int(rng.integers(1, 4)), int(rng.integers(1, 4)))) for j in (0, 3))
        both = gamma_p(np.stack([np.kron(x, y) for x, y in itertools.product(K, L)]), p)
        of_k, of_l = gamma_p(K, p), gamma_p(L, p)
        yield f"too small, p = {p:g}", ratio(both[0], of_k[1] * of_l[1])
        yield f"too large, p = {p:g}", ratio(of_k[0] * of_l[0], both[1])


@check(
    NAME,
    "Lemma 63",
    "coordinate projections do not raise Gamma_p, orthogonal ones do not raise Gamma_2",
    "finite sets of 1 to 6 points, d = 1 to 5; p = 2 to inf",
)
def projections(rng: np.random.Generator, count: int) -> Instances:
    for i in range(count):
        d, p = int(rng.integers(1, 6)), exponent(i)
        K = matrix(rng, i, int(rng.integers(1, 7)), d)
        yield f"coordinates, p = {p:g}", ratio(gamma_p(K * rng.integers(0, 2, d), p)[0], gamma_p(K, p)[1])
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0][:, : int(rng.integers(1, d + 1))]
        yield f"orthogonal, d = {d}", ratio(gamma_p(K @ Q @ Q.T, 2.0)[0], gamma_p(K, 2.0)[1])


def words(d: int, order: int, k: int) -> int:
    """Words of that length over d letters in which exactly k given letters occur an odd number of times."""
    signs = itertools.product(range(k + 1), range(d - k + 1))
    total = sum((-1) ** i * math.comb(k, i) * math.comb(d - k, j) * (d - 2 * i - 2 * j) ** order for i, j in signs)
    return total // 2**d


def cube_tensors(d: int, order: int, p: float) -> float:
    """Gamma_p({x^(x)l: x in {-1, 1}^d}): sign flips make the best M diagonal in the odd sets S, of m_S words each.

    min (sum_S m_S a_S^{p/2})^{1/p} under sum_S 1/a_S <= 1 over S != {}: Z^{1/2 + 1/p}, Z = sum_S m_S^{2/(p + 2)}.
    """
    Z = 0.0
    for k in range(1, min(d, order) + 1):
        if m := words(d, order, k):
            Z += math.comb(d, k) * (1.0 if p == math.inf else m ** (2 / (p + 2)))
    return Z**0.5 if p == math.inf else Z ** (0.5 + 1 / p)


def partitions(n: int, most: int) -> Instances:
    if n == 0:
        yield ()
    for first in range(min(n, most), 0, -1):
        yield from ((first, *rest) for rest in partitions(n - first, first))


def ball_upper(d: int, order: int, p: float) -> float:
    """An upper bound of Gamma_p({x^(x)l: ||x||_2 <= 1}): the ellipsoid of M = the projection on symmetric tensors.

    It holds the set, since <x^(x)l, M x^(x)l> = ||x||^{2l} <= 1; the diagonal entry of a word is 1/(number of words of
    its letters. At d = 1 and even l the set is [0, 1], of radius 1/2.
    """
    if d == 1:
        return 1.0 if order % 2 else 0.5
    logs = []
    for parts in partitions(order, order):
        if len(parts) <= d:
            same = sum(math.lgamma(c + 1) for c in Counter(parts).values())
            kinds = math.lgamma(d + 1) - math.lgamma(d - len(parts) + 1) - same
            orders = math.lgamma(order + 1) - sum(math.lgamma(a + 1) for a in parts)
            logs.append((kinds + orders, -orders / 2))  # how many words, log of a standard deviation
    count, size = np.array(logs).T
    return math.exp(size.max()) if p == math.inf else math.exp(float(np.logaddexp.reduce(count + p * size)) / p)


def ball_lower(d: int, order: int, p: float) -> float:
    """A lower bound: the uniform measure (Theorem 26, D a multiple of I), or the segment of a pure power x_1^l."""
    return max(moment_norm(d, order, p), 1.0 if order % 2 else 0.5)


GRID = tuple((d, order) for d in (1, 2, 3, 4, 6, 8, 12, 30, 60) for order in range(1, 9))


@check(
    NAME,
    "Theorem 64",
    "(d/l)^(l/p + l/2) <= Gamma_p(tensors of the cube) <= d^(l/p + l/2)",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf, by a closed form of every cell: fails at d = 1 and even l alone",
    kind="degenerate",
)
def cube(rng: np.random.Generator, count: int, least: int = 1) -> Instances:
    for (d, order), p in itertools.product(GRID, EXPONENTS):
        if d >= least or order % 2:
            rate = order / p + order / 2
            exact = cube_tensors(d, order, p)
            yield f"d = {d}, l = {order}, p = {p:g}", max(ratio((d / order) ** rate, exact), ratio(exact, d**rate))


@check(NAME, "Theorem 64", "the same for d >= 2 or odd l", "d = 1 to 60, l = 1 to 8, p = 2 to inf")
def cube_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from cube(rng, count, 2)


@check(
    NAME,
    "Theorem 64",
    "the closed form of the cube's tensors that this check rests on",
    "d^l <= 16, by points and two solvers",
)
def cube_closed_form(rng: np.random.Generator, count: int) -> Instances:
    for d, order in ((1, 2), (1, 3), (2, 2), (2, 3), (3, 2), (4, 2), (2, 4)):
        points = [np.ones(1)] * 2**d
        signs = list(itertools.product([-1.0, 1.0], repeat=d))
        for _ in range(order):
            points = [np.kron(x, s) for x, s in zip(points, signs, strict=True)]
        for p in EXPONENTS:
            yield from sides(
                f"d = {d}, l = {order}, p = {p:g}", cube_tensors(d, order, p), gamma_p(np.stack(points), p)
            )


@check(
    NAME,
    "Theorem 64",
    "(d/l)^(l/p) <= Gamma_p(tensors of the ball) <= d^(l/p)",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf, against ellipsoids that hold the whole set",
    kind="false",
)
def ball(rng: np.random.Generator, count: int) -> Instances:
    for (d, order), p in itertools.product(GRID, EXPONENTS):
        upper = min(ball_upper(d, order, p), even_upper(d, order, p))
        yield f"d = {d}, l = {order}, p = {p:g}", ratio((d / order) ** (order / p), upper)


def even_upper(d: int, order: int, p: float) -> float:
    """For d = l = 2 a better one: x x^T = t (I + a reflection)/2, t = ||x||^2, around a multiple of I."""
    if (d, order) != (2, 2):
        return math.inf

    def size(theta: np.ndarray) -> float:
        b, centre = math.exp(theta[0]), theta[1]
        least = max((r - centre) ** 2 + (r / b) ** 2 for r in (0.0, 1.0))  # convex in r, so largest at an end
        on, off = least * (1 + b * b) / 4, least * b * b / 4  # variances of x_1^2 and x_2^2, of x_1 x_2
        return math.sqrt(p_norm(np.array([on, on, off, off]), p / 2))

    starts = itertools.product((-1.0, 0.0, 1.0, 3.0), (0.3, 0.5, 0.9))
    return min(float(minimize(size, start, method="Nelder-Mead").fun) for start in starts)


@check(
    NAME,
    "Theorem 64",
    "(floor(d/l))^(l/p + l/2) d^(-l/2) <= Gamma_p(tensors of the ball) <= d^(l/p), as its proof gives",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf, against measures on the set and ellipsoids",
)
def ball_mended(rng: np.random.Generator, count: int) -> Instances:
    for (d, order), p in itertools.product(GRID, EXPONENTS):
        claimed = (d // order) ** (order / p + order / 2) * d ** (-order / 2)
        yield f"lower, d = {d}, l = {order}, p = {p:g}", ratio(claimed, ball_lower(d, order, p))
        yield f"upper, d = {d}, l = {order}, p = {p:g}", ratio(ball_upper(d, order, p), d ** (order / p))


@check(
    NAME,
    "Theorem 6",
    "covariances and moments: error >= c (d/l)^(l/p)/(epsilon n) with one c for all l",
    "Gamma_p in the place of the error: p = 3 to 64, l = 2 to 24, d = l^3; a tenth is granted as c",
    limit=10,
    kind="false",
)
def moments(rng: np.random.Generator, count: int) -> Instances:
    for order, p in itertools.product((2, 3, 4, 8, 16, 24), (3.0, 4.0, 8.0, 64.0)):
        d = order**3
        yield f"d = {d}, l = {order}, p = {p:g}", ratio((d / order) ** (order / p), ball_upper(d, order, p))


@check(
    NAME,
    "Theorem 6",
    "the same with l^(-l/2) more, at l that divides d",
    "p = 2 to inf, l = 1 to 8, d = l to 40 l, against measures on the ball",
)
def moments_mended(rng: np.random.Generator, count: int) -> Instances:
    for order, times, p in itertools.product(range(1, 9), (1, 2, 5, 40), EXPONENTS):
        d = order * times
        claimed = times ** (order / p) * order ** (-order / 2)
        yield f"d = {d}, l = {order}, p = {p:g}", ratio(claimed, ball_lower(d, order, p))


def surjections(order: int, k: int) -> int:
    return sum((-1) ** i * math.comb(k, i) * (k - i) ** order for i in range(k + 1))


def marginal_norm(d: int, order: int, p: float) -> float:
    """Gamma_p of the marginals over words of l attributes: M = sum_S a_|S| u_S u_S^T, a found by descent.

    A cell with k attributes has variance 4^-k sum_j C(k, j) a_j; the set asks sum_j C(d, j)/a_j <= 1.
    """
    ks = np.arange(1, min(d, order) + 1)
    count = np.array([math.comb(d, k) * surjections(order, k) * 2.0**k for k in ks])
    inside = np.array([[math.comb(k, j) for j in ks] for k in ks], dtype=float)
    sets = np.array([math.comb(d, j) for j in ks], dtype=float)

    def size(theta: np.ndarray) -> float:
        b = np.exp(theta)
        variances = 0.25**ks * (inside @ ((sets @ b) / b))
        top = variances.max()
        if p == math.inf:
            return math.log(top) / 2
        return math.log(float(count @ (variances / top) ** (p / 2))) / p + math.log(top) / 2

    starts = (np.zeros(len(ks)), np.linspace(0, 2, len(ks)), np.linspace(2, 0, len(ks)))
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxfev": 20_000, "maxiter": 20_000}
    return math.exp(min(minimize(size, start, method="Nelder-Mead", options=options).fun for start in starts))


@check(
    NAME,
    "Theorem 65",
    "Gamma_p = 2^(1/p - 1) d^(1/p + 1/2) at l = 1; between d^(l/2 + l/p)/(2 sqrt(2) l)^l and d^(l/2 + l/p)",
    "d = 1 to 12, l = 1 to 5 (d < l too), p = 2 to inf",
)
def marginals(rng: np.random.Generator, count: int) -> Instances:
    for d, order, p in thinned(rng, count, (1, 2, 3, 4, 5, 8, 12), range(1, 6), EXPONENTS):
        exact, top = marginal_norm(d, order, p), d ** (order / 2 + order / p)
        if order == 1:
            claimed = 2 ** (1 / p - 1) * top
            yield f"l = 1, d = {d}, p = {p:g}", max(ratio(claimed, exact), ratio(exact, claimed))
        bottom = top / (2 * math.sqrt(2) * order) ** order
        yield f"d = {d}, l = {order}, p = {p:g}", max(ratio(bottom, exact), ratio(exact, top))


@check(
    NAME,
    "Theorem 65",
    "an ellipsoid around 0: Gamma_p <= ((2 d)^(1/p) (1 + sqrt(d))/2)^l, no more than d^(l/2 + l/p) for d >= 6",
    "d = 1 to 60, l = 1 to 5, p = 2 to inf",
)
def marginals_above(rng: np.random.Generator, count: int) -> Instances:
    for d, order, p in thinned(rng, count, (1, 2, 5, 6, 12, 60), range(1, 6), EXPONENTS):
        above = ((2 * d) ** (1 / p) * (1 + math.sqrt(d)) / 2) ** order
        at = f"d = {d}, l = {order}, p = {p:g}"
        yield at, ratio(marginal_norm(d, order, p), above)
        if d >= 6:
            yield at, ratio(above, d ** (order / 2 + order / p))


@check(
    NAME,
    "Lemma 14",
    "part 4 as printed: tr_p(M) <= d^(1/q - 1/p) tr_q(M) for p <= q",
    "diagonals of d = 1 to 6, constant and sparse ones; p, q = 1 to inf",
    kind="misprint",
)
def traces(rng: np.random.Generator, count: int, sign: float = 1.0) -> Instances:
    orders = (1.0, 1.5, 2.0, 4.0, math.inf)
    for i in range(count):
        d = 1 + i % 6
        diagonal = np.ones(d) if i % 3 else rng.exponential(size=d) * rng.integers(0, 2, d)
        for p, q in itertools.combinations(orders, 2):
            bound = d ** (sign * (1 / q - 1 / p)) * p_norm(diagonal, q)
            yield f"d = {d}, p = {p:g}, q = {q:g}", ratio(p_norm(diagonal, p), bound)
            yield f"the first inequality, d = {d}", ratio(p_norm(diagonal, q), p_norm(diagonal, p))


@check(NAME, "Lemma 14", "the same with d^(1/p - 1/q)", "the same")
def traces_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from traces(rng, count, -1.0)


@check(
    NAME,
    "Theorem 7",
    "error of marginals >= c d^(l/2 + l/p)/(2 sqrt(2) l)^l, as printed: without 1/(epsilon n)",
    "one-way marginals with Gaussian noise, n = 1 to 1e6, epsilon = 0.1, delta = 1e-12; c = 1/1000",
    limit=1000,
    kind="misprint",
)
def marginal_error(
    rng: np.random.Generator, count: int, rate: Callable[[float, int], float] = lambda e, n: 1.0
) -> Instances:
    for n, d in itertools.product((1, 10, 1000, 10**6), (1, 4, 64)):
        sigma = gaussian_sigma(0.1, 1e-12, 2.0) / n
        claimed = d / (2 * math.sqrt(2)) * rate(0.1, n)
        yield f"n = {n}, d = {d}, p = 2", ratio(claimed, sigma * marginal_norm(d, 1, 2.0))


@check(NAME, "Theorem 7", "the same divided by epsilon n", "the same mechanisms")
def marginal_error_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from marginal_error(rng, count, lambda epsilon, n: 1 / (epsilon * n))


def sampled_epsilon(epsilon: float, beta: float, n: int) -> float:
    """ln of the largest ratio of M(P^n) to M(Q^n): n bits through randomized response, sent by users of P or of Q."""
    q = 1 / (1 + math.exp(epsilon))
    return n * math.log(((1 - beta) * q + beta * (1 - q)) / q)


@check(
    NAME,
    "Lemma 57",
    "epsilon' = 6 epsilon n beta, for every epsilon",
    "n = 1 to 100, beta = 1e-4 to 1, epsilon = 0.01 to 32; by enumeration",
    kind="range",
)
def samples(rng: np.random.Generator, count: int, rate: Callable[[float], float] = lambda e: 6 * e) -> Instances:
    for epsilon, beta, n in itertools.product(EPSILONS, (1e-4, 0.01, 0.1, 0.5, 1.0), (1, 2, 100)):
        yield (
            f"epsilon = {epsilon:g}, beta = {beta:g}, n = {n}",
            ratio(sampled_epsilon(epsilon, beta, n), rate(epsilon) * n * beta),
        )


@check(NAME, "Lemma 57", "epsilon' = (e^epsilon - 1) n beta; 6 epsilon n beta up to epsilon = 2.8", "the same")
def samples_mended(rng: np.random.Generator, count: int) -> Instances:
    yield from samples(rng, count, math.expm1)
    for beta, epsilon in itertools.product((1e-4, 0.1, 1.0), (0.01, 1.0, 2.8)):
        yield (
            f"epsilon = {epsilon:g}, beta = {beta:g}",
            ratio(sampled_epsilon(epsilon, beta, 1), 6 * epsilon * beta),
        )


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
