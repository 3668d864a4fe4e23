"""Block-diagonal workloads: separate questions to separate kinds of users."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchdp import checks
from torchdp.factorization.certificates.certificate import check_exponent
from torchdp.factorization.factorize import Factorization, factors, warn
from torchdp.factorization.solvers.fixed_point import power_norm
from torchdp.factorization.solvers.stopping import working
from torchdp.factorization.structure import combine


def factorize_blocks(
    blocks: Sequence[Tensor], p: float = math.inf, tol: float = 1e-3, *, max_iterations: int = 10_000
) -> Factorization:
    """The factorization of W = diag(W_1, ..., W_k) of least gamma_(p) norm, block by block, certified by the blocks.

    A user's type lies in one block. gamma_(p)(W) is the l_p norm of the blocks' norms (gamma_2: the largest); left and
    right are block-diagonal, each block of right scaled to the same largest column norm.

    blocks: matrices (m_i, n_i), real, of one dtype and device. p: in [2, inf]. tol: relative gap, for each block and so
    for W. Warns and raises like :func:`factorize`.

    Guarantees: certificate.lower <= gamma_(p)(W) <= certificate.upper.
    Source: see :func:`combine.block_diagonal`.
    """
    p = check_exponent(p)
    blocks = checks.several("blocks", blocks, Tensor)
    matrices = [working("blocks", checks.matrix("blocks", block).detach(), stacklevel=4) for block in blocks]
    if any(block.ndim != 2 for block in matrices):
        raise ValueError("blocks must hold matrices of shape (m_i, n_i)")
    if len({(block.dtype, block.device) for block in matrices}) > 1:
        raise ValueError("blocks must share one dtype and one device")
    parts = [factors([block], p, False, tol, max_iterations)[0] for block in matrices]
    certificate = combine.block_diagonal([part.certificate for part in parts], p)

    half = certificate.upper.sqrt()  # the column norm that balances the whole
    scales = [torch.where(part.sensitivity > 0, half / part.sensitivity.double(), 1.0) for part in parts]
    left = torch.block_diag(*(part.left / scale for part, scale in zip(parts, scales, strict=True)))
    right = torch.block_diag(*(part.right * scale for part, scale in zip(parts, scales, strict=True)))
    widest = max(block.shape[1] for block in matrices)
    certificate = combine.rounded(certificate, widest, 2 * torch.finfo(left.dtype).eps)

    lower = torch.stack([part.certificate.lower for part in parts])
    share = torch.where(lower.max() > 0, lower / lower.max(), 1.0)
    rows = share ** (p - 2)  # equality in Hoelder's inequality; p = inf leaves the largest blocks alone
    columns = rows * share.square()
    columns = columns / columns.sum()
    row_weights = torch.cat([a * part.row_weights for a, part in zip(rows, parts, strict=True)])
    column_weights = torch.cat([b * part.column_weights for b, part in zip(columns, parts, strict=True)])
    if p > 2:
        row_weights = row_weights / power_norm(row_weights, 1.0 if p == math.inf else p / (p - 2))
    largest = torch.stack([block.abs().max() for block in matrices]).max()
    warn([largest[None, None]], certificate, tol, max(part.iterations for part in parts), max_iterations)
    return replace(
        parts[0],
        left=left,
        right=right,
        row_weights=row_weights,
        column_weights=column_weights,
        certificate=certificate,
        iterations=max(part.iterations for part in parts),
    )
