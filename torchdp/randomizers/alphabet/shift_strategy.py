"""Shift strategies: a few patterns of types and all their shifts, for ordered types.

Notation: x - s is a point of the circle Z_K, B patterns b have shares u_b; M = Q^T D^{-1} Q is a
Toeplitz matrix, V = W M^{-1} Q^T D^{-1} the decoder of W.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.draws import Draws
from torchdp.privacy import Guarantee
from torchdp.privacy.blanket import Blanket
from torchdp.protocol import Tally
from torchdp.randomizers.alphabet.chances import TOTAL, exponential, logarithm, stated, told_apart
from torchdp.randomizers.alphabet.frequency import StrategyOracle, keep_range
from torchdp.randomizers.alphabet.strategy_search import strategy_problem
from torchdp.randomizers.alphabet.translates import (
    FACTORED,
    Grid,
    Patterns,
    Torus,
    shifts,
    signed_sums,
)
from torchdp.randomizers.base import exact_local

LEAST_EPSILON = 1e-4

# Of more queries SKETCHED random sums stand for them in the search.
MOST_QUERIES = 1024
SKETCHED = 512

# Least pivot of M, of the largest, at which it counts as of full rank.
SINGULAR = 1e-12


@dataclass(frozen=True)
class ShiftStrategy(StrategyOracle):
    """A user of type x draws a pattern b, then a shift s in Z_K, likelier where b holds x - s.

    Types are 0, ..., k - 1 on a circle of K >= k. P(b, s | x) = share_b high_b/size_b where
    pattern_b[(x - s) mod K], and share_b (1 - high_b)/(K - size_b) elsewhere: e^epsilon between the
    two. M = Q^T D^{-1} Q, D_(b,s) = share_b/K, is a Toeplitz matrix. For a workload W the decoder W
    M^{-1} Q^T D^{-1} is unbiased and, under uniform types on the circle, of least variance. The
    message (b, s) is the number b K + s.

    Raises TypeError, ValueError, also where the reports can not tell all types apart. Memory: O(B K
    + k^2), never the matrix Q of B K outputs.

    Args:
        patterns: bool, (B, K), each neither empty nor full.
        shares: of the patterns, (B,), positive, scaled to 1, drawn as integers over 2^63.
        k: number of types, in 2..K.
        epsilon: in [1e-4, 700].
        place: where on the circle the types are, (k,), no two at one place; None: its first k
            points. What is said of x above holds of its place.

    Guarantees: exactly epsilon-LDP: all draws are integers, and ``guarantee`` states the log ratio
    drawn.
    Source: strategy matrices of McKenna, Maity, Mazumdar, Miklau (2020), that the shifts of a
    circle leave as
        they are.
    """

    patterns: Tensor
    shares: Tensor
    k: int
    epsilon: float
    place: Tensor | None = None
    # (2B,), int64: of (b, in the pattern), then of (b, outside)
    table: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.own(self)
        patterns = checks.typed("patterns", self.patterns, torch.bool)
        checks.shaped("patterns", patterns, "patterns", "circle", empty=True)
        sizes = patterns.sum(1)
        circle = patterns.shape[1]
        if not bool(((sizes > 0) & (sizes < circle)).all()) or not len(patterns):
            raise ValueError("patterns must be neither empty nor full: such a one says nothing")
        keep_range(self)
        k = self.k
        checks.within(
            "epsilon", self.epsilon, LEAST_EPSILON, math.inf, ": M is singular to rounding"
        )
        if k > circle:
            raise ValueError(
                f"k = {k} types do not fit on a circle of {circle}; give patterns of {k} or more"
            )
        if self.place is not None:
            place = checks.indices("place", self.place, circle)
            if place.shape != (k,) or len(place.unique()) < k:
                raise ValueError(
                    f"place must hold {k} different points of the circle, not {tuple(place.shape)}"
                )
        shares = checks.shares("shares", self.shares, len(patterns), positive=True)
        shares = shares.detach().double()
        numbers, epsilon = _whole(shares.tolist(), sizes.tolist(), circle, self.epsilon)
        table = torch.tensor(numbers, dtype=torch.int64, device=patterns.device)
        chances = table.view(2, -1).double() / TOTAL
        # The decoder must invert what is drawn: the shares are those of the rounded integers.
        shares = chances.sum(0)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "shares", shares)
        checks.validated(self, "_triangle")  # patterns that can not be decoded

    @classmethod
    def tuned(
        cls,
        W: Tensor,
        epsilon: float,
        *,
        generator: torch.Generator,
        steps: int = 250,
        starts: int = 8,
        users: int | None = None,
        grid: Grid | None = None,
    ) -> "ShiftStrategy":
        """One of small variance for W among all.

        Of one user's part in the answers, for the worst type, in the mean over queries. For
        workloads on ordered types (prefix sums, ranges, differences); for others any frequency
        oracle may be better. O(log k) rounds of Fourier transforms: seconds up to thousands of
        types.

        Args:
            W: (m, k), real, no two columns alike, k >= 2. A constant may be taken off each row: it
                changes no variance.
            epsilon: in [0.001, 30].
            generator: of starts and noise.
            steps: of the descent on merged types.
            starts: of it.
            users: for answers that are fitted to so many reports, of at most 256 types: of small
                posterior variance under a rough prior, in the place of the variance of unbiased
                answers.
            grid: types in each direction where they are on a grid, the last direction first to
                change; their product is k.

        Raises TypeError, ValueError.
        Guarantees: at most epsilon-LDP. No gap is promised; ``strategy_lower_bound`` says how far
        it is from the best.
        Source: see ``translates``; Chaloner, Verdinelli (1995) for designs of least posterior
        variance.
        """
        W, epsilon, _ = strategy_problem(W, epsilon, None)
        k = W.shape[1]
        steps = checks.integer("steps", steps, 1)
        starts = checks.integer("starts", starts, 1)
        if users is not None:
            users = checks.integer("users", users, 1)
            checks.integer("W.shape[1], with users,", k, 2, FACTORED)
        grid = (k,) if grid is None else tuple(checks.integer("grid", side, 1) for side in grid)
        if math.prod(grid) != k or (len(grid) > 1 and users is not None):
            raise ValueError(f"grid must have the product {k}, and one side with users, not {grid}")
        W = W - W.mean(1, keepdim=True)
        generator = checks.random_source(generator, W.device)
        if len(W) > MOST_QUERIES:
            W = signed_sums(W, SKETCHED, generator)

        def judge(patterns: Patterns, torus: Torus) -> float:
            try:
                strategy = cls(*patterns, torus.rows.shape[1], epsilon, torus.place)
            except ValueError:  # these reports can not tell all types apart
                return math.inf
            variance = strategy.workload_variance(torus.rows)
            return float(variance.mean(0).amax())

        size = W.abs().max()
        found = None
        if size > 0:  # else all types have the same answers
            found = shifts(W / size, epsilon, steps, starts, judge, generator, grid, users)
        if found is None:
            raise ValueError(
                "W needs no shifts that tell all types apart; use StrategyMatrix.tuned"
            )
        patterns, place = found
        return cls(*patterns, k, epsilon, place)

    @classmethod
    def square_wave(cls, k: int, epsilon: float, width: int | None = None) -> "ShiftStrategy":
        """For an interval cut in k types: outputs near the type are e^epsilon times as likely.

        Those at most ``width`` from it. One pattern, an arc of 2 width + 1 on a circle of k + 2
        width, which no type's arc wraps around. Its unbiased answers have a large variance: it is
        meant for ``queries.fitted``. Raises TypeError, ValueError.

        Args:
            k: number of types.
            epsilon: in [1e-4, 700].
            width: in types; by default of most mutual information for uniform types.

        Guarantees: the class's.
        Source: Li, Wang, Lopuhaa-Zwakenberg, Li, Skoric (2020), in whole types.
        """
        k = checks.integer("k", k, 2)
        epsilon = checks.positive("epsilon", epsilon)
        if width is None:  # the published width, with both ends multiplied by e^-epsilon
            less = -math.expm1(-epsilon)
            share = (epsilon - less) / (2 * (math.expm1(epsilon) - epsilon))
            width = max(0, round(k * share))
        width = checks.integer("width", width, 0, k)
        pattern = torch.arange(k + 2 * width) > k - 2
        pattern = pattern.roll(1 - k - width)  # its middle is at 0
        return cls(pattern[None], torch.ones(1), k, epsilon)

    @property
    def guarantee(self) -> Guarantee:
        source = "log ratio of the two chances of a shift, as integers; McKenna et al. (2020)"
        return exact_local(self.epsilon, source)

    @property
    def blanket(self) -> Blanket:
        """Of all K types of the circle, each pattern and its own shifts. O(B K log K)."""
        sizes = self.patterns.sum(1).double()
        circle = self.circle
        epsilon = self.guarantee.epsilon
        low = self.shares / (circle + sizes * math.expm1(epsilon))  # c of each shift
        spectrum = torch.fft.rfft(self.patterns.double())
        spectrum = spectrum.abs().square()
        overlaps = torch.fft.irfft(spectrum, n=circle).round()  # whole numbers
        both = low @ overlaps  # of types at the distances 0, ..., K - 1
        return Blanket(epsilon, float(low @ sizes), float(both[1:].min()))

    @property
    def rows(self) -> Tensor:
        """Which types make each output likelier: (B K, k), bool, of the heaviest pattern first."""
        place = torch.arange(self.circle, device=self.device)
        held = (self._place - place[:, None]) % self.circle
        heaviest_first = self.shares.argsort(descending=True)
        return self.patterns[heaviest_first][:, held].flatten(0, 1)

    @property
    def circle(self) -> int:
        """K."""
        return self.patterns.shape[1]

    @cached_property
    def _place(self) -> Tensor:
        if self.place is None:
            return torch.arange(self.k, device=self.device)
        return self.place.long()

    @property
    def outputs(self) -> int:
        """B K."""
        return self.patterns.numel()

    @cached_property
    def chances(self) -> Tensor:
        """P(b, s | x) at x - s = j, (B, K), float64."""
        inside, outside = self.table.double().view(2, -1) / TOTAL
        sizes = self.patterns.sum(1)
        high = inside / sizes
        low = outside / (self.circle - sizes)
        return torch.where(self.patterns, high[:, None], low[:, None])

    @cached_property
    def _transform(self) -> Tensor:
        return torch.fft.rfft(self.chances)

    @property
    def _weights(self) -> Tensor:
        """The diagonal of D^{-1}, of each pattern's outputs, (B,)."""
        return self.circle / self.shares

    @cached_property
    def _triangle(self) -> Tensor:
        """The Cholesky factor of M, (k, k)."""
        # M_xy depends on the distance of x and y alone: it is an autocorrelation on the circle.
        power = self._transform.abs().square() * self._weights[:, None]
        column = torch.fft.irfft(power.sum(0), n=self.circle)
        distance = (self._place[:, None] - self._place) % self.circle
        triangle, failed = torch.linalg.cholesky_ex(column[distance])
        pivots = triangle.diagonal().square()
        # A pivot of the size of rounding passes the factorisation, and the decoder divides by it.
        if bool(failed) or bool(pivots.min() <= SINGULAR * pivots.max()):
            raise ValueError(
                "patterns must tell all types apart; take more of them, or less regular ones"
            )
        return triangle

    def randomize_unchecked(self, x: Tensor, draws: Draws) -> Tensor:
        """One output in [0, B K) for each user: int64, the shape of ``x``.

        One number settles the pattern and whether x - s is in it, a second one which of these
        shifts: neither depends on x.
        """
        number = draws.integers(tuple(x.shape))
        # The last boundary, 2^63, is no int64: it is left out.
        bounds = self.table.cumsum(0)[:-1].to(x.device)
        cell = torch.searchsorted(bounds, number, right=True)  # of 2 B
        place = torch.empty_like(number)
        for i, held in enumerate(torch.cat([self.patterns, ~self.patterns]).to(x.device)):
            members = held.nonzero()[:, 0]
            users = cell == i
            chosen = draws.below(len(members), (int(users.sum()),))
            place[users] = members[chosen]
        pattern = cell % len(self.patterns)
        shift = (self._place.to(x.device)[x.long()] - place) % self.circle
        return pattern * self.circle + shift

    def _correlated(self, values: Tensor) -> Tensor:
        """sum_x values_x P(b, s | x) K/share_b: (*batch, k) -> (*batch, B, K)."""
        if not values.numel():  # which Fourier transforms refuse
            return values.new_zeros(*values.shape[:-1], len(self.patterns), self.circle)
        full = values.new_zeros(*values.shape[:-1], self.circle)
        full[..., self._place] = values
        spectrum = torch.fft.rfft(full)[..., None, :] * self._transform.conj()
        return torch.fft.irfft(spectrum, n=self.circle) * self._weights[:, None]

    def decoder(self, W: Tensor) -> Tensor:
        """By Fourier transforms, O(q (k^2 + B K log K))."""
        return self._correlated(self._inverse(self._workload(W))).flatten(-2)

    def _inverse(self, W: Tensor) -> Tensor:
        return torch.cholesky_solve(W.mT, self._triangle).mT

    def mixed(self, shares: Tensor) -> Tensor:
        chances = self._correlated(shares) * (self.shares / self.circle)[:, None]
        return chances.flatten(-2).clamp_min(self.chances.amin())  # less is rounding

    def gathered(self, values: Tensor) -> Tensor:
        if not values.numel():  # which Fourier transforms refuse
            return values.new_zeros(*values.shape[:-1], self.k)
        by_pattern = values.unflatten(-1, (-1, self.circle))
        spectrum = torch.fft.rfft(by_pattern) * self._transform
        return torch.fft.irfft(spectrum.sum(-2), n=self.circle)[..., self._place]

    def totals(self, tally: Tally) -> Tensor:
        """M^{-1} Q^T D^{-1} reports. O(k^2 + B K log K) for each."""
        weights = self._weights.repeat_interleave(self.circle)
        gathered = self.gathered(tally["reports"] * weights)
        return self._inverse(gathered.view(-1, self.k)).view(gathered.shape)

    @property
    def home(self) -> torch.device:
        return self.table.device

    def laws(self, types: Tensor) -> Tensor:
        shift = torch.arange(self.circle, device=types.device)
        j = (self._place[types][:, None] - shift) % self.circle
        return self.chances[:, j].transpose(0, 1).flatten(1)


def _whole(
    shares: list[float], sizes: list[int], circle: int, epsilon: float
) -> tuple[list[int], float]:
    """Integers over 2^63 of (pattern, inside) and (pattern, outside), and their epsilon."""
    growth = exponential(epsilon)
    totals = [math.floor(share * TOTAL) for share in shares]
    largest = totals.index(max(totals))
    # What the floors leave goes to the heaviest pattern, whose share it changes least.
    totals[largest] += TOTAL - sum(totals)
    inside = []
    outside = []
    for total, size in zip(totals, sizes, strict=True):
        # Rounded up: more chance outside of the pattern only lowers the ratio.
        rest = math.ceil(total * (circle - size) / (growth * size + circle - size))
        inside.append(total - rest)
        outside.append(rest)
    if min(inside) < 1 or min(outside) < 1:
        raise ValueError(
            "shares must leave each pattern a chance that integers of 63 bits hold; drop the least"
        )
    ratios = []
    for a, b, total, size in zip(inside, outside, totals, sizes, strict=True):
        high = Fraction(a, size)
        low = Fraction(b, circle - size)
        wanted = total * (growth - 1) / (growth * size + circle - size)
        told_apart(epsilon, high - low, wanted)
        ratios.append(high / low)
    return inside + outside, stated(epsilon, logarithm(max(ratios)))
