"""Exact variances of the pair estimator sum over i != j of Z_i^T J Z_j for independent unbiased
messages Z.

And the third and fourth moments of a ball message's noise: what the square of the sum of messages
adds to its variance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp.randomizers import PrivUnit

NUMBERS_AT_ONCE = 2**24  # in the largest tensor of a batch of variances


@dataclass(frozen=True)
class NoiseMoments:
    """Moments of the noise z = a u + b w of a message at the unit vector u, w uniform on the sphere
    orthogonal to u.

    With e a unit vector orthogonal to u: third = E <z, u>^3, mixed_third = E <z, u> <z, e>^2,
    fourth = E <z, u>^4, mixed_fourth = E <z, u>^2 <z, e>^2, across_fourth = E <z, e>^4, and
    variance = E <z, u>^2 = E <z, e>^2. By symmetry these are all; moments of odd order in e vanish,
    and for orthogonal e, e' E <z, e>^2 <z, e'>^2 = across_fourth/3.
    """

    variance: float
    third: float
    mixed_third: float
    fourth: float
    mixed_fourth: float
    across_fourth: float

    def beyond_normal(
        self, u: Tensor, slope: Tensor, weights: Tensor, linear: float = 2.0, square: float = 1.0
    ) -> Tensor:
        """Var(a t^T z + b z^T J z) for each row of u beyond what normal noise of variance v in
        every direction gives.

        J = diag(weights), t = slope, a = linear, b = square: 2 a b E[t^T z z^T J z] + b^2
        (Var(z^T J z)
        - 2 v^2 sum weights^2).
        u: (k, r), the unit vectors less a coordinate that J does not see, so norms below 1 are
        meant; slope, weights: (*batch, r). Returns (*batch, k).
        """
        trace = weights.sum(-1, keepdim=True)
        squared = weights.square().sum(-1, keepdim=True)
        own = weights @ u.square().mT  # u^T J u
        along = slope @ u.mT  # t^T u
        twice = weights.square() @ u.square().mT  # ||J u||^2
        across = trace - own  # trace of J on the space orthogonal to u
        rest = (weights * slope) @ u.mT - along * own  # t^T P J u, P the projection on that space
        squares = squared - 2 * twice + own**2  # trace of (P J)^2
        cubic = self.third * along * own + self.mixed_third * (along * across + 2 * rest)
        quartic = (
            self.fourth * own**2
            + self.mixed_fourth * (2 * own * across + 4 * (twice - own**2))
            + self.across_fourth / 3 * (2 * squares + across**2)
        )
        v = self.variance
        return 2 * linear * square * cubic + square**2 * (quartic - v**2 * (trace**2 + 2 * squared))

    def third_of(self, u: Tensor, left: Tensor, T: Tensor) -> Tensor:
        """E T(L z, L z, L z) for each row of u, (k, r), as above; L: left, (m, r), T: symmetric,
        (m, m, m): (k,).
        """
        T = torch.einsum("abc,ap,bq,cr->pqr", T, left, left, left)
        along = torch.einsum("abc,xa,xb,xc->x", T, u, u, u)
        across = u @ T.diagonal().sum(-1)
        return (self.third - 3 * self.mixed_third) * along + 3 * self.mixed_third * across


def noise_moments(randomizer: PrivUnit) -> NoiseMoments:
    """The moments of a randomizer's noise at the lifted unit vector.

    The lifted message has norm radius/gamma, so b^2 = (radius/gamma)^2 - (radius + a)^2, D =
    dim + 1.
    """
    moments, C = randomizer.moments, randomizer.radius
    v = moments.variance
    third, fourth = moments.third * v**1.5, moments.fourth * v**2
    D, norm = randomizer.dim + 1, (C / randomizer.cap.threshold) ** 2
    fourth_about_zero = C**4 + 6 * C**2 * v + 4 * C * third + fourth  # E (C + a)^4
    # from E b^4
    across_fourth = 3 * (norm**2 - 2 * norm * (C**2 + v) + fourth_about_zero) / ((D - 1) * (D + 1))
    mixed_third = (-2 * C * v - third) / (D - 1)
    mixed_fourth = ((norm - C**2) * v - 2 * C * third - fourth) / (D - 1)
    return NoiseMoments(v, third, mixed_third, fourth, mixed_fourth, across_fourth)


def pairs_variance(
    points: Tensor, covariances: Tensor, counts: Tensor, weights: Tensor, linear: Tensor
) -> Tensor:
    """Variance of sum over i != j of Z_i^T J Z_j / (n (n-1)) + l . sum_i Z_i / n, where E Z = u_x
    and Cov Z = C_x.

    [4 sum_i g_i^T C_i g_i + 2 sum over i != j of tr(J C_i J C_j)] / (n (n-1))^2, J = diag(weights),
    g_i = J (s - u_i) + l (n - 1)/2, s the sum of the u_i: third and fourth moments do not enter.
    points: (k, r); covariances: (k, r, r); counts: (*batch, k), real numbers allowed; weights and
    linear: (*batch, r). Returns (*batch).
    """

    def part(counts: Tensor, both: Tensor) -> Tensor:
        n = counts.sum(-1)
        weights, linear = both.tensor_split(2, -1)
        # (*batch, k, r)
        others = weights[..., None, :] * ((counts @ points)[..., None, :] - points)
        others = others + (linear * ((n[..., None] - 1) / 2))[..., None, :]
        first = torch.einsum("...x,...xs,xst,...xt->...", counts, others, covariances, others)
        total = torch.einsum("...x,xst->...st", counts, covariances)
        every = torch.einsum("...s,...st,...t->...", weights, total.square(), weights)
        same = torch.einsum(
            "...x,...s,xst,...t->...", counts, weights, covariances.square(), weights
        )
        return (4 * first + 2 * (every - same)) / (n * (n - 1)) ** 2

    return in_parts(part, counts, _joined(weights, linear), points.shape[1] * max(points.shape))


def symmetric_variance(
    points: Tensor, flat: float, own: float, counts: Tensor, weights: Tensor, linear: Tensor
) -> Tensor:
    """The same for reports Y in R^k that treat all types alike: Cov Y = flat I + own e_x e_x^T on
    vectors of sum 0.

    On the direction of ones Y is known (its entries add up to 1), so the kernel f(x, y) = u_x^T J
    u_y and the linear part count only after centring. O(k^2) for each of the batch.
    """

    def part(counts: Tensor, both: Tensor) -> Tensor:
        weights, linear = both.tensor_split(2, -1)
        n = counts.sum(-1)
        f = (points * weights[..., None, :]) @ points.mT
        alone = linear @ points.mT
        one_side = f - f.mean(-2, keepdim=True)
        both = (one_side - one_side.mean(-1, keepdim=True)).square()
        # Column x of f less its mean, times what the other users hold: P f (c - e_x).
        others = (one_side @ counts[..., None])[..., 0]
        others = others + (alone - alone.mean(-1, keepdim=True)) * ((n[..., None] - 1) / 2)
        column = (others[..., None, :] @ one_side)[..., 0, :]
        squares = others.square().sum(-1, keepdim=True) - 2 * column + one_side.square().sum(-2)
        at_x = others - one_side.diagonal(dim1=-2, dim2=-1)
        first = (counts * (flat * squares + own * at_x.square())).sum(-1)
        spread = flat * n[..., None] + own * counts  # the diagonal of the sum of the covariances
        every = (spread * (both @ spread[..., None])[..., 0]).sum(-1)
        rows = flat * both.sum(-1)
        each = own * counts * (2 * rows + own * both.diagonal(dim1=-2, dim2=-1))
        same = flat * n * rows.sum(-1) + each.sum(-1)
        return (4 * first + 2 * (every - same)) / (n * (n - 1)) ** 2

    return in_parts(part, counts, _joined(weights, linear), counts.shape[-1] ** 2)


def _joined(weights: Tensor, linear: Tensor) -> Tensor:
    """Beside each other, for ``in_parts``."""
    return torch.cat(torch.broadcast_tensors(weights, linear), -1)


def worst_variance(
    points: Tensor, covariances: Tensor, weights: Tensor, linear: Tensor, n: float | Tensor
) -> Tensor:
    """A bound of ``pairs_variance`` over all data of n users: both terms at the types where they
    are largest.

    J (s - u_i) + l (n - 1)/2 is n - 1 times a vector of the hull of the J u_y + l/2, and g^T C g is
    convex in g. O(k^2 r^2).
    """
    turned = points * weights[..., None, :] + linear[..., None, :] / 2
    first = torch.einsum("...ys,xst,...yt->...xy", turned, covariances, turned).amax((-2, -1))
    joint = (covariances * (weights[..., None] * weights[..., None, :])[..., None, :, :]).flatten(
        -2
    )
    second = (joint @ covariances.flatten(1).mT).abs().amax((-2, -1))
    return 4 * first / n + 2 * second / (n * (n - 1))


def worst_symmetric(
    points: Tensor, flat: float, own: float, weights: Tensor, linear: Tensor, n: float | Tensor
) -> Tensor:
    """The same for ``symmetric_variance``."""
    kernel = (points * weights[..., None, :]) @ points.mT
    alone = (linear @ points.mT / 2)[..., None]
    one_side = kernel - kernel.mean(-2, keepdim=True)
    turned = one_side + alone - alone.mean(-2, keepdim=True)
    first = flat * turned.square().sum(-2) + max(own, 0.0) * turned.square().amax(-2)
    both = (one_side - one_side.mean(-1, keepdim=True)).square()
    rows = both.sum(-2)
    second = (
        flat**2 * rows.sum(-1)
        + 2 * flat * max(own, 0.0) * rows.amax(-1)
        + own**2 * both.amax((-2, -1))
    )
    return 4 * first.amax(-1) / n + 2 * second / (n * (n - 1))


def in_parts(
    part: Callable[[Tensor, Tensor], Tensor], counts: Tensor, weights: Tensor, numbers: int
) -> Tensor:
    """``part(counts, weights)`` over the broadcast batch, a bounded number of problems of this size
    at a time.
    """
    batch = np.broadcast_shapes(counts.shape[:-1], weights.shape[:-1])
    rows = max(1, NUMBERS_AT_ONCE // numbers)
    if not batch:
        return part(counts, weights)
    flat = counts.expand(*batch, counts.shape[-1]).flatten(0, -2).split(rows)
    if weights.ndim == 1:
        parts = [part(some, weights) for some in flat]
    else:
        each = weights.expand(*batch, weights.shape[-1]).flatten(0, -2).split(rows)
        parts = [part(some, own) for some, own in zip(flat, each, strict=True)]
    return torch.cat(parts).view(batch)
