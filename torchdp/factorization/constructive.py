"""Norms in closed form, and the literature's explicit factorizations, certified.

No iteration anywhere. The lower bounds of factorizations are at uniform weights, so the certified
gap is the most by which they can miss the optimum; :func:`factorize` finds the optimum itself.

All l-way marginal tables of d bits have norm, certificate and optimal noise in closed form, of a
thousand bits too.

Notation:
    W: the workload, (*batch, m, n); left (*batch, m, r), right (*batch, r, n): its factors.
    p: the errors' norm, in [2, inf].
    k: types of a prefix workload.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp import checks, workloads
from torchdp.factorization.certificates.certificate import (
    Certificate,
    check_exponent,
    power_norm,
    row_norm,
)
from torchdp.factorization.factorize import Factorization, finish
from torchdp.factorization.solvers.fixed_point import Solution

# Bits of a marginal table, at most.
MOST_ORDER = 16
# Relative, of sums of at most MOST_ORDER + 1 terms.
ROUNDING = 1e-12


def square_root(k: int, p: float = math.inf) -> Factorization:
    """Prefix sums as A A, A the Toeplitz matrix of the coefficients f_j of (1 - x)^{-1/2}.

    f_j = binom(2j, j) / 4^j; gamma_2's upper bound is sum_{j<k} f_j^2 <= 1 + (ln k + 0.5773) / pi,
    and ln k / pi + 1.0663 as k grows. Raises ValueError.
    Source: Fichtenberger, Henzinger, Upadhyay (2023); the bound by f_j^2 <= 1 / (pi j) (Wallis).
    """
    W = workloads.prefix(k).dense()
    A = _root(W)
    return at_uniform_weights(W, A, A, p)


def normalised_square_root(k: int, p: float = math.inf) -> Factorization:
    """Prefix sums with right = A D^{-1}, the square root A with its columns scaled to norm 1.

    left = A A D A^{-1}. gamma_2's upper bound is ln k / pi + 0.846 + o(1). Raises ValueError.
    Source: Henzinger, Kalinin, Upadhyay (2025, arXiv 2509.14334).
    """
    W = workloads.prefix(k).dense()
    A = _root(W)
    right = A / A.norm(dim=0)
    # W right^{-1}
    left = torch.linalg.solve_triangular(right, W.double(), upper=False, left=False)
    return at_uniform_weights(W, left, right, p)


def lipschitz_tree(W: Tensor, p: float = math.inf, *, decay: float = 5 / 6) -> Factorization:
    """Any W from a balanced binary search tree over its columns.

    Made for rows that change slowly along the columns. Each column t is a node, of depth d_t, the
    middle of the interval of columns that is its subtree:
        right_tj = decay^{d_t} [j in t's subtree],   left_it = decay^{-d_t} (W_it - W_i,parent(t)),
    where the root's parent counts 0: the path from the root to j adds up to W_ij.
    Where abs(W_ij - W_ij') <= G abs(j - j') and abs(W_i,root) <= B, with 2^{q-1} <= n < 2^q,
    decay = 5/6 and p = inf,
        upper^2 <= 36/11 (B^2 + 9/14 G^2 4^q),
    since there are at most 2^d nodes of depth d, each within 2^{q-1-d} of its parent: O(G n), free
    of log n.

    Args:
        W: (*batch, m, n), real.
        p: in [2, inf].
        decay: in (0, 1).

    Raises ValueError, TypeError.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), Lemma 17; the constants are derived
    here.
    """
    W = checks.matrix("W", W).detach()
    decay = checks.fraction("decay", decay)
    n = W.shape[-1]
    types = torch.arange(n, device=W.device)
    values = W.double()
    # Of each node of one depth: its subtree, columns low to high - 1, and its parent's column of W.
    low = types[:1]
    high = low + n
    parent = torch.zeros_like(values[..., :1])
    left = []
    right = []
    for depth in range(n.bit_length()):
        middle = (low + high) // 2
        column = values[..., middle]
        left.append((column - parent) / decay**depth)
        subtree = (types >= low[:, None]) & (types < high[:, None])
        right.append(subtree.double() * decay**depth)
        low = torch.cat([low, middle + 1])
        high = torch.cat([middle, high])
        filled = low < high
        parent = torch.cat([column, column], -1)[..., filled]
        low = low[filled]
        high = high[filled]
    nodes = torch.cat(right).expand(*W.shape[:-2], n, n)
    return at_uniform_weights(W, torch.cat(left, -1), nodes, p)


def _root(W: Tensor) -> Tensor:
    """The square root of the prefix matrix of W's side, (k, k) float64."""
    step = torch.arange(len(W), device=W.device)
    j = step.double()
    ratios = (2 * j - 1) / (2 * j)  # f_j / f_{j-1}
    ratios[0] = 1.0
    ages = (step[:, None] - step).clamp_min(0)
    return ratios.cumprod(0)[ages].tril()


def gamma_product_domain(norms: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p(K_1 x ... x K_k) from the sets' Gamma_p: their l_{2p/(p+2)} norm.

    A user holds one point of each set: Gamma_2 adds, Gamma_inf adds in squares.
    norms: (*batch, k), not negative. Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 60.
    """
    p = check_exponent(p)
    return power_norm(_norms("norms", norms), 2.0 if p == math.inf else 2 * p / (p + 2))


def gamma_box(low: Tensor, high: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p([low_1, high_1] x ... x [low_d, high_d]) = ||high - low||_{2p/(p+2)} / 2.

    low, high: (*batch, d), low <= high. Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), equations (26) and (27), with the factor 1/2 of (27) in both.
    """
    return gamma_product_domain(_half(low, high), p)


def gamma_ellipsoid(A: Tensor, p: float = math.inf) -> Tensor:
    """Gamma_p({A u + v: ||u|| <= 1}) = the l_p norm of A's row norms, whatever the centre v.

    A: (*batch, d, r). Returns (*batch). Raises ValueError, TypeError.
    Source: Nikolov, Tang (2023), Lemma 19.
    """
    return row_norm(checks.matrix("A", A).double(), check_exponent(p))


def at_uniform_weights(W: Tensor, left: Tensor, right: Tensor, p: float) -> Factorization:
    """Given factors of W, balanced and certified with uniform weights for the lower bound.

    Raises ValueError on p.
    """
    p = check_exponent(p)
    rows = torch.ones_like(W[..., 0]).double()
    columns = torch.ones_like(W[..., 0, :]).double() / W.shape[-1]
    return finish(W, Solution(left, right, None, rows, columns, columns, 0), p)


def _norms(name: str, values: Tensor) -> Tensor:
    values = checks.floating(name, values).double()
    if values.ndim == 0 or 0 in values.shape or bool((values < 0).any()):
        raise ValueError(f"{name} must be a non-empty (*batch, k) tensor without negative entries")
    return values


def _half(low: Tensor, high: Tensor) -> Tensor:
    low = checks.floating("low", low).double()
    high = checks.floating("high", high).double()
    # numpy's: torch's own broadcast_shapes loads sympy.
    try:
        np.broadcast_shapes(low.shape, high.shape)
    except ValueError as error:
        raise ValueError(
            f"low {tuple(low.shape)} and high {tuple(high.shape)} must have one shape, (*batch, d)"
        ) from error
    if bool((low > high).any()):
        raise ValueError("low must be at most high in every coordinate")
    return _norms("high - low", high - low) / 2


@dataclass(frozen=True)
class MarginalFactorization:
    """The factorization of least norm of ``workloads.marginal_tables(d, order)``, never formed.

    It is the same for every p. With chi_T(x) = (-1)^(sum_{j in T} x_j), the cell y of the table of
    S is 1[x_S = y] = 2^-l sum_{T in S} chi_T(y) chi_T(x). So W = L R with a row of R for each set
    T of k <= l bits,
        R_T(x) = sigma_k^{1/2} chi_T(x),   L_(S,y),T = 2^-l chi_T(y) sigma_k^{-1/2} for T in S,
        sigma_k = C(d - k, l - k)^{1/2}, the singular values up to a factor.
    All rows of L have one norm, all columns of R another, and C(d, k) C(d - k, l - k) = C(d, l)
    C(l, k) makes their product the lower bound of equal weights,
        Gamma_p = N^{1/p - 1/2} sum_k C(d, k) (2^-l C(d - k, l - k))^{1/2},   N = C(d, l) 2^l cells.
    With ``shift`` every table is counted from its mean, 2^-l, and the sum begins at k = 1.

    d: bits, at least 1.
    order: l, from 1 to min(d, 16).
    shift: see above.
    Raises ValueError, TypeError.

    Guarantees: certificate.lower <= Gamma_p <= certificate.upper, which are equal up to rounding.
    Source: Nikolov, Tang (2023), Theorem 65, there for some p, and with a constant lost; derived
    here for all.
    """

    d: int
    order: int
    shift: bool = False

    def __post_init__(self) -> None:
        d = checks.integer("d", self.d, 1)
        order = checks.integer("order", self.order, 1, min(d, MOST_ORDER))
        object.__setattr__(self, "d", d)
        object.__setattr__(self, "order", order)
        checks.instance("shift", self.shift, bool)

    @property
    def cells(self) -> int:
        """N = C(d, order) 2^order, of all tables together."""
        return math.comb(self.d, self.order) << self.order

    @property
    def sensitivity(self) -> float:
        """Largest column norm of R, (sum_k C(d, k) sigma_k)^{1/2}."""
        squared = sum(math.comb(self.d, k) * self._sigma(k) for k in self._sizes)
        return math.sqrt(squared)

    @property
    def row_norm(self) -> float:
        """Of every row of L: 2^-l (sum_k C(l, k) / sigma_k)^{1/2}."""
        squared = sum(math.comb(self.order, k) / self._sigma(k) for k in self._sizes)
        return math.sqrt(squared) / 2**self.order

    def certificate(self, p: float = math.inf) -> Certificate:
        """Bounds on Gamma_p: upper from L and R, lower the trace norm at equal weights."""
        p = check_exponent(p)
        # Logarithms: the number of cells may exceed the floats.
        log_cells = math.log(self.cells)
        upper = math.exp(log_cells / p) * self.row_norm * self.sensitivity
        trace = math.fsum(math.comb(self.d, k) * self._sigma(k) for k in self._sizes)
        lower = math.exp(log_cells * (1 / p - 0.5)) * 2 ** (-self.order / 2) * trace
        bounds = torch.tensor([upper, lower, 0.0], dtype=torch.float64, device="cpu")
        return Certificate(*bounds.unbind(), rounding=ROUNDING * (1 + log_cells) * upper)

    def variance(self, sigma: float) -> float:
        """Of every cell's noise at noise multiplier ``sigma``: (sigma gamma_2)^2."""
        return (checks.non_negative("sigma", sigma) * self.row_norm * self.sensitivity) ** 2

    def subsets(self, sets: Tensor) -> tuple[Tensor, Tensor]:
        """The different sets T in these tables, by a code, and where each table has its own.

        Args:
            sets: (tables, order), integers, each row's bits rising.

        Returns:
            The codes, (u,), and of each T its place there, (tables, 2^order): bit j of a column's
            number counts place j of the row.

        Raises TypeError, ValueError.
        """
        sets = checks.indices("sets", sets, self.d)
        shaped = sets.ndim == 2 and sets.shape[1] == self.order
        if not shaped or not bool((sets[:, 1:] > sets[:, :-1]).all()):
            raise ValueError(
                f"sets must be of shape (tables, {self.order}), each row's bits rising"
            )
        # Codes are numbers in base d + 1.
        if (self.d + 1) ** self.order >= 2**63:
            raise ValueError(
                f"d = {self.d} and order = {self.order} are too large for codes of 63 bits"
            )
        inside = _bits(self.order, sets.device)  # (2^l, l)
        # Their digits, those of absent bits 0 and first.
        digits = torch.where(inside, sets[:, None] + 1, 0)
        digits = digits.sort(-1).values
        place = (self.d + 1) ** torch.arange(self.order, device=sets.device)
        codes, index = torch.unique((digits * place).sum(-1), return_inverse=True)
        return codes, index

    def encode(self, codes: Tensor, x: Tensor) -> Tensor:
        """R_T(x) of the sets T that ``subsets`` names: (*batch, u), float64.

        x: (*batch, d), zeros and ones. With a shift the empty set, the first, has 0.
        """
        codes = codes.to(x.device)
        places = (self.d + 1) ** torch.arange(self.order, device=codes.device)
        bits = codes[:, None] // places % (self.d + 1)  # (u, l), 0 stands for none
        signs = torch.cat([torch.ones_like(x[..., :1]), 1 - 2 * x], -1).double()
        encoded = self.scales.to(x.device)[(bits > 0).sum(1)]
        for bit in bits.mT:
            encoded = encoded * signs[..., bit]
        return encoded

    def decode(self, sets: Tensor, encoded: Tensor) -> Tensor:
        """L y of the tables: y (*batch, u), as ``encode`` has them, to (*batch, tables, 2^order).

        Of independent normals y, each of deviation sigma times the sensitivity, these are the
        tables' noise. With a shift the tables' means, 2^-order, are to be added. Raises ValueError.
        """
        codes, index = self.subsets(sets)
        encoded = checks.floating("encoded", encoded)
        checks.shaped("encoded", encoded, ..., len(codes), note=", of the sets")
        inside = _bits(self.order, sets.device)
        scales = self.scales.to(sets.device)[inside.sum(-1)]
        weighted = encoded.double()[..., index] * torch.where(scales > 0, 1 / scales, 0.0)
        bits = inside.double()
        signs = 1.0 - 2.0 * ((bits @ bits.T) % 2)  # chi_T(y)
        return weighted @ signs / 2**self.order

    @property
    def scales(self) -> Tensor:
        """sigma_k^{1/2} by the size k of a set, (order + 1,); with a shift 0 of the empty one."""
        scales = torch.zeros(self.order + 1, dtype=torch.float64)
        for k in self._sizes:
            scales[k] = math.sqrt(self._sigma(k))
        return scales

    @property
    def _sizes(self) -> range:
        return range(1 if self.shift else 0, self.order + 1)

    def _sigma(self, k: int) -> float:
        return math.sqrt(math.comb(self.d - k, self.order - k))


def _bits(order: int, device: torch.device) -> Tensor:
    """(2^order, order), whether bit j of the row's number is set."""
    numbers = torch.arange(2**order, device=device)
    return (numbers[:, None] >> torch.arange(order, device=device)) & 1 == 1
