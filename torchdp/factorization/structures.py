"""Structures for ``train``: modules whose factors' product is W at every parameter.

Any nn.Module does whose forward() is (left, right). The certificate's lower bound is of all factorizations, so
its gap is what the structure costs at most. Descent ends at what is least nearby: for several starts train
``W.expand(k, m, n)`` with a structure that moves its parameters at random, and take the best.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdp import checks

FILLED = 0.1  # what entries that may not be negative start at: at 0 their squares have no slope


class Strategy(nn.Module):
    """right = C, left = W C^{-1}, for a square C with the entries of ``mask``; see :func:`strategy`."""

    def __init__(self, W: Tensor, mask: Tensor, toeplitz: bool, nonnegative: bool) -> None:
        super().__init__()
        n = W.shape[-1]
        if mask.shape != (n, n) or not bool(mask.diagonal().all()):
            raise ValueError(f"mask must be ({n}, {n}) beside W, and allow the diagonal, not {tuple(mask.shape)}")
        start = torch.eye(n, dtype=W.dtype, device=W.device)
        start = start.clamp_min(FILLED) if nonnegative else start
        self.place = torch.arange(n, device=W.device)[:, None] - torch.arange(n, device=W.device) + n - 1
        self.W, self.mask, self.nonnegative, self.toeplitz = W, mask.to(W), nonnegative, toeplitz
        diagonals = torch.cat([start[0].flip(-1), start[1:, 0]])
        start = (diagonals if toeplitz else start).sqrt() if nonnegative else diagonals if toeplitz else start
        self.C = nn.Parameter(start.expand(*W.shape[:-2], *start.shape).clone())

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), of shapes (*batch, m, n) and (*batch, n, n)."""
        C = self.C.square() if self.nonnegative else self.C
        C = (C[..., self.place] if self.toeplitz else C) * self.mask
        return torch.linalg.solve(C, self.W, left=False), C


def strategy(
    mask: Tensor | None = None, *, bands: int | None = None, toeplitz: bool = False, nonnegative: bool = False
) -> Callable[[Tensor], nn.Module]:
    """The structure W = (W C^{-1}) C of a square strategy C with few entries, all of one sign, or equal on diagonals.

    Args:
        mask: (n, n), which entries of C may be other than 0, the diagonal among them: sparse, in blocks; None: all.
        bands: of C lower triangular: the diagonal and bands - 1 below it.
        toeplitz: whether C is constant along its diagonals.
        nonnegative: whether no entry of C is negative.

    Raises TypeError, ValueError.
    """
    if mask is not None:
        mask = checks.matrix("mask", mask) != 0
    if bands is not None:
        bands = checks.integer("bands", bands, 1)
    toeplitz = checks.instance("toeplitz", toeplitz, bool)
    nonnegative = checks.instance("nonnegative", nonnegative, bool)

    def build(W: Tensor) -> nn.Module:
        allowed = W.new_ones(W.shape[-1], W.shape[-1], dtype=torch.bool) if mask is None else mask.to(W.device)
        allowed = allowed if bands is None else allowed.tril() & allowed.triu(1 - bands)
        return Strategy(W, allowed, toeplitz, nonnegative)

    return build


class Product(nn.Module):
    """The Kronecker product of the factors of ``modules``: of W = kron(W_1, W_2, ...), without a batch."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self) -> tuple[Tensor, Tensor]:
        """(left, right), the products of the modules' own."""
        left, right = self.parts[0]()
        for part in self.parts[1:]:
            factors = part()
            left, right = torch.kron(left.contiguous(), factors[0]), torch.kron(right.contiguous(), factors[1])
        return left, right
