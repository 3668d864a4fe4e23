"""What a factorization is trained for: functions of the squared norms of left's rows and right's columns.

The squared error that is minimised is max_k [rows(a)_k max_l columns(b)_l + offset_k], a_i =
||left_i||^2 and b_j = ||right_j||^2: ``columns`` is what a user may hold, ``rows`` what the answers
cost, ``offset`` what W alone adds.

Why descent reaches the least value: for left T^{-1} and T right, G = T^T T, along G^{1/2} exp(u H)
G^{1/2} every a_i and b_j is a sum of exponentials of linear functions of u, so its logarithm is
convex; sums with weights >= 0, products, powers and maxima of such functions are such functions. So
without shift and alpha, and with an offset >= 0 or none, every local minimum in T is global.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization.certificates.certificate import check_exponent


class Objective(Brief, ABC):
    """A squared error to minimise; ``rows`` and ``columns`` are homogeneous of degree 1 and never fall in a or b.

    Where both are convex, or ``least_columns`` is and lies below ``columns``, duality bounds the
    error from below.
    """

    tight: ClassVar[bool] = True  # whether the lower bound meets the least error

    @abstractmethod
    def rows(self, a: Tensor) -> Tensor:
        """(*batch, m) squared row norms to (*batch, k) values, of which the largest counts."""

    def columns(self, b: Tensor) -> Tensor:
        """(*batch, n) squared column norms to (*batch, l) values, of which the largest counts."""
        return b

    def least_columns(self, b: Tensor) -> Tensor:
        """A convex function at most ``columns``, for the lower bound."""
        return self.columns(b)

    def weights(self, a: Tensor, multipliers: Tensor) -> Tensor:
        """What proves the lower bound at squared row norms a: the multipliers, or a Norm's row weights."""
        return multipliers

    def offset(self, W: Tensor) -> Tensor:
        """(*batch, k) or (), in units of W squared."""
        return W.new_zeros(())


@dataclass(frozen=True)
class Norm(Objective):
    """gamma_(p): p = inf the worst query's error (gamma_2), p = 2 the root of the summed squares; p in [2, inf]."""

    p: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_exponent(self.p))

    def rows(self, a: Tensor) -> Tensor:
        return a if self.p == math.inf else log_norm(a, self.p / 2).exp()[..., None]

    def weights(self, a: Tensor, multipliers: Tensor) -> Tensor:
        if self.p == math.inf:
            return multipliers
        return (a / a.amax(-1, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)) ** (self.p / 2 - 1)


def log_norm(values: Tensor, order: float) -> Tensor:
    """Logarithm of the l_order norm of values >= 0 along the last dimension, differentiable, of any order."""
    values = values.clamp_min(torch.finfo(values.dtype).tiny)  # a zero row or column has no logarithm
    return (order * values.log()).logsumexp(-1) / order


@dataclass(frozen=True)
class Groups(Objective):
    """gamma_(p) where a user holds every column of a group: sensitivity max over groups of sum_j ||R_j||.

    groups: (g, n), 1 where group and column belong together and 0 elsewhere; a column in each group. apart: whether
    columns of a group share no row, as steps of one user that are as far apart as ``strategy`` has bands: then the root
    of their squares' sum counts. The lower bound is of that sum, the convex envelope in b >= 0 of the other
    one's square (concave of degree 1, it is its envelope on the axes): nothing convex in b is a better bound. Without
    ``apart`` the gap stays open, at most the root of a group's size, and descent ends at the least error by the proof
    above. Raises TypeError, ValueError.
    """

    groups: Tensor
    p: float = math.inf
    apart: bool = False
    tight: ClassVar[bool] = False

    def __post_init__(self) -> None:
        groups = checks.one_matrix("groups", self.groups)
        if not bool(((groups == 0) | (groups == 1)).all() and (groups > 0).any(-1).all()):
            raise ValueError("groups must hold zeros and ones, with a column in every group")
        object.__setattr__(self, "groups", groups.clone())
        object.__setattr__(self, "p", check_exponent(self.p))

    def rows(self, a: Tensor) -> Tensor:
        return Norm(self.p).rows(a)

    def columns(self, b: Tensor) -> Tensor:
        sums = (b.clamp_min(torch.finfo(b.dtype).tiny).sqrt() @ self.groups.to(b).T).square()
        return self.least_columns(b) if self.apart else sums

    def least_columns(self, b: Tensor) -> Tensor:
        return b @ self.groups.to(b).T
