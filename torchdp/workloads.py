"""Workloads: the matrix W of linear queries, or of a pairwise kernel, dense or a Kronecker product.

A workload has one column for each type (what one user may hold). For linear queries the answers are
``W h``, with h the normalised histogram; for a pairwise kernel f the entry is ``W[x, y] = f(x, y)``
and the quadratic form is ``h^T W h``.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief

Where: TypeAlias = torch.device | str | None
# 2^d types, d numbers for each
MOST_BITS = 32
# of a matrix, while it is made
COPIES = 3
REMEDY = "take queries.CentralMarginals(d, order, epsilon, delta), which is never formed"


@dataclass(frozen=True)
class Workload(Brief):
    """A matrix W = factors[0] (x) factors[1] (x) ... (Kronecker product).

    Type x of a product is the mixed-radix index of its coordinates, the first factor's coordinate
    counting most.

    Args:
        name: of the workload.
        factors: tensors of shape (m_i, n_i), one dtype and device; one of them: a dense matrix.
    """

    name: str
    factors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        checks.own(self)
        for factor in checks.several("factors", self.factors, Tensor):
            if checks.matrix("factors", factor).ndim != 2:
                raise ValueError(f"factors must be matrices, not of shape {tuple(factor.shape)}")
        if len({(factor.dtype, factor.device) for factor in self.factors}) > 1:
            raise ValueError("factors must share one dtype and one device")

    @property
    def shape(self) -> tuple[int, int]:
        """(number of queries, number of types)."""
        queries = math.prod(len(factor) for factor in self.factors)
        types = math.prod(factor.shape[1] for factor in self.factors)
        return queries, types

    def dense(self) -> Tensor:
        """W itself, of shape ``self.shape``."""
        return reduce(torch.kron, self.factors)


@dataclass(frozen=True)
class RunningSums(Brief):
    """Sums over all steps so far: of up to millions of steps, never formed.

    x_t = decay x_{t-1} + rates_t v_t, v_t = momentum v_{t-1} + g_t, so that
    W[t, j] = sum_{j <= i <= t} decay^(t - i) rates_i momentum^(i - j). Without momentum and rates
    W[t, j] = decay^(t - j) for j <= t, the prefix sums where decay is 1.

    Args:
        steps: at least 1.
        decay: in (0, 1].
        momentum: in [0, 1).
        rates: positive, one for each step, or None for 1.
        device: of the tensors made for it.

    Raises TypeError, ValueError.
    """

    steps: int
    decay: float = 1.0
    momentum: float = 0.0
    rates: Tensor | None = None
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, steps=checks.count, decay=checks.positive)
        if self.decay > 1:
            raise ValueError(f"decay must lie in (0, 1], not {self.decay!r}")
        checks.keep(self, momentum=checks.below_one, device=checks.device)
        if self.rates is not None:
            given = checks.floating("rates", self.rates)
            rates = given.detach().double().to(self.device)
            if rates.shape != (self.steps,) or not (rates > 0).all():
                raise ValueError(f"rates must be {self.steps} positive numbers, one for each step")
            object.__setattr__(self, "rates", rates)

    def coarse(self, steps: int) -> "RunningSums":
        """As many steps over the same time: what larger problems start with.

        decay^(self.steps / steps) a step, the same momentum, rates of so many moments.
        """
        stride = self.steps / steps
        rates = self.rates
        if rates is not None:
            longer = torch.arange(steps, device=rates.device)
            moments = (longer + 0.5) * self.steps / steps
            rates = rates[moments.long()]  # those of the middles of the longer steps
        # A longer step decays by as much as the steps that it stands for.
        return replace(self, steps=steps, decay=self.decay**stride, rates=rates)

    @property
    def shape(self) -> tuple[int, int]:
        """(steps, steps)."""
        return self.steps, self.steps

    def dense(self) -> Tensor:
        """W itself, (steps, steps) float64."""
        # clamped before the power: tril discards what decay^-age would make infinite
        age = _differences(self.steps, self.device).clamp_min(0).double()
        outer = (self.decay**age).tril()
        inner = (self.momentum**age).tril()
        if self.rates is not None:
            return outer @ (self.rates[:, None] * inner)
        # Without momentum the inner matrix is the identity.
        return outer @ inner if self.momentum else outer


def _side(k: int) -> int:
    """k, where a k x k matrix can be asked for. Raises ValueError."""
    k = checks.integer("k", k, 1)
    remedy = (
        "randomizers.HadamardResponse(k, epsilon) takes histograms, RunningSums(k) prefix sums, "
        "of more types"
    )
    checks.fits("W", k, k, copies=COPIES, remedy=remedy)
    return k


def _differences(k: int, device: Where) -> Tensor:
    """i - j for i, j in [0, k), as integers: half precision would round large ones into ties."""
    x = torch.arange(_side(k), device=device)
    return x[:, None] - x


def identity(k: int, *, device: Where = None) -> Workload:
    """The histogram: W = I_k."""
    W = torch.eye(_side(k), dtype=torch.float64, device=device)
    return Workload("identity", (W,))


def prefix(k: int, *, device: Where = None) -> Workload:
    """Prefix sums (continual counting): W[i, j] = 1[j <= i], of shape (k, k)."""
    W = torch.ones(_side(k), k, dtype=torch.float64, device=device).tril()
    return Workload("prefix", (W,))


def all_ranges(k: int, *, device: Where = None) -> Workload:
    """All ranges: one row 1[a <= j <= b] for each 0 <= a <= b < k, of shape (k (k + 1) / 2, k)."""
    k = checks.integer("k", k, 1)
    checks.fits("all_ranges", k * (k + 1) // 2, k, copies=COPIES)
    # Row and column of an upper triangle are the ends of a range.
    low, high = torch.triu_indices(k, k, device=device)[..., None]
    types = torch.arange(k, device=device)
    W = (low <= types) & (types <= high)
    return Workload("all ranges", (W.double(),))


def sign(k: int, *, device: Where = None) -> Workload:
    """W[i, j] = sgn(i - j), of shape (k, k), antisymmetric: ties count nothing."""
    W = _differences(k, device).sign()
    return Workload("sign", (W.double(),))


def kendall(a: int, b: int, *, device: Where = None) -> Workload:
    """Kendall's tau-a on an a x b grid: f((y, z), (y', z')) = sgn(y - y') sgn(z - z').

    W = sign(a) (x) sign(b). Type (y, z) has index ``y * b + z``. A pair tied in y or in z counts 0.
    Source: Ghazi, Kamath, Kumar, Manurangsi, Sealfon (2023), section 5, who write the factors with
    +1 on the diagonal; that matrix is not the kernel on ties (it gives f(x, x) = 1), so the factors
    here have a zero diagonal.
    """
    factors = sign(a, device=device).factors + sign(b, device=device).factors
    return Workload("kendall", factors)


def auc(k: int, *, device: Where = None) -> Workload:
    """The AUC's kernel on (label, score) types: f((y, s), (y', s')) = (y - y') sgn(s - s') / 2.

    Label y is 0 or 1 and score s in [0, k); type (y, s) has index ``y * k + s``; shape (2k, 2k).
    The sum over ordered pairs of users is n+ n- (2 AUC - 1), ties in score counting one half in the
    AUC.
    Source: Ghazi et al. (2023), section 5 (AUC as Kendall's tau with a binary coordinate).
    """
    # sgn(y - y') is y - y' for labels 0 and 1.
    label = sign(2, device=device).factors[0] / 2
    scores = sign(k, device=device).factors
    return Workload("auc", (label, *scores))


def absolute_difference(k: int, *, spacing: float = 1.0, device: Where = None) -> Workload:
    """Gini's mean difference: W[i, j] = spacing * abs(i - j), of shape (k, k)."""
    distances = _differences(k, device).abs().double()
    return Workload("absolute difference", (distances * checks.positive("spacing", spacing),))


def unequal(k: int, *, device: Where = None) -> Workload:
    """Gini's diversity index: W[i, j] = 1[i != j], of shape (k, k)."""
    W = _differences(k, device) != 0
    return Workload("unequal", (W.double(),))


def parities(d: int, order: int, *, device: Where = None) -> Workload:
    """Parities of at most ``order`` of d bits: W[S, x] = (-1)^(sum of x over S).

    Of shape (sets, 2^d).
    """
    sets, bits = _sets("parities", d, order, device)
    # Floats, which are exact here: sums of at most d ones.
    odd = sets @ bits.T % 2
    return Workload("parities", (1 - 2 * odd,))


def marginals(d: int, order: int, *, device: Where = None) -> Workload:
    """Monotone conjunctions of at most ``order`` of d bits: W[S, x] = 1[x_j = 1 for all j in S].

    Of shape (sets, 2^d). The empty set's query is 1; there are sum_{i <= order} C(d, i) of them.
    Bit j of type x is (x >> j) & 1. All cells of the marginal tables: :func:`marginal_tables`.
    Source: Edmonds, Nikolov, Ullman (2020), Corollary 6, who call them marginal queries.
    """
    sets, bits = _sets("marginals", d, order, device, REMEDY)
    sizes = sets.sum(1, keepdim=True)
    contained = sets @ bits.T == sizes  # exact: floats of small integers
    return Workload("marginals", (contained.double(),))


def marginal_tables(d: int, order: int, *, device: Where = None) -> Workload:
    """All cells of ``order``-way marginal tables: W[(S, y), x] = 1[x_j = y_j for all j in S].

    Of shape (C(d, order) 2^order, 2^d), the tables of the sets S of ``order`` bits one after the
    other. Bit j of type x is (x >> j) & 1.
    Raises ValueError where order > d.
    Source: Nikolov, Tang (2023), Theorem 7, without their repetitions.
    """
    d = checks.integer("d", d, 1, MOST_BITS)
    order = checks.integer("order", order, 1)
    if order > d:
        raise ValueError(f"order must be at most d = {d}, not {order}")
    number = math.comb(d, order) * 2**order
    checks.fits("marginal_tables", number, 2**d, copies=COPIES, remedy=REMEDY)
    sets = torch.combinations(torch.arange(d, device=device), order)
    place = 2 ** torch.arange(order, device=device)
    # (sets, 1, 2^d): where x lies in the table of S
    digits = _bits(d, device).long()[:, sets]  # (2^d, sets, order)
    cell = (digits * place).sum(-1).T[:, None]
    cells = cell == torch.arange(2**order, device=device)[:, None]  # (sets, 2^order, 2^d)
    return Workload("marginal tables", (cells.flatten(0, 1).double(),))


def _sets(
    name: str, d: int, order: int, device: Where, remedy: str = "ask for less"
) -> tuple[Tensor, Tensor]:
    """Sets of at most ``order`` of d bits, coded like types, and the types: (sets, d), (2^d, d)."""
    d = checks.integer("d", d, 1, MOST_BITS)
    order = checks.integer("order", order, 0)
    number = sum(math.comb(d, i) for i in range(min(order, d) + 1))
    checks.fits(name, number, 2**d, copies=COPIES, remedy=remedy)
    bits = _bits(d, device)
    # Sets are coded as types are: those of few bits are rows of the same table.
    return bits[bits.sum(1) <= order], bits


def _bits(d: int, device: Where) -> Tensor:
    """The bits of the types, (2^d, d), as floats: integers have no matrix product on a GPU."""
    types = torch.arange(2**d, device=device)[:, None]
    bits = (types >> torch.arange(d, device=device)) & 1
    return bits.double()
