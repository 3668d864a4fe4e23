"""Workload = decoder x encoder + shift, the part that local and central factorization mechanisms share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdp import checks
from torchdp.brief import Brief
from torchdp.factorization import Factorization
from torchdp.workloads import Workload


@dataclass(frozen=True)
class FactoredQueries(Brief):
    """W = left right + shift 1^T + (what is left out), all float64: user x is encoded as column x of ``right``.

    workload W: (m, k); left: (m, r); right: (r, k); shift: (m,). A histogram sums to 1, so the shift is added to the
    answers and costs no noise.
    """

    workload: Tensor
    left: Tensor
    right: Tensor
    shift: Tensor

    def __post_init__(self) -> None:
        checks.own(self)
        checks.keep(self, workload=checks.one_matrix, left=checks.one_matrix, right=checks.one_matrix)
        (m, k), r = self.workload.shape, self.left.shape[1]
        object.__setattr__(self, "shift", checks.floating("shift", self.shift).detach().double())
        if self.left.shape != (m, r) or self.right.shape != (r, k) or self.shift.shape != (m,):
            raise ValueError(
                f"left, right, shift must have shapes ({m}, r), (r, {k}), ({m},) for a workload of shape {(m, k)}, not "
                f"{tuple(self.left.shape)}, {tuple(self.right.shape)}, {tuple(self.shift.shape)}"
            )

    @property
    def radius(self) -> float:
        """Largest norm of a column of ``right``."""
        return float(self.right.norm(dim=0).max())

    @property
    def diameter(self) -> float:
        """Largest distance of two columns of ``right``: what replacing one user's value moves the sum by."""
        return float(torch.cdist(self.right.mT, self.right.mT, compute_mode="donot_use_mm_for_euclid_dist").max())

    @property
    def bias(self) -> Tensor:
        """left right + shift 1^T - W, (m, k)."""
        return self.left @ self.right + self.shift[:, None] - self.workload

    @classmethod
    def of(
        cls, workload: Tensor | Workload, factorization: Factorization, shift: Tensor | None = None
    ) -> "FactoredQueries":
        """A factorization of W, or of W - shift 1^T, as encoder and decoder of the queries W.

        Raises TypeError, ValueError.
        """
        W = dense(workload)
        checks.instance("factorization", factorization, Factorization)
        given = shift if shift is not None else factorization.shift
        given = W.new_zeros(W.shape[0]) if given is None else given
        return cls(W, factorization.left, factorization.right, given)

    @classmethod
    def identity(cls, workload: Tensor | Workload) -> "FactoredQueries":
        """left = W, right = I - 1 1^T / k: a user sends its (centred) indicator; the histogram, then the queries."""
        W = dense(workload)
        k = W.shape[1]
        right = torch.eye(k, dtype=W.dtype, device=W.device) - 1 / k
        return cls(W, W, right, W.mean(1))

    @classmethod
    def plain(cls, workload: Tensor | Workload) -> "FactoredQueries":
        """left = I, right = W less the middle of each row: every user sends its answers to all queries."""
        W = dense(workload)
        middle = (W.amax(1) + W.amin(1)) / 2
        eye = torch.eye(W.shape[0], dtype=W.dtype, device=W.device)
        return cls(W, eye, W - middle[:, None], middle)

    @classmethod
    def tree(cls, workload: Tensor | Workload) -> "FactoredQueries":
        """right counts the dyadic intervals of the ordered types, left = W right^+ (Honaker 2015)."""
        W = dense(workload)
        k = W.shape[1]
        types = torch.arange(k, device=W.device)
        levels = [
            types >> level == torch.arange(((k - 1) >> level) + 1, device=W.device)[:, None]
            for level in range((k - 1).bit_length() + 1)
        ]
        right = torch.cat(levels).to(W.dtype)
        return cls(W, W @ torch.linalg.pinv(right), right, W.new_zeros(W.shape[0]))


def dense(workload: Tensor | Workload) -> Tensor:
    """The workload as one (m, k) float64 matrix. Raises TypeError, ValueError."""
    return checks.one_matrix("workload", workload.dense() if isinstance(workload, Workload) else workload)
