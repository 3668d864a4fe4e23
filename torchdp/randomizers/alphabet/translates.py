"""Patterns and all their translates: strategies for workloads that a group leaves as they are.

On a group of K points, with patterns p_b in [e^-epsilon, 1]^K and shares u_b, the output (b, s) has
the chance u_b p_b[x - s]/|p_b|_1: private, with columns that add up to 1, whatever p and u. Under
even types M = Q^T D^{-1} Q has the eigenvalues S = K sum_b u_b |F p_b|^2/|p_b|_1^2 in the group's
characters. Where translations leave the Gram matrix G of a workload as it is, averaging over them
loses nothing, for tr(G M^{-1}) is convex in M. So Adam descends on the logits of p and u against
log tr(G M^{-1}), without a constraint; then p is rounded, and the shares descend alone.

Shifts of a circle are for ordered types, of a torus for types on a grid. The k types lie on a
circle of K points, with room beyond them; M is the block of the circulant at their places. A torus
whose sides have no common divisor is such a circle too (Chinese remainders): the point (i, j) is
the number that leaves the remainders i and j. The descent begins where neighbouring types are
merged to at most 64, from arcs (boxes of a grid) and from noise with a falling spectrum; then each
logit is repeated twice in each direction, with noise, and descends again. On up to 256 types M is
factored, beyond tr(G M^{-1}) is estimated from random signs and conjugate gradients with Fourier
transforms. The room beyond the types is tried at three sizes, of which the best on at most 256
merged types goes on.

Translates x -> x xor s of bit strings are for sums of parities, in which G and M are diagonal: all
types have one variance. They begin as thresholds of random linear and quadratic forms in the signs
of the bits.
Source: McKenna, Maity, Mazumdar, Miklau (2020) for the problem; Kingma, Ba (2015) for Adam; Good
(1958) for the circle of a torus; Hutchinson (1990) for the estimate of a trace; T. Chan (1988) for
circulant preconditioners of Toeplitz systems.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchdp.descent import Adam
from torchdp.randomizers.alphabet.randomized_response import walsh_hadamard
from torchdp.randomizers.alphabet.strategy_search import FLOOR, gram_root
from torchdp.threads import one_thread

COARSEST, FACTORED = 64, 256  # types at which the search begins; up to which M is factored
PADS = (1 / 8, 1 / 4, 1 / 2)  # room beyond the types, of their number in each direction
PATTERNS = 8
# sizes of the starts, in K/(e^epsilon + 1)
ARCS, CLOUDS = (1.0, 2.0, 4.0, 8.0, 3.0, 6.0), (1.0, 2.0, 1.5, 4.0)
# of a prior: a share's deviation, of the mean one; length, of the types
ROUGH = ((1.0, 1 / 8), (2.0, 1 / 32))
RIDGE = 1e-12  # of the diagonal: keeps a singular M apart from rounding
PROBES, ITERATIONS, RESIDUAL = 8, 60, 1e-4
KRONECKER = 1e-9  # of the largest entry of a Gram matrix: what its factors may miss
Grid = tuple[int, ...]
FLIPPED = 4  # patterns
# sizes of the starts, in K/(e^epsilon + 1), and the effort
FORMS, STARTS, STEPS = (1.0, 2.0, 4.0, 1.0), 8, 400
FIRST, LAST = 0.1, 0.005  # learning rates
EXTREME = 8.0  # logit
SETTLING = 30  # steps of the shares once the patterns are rounded
DIAGONAL = 1e-9  # what G may have beside its diagonal, of its largest entry
LEAST = 1e-6  # share of a pattern that is dropped

# Of R searches side by side: logits (R, B, K) of entries, logarithms (R, B) of shares.
Patterns = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Group(ABC):
    """K points and a workload on them; low = e^-epsilon."""

    low: float
    generator: torch.Generator

    @abstractmethod
    def power(self, q: Tensor) -> Tensor:
        """|F q|^2: (R, B, K) -> (R, B, characters)."""

    @abstractmethod
    def price(self, spectrum: Tensor) -> Tensor:
        """tr(G M^{-1}) and its gradient, for the eigenvalues S: (R, characters) -> (R,)."""

    @torch.enable_grad()
    def descend(
        self, found: Patterns, steps: range, total: int, frozen: bool = False
    ) -> tuple[Patterns, Tensor]:
        """Adam on the patterns and shares, or the shares of rounded patterns (frozen); the last
        prices, (R,).
        """
        logits, shares = (each.clone().requires_grad_() for each in found)
        adam = Adam([shares] if frozen else [logits, shares], (0.9, 0.99))
        recent = shares.new_zeros(len(shares))
        for step in steps:
            ends = torch.where(logits > 0, EXTREME, -EXTREME) if frozen else logits
            p = self.low + (1 - self.low) * ends.sigmoid()
            power = self.power(p / p.sum(-1, keepdim=True))
            value = self.price(p.shape[-1] * (shares.softmax(-1)[..., None] * power).sum(-2))
            adam.step(value.clamp_min(1e-300).log().sum(), FIRST + (LAST - FIRST) * step / total)
            recent = 0.8 * recent + 0.2 * value.detach() / (1 - 0.8 ** (step - steps.start + 1))
            logits.detach().clamp_(-EXTREME, EXTREME)
        return (logits.detach(), shares.detach()), recent

    def best(self, found: Patterns, steps: int) -> Patterns:
        """Several starts, of which the best third take more than a quarter of the steps; the best
        first.
        """
        for part in (range(steps // 4), range(steps // 4, steps)):
            found, value = self.descend(found, part, steps)
            index = value.argsort()[: -(-len(value) // 3)] if part.start == 0 else value.argsort()
            found = found[0][index], found[1][index]
        return found

    def rounded(self, found: Patterns) -> Patterns:
        """(patterns of zeros and ones, their shares) of the best search, those that say nothing
        left out.
        """
        (logits, shares), value = self.descend(found, range(SETTLING), SETTLING, frozen=True)
        best = value.nan_to_num(math.inf).argmin()
        patterns, shares = logits[best] > 0, shares[best].softmax(-1)
        kept = (shares > LEAST) & patterns.any(1) & ~patterns.all(1)
        return patterns[kept], shares[kept]

    def normal(self, *shape: int) -> Tensor:
        """Standard normals, float64."""
        device = self.generator.device
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=self.generator)

    def even(self, logits: list[Tensor], starts: int) -> Patterns:
        """Equal shares, as many patterns in each start."""
        each = torch.stack(logits).unflatten(0, (starts, -1))
        return each, each.new_zeros(each.shape[:2])


@dataclass(frozen=True)
class BitStrings(Group):
    """Z_2^d: needed (k - 1,), the diagonal of G in the orthonormal basis of parities but for the
    constant.
    """

    needed: Tensor

    def power(self, q: Tensor) -> Tensor:
        return walsh_hadamard(q.flatten(0, 1)).view_as(q).square()

    def price(self, spectrum: Tensor) -> Tensor:
        return (self.needed / spectrum[:, 1:].clamp_min(1e-300)).sum(-1)

    def starts(self, count: int) -> Patterns:
        """Thresholds of random linear and quadratic forms, in turns."""
        types = torch.arange(len(self.needed) + 1, device=self.needed.device)
        bits = len(self.needed).bit_length()
        signs = 1 - 2 * ((types[:, None] >> torch.arange(bits, device=types.device)) & 1).double()
        logits = []
        for b in range(count * FLIPPED):
            form = signs @ self.normal(bits)
            if b % 2:
                form = form + ((signs @ self.normal(bits, bits)) * signs).sum(1) / 2
            share = min(0.5, FORMS[b % FLIPPED] / (1 / self.low + 1))
            height = (form - form.quantile(1 - share)) / form.std().clamp_min(1e-9)
            logits.append((3 * height).clamp(-2, 2) + 0.2 * self.normal(len(types)))
        return self.even(logits, count)


def flips(W: Tensor, epsilon: float, generator: torch.Generator) -> Tensor | None:
    """A matrix Q of at most 4 k outputs, (outputs, k), of small variance; None where G is not
    diagonal.

    W: (m, k), k a power of 2, rows of mean 0, not zero; what it does not ask for keeps a finite
    variance. Unchecked.
    """
    m, k = W.shape
    gram = walsh_hadamard(walsh_hadamard(W.mT @ W / m).mT) / k
    needed = gram.diagonal()
    if float((gram - needed.diag()).abs().max()) > DIAGONAL * float(needed.max()):
        return None
    group = BitStrings(math.exp(-epsilon), generator, needed[1:] + FLOOR * needed.mean())
    patterns, shares = group.rounded(group.best(group.starts(STARTS), STEPS))
    p = group.low + (1 - group.low) * patterns.to(W)
    types = torch.arange(k, device=W.device)
    weights = shares / shares.sum() / p.sum(-1)
    return (weights[:, None, None] * p[:, types[:, None] ^ types]).flatten(0, 1)  # (patterns, s, x)


@dataclass(frozen=True)
class Torus(Group):
    """Z_K, K the product of ``sizes``; rows (m, k), of mean 0, on its corner of ``grid`` types: G =
    rows^T rows.

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
        """So many neighbouring types are one: as many rows as types where M is factored.

        users: for the posterior variance after so many reports, M + C^-1/users in the place of M, C
        the covariance of a rough histogram.
        """
        rows = W.unflatten(1, grid)
        for axis, many in enumerate(grid, 1):
            types = torch.arange(-(-many // width) * width, device=W.device).clamp_max(many - 1)
            rows = rows.index_select(axis, types).unflatten(axis, (-1, width)).mean(axis + 1)
        grid = tuple(rows.shape[1:])
        rows = rows.flatten(1)
        rows = rows - rows.mean(1, keepdim=True)
        k = rows.shape[1]
        rows = gram_root(rows) if k <= FACTORED else rows / math.sqrt(len(rows))
        known = None if users is None else torch.linalg.inv(users * rough(k, rows))
        return cls(
            low, generator, rows, grid, coprime(tuple(-(-size // width) for size in sizes)), known
        )

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
        """Arcs or boxes with rough edges and thresholded noise of spectrum 1/f, of about
        K/(e^epsilon + 1) ones.
        """
        device, logits = self.rows.device, []
        axes = [torch.arange(size, dtype=torch.float64, device=device) for size in self.sizes]
        waves = torch.stack(
            torch.meshgrid(*(torch.minimum(a, len(a) - a) for a in axes), indexing="ij")
        )
        away = torch.stack(
            torch.meshgrid(*((a / len(a) - 0.5).abs() for a in axes), indexing="ij")
        ).amax(0)
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
                logits.append(
                    height.flatten()[self.order].clamp(-2, 2) + 0.3 * self.normal(self.size)
                )
        return self.even(logits, count)

    def refined(self, found: Patterns, coarse: "Torus") -> Patterns:
        """From half as many points a side: without the noise the new frequencies would stay
        empty.
        """
        logits = found[0].clamp(-2, 2)[..., coarse.order.argsort()].unflatten(-1, coarse.sizes)
        for axis, (few, many) in enumerate(zip(coarse.sizes, self.sizes, strict=True)):
            logits = logits.index_select(
                axis + 2, (torch.arange(many).to(self.order) // 2).clamp_max(few - 1)
            )
        logits = logits.flatten(2)[..., self.order]
        return logits + 0.4 * self.normal(*logits.shape), found[1]

    def _factored(self, spectrum: Tensor, w: Tensor) -> Tensor:
        """M^{-1} w for each spectrum: (R, characters), (P, k) -> (R, P, k)."""
        M = torch.fft.irfft(spectrum, n=self.size)[
            :, (self.place[:, None] - self.place) % self.size
        ]
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
        """The same by conjugate gradients: the inverse circulant's corner is near the corner's
        inverse.
        """

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
    """(patterns, shares) of the best search over the torus's sizes, judged on at most 256 merged
    types; the places.

    W: (m, k), rows of mean 0. users: of a fit, on at most 256 types. None: no patterns tell all
    types apart. Unchecked.
    """
    low, k = math.exp(-epsilon), W.shape[1]
    halvings, judged = (
        max(0, math.ceil(math.log2(k / most) / len(grid))) for most in (COARSEST, FACTORED)
    )

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
        torus, found = finer(
            torus, (logits[:1], shares[:1]), sizes, range(halvings - 1, judged - 1, -1)
        )
        value = (
            judge(torus.rounded(found), torus)
            if users is None
            else torus.variance(torus.rounded(found))
        )
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
    """The sides (a, b) of a grid of types on which the queries' Gram matrix is a Kronecker product;
    None: no such.
    """
    gram, k = W.mT @ W, W.shape[1]
    for a in sorted(
        (side for side in range(2, k) if k % side == 0), key=lambda side: side + k // side
    ):
        apart = gram.view(a, k // a, a, k // a).transpose(1, 2).reshape(a * a, -1)  # of rank 1
        row, column = divmod(int(apart.abs().argmax()), apart.shape[1])
        product = apart[:, column, None] * apart[row] / apart[row, column]
        if float((product - apart).abs().max()) <= KRONECKER * float(apart.abs().max()):
            return a, k // a
    return None


def rough(k: int, like: Tensor) -> Tensor:
    """Covariance of a histogram on k ordered types, (k, k): the mean of those of a smoother and of
    a rougher one.
    """
    types = torch.arange(k).to(like)
    apart = (types[:, None] - types).abs() / k
    return torch.stack(
        [(size / k) ** 2 * torch.exp(-apart / length) for size, length in ROUGH]
    ).mean(0)


def signed_sums(W: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random combinations w of the queries, (count, k), with E w w^T = W^T W / count."""
    signs = torch.randint(0, 2, (count, len(W)), device=W.device, generator=generator).to(W) * 2 - 1
    return signs @ W / math.sqrt(count)
