"""Gaussian noise on a grid: what rounding each client's noise to integers costs, with nothing left to chance.

Client i adds to its integers q_i in copy c the noise round(G_ic 2^f), G_ic ~ N(0, sigma_j^2 I_d), j = rows[c, i], and
row j of the release is Y_j = sum over its pairs (i, c) of e_ic (q_i + round(G_ic 2^f)), e_ic = +-1.

*Claim.* Let D >= |q_i - q_i'|_2 2^-f for any two values of a client and let row j hold at least h_j honest pairs.
Then Y is at most as distinguishable as Gaussian noise at mu^2 = max_i sum_c (D^2/k_j + d k_j 4^-f/4) / sigma_j^2, j =
rows[c, i], for any integers 1 <= k_j <= h_j.

*Proof.* Fix i, neighbours that differ by w = q_i' - q_i in Z^d, everything that corrupt clients sent, and k_j honest
pairs of each row j = rows[c, i]; these rows, and so the pairs, are distinct over c. Write e_ic w = sum_p e_p w_p with
integer vectors w_p, one for each of the k_j pairs, each coordinate of w spread as evenly as integers can be: for a
coordinate v with remainder r = |v| mod k, sum_p w_p^2 = v^2/k + r (k - r)/k <= v^2/k + k/4. For an integer w_p and
any real g, round(g + w_p) = round(g) + w_p (but on ties, which have probability 0), so Y on the neighbour is F(G 2^f
+ (w_p)_p) where Y itself is F(G 2^f), one function F for both. By post-processing the pair is no easier to tell apart
than N(0, 4^f sigma_j^2 I) from its shift by the w_p, a Gaussian pair with mu^2 = sum_c sum_p |w_p|^2/(4^f sigma_j^2)
<= sum_c (4^f D^2/k_j + d k_j/4)/(4^f sigma_j^2). Both orders of the pair alike, and reduction modulo 2^b is
post-processing too. QED

There is no delta for rounding and no condition on the size of sigma. The price is d k^2/(4 D^2 4^f) of the variance.
With k = 2 D 2^f/sqrt(d), the best for a coarse grid, a row costs at most D sqrt(d) 2^-f / sigma^2, as if every single
unit of w had found an honest client of its own; more honest clients than that are of no use, and the minimum below is
taken.
"""

import math

import torch
from torch import Tensor

from torchdp import checks
from torchdp.secure.ring import Ring


def grid_sensitivity(ring: Ring, bound: float, columns: int, sensitivity: float | None = None) -> float:
    """The largest |q - q'|_2 2^-f of two rows of l_2 norm at most ``bound``, truncated to the grid.

    2 bound: truncation toward zero makes no norm larger. Where the rows are known to differ by at most ``sensitivity``
    also sensitivity + sqrt(d) 2^-f: each coordinate's difference grows by less than one unit. Raises ValueError.
    """
    checks.instance("ring", ring, Ring)
    bound, columns = checks.squarable("bound", bound), checks.integer("columns", columns, 1)
    if sensitivity is None:
        return 2 * bound
    return min(2 * bound, checks.positive("sensitivity", sensitivity) + math.sqrt(columns) / ring.scale)


def row_cost(honest: Tensor, ring: Ring, columns: int, distance: float) -> Tensor:
    """min over integers 1 <= k <= h of distance^2/k + d k 4^-f/4: what one copy in a row of h honest pairs adds to
    mu^2 sigma_j^2; (m,) -> (m,), float64, infinite where h = 0. Raises ValueError, TypeError.
    """
    checks.instance("ring", ring, Ring)
    columns, distance = checks.integer("columns", columns, 1), checks.squarable("distance", distance)
    honest = checks.floating("honest", honest)
    if honest.ndim != 1 or bool((honest < 0).any()):
        raise ValueError(f"honest must hold one number >= 0 for each row, not of shape {tuple(honest.shape)}")
    best = max(1.0, float(math.floor(2 * distance * ring.scale / math.sqrt(columns))))
    k = honest.double().clamp(max=best)
    return torch.where(k > 0, distance**2 / k + columns * k / (4 * ring.scale**2), math.inf)


def grid_sigma(honest: Tensor, copies: int, columns: int, ring: Ring, distance: float, mu: float) -> Tensor:
    """Standard deviation of each client's noise before it is rounded, for each row: (m,) -> (m,), float64.

    sigma_j^2 = s cost_j / mu^2, cost_j = min over k <= h_j of D^2/k + d k 4^-f/4 (``row_cost``): each of the s copies
    takes 1/s of mu^2.
    honest: (m,) honest pairs that row j holds at least; rows without one get infinity. copies: s. columns: d.
    distance: D from ``grid_sensitivity``. mu: of Gaussian differential privacy; (epsilon, delta)-DP holds for
    1/mu = gaussian_sigma(epsilon, delta).

    Guarantees: mu-GDP of the integer sums against whoever knows all but the honest noise, where one client's integers
        are replaced by others at distance at most D; an upper bound, attained as the grid becomes fine.
    Source: the proof above; Dong, Roth, Su (2022), Theorem 2.7 and Proposition 2.8, for what is post-processed.
    """
    copies, mu = checks.integer("copies", copies, 1), checks.positive("mu", mu)
    return (copies * row_cost(honest, ring, columns, distance)).sqrt() / mu
