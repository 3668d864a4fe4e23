"""Shifts of a circle, for ordered types, or of a torus, for types on a grid: the search of their patterns.

The k types lie on a circle of K points, with room beyond them; M is the block of the circulant at
their places. A torus whose sides have no common divisor is such a circle too (Chinese remainders):
the point (i, j) is the number that leaves the remainders i and j. The descent of ``translates``
begins where neighbouring types are merged to at most 64, from arcs (boxes of a grid) and from noise
with a falling spectrum; then each logit is repeated twice in each direction, with noise, and descends
again. On up to 256 types M is factored, beyond tr(G M^{-1}) is estimated from random signs and
conjugate gradients with Fourier transforms. The room beyond the types is tried at three sizes, of
which the best on at most 256 merged types goes on.
Source: see ``translates``; Good (1958) for the circle of a torus; Hutchinson (1990) for the estimate
of a trace; T. Chan (1988) for circulant preconditioners of Toeplitz systems.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.randomizers.alphabet.strategy_search import FLOOR
from torchdp.randomizers.alphabet.translates import Group, Patterns
from torchdp.threads import one_thread

COARSEST, FACTORED = 64, 256  # types at which the search begins; up to which M is factored
PADS = (1 / 8, 1 / 4, 1 / 2)  # room beyond the types, of their number in each direction
PATTERNS = 8
ARCS, CLOUDS = (1.0, 2.0, 4.0, 8.0, 3.0, 6.0), (1.0, 2.0, 1.5, 4.0)  # sizes of the starts, in K/(e^epsilon + 1)
ROUGH = ((1.0, 1 / 8), (2.0, 1 / 32))  # of a prior: a share's deviation, of the mean one; length, of the types
RIDGE = 1e-12  # of the diagonal: keeps a singular M apart from rounding
PROBES, ITERATIONS, RESIDUAL = 8, 60, 1e-4
KRONECKER = 1e-9  # of the largest entry of a Gram matrix: what its factors may miss
Grid = tuple[int, ...]


@dataclass(frozen=True)
class Torus(Group):
    """Z_K, K the product of ``sizes``; rows (m, k), of mean 0, on its corner of ``grid`` types: G = rows^T rows.

    known: what is added to M, (k, k).
    """

    rows: Tensor
    grid: Grid
    sizes: Grid
    known: Tensor | None = None

    @classmethod
    def merged(
        cls,
        W: Tensor,
        low: float,
        generator: torch.Generator,
        grid: Grid,
        sizes: Grid,
        width: int,
        users: int | None,
    ) -> "Torus":
        """So many neighbouring types are one: at most twice as many rows as types where M is factored.

        users: for the posterior variance after so many reports, M + C^-1/users in the place of M, C the covariance of a
        rough histogram.
        """
        rows = W.unflatten(1, grid)
        for axis, many in enumerate(grid, 1):
            types = torch.arange(-(-many // width) * width, device=W.device).clamp_max(many - 1)
            rows = rows.index_select(axis, types).unflatten(axis, (-1, width)).mean(axis + 1)
        grid, rows = tuple(rows.shape[1:]), rows.flatten(1)
        rows = (rows - rows.mean(1, keepdim=True)) / math.sqrt(len(rows))
        k = rows.shape[1]
        if k <= FACTORED:
            rows = torch.linalg.qr(rows, mode="r").R if len(rows) > k else rows
            floor = math.sqrt(FLOOR / k) * float(rows.norm())
            rows = torch.cat([rows, floor * torch.eye(k, dtype=rows.dtype, device=rows.device)])
        known = None if users is None else torch.linalg.inv(users * rough(k, rows))
        return cls(low, generator, rows, grid, coprime(tuple(-(-size // width) for size in sizes)), known)

    @property
    def size(self) -> int:
        """K."""
        return math.prod(self.sizes)

    @cached_property
    def order(self) -> Tensor:
        """Which point of the box of ``sizes`` each number is, (K,)."""
        number = torch.arange(self.size, device=self.rows.device)
        point = torch.zeros_like(number)
        for size in self.sizes:
            point = point * size + number % size
        return point

    @cached_property
    def place(self) -> Tensor:
        """Which number each type is, (k,)."""
        numbers = self.order.argsort().view(self.sizes)
        for axis, many in enumerate(self.grid):
            numbers = numbers.narrow(axis, 0, many)
        return numbers.flatten()

    def spread(self, y: Tensor) -> Tensor:
        """Of the types, 0 elsewhere: (*batch, k) -> (*batch, K)."""
        full = y.new_zeros(*y.shape[:-1], self.size)
        full[..., self.place] = y
        return full

    def power(self, q: Tensor) -> Tensor:
        return torch.fft.rfft(q).abs().square()

    def price(self, spectrum: Tensor) -> Tensor:
        """From y = M^{-1} w: 2 <y, w> - <y, M y>, whose gradient in y is 0."""
        factored = self.rows.shape[1] <= FACTORED
        w = self.rows if factored else signed_sums(self.rows, PROBES, self.generator)
        y = (self._factored if factored else self._conjugate)(spectrum.detach(), w)
        power = torch.fft.rfft(self.spread(y)).abs().square().sum(-2)
        power[..., 1 : (self.size + 1) // 2] *= 2  # each frequency but 0 and K/2 stands for two
        held = 0.0 if self.known is None else (y @ self.known * y).sum((-2, -1))
        return 2 * (y * w).sum((-2, -1)) - (spectrum * power).sum(-1) / self.size - held

    def starts(self, count: int) -> Patterns:
        """Arcs or boxes with rough edges and thresholded noise of spectrum 1/f, of about K/(e^epsilon + 1) ones."""
        device, logits = self.rows.device, []
        axes = [torch.arange(size, dtype=torch.float64, device=device) for size in self.sizes]
        waves = torch.stack(torch.meshgrid(*(torch.minimum(a, len(a) - a) for a in axes), indexing="ij"))
        away = torch.stack(torch.meshgrid(*((a / len(a) - 0.5).abs() for a in axes), indexing="ij")).amax(0)
        falling = (1 + waves.norm(dim=0)) ** len(axes)
        for start in range(count):
            sizes = ARCS if start % 2 == 0 else CLOUDS
            for b in range(PATTERNS):
                ones = self.size / (1 / self.low + 1) * sizes[(start // 2 + b) % len(sizes)]
                ones = min(max(1, round(ones)), self.size - 1)
                if start % 2 == 0:
                    side = (ones / self.size) ** (1 / len(axes))  # of the box, of the torus's
                    reach = self.size ** (1 / len(axes))
                    height = reach * (side / 2 - away) / (1 + 0.15 * reach * side)
                else:
                    cloud = torch.fft.ifftn(torch.fft.fftn(self.normal(*self.sizes)) / falling).real
                    height = 3.0 * (cloud >= cloud.flatten().topk(ones).values[-1]).double() - 1.5
                logits.append(height.flatten()[self.order].clamp(-2, 2) + 0.3 * self.normal(self.size))
        return self.even(logits, count)

    def refined(self, found: Patterns, coarse: "Torus") -> Patterns:
        """From half as many points a side: without the noise the new frequencies would stay empty."""
        logits = found[0].clamp(-2, 2)[..., coarse.order.argsort()].unflatten(-1, coarse.sizes)
        for axis, (few, many) in enumerate(zip(coarse.sizes, self.sizes, strict=True)):
            logits = logits.index_select(axis + 2, (torch.arange(many).to(self.order) // 2).clamp_max(few - 1))
        logits = logits.flatten(2)[..., self.order]
        return logits + 0.4 * self.normal(*logits.shape), found[1]

    def _factored(self, spectrum: Tensor, w: Tensor) -> Tensor:
        """M^{-1} w for each spectrum: (R, characters), (P, k) -> (R, P, k)."""
        M = torch.fft.irfft(spectrum, n=self.size)[:, (self.place[:, None] - self.place) % self.size]
        M.diagonal(dim1=-2, dim2=-1).mul_(1 + RIDGE)
        if self.known is not None:
            M = M + self.known
        return torch.cholesky_solve(w.mT.expand(len(M), -1, -1), torch.linalg.cholesky_ex(M)[0]).mT

    def variance(self, found: Patterns) -> float:
        """tr(G M^{-1}) of patterns of zeros and ones and their shares."""
        patterns, shares = found
        p = self.low + (1 - self.low) * patterns.to(self.rows)
        power = self.power(p / p.sum(-1, keepdim=True))
        spectrum = self.size * (shares[:, None] / shares.sum() * power).sum(-2)
        return float(self.price(spectrum[None]))

    def _conjugate(self, spectrum: Tensor, w: Tensor) -> Tensor:
        """The same by conjugate gradients: the inverse circulant's corner is near the corner's inverse."""

        def times(factor: Tensor, y: Tensor) -> Tensor:
            moved = torch.fft.irfft(torch.fft.rfft(self.spread(y)) * factor[:, None], n=self.size)
            return moved[..., self.place]

        y, residual = torch.zeros(len(spectrum), *w.shape).to(w), w.expand(len(spectrum), -1, -1)
        inverse = 1 / spectrum
        direction = image = times(inverse, residual)
        product = (residual * image).sum(-1, keepdim=True)
        enough = RESIDUAL**2 * product
        for _ in range(ITERATIONS):
            moved = times(spectrum, direction)
            length = product / (direction * moved).sum(-1, keepdim=True)
            y, residual = y + length * direction, residual - length * moved
            image = times(inverse, residual)
            before, product = product, (residual * image).sum(-1, keepdim=True)
            if bool((product <= enough).all()):
                break
            direction = image + product / before * direction
        return y


Judge = Callable[[Patterns, Torus], float]  # the worst type's variance


@one_thread
def shifts(
    W: Tensor,
    epsilon: float,
    steps: int,
    starts: int,
    judge: Judge,
    generator: torch.Generator,
    grid: Grid,
    users: int | None = None,
) -> tuple[Patterns, Tensor] | None:
    """(patterns, shares) of the best search over the torus's sizes, judged on at most 256 merged types; the places.

    W: (m, k), rows of mean 0. users: of a fit, on at most 256 types. None: no patterns tell all types apart. Unchecked.
    """
    low, k = math.exp(-epsilon), W.shape[1]
    halvings, judged = (max(0, math.ceil(math.log2(k / most) / len(grid))) for most in (COARSEST, FACTORED))

    def finer(torus: Torus, found: Patterns, sizes: Grid, levels: range) -> tuple[Torus, Patterns]:
        for level in levels:
            coarse, torus = torus, Torus.merged(W, low, generator, grid, sizes, 2**level, users)
            found, _ = torus.descend(torus.refined(found, coarse), range(steps // 3), steps // 3)
        return torus, found

    best, least = None, math.inf
    for pad in PADS:
        sizes = tuple(many + max(1, round(pad * many)) for many in grid)
        torus = Torus.merged(W, low, generator, grid, sizes, 2**halvings, users)
        logits, shares = torus.best(torus.starts(starts), steps)
        torus, found = finer(torus, (logits[:1], shares[:1]), sizes, range(halvings - 1, judged - 1, -1))
        value = judge(torus.rounded(found), torus) if users is None else torus.variance(torus.rounded(found))
        if value < least:
            best, least = (torus, found, sizes), value
    if best is None:
        return None
    torus, found = finer(*best, range(judged - 1, -1, -1))
    return torus.rounded(found), torus.place


def coprime(sizes: Grid) -> Grid:
    """The sizes, raised until no two of them have a common divisor."""
    found: Grid = ()
    for size in sizes:
        while any(math.gcd(size, other) > 1 for other in found):
            size += 1
        found = (*found, size)
    return found


def grid_of(W: Tensor) -> Grid | None:
    """The sides (a, b) of a grid of types on which the queries' Gram matrix is a Kronecker product; None: no such."""
    gram, k = W.mT @ W, W.shape[1]
    for a in sorted((side for side in range(2, k) if k % side == 0), key=lambda side: side + k // side):
        apart = gram.view(a, k // a, a, k // a).transpose(1, 2).reshape(a * a, -1)  # of rank 1
        row, column = divmod(int(apart.abs().argmax()), apart.shape[1])
        product = apart[:, column, None] * apart[row] / apart[row, column]
        if float((product - apart).abs().max()) <= KRONECKER * float(apart.abs().max()):
            return a, k // a
    return None


def rough(k: int, like: Tensor) -> Tensor:
    """Covariance of a histogram on k ordered types, (k, k): the mean of those of a smoother and of a rougher one."""
    types = torch.arange(k).to(like)
    apart = (types[:, None] - types).abs() / k
    return torch.stack([(size / k) ** 2 * torch.exp(-apart / length) for size, length in ROUGH]).mean(0)


def signed_sums(W: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random combinations w of the queries, (count, k), with E w w^T = W^T W / count."""
    signs = torch.randint(0, 2, (count, len(W)), device=W.device, generator=generator).to(W) * 2 - 1
    return signs @ W / math.sqrt(count)
