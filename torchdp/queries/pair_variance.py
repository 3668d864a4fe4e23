"""Exact variances of the pair estimator sum over i != j of Z_i^T J Z_j, of independent unbiased Z.

And the third and fourth moments of a ball message's noise: what the square of the sum of messages
adds to its variance.

Notation: u_x, row x of points (k, r), the vector of type x; C_x, (r, r), covariances of a user's
message; J = diag(weights) and l, linear, (*batch, r): the form; c, counts, (*batch, k).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdp.randomizers import PrivUnit

# Numbers in the largest tensor of a batch of variances.
NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class NoiseMoments:
    """Moments of the noise z = a u + b w of a message at the unit vector u.

    w is uniform on the sphere orthogonal to u. With e a unit vector orthogonal to u: third =
    E <z, u>^3, mixed_third = E <z, u> <z, e>^2, fourth = E <z, u>^4, mixed_fourth =
    E <z, u>^2 <z, e>^2, across_fourth = E <z, e>^4, and variance = E <z, u>^2 = E <z, e>^2. By
    symmetry these are all; moments of odd order in e vanish, and for orthogonal e, e'
    E <z, e>^2 <z, e'>^2 = across_fourth/3.
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
        """Var(a t^T z + b z^T J z) for each row of u, less that under normal noise of variance v.

        2 a b E[t^T z z^T J z] + b^2 (Var(z^T J z) - 2 v^2 sum weights^2).

        Args:
            u: (k, r), the unit vectors less a coordinate that J does not see, so norms below 1 are
                meant.
            slope: t, (*batch, r).
            weights: the diagonal of J, (*batch, r).
            linear: a.
            square: b.

        Returns: (*batch, k).
        """
        trace = weights.sum(-1, keepdim=True)
        squared = weights.square().sum(-1, keepdim=True)
        own = weights @ u.square().mT  # u^T J u
        along = slope @ u.mT  # t^T u
        twice = weights.square() @ u.square().mT  # ||J u||^2

        # With P the projection on the space orthogonal to u:
        across = trace - own  # tr(P J)
        rest = (weights * slope) @ u.mT - along * own  # t^T P J u
        squares = squared - 2 * twice + own**2  # tr((P J)^2)

        cubic = self.third * along * own + self.mixed_third * (along * across + 2 * rest)
        mixed = 2 * own * across + 4 * (twice - own**2)
        orthogonal = 2 * squares + across**2
        quartic = self.fourth * own**2
        quartic = quartic + self.mixed_fourth * mixed + self.across_fourth / 3 * orthogonal
        v = self.variance
        # E (z^T J z)^2 of normal noise.
        normal = v**2 * (trace**2 + 2 * squared)
        return 2 * linear * square * cubic + square**2 * (quartic - normal)

    def third_of(self, u: Tensor, left: Tensor, T: Tensor) -> Tensor:
        """E T(L z, L z, L z) for each row of u, (k, r), as above: (k,).

        left: L, (m, r). T: (m, m, m), symmetric.
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
    moments = randomizer.moments
    C = randomizer.radius
    v = moments.variance
    third = moments.third * v**1.5
    fourth = moments.fourth * v**2
    D = randomizer.dim + 1
    norm = (C / randomizer.cap.threshold) ** 2
    # E (C + a)^4, and with it E b^4 = E (norm - (C + a)^2)^2.
    fourth_about_zero = C**4 + 6 * C**2 * v + 4 * C * third + fourth
    orthogonal = 3 * (norm**2 - 2 * norm * (C**2 + v) + fourth_about_zero)
    # w is uniform on a sphere of R^{D-1}, where E <w, e>^4 = 3/((D - 1)(D + 1)).
    across_fourth = orthogonal / ((D - 1) * (D + 1))
    # E a b^2 and E a^2 b^2, each shared evenly by the D - 1 directions across u.
    mixed_third = (-2 * C * v - third) / (D - 1)
    mixed_fourth = ((norm - C**2) * v - 2 * C * third - fourth) / (D - 1)
    return NoiseMoments(v, third, mixed_third, fourth, mixed_fourth, across_fourth)


def pairs_variance(
    points: Tensor, covariances: Tensor, counts: Tensor, weights: Tensor, linear: Tensor
) -> Tensor:
    """Variance of sum over i != j of Z_i^T J Z_j / (n (n-1)) + l . sum_i Z_i / n.

    [4 sum_i g_i^T C_i g_i + 2 sum over i != j of tr(J C_i J C_j)] / (n (n-1))^2, g_i =
    J (s - u_i) + l (n - 1)/2, s the sum of the u_i: third and fourth moments do not enter.
    counts: real numbers allowed. Returns (*batch).
    """

    def part(counts: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        n = counts.sum(-1)
        totals = (counts @ points)[..., None, :]
        g = weights[..., None, :] * (totals - points)  # (*batch, k, r)
        alone = linear * ((n[..., None] - 1) / 2)
        g = g + alone[..., None, :]
        first = torch.einsum("...x,...xs,xst,...xt->...", counts, g, covariances, g)
        total = torch.einsum("...x,xst->...st", counts, covariances)
        every = torch.einsum("...s,...st,...t->...", weights, total.square(), weights)
        squares = covariances.square()
        same = torch.einsum("...x,...s,xst,...t->...", counts, weights, squares, weights)
        # Pairs of different users: all pairs less those of a user with itself.
        return (4 * first + 2 * (every - same)) / (n * (n - 1)) ** 2

    return in_parts(part, counts, weights, linear, points.shape[1] * max(points.shape))


def symmetric_variance(
    points: Tensor, flat: float, own: float, counts: Tensor, weights: Tensor, linear: Tensor
) -> Tensor:
    """The same for reports Y in R^k that treat all types the same.

    Cov Y = flat I + own e_x e_x^T on vectors of sum 0. On the direction of ones Y is known (its
    entries add up to 1), so the kernel f(x, y) = u_x^T J u_y and the linear part count only after
    centring. O(k^2) for each of the batch.
    """

    def part(counts: Tensor, weights: Tensor, linear: Tensor) -> Tensor:
        n = counts.sum(-1)
        kernel = (points * weights[..., None, :]) @ points.mT
        centred = kernel - kernel.mean(-2, keepdim=True)
        alone = linear @ points.mT
        alone = alone - alone.mean(-1, keepdim=True)

        # Column x of f less its mean, times what the other users hold: P f (c - e_x).
        others = (centred @ counts[..., None])[..., 0]
        others = others + alone * ((n[..., None] - 1) / 2)
        column = (others[..., None, :] @ centred)[..., 0, :]
        squares = others.square().sum(-1, keepdim=True) - 2 * column
        squares = squares + centred.square().sum(-2)
        at_own = others - torch.linalg.diagonal(centred)
        first = (counts * (flat * squares + own * at_own.square())).sum(-1)

        squared_kernel = (centred - centred.mean(-1, keepdim=True)).square()
        # The diagonal of the sum of the users' covariances.
        spread = flat * n[..., None] + own * counts
        every = (spread * (squared_kernel @ spread[..., None])[..., 0]).sum(-1)
        rows = flat * squared_kernel.sum(-1)
        diagonal = torch.linalg.diagonal(squared_kernel)
        pairs = own * counts * (2 * rows + own * diagonal)
        same = flat * n * rows.sum(-1) + pairs.sum(-1)
        return (4 * first + 2 * (every - same)) / (n * (n - 1)) ** 2

    return in_parts(part, counts, weights, linear, counts.shape[-1] ** 2)


def worst_variance(
    points: Tensor, covariances: Tensor, weights: Tensor, linear: Tensor, n: float | Tensor
) -> Tensor:
    """A bound of ``pairs_variance`` over all data of n users: each term at its worst types.

    J (s - u_i) + l (n - 1)/2 is n - 1 times a vector of the hull of the J u_y + l/2, and g^T C g is
    convex in g. O(k^2 r^2).
    """
    g = points * weights[..., None, :] + linear[..., None, :] / 2
    first = torch.einsum("...ys,xst,...yt->...xy", g, covariances, g).amax((-2, -1))
    products = weights[..., None] * weights[..., None, :]
    weighted = (covariances * products[..., None, :, :]).flatten(-2)
    traces = weighted @ covariances.flatten(1).mT  # tr(J C_x J C_y)
    second = traces.abs().amax((-2, -1))
    return 4 * first / n + 2 * second / (n * (n - 1))


def worst_symmetric(
    points: Tensor, flat: float, own: float, weights: Tensor, linear: Tensor, n: float | Tensor
) -> Tensor:
    """The same for ``symmetric_variance``."""
    kernel = (points * weights[..., None, :]) @ points.mT
    centred = kernel - kernel.mean(-2, keepdim=True)
    alone = (linear @ points.mT / 2)[..., None]
    g = centred + alone - alone.mean(-2, keepdim=True)
    # A bound: a negative part of the covariance is left out.
    added = max(own, 0.0)
    first = flat * g.square().sum(-2) + added * g.square().amax(-2)
    squared_kernel = (centred - centred.mean(-1, keepdim=True)).square()
    rows = squared_kernel.sum(-2)
    largest = squared_kernel.amax((-2, -1))
    second = flat**2 * rows.sum(-1) + 2 * flat * added * rows.amax(-1) + own**2 * largest
    return 4 * first.amax(-1) / n + 2 * second / (n * (n - 1))


def in_parts(
    part: Callable[[Tensor, Tensor, Tensor], Tensor],
    counts: Tensor,
    weights: Tensor,
    linear: Tensor,
    numbers: int,
) -> Tensor:
    """``part(counts, weights, linear)`` over the broadcast batch, a bounded number at a time.

    numbers: held for each of the batch.
    """
    form = torch.cat(torch.broadcast_tensors(weights, linear), -1)
    batch = np.broadcast_shapes(counts.shape[:-1], form.shape[:-1])
    if not batch:
        return part(counts, *form.tensor_split(2, -1))
    rows = max(1, NUMBERS_AT_ONCE // numbers)
    flat = counts.expand(*batch, -1).flatten(0, -2).split(rows)
    if form.ndim == 1:
        forms = (form,) * len(flat)
    else:
        forms = form.expand(*batch, -1).flatten(0, -2).split(rows)
    pairs = zip(flat, forms, strict=True)
    values = [part(some, *own.tensor_split(2, -1)) for some, own in pairs]
    return torch.cat(values).view(batch)
