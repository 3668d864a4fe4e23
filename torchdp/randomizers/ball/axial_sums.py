"""Sums of random points of a sphere that are symmetric about one axis: of few by a tree, of very
many at once.
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
from torchdp.protocol.records import combined
from torchdp.randomizers.ball.sphere import coordinate_size, uniform_coordinate

# Powers of n^{-1/2} that are computed, and used: the others say how far off these are.
ORDERS = 9
KEPT = 7
SHAPE = 3 * ORDERS + 3, 2 * ORDERS + 2  # coefficients of what is multiplied out
CLOSE = 1e-6  # standard deviations by which a sum may be off: 1e12 draws would be needed to see it
NUMBERS_AT_ONCE = 2**18
Sums = tuple[Tensor, Tensor]
Draw = Callable[[int], Sums]  # (T, sqrt(1 - T^2)) of so many independent users
Polynomial = np.ndarray  # coefficients [i, j], of x^i u^j or, for transforms, of s^i p^j


@dataclass(frozen=True, eq=False)
class AxialSums:
    """A u + rho w, the sum of n independent T_i u + sqrt(1 - T_i^2) w_i, w and w_i uniform on the
    unit sphere across u.

    With x normal, q chi-squared of m = dim - 1 degrees, c = u = (q - m)/sqrt(2 m), mu and sigma^2
    the moments of T, v = E (1 - T^2)/m:
        A = n mu + sigma n^{1/2} (x + a_1/n^{1/2} + a_2/n + ...),  rho = (n v q)^{1/2}
        (1 + b_2/n + ...),
    polynomials a_k in x and u, b_k in u, such that the characteristic function is right to every
    order that is kept: Cornish and Fisher's expansion, of two variables. t, weights: nodes for
    expectations of T. dim >= 2.

    With s for x and p for u, E exp(s x + <theta, y>) u^j = exp((s^2 + |theta|^2)/2) times a
    polynomial in s and p = |theta|^2/sqrt(2 m): its moments, those of a noncentral chi-squared. So
    each order is a linear equation.
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
        return mean, spread, float(self.weights @ (1 - self.t**2)) / self.across

    @cached_property
    def least(self) -> int:
        """From so many points on each of the two first terms left out is below 1e-6 in root mean
        square.
        """
        found = 2
        for order in range(KEPT, ORDERS):
            along, length = (terms[order] for terms in self._terms)
            error = (
                math.hypot(self._size(along), math.sqrt(2 * self.across) * self._size(length))
                / CLOSE
            )
            found = max(found, math.ceil(error ** (2 / (order + 1))))
        return found

    def _size(self, f: Polynomial) -> float:
        """(E f(x, u)^2)^{1/2}."""
        square = _product(f, f, (SHAPE[0], SHAPE[0]))
        normal, count = self._duals
        return math.sqrt(max(0.0, float(normal[:, 0] @ square @ count[:, 0])))

    def sums(self, counts: Tensor, draw: Draw, draws: Draws) -> Sums:
        """(A, rho) of so many points, for each of ``counts``.

        Two such sums add up to one with A + A' and (rho^2 + rho'^2 + 2 rho rho' t)^(1/2), t = <w,
        w'> a coordinate of a uniform point of the sphere in R^{dim - 1}: points are added along a
        binary tree, at one normal besides the draw of T for each, whatever the dimension. From
        ``least`` points on the sum is drawn from its distribution, to 1e-6 standard deviations:
        beyond, the cost does not grow with the counts.
        """
        shape, left = counts.shape, counts.flatten()
        along = torch.zeros(left.shape, dtype=torch.float64, device=left.device)
        across, many = torch.zeros_like(along), left >= self.least
        if many.any():
            along[many], across[many] = self.draw(left[many], draws)
        left = torch.where(many, 0, left)
        while len(held := left.nonzero()[:, 0]):
            some = left[held].clamp_max(max(1, NUMBERS_AT_ONCE // len(held)))
            known = some.cpu()  # of sizes known here nothing is asked again
            part = _tree(self.dim, some, known, draw(int(known.sum())), draws)
            along[held], across[held] = add(self.dim, (along[held], across[held]), part, draws)
            left[held] -= some
        return along.view(shape), across.view(shape)

    def draw(self, counts: Tensor, draws: Draws) -> Sums:
        """(A, rho) of so many points, float64 of the shape of ``counts``; ``counts`` >=
        ``least``.
        """
        (mean, spread, across), (along, length) = self.moments, self._terms
        n = counts.double()
        x, q = draws.normal(tuple(n.shape)), 2 * draws.gamma(torch.full_like(n, self.across / 2))
        u, root = (q - self.across) / math.sqrt(2 * self.across), n.rsqrt()
        a, b = torch.zeros_like(n), torch.zeros_like(n)
        for k in reversed(range(KEPT)):
            a, b = root * (a + _value(along[k], x, u)), root * (b + _value(length[k], x, u))
        return n * mean + spread * n.sqrt() * (x + a), (n * across * q).sqrt() * (1 + b).abs()

    @cached_property
    def _duals(self) -> tuple[np.ndarray, np.ndarray]:
        """Row j: the transform of x^j as a polynomial in s, of u^j as one in p."""
        size, m = SHAPE[0], self.across
        normal, count = np.zeros((size, size)), np.zeros((size, size))
        normal[0, 0] = count[0, 0] = 1
        for j in range(1, size):
            normal[j, 1:] = normal[j - 1, :-1]
            if j > 1:
                normal[j] += (j - 1) * normal[j - 2]
            # moments from cumulants: kappa_r = 2^{r-1} (r-1)! (m + r p sqrt(2 m))/(2 m)^{r/2}
            for r in range(1, j + 1):
                scale = math.comb(j - 1, r - 1) * 2 ** (r - 1) * math.factorial(r - 1)
                if r > 1:
                    count[j] += scale * m * (2 * m) ** (-r / 2) * count[j - r]
                count[j, 1:] += scale * r * (2 * m) ** ((1 - r) / 2) * count[j - r, :-1]
        return normal, count

    @cached_property
    def _cumulants(self) -> list[Polynomial]:
        """Of one standardised point, by order i + 2 j of s^i p^j: log E exp(s (T - mu)/sigma)
        0F1(m/2; p' S).

        E over w of exp(<theta, w S>) is 0F1(m/2; |theta|^2 S^2/4), here with S^2 = 1 - T^2 in units
        of v.
        """
        (mean, spread, v), m, most = self.moments, self.across, ORDERS + 2
        t, square = (self.t - mean) / spread, (1 - self.t**2) / (m * v)
        phi = [np.zeros((most + 1, most // 2 + 1)) for _ in range(most + 1)]
        for i in range(most + 1):
            for j in range((most - i) // 2 + 1):
                term = math.sqrt(2 * m) ** j * (m / 4) ** j / math.factorial(i) / math.factorial(j)
                for h in range(j):
                    term /= m / 2 + h
                phi[i + 2 * j][i, j] = term * float(self.weights @ (t**i * square**j))
        log = [np.zeros_like(each) for each in phi]  # d log_d = d phi_d - sum e log_e phi_{d-e}
        for d in range(1, most + 1):
            log[d] += phi[d]
            for e in range(1, d):
                log[d] -= e / d * _product(log[e], phi[d - e], phi[0].shape)
        return log

    @cached_property
    def _terms(self) -> tuple[list[Polynomial], list[Polynomial]]:
        """a_1, ..., a_ORDERS and b_1, ..., in x and u.

        At each order E exp(s a + <theta, y> b), expanded, is the target's coefficient: s times the
        transform of a_k, plus that of <theta, y> b_k, is what the terms before leave. What holds no
        s goes to b_k.
        """
        (normal, count), root = self._duals, math.sqrt(2 * self.across)
        want = _exponential(
            [np.zeros(SHAPE), *(_grown(self._cumulants[d]) for d in range(3, ORDERS + 3))]
        )
        along: list[Polynomial] = []
        length: list[Polynomial] = []
        expansion = {(0, 0, 0): _grown(np.ones((1, 1)))}
        for order in range(1, ORDERS + 1):
            rest = want[order].copy()
            for (i, ell), f in _lower_terms(expansion, along, length, order).items():
                expansion[i, ell, order] = f
                rest[i:] -= self._transform(f, ell)[: SHAPE[0] - i]
            keep = order + 2
            g = np.zeros(keep + 1)  # p (root g + 2 g') = what holds no s
            for j in reversed(range(keep)):
                g[j] = (rest[0, j + 1] - 2 * (j + 1) * g[j + 1]) / root
            rows, columns = normal[:keep, :keep].T, count[:keep, :keep].T
            length.append(solve_triangular(columns, g[:keep])[None, :])
            along.append(
                solve_triangular(columns, solve_triangular(rows, rest[1 : keep + 1, :keep]).T).T
            )
            expansion[1, 0, order] = _grown(along[-1])
            expansion[0, 1, order] = _grown(length[-1])
        return along, length

    def _transform(self, f: Polynomial, power: int) -> Polynomial:
        """Of <theta, y>^power f(x, u): of f, then so many falling factors of theta's derivative
        along itself.
        """
        normal, count = self._duals
        g = normal.T[: SHAPE[0], : SHAPE[0]] @ f @ count[: SHAPE[1], : SHAPE[1]]
        for h in range(power):
            up = np.pad(g, ((0, 0), (1, 0)))[:, :-1]
            g = math.sqrt(2 * self.across) * up + (2 * np.arange(SHAPE[1]) - h) * g
        return g


@lru_cache(maxsize=64)
def uniform_sums(dim: int) -> AxialSums:
    """Of uniform points of the unit sphere in R^dim, dim >= 2."""
    size, weights = coordinate_size(dim)
    return AxialSums(np.concatenate([-size, size]), np.concatenate([weights, weights]) / 2, dim)


def directed(axes: Tensor, sums: Sums, draws: Draws) -> Tensor:
    """sum_x A_x u_x + rho_x w_x, w_x uniform on the sphere orthogonal to u_x: D normals for each.

    axes u: (m, D), unit vectors, or (*batch, m, D); sums: (*shape, m) each, the batch last in
    shape. Returns (*shape, D), float64.
    """
    (*own, m, dim), shape = axes.shape, sums[0].shape[:-1]
    along, across = (each.reshape(math.prod(shape) // math.prod(own), *own, m) for each in sums)
    total = combined(along, axes)
    at_once = max(1, NUMBERS_AT_ONCE // max(1, math.prod(shape) * dim))
    for u, rho in zip(axes.split(at_once, -2), across.split(at_once, -1), strict=True):
        normals = draws.normal((len(along), *u.shape))
        normals -= (normals * u).sum(-1, keepdim=True) * u
        lengths = torch.linalg.vector_norm(normals, dim=-1).clamp_min(
            torch.finfo(torch.float64).tiny
        )
        total += torch.einsum("...m,...md->...d", rho / lengths, normals)
    return total.reshape(*shape, dim)


def add(dim: int, first: Sums, second: Sums, draws: Draws) -> Sums:
    """A u + rho w plus A' u + rho' w', w and w' independent and uniform."""
    rho, other = first[1], second[1]
    t = uniform_coordinate(max(dim - 1, 1), draws.normal(tuple(rho.shape)))[0]
    return first[0] + second[0], (rho * rho + other * other + 2 * rho * other * t).clamp_min(
        0
    ).sqrt()


def _tree(dim: int, sizes: Tensor, known: Tensor, users: Sums, draws: Draws) -> Sums:
    """Sums over consecutive users, sizes[x] >= 1 of them for each x. known: the sizes on the
    CPU.
    """
    along, across = users
    while bool((known > 1).any()):
        pairs, known = (sizes + 1) // 2, (known + 1) // 2
        total = int(known.sum())
        # for each pair: its x's first and last user, and the pairs before that x's
        ends, before = sizes.cumsum(0), pairs.cumsum(0) - pairs
        ends = torch.stack([ends - sizes, ends - 1, before])
        start, last, skipped = ends.repeat_interleave(pairs, dim=1, output_size=total)
        first = start + 2 * (torch.arange(total, device=sizes.device) - skipped)
        second, paired = torch.minimum(first + 1, last), first < last
        others = along[second] * paired, across[second] * paired
        along, across = add(dim, (along[first], across[first]), others, draws)
        sizes = pairs
    return along, across


def _lower_terms(
    expansion: dict[tuple[int, int, int], Polynomial],
    along: list[Polynomial],
    length: list[Polynomial],
    order: int,
) -> dict[tuple[int, int], Polynomial]:
    """Of exp(s a + w b) at this order, the coefficients of s^i w^l that the orders before give, i +
    l > 1.

    expansion: of s^i w^l at each order k before, by (i, l, k). Each is a polynomial in x and u.
    """
    terms = {}
    for i in range(order + 1):
        for ell in range(order // 2 + 1):
            lower, series, share = ((i - 1, ell), along, i) if i else ((0, ell - 1), length, ell)
            total = np.zeros(SHAPE)
            for h, term in enumerate(series, start=1):
                rest = expansion.get((*lower, order - h))
                if rest is not None:
                    total += _product(term, rest, SHAPE) / share
            if total.any():
                terms[i, ell] = total
    return terms


def _grown(f: Polynomial) -> Polynomial:
    return np.pad(f, [(0, most - held) for most, held in zip(SHAPE, f.shape, strict=True)])


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


def _product(one: Polynomial, other: Polynomial, shape: tuple[int, ...]) -> Polynomial:
    """one(x, u) other(x, u), so many of its coefficients."""
    total = np.zeros(shape)
    for i, j in np.argwhere(one):
        part = total[i : i + other.shape[0], j : j + other.shape[1]]
        part += one[i, j] * other[: part.shape[0], : part.shape[1]]
    return total
