"""Sums of random points of a sphere that are symmetric about one axis: by a tree, or at once.

Few points are added along a tree; of very many the sum is drawn from its distribution.

Notation: u is the axis and A = sum T_i the sum along it; rho w is the rest, w uniform on the unit
sphere across u; m = dim - 1. In expansions x and u stand for the two variables of a sum, s and p
for those of transforms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from scipy.linalg import solve_triangular
from torch import Tensor

from torchdp.draws import Draws
from torchdp.protocol.records import weighted_sum
from torchdp.randomizers.ball.sphere import coordinate_size, uniform_coordinate

# Powers of n^{-1/2} that are computed, and used: the others say how far off these are.
ORDERS = 9
KEPT = 7

# Coefficients of what is multiplied out.
SHAPE = (3 * ORDERS + 3, 2 * ORDERS + 2)

# Standard deviations by which a sum may be off: 1e12 draws would be needed to see it.
CLOSE = 1e-6

NUMBERS_AT_ONCE = 2**18
TINY = torch.finfo(torch.float64).tiny

Sums = tuple[Tensor, Tensor]  # A and rho
Draw = Callable[[int], Sums]  # (T, sqrt(1 - T^2)) of so many independent users
Polynomial = np.ndarray  # coefficients [i, j], of x^i u^j or, for transforms, of s^i p^j


@dataclass(frozen=True, eq=False)
class AxialSums:
    """A u + rho w, the sum of n independent T_i u + sqrt(1 - T_i^2) w_i.

    With x normal, q chi-squared of m degrees, u = (q - m)/sqrt(2 m), mu and sigma^2 the moments of
    T, v = E (1 - T^2)/m:
        A = n mu + sigma n^{1/2} (x + a_1/n^{1/2} + a_2/n + ...),
        rho = (n v q)^{1/2} (1 + b_1/n^{1/2} + b_2/n + ...),
    polynomials a_k in x and u, b_k in u, such that the characteristic function is right to every
    order that is kept: Cornish and Fisher's expansion, of two variables.

    With s for x and p for u, E exp(s x + <theta, y>) u^j = exp((s^2 + |theta|^2)/2) times a
    polynomial in s and p = |theta|^2/sqrt(2 m): its moments, those of a noncentral chi-squared. So
    each order is a linear equation.

    Args:
        t: nodes for expectations of T.
        weights: of the nodes, of sum 1.
        dim: of the sphere's space, >= 2.

    Source: Cornish, Fisher (1938), for one variable; the moments are matched as there.
    """

    t: np.ndarray
    weights: np.ndarray
    dim: int

    @property
    def across(self) -> int:
        """m."""
        return self.dim - 1

    @cached_property
    def moments(self) -> tuple[float, float, float]:
        """mu, sigma and v."""
        mean = float(self.weights @ self.t)
        spread = math.sqrt(self.weights @ (self.t - mean) ** 2)
        square = float(self.weights @ (1 - self.t**2))
        return mean, spread, square / self.across

    @cached_property
    def least(self) -> int:
        """Points from which the first two terms left out are below 1e-6, root mean square."""
        points = 2
        along, length = self._terms
        for order in range(KEPT, ORDERS):
            of_length = math.sqrt(2 * self.across) * self._size(length[order])
            error = math.hypot(self._size(along[order]), of_length) / CLOSE
            # This term goes with n^{-(order + 1)/2}: it is below CLOSE from so many points on.
            points = max(points, math.ceil(error ** (2 / (order + 1))))
        return points

    def _size(self, f: Polynomial) -> float:
        """(E f(x, u)^2)^{1/2}."""
        square = _product(f, f, (SHAPE[0], SHAPE[0]))
        normal, count = self._duals
        mean = float(normal[:, 0] @ square @ count[:, 0])
        return math.sqrt(max(0.0, mean))

    def sums(self, counts: Tensor, draw: Draw, draws: Draws) -> Sums:
        """(A, rho) of so many points, for each of ``counts``.

        Two such sums add up to one with A + A' and (rho^2 + rho'^2 + 2 rho rho' t)^(1/2), t = <w,
        w'> a coordinate of a uniform point of the sphere in R^{dim - 1}: points are added along a
        binary tree, at one normal besides the draw of T for each, whatever the dimension. From
        ``least`` points on the sum is drawn from its distribution, to 1e-6 standard deviations:
        beyond, the cost does not grow with the counts.
        """
        flat = counts.flatten()
        along = torch.zeros(flat.shape, dtype=torch.float64, device=flat.device)
        across = torch.zeros_like(along)
        many = flat >= self.least
        if many.any():
            along[many], across[many] = self.draw(flat[many], draws)
        left = torch.where(many, 0, flat)
        held = left.nonzero()[:, 0]
        while len(held):
            sizes = left[held].clamp_max(max(1, NUMBERS_AT_ONCE // len(held)))
            known = sizes.cpu()  # the tree asks the device for no sizes
            users = draw(int(known.sum()))
            part = _tree(self.dim, sizes, known, users, draws)
            along[held], across[held] = add(self.dim, (along[held], across[held]), part, draws)
            left[held] -= sizes
            held = left.nonzero()[:, 0]
        return along.view(counts.shape), across.view(counts.shape)

    def draw(self, counts: Tensor, draws: Draws) -> Sums:
        """(A, rho) of ``counts`` >= ``least`` points, float64 of that shape."""
        mean, spread, v = self.moments
        n = counts.double()
        x = draws.normal(tuple(n.shape))
        q = 2 * draws.gamma(torch.full_like(n, self.across / 2))
        u = (q - self.across) / math.sqrt(2 * self.across)
        root = n.rsqrt()
        along, length = self._terms
        a = torch.zeros_like(n)
        b = torch.zeros_like(n)
        for k in reversed(range(KEPT)):  # Horner's rule in n^{-1/2}
            a = root * (a + _value(along[k], x, u))
            b = root * (b + _value(length[k], x, u))
        total = n * mean + spread * n.sqrt() * (x + a)
        # A length, whatever the expansion says in the far tail of u.
        return total, (n * v * q).sqrt() * (1 + b).abs()

    @cached_property
    def _duals(self) -> tuple[np.ndarray, np.ndarray]:
        """Row j: the transform of x^j as a polynomial in s, of u^j as one in p."""
        m = self.across
        normal = np.zeros((SHAPE[0], SHAPE[0]))
        count = np.zeros_like(normal)
        normal[0, 0] = 1
        count[0, 0] = 1
        for j in range(1, SHAPE[0]):
            normal[j, 1:] = normal[j - 1, :-1]
            if j > 1:
                normal[j] += (j - 1) * normal[j - 2]
            # Moments from cumulants: kappa_r = 2^{r-1} (r-1)! (m + r p sqrt(2 m))/(2 m)^{r/2}.
            for r in range(1, j + 1):
                scale = math.comb(j - 1, r - 1) * 2 ** (r - 1) * math.factorial(r - 1)
                if r > 1:
                    count[j] += scale * m * (2 * m) ** (-r / 2) * count[j - r]
                of_p = scale * r * (2 * m) ** ((1 - r) / 2)
                count[j, 1:] += of_p * count[j - r, :-1]
        return normal, count

    @cached_property
    def _cumulants(self) -> list[Polynomial]:
        """Of one standardised point, by order i + 2 j of s^i p^j.

        That is log E exp(s (T - mu)/sigma) 0F1(m/2; p' S): E over w of exp(<theta, w S>) is
        0F1(m/2; |theta|^2 S^2/4), here with S^2 = 1 - T^2 in units of v.
        """
        mean, spread, v = self.moments
        m = self.across
        most = ORDERS + 2
        shape = (most + 1, most // 2 + 1)
        t = (self.t - mean) / spread
        square = (1 - self.t**2) / (m * v)
        moment = [np.zeros(shape) for _ in range(most + 1)]
        for i in range(most + 1):
            for j in range((most - i) // 2 + 1):
                term = math.sqrt(2 * m) ** j * (m / 4) ** j
                term = term / math.factorial(i) / math.factorial(j)
                for h in range(j):
                    term /= m / 2 + h
                moment[i + 2 * j][i, j] = term * float(self.weights @ (t**i * square**j))
        # d log_d = d moment_d - sum_e e log_e moment_{d-e}
        log = [np.zeros(shape)]
        for d in range(1, most + 1):
            log.append(moment[d].copy())
            for e in range(1, d):
                log[d] -= e / d * _product(log[e], moment[d - e], shape)
        return log

    @cached_property
    def _terms(self) -> tuple[list[Polynomial], list[Polynomial]]:
        """a_1, ..., a_ORDERS and b_1, ..., in x and u.

        At each order E exp(s a + <theta, y> b), expanded, is the target's coefficient: s times the
        transform of a_k, plus that of <theta, y> b_k, is what the terms before leave. What holds no
        s goes to b_k.
        """
        normal, count = self._duals
        root = math.sqrt(2 * self.across)
        cumulants = [_grown(cumulant) for cumulant in self._cumulants[3:]]
        target = _exponential([np.zeros(SHAPE), *cumulants])
        along: list[Polynomial] = []
        length: list[Polynomial] = []
        expansion = {(0, 0, 0): _grown(np.ones((1, 1)))}
        for order in range(1, ORDERS + 1):
            rest = target[order].copy()
            for (i, ell), f in _lower_terms(expansion, along, length, order).items():
                expansion[i, ell, order] = f
                rest[i:] -= self._transform(f, ell)[: SHAPE[0] - i]
            keep = order + 2
            # The transform g of b_k solves p (root g + 2 g') = what holds no s.
            g = np.zeros(keep + 1)
            for j in reversed(range(keep)):
                g[j] = (rest[0, j + 1] - 2 * (j + 1) * g[j + 1]) / root
            rows = normal[:keep, :keep].T
            columns = count[:keep, :keep].T
            length.append(solve_triangular(columns, g[:keep])[None, :])
            in_x = solve_triangular(rows, rest[1 : keep + 1, :keep])
            along.append(solve_triangular(columns, in_x.T).T)
            expansion[1, 0, order] = _grown(along[-1])
            expansion[0, 1, order] = _grown(length[-1])
        return along, length

    def _transform(self, f: Polynomial, power: int) -> Polynomial:
        """Of <theta, y>^power f(x, u).

        That of f, then so many falling factors of theta's derivative along itself.
        """
        normal, count = self._duals
        g = normal.T @ f @ count[: SHAPE[1], : SHAPE[1]]
        degrees = 2 * np.arange(SHAPE[1])
        for h in range(power):
            times_p = np.pad(g, ((0, 0), (1, 0)))[:, :-1]
            g = math.sqrt(2 * self.across) * times_p + (degrees - h) * g
        return g


@lru_cache(maxsize=64)
def uniform_sums(dim: int) -> AxialSums:
    """Of uniform points of the unit sphere in R^dim, dim >= 2."""
    size, weights = coordinate_size(dim)
    both = np.concatenate([weights, weights]) / 2
    return AxialSums(np.concatenate([-size, size]), both, dim)


def directed(axes: Tensor, sums: Sums, draws: Draws) -> Tensor:
    """sum_x A_x u_x + rho_x w_x, w_x uniform on the sphere across u_x: (*shape, D), float64.

    D normals for each of the m axes.

    Args:
        axes: u, unit vectors, (m, D) or (*batch, m, D).
        sums: A and rho, (*shape, m) each, the batch last in shape.
        draws: of the normals.
    """
    *batch, m, dim = axes.shape
    shape = sums[0].shape[:-1]
    repetitions = math.prod(shape) // math.prod(batch)
    along = sums[0].reshape(repetitions, *batch, m)
    across = sums[1].reshape(repetitions, *batch, m)
    total = weighted_sum(along, axes)
    at_once = max(1, NUMBERS_AT_ONCE // max(1, math.prod(shape) * dim))
    for u, rho in zip(axes.split(at_once, -2), across.split(at_once, -1), strict=True):
        normals = draws.normal((repetitions, *u.shape))
        # What is left of a normal vector has a uniform direction across u.
        normals -= (normals * u).sum(-1, keepdim=True) * u
        lengths = torch.linalg.vector_norm(normals, dim=-1).clamp_min(TINY)
        total += torch.einsum("...m,...md->...d", rho / lengths, normals)
    return total.reshape(*shape, dim)


def add(dim: int, first: Sums, second: Sums, draws: Draws) -> Sums:
    """A u + rho w plus A' u + rho' w', w and w' independent and uniform."""
    along, rho = first
    other_along, other = second
    normals = draws.normal(tuple(rho.shape))
    cosine = uniform_coordinate(max(dim - 1, 1), normals)[0]  # <w, w'>
    square = rho * rho + other * other + 2 * rho * other * cosine
    # Opposite steps of one length cancel: rounding may leave less than 0.
    return along + other_along, square.clamp_min(0).sqrt()


def _tree(dim: int, sizes: Tensor, known: Tensor, users: Sums, draws: Draws) -> Sums:
    """Sums over consecutive users, sizes[x] >= 1 of them for each x. known: sizes on the CPU."""
    along, across = users
    while bool((known > 1).any()):
        pairs = (sizes + 1) // 2
        known = (known + 1) // 2
        total = int(known.sum())
        # For each pair: its x's first and last user, and the pairs before that x's.
        end = sizes.cumsum(0)
        ends = torch.stack([end - sizes, end - 1, pairs.cumsum(0) - pairs])
        start, last, skipped = ends.repeat_interleave(pairs, dim=1, output_size=total)
        first = start + 2 * (torch.arange(total, device=sizes.device) - skipped)
        second = torch.minimum(first + 1, last)
        paired = first < last  # else the last user of an odd number: nothing is added
        others = (along[second] * paired, across[second] * paired)
        along, across = add(dim, (along[first], across[first]), others, draws)
        sizes = pairs
    return along, across


def _lower_terms(
    expansion: dict[tuple[int, int, int], Polynomial],
    along: list[Polynomial],
    length: list[Polynomial],
    order: int,
) -> dict[tuple[int, int], Polynomial]:
    """Of exp(s a + w b) at this order, what the orders before give: coefficients of s^i w^l.

    i + l > 1. expansion: of s^i w^l at each order k before, by (i, l, k). Each is a polynomial in x
    and u.
    """
    terms = {}
    for i in range(order + 1):
        for ell in range(order // 2 + 1):
            # s^i = s^(i - 1) s/i, and so for w: one factor less is known.
            lower = (i - 1, ell) if i else (0, ell - 1)
            series = along if i else length
            total = np.zeros(SHAPE)
            for h, term in enumerate(series, start=1):
                rest = expansion.get((*lower, order - h))
                if rest is not None:
                    total += _product(term, rest, SHAPE) / (i or ell)
            if total.any():
                terms[i, ell] = total
    return terms


def _grown(f: Polynomial) -> Polynomial:
    rows, columns = f.shape
    return np.pad(f, [(0, SHAPE[0] - rows), (0, SHAPE[1] - columns)])


def _exponential(log: list[Polynomial]) -> list[Polynomial]:
    """Coefficients of exp(sum_k log[k] e^k), log[0] = 0."""
    out = [_grown(np.ones((1, 1)))]
    for d in range(1, len(log)):
        out.append(np.zeros(SHAPE))
        for e in range(1, d + 1):
            out[d] += e / d * _product(log[e], out[d - e], SHAPE)
    return out


def _value(f: Polynomial, x: Tensor, u: Tensor) -> Tensor:
    """f(x, u)."""
    total = torch.zeros_like(x)
    for row in f[::-1]:
        inner = torch.zeros_like(u)
        for coefficient in row[::-1]:
            inner = inner * u + float(coefficient)
        total = total * x + inner
    return total


def _product(f: Polynomial, g: Polynomial, shape: tuple[int, ...]) -> Polynomial:
    """f(x, u) g(x, u), so many of its coefficients."""
    total = np.zeros(shape)
    for i, j in np.argwhere(f):
        part = total[i : i + g.shape[0], j : j + g.shape[1]]
        part += f[i, j] * g[: part.shape[0], : part.shape[1]]
    return total
