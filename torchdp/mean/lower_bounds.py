"""Lower bounds for unbiased private means, with constants.

Notation: K is the domain, M a mechanism that is unbiased for the mean, X a data set of n users,
Gamma_p(K) the factorization norm of the paper, tr_{p/2} the p/2-norm of the diagonal.

All of it rests on the Hammersley-Chapman-Robbins inequality. Let a user of the data set X hold x_i,
and let X' be X with y in K instead; theta^T M(X) is unbiased, so its means on X and X' differ by
theta^T (y - x_i) / n, and

    (theta^T (y - x_i))^2 / n^2 <= chi^2(M(X') || M(X)) theta^T Cov(M(X)) theta          for every
    theta.

With chi the root of the largest chi^2 of neighbours the ellipsoid n chi Cov(M(X))^{1/2} B_2 holds
K - x_i, so n chi sqrt(tr_{p/2} Cov(M(X))) >= Gamma_p(K), and (E ||error||_p^2)^{1/2} >=
sqrt(tr_{p/2} Cov(M(X))) (Lemma 33). No width of K enters, which saves a factor 2 over the proof of
Theorem 43.

*Which K.* The ellipsoid is centred, holds K - x_i for every user i, and is symmetric. So ``gamma``
may be
- for every data set: Gamma_p(K), or any lower bound of it, such as a certificate's;
- for a data set whose users' points X_0 are given: Gamma_p of the symmetric set {+-(y - x)}, y in
  K, x in X_0;
- for the worst data set of enough users: Gamma_p(K - K), which is 2 Gamma_p(K) for a K that is
  symmetric about a point.
Gaussian noise shaped to K - K has, at p = 2, the error Gamma_2(K - K) / (n sqrt(2 rho)): among
unbiased rho-zCDP mechanisms it is optimal on its worst data up to ((e^{2 rho} - 1)/(2 rho))^{1/2},
which tends to 1.

Source: Nikolov, Tang (2023), Theorems 42, 43, 52, 55 and 59, whose constants are not stated; proved
here as said above and at each function.
"""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent

# Privacy losses above bound nothing: their exponentials overflow.
LARGEST = 700.0
# Of the largest entry: asymmetry and negative eigenvalues that may come from rounding.
ROUNDING = 1e-9


def concentrated_lower_bound(gamma: float, n: int, rho: float) -> float:
    """The least (E ||error||_p^2)^{1/2} of any unbiased rho-zCDP mechanism.

    gamma / (n chi), chi = (e^{2 rho} - 1)^{1/2}: chi^2 = e^{D_2} - 1 with D_2 <= 2 rho.

    Args:
        gamma: at most Gamma_p(K), or as in the module's text.
        n: users.
        rho: of zCDP, > 0.

    Raises ValueError.
    Guarantees: a lower bound, for every data set at gamma <= Gamma_p(K).
    Source: Nikolov, Tang (2023), Theorem 43 (with rho = epsilon^2/2), here with its constant.
    """
    n = checks.integer("n", n, 1)
    rho = checks.positive("rho", rho)
    # e^{2 rho} overflows beyond: an infinite chi makes the bound 0, which holds.
    chi = math.sqrt(math.expm1(2 * rho)) if rho <= LARGEST / 2 else math.inf
    return _ratio(gamma, n * chi)


def pure_lower_bound(gamma: float, n: int, epsilon: float) -> float:
    """The least (E ||error||_p^2)^{1/2} of any unbiased epsilon-DP mechanism.

    gamma / (2 n sinh(epsilon/2)): chi^2 <= e^{-epsilon} (e^epsilon - 1)^2 = 4 sinh^2(epsilon/2),
    that of randomized response, by Blackwell's theorem.

    Args:
        gamma: at most Gamma_p(K), or as in the module's text.
        n: users.
        epsilon: > 0.

    Raises ValueError.
    Guarantees: a lower bound, for every data set at gamma <= Gamma_p(K).
    Source: Nikolov, Tang (2023), Theorem 42 and Lemma 39, here with its constant.
    """
    return _ratio(gamma, checks.integer("n", n, 1) * _sinh(epsilon))


def local_lower_bound(gamma: float, n: int, epsilon: float) -> float:
    """The least (E ||error||_p^2)^{1/2} of any unbiased local mechanism.

    gamma / (2 sqrt(n) sinh(epsilon/2)). Every user's share of the estimate is an unbiased
    randomizer of its own (Lemma 54), so Cov(M(X)) is at least n^{-2} times the sum of theirs, and
    chi^2 n theta^T Cov theta >= mean_i h_i(theta)^2 >= (mean_i h_i(theta))^2, h_i the support
    function of the symmetric hull of K - x_i: the ellipsoid holds K - mu(X).

    Args:
        gamma: at most Gamma_p(K), or that of {+-(y - mu(X))} for one data set.
        n: users.
        epsilon: of each user's message, > 0.

    Raises ValueError.
    Guarantees: a lower bound for non-interactive epsilon-LDP, for every data set at gamma <=
    Gamma_p(K).
    Source: Nikolov, Tang (2023), Theorem 55, here with its constant.
    """
    return _ratio(gamma, math.sqrt(checks.integer("n", n, 1)) * _sinh(epsilon))


def approximate_lower_bound(
    gamma: float, n: int, epsilon: float, delta: float, dimension: int
) -> float:
    """The least error of an unbiased (epsilon, delta)-DP mechanism, on X or on a neighbour of it.

    gamma / (n (alpha + beta sqrt(d))), alpha = 2 sinh(epsilon/2) (1 - delta)^{-1/2} + beta,
    beta = delta^{1/2} / (1 - delta).

    Proof. By Blackwell's theorem M(X) and M(X') are Q = (1 - delta) Q' + delta Q'' and P =
    (1 - delta) P' + delta P'' with P', Q' within a factor e^epsilon of each other. For Y = theta^T
    output with means m_P, m_Q and standard deviations s_P, s_Q, Cauchy-Schwarz gives
    abs(delta E_{P''}(Y - m_P)) <= delta^{1/2} s_P, and the same for Q; so the means of P' and Q'
    differ by at least abs(m_P - m_Q) - (s_P + s_Q) delta^{1/2}/(1 - delta), and by at most 2
    sinh(epsilon/2) times the deviation of Q', itself at most s_Q (1 - delta)^{-1/2}. Together:
    abs(m_P - m_Q) <= alpha s_Q + beta s_P. With e the supremum of the errors on X and its
    neighbours s_P <=
    ||theta||_{p*} e, so K - x_i lies in n (alpha Cov^{1/2} B_2 + beta e B_p), and Gamma_p(B_p) <=
    sqrt(d) with the triangle inequality (Theorem 20) gives Gamma_p(K) <= n (alpha + beta sqrt(d))
    e.

    The neighbour cannot be left out: some (0, delta)-DP mechanism has no error at all on X
    (Theorem 53). Not tight: for one user in {0, 1} the best mechanism (a linear program) has error
    2.0 times the bound as delta goes to 0, 2.3 times at (epsilon, delta) = (1, 0.01), 2.8 times at
    (0.3, 0.01) and (1, 0.1).

    Args:
        gamma: at most Gamma_p(K).
        n: users.
        epsilon: > 0.
        delta: in (0, 1).
        dimension: d, of K.

    Raises ValueError.
    Guarantees: on every data set X the errors of those X' that differ from X in one user at most
    have a supremum of this or more.
    Source: Nikolov, Tang (2023), Theorems 4 and 52; here with constants, and without their
    condition delta <= c/n.
    """
    d = checks.integer("dimension", dimension, 1)
    return _approximate(gamma, n, epsilon, delta, math.sqrt(d))


def distributional_lower_bound(floor: float, covariance: Tensor, n: int, p: float = 2.0) -> float:
    """The least (E ||M(X) - mu(P)||_p^2)^{1/2} over n samples X of P, for M unbiased for every P.

    (floor^p + (sqrt(tr_{p/2} cov(P)) / n^{1/2})^p)^{1/p}; the larger of the two for p = inf.

    Proof. Averaging M over the order of its users changes neither its distribution on samples nor
    its privacy. The mean of M then depends on X symmetrically and has expectation mu(P) under every
    finitely supported P, so as a polynomial in P's weights it is the empirical mean: M is unbiased
    in the sense of Definition 1, and ``floor`` holds at every X. Averaged over X, the inequality of
    the module's text holds with E Cov(M | X) on the right and, by Jensen's, with mu(P) in the place
    of x_i on the left: tr_{p/2}(E Cov(M | X)) >= floor^2. Now Cov(M - mu(P)) = E Cov(M | X) +
    cov(P)/n, and the (p/2)-th power of tr_{p/2} is super-additive. (In the local model the order is
    public randomness, over which the proof of :func:`local_lower_bound` averages.)

    Args:
        floor: of :func:`concentrated_lower_bound`, :func:`pure_lower_bound` or
            :func:`local_lower_bound` with gamma <= Gamma_p(K).
        covariance: of P, (d, d).
        n: samples.
        p: in [2, inf].

    Raises ValueError, TypeError.
    Guarantees: a lower bound for every P on K.
    Source: Halmos (1946) for symmetric unbiased estimates; Nikolov, Tang (2023), Theorem 58, has a
    constant 6 epsilon.
    """
    floor = checks.non_negative("floor", floor)
    p = check_exponent(p)
    matrix = checks.shaped("covariance", checks.one_matrix("covariance", covariance), "d", "d")
    rounding = ROUNDING * matrix.abs().max()
    asymmetry = (matrix - matrix.mT).abs().max()
    # It reads one triangle: what is not symmetric shows in the asymmetry alone.
    least = torch.linalg.eigvalsh(matrix)[0]
    if (asymmetry > rounding) | (least < -len(matrix) * rounding):
        raise ValueError("covariance must be symmetric and positive semidefinite")
    variances = matrix.diagonal().clamp_min(0) / checks.integer("n", n, 1)
    sampling = torch.linalg.vector_norm(variances.sqrt(), ord=p)
    # (floor^p + sampling^p)^{1/p} is the p-norm of both, and the larger for p = inf.
    both = torch.stack([sampling.new_tensor(floor), sampling])
    return float(torch.linalg.vector_norm(both, ord=p))


def distributional_approximate_lower_bound(
    gamma: float, n: int, epsilon: float, delta: float, dimension: int
) -> float:
    """As :func:`approximate_lower_bound` for samples: under P, or under some Q within 1/n of it.

    gamma / (n (alpha + beta (e d)^{1/2})). Q = (1 - 1/n) P + y/n, y in K: with probability
    (1 - 1/n)^{n-1} >= 1/e exactly one sample is the y added, so the private noise of X' counts for
    at least 1/e of Q's.

    Guarantees: for every P on K the errors under P and under such Q have a supremum of this or
    more.
    Source: Nikolov, Tang (2023), Theorem 59, here with constants, and at epsilon, not 6 epsilon.
    """
    d = checks.integer("dimension", dimension, 1)
    return _approximate(gamma, n, epsilon, delta, math.sqrt(math.e * d))


def _approximate(gamma: float, n: int, epsilon: float, delta: float, widest: float) -> float:
    """gamma / (n (alpha + beta widest)), alpha and beta of :func:`approximate_lower_bound`."""
    n = checks.integer("n", n, 1)
    delta = checks.fraction("delta", delta)
    beta = math.sqrt(delta) / (1 - delta)
    factor = _sinh(epsilon) / math.sqrt(1 - delta)
    # alpha = factor + beta
    return _ratio(gamma, n * (factor + beta * (1 + widest)))


def _ratio(gamma: float, scale: float) -> float:
    return checks.non_negative("gamma", gamma) / scale


def _sinh(epsilon: float) -> float:
    """2 sinh(epsilon / 2)."""
    epsilon = checks.positive("epsilon", epsilon)
    if epsilon > LARGEST:
        return math.inf
    # e^{x} (1 - e^{-2x}) keeps its digits for small x = epsilon/2.
    return math.exp(epsilon / 2) * -math.expm1(-epsilon)


def moment_norm(dimension: int, order: int, p: float = 2.0) -> float:
    """A lower bound of Gamma_p({x^{(x) l}: ||x||_2 <= 1}): the ``gamma`` of moments.

    d^{-l (1/2 - 1/p)} sum_k dim(H_k) lambda_k^{1/2} over the degrees 0 < k <= l of l's parity: for
    x uniform on the sphere E (x^{(x) l}) (x^{(x) l})^T has the eigenvalue lambda_k on the harmonics
    H_k of degree k, that of the kernel <x, y>^l,
    lambda_k = l! / (l - k)! * Gamma(d/2) Gamma((l - k + 1)/2) / (2^k pi^{1/2} Gamma((l + k +
    d)/2)), and degree 0 (even l) is its mean, which the shift takes away. For l = 2 it is about d /
    2^{1/2} at p = 2; the paper's (d/l)^{l/p} is about d/2.

    An unbiased estimate of the covariance (divisor n) has to follow (1 - 1/n) (y - m)(y - m)^T, m
    the others' mean; for symmetric y the part of it that is odd in y only adds, so (1 - 1/n) times
    the norm for l = 2 will do there.

    The worst data set costs the norm of the differences x^{(x) l} - y^{(x) l}: at least twice that
    for odd l (y = -x), 2^{1/2} times that for even l (x and y independent).

    Args:
        dimension: d, of x.
        order: l, at most 1000.
        p: in [2, inf].

    Raises ValueError.
    Guarantees: at most Gamma_p.
    Source: Nikolov, Tang (2023), Theorem 26 with the uniform measure and D a multiple of I;
    Funk-Hecke for lambda_k.
    """
    d = checks.integer("dimension", dimension, 1)
    p = check_exponent(p)
    order = checks.integer("order", order, 1, 1000)
    return d ** (-order * (1 / 2 - 1 / p)) * _trace(d, order)


def _trace(d: int, order: int) -> float:
    """sum over 0 < k <= order of order's parity of dim(H_k) lambda_k^{1/2}."""
    if d == 1:  # the sphere is {-1, 1}: constant moments for even order
        return float(order % 2)
    total = 0.0
    for k in range(2 - order % 2, order + 1, 2):
        # Homogeneous polynomials of degree k less those that |x|^2 divides, of degree k - 2.
        harmonics = math.comb(d + k - 1, k)
        if k > 1:
            harmonics -= math.comb(d + k - 3, k - 2)
        # log lambda_k, since the factorials overflow
        falling = math.lgamma(order + 1) - math.lgamma(order - k + 1)
        gammas = math.lgamma(d / 2) + math.lgamma((order - k + 1) / 2)
        gammas -= math.lgamma((order + k + d) / 2)
        log_value = falling + gammas - k * math.log(2) - math.log(math.pi) / 2
        total += harmonics * math.exp(log_value / 2)
    return total
