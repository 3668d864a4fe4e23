"""Patterns and all their translates: strategies for workloads that a group leaves as they are.

On a group of K points, with patterns p_b in [e^-epsilon, 1]^K and shares u_b, the output (b, s) has
the chance u_b p_b[x - s]/|p_b|_1: private, with columns that add up to 1, whatever p and u. Under
even types M = Q^T D^{-1} Q has the eigenvalues S = K sum_b u_b |F p_b|^2/|p_b|_1^2 in the group's
characters. Where translations leave the Gram matrix G of a workload as it is, averaging over them
loses nothing, for tr(G M^{-1}) is convex in M. So Adam descends on the logits of p and u against
log tr(G M^{-1}), without a constraint; then p is rounded, and the shares descend alone.

Shifts of a circle are for ordered types, of a torus for types on a grid. The k types lie on a
circle of K points, with more points beyond them; M is the block of the circulant at their places.
A torus whose sides have no common divisor is such a circle too (Chinese remainders): the point
(i, j) is the number that leaves the remainders i and j. The descent begins where neighbouring
types are merged to at most 64, from arcs (boxes of a grid) and from noise with a falling spectrum;
then each logit is repeated twice in each direction, with noise, and descends again. On up to 256
types M is factored, beyond tr(G M^{-1}) is estimated from random signs and conjugate gradients
with Fourier transforms. The points beyond the types are tried at three sizes, of which the best on
at most 256 merged types goes on.

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

# Types at which the search begins; up to which M is factored.
COARSEST = 64
FACTORED = 256

# Points beyond the types, of their number in each direction.
PADS = (1 / 8, 1 / 4, 1 / 2)

PATTERNS = 8

# Ones of the starts on a torus, in K/(e^epsilon + 1).
ARCS = (1.0, 2.0, 4.0, 8.0, 3.0, 6.0)
CLOUDS = (1.0, 2.0, 1.5, 4.0)

# Deviations of noise: on the logits of a start, and on those that are repeated.
START_NOISE = 0.3
REFINED_NOISE = 0.4

# Deviation of a share, of the mean one, and correlation length, of the types, of a rough prior.
ROUGH = ((1.0, 1 / 8), (2.0, 1 / 32))

# Of the diagonal: keeps a singular M apart from rounding.
RIDGE = 1e-12

# Random signs of an estimated trace; steps of conjugate gradients at most, and their last residual.
PROBES = 8
ITERATIONS = 60
RESIDUAL = 1e-4

# Of the largest entry of a Gram matrix: what its factors may miss.
KRONECKER = 1e-9

# Patterns, sizes of the starts, in K/(e^epsilon + 1), starts and steps on bit strings.
FLIPPED = 4
FORMS = (1.0, 2.0, 4.0, 1.0)
STARTS = 8
STEPS = 400

# Learning rates.
FIRST = 0.1
LAST = 0.005

# Logit at which an entry counts as an end of its range.
EXTREME = 8.0

# Steps of the shares once the patterns are rounded.
SETTLING = 30

# What G may have beside its diagonal, of its largest entry.
DIAGONAL = 1e-9

# Share of a pattern that is dropped.
LEAST = 1e-6

TINY = 1e-300

Grid = tuple[int, ...]

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
        self, patterns: Patterns, steps: range, total: int, frozen: bool = False
    ) -> tuple[Patterns, Tensor]:
        """Adam on the patterns and shares; the last prices, (R,).

        Args:
            patterns: where it starts.
            steps: these of ``total``, which set the learning rate.
            total: steps of the whole descent.
            frozen: the shares alone descend, of rounded patterns.
        """
        logits = patterns[0].clone().requires_grad_()
        shares = patterns[1].clone().requires_grad_()
        adam = Adam([shares] if frozen else [logits, shares], (0.9, 0.99))
        recent = shares.new_zeros(len(shares))
        for step in steps:
            ends = torch.where(logits > 0, EXTREME, -EXTREME) if frozen else logits
            p = self.low + (1 - self.low) * ends.sigmoid()
            value = self.price(self.spectrum(p, shares.softmax(-1)))
            rate = FIRST + (LAST - FIRST) * step / total
            adam.step(value.clamp_min(TINY).log().sum(), rate)
            # A mean that forgets: the estimate of a trace is noisy.
            weight = 1 - 0.8 ** (step - steps.start + 1)
            recent = 0.8 * recent + 0.2 * value.detach() / weight
            logits.detach().clamp_(-EXTREME, EXTREME)
        return (logits.detach(), shares.detach()), recent

    def spectrum(self, p: Tensor, shares: Tensor) -> Tensor:
        """The eigenvalues S of M: (*batch, B, K), (*batch, B) of sum 1 -> (*batch, characters)."""
        power = self.power(p / p.sum(-1, keepdim=True))
        return p.shape[-1] * (shares[..., None] * power).sum(-2)

    def best(self, patterns: Patterns, steps: int) -> Patterns:
        """Several starts, the best first.

        The best third of them take more than a quarter of the steps.
        """
        quarter = steps // 4
        patterns, value = self.descend(patterns, range(quarter), steps)
        third = value.argsort()[: -(-len(value) // 3)]
        patterns = (patterns[0][third], patterns[1][third])
        patterns, value = self.descend(patterns, range(quarter, steps), steps)
        index = value.argsort()
        return patterns[0][index], patterns[1][index]

    def rounded(self, patterns: Patterns) -> Patterns:
        """Patterns of zeros and ones of the best search, and their shares.

        Those that say nothing are left out.
        """
        settled, value = self.descend(patterns, range(SETTLING), SETTLING, frozen=True)
        best = value.nan_to_num(math.inf).argmin()
        ones = settled[0][best] > 0
        shares = settled[1][best].softmax(-1)
        kept = (shares > LEAST) & ones.any(1) & ~ones.all(1)
        return ones[kept], shares[kept]

    def normal(self, *shape: int) -> Tensor:
        """Standard normals, float64."""
        device = self.generator.device
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=self.generator)

    def even(self, logits: list[Tensor], starts: int) -> Patterns:
        """Equal shares, as many patterns in each start."""
        patterns = torch.stack(logits).unflatten(0, (starts, -1))
        return patterns, patterns.new_zeros(patterns.shape[:2])


@dataclass(frozen=True)
class BitStrings(Group):
    """Z_2^d.

    needed: the diagonal of G in the orthonormal basis of parities but for the constant, (k - 1,).
    """

    needed: Tensor

    def power(self, q: Tensor) -> Tensor:
        return walsh_hadamard(q.flatten(0, 1)).view_as(q).square()

    def price(self, spectrum: Tensor) -> Tensor:
        others = spectrum[:, 1:].clamp_min(TINY)
        return (self.needed / others).sum(-1)

    def starts(self, count: int) -> Patterns:
        """Thresholds of random linear and quadratic forms, in turns."""
        bits = len(self.needed).bit_length()
        place = torch.arange(bits, device=self.needed.device)
        types = torch.arange(len(self.needed) + 1, device=self.needed.device)
        digits = (types[:, None] >> place) & 1
        signs = 1 - 2 * digits.double()
        logits = []
        for b in range(count * FLIPPED):
            form = signs @ self.normal(bits)
            if b % 2:
                squares = (signs @ self.normal(bits, bits)) * signs
                form = form + squares.sum(1) / 2
            share = min(0.5, FORMS[b % FLIPPED] / (1 / self.low + 1))
            height = (form - form.quantile(1 - share)) / form.std().clamp_min(1e-9)
            logits.append((3 * height).clamp(-2, 2) + 0.2 * self.normal(len(types)))
        return self.even(logits, count)


def parity_weights(W: Tensor) -> Tensor | None:
    """The eigenvalues of W^T W / m, one a parity, (k,); None where these are no eigenvectors.

    W: (m, k). Sums of parities and tables of marginals have them: all types are alike then, and no
    order of them means anything.
    """
    m, k = W.shape
    if k & (k - 1):
        return None
    gram = walsh_hadamard(walsh_hadamard(W.mT @ W / m).mT) / k
    weights = gram.diagonal()
    if float((gram - weights.diag()).abs().max()) > DIAGONAL * float(weights.max()):
        return None
    return weights


def flips(W: Tensor, epsilon: float, generator: torch.Generator) -> Tensor | None:
    """A matrix Q of small variance, (outputs, k), at most 4 k outputs; None: G is not diagonal.

    What W does not ask for keeps a finite variance. Unchecked.

    Args:
        W: (m, k), k a power of 2, rows of mean 0, not zero.
        epsilon: of Q.
        generator: of the starts.
    """
    k = W.shape[1]
    needed = parity_weights(W)
    if needed is None:
        return None
    group = BitStrings(math.exp(-epsilon), generator, needed[1:] + FLOOR * needed.mean())
    patterns, shares = group.rounded(group.best(group.starts(STARTS), STEPS))
    p = group.low + (1 - group.low) * patterns.to(W)
    weights = shares / shares.sum() / p.sum(-1)
    types = torch.arange(k, device=W.device)
    translates = p[:, types[:, None] ^ types]  # (patterns, s, x)
    return (weights[:, None, None] * translates).flatten(0, 1)


@dataclass(frozen=True)
class Torus(Group):
    """Z_K, with ordered types on it.

    Args:
        rows: R with G = R^T R, of mean 0, (m, k).
        grid: the types, a corner of the torus.
        sizes: its sides, of product K.
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
        """``width`` neighbouring types are one: as many rows as types where M is factored.

        users: for the posterior variance after so many reports, M + C^-1/users in the place of M, C
        the covariance of a rough histogram.
        """
        rows = W.unflatten(1, grid)
        for axis, side in enumerate(grid, 1):
            types = torch.arange(-(-side // width) * width, device=W.device)
            rows = rows.index_select(axis, types.clamp_max(side - 1))
            rows = rows.unflatten(axis, (-1, width)).mean(axis + 1)
        grid = tuple(rows.shape[1:])
        rows = rows.flatten(1)
        rows = rows - rows.mean(1, keepdim=True)
        k = rows.shape[1]
        rows = gram_root(rows) if k <= FACTORED else rows / math.sqrt(len(rows))
        known = None if users is None else torch.linalg.inv(users * rough(k, rows))
        sizes = coprime(tuple(-(-size // width) for size in sizes))
        return cls(low, generator, rows, grid, sizes, known)

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
        for axis, side in enumerate(self.grid):
            numbers = numbers.narrow(axis, 0, side)
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
        if self.rows.shape[1] <= FACTORED:
            w = self.rows
            y = self._factored(spectrum.detach(), w)
        else:
            w = signed_sums(self.rows, PROBES, self.generator)
            y = self._conjugate(spectrum.detach(), w)
        power = self.power(self.spread(y)).sum(-2)
        power[..., 1 : (self.size + 1) // 2] *= 2  # each frequency but 0 and K/2 stands for two
        value = 2 * (y * w).sum((-2, -1)) - (spectrum * power).sum(-1) / self.size
        if self.known is None:
            return value
        return value - (y @ self.known * y).sum((-2, -1))

    def starts(self, count: int) -> Patterns:
        """Arcs or boxes, and clouds, of about K/(e^epsilon + 1) ones.

        Boxes have rough edges; clouds are thresholded noise of spectrum 1/f.
        """
        axes = [torch.arange(side).to(self.rows) for side in self.sizes]
        waves = _mesh([torch.minimum(a, len(a) - a) for a in axes])
        falling = (1 + waves.norm(dim=0)) ** len(axes)
        positions = _mesh([a / len(a) for a in axes])
        away = (positions - 0.5).abs().amax(0)
        logits = []
        for start in range(count):
            sizes = ARCS if start % 2 == 0 else CLOUDS
            for b in range(PATTERNS):
                factor = sizes[(start // 2 + b) % len(sizes)]
                ones = round(self.size / (1 / self.low + 1) * factor)
                ones = min(max(1, ones), self.size - 1)
                height = self._box(away, ones) if start % 2 == 0 else self._cloud(falling, ones)
                noise = START_NOISE * self.normal(self.size)
                height = height.flatten()[self.order]
                logits.append(height.clamp(-2, 2) + noise)
        return self.even(logits, count)

    def _box(self, away: Tensor, ones: int) -> Tensor:
        """Logits above 0 in a box of so many points; away: from its middle, in torus sides."""
        side = (ones / self.size) ** (1 / away.ndim)  # of the box, of the torus's
        length = self.size ** (1 / away.ndim)
        return length * (side / 2 - away) / (1 + 0.15 * length * side)

    def _cloud(self, falling: Tensor, ones: int) -> Tensor:
        """Logits above 0 where noise is largest; ``falling`` divides its spectrum."""
        spectrum = torch.fft.fftn(self.normal(*self.sizes)) / falling
        cloud = torch.fft.ifftn(spectrum).real
        threshold = cloud.flatten().topk(ones).values[-1]
        return 3.0 * (cloud >= threshold).double() - 1.5

    def refined(self, patterns: Patterns, coarse: "Torus") -> Patterns:
        """From half as many points a side.

        Noise, without which the new frequencies would stay empty.
        """
        logits = patterns[0].clamp(-2, 2)[..., coarse.order.argsort()]
        logits = logits.unflatten(-1, coarse.sizes)
        for axis, (few, many) in enumerate(zip(coarse.sizes, self.sizes, strict=True), 2):
            index = torch.arange(many, device=logits.device) // 2
            logits = logits.index_select(axis, index.clamp_max(few - 1))
        logits = logits.flatten(2)[..., self.order]
        return logits + REFINED_NOISE * self.normal(*logits.shape), patterns[1]

    def _factored(self, spectrum: Tensor, w: Tensor) -> Tensor:
        """M^{-1} w for each spectrum: (R, characters), (P, k) -> (R, P, k)."""
        circulant = torch.fft.irfft(spectrum, n=self.size)
        M = circulant[:, (self.place[:, None] - self.place) % self.size]
        M.diagonal(dim1=-2, dim2=-1).mul_(1 + RIDGE)
        if self.known is not None:
            M = M + self.known
        triangle = torch.linalg.cholesky_ex(M)[0]
        return torch.cholesky_solve(w.mT.expand(len(M), -1, -1), triangle).mT

    def variance(self, patterns: Patterns) -> float:
        """tr(G M^{-1}) of patterns of zeros and ones and their shares."""
        ones, shares = patterns
        p = self.low + (1 - self.low) * ones.to(self.rows)
        spectrum = self.spectrum(p, shares / shares.sum())
        return float(self.price(spectrum[None]))

    def _conjugate(self, spectrum: Tensor, w: Tensor) -> Tensor:
        """The same by conjugate gradients, preconditioned by the inverse circulant's block."""

        def times(factor: Tensor, y: Tensor) -> Tensor:
            """The block of a circulant of these eigenvalues, times y."""
            moved = torch.fft.rfft(self.spread(y)) * factor[:, None]
            return torch.fft.irfft(moved, n=self.size)[..., self.place]

        y = torch.zeros(len(spectrum), *w.shape).to(w)
        residual = w.expand(len(spectrum), -1, -1)
        inverse = 1 / spectrum
        image = times(inverse, residual)
        direction = image
        product = (residual * image).sum(-1, keepdim=True)
        enough = RESIDUAL**2 * product
        for _ in range(ITERATIONS):
            moved = times(spectrum, direction)
            length = product / (direction * moved).sum(-1, keepdim=True)
            y = y + length * direction
            residual = residual - length * moved
            image = times(inverse, residual)
            before = product
            product = (residual * image).sum(-1, keepdim=True)
            if bool((product <= enough).all()):
                break
            direction = image + product / before * direction
        return y


def _mesh(axes: list[Tensor]) -> Tensor:
    """Coordinates of a grid's points, (directions, *sides)."""
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


Judge = Callable[[Patterns, Torus], float]  # the worst type's variance
Search = tuple[Torus, Patterns, Grid]


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
    """The best search over the torus's sizes: (patterns, shares), and the types' places.

    Judged on at most 256 merged types. None: no patterns tell all types apart. Unchecked.

    Args:
        W: (m, k), rows of mean 0.
        epsilon: of the strategy.
        steps: of the first descent.
        starts: of it.
        judge: the variance of patterns on a torus, where ``users`` is None.
        generator: of starts and noise.
        grid: sides of the types.
        users: of a fit, on at most 256 types.
    """
    low = math.exp(-epsilon)

    def merged(sizes: Grid, level: int) -> Torus:
        return Torus.merged(W, low, generator, grid, sizes, 2**level, users)

    def finer(torus: Torus, patterns: Patterns, sizes: Grid, levels: range) -> Search:
        for level in levels:
            coarse = torus
            torus = merged(sizes, level)
            refined = torus.refined(patterns, coarse)
            patterns, _ = torus.descend(refined, range(steps // 3), steps // 3)
        return torus, patterns, sizes

    coarsest = _halvings(W.shape[1], COARSEST, grid)
    judged = _halvings(W.shape[1], FACTORED, grid)
    best = None
    least = math.inf
    for pad in PADS:
        sizes = tuple(side + max(1, round(pad * side)) for side in grid)
        torus = merged(sizes, coarsest)
        logits, shares = torus.best(torus.starts(starts), steps)
        levels = range(coarsest - 1, judged - 1, -1)
        search = finer(torus, (logits[:1], shares[:1]), sizes, levels)
        torus = search[0]
        rounded = torus.rounded(search[1])
        value = judge(rounded, torus) if users is None else torus.variance(rounded)
        if value < least:
            best = search
            least = value
    if best is None:
        return None
    torus, patterns, _ = finer(*best, range(judged - 1, -1, -1))
    return torus.rounded(patterns), torus.place


def _halvings(k: int, most: int, grid: Grid) -> int:
    """How often each side is halved until at most so many types are left."""
    return max(0, math.ceil(math.log2(k / most) / len(grid)))


def coprime(sizes: Grid) -> Grid:
    """The sizes, raised until no two of them have a common divisor."""
    raised: Grid = ()
    for size in sizes:
        while any(math.gcd(size, other) > 1 for other in raised):
            size += 1
        raised = (*raised, size)
    return raised


def grid_of(W: Tensor) -> Grid | None:
    """The sides (a, b) of a grid of types on which the queries' Gram matrix is a Kronecker product.

    The squarest such grid; None: there is none.
    """
    gram = W.mT @ W
    k = W.shape[1]
    divisors = [side for side in range(2, k) if k % side == 0]
    for a in sorted(divisors, key=lambda side: side + k // side):
        b = k // a
        blocks = gram.view(a, b, a, b).transpose(1, 2).reshape(a * a, -1)  # of rank 1
        size = blocks.abs()
        row, column = divmod(int(size.argmax()), blocks.shape[1])
        product = blocks[:, column, None] * blocks[row] / blocks[row, column]
        if float((product - blocks).abs().max()) <= KRONECKER * float(size.max()):
            return a, b
    return None


def rough(k: int, like: Tensor) -> Tensor:
    """Covariance of a histogram on k ordered types, (k, k): the mean of ``ROUGH``'s two."""
    types = torch.arange(k).to(like)
    distance = (types[:, None] - types).abs() / k
    kernels = [(size / k) ** 2 * torch.exp(-distance / length) for size, length in ROUGH]
    return torch.stack(kernels).mean(0)


def signed_sums(W: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random combinations w of the queries, (count, k), with E w w^T = W^T W / count."""
    bits = torch.randint(0, 2, (count, len(W)), device=W.device, generator=generator)
    signs = bits.to(W) * 2 - 1
    return signs @ W / math.sqrt(count)
