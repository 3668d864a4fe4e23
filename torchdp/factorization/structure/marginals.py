"""All l-way marginal tables of d bits, in closed form: norm, certificate and optimal noise of a thousand bits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import Certificate, check_exponent

MOST_ORDER = 16
ROUNDING = 1e-12  # relative, of sums of at most MOST_ORDER + 1 terms


@dataclass(frozen=True)
class MarginalFactorization:
    """The factorization of least norm of ``workloads.marginal_tables(d, order)``, for every p at once, never formed.

    With chi_T(x) = (-1)^(sum_{j in T} x_j), the cell y of the table of S is 1[x_S = y] = 2^-l sum_{T in S}
    chi_T(y) chi_T(x). So W = L R with a row of R for each set T of k <= l bits,
        R_T(x) = sigma_k^{1/2} chi_T(x),   L_(S,y),T = 2^-l chi_T(y) sigma_k^{-1/2} for T in S,
        sigma_k = C(d - k, l - k)^{1/2}, the singular values up to a factor.
    All rows of L have one norm, all columns of R another, and C(d, k) C(d - k, l - k) = C(d, l) C(l, k) makes their
    product the lower bound of equal weights,
        Gamma_p = N^{1/p - 1/2} sum_k C(d, k) (2^-l C(d - k, l - k))^{1/2},   N = C(d, l) 2^l cells.
    With ``shift`` every table is counted from its mean, 2^-l, and the sum begins at k = 1.

    d: bits, at least 1; order: l, from 1 to min(d, 16). Raises ValueError, TypeError.

    Guarantees: certificate.lower <= Gamma_p <= certificate.upper, which are equal up to rounding.
    Source: Nikolov, Tang (2023), Theorem 65, there for some p, and with a constant lost; derived here for all.
    """

    d: int
    order: int
    shift: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "d", checks.integer("d", self.d, 1))
        object.__setattr__(self, "order", checks.integer("order", self.order, 1, min(self.d, MOST_ORDER)))
        object.__setattr__(self, "shift", checks.instance("shift", self.shift, bool))

    @property
    def cells(self) -> int:
        """N = C(d, order) 2^order, of all tables together."""
        return math.comb(self.d, self.order) << self.order

    @property
    def sensitivity(self) -> float:
        """Largest column norm of R, (sum_k C(d, k) sigma_k)^{1/2}."""
        return math.sqrt(sum(math.comb(self.d, k) * self._sigma(k) for k in self._sizes))

    @property
    def row_norm(self) -> float:
        """Of every row of L: 2^-l (sum_k C(l, k) / sigma_k)^{1/2}."""
        return math.sqrt(sum(math.comb(self.order, k) / self._sigma(k) for k in self._sizes)) / 2**self.order

    def certificate(self, p: float = math.inf) -> Certificate:
        """Bounds on Gamma_p: upper from L and R, lower the trace norm at equal weights."""
        p = check_exponent(p)
        count = math.log(self.cells)
        upper = math.exp(count / p) * self.row_norm * self.sensitivity
        terms = (math.comb(self.d, k) * self._sigma(k) for k in self._sizes)
        lower = math.exp(count * (1 / p - 0.5)) * 2 ** (-self.order / 2) * math.fsum(terms)
        bounds = torch.tensor([upper, lower, 0.0], dtype=torch.float64, device="cpu")
        return Certificate(*bounds.unbind(), rounding=ROUNDING * (1 + count) * upper)

    def variance(self, sigma: float) -> float:
        """Of every cell's noise at noise multiplier ``sigma``: (sigma gamma_2)^2."""
        return (checks.non_negative("sigma", sigma) * self.row_norm * self.sensitivity) ** 2

    def subsets(self, sets: Tensor) -> tuple[Tensor, Tensor]:
        """The different sets T in these tables, by a code, and where each table has its own: (u,), (tables, 2^order).

        sets: (tables, order), integers, each row's bits rising. Bit j of the column counts place j of the row.
        Raises TypeError, ValueError.
        """
        sets = checks.indices("sets", sets, self.d)
        if sets.ndim != 2 or sets.shape[1] != self.order or not bool((sets[:, 1:] > sets[:, :-1]).all()):
            raise ValueError(f"sets must be of shape (tables, {self.order}), each row's bits rising")
        if (self.d + 1) ** self.order >= 2**63:
            raise ValueError(f"d = {self.d} and order = {self.order} are too large for codes of 63 bits")
        inside = _bits(self.order, sets.device)  # (2^l, l)
        padded = torch.where(inside, sets[:, None] + 1, 0).sort(-1).values
        place = (self.d + 1) ** torch.arange(self.order, device=sets.device)
        codes, index = torch.unique((padded * place).sum(-1), return_inverse=True)
        return codes, index

    def noise(self, sets: Tensor, normals: Tensor, sigma: float) -> Tensor:
        """The noise of these tables from independent standard normals, (tables, 2^order), float64.

        normals: (u,), one for each of ``subsets(sets)``; with a mechanism's own generator, at sigma =
        ``gaussian_sigma(epsilon, delta, 1)`` for two histograms whose R differ by at most the sensitivity.
        """
        sigma, (codes, index) = checks.non_negative("sigma", sigma), self.subsets(sets)
        if checks.floating("normals", normals).shape != codes.shape:
            raise ValueError(
                f"normals must hold one number for each of {len(codes)} sets, not {tuple(normals.shape)}"
            )
        inside = _bits(self.order, sets.device)
        scale = [self._sigma(k) ** -0.5 if k in self._sizes else 0.0 for k in range(self.order + 1)]
        scales = torch.tensor(scale, dtype=torch.float64, device=sets.device)[inside.sum(-1)]
        signs = 1.0 - 2.0 * ((inside.double() @ inside.double().T) % 2)  # chi_T(y)
        return sigma * self.sensitivity / 2**self.order * ((normals.double()[index] * scales) @ signs)

    @property
    def _sizes(self) -> range:
        return range(1 if self.shift else 0, self.order + 1)

    def _sigma(self, k: int) -> float:
        return math.sqrt(math.comb(self.d - k, self.order - k))


def _bits(order: int, device: torch.device) -> Tensor:
    """(2^order, order), whether bit j of the row's number is set."""
    numbers = torch.arange(2**order, device=device)
    return (numbers[:, None] >> torch.arange(order, device=device)) & 1 == 1
