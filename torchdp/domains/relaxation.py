"""Maximising a quadratic form over blocks of l_q balls, and the smallest ellipsoid that the bound
proves.

Blocks of coordinates lie each in an l_q ball of its own: z = (z_1, ..., z_k), ||z_g||_{q_g} <= 1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread

ENUMERATED = 24  # signs: all 2^23 pairs of corners are tried
STARTS = 64  # random roundings
SWEEPS = 2000  # of the semidefinite program; it mostly stops long before
SOLVED = 1e-6  # relative gap at which it stops
SPLIT_STEPS, SPLIT_TOL = 5000, 1e-10
TINY = 1e-300
Groups = tuple[tuple[int, float], ...]  # size and order q of each block


@one_thread
def maximise_image(G: Tensor, g: Tensor, groups: Groups) -> tuple[Tensor, float]:
    """Points z with ||z_b||_{q_b} <= 1 in every block and large ||G z + g||^2, and a proved bound
    on the maximum.

    With g beside G as one more block of one sign, H = [G, g]: for every y > 0
        ||H z||^2 <= lambda_max(H diag(y)^{-1} H^T) sum_b ||y_b||_{q_b/(q_b-2)},
    because diag(y) >= H^T H bounds the form by sum_j y_j z_j^2, and Hoelder's inequality that
    (q_b < 2: by that of 2). The least such bound is a semidefinite program, whose dual max <H^T H,
    V V^T> is climbed in the rows of V; y comes from its gradient. Rounding: z = (row norms of V)
    sign(V times a Gaussian vector) has the covariance (2/pi) arcsin(.) >= 2/pi of V V^T, so for q_b
    >= 2 the least bound is at most pi/2 times the maximum; local search improves on the best of
    many z. With signs alone, at most 24 of them, all corners are tried: exact. Each is a sum of two
    halves' a and b, and ||a + b||^2 a sum of squares and of one product of matrices.

    G: (d, N); g: (d,). Returns points (k, N), the best first, and the bound.
    Source: Nesterov (1998); Krivine (1974) for 2 < q < inf; Nikolov, Tang (2023), Theorem 32.
    """
    lifted = bool(g.any())
    H = torch.cat([G, g[:, None]], 1) if lifted else G
    groups = (*groups, (1, math.inf)) if lifted else groups
    signs = all(q == math.inf or size == 1 for size, q in groups)
    if signs and H.shape[1] <= ENUMERATED:
        k = H.shape[1] // 2
        # the last entry is +1
        first, last = _corners(k, k, H), _corners(H.shape[1] - k, H.shape[1] - k - 1, H)
        a, b = first @ H[:, :k].mT, last @ H[:, k:].mT
        values = torch.addmm(
            a.square().sum(-1)[:, None] + b.square().sum(-1), a, b.mT, alpha=2
        ).flatten()
        place = values.topk(min(STARTS, len(values))).indices
        z = torch.cat([first[place // len(b)], last[place % len(b)]], -1)
        upper = float((z @ H.mT).square().sum(-1).max())
    else:
        V, upper = _program(H, groups)
        normal = _normal(STARTS, V.shape[1]).to(V) @ V.mT
        starts = torch.cat(
            [V.norm(dim=-1) * _signs(normal), longest(normal.abs(), groups) * _signs(normal)]
        )
        z = _climb(H, moved_inside(starts, groups), groups, signs)
    if lifted:
        z = z[:, :-1] * z[:, -1:]
    return z, upper


def _corners(n: int, free: int, like: Tensor) -> Tensor:
    """(2^free, n): all signs of the first ``free`` entries, +1 in the others."""
    return 1 - 2 * ((torch.arange(1 << free)[:, None] >> torch.arange(n)) & 1).to(like)


def split(S: Tensor, p: float, groups: Groups) -> tuple[Tensor, Tensor]:
    """y, sum_b ||y_b||_{q_b/(q_b-2)} = 1, that minimises ||S y^{-1}||_{p/2}, and row
    weights, ||c||_{p/(p-2)} = 1.

    For given c and h = S^T c the best y_b is h_b^{1/(r+1)}, scaled to r = q/(q-2) norm ~ H_b^{1/2},
    H_b the l_{r/(r+1)} norm of h_b; its value (sum_b H_b^{1/2})^2 is a concave function of c, which
    multiplicative updates climb. S: (d, N), not negative: squares of generators. A column of zeros
    has y = 0. Returns y (N,), c (d,).
    """
    exponent = 1 / conjugate(p)
    sizes = [size for size, _ in groups]

    def best(c: Tensor) -> tuple[Tensor, float]:
        h = c @ S
        parts, roots = [], []
        for block, (_, q) in zip(h.split(sizes), groups, strict=True):
            r = dual_order(q)
            y = (block / block.max().clamp_min(TINY)) ** (0.0 if r == math.inf else 1 / (r + 1))
            y = torch.where(block > 0, y, 0.0)
            parts.append(y / power_norm(y, r).clamp_min(TINY))
            roots.append(power_norm(block, 1.0 if r == math.inf else r / (r + 1)).sqrt())
        sum_of_roots = torch.stack(roots).sum().clamp_min(TINY)
        y = torch.cat([part * root / sum_of_roots for part, root in zip(parts, roots, strict=True)])
        return y, float(sum_of_roots**2)

    s = torch.full_like(S[:, 0], 1 / S.shape[0])
    upper, lower = math.inf, -1.0
    chosen, multipliers = torch.zeros_like(S[0]), s
    for _ in range(SPLIT_STEPS):
        c = s**exponent
        y, bound = best(c)
        a = S @ torch.where(y > 0, 1 / y, 0.0)
        top = a.max().clamp_min(TINY)
        answer = (a == top).to(S) if p == math.inf else (a / top) ** (p / 2 - 1)
        answer = answer / power_norm(answer, conjugate(p)).clamp_min(TINY)
        for weights, height in ((c, bound), (answer, best(answer)[1])):
            if height > lower:
                lower, multipliers = height, weights
        value = float(power_norm(a, p / 2))
        if value < upper:
            upper, chosen = value, y
        if upper <= lower * (1 + SPLIT_TOL):
            break
        s = s * a if p == math.inf else c * a
        s = s / s.sum().clamp_min(TINY)
    return chosen, multipliers


def hadamard_signs(n: int) -> Tensor:
    """(2^k, n) entries +-1 whose columns are orthogonal, 2^k >= n: Sylvester's matrix, cut."""
    size = 1 << (n - 1).bit_length()
    rows = torch.ones(1, 1, dtype=torch.float64)
    while rows.shape[0] < size:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)], 0)
    return rows[:, :n]


def rounded(directions: Tensor, radius: Tensor, groups: Groups, count: int) -> Tensor:
    """Points z (2 count, N) in the balls whose signs are those of directions^T g, g Gaussian;
    directions (d, N).

    Half have the given radii, the other half the longest entries along directions^T g.
    """
    normal = _normal(count, directions.shape[0]).to(directions) @ directions
    both = torch.cat(
        [radius * _signs(normal), longest((radius * normal).abs(), groups) * _signs(normal)]
    )
    return moved_inside(both, groups)


def _program(H: Tensor, groups: Groups) -> tuple[Tensor, float]:
    """Rows V and the bound of the semidefinite program in :func:`maximise_image`."""
    groups = tuple((size, max(q, 2.0)) for size, q in groups)
    N = H.shape[1]
    rank = min(N, math.isqrt(2 * N) + 2)
    V = _normal(N, rank).to(H)
    V = V * (longest(V.norm(dim=-1), groups) / V.norm(dim=-1))[:, None]
    previous, upper, value, since = V, math.inf, -math.inf, 0
    for sweep in range(SWEEPS):
        momentum = since / (since + 3)
        gradient = H.mT @ (H @ (V + momentum * (V - previous)))
        size = gradient.norm(dim=-1)
        previous, V = V, gradient * (longest(size, groups) / size.clamp_min(TINY))[:, None]
        now = float((H @ V).square().sum())
        since = 0 if now < value else since + 1  # momentum restarts where it falls
        value = now
        if sweep % 10 == 9 or sweep == SWEEPS - 1:
            upper = min(upper, _bound(H, V, groups))
            if upper <= value * (1 + SOLVED):
                break
    return V, upper


def _bound(H: Tensor, V: Tensor, groups: Groups) -> float:
    size = (H.mT @ (H @ V)).norm(dim=-1)
    # above 0 wherever H is
    y = torch.maximum(size / V.norm(dim=-1).clamp_min(TINY), 1e-9 * H.square().sum(0))
    blocks = y.split([size for size, _ in groups])
    # all y of a block of order 2 count as its largest: they may as well be equal
    y = torch.cat(
        [b.max().expand_as(b) if q <= 2 else b for b, (_, q) in zip(blocks, groups, strict=True)]
    )
    scaled = H * torch.where(y > 0, y.clamp_min(TINY).rsqrt(), 0.0)
    return float(torch.linalg.matrix_norm(scaled, 2)) ** 2 * float(total(y, groups, dual_order))


def _climb(H: Tensor, z: Tensor, groups: Groups, signs: bool) -> Tensor:
    """Local search from the rows of z (k, N): each step maximises the linearised form, then single
    signs flip.
    """
    for _ in range(100):
        gradient = (z @ H.mT) @ H
        step = longest(gradient.abs(), groups) * _signs(gradient)
        settled = torch.allclose(step, z, rtol=0, atol=1e-9)
        z = step
        if settled:
            break
    if signs:
        squares = H.square().sum(0)
        for _ in range(10 * H.shape[1]):
            gain = squares - z * ((z @ H.mT) @ H)
            best, place = gain.max(-1)
            flips = best > 1e-12 * squares.sum()
            if not bool(flips.any()):
                break
            z = torch.where(
                flips[:, None] & (torch.arange(z.shape[1], device=z.device) == place[:, None]),
                -z,
                z,
            )
    order = torch.argsort((z @ H.mT).square().sum(-1), descending=True)
    return z[order]


def _normal(rows: int, columns: int) -> Tensor:
    """Standard normals, always the same ones: a search repeats itself exactly."""
    generator = keyed_generator(b"torchdp.mean.relaxation", "cpu")
    return torch.randn(rows, columns, dtype=torch.float64, device="cpu", generator=generator)


def _signs(x: Tensor) -> Tensor:
    return torch.where(x < 0, -1.0, torch.ones_like(x))


def longest(size: Tensor, groups: Groups) -> Tensor:
    """The z >= 0 with the largest <z, size>, size >= 0 of shape (..., N): z_j ~ size_j^{1/(q-1)} in
    a block.
    """
    return _blockwise(size, groups, _longest)


def moved_inside(z: Tensor, groups: Groups) -> Tensor:
    """z with every block of norm above 1 divided by it."""
    return _blockwise(
        z, groups, lambda block, q: block / power_norm(block.abs(), q)[..., None].clamp_min(1.0)
    )


def total(values: Tensor, groups: Groups, order: Callable[[float], float]) -> Tensor:
    """The sum over blocks of the blocks' l_{order(q)} norms; values >= 0 of shape (..., N)."""
    blocks = values.split([size for size, _ in groups], dim=-1)
    return torch.stack(
        [power_norm(b, order(q)) for b, (_, q) in zip(blocks, groups, strict=True)]
    ).sum(0)


def dual_order(q: float) -> float:
    """q/(q-2): of y where sum_j y_j z_j^2 <= ||y|| for ||z||_q <= 1; inf for q <= 2."""
    return 1.0 if q == math.inf else math.inf if q <= 2 else q / (q - 2)


def corners(groups: Groups, most: int) -> Tensor | None:
    """The corners (k, N) of the product of the balls, k <= most, where all are of order 1 or inf;
    None elsewhere.
    """
    z = torch.zeros(1, 0, dtype=torch.float64)
    for size, q in groups:
        if size > 1 and (1 < q < math.inf or size > most):
            return None
        signs = q == math.inf and size > 1
        if len(z) * (2**size if signs else 2 * size) > most:
            return None
        basis = torch.eye(size, dtype=torch.float64)
        both = torch.tensor([[1.0, -1.0]] * size, dtype=torch.float64)
        z = paired(z, torch.cartesian_prod(*both) if signs else torch.cat([basis, -basis]))
    return z


def paired(x: Tensor, y: Tensor) -> Tensor:
    """Every row of x beside every row of y."""
    return torch.cat([x.repeat_interleave(len(y), 0), y.repeat(len(x), 1)], 1)


def _longest(size: Tensor, q: float) -> Tensor:
    if q == math.inf:
        return torch.ones_like(size)
    if q == 1:
        return torch.zeros_like(size).scatter(-1, size.argmax(-1, keepdim=True), 1.0)
    z = (size / size.amax(-1, keepdim=True).clamp_min(TINY)) ** (1 / (q - 1))
    return z / power_norm(z, q)[..., None].clamp_min(TINY)


def _blockwise(
    values: Tensor, groups: Groups, function: Callable[[Tensor, float], Tensor]
) -> Tensor:
    blocks = values.split([size for size, _ in groups], dim=-1)
    return torch.cat([function(block, q) for block, (_, q) in zip(blocks, groups, strict=True)], -1)
