"""Whole steps of a grid: what rounding vectors costs, and the normal noise added to them.

This is the one proof of it.

*1. Vectors.* Two vectors of d numbers at distance D, both rounded to multiples of h, to the nearest
or toward 0, are at most D + h d^{1/2} apart (``moved``): each coordinate's difference grows by less
than h. Toward 0 no norm grows.

*2. A normal number for each sum.* For an integer w and real g, round(g + w) = round(g) + w, but on
ties, which have probability 0. So whole steps X + h round(sigma g/h) = h round((X + sigma g)/h) are
a function of the Gaussian mechanism, in any dimension: no easier to tell apart, whatever sigma
(``rounded``). The data must be whole steps before noise is added; h d^{1/2} of the first claim is
what that costs.

*3. A normal number of each client.* Client i adds to its integers q_i in copy c the noise
round(G_ic 2^f), G_ic ~ N(0, sigma_j^2 I_d), j = rows[c, i], and row j of the release is Y_j = sum
over its pairs (i, c) of e_ic (q_i + round(G_ic 2^f)), e_ic = +-1.

*Claim.* Let D >= |q_i - q_i'|_2 2^-f for any two values of a client and let row j hold at least h_j
honest pairs. Then Y is at most as distinguishable as Gaussian noise at mu^2 = max_i sum_c
(D^2/k_j + d k_j 4^-f/4) / sigma_j^2, j = rows[c, i], for any integers 1 <= k_j <= h_j.

*Proof.* Fix i, neighbours that differ by w = q_i' - q_i in Z^d, everything that corrupt clients
sent, and k_j honest pairs of each row j = rows[c, i]; these rows, and so the pairs, are distinct
over c. Write e_ic w = sum_p e_p w_p with integer vectors w_p, one for each of the k_j pairs, each
coordinate of w spread as evenly as integers can be: for a coordinate v with remainder r = |v| mod
k, sum_p w_p^2 = v^2/k + r (k - r)/k <= v^2/k + k/4. By the second claim Y on the neighbour is
F(G 2^f + (w_p)_p) where Y itself is F(G 2^f), one function F for both. By post-processing the pair
is no easier to tell apart than N(0, 4^f sigma_j^2 I) from its shift by the w_p, a Gaussian pair
with mu^2 = sum_c sum_p
|w_p|^2/(4^f sigma_j^2) <= sum_c (4^f D^2/k_j + d k_j/4)/(4^f sigma_j^2). Both orders of the pair
alike, and reduction modulo 2^b is post-processing too. QED

There is no delta for rounding and no condition on the size of sigma. The price is d k^2/(4 D^2 4^f)
of the variance. With k = 2 D 2^f/sqrt(d), the best for a coarse grid, a row costs at most D sqrt(d)
2^-f / sigma^2, as if every single unit of w had found an honest client of its own; more honest
clients than that are of no use, and the minimum below is taken.

*4. Where the grid is fine for one client's noise it costs a variation alone.* Let s = sigma_j 2^f.

*Claim.* The sum of h rounded normals is within v = ``grid_variation(h, s)`` in total variation of
round(h^{1/2} s g + U), U a sum of h - 1 uniforms on [-1/2, 1/2]. Moved by an integer, it is a
function of the normal moved by it. So Y has at most (1 + e^epsilon) (copies columns v) more delta
than Gaussian noise at mu^2 = sum_c D^2/(h_j sigma_j^2).

*Proof.* f(x) = P(round(s g) = x), continued to all real x, is the density of s g + V, V uniform;
its transform is q(t) = e^(-s^2 t^2/2) sin(t/2)/(t/2). By Poisson's formula the sum has the series
(sum_m q(t + 2 pi m))^h, and the density of h such numbers, taken at the integers, sum_m
q(t + 2 pi m)^h; the last uniform makes these the masses of round(.). Let |t| <= pi and R the sum
over m != 0 of |q(t + 2 pi m)|: R <= 2.1 e^(-s^2 (2 pi - |t|)^2/2) for s >= 1/2. The series differ
by at most h R (|q(t)| + R)^(h - 1) + 2.1 e^(-h s^2 pi^2/2). For |t| <= pi/2 the first is at most
2.1 h exp(-2 pi^2 s^2 (h - 1)/h + 2.1 h e^(-pi^2 s^2)): the quadratic is least at t = 2 pi/h.
Beyond, 2 pi - |t| >= pi and R <= 2.1 e^(-s^2 t^2/2), so it is at most 2.1 h e^(-s^2 pi^2/2)
(3.1 e^(-s^2 pi^2/8))^(h - 1). No mass differs by more than the series do. Both have E e^(l X) <=
e^(w l^2/2) (1 + 2.1 e^(-2 pi^2 s^2))^h, w = h (s^2 + 1/12), by Poisson's formula again, so that
beyond N = (200 w)^{1/2} lies 2 e^-100 of either, times that last power. QED
"""

import math

from torchdp import checks

# deviation of a client's noise, in grid units, from which the proof holds
LEAST_UNITS = 0.5
# of the proof: bounds the sums over m
SERIES = 2.1


def moved(distance: float, step: float, size: int) -> float:
    """The distance of two vectors of so many numbers once they are rounded: the first claim."""
    return distance + step * math.sqrt(size)


def grid_sensitivity(
    step: float, bound: float, columns: int, sensitivity: float | None = None
) -> float:
    """The largest distance of two rows of l_2 norm at most ``bound``, truncated to steps toward 0.

    2 bound, and where the rows are known to differ by at most ``sensitivity`` also what ``moved``
    says. Raises ValueError.
    """
    bound = checks.squarable("bound", bound)
    # Toward 0 no norm grows, so that two rows are no further apart than two bounds.
    if sensitivity is None:
        return 2 * bound
    return min(2 * bound, moved(sensitivity, step, columns))


def row_cost(honest: int, step: float, columns: int, distance: float) -> float:
    """min over integers 1 <= k <= h of distance^2/k + d k step^2/4.

    What one copy in a row of h honest pairs adds to mu^2 sigma_j^2.
    """
    # The cost is least at k = 2 D/(step sqrt d); any k in [1, h] is proved, so the floor will do.
    best = math.floor(2 * distance / step / math.sqrt(columns))
    k = min(honest, max(1, best))
    return distance**2 / k + columns * k * step**2 / 4


def grid_variation(honest: int, units: float) -> float:
    """How far a sum of h rounded normals of deviation s is from a rounded normal and uniforms.

    (N + 1/2) times what the series differ by, and 2 e^-100 (1 + 2.1 e^(-2 pi^2 s^2))^h; 0 for h =
    1, where both are the same, 1 where s < 1/2.

    Args:
        honest: h >= 1.
        units: s, in grid units.

    Guarantees: an upper bound on the total variation distance. Source: the proof above.
    """
    if units < LEAST_UNITS:
        return 1.0
    if honest == 1:
        return 0.0
    square = units**2
    exponent = square * math.pi**2
    # Logarithms of the parts of the proof's bound: |t| <= pi/2, |t| above, and beyond N.
    near = -2 * exponent * (honest - 1) / honest + SERIES * honest * math.exp(-exponent)
    far = -exponent / 2 - (honest - 1) * (exponent / 8 - math.log(3.1))
    tails = SERIES * honest * math.exp(-2 * exponent) - 100
    if max(near, far, tails) > 0:  # the bound is above 1
        return 1.0
    series = SERIES * (honest * math.exp(max(near, far)) + math.exp(-honest * exponent / 2))
    reached = math.sqrt(200 * honest * (square + 1 / 12)) + 0.5
    return min(1.0, reached * series + 2 * math.exp(tails))


def grid_sigma(
    honest: int, copies: int, columns: int, step: float, distance: float, mu: float
) -> float:
    """Standard deviation of each client's noise before it is rounded, in a row.

    sigma_j^2 = s cost_j / mu^2, cost_j = min over k <= h_j of D^2/k + d k step^2/4 (``row_cost``):
    each of the s copies takes 1/s of mu^2.

    Args:
        honest: h_j >= 1, the honest pairs that the row holds at least.
        copies: s.
        columns: d.
        step: of the grid.
        distance: D from ``grid_sensitivity``.
        mu: of Gaussian differential privacy; (epsilon, delta)-DP holds for 1/mu =
            gaussian_sigma(epsilon, delta).

    Guarantees: mu-GDP of the integer sums against whoever knows all but the honest noise, where one
    client's integers are replaced by others at distance at most D; an upper bound, attained as the
    grid becomes fine.
    Source: the proof above; Dong, Roth, Su (2022), Theorem 2.7 and Proposition 2.8, for what is
    post-processed.
    """
    return math.sqrt(copies * row_cost(honest, step, columns, distance)) / mu
