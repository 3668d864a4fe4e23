"""Statistics of degree 3, means over triples of distinct users. Experimental: names and results may change.

Ghazi et al. (2023), section 6, leave statistics of triplets open. Here each user sends one vector at the full epsilon,
as for pairs, and the analyst forms the U-statistic of the messages from three power sums; because the noise is
independent, unbiased and the same in all directions, it is unbiased and its variance is known exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchdp import checks
from torchdp.noise import Noise, source
from torchdp.pairwise.messages import ROUNDING
from torchdp.pairwise.protocol import PairwiseEstimate
from torchdp.pairwise.statistic import unequal
from torchdp.privacy import Guarantee
from torchdp.randomizers import PrivUnitG

NUMBERS_AT_ONCE = 2**22  # of message coordinates held in memory


@dataclass(frozen=True)
class TripleStatistic:
    """The mean over triples of distinct users of a symmetric f in vectors u_x. Experimental.

    With z_x = directions u_x, f(x, y, w) = constant + sum_t [cubic_t z_xt z_yt z_wt
    + square_t (z_xt z_yt + z_xt z_wt + z_yt z_wt)/3 + linear_t (z_xt + z_yt + z_wt)/3].
    points: (k, r); directions: (m, r); cubic, square, linear: (m,); all float64. Raises TypeError, ValueError.
    """

    name: str
    points: Tensor
    directions: Tensor
    cubic: Tensor
    square: Tensor
    linear: Tensor
    constant: float = 0.0

    def __post_init__(self) -> None:
        shape = (*self.directions.shape[:1], *self.points.shape[1:])
        if checks.matrix("points", self.points).ndim != 2 or self.directions.shape != shape or len(shape) != 2:
            raise ValueError("points must be (types, r) and directions (m, r)")
        for name in ("points", "directions", "cubic", "square", "linear"):
            value = checks.floating(name, getattr(self, name))
            if getattr(self, name).dtype != torch.float64:
                raise TypeError(f"{name} must be float64")
            if name in ("cubic", "square", "linear") and value.shape != shape[:1]:
                raise ValueError(f"{name} must have shape ({shape[0]},), not {tuple(value.shape)}")

    @property
    def types(self) -> int:
        """k, the number of types."""
        return self.points.shape[0]

    @property
    def radius(self) -> float:
        """Largest norm of a user's vector."""
        return float(self.points.norm(dim=1).max())

    def to(self, device: torch.device | str) -> "TripleStatistic":
        """The same statistic with its tensors on ``device``."""
        names = ("points", "directions", "cubic", "square", "linear")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def mean(self, sums: Sequence[Tensor], n: Tensor | float) -> Tensor:
        """From the sums over users of z, z^2 and z^3, each (*batch, m), to the mean over distinct users."""
        one, two, three = sums
        pairs, triples = n * (n - 1), n * (n - 1) * (n - 2)
        cubes = (one**3 - 3 * one * two + 2 * three) / triples
        squares = (one.square() - two) / pairs
        return self.constant + (self.cubic * cubes + self.square * squares + self.linear * one / n).sum(-1)

    def exact(self, counts: Tensor) -> Tensor:
        """Exact, not private: the statistic of counts (*batch, k) of at least 3 users."""
        counts = counts.double()
        z = self.points @ self.directions.mT
        n = counts.sum(-1, keepdim=True)
        return self.mean([counts @ z**power for power in (1, 2, 3)], n)


@dataclass(frozen=True)
class OneMessageTriples:
    """Each user sends its vector once, at the full epsilon; the analyst forms the U-statistic. Experimental.

    It must see each message: it keeps the sums of z, z^2 and z^3, z = directions Y. With v the noise of a message in
    each direction, G = directions directions^T, N2 = n (n-1), N3 = N2 (n-2), s the sum of the z over users,
    Var = v sum_i a_i^T G a_i + v^2 sum_{i<j} b_ij^T (G o G) b_ij + 6 v^3 cubic^T (G o G o G) cubic / N3, exactly, with
    a_i = 3 cubic q_i/N3 + 2 square (s - z_i)/N2 + linear/n, q_i = sum over j != k, both other than i, of z_j z_k, and
    b_ij = 6 cubic (s - z_i - z_j)/N3 + 2 square/N2. Third and fourth moments of the noise do not enter.

    Guarantees: epsilon-LDP for each user.
    Source: derived here: the U-statistic of independent messages, expanded in their noise (Hoeffding 1948).
    """

    statistic: TripleStatistic
    epsilon: float

    def __post_init__(self) -> None:
        if not isinstance(self.statistic, TripleStatistic):
            raise TypeError(f"statistic must be a TripleStatistic, not {type(self.statistic).__name__}")
        object.__setattr__(self, "epsilon", checks.positive("epsilon", self.epsilon))
        _ = self.guarantee  # builds the randomizer, which refuses an epsilon out of its range

    @cached_property
    def randomizer(self) -> PrivUnitG:
        """What a user runs."""
        return PrivUnitG(self.statistic.points.shape[1], self.epsilon, self.statistic.radius)

    @property
    def guarantee(self) -> Guarantee:
        """What the message of one user promises."""
        return replace(self.randomizer.guarantee, exact=False)  # exact for the ball, these are k points of it

    @property
    def bits_per_user(self) -> int:
        """Length of the message of one user, in bits."""
        return self.randomizer.bits

    def collect(self, types: Tensor, *, noise: Noise | None = None) -> tuple[Tensor, ...]:
        """What the analyst keeps when the users hold ``types`` (n,): sums of z, z^2, z^3, each (m,).

        noise: the system's where None. Raises ValueError, TypeError.
        """
        types = self._admit(types, 1)
        noise = source(noise, types.device)
        total = tuple(torch.zeros_like(self.statistic.linear) for _ in range(3))
        widest = max(self.statistic.directions.shape)
        for some in types.split(max(1, NUMBERS_AT_ONCE // widest)):
            messages = self.randomizer.sample(self.statistic.points[some], noise=noise)
            total = tuple(a + b for a, b in zip(total, self.tally(messages), strict=True))
        return total

    def tally(self, messages: Tensor) -> tuple[Tensor, ...]:
        """What the analyst keeps of the messages of some users, (*batch, n, r): each (*batch, m)."""
        z = messages.double() @ self.statistic.directions.mT
        return z.sum(-2), z.square().sum(-2), (z**3).sum(-2)

    def estimate(self, types: Tensor, *, noise: Noise | None = None) -> PairwiseEstimate:
        """Estimate from each user's own message; types: (n,) integers in [0, k), n >= 3. noise: as in ``collect``."""
        types = self._admit(types, 3)
        return self.analyse(self.collect(types, noise=noise), len(types))

    def _admit(self, types: Tensor, least: int) -> Tensor:
        types = checks.indices("types", types, self.statistic.types)
        if types.ndim != 1 or len(types) < least:
            raise ValueError(f"types must have shape (n,) with n >= {least} users, not {tuple(types.shape)}")
        return types.to(self.statistic.points.device)

    def analyse(self, sums: Sequence[Tensor], n: int) -> PairwiseEstimate:
        """The analyst: from what ``collect`` returned to the estimate and its standard error."""
        n = checks.integer("n", n, 3)
        m, one = float(n), self.statistic.linear
        if isinstance(sums, Tensor) or not isinstance(sums, Sequence) or len(sums) != 3:
            raise ValueError("sums must be 3 tensors, as collect returns them")
        for index, each in enumerate(sums):
            if checks.floating(f"sums[{index}]", each).shape[-1:] != one.shape:
                raise ValueError(f"sums[{index}] must have shape (..., {len(one)}), not {tuple(each.shape)}")
        if bool((sums[1] * m < sums[0].square() * (1 - ROUNDING)).any()):
            raise ValueError(f"sums are not what {n} users can have sent: the squares add up to too little")
        return PairwiseEstimate(self.statistic.mean(sums, m), self.plug_in_variance(sums, m).sqrt(), n)

    def variance(self, counts: Tensor) -> Tensor:
        """Exact variance of the estimate when counts (k,) users hold each type."""
        cubic, square, linear = self.statistic.cubic, self.statistic.square, self.statistic.linear
        z, v = self.statistic.points @ self.statistic.directions.mT, self.randomizer.moments.variance
        counts = counts.double()
        n = counts.sum()
        pairs, triples = n * (n - 1), n * (n - 1) * (n - 2)
        s = counts @ z
        q = (s - z).square() - (counts @ z.square() - z.square())
        a = 3 * cubic * q / triples + 2 * square * (s - z) / pairs + linear / n
        first = counts @ _form(a, self._gram)
        half = 3 * cubic * (s - 2 * z) / triples + square / pairs  # b_ij = half_i + half_j
        second = (n - 2) * (counts @ _form(half, self._gram**2)) + _form(counts @ half, self._gram**2)
        return v * first + v**2 * second + 6 * v**3 * _form(cubic, self._gram**3) / triples

    def plug_in_variance(self, sums: Sequence[Tensor], n: float) -> Tensor:
        """The same to leading order in 1/n from the messages alone, what their noise adds to the squares taken off."""
        cubic, square, linear = self.statistic.cubic, self.statistic.square, self.statistic.linear
        v, one, two = self.randomizer.moments.variance, sums[0], sums[1]
        pairs, triples = n * (n - 1), n * (n - 1) * (n - 2)
        third = _form(cubic, self._gram**3) / triples**2
        b = 6 * cubic * one / triples + 2 * square / pairs
        second = (_form(b, self._gram**2) - 36 * n * v * third).clamp_min(0)
        a = 3 * cubic * (one.square() - two) / triples + 2 * square * one / pairs + linear / n
        first = (_form(a, self._gram) - n * v * second - 18 * (n * v) ** 2 * third).clamp_min(0)
        return n * v * first + (n * v) ** 2 / 2 * second + 6 * v**3 * third * triples

    def predicted_mse(self, histogram: Tensor, n: int) -> float:
        """Mean squared error for n users with this histogram (k,), exactly; not private (it reads the data)."""
        n, k = checks.integer("n", n, 3), self.statistic.types
        histogram = checks.floating("histogram", histogram).double().to(self.statistic.points.device)
        if histogram.shape != (k,) or bool((histogram < 0).any()) or float(histogram.sum()) <= 0:
            raise ValueError(f"histogram must be ({k},), non-negative, with a positive sum")
        return float(self.variance(histogram / histogram.sum() * n))

    @cached_property
    def _gram(self) -> Tensor:
        return self.statistic.directions @ self.statistic.directions.mT


def three_distinct(k: int) -> TripleStatistic:
    """The fraction of triples of distinct users who hold three different types. Experimental.

    1 - 3 P(x = y) + 2 P(x = y = w), with z_xt = 1[x = t] - 1/k: the corners of a simplex, in k - 1 dimensions.
    """
    k = checks.integer("k", k, 3)
    points = unequal(k).points
    ones = torch.ones(k, dtype=torch.float64)
    square = (6 / k - 3) * ones
    return TripleStatistic("three distinct", points, points, 2 * ones, square, 0 * ones, 1 - 3 / k + 2 / k**2)


def third_central_moment(k: int, *, spacing: float = 1.0) -> TripleStatistic:
    """Fisher's k-statistic of order 3, the unbiased third central moment, of values spacing * type. Experimental.

    Mean of x^3 - 3 x^2 y + 2 x y w over distinct users, for x scaled to [-1, 1]. A user sends
    (x, (2x^2 - 1)/2, (4x^3 - 3x)/2): Chebyshev's polynomials, whose norm is less than that of the powers.
    """
    k, spacing = checks.integer("k", k, 2), checks.positive("spacing", spacing)
    x = torch.linspace(-1, 1, k, dtype=torch.float64)
    points = torch.stack([x, x.square() - 0.5, 2 * x**3 - 1.5 * x], 1)
    directions = torch.tensor([[1, 0, 0], [0, 0, 1], [1, 1, 0], [1, -1, 0]], dtype=torch.float64)
    # x^3 = u_3/2 + 3x/4, x^2 = u_2 + 1/2, and u_2 x = ((x + u_2)^2 - (x - u_2)^2)/4.
    scale = (spacing * (k - 1) / 2) ** 3
    cubic, square, linear = (
        scale * torch.tensor(weights, dtype=torch.float64)
        for weights in ([2, 0, 0, 0], [0, 0, -0.75, 0.75], [-0.75, 0.5, 0, 0])
    )
    return TripleStatistic("third central moment", points, directions, cubic, square, linear)


def triples_from_factors(a: Tensor, b: Tensor, c: Tensor, *, name: str = "triples") -> TripleStatistic:
    """The statistic of sum_t a_xt b_yt c_wt, averaged over the orders of x, y, w, from factors (k, r). Experimental.

    A user sends (a_x, b_x, c_x), the factors scaled to equal largest norms; polarisation makes each product four cubes:
    24 abc = (a+b+c)^3 - (a+b-c)^3 - (a-b+c)^3 - (-a+b+c)^3.
    """
    factors = [checks.matrix(label, each).double() for label, each in (("a", a), ("b", b), ("c", c))]
    if factors[0].ndim != 2 or any(each.shape != factors[0].shape for each in factors):
        raise ValueError(f"a, b and c must have one shape (k, r), not {[tuple(each.shape) for each in factors]}")
    sizes = torch.stack([each.norm(dim=1).max() for each in factors])
    if not bool((sizes > 0).all()):
        raise ValueError("a, b and c must not be 0")
    common = sizes.log().mean().exp()
    points = torch.cat([each * (common / size) for each, size in zip(factors, sizes, strict=True)], 1)
    signs = torch.tensor(
        [[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]], dtype=torch.float64, device=points.device
    )
    directions = torch.kron(signs, torch.eye(factors[0].shape[1], dtype=torch.float64, device=points.device))
    cubic = (signs.prod(1) / 24).repeat_interleave(factors[0].shape[1])
    zero = torch.zeros_like(cubic)
    return TripleStatistic(name, points, directions, cubic, zero, zero)


def _form(vectors: Tensor, matrix: Tensor) -> Tensor:
    """x^T M x for each vector (*batch, m)."""
    return ((vectors @ matrix) * vectors).sum(-1)
