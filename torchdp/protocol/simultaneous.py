"""Deviates of intervals that hold several truths at once: of the largest of normal errors.

Notation: Z is normal with mean 0, variances 1 and correlations R, (m, m); z has
P(max_i |Z_i| <= z) = level.
"""

import math
from bisect import bisect_left

import torch
from scipy.special import bdtrc
from torch import Tensor

from torchdp.memory import rows_at_once
from torchdp.protocol.interval import quantile
from torchdp.randomness import keyed_generator

# Draws of the largest error, and how many of them at once.
DRAWS = 2**16
AT_ONCE = 2**12
# Chance, over the draws, that the level is not held.
MISSED = 1e-6
# Correlations that differ by less are the same.
ALIKE = 1e-12
# Answers whose correlations are used: 2^16 draws cost m^2 each.
MOST_CORRELATED = 1024


def sidak(level: float, m: Tensor) -> Tensor:
    """z of m normal errors of unknown correlations, (*batch): of the single level level^(1/m).

    It holds at least ``level`` whatever the correlations, and exactly for independent errors.
    Source: Sidak (1967), Theorem 1 with Corollary 1.
    """
    tail = -torch.expm1(math.log(level) / m.double().clamp_min(1))
    return -torch.special.ndtri(tail / 2)


def largest_deviate(covariance: Tensor, level: float) -> Tensor:
    """z of normal errors of this covariance, (*batch, m, m) -> (*batch), not below the true one.

    An order statistic of ``DRAWS`` public draws of max_i |Z_i|, always the same: the least that is
    below the true z with a chance of ``MISSED`` at most, by the binomial distribution of how many
    draws lie below z. Its level is above what is asked for by .004 at .95. Where there are too few
    draws for the level (above .9998), and where it is more, Sidak's z. Errors without variance, and
    all that are the same one but for a factor, are counted as one. Sidak's z where the covariance
    is not finite or has a negative variance.

    Guarantees:
        At least z of a single error and at most Sidak's z of all.
        The order: P[Beta(order, draws + 1 - order) < level] <= ``MISSED``.
    Source: David, Nagaraja (2003), section 7.1, intervals for quantiles.
    """
    m = covariance.shape[-1]
    batch = covariance.shape[:-2]
    R = _correlations(covariance.double()).reshape(-1, m, m)
    if not len(R):
        return R.new_zeros(batch)
    if (R - R[:1]).abs().amax() <= ALIKE:
        R = R[:1]  # a batch of one noise for different numbers of users
    parts = R.split(rows_at_once(AT_ONCE * m))
    z = torch.cat([_deviates(part, level) for part in parts])
    return z.expand(math.prod(batch)).reshape(batch)


def _correlations(covariance: Tensor) -> Tensor:
    """R, 0 where there is no variance; NaN where a number is not finite or a variance below 0."""
    deviation = torch.linalg.diagonal(covariance).sqrt()
    inverse = torch.where(deviation == 0, 0.0, 1 / deviation)
    # Not by the product of the two, which may be too large or too small for a float.
    return covariance * inverse[..., None] * inverse[..., None, :]


def _deviates(R: Tensor, level: float) -> Tensor:
    """z of correlations (c, m, m), by draws that are the same for each."""
    count, m, _ = R.shape
    known = R.isfinite().all(-1).all(-1)
    varying = (torch.linalg.diagonal(R) > 0).sum(-1)
    bound = sidak(level, torch.where(known, varying, m))
    order = _order(level)
    if order > DRAWS:
        return bound
    # A root by eigenvectors, not Cholesky's: R may be singular.
    eigenvalues, vectors = torch.linalg.eigh(R.where(known[:, None, None], 0.0))
    eigenvalues = eigenvalues.clamp_min(0)
    root = vectors * eigenvalues.sqrt()[:, None, :]
    rows = root.flatten(0, 1)
    generator = keyed_generator(b"torchdp.protocol.simultaneous", "cpu")
    largest = []
    for _ in range(DRAWS // AT_ONCE):
        normal = torch.randn(AT_ONCE, m, dtype=torch.float64, device="cpu", generator=generator)
        Z = normal.to(R.device) @ rows.mT
        sizes = Z.abs_().view(AT_ONCE, count, m)
        largest.append(sizes.amax(-1))
    z = torch.cat(largest).mT.kthvalue(order, -1).values
    single = quantile(level)
    z = torch.minimum(z.clamp_min(single), bound)
    # Of one error but for factors: one eigenvalue is above 0.
    rank_one = eigenvalues.sum(-1) - eigenvalues.amax(-1) <= ALIKE * m
    z = torch.where(rank_one, single, z)
    return torch.where(known, z, bound)


def _order(level: float) -> int:
    """The least j with P[Bin(DRAWS, level) >= j] <= MISSED; DRAWS + 1 where there is none."""

    def is_safe(j: int) -> bool:
        return bool(bdtrc(j - 1, DRAWS, level) <= MISSED)

    return 1 + bisect_left(range(1, DRAWS + 1), True, key=is_safe)
