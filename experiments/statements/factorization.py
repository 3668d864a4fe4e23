"""Edmonds, Nikolov, Ullman (2020): statements about factorization norms and mechanisms."""

import itertools
import math

import numpy as np
import torch
from scipy.stats import binom

from statements.base import (
    EPSILONS,
    SMALL,
    Draw,
    Statements,
    gamma_of,
    largest,
    privunit_variance,
    size_of,
    worst,
)
from torchdp.factorization import additive_noise_bound, approximate, factorize, gamma2_dual
from torchdp.factorization.hard import least_noise_variance
from torchdp.privacy import gaussian_sigma
from torchdp.queries import PrivateLearner
from torchdp.queries.learn import ConceptClass
from torchdp.randomizers import PrivUnit

edmonds = Statements("Edmonds")
WIDE = (*EPSILONS, 100.0, 1000.0, 1e4)


def approximated(W, alpha):
    """(lower, upper) of gamma_2(W; alpha), recomputed, the lower one by Lemma 12 itself."""
    found = approximate(W, alpha, tol=2e-4)
    left = found.left.numpy()
    right = found.right.numpy()
    if largest(left @ right - W) > alpha * (1 + 1e-7) + 1e-9 * largest(W):
        raise ArithmeticError("the approximation is further away than alpha")
    return float(found.certificate.lower), size_of(left, right)


@edmonds.each(
    "Lemma 12",
    "as printed: the definition moves entries by at most alpha/2, the maximum is that of alpha",
    "the same instances",
    kind="misprint",
    share=0.5,
)
@edmonds.each(
    "Lemma 12",
    "(<W, U> - alpha ||U||_1)/gamma_2*(U) <= gamma_2(W; alpha), entries moved by at most alpha; some U attains it",
    "W of 1 to 4 rows and 1 to 5 columns, alpha = 0 to 1.2 max abs(W), random U and W itself",
)
def approximate_duality(draw, share=1.0):
    W = draw.sized(4, 5)
    alpha = largest(W) * draw.pick(0.0, 0.1, 0.5, 0.9, 1.2)
    at = f"{W.shape}, alpha = {alpha:.3g}"
    lower, upper = approximated(W, share * alpha)
    for U in (W, draw.rng.normal(size=W.shape), draw.matrix(*W.shape, later=1)):
        if U.any():
            most = float(gamma2_dual(torch.as_tensor(U)).upper)
            gain = (W * U).sum() - alpha * np.abs(U).sum()
            yield f"weak {at}", gain / most, upper
    yield f"tight {at}", lower, approximated(W, alpha)[1]


@edmonds.each(
    "Lemma 13",
    "gamma_2*(U) <= ||P^-1 U Q^-1|| for every P, Q of Frobenius norm 1; the least attains it",
    "U of 1 to 5 rows and columns, random diagonals, rows of zeros",
)
def dual_norm(draw):
    U = draw.sized(5, 5)
    if not U.any():
        return
    found = gamma2_dual(torch.as_tensor(U))
    product = found.left.numpy() @ found.right.numpy().T
    least = (U * product).sum()
    yield f"vectors {U.shape}", float(found.lower), least
    m, n = U.shape
    weights = [(found.row_weights.numpy(), found.column_weights.numpy())]
    weights += [(draw.simplex(m) + 1e-9, draw.simplex(n) + 1e-9) for _ in range(5)]
    rows = U.any(1)
    columns = U.any(0)
    nonzero = U[rows][:, columns]  # where a row is 0 its weight may be 0 too
    for c, P in weights:
        row_scale = np.sqrt(c[rows] / c.sum())[:, None]
        column_scale = np.sqrt(P[columns] / P.sum())
        scaled = nonzero / row_scale / column_scale
        yield f"weak {U.shape}", least, np.linalg.norm(scaled, 2)
    yield f"strong {U.shape}", float(found.upper), least
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=m)))
    sums = np.abs(signs @ U).sum(1)
    yield f"signs {U.shape}", sums.max(), least


@edmonds.grid(
    "Corollaries 5 and 6",
    "gamma_2(W; 1/2) >= C(d, w)^(1/2)/2 >= (d/w)^(w/2)/2 for parities of w of d bits",
    "d = 1 to 6, w = 0 to d, all 2^d types",
    range(1, 7),
)
def parities(d):
    x = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
    for w in range(d + 1):
        sets = itertools.combinations(range(d), w)
        W = np.array([x[:, list(S)].prod(1) for S in sets])
        claimed = math.comb(d, w) ** 0.5 / 2
        power = (d / w) ** (w / 2) / 2 if w else 0.5
        yield f"d = {d}, w = {w}", claimed, approximated(W, 0.5)[1]
        yield f"the binomial, d = {d}, w = {w}", power, claimed


def least_largest(W, epsilon):
    """(gamma_2(W), sqrt(n) E max error of the local factorization mechanism, of many users)."""
    factors = factorize(W, tol=2e-4)
    left = factors.left.numpy()
    right = factors.right.numpy()
    variance = privunit_variance(len(right), epsilon)
    Z = np.random.default_rng(0).normal(size=(2000, left.shape[1]))
    errors = np.abs(Z @ left.T).max(1)
    radius = np.linalg.norm(right, axis=0).max()
    error = errors.mean() * radius
    return gamma_of(W)[0], error * math.sqrt(variance)


@edmonds.each(
    "Theorem 10",
    "as printed: ln k, which is 0 for one query",
    "the same",
    limit=16,
    kind="degenerate",
    twice=1.0,
    least=20,
)
@edmonds.each(
    "Theorem 10",
    "users for E max error alpha: n <= C gamma_2(W)^2 ln(2 k)/(epsilon^2 alpha^2), alpha -> 0",
    "k = 1 to 64 queries, epsilon = 0.01 to 1",
    limit=16,
)
def local_users(draw, twice=2.0):
    k = draw.pick(1, 2, 3, 8, 64)
    epsilon = draw.small_epsilon
    W = np.tri(k) if draw.i % 3 == 0 else draw.matrix(k, draw.size(8, 2))
    if W.any():
        norm, error = least_largest(W, epsilon)
        yield (
            f"k = {k}, epsilon = {epsilon:g}",
            (error * epsilon) ** 2,
            norm**2 * math.log(twice * k),
        )


@edmonds.grid(
    "Lemma 9",
    "for every epsilon > 0 an unbiased epsilon-DP randomizer is C/epsilon-sub-Gaussian, one C for all d",
    "d = 1 to 1e6, epsilon = 0.01 to 1e4, against a lower bound for every randomizer; C = 10",
    WIDE,
    (1, 10, 1000, 10**6),
    limit=10,
    kind="range",
)
def randomizer(epsilon, d):
    """The lower bound is of sigma, E exp(Z^2/sigma^2) <= 2, of every epsilon-DP unbiased Y of
    points of the unit ball.

    Averaged over x on the sphere an output's density f has max/min <= e^epsilon and mean 1, so it
    moves <x, u> by at most sqrt(2 KL(f)/d) <= sqrt(2 epsilon/d) (a coordinate is
    1/sqrt(d)-sub-Gaussian). Unbiasedness makes the mean of <Y, x> equal to 1, so E||Y||^2 >= d/(2
    epsilon), some direction of Y - x has variance 1/(2 epsilon) - 1/d, at most sigma^2 ln 2 by
    Jensen's inequality.
    """
    variance = max(0.0, 1 / (2 * epsilon) - 1 / d)
    least = math.sqrt(variance / math.log(2))
    yield f"epsilon = {epsilon:g}, d = {d}", least * epsilon, 1.0


@edmonds.grid(
    "Lemma 9",
    "the same for epsilon <= 1",
    "PrivUnit, d = 1 to 512, epsilon = 0.01 to 1; C = 5",
    SMALL,
    (1, 2, 8, 64, 512),
    limit=5,
)
def randomizer_mended(epsilon, d):
    sigma = PrivUnit(d, epsilon).subgaussian.psi2
    yield f"epsilon = {epsilon:g}, d = {d}", sigma * epsilon, 1.0


@edmonds.check(
    "Theorem 24",
    "n = C ln k/alpha^2 (more with privacy) learns with probability 1 - beta, C free of beta, as printed",
    "two opposite concepts without privacy: the best rule's failure over beta; alpha = 0.01 to 0.5, beta to "
    "1e-300, C = 100",
    kind="degenerate",
)
def learning(rng, count, grows=False):
    for alpha, exponent in itertools.product((0.01, 0.1, 0.5), (1, 10, 50, 100, 300)):
        beta = 10.0**-exponent
        logarithm = 2 * math.log(2 / beta) if grows else 100 * math.log(2)
        n = math.ceil(logarithm / alpha**2)
        # losses (1 - bias)/2 and (1 + bias)/2 are more than alpha apart
        bias = min(1.0, 1.0001 * alpha)
        failing = binom.logcdf((n - 1) // 2, n, (1 + bias) / 2)
        # as a logarithm, since beta alone may be 1e-300
        excess = min(700.0, failing - math.log(beta))
        yield f"alpha = {alpha:g}, beta = {beta:g}", math.exp(excess), 1.0


@edmonds.check(
    "Theorem 24",
    "the same with ln(k/beta): our learner's users <= C gamma_2^2 ln(4 k/beta)/(epsilon^2 alpha^2)",
    "k = 1 to 8 concepts, alpha = 0.01 to 0.9, beta = 1e-9 to 0.9, epsilon = 0.01 to 1",
    limit=64,
)
def learning_mended(rng, count):
    yield from learning(rng, count, True)
    for i in range(count):
        draw = Draw(rng, i)
        D = rng.choice([-1.0, 1.0], (draw.size(8), draw.size(8)))
        k = len(D)
        epsilon = draw.small_epsilon
        alpha = draw.pick(0.01, 0.1, 0.9)
        beta = draw.pick(1e-9, 1e-3, 0.1, 0.9)
        concepts = ConceptClass(tuple(map(str, range(k))), (torch.as_tensor(D),))
        n = PrivateLearner.calibrated(concepts, epsilon=epsilon).samples(alpha, beta)
        bound = gamma_of(D)[0] ** 2 * math.log(4 * k / beta) / (epsilon * alpha) ** 2
        yield f"{D.shape}, epsilon = {epsilon:g}, alpha = {alpha:g}, beta = {beta:g}", n - 1, bound


BETAS = (0.1, 0.03, 0.01, 0.001, 1e-4)


@edmonds.grid(
    "Theorem 24",
    "the same for losses estimated within alpha",
    "losses 2 alpha apart, the same n",
    BETAS,
    within=0.5,
)
@edmonds.grid(
    "Theorem 24",
    "its definition as printed: the loss is estimated within beta (not alpha), so n free of beta^-2 is enough",
    "losses 2 beta apart without privacy: the best rule's failure over beta; n = 64 ln(8/beta)/alpha^2, alpha = 1/2",
    BETAS,
    kind="misprint",
)
def estimating(beta, within=None):
    n = 2 * math.ceil(128 * math.log(8 / beta)) + 1
    bias = 2 * (within or beta)
    right = min(1.0, (1 + 1.0001 * bias) / 2)  # chance that one user is on the better side
    failing = binom.cdf((n - 1) // 2, n, right)
    yield f"beta = {beta:g}, n = {n}", failing, beta


def noises(epsilon):
    """(name, variance) of noise that makes a query of width 1 epsilon-DP."""
    q = math.exp(-epsilon)
    yield "discrete Laplace", 2 * q / (1 - q) ** 2
    yield "Laplace", 2 / epsilon**2
    values = np.arange(-4000, 4001)
    for mesh in (2, 5):  # a staircase on a finer lattice: constant on steps of the width, centred
        steps = np.floor((np.abs(values) + mesh / 2) / mesh)
        weights = q**steps
        weights /= weights.sum()
        if weights[0] < 1e-18:
            yield f"staircase {mesh}", weights @ values**2 / mesh**2


@edmonds.grid(
    "Lemma 26",
    "E z^2 >= ||w||_inf/(C epsilon), as printed: without squares",
    "discrete Laplace noise in multiples of the width, ||w|| = 1e-6 to 1e6, epsilon = 0.01 to 1; C = 100",
    SMALL,
    (1e-6, 1e-3, 1.0, 1e3, 1e6),
    limit=100,
    kind="misprint",
)
def single_query(epsilon, width):
    for name, variance in noises(epsilon):
        yield (
            f"{name}, epsilon = {epsilon:g}, width = {width:g}",
            width / epsilon,
            variance * width**2,
        )


@edmonds.grid(
    "Lemma 26",
    "with squares and widths: E z^2 >= (max w - min w)^2 V, V = 1/(2 sinh^2(epsilon/2))",
    "discrete and continuous Laplace, staircase, Gaussian noise with delta = 1e-12 to 0.1; epsilon = 0.01 to 32",
    EPSILONS,
)
def single_query_mended(epsilon):
    for name, variance in noises(epsilon):
        yield f"{name}, epsilon = {epsilon:g}", least_noise_variance(epsilon), variance
    for delta in (1e-12, 1e-4, 0.1):
        least = least_noise_variance(epsilon, delta)
        yield (
            f"Gaussian, epsilon = {epsilon:g}, delta = {delta:g}",
            least,
            gaussian_sigma(epsilon, delta) ** 2,
        )


@edmonds.each(
    "Lemma 27, Theorem 28",
    "error of a private additive mechanism >= sqrt(2 V) gamma_F(W - v 1^T), the least over v",
    "Gaussian noise of the best and of random shapes; W of 1 to 4 rows, 2 to 6 columns; epsilon = 0.01 to 32",
)
def additive(draw):
    W = draw.matrix(draw.size(4), draw.size(6, 2))
    k = len(W)
    epsilon = draw.epsilon
    delta = draw.pick(1e-9, 1e-3, 0.1)
    claimed = additive_noise_bound(gamma_of(W, 2.0, True)[0], epsilon, delta)
    best = factorize(W, 2.0, shift=True).left.numpy()
    for A in (np.eye(k), draw.rng.normal(size=(k, k)), best):
        images = np.linalg.pinv(A) @ W
        lost = A @ images - W
        # what A loses of W has to be one and the same vector for all types
        if largest(lost - lost.mean(1, keepdims=True)) > 1e-9 * (1 + largest(W)):
            continue
        pairs = itertools.combinations(images.T, 2)
        width = max(np.linalg.norm(a - b) for a, b in pairs)
        error = 0.0
        if width > 1e-12:
            error = gaussian_sigma(epsilon, delta, width) * np.linalg.norm(A)
        yield f"{W.shape}, epsilon = {epsilon:g}, delta = {delta:g}", claimed, error


WIDTHS = (0.0, 1e-6, 1e-3, 1.0)


@edmonds.grid(
    "Lemmas 26, 27, Theorem 28",
    "the same for gamma_F(W - v 1^T), the least over v; C = 1",
    "the same",
    SMALL,
    WIDTHS,
    shifted=True,
)
@edmonds.grid(
    "Lemmas 26, 27, Theorem 28",
    "for every W, symmetric or not, as printed: error >= gamma_F(W)/(C epsilon), with the squares of Lemma 26",
    "W = (1, 1 - t), t = 0 to 1, discrete Laplace noise in multiples of t; epsilon = 0.01 to 1; C = 100",
    SMALL,
    WIDTHS,
    limit=100,
    kind="range",
)
def without_symmetry(epsilon, width, shifted=False):
    # gamma_F of one row: its largest entry, as it is or with the best shift
    norm = width / 2 if shifted else 1.0
    error = width * math.sqrt(dict(noises(epsilon))["discrete Laplace"])
    yield f"epsilon = {epsilon:g}, t = {width:g}", norm / epsilon, error


FEW = ((0.1, 1e-3, 1e-6), (1, 3, 1000))


@edmonds.grid(
    "Theorem 30",
    "for all n >= n*: Section 5 says so, and Corollary 31 with alpha <= alpha*; n* = 1/epsilon, C = 1",
    "the same two mechanisms, n to 1000 n*",
    *FEW,
    least=1.0,
)
@edmonds.grid(
    "Theorem 30",
    "for all n <= n*, as printed, so also for n = 1: error >= gamma_F(W)/(C epsilon n)",
    "W = (1, -1), the better of the answer 0 and discrete Laplace noise, n = 1, epsilon = 0.1 to 1e-6; C = 100",
    *FEW,
    limit=100,
    kind="misprint",
)
def few_users(epsilon, factor, least=0.0):
    n = math.ceil(max(1.0, least * factor / epsilon))
    variance = dict(noises(epsilon))["discrete Laplace"]
    noisy = 2 * math.sqrt(variance) / n
    yield f"n = {n}, epsilon = {epsilon:g}", 1 / (epsilon * n), min(1.0, noisy)


@edmonds.each("Lemma 18", "gamma_2(W, -W) = gamma_2(W)", "W of 1 to 4 rows, 1 to 5 columns")
def with_negative(draw):
    W = draw.sized(4, 5)
    lower, upper = gamma_of(W)
    both_lower, both_upper = gamma_of(np.concatenate([W, -W], 1))
    yield f"{W.shape}", *worst((lower, both_upper), (both_lower, upper))


if __name__ == "__main__":
    raise SystemExit("others import this: run python experiments/theorems.py")
