"""Several sets at once: a bound on the form of a product, and distributions of its points without correlation."""

import math

import torch
from torch import Tensor

from torchdp.domains.relaxation import TINY, hadamard_signs
from torchdp.randomness import keyed_generator

SWEEPS = 500
MOST = 1 << 11  # points of a product distribution that are listed


def couple(B: Tensor, sizes: list[int], most: list[float]) -> float:
    """A bound on ||B z||^2 = ||sum_i B_i z_i||^2 where ||B_i z_i||^2 <= most_i, B_i the blocks of B's columns.

    With B_i = Q_i T_i, Q_i orthonormal: sum_i y_i most_i lambda_max(sum_i Q_i Q_i^T / y_i) for every y > 0. At y = 1 it
    is at most (number of blocks) sum_i most_i, and exact for orthogonal blocks. A semidefinite program over y; its dual
    is climbed as in :func:`maximise_image`, whose scalar blocks these generalise.
    """
    size = torch.linalg.matrix_norm(B, 2).clamp_min(TINY)
    parts, u = [], []
    for block, bound in zip(B.split(sizes, dim=1), most, strict=True):
        Q, S, _ = torch.linalg.svd(block, full_matrices=False)
        Q = Q[:, S > 1e-12 * size]
        if Q.shape[1] and bound > 0:
            parts.append(Q)
            u.append(bound)
    if not parts:
        return 0.0

    def bound_at(y: list[float]) -> float:
        scaled = torch.cat([Q / math.sqrt(v) for Q, v in zip(parts, y, strict=True)], 1)
        top = float(torch.linalg.matrix_norm(scaled, 2)) ** 2
        return top * sum(v * most for v, most in zip(y, u, strict=True))

    best = bound_at([1.0] * len(parts))
    rank = math.isqrt(2 * len(parts)) + 2
    generator = keyed_generator(b"torchdp.mean.coupling.couple", "cpu")
    V = torch.randn(len(B), rank, dtype=torch.float64, device="cpu", generator=generator).to(B)
    previous = 0.0
    for sweep in range(SWEEPS):
        pulls = [Q.mT @ V for Q in parts]
        lengths = [float(pull.norm()) for pull in pulls]
        if min(lengths) <= TINY:
            break
        if sweep % 20 == 19:
            now = bound_at([length / math.sqrt(most) for length, most in zip(lengths, u, strict=True)])
            best, done = min(best, now), abs(now - previous) <= 1e-9 * now
            previous = now
            if done:
                break
        V = sum(math.sqrt(a) / b * (Q @ pull) for Q, pull, a, b in zip(parts, pulls, u, lengths, strict=True))
    return best


def signed_law(laws: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A distribution of (z_1, ..., z_k) with given marginals of the blocks up to sign, E z_i z_j^T = 0 for i != j.

    laws: points (n_i, d_i) and weights (n_i,), each summing to 1. One quantile picks all blocks (sum_i n_i picks at
    most), and orthogonal signs, independent of it, turn them. Returns points and weights.
    """
    edges = torch.cat([weights.cumsum(0) for _, weights in laws]).clamp(max=1.0).sort().values
    widths = torch.diff(edges, prepend=edges.new_zeros(1))
    inside = edges - widths / 2
    kept = widths > 1e-15
    picked = [
        points[torch.searchsorted(weights.cumsum(0), inside[kept]).clamp(max=len(points) - 1)]
        for points, weights in laws
    ]
    signs = hadamard_signs(len(laws)).to(widths)  # (h, k)
    turned = [sign[:, None, None] * z for sign, z in zip(signs.mT, picked, strict=True)]
    weights = (widths[kept] / len(signs)).expand(len(signs), -1)
    return torch.cat(turned, -1).flatten(0, 1), weights.flatten()


def mirrored(points: Tensor, weights: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """Half the distribution, and half its mirror image about ``middle``."""
    return torch.cat([points, 2 * middle - points]), torch.cat([weights, weights]) / 2


def independent_law(laws: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The distribution of independent blocks; where it has too many points, a sample of it."""
    count = math.prod(len(weights) for _, weights in laws)
    if count <= MOST:
        places = torch.cartesian_prod(*[torch.arange(len(weights)) for _, weights in laws]).reshape(-1, len(laws))
        law = torch.ones(len(places), dtype=torch.float64)
        for (_, weights), place in zip(laws, places.mT, strict=True):
            law = law.to(weights) * weights[place.to(weights.device)]
    else:
        generator = keyed_generator(b"torchdp.mean.coupling.independent_law", "cpu")
        draws = [torch.multinomial(w.cpu(), MOST, replacement=True, generator=generator) for _, w in laws]
        places = torch.stack(draws, -1)
        law = torch.full_like(places[:, 0], 1.0, dtype=torch.float64) / len(places)
    points = [points[place.to(points.device)] for (points, _), place in zip(laws, places.mT, strict=True)]
    return torch.cat(points, -1), law.to(points[0])
