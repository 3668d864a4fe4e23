"""What a shuffler adds to a local randomizer: the curve of its blanket, by summed inversion.

n users run one randomizer with chances R_x, c = min_x R_x, gamma the sum of c, W_x = R_x/c.
Neighbours replace the value of one user, x_0 by x_1; the others' are arbitrary.

**Theorem 1.** delta(epsilon) <= (1/n) max over x_0, x_1 of E (Z_1 + ... + Z_n)_+, Z_i independent,
each W_x0(Y) - e^epsilon W_x1(Y) for Y of density c, and 0 with chance 1 - gamma.
*Proof.* R_x = c + (R_x - c): each other user draws from c/gamma with chance gamma, else from its
own rest. Give away who drew from the rest, and what: the shuffle is made from this and the other
messages. M ~ Binomial(n - 1, gamma) of these are independent draws from c/gamma, mixed with the
message of R_x0 or R_x1. Beside K = M + 1 independent draws the density of this bag is (1/K) sum_i
gamma W_x(y_i). The divergence is thus E_M (gamma/K) E (sum_{i <= K} V_i)_+, V = W_x0 - e^epsilon
W_x1 under c/gamma, and P(M = K - 1)/K = P(Binomial(n, gamma) = K)/(n gamma). It is convex in the
pair, so data that are random and values that are given away do not raise it.

**Theorem 2.** With M(z) = E e^(z Z), z_k = a + 2 pi i k/T, for all a, T > 0 and s >= 0
    E (Z_1 + ... + Z_n)_+ <= (1/T) sum_k M(z_k)^n e^(s^2 z_k^2/2)/z_k^2.
*Proof.* g(t) = E (S + s G - t)_+ e^(a t), S the sum and G a standard normal, is continuous, >= 0
and integrable, with Fourier transform M(z)^n e^(s^2 z^2/2)/z^2. By Poisson's summation formula the
right side is sum_j g(j T) >= g(0) = E (S + s G)_+ >= E S_+, by Jensen's inequality.

Beyond w_K = 2 pi K/T what is left is at most (M(a)^n/pi) e^(s^2 (a^2 - w_K^2)/2) min(1/w_K, 1/(s^2
w_K^3)), since |M(z)| <= M(a). Nothing is discretised, and the time does not grow with n. Z takes
five values (``privacy.blanket``).

Source: Balle, Bell, Gascon, Nissim (2019) for theorem 1; theorem 2 is that of ``inversion`` for
another kernel.
"""

import math
from collections.abc import Callable

import numpy as np

from torchdp.privacy.blanket import Blanket
from torchdp.root import least
from torchdp.shuffle.inversion import Array

SMOOTHING, REACH = 0.03, 6.5  # s a; the last frequency, in 1/s
PERIOD, DECAY = 9.0, 16.0  # T, in deviations of the tilted sum and in 1/a
MOST_TERMS = 20_000
ORDERS, NEARER = (
    np.geomspace(1e-9, 60.0, 120),
    np.linspace(-1.0, 1.0, 33),
)  # a, over the largest value; then around
ROUNDING, EACH = 1e-9, 2.0**-48  # relative: of a sum; of ln M, which n multiplies
LARGEST = 30.0  # epsilon of a randomizer, beyond which no crowd is said to hide it
LEAST, TOLERANCE = 1e-9, 1e-4  # of the epsilons that are told apart; relative


def blanket_delta(blanket: Blanket, epsilon: float, n: int) -> float:
    """A delta at ``epsilon`` >= 0 of n users who run one randomizer of this blanket. Unchecked.

    Guarantees: an upper bound for replacing one user's value, by theorems 1 and 2, whatever the
        others hold.
    """
    if epsilon >= blanket.epsilon:
        return 0.0
    if blanket.epsilon > LARGEST:
        return 1.0
    mass, value = _values(blanket, epsilon)
    alone = float(mass @ np.maximum(value, 0.0)) * (1 + ROUNDING)  # (sum Z)_+ <= sum Z_+: that of one user
    crowd = positive_part(mass, value, n) / n
    if crowd < 0:  # no bound of what is not below 0, so nothing is said of a crowd
        return min(1.0, alone)
    return min(1.0, alone, crowd)


def least_epsilon(delta_at: Callable[[float], float], delta: float, most: float) -> float:
    """The least epsilon in [0, most] with delta_at(epsilon) <= delta, to 1e-4 of it; safe at
    ``most``."""
    if delta_at(0.0) <= delta:
        return 0.0
    found = least(delta_at, delta, most / math.e, most, TOLERANCE, (True, False), floor=LEAST)
    return most if math.isnan(found) else min(most, found)


def _values(blanket: Blanket, epsilon: float) -> tuple[Array, Array]:
    """(chances, values) of Z: of the one set alone, of the other, of both, of neither, and 0."""
    growth = math.expm1(blanket.epsilon)
    alone = blanket.member - blanket.both
    gamma = 1 - growth * blanket.member
    neither = max(gamma - 2 * alone - blanket.both, 0.0)  # below 0 by rounding alone: see Blanket
    mass = np.array([alone, alone, blanket.both, neither, growth * blanket.member])
    value = np.array(
        [
            math.exp(epsilon) * math.expm1(blanket.epsilon - epsilon),
            -math.expm1(blanket.epsilon + epsilon),
            -math.exp(blanket.epsilon) * math.expm1(epsilon),
            -math.expm1(epsilon),
            0.0,
        ]
    )
    return mass, value


def positive_part(mass: Array, value: Array, n: int) -> float:
    """A bound of E (Z_1 + ... + Z_n)_+, Z_i = value_j with chance mass_j, (m,) each, adding up to
    1. Unchecked."""
    top = float(value.max())
    if top <= 0:
        return 0.0
    a = _order(mass, value, n, top)
    log_moment = float(_log_moments(mass, value, np.array([a]))[0])
    tilted = mass * np.exp(a * value - log_moment)
    mean, size = float(tilted @ value), float(tilted @ np.abs(value))
    deviation = math.sqrt(n * float(tilted @ (value - mean) ** 2))
    s, period = SMOOTHING / a, PERIOD * deviation + DECAY / a
    count = min(math.ceil(REACH / s * period / (2 * math.pi)) + 1, MOST_TERMS)
    w = 2 * math.pi / period * np.arange(count)
    z = a + 1j * w
    ratio = 1 + np.expm1(1j * np.outer(w, value)) @ tilted  # M(z)/M(a)
    kernel = np.exp(s * s * z * z / 2) / (z * z) * np.where(w > 0, 2.0, 1.0) / period
    with np.errstate(divide="ignore"):
        total = float((np.exp(n * np.log(ratio)) * kernel).real.sum())
    lost = (ROUNDING + n * EACH * (1 + np.abs(z) * size)) @ np.abs(kernel)
    end = float(w[-1])
    tail = math.exp(s * s * (a * a - end * end) / 2) / math.pi * min(1 / end, 1 / (s * s * end**3))
    scale = n * log_moment + ROUNDING + n * EACH * (1 + a * size)
    return math.exp(min(scale, 700.0)) * (total + tail + float(lost)) if scale < 700 else math.inf


def _log_moments(mass: Array, value: Array, a: Array) -> Array:
    """ln M(a), (orders,)."""
    return np.log1p(mass @ np.expm1(np.outer(value, a)))


def _order(mass: Array, value: Array, n: int, top: float) -> float:
    """About the least n ln M(a) - 2 ln a: the order at which the largest term of the sum is
    least."""

    def heights(grid: Array) -> Array:
        return n * _log_moments(mass, value, grid) - 2 * np.log(grid)

    rough = ORDERS / top
    near = rough[np.argmin(heights(rough))] * (ORDERS[1] / ORDERS[0]) ** NEARER
    return float(near[np.argmin(heights(near))])
