"""Maximising a quadratic form over blocks of l_q balls, with a proved upper bound.

Notation: z = (z_1, ..., z_k) are blocks of coordinates, each in a ball of its own,
||z_b||_{q_b} <= 1; ``groups`` holds the size and the order q_b of each. N is the sum of the sizes,
H (d, N) the matrix of the form ||H z||^2, y (N,) the diagonal that bounds it.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.linalg import hadamard
from torch import Tensor

from torchdp.factorization.certificates.certificate import conjugate, power_norm
from torchdp.randomness import keyed_generator
from torchdp.threads import one_thread

ENUMERATED = 24  # signs: all 2^23 pairs of corners are tried
STARTS = 64  # random roundings
SWEEPS = 2000  # of the semidefinite program; it mostly stops long before
SOLVED = 1e-6  # relative gap at which it stops
ASCENTS = 100  # steps of the local search; it mostly settles in a dozen
SPLIT_STEPS = 5000
SPLIT_TOL = 1e-10  # relative gap
TINY = 1e-300  # keeps a quotient of two zeros at zero
Groups = tuple[tuple[int, float], ...]  # size and order q of each block


@one_thread
def maximise_image(G: Tensor, g: Tensor, groups: Groups) -> tuple[Tensor, float]:
    """Points z of the balls with large ||G z + g||^2, and a proved bound on the maximum.

    Method: with g beside G as one more block of one sign, H = [G, g]: for every y > 0
        ||H z||^2 <= lambda_max(H diag(y)^{-1} H^T) sum_b ||y_b||_{q_b/(q_b-2)},
    because diag(y) >= H^T H bounds the form by sum_j y_j z_j^2, and Hoelder's inequality that
    (q_b < 2: by that of 2). The least such bound is a semidefinite program, whose dual max <H^T H,
    V V^T> is climbed in the rows of V; y comes from its gradient. Rounding: z = (row norms of V)
    sign(V times a Gaussian vector) has the covariance (2/pi) arcsin(.) >= 2/pi of V V^T, so for q_b
    >= 2 the least bound is at most pi/2 times the maximum; local search improves on the best of
    many z. With signs alone, at most 24 of them, all corners are tried: exact.

    Args:
        G: (d, N).
        g: (d,).
        groups: size and order q_b in [1, inf] of each block.

    Returns: points (k, N), the best first, and the bound.
    Source: Nesterov (1998); Krivine (1974) for 2 < q < inf; Nikolov, Tang (2023), Theorem 32.
    """
    lifted = bool(g.any())
    H = G
    if lifted:
        H = torch.cat([G, g[:, None]], 1)
        groups = (*groups, (1, math.inf))
    signs = all(q == math.inf or size == 1 for size, q in groups)
    if signs and H.shape[1] <= ENUMERATED:
        z, upper = _best_corners(H)
    else:
        V, upper = _program(H, groups)
        normal = _normal(STARTS, V.shape[1]).to(V) @ V.mT
        sign = _signs(normal)
        rounded_rows = V.norm(dim=-1) * sign
        rounded_balls = longest(normal.abs(), groups) * sign
        # Either may be the better start: radii of the program, or the longest for these signs.
        starts = torch.cat([rounded_rows, rounded_balls])
        z = _climb(H, moved_inside(starts, groups), groups, signs)
    if lifted:
        z = z[:, :-1] * z[:, -1:]  # the form is even: a point whose last sign is +1
    return z, upper


def _best_corners(H: Tensor) -> tuple[Tensor, float]:
    """The best sign vectors (k, N) and the exact maximum, the last sign +1: the form is even."""
    N = H.shape[1]
    k = N // 2
    first = _corners(k, k, H)
    last = _corners(N - k, N - k - 1, H)
    # H z is a sum of two halves' a and b: ||a + b||^2 takes one product of matrices for all pairs.
    a = first @ H[:, :k].mT
    b = last @ H[:, k:].mT
    squares = a.square().sum(-1)[:, None] + b.square().sum(-1)
    values = torch.addmm(squares, a, b.mT, alpha=2).flatten()
    best = values.topk(min(STARTS, len(values))).indices
    z = torch.cat([first[best // len(b)], last[best % len(b)]], -1)
    # The expanded squares above lose digits: the maximum is taken again from the corners.
    squares = (z @ H.mT).square().sum(-1)
    return z, float(squares.max())


def _corners(n: int, free: int, like: Tensor) -> Tensor:
    """(2^free, n): all signs of the first ``free`` entries, +1 in the others."""
    numbers = torch.arange(1 << free)[:, None]
    bits = (numbers >> torch.arange(n)) & 1
    return 1 - 2 * bits.to(like)


def split(S: Tensor, p: float, groups: Groups) -> tuple[Tensor, Tensor]:
    """The y of norm 1 that minimises ||S y^{-1}||_{p/2}, and the dual weights of the rows.

    Method: for given c and h = S^T c the best y_b is h_b^{1/(r+1)}, scaled to r = q/(q-2) norm ~
    H_b^{1/2}, H_b the l_{r/(r+1)} norm of h_b; its value (sum_b H_b^{1/2})^2 is a concave function
    of c, which multiplicative updates climb.

    Args:
        S: (d, N), not negative: squares of generators. A column of zeros has y = 0.
        p: in [2, inf].
        groups: size and order q of each block.

    Returns: y (N,), sum_b ||y_b||_{q_b/(q_b-2)} = 1, and c (d,), ||c||_{p/(p-2)} = 1.
    """
    # With s of sum 1, c = s^{1/r} has norm 1 in l_r, r = p/(p-2): no other scaling is needed.
    exponent = 1 / conjugate(p)
    s = torch.full_like(S[:, 0], 1 / S.shape[0])
    upper = math.inf
    lower = -1.0
    best_y = torch.zeros_like(S[0])
    best_c = s
    for _ in range(SPLIT_STEPS):
        c = s**exponent
        y, bound = _best_split(c @ S, groups)
        a = S @ torch.where(y > 0, 1 / y, 0.0)
        top = a.max().clamp_min(TINY)
        # The row weights at which Hoelder's inequality for ||a||_{p/2} is an equality.
        answer = (a == top).to(S) if p == math.inf else (a / top) ** (p / 2 - 1)
        answer = answer / power_norm(answer, conjugate(p)).clamp_min(TINY)
        _, answered = _best_split(answer @ S, groups)
        for weights, value in ((c, bound), (answer, answered)):
            if value > lower:
                lower = value
                best_c = weights
        value = float(power_norm(a, p / 2))
        if value < upper:
            upper = value
            best_y = y
        if upper <= lower * (1 + SPLIT_TOL):
            break
        # the gradient of the concave bound in c is a: a multiplicative update keeps c positive
        s = s * a if p == math.inf else c * a
        s = s / s.sum().clamp_min(TINY)
    return best_y, best_c


def _best_split(h: Tensor, groups: Groups) -> tuple[Tensor, float]:
    """The best y for h = S^T c, and the lower bound (sum_b H_b^{1/2})^2 that it attains."""
    parts = []
    roots = []
    for block, q in _blocks(h, groups):
        r = dual_order(q)
        # y is scaled to its norm afterwards: powers of ratios keep small blocks from underflow.
        ratio = block / block.max().clamp_min(TINY)
        y = ratio ** (0.0 if r == math.inf else 1 / (r + 1))
        y = torch.where(block > 0, y, 0.0)
        parts.append(y / power_norm(y, r).clamp_min(TINY))
        roots.append(power_norm(block, 1.0 if r == math.inf else r / (r + 1)).sqrt())
    sum_of_roots = torch.stack(roots).sum().clamp_min(TINY)
    scaled = [part * root / sum_of_roots for part, root in zip(parts, roots, strict=True)]
    return torch.cat(scaled), float(sum_of_roots**2)


def hadamard_signs(n: int) -> Tensor:
    """(2^k, n) entries +-1 whose columns are orthogonal, 2^k >= n: Sylvester's matrix, cut."""
    size = 1 << (n - 1).bit_length()
    return torch.from_numpy(hadamard(size, np.float64))[:, :n]


def rounded(directions: Tensor, radius: Tensor, groups: Groups, count: int) -> Tensor:
    """Points z (2 count, N) in the balls whose signs are those of directions^T g, g Gaussian.

    Half have the radii (N,) given, the other half the longest entries along directions^T g;
    directions: (d, N).
    """
    normal = _normal(count, directions.shape[0]).to(directions) @ directions
    sign = _signs(normal)
    farthest = longest((radius * normal).abs(), groups)
    return moved_inside(torch.cat([radius * sign, farthest * sign]), groups)


def _program(H: Tensor, groups: Groups) -> tuple[Tensor, float]:
    """Rows V and the bound of the semidefinite program in :func:`maximise_image`."""
    # Balls of order below 2 lie in the l_2 ball, whose bound is used for them.
    groups = tuple((size, max(q, 2.0)) for size, q in groups)
    N = H.shape[1]
    # A rank at which the program in V has no local maxima but the global one (Barvinok, Pataki).
    rank = min(N, math.isqrt(2 * N) + 2)
    V = _normal(N, rank).to(H)
    size = V.norm(dim=-1)
    V = V * (longest(size, groups) / size)[:, None]
    previous = V
    upper = math.inf
    value = -math.inf
    since = 0
    for sweep in range(SWEEPS):
        momentum = since / (since + 3)  # Nesterov's
        gradient = H.mT @ (H @ (V + momentum * (V - previous)))
        size = gradient.norm(dim=-1)
        previous = V
        V = gradient * (longest(size, groups) / size.clamp_min(TINY))[:, None]
        new_value = float((H @ V).square().sum())
        since = 0 if new_value < value else since + 1  # momentum restarts where it falls
        value = new_value
        # A bound takes a spectral norm, dearer than a sweep.
        if sweep % 10 == 9:
            upper = min(upper, _bound(H, V, groups))
            if upper <= value * (1 + SOLVED):
                break
    return V, upper


def _bound(H: Tensor, V: Tensor, groups: Groups) -> float:
    """The bound of :func:`maximise_image` at the y that V's gradient suggests."""
    size = (H.mT @ (H @ V)).norm(dim=-1)
    # above 0 wherever H is
    radius = V.norm(dim=-1).clamp_min(TINY)
    y = torch.maximum(size / radius, 1e-9 * H.square().sum(0))

    def balanced(block: Tensor, q: float) -> Tensor:
        # All y of a block of order 2 count as its largest: they may as well be equal.
        return block.max().expand_as(block) if q <= 2 else block

    y = _blockwise(y, groups, balanced)
    scaled = H * torch.where(y > 0, y.clamp_min(TINY).rsqrt(), 0.0)
    # lambda_max(H diag(y)^{-1} H^T), without forming it
    spectral = float(torch.linalg.matrix_norm(scaled, 2))
    return spectral**2 * float(total(y, groups, dual_order))


def _climb(H: Tensor, z: Tensor, groups: Groups, signs: bool) -> Tensor:
    """Local search from the rows of z (k, N): the maxima of linearised forms, then single flips."""
    for _ in range(ASCENTS):
        gradient = (z @ H.mT) @ H
        step = longest(gradient.abs(), groups) * _signs(gradient)
        settled = torch.allclose(step, z, rtol=0, atol=1e-9)
        z = step
        if settled:
            break
    if signs:
        z = _flipped(H, z)
    values = (z @ H.mT).square().sum(-1)
    return z[torch.argsort(values, descending=True)]


def _flipped(H: Tensor, z: Tensor) -> Tensor:
    """Sign vectors (k, N) after flips of single signs, as long as the best flip gains."""
    squares = H.square().sum(0)
    columns = torch.arange(z.shape[1], device=z.device)
    for _ in range(10 * H.shape[1]):
        gain = squares - z * ((z @ H.mT) @ H)  # a quarter of what flipping z_j adds
        largest, column = gain.max(-1)
        # Gains of the size of rounding would flip the same sign back and forth.
        flips = largest > 1e-12 * squares.sum()
        if not bool(flips.any()):
            break
        flipped = flips[:, None] & (columns == column[:, None])
        z = torch.where(flipped, -z, z)
    return z


def _normal(rows: int, columns: int) -> Tensor:
    """Standard normals, always the same ones: a search repeats itself exactly."""
    generator = keyed_generator(b"torchdp.mean.relaxation", "cpu")
    return torch.randn(rows, columns, dtype=torch.float64, device="cpu", generator=generator)


def _signs(x: Tensor) -> Tensor:
    # Not ``sign``: a corner has no entry 0.
    return torch.where(x < 0, -1.0, torch.ones_like(x))


def longest(size: Tensor, groups: Groups) -> Tensor:
    """The z >= 0 in the balls with the largest <z, size>: z_j ~ size_j^{1/(q-1)} in a block.

    size: (..., N), not negative."""
    return _blockwise(size, groups, _longest)


def moved_inside(z: Tensor, groups: Groups) -> Tensor:
    """z with every block of norm above 1 divided by it."""

    def scaled(block: Tensor, q: float) -> Tensor:
        return block / power_norm(block.abs(), q)[..., None].clamp_min(1.0)

    return _blockwise(z, groups, scaled)


def total(values: Tensor, groups: Groups, order: Callable[[float], float]) -> Tensor:
    """The sum over blocks of the blocks' l_{order(q)} norms; values >= 0 of shape (..., N)."""
    norms = [power_norm(block, order(q)) for block, q in _blocks(values, groups)]
    return torch.stack(norms).sum(0)


def dual_order(q: float) -> float:
    """q/(q-2): of y where sum_j y_j z_j^2 <= ||y|| for ||z||_q <= 1; inf for q <= 2."""
    if q <= 2:
        return math.inf
    return 1.0 if q == math.inf else q / (q - 2)


def corners(groups: Groups, most: int) -> Tensor | None:
    """The corners (k, N) of a product of balls of order 1 or inf, k <= most; None for others."""
    z = torch.zeros(1, 0, dtype=torch.float64)
    for size, q in groups:
        if size > 1 and (1 < q < math.inf or size > most):
            return None
        cube = q == math.inf and size > 1
        if len(z) * (2**size if cube else 2 * size) > most:
            return None
        if cube:
            signs = torch.tensor([[1.0, -1.0]] * size, dtype=torch.float64)
            own = torch.cartesian_prod(*signs)
        else:
            basis = torch.eye(size, dtype=torch.float64)
            own = torch.cat([basis, -basis])
        z = paired(z, own)
    return z


def paired(x: Tensor, y: Tensor) -> Tensor:
    """Every row of x beside every row of y."""
    left = x.repeat_interleave(len(y), 0)
    right = y.repeat(len(x), 1)
    return torch.cat([left, right], 1)


def _longest(size: Tensor, q: float) -> Tensor:
    if q == math.inf:
        return torch.ones_like(size)
    if q == 1:
        largest = size.argmax(-1, keepdim=True)
        return torch.zeros_like(size).scatter(-1, largest, 1.0)
    ratio = size / size.amax(-1, keepdim=True).clamp_min(TINY)
    z = ratio ** (1 / (q - 1))
    return z / power_norm(z, q)[..., None].clamp_min(TINY)


def _blocks(values: Tensor, groups: Groups) -> Iterator[tuple[Tensor, float]]:
    """Each block of ``values`` (..., N), and its order."""
    sizes = [size for size, _ in groups]
    orders = [q for _, q in groups]
    return zip(values.split(sizes, dim=-1), orders, strict=True)


def _blockwise(
    values: Tensor, groups: Groups, function: Callable[[Tensor, float], Tensor]
) -> Tensor:
    return torch.cat([function(block, q) for block, q in _blocks(values, groups)], -1)
