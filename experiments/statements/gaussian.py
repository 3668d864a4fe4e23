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
    Statements,
    dual,
    gamma_of,
    gamma_p,
    grid,
    largest,
    p_norm,
    privunit_variance,
    worst,
)
from torchdp.domains import FiniteSet, noise_shape
from torchdp.mean import moment_norm
from torchdp.privacy import gaussian_sigma

nikolov = Statements("Nikolov")


def symmetric(points):
    return np.concatenate([points, -points])


def vertices(d, *ends):
    """Those of a cube, (2^d, d)."""
    return np.array(list(itertools.product(ends, repeat=d)))


def sides(name, claimed, bracket: tuple[float, float]):
    """An equation is two inequalities."""
    lower, upper = bracket
    yield f"{name}, claimed too small", lower, claimed
    yield f"{name}, claimed too large", claimed, upper


@nikolov.each(
    "Theorem 3",
    "sqrt(E||Z||_p^2) <= 2 sqrt(e) sqrt(min(p, ln 2d)) sqrt(tr_{p/2}(A A^T))/(epsilon n)",
    "A of d = 1 to 64, diagonal and full, singular, badly scaled; p = 2 to inf",
    limit=2 * math.e**0.5,
)
def gaussian_error(draw):
    p = draw.p
    d = draw.pick(1, 2, 5, 64)
    A = np.diag(np.exp(draw.rng.normal(size=d))) if draw.i % 2 else draw.matrix(d, d)
    Z = 2 * draw.rng.normal(size=(2000, d)) @ A.T
    square = np.mean([p_norm(z, p) ** 2 for z in Z])
    bound = math.sqrt(min(p, math.log(2 * d))) * p_norm(np.linalg.norm(A, axis=1), p)
    yield f"d = {d}, p = {p:g}", math.sqrt(square), bound


@nikolov.grid(
    "Theorem 3",
    "noise for (epsilon, delta)-DP: sigma/Delta <= C sqrt(ln(1/delta))/epsilon",
    "epsilon = 0.001 to 64, delta from 1e-300 to e^-epsilon",
    (0.001, *EPSILONS, 64.0),
    limit=2,
)
def calibrated(epsilon):
    for log in (epsilon, 1.1 * epsilon, 2 * epsilon + 1, 10.0, 50.0, 600.0):
        delta = math.exp(-log)
        if epsilon <= log < 690 and delta < 1:
            moved = gaussian_sigma(epsilon, delta) * epsilon
            yield f"epsilon = {epsilon:g}, delta = {delta:.3g}", moved, math.sqrt(log)


@nikolov.each(
    "Theorem 3",
    "no two neighbours' means are further apart than 2/n in the ellipsoid's norm",
    "finite sets of 1 to 8 points, d = 1 to 4; n = 1 to 1000; p = 2 to inf",
)
def sensitivity(draw):
    p = draw.p
    K = draw.sized(8, 4)
    n = int(10 ** draw.rng.integers(0, 4))
    A = noise_shape(FiniteSet(torch.as_tensor(K)), p).root.numpy()
    distance = 0.0
    if A.shape[1]:
        changes = (K[:, None] - K).reshape(-1, K.shape[1]) / n
        preimages = changes @ np.linalg.pinv(A).T
        distance = np.linalg.norm(preimages, axis=1).max()
    yield f"{K.shape} p = {p:g}, n = {n}", distance, 2 / n


@nikolov.grid(
    "Theorem 17",
    "sqrt(E||Z||_2^2) <= C sqrt(2) (e^epsilon + 1)/(e^epsilon - 1) Gamma_2/sqrt(n)",
    "the randomizer's variance of a coordinate; d = 1 to 512, epsilon = 0.01 to 32",
    EPSILONS,
    (1, 2, 8, 64, 512),
    limit=2,
)
def local_error(epsilon, d):
    coordinate = math.sqrt(privunit_variance(d, epsilon) / 2)
    yield f"d = {d}, epsilon = {epsilon:g}", coordinate * math.tanh(epsilon / 2), 1.0


@nikolov.each(
    "Theorem 20",
    "hulls, inclusion, scaling, Gamma_p(K + L) <= Gamma_p(K) + Gamma_p(L)",
    "finite sets of 1 to 5 points, d = 1 to 4, also single points; p = 2 to inf",
)
def calculus(draw):
    rng = draw.rng
    d = draw.size(4)
    p = draw.p
    t = float(rng.normal() * 10.0 ** rng.integers(-3, 4))
    K = draw.matrix(draw.size(5), d)
    L = draw.matrix(draw.size(5), d, later=1)
    lower_k, upper_k = gamma_p(K, p)
    upper_l = gamma_p(L, p)[1]
    sums = (K[:, None] + L).reshape(-1, d)
    yield f"sum, d = {d}, p = {p:g}", gamma_p(sums, p)[0], upper_k + upper_l
    union = np.concatenate([K, L])
    yield f"inclusion, p = {p:g}", lower_k, gamma_p(union, p)[1]
    scaled = (0.0, gamma_p(t * K, p)[1])
    yield from sides(f"scaling by {t:.3g}, p = {p:g}", abs(t) * lower_k, scaled)
    inside = rng.dirichlet(np.ones(len(K)), 3) @ K
    hull = np.concatenate([K, inside])
    yield f"hull, p = {p:g}", gamma_p(hull, p)[0], upper_k


@nikolov.each(
    "Lemma 21",
    "no shift for symmetric K; Gamma_p(K) <= Gamma_p((K + v) u (-K - v)) for every v",
    "finite sets of 1 to 5 points, d = 1 to 4; p = 2 to inf",
)
def centred(draw):
    p = draw.p
    K = draw.sized(5, 4)
    both = symmetric(K)
    yield f"symmetric, p = {p:g}", gamma_p(both, p, False)[0], gamma_p(both, p)[1]
    shift = draw.rng.normal(size=K.shape[1])
    moved = symmetric(K + shift)
    yield f"any shift, p = {p:g}", gamma_p(K, p)[0], gamma_p(moved, p, False)[1]


@nikolov.each(
    "Theorem 23",
    "Gamma_p(+-columns) = gamma_(p)(W), Gamma_p(columns) = min over v of gamma_(p)(W + v 1^T)",
    "W of 1 to 5 rows and 1 to 6 columns; p = 2 to inf; two solvers",
)
def factorizations(draw):
    p = draw.p
    W = draw.sized(5, 6)
    for name, K, shift in (("symmetric", symmetric(W.T), False), ("shifted", W.T, True)):
        of_set = gamma_p(K, p)
        of_matrix = gamma_of(W, p, shift)
        pairs = (of_set[0], of_matrix[1]), (of_matrix[0], of_set[1])
        yield f"{name} {W.shape}, p = {p:g}", *worst(*pairs)


@nikolov.each(
    "Theorem 26",
    "tr((D cov(P) D)^{1/2}) <= Gamma_p(K) for every D, P; the largest attains it; Lemma 27",
    "finite sets of 1 to 6 points, d = 1 to 4, random D and P; p = 2 to inf",
)
def duality(draw, order: Callable[[float], float] = lambda p: p):
    p = draw.p
    K = draw.sized(6, 4)
    d = K.shape[1]
    lower, upper = gamma_p(K, p)
    for _ in range(5):
        rows = draw.simplex(d) + 1e-12
        P = draw.simplex(len(K)) + 1e-12
        yield f"weak, p = {p:g}", dual(K, P, rows, order(p)), upper
    yield f"strong, p = {p:g}", upper, lower
    squares = np.ones(d)
    if p > 2:
        squares = draw.rng.dirichlet(squares) ** (1 - 2 / p)
    yield f"Lemma 27, p = {p:g}", gamma_p(K * np.sqrt(squares), 2.0)[0], upper


@nikolov.each(
    "Lemma 31",
    "of an alpha-approximate pair (x, y) the better of the two is alpha-approximate",
    "finite sets of 1 to 8 points, d = 1 to 4, every pair, singular M, shifts",
)
def oracles(draw):
    K = draw.matrix(draw.size(8), 3)
    root = draw.matrix(3, 3, later=1)
    images = (K + draw.rng.normal(size=3)) @ root
    products = images @ images.T
    squares = (images**2).sum(1)
    yield f"pairs {K.shape}", products.max(), squares.max()
    positive = products > 0  # alpha^2 = largest/product of the pair
    if positive.any():
        better = np.maximum.outer(squares, squares)
        ratios = products[positive] / better[positive]
        yield f"the better {K.shape}", ratios.max(), 1.0


@nikolov.each(
    "Lemma 33",
    "E||M - mu||_p^2 >= tr_{p/2}(cov M)",
    "discrete distributions of 1 to 8 atoms in d = 1 to 6, heavy atoms; p = 2 to inf",
)
def jensen(draw):
    p = draw.p
    X = draw.sized(8, 6)
    P = draw.simplex(len(X))
    moved = X - P @ X
    error = P @ [p_norm(x, p) ** 2 for x in moved]
    deviations = np.sqrt(P @ moved**2)
    yield f"{X.shape}, p = {p:g}", p_norm(deviations, p) ** 2, error


def private_pairs(draw, size):
    """(name, P, Q): probabilities within factors e^+-epsilon, of randomized response, and random."""
    epsilon = draw.epsilon
    q = 1 / (1 + math.exp(epsilon))
    response = np.array([1 - q, q])
    yield "response", response, response[::-1]
    Q = draw.simplex(size) + 1e-9
    high = draw.rng.integers(0, 2, size).astype(float)
    P = Q * np.exp(epsilon * (high - draw.rng.random()))  # most at the ends
    P = P / P.sum()
    Q = Q / Q.sum()
    losses = np.log(P / Q)
    if largest(losses) > epsilon:
        # half of epsilon, since the sum that P is divided by moves all losses
        P = Q * np.exp(np.clip(losses, -epsilon, epsilon) * 0.5)
        P /= P.sum()
    if largest(np.log(P / Q)) <= epsilon * (1 + 1e-9):
        yield "random", P, Q


@nikolov.each(
    "Lemma 39",
    "chi^2(P||Q) <= e^-epsilon (e^epsilon - 1)^2",
    "distributions of 2 to 8 atoms, epsilon = 0.01 to 32, and randomized response, which attains it",
)
def chi_squared(draw):
    bound = 4 * math.sinh(draw.epsilon / 2) ** 2
    for name, P, Q in private_pairs(draw, draw.size(8, 2)):
        divergence = ((P - Q) ** 2 / Q).sum()
        yield f"{name}, epsilon = {draw.epsilon:g}", divergence, bound


@nikolov.each(
    "Theorems 42, 55",
    "on K = {-1, 1}: error >= 2 Gamma/(n e^(-epsilon/2) (e^epsilon - 1)) at each input",
    "randomized response, which attains it, and unbiased channels of 2 to 6 outputs; epsilon = 0.01 to 32; n = 1",
)
def pure_bound(draw):
    epsilon = draw.epsilon
    K = np.array([1.0, -1.0])
    for name, P, Q in private_pairs(draw, draw.size(6, 2)):
        if largest(P - Q) < 1e-12:
            continue
        channel = np.stack([P, Q])
        values = np.linalg.lstsq(channel, K, rcond=None)[0]
        if largest(channel @ values - K) <= 1e-8:  # unbiased
            variance = min(P @ (values - 1) ** 2, Q @ (values + 1) ** 2)
            yield f"{name}, epsilon = {epsilon:g}", 1 / math.sinh(epsilon / 2), math.sqrt(variance)


@nikolov.check(
    "Theorem 53",
    "the mechanism is unbiased and (0, delta)-DP, and has error 0 on X_0",
    "delta = 1e-9 to 1 (delta = 0 is excluded: it divides by delta); total variation of every two data sets",
)
def knows_one(rng, count):
    for delta in (1e-9, 1e-3, 0.3, 0.999, 1.0):
        means = rng.integers(-3, 4, 4).astype(float)  # of X_0 and of three others
        releases = [Counter({means[0]: 1 - delta}) for _ in means]
        for release, mean in zip(releases, means, strict=True):
            release[(mean - (1 - delta) * means[0]) / delta] += delta
            expected = sum(y * w for y, w in release.items())
            yield f"bias, delta = {delta:g}", abs(expected - mean), 1e-6
        for a, b in itertools.product(releases, releases):
            variation = sum(abs(a[y] - b[y]) for y in {*a, *b}) / 2
            yield f"distance, delta = {delta:g}", variation, delta
        error = sum(w * (y - means[0]) ** 2 for y, w in releases[0].items())
        yield "error on X_0", error, 1e-6


def joined(sizes, p):
    """The norm of Lemma 60, with its exponent q = 2p/(p + 2)."""
    return p_norm(sizes, 2.0 if p == math.inf else 2 * p / (p + 2))


def product_norm(a, b, p):
    return joined(np.array([a, b]), p)


@nikolov.each(
    "Lemma 60",
    "Gamma_p(K x L) = || (Gamma_p(K), Gamma_p(L)) ||_q, q = 2p/(p + 2)",
    "finite sets of 1 to 4 points, d = 1 to 3, also single points; p = 2 to inf",
)
def products(draw, norm: Callable[..., float] = product_norm):
    p = draw.p
    K = draw.sized(4, 3)
    L = draw.sized(4, 3, later=3)
    product = np.stack([np.concatenate(pair) for pair in itertools.product(K, L)])
    lower_k, upper_k = gamma_p(K, p)
    lower_l, upper_l = gamma_p(L, p)
    lower, upper = gamma_p(product, p)
    yield f"too small, p = {p:g}", lower, norm(upper_k, upper_l, p)
    yield f"too large, p = {p:g}", norm(lower_k, lower_l, p), upper


@nikolov.each(
    "Lemma 60",
    "equation (26) as printed: Gamma_p(box) = ||b - a||_q",
    "as above",
    kind="misprint",
    factor=1.0,
)
@nikolov.each(
    "Lemma 60",
    "equations (26), (27): Gamma_p(box) = ||b - a||_q / 2",
    "boxes of d = 1 to 5 by their vertices, sides from 0 to 1e3; p = 2 to inf; (26) as printed lacks the 1/2",
)
def boxes(draw, factor=0.5):
    d = draw.size(5)
    p = draw.p
    side = np.abs(draw.matrix(d, 1))[:, 0]
    bracket = gamma_p(vertices(d, 0.0, 1.0) * side, p)
    yield from sides(f"d = {d}, p = {p:g}", factor * joined(side, p), bracket)


@nikolov.each(
    "Lemma 60",
    "gamma_(p) of stacked rows <= the same norm of both",
    "W_1, W_2 of 1 to 3 rows and 1 to 5 columns; p = 2 to inf",
)
def stacked(draw):
    p = draw.p
    n = draw.size(5)
    W = draw.matrix(draw.size(3), n)
    V = draw.matrix(draw.size(3), n, later=2)
    bound = product_norm(gamma_of(W, p)[1], gamma_of(V, p)[1], p)
    lower, _ = gamma_of(np.concatenate([W, V]), p)
    yield f"{W.shape}, {V.shape}, p = {p:g}", lower, bound


@nikolov.each(
    "Lemma 63",
    "coordinate projections do not raise Gamma_p, orthogonal ones do not raise Gamma_2",
    "finite sets of 1 to 6 points, d = 1 to 5; p = 2 to inf",
)
def projections(draw):
    rng = draw.rng
    d = draw.size(5)
    p = draw.p
    K = draw.matrix(draw.size(6), d)
    cut = K * rng.integers(0, 2, d)
    yield f"coordinates, p = {p:g}", gamma_p(cut, p)[0], gamma_p(K, p)[1]
    Q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    Q = Q[:, : draw.size(d)]
    projected = K @ Q @ Q.T
    yield f"orthogonal, d = {d}", gamma_p(projected, 2.0)[0], gamma_p(K, 2.0)[1]


def words(d, ell, k):
    """Words of length l over d letters in which k given letters alone occur an odd number of times."""
    # the mean over x in {-1, 1}^d of (x_1 + ... + x_d)^l times the k letters' product; i of these
    # and j of the other letters are -1
    total = 0
    for i, j in itertools.product(range(k + 1), range(d - k + 1)):
        points = (-1) ** i * math.comb(k, i) * math.comb(d - k, j)
        total += points * (d - 2 * i - 2 * j) ** ell
    return total // 2**d


def cube_tensors(d, ell, p):
    """Gamma_p({x^(x)l: x in {-1, 1}^d}): sign flips make the best M diagonal in the odd sets S, of
    m_S words each.

    min (sum_S m_S a_S^{p/2})^{1/p} under sum_S 1/a_S <= 1 over S != {}: Z^{1/2 + 1/p}, Z = sum_S
    m_S^{2/(p + 2)}.
    """
    Z = 0.0
    for k in range(1, min(d, ell) + 1):
        m = words(d, ell, k)
        Z += math.comb(d, k) * m ** (2 / (p + 2)) if m else 0.0  # 0^0 at p = inf
    return Z ** (0.5 + 1 / p)


def partitions(n, most):
    if n == 0:
        yield ()
    for first in range(min(n, most), 0, -1):
        yield from ((first, *rest) for rest in partitions(n - first, first))


def ball_upper(d, ell, p):
    """An upper bound of Gamma_p({x^(x)l: ||x||_2 <= 1}): the ellipsoid of M = the projection on
    symmetric tensors.

    It holds the set, since <x^(x)l, M x^(x)l> = ||x||^{2l} <= 1; the diagonal entry of a word is
    1/(number of words of its letters. At d = 1 and even l the set is [0, 1], of radius 1/2.
    """
    if d == 1:
        return 1.0 if ell % 2 else 0.5
    counts = []  # logs of how many words of these letters there are, and of a standard deviation
    sizes = []
    for parts in partitions(ell, ell):
        if len(parts) <= d:
            same = sum(math.lgamma(c + 1) for c in Counter(parts).values())
            kinds = math.lgamma(d + 1) - math.lgamma(d - len(parts) + 1) - same
            orders = math.lgamma(ell + 1) - sum(math.lgamma(a + 1) for a in parts)
            counts.append(kinds + orders)
            sizes.append(-orders / 2)
    if p == math.inf:
        return math.exp(max(sizes))
    powers = np.array(counts) + p * np.array(sizes)
    return math.exp(np.logaddexp.reduce(powers) / p)


def ball_lower(d, ell, p):
    """A lower bound: the uniform measure (Theorem 26, D a multiple of I), or the segment of a pure
    power x_1^l.
    """
    return max(moment_norm(d, ell, p), 1.0 if ell % 2 else 0.5)


DIMENSIONS = (1, 2, 3, 4, 6, 8, 12, 30, 60)
TENSORS = (DIMENSIONS, range(1, 9), EXPONENTS)


@nikolov.grid(
    "Theorem 64",
    "the same for d >= 2 or odd l",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf",
    *TENSORS,
    least=2,
)
@nikolov.grid(
    "Theorem 64",
    "(d/l)^(l/p + l/2) <= Gamma_p(tensors of the cube) <= d^(l/p + l/2)",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf, by a closed form of every cell: fails at d = 1 and even l alone",
    *TENSORS,
    kind="degenerate",
)
def cube(d, ell, p, least=1):
    if d >= least or ell % 2:
        rate = ell / p + ell / 2
        exact = cube_tensors(d, ell, p)
        yield f"d = {d}, l = {ell}, p = {p:g}", *worst(((d / ell) ** rate, exact), (exact, d**rate))


@nikolov.grid(
    "Theorem 64",
    "the closed form of the cube's tensors that this check rests on",
    "d^l <= 16, by points and two solvers",
    ((1, 2), (1, 3), (2, 2), (2, 3), (3, 2), (4, 2), (2, 4)),
    EXPONENTS,
)
def cube_closed_form(size: tuple[int, int], p):
    d, ell = size
    x = vertices(d, -1.0, 1.0)
    points = np.ones((2**d, 1))
    for _ in range(ell):
        points = (points[:, :, None] * x[:, None]).reshape(2**d, -1)
    yield from sides(f"d = {d}, l = {ell}, p = {p:g}", cube_tensors(d, ell, p), gamma_p(points, p))


@nikolov.grid(
    "Theorem 64",
    "(d/l)^(l/p) <= Gamma_p(tensors of the ball) <= d^(l/p)",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf, against ellipsoids that hold the whole set",
    *TENSORS,
    kind="false",
)
def ball(d, ell, p):
    upper = min(ball_upper(d, ell, p), even_upper(d, ell, p))
    yield f"d = {d}, l = {ell}, p = {p:g}", (d / ell) ** (ell / p), upper


def even_upper(d, ell, p):
    """A better one for d = l = 2: x x^T = ||x||^2 (I + a reflection)/2, around a multiple of I."""
    if (d, ell) != (2, 2):
        return math.inf

    def size(theta):
        b = math.exp(theta[0])
        centre = theta[1]
        # convex in r, so largest at an end
        scale = max((r - centre) ** 2 + (r / b) ** 2 for r in (0.0, 1.0))
        squares = scale * (1 + b * b) / 4  # variance of x_1^2 and of x_2^2
        product = scale * b * b / 4  # of x_1 x_2
        return math.sqrt(p_norm(np.array([squares, squares, product, product]), p / 2))

    return descended(size, itertools.product((-1.0, 0.0, 1.0, 3.0), (0.3, 0.5, 0.9)))


def descended(size, starts, **options):
    """The least value from several starts, without gradients."""
    return min(minimize(size, start, method="Nelder-Mead", options=options).fun for start in starts)


@nikolov.grid(
    "Theorem 64",
    "(floor(d/l))^(l/p + l/2) d^(-l/2) <= Gamma_p(tensors of the ball) <= d^(l/p), as its proof gives",
    "d = 1 to 60, l = 1 to 8, p = 2 to inf, against measures on the set and ellipsoids",
    *TENSORS,
)
def ball_mended(d, ell, p):
    claimed = (d // ell) ** (ell / p + ell / 2) * d ** (-ell / 2)
    yield f"lower, d = {d}, l = {ell}, p = {p:g}", claimed, ball_lower(d, ell, p)
    yield f"upper, d = {d}, l = {ell}, p = {p:g}", ball_upper(d, ell, p), d ** (ell / p)


@nikolov.grid(
    "Theorem 6",
    "covariances and moments: error >= c (d/l)^(l/p)/(epsilon n) with one c for all l",
    "Gamma_p in the place of the error: p = 3 to 64, l = 2 to 24, d = l^3; a tenth is granted as c",
    (2, 3, 4, 8, 16, 24),
    (3.0, 4.0, 8.0, 64.0),
    limit=10,
    kind="false",
)
def moments(ell, p):
    d = ell**3
    yield f"d = {d}, l = {ell}, p = {p:g}", (d / ell) ** (ell / p), ball_upper(d, ell, p)


@nikolov.grid(
    "Theorem 6",
    "the same with l^(-l/2) more, at l that divides d",
    "p = 2 to inf, l = 1 to 8, d = l to 40 l, against measures on the ball",
    range(1, 9),
    (1, 2, 5, 40),
    EXPONENTS,
)
def moments_mended(ell, times, p):
    d = ell * times
    claimed = times ** (ell / p) * ell ** (-ell / 2)
    yield f"d = {d}, l = {ell}, p = {p:g}", claimed, ball_lower(d, ell, p)


def surjections(ell, k):
    return sum((-1) ** i * math.comb(k, i) * (k - i) ** ell for i in range(k + 1))


def marginal_norm(d, ell, p):
    """Gamma_p of the marginals over words of l attributes: M = sum_S a_|S| u_S u_S^T, a found by
    descent.

    A cell with k attributes has variance 4^-k sum_j C(k, j) a_j; the set asks sum_j C(d, j)/a_j
    <= 1.
    """
    ks = np.arange(1, min(d, ell) + 1)
    count = np.array([math.comb(d, k) * surjections(ell, k) * 2.0**k for k in ks])
    inside = np.array([[math.comb(k, j) for j in ks] for k in ks], dtype=float)
    sets = np.array([math.comb(d, j) for j in ks], dtype=float)

    def size(theta):
        b = np.exp(theta)
        variances = 0.25**ks * (inside @ ((sets @ b) / b))
        top = variances.max()
        if p == math.inf:
            return math.log(top) / 2
        # divided by the largest, so that no power overflows
        powers = (variances / top) ** (p / 2)
        return math.log(count @ powers) / p + math.log(top) / 2

    starts = [np.linspace(first, last, len(ks)) for first, last in ((0, 0), (0, 2), (2, 0))]
    return math.exp(descended(size, starts, xatol=1e-9, fatol=1e-12, maxfev=20_000, maxiter=20_000))


@nikolov.grid(
    "Theorem 65",
    "Gamma_p = 2^(1/p - 1) d^(1/p + 1/2) at l = 1; between d^(l/2 + l/p)/(2 sqrt(2) l)^l and d^(l/2 + l/p)",
    "d = 1 to 12, l = 1 to 5 (d < l too), p = 2 to inf",
    (1, 2, 3, 4, 5, 8, 12),
    range(1, 6),
    EXPONENTS,
    slow=True,
)
def marginals(d, ell, p):
    exact = marginal_norm(d, ell, p)
    top = d ** (ell / 2 + ell / p)
    if ell == 1:
        claimed = 2 ** (1 / p - 1) * top
        yield f"l = 1, d = {d}, p = {p:g}", *worst((claimed, exact), (exact, claimed))
    bottom = top / (2 * math.sqrt(2) * ell) ** ell
    yield f"d = {d}, l = {ell}, p = {p:g}", *worst((bottom, exact), (exact, top))


@nikolov.grid(
    "Theorem 65",
    "an ellipsoid around 0: Gamma_p <= ((2 d)^(1/p) (1 + sqrt(d))/2)^l, no more than d^(l/2 + l/p) for d >= 6",
    "d = 1 to 60, l = 1 to 5, p = 2 to inf",
    (1, 2, 5, 6, 12, 60),
    range(1, 6),
    EXPONENTS,
    slow=True,
)
def marginals_above(d, ell, p):
    one_way = (2 * d) ** (1 / p) * (1 + math.sqrt(d)) / 2
    above = one_way**ell
    at = f"d = {d}, l = {ell}, p = {p:g}"
    yield at, marginal_norm(d, ell, p), above
    if d >= 6:
        yield at, above, d ** (ell / 2 + ell / p)


@nikolov.each("Lemma 14", "the same with d^(1/p - 1/q)", "the same", sign=-1.0)
@nikolov.each(
    "Lemma 14",
    "part 4 as printed: tr_p(M) <= d^(1/q - 1/p) tr_q(M) for p <= q",
    "diagonals of d = 1 to 6, constant and sparse ones; p, q = 1 to inf",
    kind="misprint",
)
def traces(draw, sign=1.0):
    d = 1 + draw.i % 6
    if draw.i % 3:
        diagonal = np.ones(d)
    else:
        diagonal = draw.rng.exponential(size=d) * draw.rng.integers(0, 2, d)
    for p, q in itertools.combinations((1.0, 1.5, 2.0, 4.0, math.inf), 2):
        of_p = p_norm(diagonal, p)
        of_q = p_norm(diagonal, q)
        factor = d ** (sign * (1 / q - 1 / p))
        yield f"d = {d}, p = {p:g}, q = {q:g}", of_p, factor * of_q
        yield f"the first inequality, d = {d}", of_q, of_p


ONE_WAY = ((1, 10, 1000, 10**6), (1, 4, 64))


@nikolov.grid(
    "Theorem 7",
    "the same divided by epsilon n",
    "the same mechanisms",
    *ONE_WAY,
    rate=lambda epsilon, n: 1 / (epsilon * n),
)
@nikolov.grid(
    "Theorem 7",
    "error of marginals >= c d^(l/2 + l/p)/(2 sqrt(2) l)^l, as printed: without 1/(epsilon n)",
    "one-way marginals with Gaussian noise, n = 1 to 1e6, epsilon = 0.1, delta = 1e-12; c = 1/1000",
    *ONE_WAY,
    limit=1000,
    kind="misprint",
)
def marginal_error(n, d, rate: Callable[[float, int], float] = lambda epsilon, n: 1.0):
    sigma = gaussian_sigma(0.1, 1e-12, 2.0) / n
    claimed = d / (2 * math.sqrt(2)) * rate(0.1, n)
    yield f"n = {n}, d = {d}, p = 2", claimed, sigma * marginal_norm(d, 1, 2.0)


SAMPLED = (EPSILONS, (1e-4, 0.01, 0.1, 0.5, 1.0), (1, 2, 100))


@nikolov.grid(
    "Lemma 57",
    "epsilon' = 6 epsilon n beta, for every epsilon",
    "n = 1 to 100, beta = 1e-4 to 1, epsilon = 0.01 to 32; by enumeration",
    *SAMPLED,
    kind="range",
)
def samples(epsilon, beta, n, rate: Callable[[float], float] = lambda epsilon: 6 * epsilon):
    """ln of the largest ratio of M(P^n) to M(Q^n), M: randomized response of n users' bits."""
    q = 1 / (1 + math.exp(epsilon))
    odds = ((1 - beta) * q + beta * (1 - q)) / q
    spent = n * math.log(odds)
    yield f"epsilon = {epsilon:g}, beta = {beta:g}, n = {n}", spent, rate(epsilon) * n * beta


@nikolov.check(
    "Lemma 57",
    "epsilon' = (e^epsilon - 1) n beta; 6 epsilon n beta up to epsilon = 2.8",
    "the same",
)
def samples_mended(rng, count):
    yield from grid(samples, *SAMPLED, rate=math.expm1)(rng, count)
    yield from grid(samples, (0.01, 1.0, 2.8), (1e-4, 0.1, 1.0), (1,))(rng, count)


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
