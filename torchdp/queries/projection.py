"""The nearest histograms in the metric of the reports' noise, at several strengths of smoothing."""

import math
from functools import partial

import torch
from torch import Tensor

from torchdp.factorization.solvers.pivoting import nearest_histogram
from torchdp.root import root

FREEDOMS = (2.5, 4, 6, 9, 14, 22, 40)  # of the penalised fits
LARGEST = 1024  # types up to which roughness is penalised
STEEPEST = 60.0  # logarithm of a strength, at most
ROUNDING = 1e-10  # of the largest diagonal entry


def projections(gram: Tensor, pull: Tensor, n: float | Tensor, ordered: bool) -> tuple[Tensor, Tensor, Tensor]:
    """argmin over histograms of h^T A h/2 - <pull, h> + s ||h''||^2/2 at each strength s, the last 0.

    Beyond ``LARGEST`` types or where these are not ordered only the last.

    gram: A, (k, k), the inverse covariance of what one user reports of the types; pull: (b, k); n: users, or (b,).
    The fits are (fits, b, k), their Akaike values (fits, b) and the gap of the last (b,), in nats.
    """
    k, rounding = len(gram), ROUNDING * float(gram.diagonal().amax())
    if not ordered or not 2 < k <= LARGEST:
        h, gap = nearest_histogram(gram, pull, rounding)
        return h[None], torch.zeros_like(gap)[None], n * gap.clamp_min(0)
    bend, i = torch.zeros(k - 2, k, dtype=gram.dtype, device=gram.device), torch.arange(k - 2, device=gram.device)
    bend[i, i], bend[i, i + 1], bend[i, i + 2] = 1.0, -2.0, 1.0
    rough = bend.mT @ bend
    fits, scores, gap = [], [], pull.new_zeros(len(pull))
    for s in [*_strengths(gram, rough), 0.0]:
        stiff = gram + s * rough
        h, gap = nearest_histogram(stiff, pull, rounding)
        fits.append(h)
        scores.append(n * ((pull * h).sum(-1) - ((h @ gram) * h).sum(-1) / 2) - _held(gram, stiff, h, rounding))
    return torch.stack(fits), torch.stack(scores), n * gap.clamp_min(0)


def _held(gram: Tensor, stiff: Tensor, h: Tensor, rounding: float) -> Tensor:
    """Degrees of freedom of projections: of the types with weight, less 1 for the sum. (b, k) -> (b,)."""
    on = (h > 1e-9).to(h)
    both = on[:, :, None] * on[:, None]
    system = both * stiff + torch.diag_embed(1 - on + rounding * on)  # a type without weight is a block of its own
    return torch.linalg.solve(system, both * gram).diagonal(dim1=-2, dim2=-1).sum(-1) - 1


def _strengths(gram: Tensor, rough: Tensor) -> list[float]:
    """Those at which the unconstrained fit has ``FREEDOMS`` degrees of freedom, from the public distribution alone."""
    scale = float(gram.trace() / rough.trace())
    lower = torch.linalg.cholesky(gram + scale * (rough + ROUNDING * torch.eye(len(gram)).to(gram)))
    half = torch.linalg.solve_triangular(lower, gram, upper=False)
    kept = torch.linalg.eigvalsh(torch.linalg.solve_triangular(lower, half.mT, upper=False)).clamp(0, 1)
    kept = kept[kept > ROUNDING]  # of A in A + scale R
    found = []
    for wanted in FREEDOMS:
        if wanted < len(kept) - 1:
            least = root(partial(_excess, kept, wanted), -STEEPEST, STEEPEST, grow=(False, False))
            found.append(scale * math.exp(least))
    return found


def _excess(kept: Tensor, wanted: float, log_strength: float) -> float:
    """Degrees of freedom at this strength, in A + scale R, above those that are wanted."""
    return float((kept / (kept + math.exp(log_strength) * (1 - kept))).sum()) - wanted
