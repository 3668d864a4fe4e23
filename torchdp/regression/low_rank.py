"""Low-rank approximation from released second moments, and its error predicted."""

import torch
from torch import Tensor

from torchdp import checks
from torchdp.protocol.records import beside
from torchdp.regression.errors import SecondMoments, checked, level


def top_directions(gram: Tensor, rank: int) -> Tensor:
    """The rank directions of largest variance: top eigenvectors of a (noisy) A^T A, (*batch, d, d) -> (*batch, d, k).

    The top right singular vectors of a sketch Y are those of Y^T Y; subtracting a multiple of the identity, as
    ``debiased`` does, changes nothing. rank: 1 <= k <= d. Raises TypeError, ValueError.

    Source: Dwork, Talwar, Thakurta, Zhang (2014), section 3; for sketches Burkhardt, Keller, Orlandi,
    Schwiegelshohn (2025), Theorem 5.4.
    """
    gram = checks.shaped("gram", checks.matrix("gram", gram), ..., "d", "d", note=", Y^T Y of a sketch Y")
    rank = checks.integer("rank", rank, 1, gram.shape[-1])
    gram = gram.to(torch.promote_types(gram.dtype, torch.float32))
    return torch.linalg.eigh((gram + gram.mT) / 2).eigenvectors[..., -rank:].flip(-1)


def predicted_psi(moments: SecondMoments, rank: int, gram_sigma: float) -> Tensor:
    """E psi of the top directions of M + noise of this level, to first order; or a random space's psi if less.

    sum_{i <= k < j} (gram_sigma^2 / 2)/(lambda_i - lambda_j)/n: direction i is turned towards j by
    E_ij / (lambda_i - lambda_j), and E_ij has variance gram_sigma^2 / 2 in any orthonormal basis. (*batch), as all
    predictions here. Raises ValueError.
    """
    variance = level("gram_sigma", gram_sigma) ** 2 / 2
    return _perturbed(moments, rank, torch.full_like(checked(moments).matrix, variance))


def predicted_psi_of_sketch(moments: SecondMoments, rank: int, height: int, variance: float) -> Tensor:
    """E psi of the top directions of a sketch of m rows whose entries carry noise V, to first order.

    In the eigenbasis the (i, j) entry of Y^T Y has variance lambda_i lambda_j / m, from the sketch (as for normal
    sketches), + V (lambda_i + lambda_j) + m V^2, from the noise. Raises ValueError.
    """
    height, V = checks.integer("height", height, 1), level("variance", variance)
    values = torch.linalg.eigvalsh(checked(moments).matrix).clamp_min(0).flip(-1)
    one, two = values[..., :, None], values[..., None, :]
    return _perturbed(moments, rank, one * two / height + V * (one + two) + height * V**2)


def random_psi(moments: SecondMoments, rank: int) -> Tensor:
    """E psi of a uniformly random space: (sum_{i <= k} lambda_i - (k/d) tr M)/n. Raises ValueError."""
    rank = checks.integer("rank", rank, 1, checked(moments).columns)
    values = torch.linalg.eigvalsh(moments.matrix)
    return (values[..., -rank:].sum(-1) - rank / moments.columns * values.sum(-1)) / beside(moments.n)


def _perturbed(moments: SecondMoments, rank: int, variances: Tensor) -> Tensor:
    """variances: (*batch, d, d), of the perturbation's entries in the eigenbasis, largest eigenvalue first."""
    rank = checks.integer("rank", rank, 1, moments.columns)
    values, own = torch.linalg.eigvalsh(moments.matrix).flip(-1), variances[..., :rank, rank:]
    gaps = values[..., :rank, None] - values[..., None, rank:]
    terms = torch.where(own > 0, own / gaps, 0.0).sum((-2, -1))
    return torch.minimum(terms / beside(moments.n), random_psi(moments, rank))
