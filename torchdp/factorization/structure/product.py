"""Factorizations of Kronecker products, never formed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import Certificate
from torchdp.factorization.factorize import Factorization, factors, kronecker, matrices_of, warn
from torchdp.factorization.structure import combine
from torchdp.workloads import Workload


@dataclass(frozen=True)
class ProductFactorization(Brief):
    """W_1 (x) W_2 (x) ... = (L_1 (x) L_2 (x) ...) (R_1 (x) R_2 (x) ...), held as its factors L_i, R_i.

    factors: factorizations of single matrices W_i, all for the same p and none with a shift. L is m x r and R is r x n
    with m, r, n the products of the factors' sizes; type x is the mixed-radix index of its coordinates, the first
    factor's counting most, as in :class:`Workload`.
    """

    factors: tuple[Factorization, ...]

    def __post_init__(self) -> None:
        for factor in checks.several("factors", self.factors, Factorization):
            if factor.shift is not None or factor.right.ndim != 2:
                raise ValueError("factors must be factorizations of single matrices, without a shift")

    @property
    def certificate(self) -> Certificate:
        """Bounds on the norm of the product, from the factors' certificates (see :func:`combine.kronecker`)."""
        return combine.kronecker([factor.certificate for factor in self.factors])

    @property
    def sensitivity(self) -> Tensor:
        """Largest column norm of R, the product of the factors' sensitivities; a scalar."""
        return torch.stack([factor.sensitivity for factor in self.factors]).prod()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, r, n): queries, rows of R, types."""
        sides = [(*factor.left.shape, factor.right.shape[1]) for factor in self.factors]
        m, r, n = (math.prod(side) for side in zip(*sides, strict=True))
        return m, r, n

    def columns(self, types: Tensor) -> Tensor:
        """R's columns of the given types, (len(types), r): what the users' devices hold, in time and memory for them.

        types: (len,), integers in [0, n). Raises TypeError, ValueError.
        """
        types = checks.indices("types", types, self.shape[2])
        if types.ndim != 1:
            raise ValueError(f"types must be one-dimensional, not of shape {tuple(types.shape)}")
        held = self.factors[0].right.new_ones(len(types), 1)
        stride = self.shape[2]
        for factor in self.factors:
            n = factor.right.shape[1]
            stride //= n
            column = factor.right[:, types // stride % n].mT  # (len, r_i)
            held = (held[:, :, None] * column[:, None]).flatten(1)
        return held

    def encode(self, histogram: Tensor) -> Tensor:
        """R h: histograms (*batch, n) to (*batch, r), one factor at a time."""
        return _multiply("histogram", [factor.right for factor in self.factors], histogram)

    def decode(self, y: Tensor) -> Tensor:
        """L y: vectors (*batch, r), such as noisy encodings, to answers (*batch, m), one factor at a time."""
        return _multiply("y", [factor.left for factor in self.factors], y)

    def dense(self) -> Factorization:
        """L and R formed: (m, r) and (r, n). Its certificate charges the rounding of the products."""
        return kronecker(self.factors)


def factorize_product(
    W: Workload, p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 10_000
) -> ProductFactorization:
    """The factorization of least gamma_(p) norm of a Kronecker product, factor by factor, certified by its factors.

    The norm is multiplicative, so the product of optimal factorizations is optimal; nothing of the size of W is
    formed. A free shift is not multiplicative: :func:`factorize` takes that, densely.

    W: a :class:`Workload` with any number of factors. p: in [2, inf]. tol: relative gap of the product.
    Warns and raises like :func:`factorize`.

    Guarantees: certificate.lower <= gamma_(p)(W) <= certificate.upper.
    Source: Nikolov, Tang (2023), Lemma 62; Lee, Shraibman, Spalek (2008) for p = inf.
    """
    matrices = matrices_of(checks.instance("W", W, Workload))
    result = ProductFactorization(factors(matrices, p, False, tol, max_iterations))
    warn(matrices, result.certificate, tol, max(factor.iterations for factor in result.factors), max_iterations)
    return result


def _multiply(name: str, matrices: Sequence[Tensor], x: Tensor) -> Tensor:
    """(A_1 (x) A_2 (x) ...) x for x (*batch, n_1 n_2 ...), in the matrices' dtype."""
    x = checks.floating(name, x).to(matrices[0].dtype)
    n = math.prod(A.shape[1] for A in matrices)
    if x.ndim == 0 or x.shape[-1] != n:
        raise ValueError(f"{name} must have shape (*batch, {n}), not {tuple(x.shape)}")
    batch = x.shape[:-1]
    for A in matrices:  # the leading mode is multiplied and moved last; once for each factor restores the order
        x = (A @ x.reshape(*batch, A.shape[1], -1)).mT.reshape(*batch, -1)
    return x
