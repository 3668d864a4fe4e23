"""Lower bounds on Gamma_p of the moments of a ball, in closed form."""

import math

from scipy.special import gammaln

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent


def moment_norm(dimension: int, order: int, p: float = 2.0) -> float:
    """A lower bound of Gamma_p({x^{(x) l}: ||x||_2 <= 1}), for :func:`approximate_lower_bound` and its like.

    d^{-l (1/2 - 1/p)} sum_k dim(H_k) lambda_k^{1/2} over the degrees 0 < k <= l of l's parity: for x uniform on the
    sphere E (x^{(x) l}) (x^{(x) l})^T has the eigenvalue lambda_k on the harmonics H_k of degree k, that of the kernel
    <x, y>^l,
    lambda_k = l! / (l - k)! * Gamma(d/2) Gamma((l - k + 1)/2) / (2^k pi^{1/2} Gamma((l + k + d)/2)),
    and degree 0 (even l) is its mean, which the shift takes away. For l = 2 it is about d / 2^{1/2} at p = 2; the
    paper's (d/l)^{l/p} is about d/2.

    An unbiased estimate of the covariance (divisor n) has to follow (1 - 1/n) (y - m)(y - m)^T, m the others' mean; for
    symmetric y the part of it that is odd in y only adds, so (1 - 1/n) times the norm for l = 2 will do there.

    The worst data set costs the norm of the differences x^{(x) l} - y^{(x) l}: at least twice that for odd l (y = -x),
    2^{1/2} times that for even l (x and y independent).

    Guarantees: at most Gamma_p.
    Source: Nikolov, Tang (2023), Theorem 26 with the uniform measure and D a multiple of I; Funk-Hecke for lambda_k.
    """
    d, p = checks.integer("dimension", dimension, 1), check_exponent(p)
    order = checks.integer("order", order, 1, 1000)
    return d ** (-order * (1 / 2 - 1 / p)) * _trace(d, order)


def _trace(d: int, order: int) -> float:
    """sum over 0 < k <= order of order's parity of dim(H_k) lambda_k^{1/2}."""
    if d == 1:  # the sphere is {-1, 1}: constant moments for even order
        return float(order % 2)
    total = 0.0
    for k in range(2 - order % 2, order + 1, 2):
        harmonics = math.comb(d + k - 1, k) - (math.comb(d + k - 3, k - 2) if k > 1 else 0)
        log_value = (
            math.lgamma(order + 1)
            - math.lgamma(order - k + 1)
            + float(gammaln(d / 2) + gammaln((order - k + 1) / 2) - gammaln((order + k + d) / 2))
            - k * math.log(2)
            - math.log(math.pi) / 2
        )
        total += harmonics * math.exp(log_value / 2)
    return total
